// SPDX-License-Identifier: Apache-2.0
/* Stored responses: one of them, its input, and its end. Making them is a call's. */
#include "server/api/work.h"

#include "engine/base/mem.h"
#include "server/call/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool find(struct api_work *w, struct stored_response *r)
{
    struct err err = {""};
    enum status st;
    if (store_response_find(w->store, w->owner, w->id, r, &st, &err)) {
        return true;
    }
    if (st != OK) {
        api_work_fail(w, st, &err);
    } else {
        api_work_missing(w, "Response");
    }
    return false;
}

static void get(struct api_work *w)
{
    struct stored_response r;
    if (find(w, &r)) {
        buf_put(&w->reply, r.body.data, r.body.n_bytes);
        stored_response_deinit(&r);
    }
}

void api_response_get(struct http_request *req, void *arg)
{
    api_work_start(arg, req, get, NULL);
}

static void delete_one(struct api_work *w)
{
    struct err err = {""};
    enum status st;
    if (store_response_delete(w->store, w->owner, w->id, &st, &err)) {
        buf_puts(&w->reply, "{\"id\":");
        buf_put_json(&w->reply, w->id, strlen(w->id));
        buf_puts(&w->reply, ",\"object\":\"response\",\"deleted\":true}");
    } else if (st != OK) {
        api_work_fail(w, st, &err);
    } else {
        api_work_missing(w, "Response");
    }
}

void api_response_delete(struct http_request *req, void *arg)
{
    api_work_start(arg, req, delete_one, NULL);
}

/* Those that run in the background could be cancelled: there are none. */
static void cancel(struct api_work *w)
{
    struct stored_response r;
    if (find(w, &r)) {
        stored_response_deinit(&r);
        call_error_set(&w->error, 400, "invalid_value", "id",
                       "Only a response that was made with 'background' can be cancelled.");
    }
}

void api_response_cancel(struct http_request *req, void *arg)
{
    api_work_start(arg, req, cancel, NULL);
}

/* ---- input items
 * ------------------------------------------------------------------------------------- */

/* An item has the id that the client gave it, or one of its place. */
static void name_item(char id[32], const struct json *item, size_t index)
{
    const char *own = json_get_string(item, "id");
    if (own && strlen(own) < 32) {
        snprintf(id, 32, "%s", own);
    } else {
        snprintf(id, 32, "item_%zu", index);
    }
}

static void put_named(struct buf *b, const struct json *item, const char *id)
{
    buf_puts(b, "{\"id\":");
    convert_text(b, id);
    for (const struct json *m = json_first(item); m; m = json_next(m)) {
        if (strcmp(json_key(m), "id") != 0) {
            buf_putc(b, ',');
            convert_text(b, json_key(m));
            buf_putc(b, ':');
            convert_node(b, m);
        }
    }
    buf_putc(b, '}');
}

/* A page of the list: the latest first, unless the order is the other. */
static void put_page(struct api_work *w, const struct json *const *items, size_t n)
{
    char first[32] = "", last[32] = "", id[32];
    bool begun = !w->after, more = false;
    int64_t n_put = 0;
    buf_puts(&w->reply, "{\"object\":\"list\",\"data\":[");
    for (size_t k = 0; k < n; k++) {
        size_t i = w->oldest_first ? k : n - 1 - k;
        name_item(id, items[i], i);
        if (!begun) {
            begun = strcmp(id, w->after) == 0;
            continue;
        }
        if (n_put == w->limit) {
            more = true;
            break;
        }
        buf_puts(&w->reply, n_put > 0 ? "," : "");
        put_named(&w->reply, items[i], id);
        snprintf(n_put == 0 ? first : last, sizeof first, "%s", id);
        n_put++;
    }
    const char *end = n_put > 1 ? last : first;
    api_put_page_end(&w->reply, n_put ? first : NULL, n_put ? end : NULL, more);
}

static void list_items(struct api_work *w)
{
    const struct json_limits limits = {.max_depth = 256};
    struct stored_response r;
    struct json *root = NULL;
    struct buf array;
    if (!find(w, &r)) {
        return;
    }
    buf_init(&array, r.input.n_bytes + 16);
    buf_putc(&array, '[');
    buf_put(&array, r.input.data, r.input.n_bytes);
    buf_putc(&array, ']');
    if (array.failed || json_parse(array.data, array.n_bytes, &limits, &root, NULL) != OK) {
        call_error_set(&w->error, 400, "invalid_value", "id",
                       "The input cannot be listed: it has the character U+0000, or is too large.");
    } else {
        size_t n = json_count(root), i = 0;
        const struct json **items = xcalloc(n + 1, sizeof items[0]);
        for (const struct json *item = json_first(root); item; item = json_next(item)) {
            items[i++] = item;
        }
        put_page(w, items, n);
        free(items);
    }
    json_free(root);
    buf_deinit(&array);
    stored_response_deinit(&r);
}

void api_response_items(struct http_request *req, void *arg)
{
    api_work_start_list(arg, req, list_items, 20, 100);
}
