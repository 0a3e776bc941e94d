#include "server/api/reply.h"

#include "server/api/log_request.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ERROR_BYTES = 64 << 10 };

static void put_string_or_null(struct buf *b, const char *s)
{
    if (s) {
        buf_put_json(b, s, strlen(s));
    } else {
        buf_puts(b, "null");
    }
}

void reply_error_body(struct buf *b, const struct reply_error *e)
{
    const char *type = e->type;
    if (!type) {
        type = e->status < 500 ? "invalid_request_error" : "server_error";
    }
    const char *message = e->message ? e->message : http_status_text(e->status);
    buf_puts(b, "{\"error\":{\"message\":");
    buf_put_json(b, message, strlen(message));
    buf_puts(b, ",\"type\":");
    put_string_or_null(b, type);
    buf_puts(b, ",\"param\":");
    put_string_or_null(b, e->param);
    buf_puts(b, ",\"code\":");
    put_string_or_null(b, e->code);
    if (e->n_prompt > 0) {
        buf_printf(b, ",\"n_prompt_tokens\":%" PRId64, e->n_prompt);
    }
    if (e->n_context > 0) {
        buf_printf(b, ",\"n_ctx\":%" PRId64, e->n_context);
    }
    buf_puts(b, "}}");
}

static const char *put_error(struct buf *b, int status, const char *code, const char *message)
{
    reply_error_body(b, &(struct reply_error){.status = status, .code = code, .message = message});
    return "application/json";
}

void reply_set_options(struct http_options *o)
{
    o->n_room = sizeof(struct api_log);
    o->put_error = put_error;
    o->put_line = log_request_format;
    o->on_head = log_request_head;
}

void reply_error(struct http_request *req, const struct reply_error *e)
{
    if (e->retry_after_s > 0) {
        char text[32];
        snprintf(text, sizeof text, "%d", e->retry_after_s);
        http_reply_header(req, "retry-after", text);
        snprintf(text, sizeof text, "%lld", e->retry_after_s * 1000LL);
        http_reply_header(req, "retry-after-ms", text);
    }
    struct api_log *log = api_log(req);
    if (!log->error) {
        log->error = e->code; // codes are static text by the contract of struct api_log
    }
    struct buf b;
    buf_init(&b, MAX_ERROR_BYTES);
    reply_error_body(&b, e);
    http_reply_buf(req, e->status, "application/json", &b);
}

void reply_errorf(struct http_request *req, int status, const char *code, const char *param,
                  const char *fmt, ...)
{
    char message[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    struct reply_error e = {.status = status, .code = code, .param = param, .message = message};
    reply_error(req, &e);
}

void reply_json(struct http_request *req, int status, struct buf *body)
{
    http_reply_buf(req, status, "application/json", body);
}

void reply_text(struct http_request *req, int status, const char *json_text)
{
    http_reply(req, status, "application/json", json_text, strlen(json_text));
}

static char *append(char *to, const void *bytes, size_t n_bytes)
{
    memcpy(to, bytes, n_bytes);
    return to + n_bytes;
}

void reply_event(struct http_request *req, const char *json, size_t n_bytes)
{
    size_t n = n_bytes + 8;
    char *p = http_stream_reserve(req, n);
    p = append(p, "data: ", 6);
    p = append(p, json, n_bytes);
    append(p, "\n\n", 2);
    http_stream_commit(req, n);
}

void reply_named_event(struct http_request *req, const char *name, const char *json,
                       size_t n_bytes)
{
    size_t n_name = strlen(name), n = n_name + n_bytes + 16;
    char *p = http_stream_reserve(req, n);
    p = append(p, "event: ", 7);
    p = append(p, name, n_name);
    p = append(p, "\ndata: ", 7);
    p = append(p, json, n_bytes);
    append(p, "\n\n", 2);
    http_stream_commit(req, n);
}

void reply_stream_end(struct http_request *req, const struct reply_error *e, bool done)
{
    if (e && !http_stream_head_sent(req)) {
        reply_error(req, e);
        return;
    }
    if (e) {
        struct api_log *log = api_log(req);
        log->error = log->error ? log->error : e->code;
        struct buf b;
        buf_init(&b, MAX_ERROR_BYTES);
        reply_error_body(&b, e);
        reply_event(req, b.data, b.n_bytes);
        buf_deinit(&b);
    }
    if (done) {
        reply_event(req, "[DONE]", 6);
    }
    http_stream_end(req);
}
