// SPDX-License-Identifier: Apache-2.0
/* Converts the configuration to the engine's options, and checks what can be checked before
 * anything is loaded. */
#include "server/cli/engine_config.h"

#include "engine/base/log.h"
#include "engine/engine.h"
#include "server/cli/devices.h"
#include "server/cli/model_folder.h"
#include "server/cli/nodes_config.h"

#include <stdio.h>
#include <string.h>

extern char **environ;

/* Waits until all processes that share the model have joined. */
static enum status meet_nodes(const struct config *c, struct engine_options *o, struct err *err)
{
    struct nodes_setting s;
    TRY(nodes_setting_read(c, environ, &s, err));
    if (s.place.n_nodes < 2) {
        return OK;
    }
    log_info("node %d of %d, according to %s", s.place.node, s.place.n_nodes, s.from);
    struct buf identity;
    buf_init(&identity, 1 << 20);
    enum status st = nodes_identity(c, &identity, err);
    if (st == OK) {
        st = nodes_open(&s.place, identity.data, &o->nodes, err);
    }
    buf_deinit(&identity);
    return st;
}

enum status engine_config_check(const struct config *c, struct err *err)
{
    if (!c->engine.model) {
        return err_set(err, ERR_INVALID, "no model was given: pass a folder with config.json");
    }
    TRY(model_folder_check(c->engine.model, err));
    return engine_check(&c->engine, err);
}

/* Nodes connect here, before they load, so that a wrong address or version is reported within
 * seconds. */
enum status engine_config(const struct config *c, struct engine_options *out, struct err *err)
{
    TRY(engine_config_check(c, err));
    *out = c->engine;
    /* The server rejects requests before this limit is reached; the margin is for requests that it
     * admits at the same time. */
    out->max_waiting = (int32_t)(2 * c->max_num_queued_reqs + c->max_n);
    out->synthetic = c->engine.load_format && strcmp(c->engine.load_format, "dummy") == 0;
    TRY(meet_nodes(c, out, err));
    return devices_choose(c->device, out, err);
}
