// SPDX-License-Identifier: Apache-2.0
/* Converts the configuration to the engine's options, and checks what can be checked before
 * anything is loaded. */
#include "server/cli/engine_config.h"

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/words.h"
#include "engine/engine.h"
#include "engine/gguf/folder.h"
#include "server/cli/devices.h"
#include "server/cli/model_folder.h"
#include "server/cli/nodes_config.h"

#include <stdio.h>
#include <string.h>

extern char **environ;

/* The quantisation method in a member of config.json, at the top level or in its text part. */
static const char *method_of(const struct json *config, const char *key)
{
    return json_get_string(json_get(config, key), "quant_method");
}

/* The quantisation that the checkpoint declares; older tools declared it in files of their own. */
static const char *method_in(const char *dir, const struct json *config)
{
    static const char *const files[][2] = {{"hf_quant_config.json", "modelopt"},
                                           {"quantize_config.json", "gptq"},
                                           {"quant_config.json", "awq"}};
    const char *method = method_of(config, "quantization_config");
    if (!method) {
        method = method_of(json_get(config, "text_config"), "quantization_config");
    }
    if (!method && json_get(config, "compression_config")) {
        method = "compressed-tensors";
    }
    for (int i = 0; i < 3 && !method; i++) {
        method = folder_has(dir, files[i][0]) ? files[i][1] : NULL;
    }
    return method;
}

/* Checks --quantization. It may name the checkpoint's own format, as vLLM's command lines often
 * do. */
static enum status check_quantization(const struct config *c, struct err *err)
{
    static const char *const names[][2] = {
        // the checkpoint's method, and the names accepted for it
        {"awq", "awq|auto_awq|awq_marlin"},
        {"gptq", "gptq|auto_gptq|gptq_marlin"},
        {"modelopt", "modelopt|modelopt_fp4|modelopt_mxfp8|modelopt_mixed"},
        {"mxfp4", "mxfp4|gpt_oss_mxfp4"},
    };
    struct json *config = NULL;
    TRY(folder_json(c->engine.model, "config.json", 16 << 20, &config, err));
    const char *method = method_in(c->engine.model, config);
    bool made = !method && words_find(ENGINE_QUANTIZATIONS, c->engine.quantization) >= 0;
    bool same = method && strcmp(method, c->engine.quantization) == 0;
    for (size_t i = 0; method && i < sizeof names / sizeof names[0]; i++) {
        same = same || (strcmp(method, names[i][0]) == 0 &&
                        words_find(names[i][1], c->engine.quantization) >= 0);
    }
    enum status st = OK;
    if (!same && !made) {
        st = err_set(err, ERR_UNSUPPORTED,
                     "quantization: '%.60s' is not the format of this checkpoint (%.60s); only "
                     "unquantised checkpoints can be quantised while loading, to fp8 or int4",
                     c->engine.quantization, method ? method : "none");
    }
    json_free(config);
    return st;
}

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
    if (c->engine.quantization) {
        TRY(check_quantization(c, err));
    }
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
