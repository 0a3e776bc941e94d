// SPDX-License-Identifier: Apache-2.0
/* The served models: /v1/models, in OpenAI's form or, for clients that send the header
 * anthropic-version, in Anthropic's; and /tokenizer_info.
 * Answered immediately, whatever the engine is doing. */
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "server/api/api.h"
#include "server/call/adapters.h"

#include <stdlib.h>
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

static bool wants_anthropic(const struct http_request *req)
{
    return http_header(req, "anthropic-version") != NULL;
}

static void put_anthropic_model(struct buf *b, const struct api *a, const char *name)
{
    const int32_t most = a->calls.model.info->max_model_len;
    buf_puts(b, "{\"type\":\"model\",\"id\":");
    buf_put_json(b, name, strlen(name));
    buf_puts(b, ",\"display_name\":");
    buf_put_json(b, name, strlen(name));
    buf_puts(b, ",\"created_at\":");
    put_rfc3339(b, a->calls.model.created);
    buf_printf(b, ",\"lifecycle\":\"active\",\"max_input_tokens\":%d,\"max_tokens\":%d}", most,
               most);
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

/* All names under which the model is served, and its adapters. */
struct served {
    const char *name, *dir; // dir: of an adapter, or NULL
};
struct served_list {
    struct served *items;
    size_t n;
    struct call_adapter adapters[MAX_ADAPTERS];
};

static void list_served(const struct call_model *m, struct served_list *list)
{
    const size_t n_adapters = (size_t)call_adapters_list(m->adapters, list->adapters);
    list->n = 0;
    list->items = xcalloc(m->n_names + n_adapters, sizeof *list->items);
    for (size_t i = 0; i < m->n_names; i++) {
        list->items[list->n++] = (struct served){m->names[i], NULL};
    }
    for (size_t i = 0; i < n_adapters; i++) {
        list->items[list->n++] = (struct served){list->adapters[i].name, list->adapters[i].dir};
    }
}

/* Anthropic's pages. False, after a reply, if the query is invalid. */
struct served_page {
    size_t first, end;
};

static size_t place_of(const struct served_list *list, const char *name)
{
    size_t i = 0;
    while (i < list->n && strcmp(list->items[i].name, name) != 0) {
        i++;
    }
    return i;
}

static bool take_page(struct http_request *req, const struct served_list *list,
                      struct served_page *page)
{
    const char *limit = http_query(req, "limit"), *after = http_query(req, "after_id"),
               *before = http_query(req, "before_id");
    char *end = NULL;
    const long long most = limit ? strtoll(limit, &end, 10) : 20;
    if (most < 1 || most > 1000 || (limit && (end == limit || *end))) {
        reply_errorf(req, 400, "invalid_value", "limit",
                     "Invalid 'limit': expected a whole number from 1 to 1000.");
        return false;
    }
    const char *id = or_text(after, before);
    const size_t at = id ? place_of(list, id) : 0;
    if ((after && before) || (id && at == list->n)) {
        reply_errorf(req, 400, "invalid_value", after ? "after_id" : "before_id",
                     "Invalid '%s': expected the id of a model, and only one such parameter.",
                     after ? "after_id" : "before_id");
        return false;
    }
    const size_t n = (size_t)most;
    if (before) {
        *page = (struct served_page){at - lesser(at, n), at};
    } else {
        const size_t first = after ? at + 1 : 0;
        *page = (struct served_page){first, first + lesser(list->n - first, n)};
    }
    return true;
}

static void put_id(struct buf *b, const char *key, const struct served_list *list, size_t place,
                   bool is_any)
{
    buf_printf(b, ",\"%s\":", key);
    if (is_any) {
        buf_put_json(b, list->items[place].name, strlen(list->items[place].name));
    } else {
        buf_puts(b, "null");
    }
}

/* has_more: in the direction in which the client pages. */
static void put_anthropic_page(struct buf *b, const struct api *a, const struct served_list *list,
                               const struct served_page *page, bool backwards)
{
    const bool is_any = page->first < page->end;
    buf_puts(b, "{\"data\":[");
    for (size_t i = page->first; i < page->end; i++) {
        buf_puts(b, i > page->first ? "," : "");
        put_anthropic_model(b, a, list->items[i].name);
    }
    const bool has_more = backwards ? page->first > 0 : page->end < list->n;
    buf_printf(b, "],\"has_more\":%s", has_more ? "true" : "false");
    put_id(b, "first_id", list, page->first, is_any);
    put_id(b, "last_id", list, page->end - 1, is_any);
    buf_putc(b, '}');
}

static void put_openai_list(struct buf *b, const struct api *a, const struct served_list *list)
{
    buf_puts(b, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < list->n; i++) {
        buf_puts(b, i > 0 ? "," : "");
        put_model(b, a, list->items[i].name, list->items[i].dir);
    }
    buf_puts(b, "]}");
}

void api_models(struct http_request *req, void *arg)
{
    const struct api *a = arg;
    if (refuse(a, req)) {
        return;
    }
    struct served_list list;
    list_served(&a->calls.model, &list);
    struct served_page page;
    if (!wants_anthropic(req)) {
        struct buf body;
        buf_init(&body, 1 << 20);
        put_openai_list(&body, a, &list);
        reply_json(req, 200, &body);
    } else if (take_page(req, &list, &page)) {
        struct buf body;
        buf_init(&body, 1 << 20);
        put_anthropic_page(&body, a, &list, &page, http_query(req, "before_id") != NULL);
        reply_json(req, 200, &body);
    }
    free(list.items);
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
    if (wants_anthropic(req)) {
        put_anthropic_model(&body, a, name);
    } else {
        put_model(&body, a, name, dir);
    }
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
