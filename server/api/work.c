// SPDX-License-Identifier: Apache-2.0
/* Handlers that use the store. The database waits for the disk, so they run on the pool's threads
 * and reply on the loop's. */
#include "server/api/work.h"

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "server/api/log_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_REPLY_BYTES = 1 << 30,
    MAX_METADATA = 16, // number of members; the limits of their keys and values follow
    MAX_KEY = 64,
    MAX_VALUE = 512,
};

static void do_work(void *arg)
{
    struct api_work *w = arg;
    w->work(w);
}

/* On the loop's thread again. after_work does what only this thread may do. */
static void work_done(void *arg)
{
    struct api_work *w = arg;
    struct http_request *req = w->req;
    if (w->error.status == 0 && w->after_work) {
        w->after_work(w);
    }
    if (w->error.status != 0) {
        buf_deinit(&w->reply);
        if (w->error.status == 507) { // an immediate retry would not help
            http_reply_header(req, "x-should-retry", "false");
        }
        reply_error(req, &w->error);
    } else if (w->reply_type) {
        http_reply_buf(req, 200, w->reply_type, &w->reply);
    } else {
        reply_json(req, 200, &w->reply);
    }
    free(w->content_type);
    free(w);
}

static void on_gone(struct http_request *req, enum http_gone why, void *arg)
{
    (void)req;
    (void)why;
    (void)arg; // the work continues, and its reply ends the request
}

static const struct http_events events = {on_gone, NULL};

/* Copies everything that a handler needs from the request, because other threads must not access
 * the request. */
static struct api_work *make(struct api *a, struct http_request *req,
                             void (*work)(struct api_work *w))
{
    if (!a->store) {
        reply_errorf(req, 501, "not_implemented", NULL,
                     "This server was built without the library that keeps files, batches and "
                     "responses.");
        return NULL;
    }
    struct api_work *w = xcalloc(1, sizeof *w);
    const char *type = http_header(req, "content-type");
    w->api = a;
    w->store = a->store;
    w->req = req;
    w->work = work;
    w->id = http_param(req);
    w->second_id = http_second_param(req);
    w->body = http_body(req, &w->n_bytes);
    w->content_type = type ? xstrdup(type) : NULL;
    snprintf(w->owner, sizeof w->owner, "%s", api_log(req)->owner);
    buf_init(&w->reply, MAX_REPLY_BYTES);
    return w;
}

static void start(struct api_work *w)
{
    http_defer(w->req, &events, w);
    http_pool_run(w->api->http, do_work, work_done, w);
}

void api_work_start(struct api *a, struct http_request *req, void (*work)(struct api_work *w),
                    void (*after_work)(struct api_work *w))
{
    struct api_work *w = make(a, req, work);
    if (w) {
        w->after_work = after_work;
        start(w);
    }
}

/* Reads limit, order and after, the parameters of OpenAI's lists. */
static bool read_page(struct api_work *w, int64_t otherwise, int64_t most)
{
    const char *limit = http_query(w->req, "limit"), *order = http_query(w->req, "order");
    char *end = NULL;
    w->limit = limit ? strtoll(limit, &end, 10) : otherwise;
    if (w->limit < 1 || w->limit > most || (limit && (end == limit || *end))) {
        return call_error_set(&w->error, 400, "invalid_value", "limit",
                              "Invalid 'limit': expected a whole number from 1 to %lld.",
                              (long long)most);
    }
    w->oldest_first = order && strcmp(order, "asc") == 0;
    if (order && !w->oldest_first && strcmp(order, "desc") != 0) {
        return call_error_set(&w->error, 400, "invalid_value", "order",
                              "Invalid 'order': expected 'asc' or 'desc'.");
    }
    w->after = http_query(w->req, "after");
    if (!w->after || !*w->after) {
        w->after = NULL;
    }
    w->purpose = http_query(w->req, "purpose");
    if (!w->purpose || !*w->purpose) {
        w->purpose = NULL;
    }
    return true;
}

/* Invalid parameters are refused before anything is queued. */
void api_work_start_list(struct api *a, struct http_request *req, void (*work)(struct api_work *w),
                         int64_t otherwise, int64_t most)
{
    struct api_work *w = make(a, req, work);
    if (!w) {
        return;
    }
    if (read_page(w, otherwise, most)) {
        start(w);
        return;
    }
    reply_error(req, &w->error);
    free(w->content_type);
    free(w);
}

/* Writes the first or last id of a page, with which clients request the next page. */
static void put_id(struct buf *b, const char *key, const char *id)
{
    buf_printf(b, ",\"%s\":", key);
    if (id) {
        buf_put_json(b, id, strlen(id));
    } else {
        buf_puts(b, "null");
    }
}

void api_put_page_end(struct buf *b, const char *first, const char *last, bool has_more)
{
    buf_puts(b, "]");
    put_id(b, "first_id", first);
    put_id(b, "last_id", last);
    buf_printf(b, ",\"has_more\":%s}", bool_word(has_more));
}

/* A full disk is a 507, because an immediate retry would not help. */
void api_work_fail(struct api_work *w, enum status st, const struct err *err)
{
    if (st == ERR_LIMIT) {
        call_error_set(&w->error, 507, "storage_full", NULL,
                       "There is no space for this on the server: %s. Delete files, or ask the "
                       "operator for more space.",
                       err->text);
        return;
    }
    log_error("the store: %s", err->text);
    w->error.type = "server_error";
    call_error_set(&w->error, 500, "internal_error", NULL, "The server's store failed.");
}

void api_work_missing(struct api_work *w, const char *object)
{
    call_error_set(&w->error, 404, "not_found", "id", "No such %s object: %.80s", object, w->id);
}

/* JSON's texts are valid UTF-8. */
static size_t n_characters(const char *text)
{
    size_t n = 0;
    for (; *text; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return n;
}

/* At most 16 pairs of strings, with OpenAI's limits. */
bool api_read_metadata(struct body *b, struct buf *out)
{
    const struct json *v = NULL;
    if (!body_object(b, "metadata", &v)) {
        return b->error->status == 0;
    }
    if (json_count(v) > MAX_METADATA) {
        return call_error_set(b->error, 400, "invalid_value", "metadata",
                              "Invalid 'metadata': expected at most %d members.", MAX_METADATA);
    }
    buf_putc(out, '{');
    for (const struct json *m = json_first(v); m; m = json_next(m)) {
        const char *key = json_key(m), *text = json_string(m);
        if (!text || n_characters(key) > MAX_KEY || n_characters(text) > MAX_VALUE) {
            return call_error_set(b->error, 400, "invalid_value", "metadata",
                                  "Invalid 'metadata': expected strings of at most %d characters, "
                                  "with keys of at most %d characters.",
                                  MAX_VALUE, MAX_KEY);
        }
        if (out->n_bytes > 1) {
            buf_puts(out, ",");
        }
        buf_put_json(out, key, strlen(key));
        buf_putc(out, ':');
        buf_put_json(out, text, strlen(text));
    }
    buf_putc(out, '}');
    body_put_nuls_back(b, out);
    return true;
}
