#include "server/cli/engine_config.h"

#include "engine/base/log.h"
#include "server/cli/devices.h"
#include "server/cli/model_folder.h"
#include "server/cli/nodes_config.h"

#include <stdio.h>
#include <string.h>

extern char **environ;

static enum status check_formats(const struct config *c, struct err *err)
{
    bool automatic = strcmp(c->kv_cache_dtype, "auto") == 0;
    if (!automatic && strcmp(c->kv_cache_dtype, c->engine.dtype) != 0) {
        return err_set(err, ERR_UNSUPPORTED, "kv-cache-dtype: %s is not supported; keys and values "
                       "have the model's dtype", c->kv_cache_dtype);
    }
    if (c->quantization) {
        return err_set(err, ERR_UNSUPPORTED, "quantization: '%s' is not supported",
                       c->quantization);
    }
    return OK;
}

/* Waits until all processes that share the model have met. */
static enum status meet_nodes(const struct config *c, struct engine_options *o, struct err *err)
{
    struct nodes_setting s;
    TRY(nodes_setting_read(c, environ, &s, err));
    if (s.place.n_nodes < 2) {
        return OK;
    }
    log_info("node %d of %d, as %s say", s.place.node, s.place.n_nodes, s.from);
    struct buf identity;
    buf_init(&identity, 1 << 20);
    enum status st = nodes_identity(c, &identity, err);
    st = st == OK ? nodes_open(&s.place, identity.data, &o->nodes, err) : st;
    buf_deinit(&identity);
    return st;
}

enum status engine_config_check(const struct config *c, struct err *err)
{
    if (!c->engine.model) {
        return err_set(err, ERR_INVALID, "no model was given: name a folder with config.json");
    }
    TRY(model_folder_check(c->engine.model, err));
    TRY(check_formats(c, err));
    return engine_check(&c->engine, err);
}

enum status engine_config(const struct config *c, struct engine_options *out, struct err *err)
{
    TRY(engine_config_check(c, err));
    *out = c->engine;
    /* Admission refuses earlier; this leaves room for what passes it at once. */
    out->max_waiting = (int32_t)(2 * c->max_num_queued_reqs + c->max_n);
    out->synthetic = c->engine.load_format && strcmp(c->engine.load_format, "dummy") == 0;
    TRY(meet_nodes(c, out, err));
    return devices_choose(c->device, out, err);
}
