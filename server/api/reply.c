// SPDX-License-Identifier: Apache-2.0
/* Replies that all endpoints share: errors in the form of the API that the path belongs to, and
 * events of a stream. */
#include "server/api/reply.h"

#include "server/api/log_request.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_ERROR_BYTES = 64 << 10 };

/* Writes an error that the front end itself has generated. */
static const char *put_error(struct buf *b, int status, const char *code, const char *message)
{
    struct call_error e = {0};
    call_error_set(&e, status, code, NULL, "%s", message);
    call_error_put(b, &e, CALL_ERROR_OPENAI);
    return "application/json";
}

/* A request's room holds its log; the front end calls back for its own errors. */
void reply_set_options(struct http_options *o)
{
    o->n_room = sizeof(struct api_log);
    o->put_error = put_error;
    o->put_line = log_request_format;
    o->on_head = log_request_head;
}

/* A form applies to a path and everything below it. Every other path is OpenAI's. */
enum reply_form reply_form_of(const struct http_route *route)
{
    static const struct {
        const char *path;
        enum reply_form form;
    } forms[] = {
        {"/v1/messages", REPLY_ANTHROPIC}, {"/api", REPLY_OLLAMA},
        {"/cohere", REPLY_COHERE},         {"/pooling", REPLY_VLLM},
        {"/classify", REPLY_VLLM},         {"/generative_scoring", REPLY_VLLM},
        {"/inference", REPLY_VLLM},        {"/completion", REPLY_LLAMA},
        {"/completions", REPLY_LLAMA},     {"/chat/completions", REPLY_LLAMA},
        {"/embeddings", REPLY_LLAMA},      {"/infill", REPLY_LLAMA},
        {"/embedding", REPLY_LLAMA},       {"/apply-template", REPLY_LLAMA},
        {"/props", REPLY_LLAMA},           {"/slots", REPLY_LLAMA},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        size_t n = strlen(forms[i].path);
        if (strncmp(route->path, forms[i].path, n) == 0 &&
            (route->path[n] == '/' || route->path[n] == '\0')) {
            return forms[i].form;
        }
    }
    return REPLY_OPENAI;
}

void reply_note_route(struct http_request *req, const struct http_route *route)
{
    api_log(req)->form = (unsigned char)reply_form_of(route);
}

/* Adds the request id under Anthropic's name, once per reply, if the route is Anthropic's. */
void reply_tell_id(struct http_request *req)
{
    struct api_log *log = api_log(req);
    if (log->form == REPLY_ANTHROPIC && !log->told_id) {
        http_reply_header(req, "request-id", http_request_id(req));
        log->told_id = true;
    }
}

static enum call_error_names names_of(struct http_request *req)
{
    static const enum call_error_names names[] = {
        [REPLY_OPENAI] = CALL_ERROR_OPENAI, [REPLY_ANTHROPIC] = CALL_ERROR_ANTHROPIC,
        [REPLY_OLLAMA] = CALL_ERROR_OPENAI, [REPLY_VLLM] = CALL_ERROR_VLLM,
        [REPLY_LLAMA] = CALL_ERROR_LLAMA,   [REPLY_COHERE] = CALL_ERROR_OPENAI,
    };
    return names[api_log(req)->form];
}

/* The same error in each API's format. */
static void put_form(struct buf *b, struct http_request *req, const struct call_error *e)
{
    switch (api_log(req)->form) {
    case REPLY_ANTHROPIC: call_error_put_typed(b, e, http_request_id(req)); break;
    case REPLY_OLLAMA: call_error_put_plain(b, e); break;
    case REPLY_COHERE: call_error_put_message(b, e, http_request_id(req)); break;
    default: call_error_put(b, e, names_of(req)); break;
    }
}

/* Replies with an error. All clients read retry-after; OpenAI's and Anthropic's also a header in
 * milliseconds. */
void reply_error(struct http_request *req, const struct call_error *e)
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
        log->error = e->code; // codes are static text, as struct api_log requires
    }
    struct buf b;
    buf_init(&b, MAX_ERROR_BYTES);
    reply_tell_id(req);
    put_form(&b, req, e);
    http_reply_buf(req, e->status, "application/json", &b);
}

/* For errors of a handler; calls report their own. */
void reply_errorf(struct http_request *req, int status, const char *code, const char *param,
                  const char *fmt, ...)
{
    struct call_error e = {0};
    char message[sizeof e.message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    call_error_set(&e, status, code, param, "%s", message);
    reply_error(req, &e);
}

void reply_json(struct http_request *req, int status, struct buf *body)
{
    http_reply_buf(req, status, "application/json", body);
}

void put_rfc3339(struct buf *b, int64_t seconds)
{
    char text[32];
    time_t at = (time_t)seconds;
    struct tm parts;
    gmtime_r(&at, &parts);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    buf_printf(b, "\"%s\"", text);
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

/* Server-sent events, written directly into the connection's buffer. */
void reply_event(struct http_request *req, const char *json, size_t n_bytes)
{
    size_t n = n_bytes + 8;
    char *p = http_stream_reserve(req, n);
    p = append(p, "data: ", 6);
    p = append(p, json, n_bytes);
    append(p, "\n\n", 2);
    http_stream_commit(req, n);
}

void reply_line(struct http_request *req, const char *json, size_t n_bytes)
{
    char *p = http_stream_reserve(req, n_bytes + 1);
    append(append(p, json, n_bytes), "\n", 1);
    http_stream_commit(req, n_bytes + 1);
}

/* Anthropic's and the Responses API's events have a name, too. */
void reply_named_event(struct http_request *req, const char *name, const char *json, size_t n_bytes)
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

/* After the head an error can no longer set the status, so it becomes an event. */
void reply_stream_end(struct http_request *req, const struct call_error *e, bool done)
{
    if (e && !http_stream_head_sent(req)) {
        reply_error(req, e);
        return;
    }
    if (e) {
        struct api_log *log = api_log(req);
        if (!log->error) {
            log->error = e->code;
        }
        struct buf b;
        buf_init(&b, MAX_ERROR_BYTES);
        if (log->form == REPLY_OLLAMA) {
            call_error_put_plain(&b, e);
            reply_line(req, b.data, b.n_bytes);
            done = false;
        } else {
            put_form(&b, req, e);
            reply_event(req, b.data, b.n_bytes);
        }
        buf_deinit(&b);
    }
    if (done) {
        reply_event(req, "[DONE]", 6);
    }
    http_stream_end(req);
}
