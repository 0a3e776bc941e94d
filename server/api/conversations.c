// SPDX-License-Identifier: Apache-2.0
/* /v1/conversations: items that responses continue from and append to. */
#include "server/api/work.h"

#include "engine/base/clock.h"
#include "server/call/items.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_BYTES = 64 << 20, MAX_ITEMS = 20 /* OpenAI's limit per request */ };

/* ---- output ---------------------------------------------------------------------------------- */

static void put_conversation(struct buf *b, const struct stored_conversation *c)
{
    buf_puts(b, "{\"id\":");
    buf_put_json(b, c->id, strlen(c->id));
    buf_printf(b, ",\"object\":\"conversation\",\"created_at\":%lld,\"metadata\":%s}",
               (long long)c->created_at, c->metadata && *c->metadata ? c->metadata : "{}");
}

static void put_list(struct api_work *w, const struct stored_item *items, size_t n, bool has_more)
{
    buf_puts(&w->reply, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n; i++) {
        if (i) {
            buf_puts(&w->reply, ",");
        }
        buf_put(&w->reply, items[i].text.data, items[i].text.n_bytes);
    }
    api_put_page_end(&w->reply, n ? items[0].id : NULL, n ? items[n - 1].id : NULL, has_more);
}

static void failed(struct api_work *w, enum status st, const struct err *err, const char *object)
{
    if (st != OK) {
        api_work_fail(w, st, err);
    } else {
        api_work_missing(w, object);
    }
}

/* When the conversation expires; 0: never. */
static int64_t expires_at(const struct api_work *w)
{
    const int64_t life = w->api->data_retention_s;
    if (life > 0) {
        return clock_wall_sec() + life;
    }
    return 0;
}

/* ---- bodies ---------------------------------------------------------------------------------- */

/* The members of a body; items own their texts. */
struct asked {
    struct buf metadata; // JSON text; "": none
    struct stored_item *items;
    size_t n_items;
};

static bool read_items(struct body *b, struct asked *a, bool required)
{
    const struct json *array = NULL;
    if (!body_array(b, "items", &array)) {
        return b->error->status == 0 && (!required || call_error_missing(b->error, "items"));
    }
    if (json_count(array) > MAX_ITEMS) {
        return call_error_set(b->error, 400, "invalid_value", "items",
                              "Invalid 'items': expected at most %d items in one request.",
                              MAX_ITEMS);
    }
    if (!items_check(array, "items", b->error)) {
        return false;
    }
    return items_take(array, &b->nul, &a->items, &a->n_items) ||
           call_error_set(b->error, 413, "request_too_large", "items", "The items are too large.");
}

/* Processes the parsed body; errors go to w->error. */
typedef void use_body(struct api_work *w, const struct asked *a);

/* Reads the members that a route supports and passes them to `use`. A missing body counts as an
 * empty object. */
static void with_body(struct api_work *w, bool has_metadata, bool has_items, use_body *use)
{
    struct body b = {0};
    struct arena arena;
    struct asked a = {0};
    char none[] = "{}";
    arena_init(&arena, ARENA_BYTES);
    buf_init(&a.metadata, 1 << 20);
    bool good;
    if (w->n_bytes > 0) {
        good = body_open(&b, w->body, w->n_bytes, &arena, &w->error);
    } else {
        good = body_open(&b, none, 2, &arena, &w->error);
    }
    good = good && (!has_metadata || api_read_metadata(&b, &a.metadata));
    good = good && (!has_items || read_items(&b, &a, !has_metadata));
    if (good) {
        use(w, &a);
    }
    stored_items_free(a.items, a.n_items);
    buf_deinit(&a.metadata);
    body_close(&b);
    arena_deinit(&arena);
}

/* ---- conversations --------------------------------------------------------------------------- */

static void make(struct api_work *w, const struct asked *a)
{
    struct err err = {""};
    struct stored_conversation c = {.created_at = clock_wall_sec(), .expires_at = expires_at(w)};
    c.metadata = a->metadata.data;
    enum status st = store_conversation_create(w->store, w->owner, &c, a->items, a->n_items, &err);
    if (st != OK) {
        api_work_fail(w, st, &err);
    } else {
        put_conversation(&w->reply, &c);
    }
}

static void create(struct api_work *w)
{
    with_body(w, true, true, make);
}

void api_conversations_create(struct http_request *req, void *arg)
{
    api_work_start(arg, req, create, NULL);
}

static void get(struct api_work *w)
{
    struct stored_conversation c;
    struct err err = {""};
    enum status st;
    if (store_conversation_find(w->store, w->owner, w->id, &c, &st, &err)) {
        put_conversation(&w->reply, &c);
        stored_conversation_deinit(&c);
    } else {
        failed(w, st, &err, "Conversation");
    }
}

void api_conversation_get(struct http_request *req, void *arg)
{
    api_work_start(arg, req, get, NULL);
}

static void describe(struct api_work *w, const struct asked *a)
{
    struct err err = {""};
    enum status st;
    const char *metadata = a->metadata.n_bytes > 0 ? a->metadata.data : "{}";
    if (store_conversation_describe(w->store, w->owner, w->id, metadata, &st, &err)) {
        get(w);
    } else {
        failed(w, st, &err, "Conversation");
    }
}

static void update(struct api_work *w)
{
    with_body(w, true, false, describe);
}

void api_conversation_update(struct http_request *req, void *arg)
{
    api_work_start(arg, req, update, NULL);
}

static void delete_one(struct api_work *w)
{
    struct err err = {""};
    enum status st;
    if (store_conversation_delete(w->store, w->owner, w->id, &st, &err)) {
        buf_puts(&w->reply, "{\"id\":");
        buf_put_json(&w->reply, w->id, strlen(w->id));
        buf_puts(&w->reply, ",\"object\":\"conversation.deleted\",\"deleted\":true}");
    } else {
        failed(w, st, &err, "Conversation");
    }
}

void api_conversation_delete(struct http_request *req, void *arg)
{
    api_work_start(arg, req, delete_one, NULL);
}

/* ---- items ----------------------------------------------------------------------------------- */

/* Appends items, which also extends the conversation's lifetime by a full period. */
static void append(struct api_work *w, const struct asked *a)
{
    struct err err = {""};
    enum status st;
    if (store_conversation_add(w->store, w->owner, w->id, a->items, a->n_items, expires_at(w), &st,
                               &err)) {
        put_list(w, a->items, a->n_items, false);
    } else {
        failed(w, st, &err, "Conversation");
    }
}

static void add(struct api_work *w)
{
    with_body(w, false, true, append);
}

void api_conversation_add(struct http_request *req, void *arg)
{
    api_work_start(arg, req, add, NULL);
}

static void list(struct api_work *w)
{
    struct store_page page = {
        .after = w->after, .limit = w->limit, .oldest_first = w->oldest_first};
    struct stored_item *items;
    struct err err = {""};
    enum status st;
    size_t n;
    bool has_more;
    if (store_conversation_items(w->store, w->owner, w->id, &page, &items, &n, &has_more, &st,
                                 &err)) {
        put_list(w, items, n, has_more);
    } else {
        failed(w, st, &err, "Conversation");
    }
    stored_items_free(items, n);
}

void api_conversation_items(struct http_request *req, void *arg)
{
    api_work_start_list(arg, req, list, 20, 100);
}

static void get_item(struct api_work *w)
{
    struct stored_item item;
    struct err err = {""};
    enum status st;
    if (store_conversation_item(w->store, w->owner, w->id, w->second_id, &item, &st, &err)) {
        buf_put(&w->reply, item.text.data, item.text.n_bytes);
        buf_deinit(&item.text);
    } else {
        w->id = w->second_id; // the id to name in the error: usually the item is missing
        failed(w, st, &err, "Item");
    }
}

void api_conversation_item(struct http_request *req, void *arg)
{
    api_work_start(arg, req, get_item, NULL);
}

/* Deletes an item, and replies with the conversation. */
static void delete_item(struct api_work *w)
{
    struct err err = {""};
    enum status st;
    if (store_conversation_item_delete(w->store, w->owner, w->id, w->second_id, &st, &err)) {
        get(w);
    } else {
        w->id = w->second_id;
        failed(w, st, &err, "Item");
    }
}

void api_conversation_item_delete(struct http_request *req, void *arg)
{
    api_work_start(arg, req, delete_item, NULL);
}
