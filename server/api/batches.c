// SPDX-License-Identifier: Apache-2.0
/* /v1/batches: files of requests, and their results. */
#include "server/api/work.h"

#include "engine/base/clock.h"
#include "server/jobs/batches.h"
#include "server/jobs/lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In seconds: the completion window of 24 hours, and OpenAI's limits for the lifetime of files. */
enum {
    ARENA_BYTES = 1 << 20,
    WINDOW_S = 86400,
    LEAST_LIFE_S = 3600,
    MOST_LIFE_S = 2592000,
};

/* ---- a batch in the API ---------------------------------------------------------------------- */

/* Writes a member; an absent value is null, as in OpenAI's object. */
static void put_text(struct buf *b, const char *key, const char *v)
{
    buf_printf(b, ",\"%s\":", key);
    if (v && *v) {
        buf_put_json(b, v, strlen(v));
    } else {
        buf_puts(b, "null");
    }
}

static void put_json(struct buf *b, const char *key, const char *json)
{
    buf_printf(b, ",\"%s\":%s", key, json && *json ? json : "null");
}

/* Writes a time as seconds since 1970, or null. */
static void put_time(struct buf *b, const char *key, int64_t at)
{
    if (at > 0) {
        buf_printf(b, ",\"%s\":%lld", key, (long long)at);
    } else {
        buf_printf(b, ",\"%s\":null", key);
    }
}

static void put_usage(struct buf *b, const struct stored_batch *s)
{
    buf_printf(
        b,
        ",\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld},"
        "\"output_tokens\":%lld,\"output_tokens_details\":{\"reasoning_tokens\":0},"
        "\"total_tokens\":%lld}",
        (long long)s->input_tokens, (long long)s->cached_tokens, (long long)s->output_tokens,
        (long long)s->input_tokens + s->output_tokens);
}

/* A batch as OpenAI shows it, with the time of each state that it was in. */
static void put_batch(struct buf *b, const struct stored_batch *s)
{
    static const struct {
        const char *key;
        enum batch_status status;
    } times[] = {
        {"in_progress_at", BATCH_IN_PROGRESS}, {"finalizing_at", BATCH_FINALIZING},
        {"completed_at", BATCH_COMPLETED},     {"failed_at", BATCH_FAILED},
        {"expired_at", BATCH_EXPIRED},         {"cancelling_at", BATCH_CANCELLING},
        {"cancelled_at", BATCH_CANCELLED},
    };
    buf_printf(b, "{\"id\":\"%s\",\"object\":\"batch\",\"endpoint\":\"%s\",\"status\":\"%s\"",
               s->id, s->endpoint, batch_status_names[s->status]);
    put_text(b, "model", s->model);
    put_json(b, "errors", s->errors);
    put_text(b, "input_file_id", s->input_file);
    put_text(b, "completion_window", s->window);
    put_text(b, "output_file_id", s->output_file);
    put_text(b, "error_file_id", s->error_file);
    put_time(b, "created_at", s->created_at);
    put_time(b, "expires_at", s->expires_at);
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        put_time(b, times[i].key, s->since[times[i].status]);
    }
    buf_printf(b, ",\"request_counts\":{\"total\":%lld,\"completed\":%lld,\"failed\":%lld}",
               (long long)s->n_total, (long long)s->n_completed, (long long)s->n_failed);
    put_usage(b, s);
    put_json(b, "metadata", s->metadata);
    buf_putc(b, '}');
}

/* ---- create ---------------------------------------------------------------------------------- */

/* Reads how long result files are kept; *seconds is 0 for the server's default. */
static bool read_output_life(struct body *b, int64_t *seconds)
{
    const struct json *v = NULL;
    if (!body_object(b, "output_expires_after", &v)) {
        return b->error->status == 0;
    }
    const char *anchor = json_get_string(v, "anchor");
    *seconds = json_get_int(v, "seconds", 0);
    if (!anchor || strcmp(anchor, "created_at") != 0 || *seconds < LEAST_LIFE_S ||
        *seconds > MOST_LIFE_S) {
        return call_error_set(
            b->error, 400, "invalid_value", "output_expires_after",
            "Invalid 'output_expires_after': expected the anchor 'created_at' and "
            "%d to %d seconds.",
            LEAST_LIFE_S, MOST_LIFE_S);
    }
    return true;
}

static bool required(struct body *b, const char *key, const char **v)
{
    return body_string(b, key, v) || (b->error->status == 0 && call_error_missing(b->error, key));
}

/* Checks everything that needs no file; the lines themselves are read later, in the
 * background. */
static bool read_batch(struct body *b, struct stored_batch *s, struct buf *metadata)
{
    const char *file = NULL, *endpoint = NULL, *window = NULL;
    enum request_kind kind;
    if (!required(b, "input_file_id", &file) || !required(b, "endpoint", &endpoint) ||
        !required(b, "completion_window", &window) || !api_read_metadata(b, metadata) ||
        !read_output_life(b, &s->output_expires_s)) {
        return false;
    }
    if (!job_endpoint_kind(endpoint, &kind)) {
        return call_error_set(b->error, 400, "unsupported_value", "endpoint",
                              "Invalid 'endpoint': '%.60s' is not supported in batches.", endpoint);
    }
    if (strcmp(window, BATCH_WINDOW) != 0) {
        return call_error_set(b->error, 400, "unsupported_value", "completion_window",
                              "Invalid 'completion_window': expected '" BATCH_WINDOW "'.");
    }
    snprintf(s->input_file, sizeof s->input_file, "%s", file);
    snprintf(s->endpoint, sizeof s->endpoint, "%s", endpoint);
    snprintf(s->window, sizeof s->window, "%s", window);
    return true;
}

/* The input file must belong to the batch's owner, and its purpose must be batches. */
static bool check_file(struct api_work *w, const char *id)
{
    struct stored_file f;
    struct err err = {""};
    enum status st;
    if (!store_file_find(w->store, w->owner, id, &f, &st, &err)) {
        if (st != OK) {
            api_work_fail(w, st, &err);
            return false;
        }
        return call_error_set(&w->error, 404, "not_found", "input_file_id",
                              "No such File object: %.60s", id);
    }
    return strcmp(f.purpose, BATCH_PURPOSE) == 0 ||
           call_error_set(&w->error, 400, "invalid_value", "input_file_id",
                          "The file's purpose is not '" BATCH_PURPOSE "'.");
}

/* Creates the batch, with the status "validating": its lines are checked later. */
static void make_batch(struct api_work *w, struct stored_batch *s)
{
    struct err err = {""};
    if (!check_file(w, s->input_file)) {
        return;
    }
    snprintf(s->owner, sizeof s->owner, "%s", w->owner);
    s->created_at = clock_wall_sec();
    s->expires_at = s->created_at + WINDOW_S;
    enum status st = store_batch_create(w->store, s, &err);
    if (st != OK) {
        api_work_fail(w, st, &err);
        return;
    }
    snprintf(w->batch, sizeof w->batch, "%s", s->id);
    put_batch(&w->reply, s);
}

/* Runs on the pool, like all functions of api_work: the store may block. */
static void create(struct api_work *w)
{
    struct body b = {0};
    struct arena arena;
    struct stored_batch s = {0};
    struct buf metadata;
    arena_init(&arena, ARENA_BYTES);
    buf_init(&metadata, ARENA_BYTES);
    if (w->n_bytes == 0) {
        call_error_set(&w->error, 400, "json_parse_error", NULL, "The body must be a JSON object.");
    } else if (body_open(&b, w->body, w->n_bytes, &arena, &w->error) &&
               read_batch(&b, &s, &metadata)) {
        s.metadata = metadata.data;
        make_batch(w, &s);
    }
    body_close(&b);
    buf_deinit(&metadata);
    arena_deinit(&arena);
}

static void created(struct api_work *w)
{
    batches_add(w->api->batches, w->batch);
}

void api_batches_create(struct http_request *req, void *arg)
{
    api_work_start(arg, req, create, created);
}

/* ---- other routes ---------------------------------------------------------------------------- */

static void get(struct api_work *w)
{
    struct stored_batch s;
    struct err err = {""};
    enum status st;
    if (store_batch_find(w->store, w->owner, w->id, &s, &st, &err)) {
        put_batch(&w->reply, &s);
        stored_batch_deinit(&s);
    } else if (st != OK) {
        api_work_fail(w, st, &err);
    } else {
        api_work_missing(w, "Batch");
    }
}

void api_batch_get(struct http_request *req, void *arg)
{
    api_work_start(arg, req, get, NULL);
}

/* GET /v1/batches: a page of the caller's batches, newest first. */
static void list(struct api_work *w)
{
    struct store_page page = {.after = w->after, .limit = w->limit};
    struct stored_batch *batches;
    struct err err = {""};
    size_t n;
    bool has_more;
    enum status st = store_batch_list(w->store, w->owner, &page, &batches, &n, &has_more, &err);
    if (st != OK) {
        api_work_fail(w, st, &err);
    } else {
        buf_puts(&w->reply, "{\"object\":\"list\",\"data\":[");
        for (size_t i = 0; i < n; i++) {
            if (i) {
                buf_puts(&w->reply, ",");
            }
            put_batch(&w->reply, &batches[i]);
        }
        api_put_page_end(&w->reply, n > 0 ? batches[0].id : NULL, n > 0 ? batches[n - 1].id : NULL,
                         has_more);
    }
    for (size_t i = 0; i < n; i++) {
        stored_batch_deinit(&batches[i]);
    }
    free(batches);
}

void api_batches_list(struct http_request *req, void *arg)
{
    api_work_start_list(arg, req, list, 20, 100);
}

/* A batch that has ended is not changed, only returned. */
static void cancel(struct api_work *w)
{
    struct stored_batch s;
    struct err err = {""};
    enum status st;
    if (store_batch_find(w->store, w->owner, w->id, &s, &st, &err)) {
        bool moved =
            store_batch_move(w->store, s.id, 1u << BATCH_VALIDATING | 1u << BATCH_IN_PROGRESS,
                             BATCH_CANCELLING, clock_wall_sec(), &st, &err);
        snprintf(w->batch, sizeof w->batch, "%s", moved ? s.id : "");
        stored_batch_deinit(&s);
    }
    if (st != OK) {
        api_work_fail(w, st, &err);
    } else {
        get(w);
    }
}

static void cancelled(struct api_work *w)
{
    if (w->batch[0]) {
        batches_cancel(w->api->batches, w->batch);
    }
}

void api_batch_cancel(struct http_request *req, void *arg)
{
    api_work_start(arg, req, cancel, cancelled);
}
