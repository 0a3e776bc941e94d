// SPDX-License-Identifier: Apache-2.0
/* A response: the headers of every reply, and passing it to libmicrohttpd. */
#include "engine/base/optional.h"
#include "server/http/private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void add(struct MHD_Response *r, const char *name, const char *value)
{
    if (value) {
        MHD_add_response_header(r, name, value); // fails only for headers that http_reply_header
                                                 // has dropped
    }
}

static bool is_word(const char *word, const char *p, size_t n)
{
    return strlen(word) == n && strncasecmp(p, word, n) == 0;
}

static bool ends_with(const char *host, size_t n, const char *end)
{
    size_t m = strlen(end);
    return n > m && strncasecmp(host + n - m, end, m) == 0;
}

bool http_is_loopback(const char *host)
{
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    bool v4 = strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == n;
    return v4 || is_word("localhost", host, n) || is_word("[::1]", host, n) ||
           ends_with(host, n, ".localhost");
}

/* True for a page of this machine, such as "http://localhost:3000". */
static bool is_loopback_page(const char *origin)
{
    const char *host = strstr(origin, "://");
    return host && !strpbrk(host + 3, "/@ ") && http_is_loopback(host + 3);
}

/* True if "*" and "loopback" apply to the request's route, as cors_scope says. */
static bool is_for_pages(const struct http_request *req)
{
    unsigned scope = req->server->options.cors_scope;
    return scope == 0 || (req->route && (req->route->scope & scope) != 0);
}

/* The value for Access-Control-Allow-Origin: the request's origin or "*"; NULL if the page may not
 * read the answer. */
static const char *allowed_origin(const struct http_request *req)
{
    const char *list = req->server->cors_origins;
    if (!list || !req->origin || !*req->origin) {
        return NULL;
    }
    for (const char *p = list; *p;) {
        p += strspn(p, ", ");
        size_t n = strcspn(p, ", ");
        if (n > 0 && is_word(req->origin, p, n)) {
            return req->origin;
        }
        if (is_word("*", p, n) && is_for_pages(req)) {
            return req->server->options.cors_credentials ? req->origin : "*";
        }
        bool loopback = is_word("loopback", p, n) || is_word("localhost", p, n); // llama.cpp's word
        if (loopback && is_for_pages(req) && is_loopback_page(req->origin)) {
            return req->origin;
        }
        p += n;
    }
    return NULL;
}

bool http_origin_is_good(const struct http_request *req)
{
    const char *site = http_header(req, "sec-fetch-site");
    if (req->origin) {
        return allowed_origin(req) != NULL;
    }
    return !site || strcasecmp(site, "cross-site") != 0;
}

static void add_common(struct http_request *req, struct MHD_Response *r)
{
    struct http_server *s = req->server;
    add(r, "x-request-id", req->id);
    for (struct reply_header *h = req->headers; h; h = h->next) {
        add(r, h->name, h->value);
    }
    if (s->cors_origins) {
        const char *origin = allowed_origin(req);
        add(r, "Access-Control-Allow-Origin", origin);
        add(r, "Access-Control-Allow-Credentials",
            origin && s->options.cors_credentials ? "true" : NULL);
        add(r, "Access-Control-Expose-Headers", origin ? "x-request-id, retry-after" : NULL);
        add(r, "Vary", "Origin");
    }
    if (s->state != HTTP_RUNNING || req->conn->over_limit) {
        req->must_close = true;
    }
    if (req->must_close) {
        add(r, "Connection", "close");
    }
}

/* The Origin header may be read here even for a deferred reply, because libmicrohttpd keeps the
 * request's head until the request ends. */
static void set_response(struct http_request *req, int status, const char *content_type,
                         struct MHD_Response *r)
{
    if (!r) { // out of memory: all we can do is drop the connection
        http_conn_cut(req->conn);
        http_request_resume(req);
        return;
    }
    add(r, "Content-Type", content_type);
    add_common(req, r);
    req->response = r;
    req->status = status;
    http_body_free(req); // not earlier, since the reply may have been copied from the body
    http_request_resume(req);
}

/* First half of a terminal call. False if there is nobody to answer. */
static bool begin_terminal(struct http_request *req)
{
    ASSERT(!req->terminal && !req->stream.started);
    req->terminal = true;
    req->record.status = 0;
    http_timer_stop(req->server, &req->stream.timer);
    if (req->gone || req->completed) {
        http_request_resume(req);
        return false;
    }
    return true;
}

void http_reply(struct http_request *req, int status, const char *content_type, const void *body,
                size_t n_bytes)
{
    if (!begin_terminal(req)) {
        return;
    }
    req->n_reply = n_bytes;
    set_response(req, status, content_type,
                 MHD_create_response_from_buffer(n_bytes, (void *)body, MHD_RESPMEM_MUST_COPY));
}

void http_reply_buf(struct http_request *req, int status, const char *content_type,
                    struct buf *body)
{
    if (body->failed) {
        buf_deinit(body);
        *body = (struct buf){0};
        http_refuse(req, 500, "internal_error", "The reply is too large.");
        return;
    }
    if (!begin_terminal(req)) {
        buf_deinit(body);
        return;
    }
    req->n_reply = body->n_bytes;
    static char empty[1];
    struct MHD_Response *r;
    if (body->data) {
        r = MHD_create_response_from_buffer(body->n_bytes, body->data, MHD_RESPMEM_MUST_FREE);
    } else {
        r = MHD_create_response_from_buffer(0, empty, MHD_RESPMEM_PERSISTENT);
    }
    if (!r) {
        free(body->data);
    }
    body->data = NULL;
    buf_deinit(body);
    set_response(req, status, content_type, r);
}

void http_reply_header(struct http_request *req, const char *name, const char *value)
{
    if (strpbrk(value, "\r\n") || req->stream.started || req->terminal) {
        return;
    }
    size_t n_name = strlen(name) + 1, n_value = strlen(value) + 1;
    struct reply_header *h = xcalloc(1, sizeof *h + n_name + n_value);
    h->name = (char *)(h + 1);
    h->value = h->name + n_name;
    memcpy(h->name, name, n_name);
    memcpy(h->value, value, n_value);
    h->next = req->headers;
    req->headers = h;
}

struct MHD_Response *http_make_stream(struct http_request *req)
{
    /* libmicrohttpd uses a block of this size only for clients without chunked encoding. */
    size_t n_block = req->http10 ? 4096 : 64;
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, n_block, http_stream_read, req, NULL);
    if (!r) {
        return NULL;
    }
    add(r, "Content-Type", or_text(req->stream.content_type, "text/event-stream; charset=utf-8"));
    add(r, "Cache-Control", "no-cache, no-transform");
    add(r, "X-Accel-Buffering", "no");
    add_common(req, r);
    return r;
}

void http_refuse(struct http_request *req, int status, const char *code, const char *message)
{
    struct buf body;
    if (status == 503) {
        http_reply_header(req, "retry-after", "1");
        http_reply_header(req, "retry-after-ms", "1000");
    }
    if (!req->record.refusal) {
        req->record.refusal = code;
    }
    const char *type = http_put_error(req->server, &body, status, code, message);
    http_reply_buf(req, status, type, &body);
}

void http_refusef(struct http_request *req, int status, const char *code, const char *fmt, ...)
{
    char message[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    http_refuse(req, status, code, message);
}

/* True if the request was a CORS preflight, which is then answered. */
bool http_cors_preflight(struct http_request *req)
{
    const char *wanted = http_header(req, "Access-Control-Request-Method");
    if (!req->server->cors_origins || strcmp(req->method, "OPTIONS") != 0 || !wanted) {
        return false;
    }
    req->route = http_route_of_path(req, wanted);
    if (!req->route) {
        return false;
    }
    if (!allowed_origin(req)) { // an answer without CORS headers, which tells the browser no
        http_reply(req, 200, NULL, "", 0);
        return true;
    }
    const char *headers = http_header(req, "Access-Control-Request-Headers");
    http_reply_header(req, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    http_reply_header(req, "Access-Control-Allow-Headers",
                      or_text(headers, "authorization, content-type"));
    http_reply_header(req, "Access-Control-Max-Age", "86400");
    http_reply(req, 200, NULL, "", 0);
    return true;
}
