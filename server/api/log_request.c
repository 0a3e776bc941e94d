#include "server/api/log_request.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_PATH_BYTES = 512 };

static void put_string(struct buf *b, const char *key, const char *value)
{
    if (value && *value) {
        size_t n = strlen(value);
        buf_printf(b, ",\"%s\":", key);
        buf_put_json(b, value, n < MAX_PATH_BYTES ? n : MAX_PATH_BYTES);
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

void log_request_format(struct buf *b, const struct request_log *log, int64_t wall_ns)
{
    time_t sec = (time_t)(wall_ns / 1000000000);
    struct tm tm;
    gmtime_r(&sec, &tm);
    char when[40];
    size_t n = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(when + n, sizeof when - n, ".%03dZ", (int)(wall_ns / 1000000 % 1000));
    buf_printf(b, "{\"time\":\"%s\"", when);
    put_string(b, "id", log->request_id);
    put_string(b, "trace", log->trace_id);
    put_string(b, "peer", log->peer);
    put_string(b, "method", log->method);
    put_string(b, "path", log->path);
    buf_printf(b, ",\"status\":%d", log->status);
    put_ms(b, "ms", log->end_ns - log->arrived_ns);
    put_ms(b, "head_ms", log->head_ns > 0 ? log->head_ns - log->arrived_ns : -1);
    put_ms(b, "queued_ms", log->queued_ns);
    put_ms(b, "first_token_ms", log->first_token_ns);
    put_count(b, "bytes_in", (int64_t)log->body_bytes);
    put_count(b, "bytes_out", (int64_t)log->sent_bytes);
    if (log->streamed) {
        buf_puts(b, ",\"stream\":true");
    }
    static const char *const gone[] = {NULL, "closed", "slow", "shutdown"};
    if (log->gone > 0 && log->gone < 4) {
        put_string(b, "gone", gone[log->gone]);
    }
    put_string(b, "model", log->model);
    put_string(b, "key", log->key_name);
    put_count(b, "prompt_tokens", log->n_prompt_tokens);
    put_count(b, "cached_tokens", log->n_cached_tokens);
    put_count(b, "output_tokens", log->n_output_tokens);
    put_string(b, "finish", log->finish);
    put_string(b, "error", log->error);
    put_count(b, "retry", log->retry_count > 0 ? (int64_t)log->retry_count : -1);
    put_string(b, "agent", log->user_agent);
    buf_puts(b, "}\n");
}
