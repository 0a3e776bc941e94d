// SPDX-License-Identifier: Apache-2.0
/* One JSON line for each request. Text of prompts and answers is never logged. */
#include "server/api/log_request.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_PATH_BYTES = 512 };

/* Writes a string member, unless it is empty. A long value is truncated. */
static void put_string(struct buf *b, const char *key, const char *value)
{
    if (value && *value) {
        size_t n = strlen(value);
        buf_printf(b, ",\"%s\":", key);
        buf_put_json(b, value, lesser(n, MAX_PATH_BYTES));
    }
}

static void put_count(struct buf *b, const char *key, int64_t value)
{
    if (value >= 0) {
        buf_printf(b, ",\"%s\":", key);
        buf_put_int(b, value);
    }
}

static void put_ms(struct buf *b, const char *key, int64_t ns)
{
    if (ns >= 0) {
        buf_printf(b, ",\"%s\":%.3f", key, (double)ns / 1e6);
    }
}

/* The room that the front end reserves with each request; it is zeroed. */
struct api_log *api_log(struct http_request *req)
{
    struct api_log *log = http_room(req);
    if (!log->known) {
        log->known = true;
        log->call = CALL_RECORD_NONE;
    }
    return log;
}

/* Records the retry count, so that retries can be recognised in the log, whatever their outcome. */
void log_request_head(struct http_request *req, void *arg)
{
    (void)arg;
    const char *text = http_header(req, "x-stainless-retry-count");
    size_t n = length_or_0(text);
    if (n > 0 && n < 4 && strspn(text, "0123456789") == n) {
        api_log(req)->retry_count = (unsigned)atoi(text);
    }
}

static void put_head(struct buf *b, const struct http_record *r, int64_t wall_ns)
{
    time_t sec = (time_t)(wall_ns / 1000000000);
    struct tm tm;
    gmtime_r(&sec, &tm);
    char when[40];
    size_t n = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(when + n, sizeof when - n, ".%03dZ", (int)(wall_ns / 1000000 % 1000));
    buf_printf(b, "{\"time\":\"%s\"", when);
    put_string(b, "id", r->request_id);
    put_string(b, "trace", r->trace_id);
    put_string(b, "peer", r->peer);
    put_string(b, "method", r->method);
    put_string(b, "path", r->path);
    buf_printf(b, ",\"status\":%d", r->status);
    put_ms(b, "ms", r->end_ns - r->arrived_ns);
    put_ms(b, "head_ms", r->head_ns > 0 ? r->head_ns - r->arrived_ns : -1);
}

/* Members that do not apply to a request are left out, so lines of cheap routes are short. */
void log_request_format(struct buf *b, const struct http_record *r, const void *room,
                        int64_t wall_ns)
{
    const struct api_log *log = room;
    put_head(b, r, wall_ns);
    if (log->known) {
        put_ms(b, "queued_ms", log->call.queued_ns);
        put_ms(b, "first_token_ms", log->call.first_token_ns);
    }
    put_count(b, "bytes_in", (int64_t)r->body_bytes);
    put_count(b, "bytes_out", (int64_t)r->sent_bytes);
    if (r->streamed) {
        buf_puts(b, ",\"stream\":true");
    }
    static const char *const gone[] = {NULL, "closed", "slow", "shutdown"};
    if (r->gone > 0 && r->gone < 4) {
        put_string(b, "gone", gone[r->gone]);
    }
    put_string(b, "model", log->model);
    put_string(b, "key", log->key_name);
    if (log->known) {
        put_count(b, "prompt_tokens", log->call.n_prompt_tokens);
        put_count(b, "cached_tokens", log->call.n_cached_tokens);
        put_count(b, "output_tokens", log->call.n_output_tokens);
    }
    put_string(b, "finish", log->call.finish);
    const char *error = log->call.error ? log->call.error : log->error;
    put_string(b, "error", error ? error : r->refusal);
    put_count(b, "retry", log->retry_count > 0 ? (int64_t)log->retry_count : -1);
    put_string(b, "agent", r->user_agent);
    buf_puts(b, "}\n");
}
