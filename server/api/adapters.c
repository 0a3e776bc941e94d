// SPDX-License-Identifier: Apache-2.0
/* vLLM's routes that load and unload adapters. A folder is read on the pool; the engine takes it
 * between two steps. */
#include "server/call/adapters.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/engine.h"
#include "server/api/api.h"
#include "server/call/body.h"

#include <stdlib.h>
#include <string.h>

enum { ARENA_BYTES = 1 << 20 };

/* A body, on its way through the pool. */
struct change {
    struct api *api;
    struct http_request *req;
    struct call_error error;
    struct arena arena;
    struct body body;
    const char *name, *dir;
    bool in_place;
    int32_t place;
};

static void on_gone(struct http_request *req, enum http_gone why, void *arg)
{
    (void)req;
    (void)why;
    (void)arg; // the work continues, and its reply ends the request
}

static const struct http_events events = {on_gone, NULL};

static void free_change(struct change *c)
{
    body_close(&c->body);
    arena_deinit(&c->arena);
    free(c);
}

/* A name or a folder: without it there is nothing to do. */
static bool read_text(struct change *c, const char *key, const char **text)
{
    if (!body_string(&c->body, key, text)) {
        return c->error.status == 0 && call_error_missing(&c->error, key);
    }
    if (**text == '\0' || body_text_has_nul(&c->body, *text)) {
        return call_error_set(&c->error, 400, "invalid_value", key,
                              "Invalid '%s': expected a text that is not empty.", key);
    }
    return true;
}

/* NULL, after a reply, unless the server has places for adapters, and the body names one. */
static struct change *begin(struct api *a, struct http_request *req)
{
    if (!a->ready) {
        reply_errorf(req, 503, "model_loading", NULL, "The model is still loading.");
        return NULL;
    }
    if (a->config->engine.spare_adapters == 0) {
        reply_errorf(req, 404, "unsupported_value", NULL,
                     "This server has no place for more adapters: see --max-loras.");
        return NULL;
    }
    struct change *c = xcalloc(1, sizeof *c);
    size_t n_bytes;
    char *text = http_body(req, &n_bytes);
    c->api = a;
    c->req = req;
    arena_init(&c->arena, ARENA_BYTES);
    if (n_bytes == 0) {
        call_error_set(&c->error, 400, "json_parse_error", NULL, "The body must be a JSON object.");
    } else if (body_open(&c->body, text, n_bytes, &c->arena, &c->error)) {
        read_text(c, "lora_name", &c->name);
    }
    if (c->error.status == 0) {
        return c;
    }
    reply_error(req, &c->error);
    free_change(c);
    return NULL;
}

static void reply_done(struct change *c, const char *what)
{
    struct buf text;
    buf_init(&text, ARENA_BYTES);
    buf_printf(&text, "Success: LoRA adapter '%s' %s successfully.", c->name, what);
    log_info("adapter '%s' was %s", c->name, what);
    http_reply_buf(c->req, 200, "text/plain; charset=utf-8", &text);
    free_change(c);
}

/* ---- load ------------------------------------------------------------------------------------ */

/* A mistake in the folder is the client's, unless the device or the engine failed. */
static void load(void *arg)
{
    struct change *c = arg;
    struct err err = {""};
    const enum status st =
        engine_set_adapter(c->api->calls.engine, c->place, c->name, c->dir, &err);
    struct call_adapters *adapters = c->api->calls.model.adapters;
    if (st == OK) {
        call_adapters_publish(adapters, c->place, c->name, c->dir);
        return;
    }
    call_adapters_give_up(adapters, c->place);
    if (st == ERR_DEVICE || st == ERR_CANCELLED) {
        call_error_set(&c->error, 503, "engine_dead", NULL, "The engine has failed.");
    } else {
        call_error_set(&c->error, st == ERR_IO ? 404 : 400, "invalid_value", "lora_path", "%s",
                       err.text);
    }
}

static void loaded(void *arg)
{
    struct change *c = arg;
    if (c->error.status == 0) {
        reply_done(c, "added");
        return;
    }
    reply_error(c->req, &c->error);
    free_change(c);
}

/* Only load_inplace replaces an adapter of the same name; the model's names are never replaced. */
static bool check_name(struct change *c)
{
    const struct call_model *m = &c->api->calls.model;
    int32_t place;
    const char *own = NULL;
    for (size_t i = 0; i < m->n_names; i++) {
        own = strcmp(m->names[i], c->name) == 0 ? m->names[i] : own;
    }
    place = call_adapters_take(m->adapters, c->name, &own);
    call_adapters_give(m->adapters, place);
    if (!own || (place > 0 && c->in_place)) {
        return true;
    }
    return call_error_set(
        &c->error, 400, "invalid_value", "lora_name", "The name '%.100s' is that of %s.", c->name,
        place > 0 ? "an adapter that is loaded already: 'load_inplace' replaces it" : "the model");
}

static bool take_place(struct change *c)
{
    struct call_adapters *adapters = c->api->calls.model.adapters;
    c->place = call_adapters_reserve(adapters);
    return c->place > 0 ||
           call_error_set(
               &c->error, 400, "unsupported_value", "lora_name",
               "All %d places for adapters (--max-loras) are taken: unload one first. The "
               "place of an adapter is free when its last request has ended.",
               call_adapters_places(adapters));
}

void api_load_adapter(struct http_request *req, void *arg)
{
    struct change *c = begin(arg, req);
    if (!c) {
        return;
    }
    body_bool(&c->body, "load_inplace", &c->in_place);
    if (c->error.status == 0 && read_text(c, "lora_path", &c->dir) && check_name(c) &&
        take_place(c)) {
        http_defer(req, &events, c);
        http_pool_run(c->api->http, load, loaded, c);
        return;
    }
    reply_error(req, &c->error);
    free_change(c);
}

/* ---- unload ---------------------------------------------------------------------------------- */

/* Its running requests finish. */
void api_unload_adapter(struct http_request *req, void *arg)
{
    struct change *c = begin(arg, req);
    if (!c) {
        return;
    }
    if (call_adapters_remove(c->api->calls.model.adapters, c->name)) {
        reply_done(c, "removed");
        return;
    }
    reply_errorf(req, 404, "not_found", "lora_name", "There is no adapter '%.100s'.", c->name);
    free_change(c);
}
