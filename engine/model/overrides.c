// SPDX-License-Identifier: Apache-2.0
/* --hf-overrides: a JSON object that replaces members of the config. */
#include "engine/model/overrides.h"

#include <string.h>

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Settings of positions have an older and a newer form of keys. An override in the older form also
 * replaces the newer form in the file. */
static bool override_rope(struct json *config, const struct json *overrides)
{
    const struct json *scaling = json_get(overrides, "rope_scaling");
    const struct json *theta = json_get(overrides, "rope_theta");
    struct json *newer = (struct json *)json_get(config, "rope_parameters");
    if (!json_is(newer, JSON_OBJECT) || json_get(overrides, "rope_parameters")) {
        return true;
    }
    bool good = !theta || json_put(newer, theta);
    if (scaling) {
        if (!theta && json_get(newer, "rope_theta")) {
            good = json_put(config, json_get(newer, "rope_theta")) && good;
        }
        json_remove(config, "rope_parameters");
    }
    return good;
}

/* Objects named *_config are merged member by member; other members are replaced as a whole. The
 * format of the weights cannot be overridden, because it is a fact about the files. */
static enum status override(struct json *config, const struct json *overrides, struct err *err)
{
    for (const struct json *m = json_first(overrides); m; m = json_next(m)) {
        const char *key = json_key(m);
        struct json *inner = (struct json *)json_get(config, key);
        if (strcmp(key, "quantization_config") == 0 || strcmp(key, "compression_config") == 0) {
            return err_set(err, ERR_UNSUPPORTED,
                           "'%s' is not supported: the checkpoint determines the format", key);
        }
        if (ends_with(key, "_config") && json_is(inner, JSON_OBJECT) && json_is(m, JSON_OBJECT)) {
            TRY(override(inner, m, err));
        } else if (!json_put(config, m)) {
            return err_set(err, ERR_NOMEM, "no memory for '%.60s'", key);
        }
    }
    if (!override_rope(config, overrides)) {
        return err_set(err, ERR_NOMEM, "no memory for 'rope_theta'");
    }
    return OK;
}

enum status model_config_override(struct json *config, const char *text, struct err *err)
{
    struct json *overrides = NULL;
    if (!text) {
        return OK;
    }
    enum status st = json_parse(text, strlen(text), NULL, &overrides, err);
    if (st == OK && !json_is(overrides, JSON_OBJECT)) {
        st = err_set(err, ERR_INVALID, "not a JSON object");
    }
    if (st == OK) {
        st = override(config, overrides, err);
    }
    json_free(overrides);
    if (st != OK) {
        return err_prefix(err, st, "hf-overrides");
    }
    return OK;
}
