// SPDX-License-Identifier: Apache-2.0
/* Stored responses: retrieving, listing the input, cancelling, deleting. Calls create them. */
#include "server/api/background.h"
#include "server/api/log_request.h"
#include "server/api/work.h"

#include "engine/base/mem.h"
#include "server/call/convert.h"
#include "server/call/items.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The response was not found. Clients of this API look for this wording. */
static void missing(struct api_work *w)
{
    call_error_set(&w->error, 404, "not_found", "id", "Response with id '%.80s' not found.", w->id);
}

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
        missing(w);
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

/* The number of an event, -1 if none is given. */
static bool parse_after(const struct http_request *req, int64_t *after)
{
    const char *text = http_query(req, "starting_after");
    char *end = NULL;
    *after = text && *text ? strtoll(text, &end, 10) : -1;
    return !end || (end != text && !*end && *after >= 0);
}

/* False: the request was answered with an error. */
static bool read_after(struct http_request *req, int64_t *after)
{
    if (!parse_after(req, after)) {
        reply_errorf(req, 400, "invalid_value", "starting_after",
                     "Invalid 'starting_after': expected the number of an event.");
        return false;
    }
    return true;
}

/* The events of a response that has ended. */
static void get_events(struct api_work *w)
{
    struct err err = {""};
    enum status st;
    struct buf all;
    buf_init(&all, (size_t)1 << 30);
    if (!store_response_events(w->store, w->owner, w->id, &all, &st, &err)) {
        if (st != OK) {
            api_work_fail(w, st, &err);
        } else {
            missing(w);
        }
    } else if (all.n_bytes == 0) {
        call_error_set(&w->error, 400, "invalid_value", "stream",
                       "Only a response that has completed in the background can be streamed "
                       "again.");
    } else {
        int64_t after;
        parse_after(w->req, &after); // the handler has checked that it is valid
        int64_t n_skipped = after + 1;
        size_t at = background_skip(all.data, all.n_bytes, &n_skipped);
        buf_put(&w->reply, all.data + at, all.n_bytes - at);
        w->reply_type = "text/event-stream";
    }
    buf_deinit(&all);
}

static struct call *find_running(struct api *a, struct http_request *req)
{
    return background_find(a, api_log(req)->owner, http_param(req));
}

/* With stream=true the client follows a response, beginning after the last event that it has. */
void api_response_get(struct http_request *req, void *arg)
{
    const char *stream = http_query(req, "stream");
    bool streams = stream && (strcmp(stream, "true") == 0 || strcmp(stream, "1") == 0);
    struct call *c = find_running(arg, req);
    int64_t after;
    if (streams && !read_after(req, &after)) {
        return;
    }
    if (!c) {
        api_work_start(arg, req, streams ? get_events : get, NULL);
    } else if (streams) {
        background_follow(c, req, after);
    } else {
        background_reply(c, req);
    }
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
        missing(w);
    }
}

/* Refused while the response runs, since it would be stored again at its end. */
void api_response_delete(struct http_request *req, void *arg)
{
    if (find_running(arg, req)) {
        reply_errorf(req, 400, "invalid_value", "id",
                     "The response has not ended yet; cancel it first.");
        return;
    }
    api_work_start(arg, req, delete_one, NULL);
}

/* A response that has ended is not changed. */
static void cancel(struct api_work *w)
{
    struct stored_response r;
    if (!find(w, &r)) {
        return;
    }
    if (r.background) {
        buf_put(&w->reply, r.body.data, r.body.n_bytes);
    } else {
        call_error_set(&w->error, 400, "invalid_value", "id",
                       "Cannot cancel a synchronous response: it was not made with 'background'.");
    }
    stored_response_deinit(&r);
}

/* Cancels a response that runs in the background. One that has ended is returned unchanged. */
void api_response_cancel(struct http_request *req, void *arg)
{
    struct call *c = find_running(arg, req);
    if (c) {
        background_cancel(c, req);
    } else {
        api_work_start(arg, req, cancel, NULL);
    }
}

/* ---- input items ----------------------------------------------------------------------------- */

/* The id of an item: the client's, or one made from its position. */
static void name_item(char id[32], const struct json *item, size_t index)
{
    const char *own = json_get_string(item, "id");
    if (own && strlen(own) < 32) {
        snprintf(id, 32, "%s", own);
    } else {
        snprintf(id, 32, "item_%zu", index);
    }
}

/* Writes an item with the id under which it is listed. */
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

/* A page of the list: the latest first, unless the request asks for ascending order. */
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
        if (n_put > 0) {
            buf_puts(&w->reply, ",");
        }
        put_named(&w->reply, items[i], id);
        snprintf(n_put == 0 ? first : last, sizeof first, "%s", id);
        n_put++;
    }
    const char *end = n_put > 1 ? last : first;
    api_put_page_end(&w->reply, n_put ? first : NULL, n_put ? end : NULL, more);
}

/* The stored input is a JSON list without its brackets. */
static void list_items(struct api_work *w)
{
    struct stored_response r;
    struct stand_in nul;
    if (!find(w, &r)) {
        return;
    }
    struct json *root = items_parse(r.input.data, r.input.n_bytes, &nul);
    if (!root) {
        call_error_set(&w->error, 400, "invalid_value", "id",
                       "The input cannot be listed: it is too large.");
    } else {
        size_t n = json_count(root), i = 0;
        const struct json **items = xcalloc(n + 1, sizeof items[0]);
        for (const struct json *item = json_first(root); item; item = json_next(item)) {
            items[i++] = item;
        }
        put_page(w, items, n);
        stand_in_put_back(&nul, &w->reply);
        free(items);
    }
    json_free(root);
    stored_response_deinit(&r);
}

void api_response_items(struct http_request *req, void *arg)
{
    api_work_start_list(arg, req, list_items, 20, 100);
}
