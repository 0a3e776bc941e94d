// SPDX-License-Identifier: Apache-2.0
/* The served models: /v1/models and /tokenizer_info.
 * Answered immediately, whatever the engine is doing. */
#include "engine/base/optional.h"
#include "server/api/api.h"
#include "server/call/adapters.h"

#include <string.h>

/* Writes the object of a model, except for its last members. adapter_dir: the folder of an adapter;
 * NULL: it is the model itself. */
static void open_model(struct buf *b, const struct api *a, const char *name,
                       const char *adapter_dir)
{
    const char *root = or_text(adapter_dir, a->config->engine.model);
    buf_puts(b, "{\"id\":");
    buf_put_json(b, name, strlen(name));
    buf_puts(b, ",\"object\":\"model\",\"created\":");
    buf_put_int(b, a->calls.model.created);
    buf_puts(b, ",\"owned_by\":\"sluice\",\"root\":");
    buf_put_json(b, root, strlen(root));
    buf_puts(b, ",\"parent\":");
    if (adapter_dir) {
        buf_put_json(b, a->calls.model.names[0], strlen(a->calls.model.names[0]));
    } else {
        buf_puts(b, "null");
    }
    buf_puts(b, ",\"max_model_len\":");
    buf_put_int(b, a->calls.model.info->max_model_len);
    buf_puts(b, ",\"permission\":[]");
}

static void put_model(struct buf *b, const struct api *a, const char *name, const char *adapter_dir)
{
    open_model(b, a, name, adapter_dir);
    buf_putc(b, '}');
}

static void put_list(struct buf *b, const char *key, const char *const *items, size_t n)
{
    buf_printf(b, ",\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        if (i) {
            buf_putc(b, ',');
        }
        buf_put_json(b, items[i], strlen(items[i]));
    }
    buf_putc(b, ']');
}

/* Replies with an error, and returns true, unless the model can be used. Also adds the engine's
 * state as a header, for load balancers that poll this route. */
static bool refuse(const struct api *a, struct http_request *req)
{
    http_reply_header(req, "x-engine-state", api_health_names[a->health]);
    if (a->ready && a->health != HEALTH_DEAD) {
        return false;
    }
    struct call_error e = {.retry_after_s = a->ready || a->load_failed ? 0 : 2};
    e.type = "server_error";
    if (a->ready || a->load_failed) {
        call_error_set(&e, 503, "engine_dead", NULL, "The engine has failed.");
    } else {
        call_error_set(&e, 503, "model_loading", NULL, "The model is still loading.");
    }
    reply_error(req, &e);
    return true;
}

/* Lists all names under which the model is served, and its adapters. */
void api_models(struct http_request *req, void *arg)
{
    const struct api *a = arg;
    if (refuse(a, req)) {
        return;
    }
    struct buf body;
    buf_init(&body, 1 << 20);
    buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < a->calls.model.n_names; i++) {
        if (i) {
            buf_puts(&body, ",");
        }
        put_model(&body, a, a->calls.model.names[i], NULL);
    }
    struct call_adapter list[MAX_ADAPTERS];
    const int32_t n = call_adapters_list(a->calls.model.adapters, list);
    for (int32_t i = 0; i < n; i++) {
        buf_putc(&body, ',');
        put_model(&body, a, list[i].name, list[i].dir);
    }
    buf_puts(&body, "]}");
    reply_json(req, 200, &body);
}

/* llama.cpp's clients take each entry for a separate model, so there is one entry with all
 * names. */
void api_llama_models(struct http_request *req, void *arg)
{
    const struct api *a = arg;
    if (refuse(a, req)) {
        return;
    }
    const struct call_model *m = &a->calls.model;
    struct buf body;
    buf_init(&body, 1 << 20);
    buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    open_model(&body, a, m->names[0], NULL);
    put_list(&body, "aliases", m->names, m->n_names);
    put_list(&body, "tags", (const char *const *)a->config->tags.items, a->config->tags.n);
    buf_puts(&body, "}]}");
    reply_json(req, 200, &body);
}

void api_model_one(struct http_request *req, void *arg)
{
    const struct api *a = arg;
    if (refuse(a, req)) {
        return;
    }
    const struct call_model *m = &a->calls.model;
    int32_t place;
    const char *name = call_model_take(m, http_param(req), false, &place), *dir = NULL;
    if (!name) {
        reply_errorf(req, 404, "model_not_found", "model",
                     "The model `%.100s` does not exist or you do not have access to it.",
                     http_param(req));
        return;
    }
    struct buf body;
    buf_init(&body, 1 << 20);
    struct call_adapter list[MAX_ADAPTERS];
    const int32_t n = call_adapters_list(m->adapters, list);
    for (int32_t i = 0; i < n && place > 0; i++) {
        dir = list[i].name == name ? list[i].dir : dir;
    }
    call_adapters_give(m->adapters, place);
    put_model(&body, a, name, dir);
    reply_json(req, 200, &body);
}

void api_tokenizer_info(struct http_request *req, void *arg)
{
    const struct api *a = arg;
    if (!a->ready) {
        reply_errorf(req, 503, "model_loading", NULL, "The model is still loading.");
    } else if (!a->calls.model.tokenizer_info) {
        reply_errorf(req, 404, "not_found", NULL, "This model has no tokenizer configuration.");
    } else {
        reply_text(req, 200, a->calls.model.tokenizer_info);
    }
}
