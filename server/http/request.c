// SPDX-License-Identifier: Apache-2.0
/* The life of one request between libmicrohttpd's callbacks and the handler: head, body, handler,
 * reply, end. */
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "server/http/private.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Frees everything that the request owns. Counters are decremented here, so that limits include
 * requests that are still ending. */
static void free_request(struct http_request *req)
{
    struct http_server *s = req->server;
    http_timer_stop(s, &req->stream.timer);
    http_stream_drop(req);
    http_body_free(req);
    if (req->response) {
        MHD_destroy_response(req->response);
    }
    for (struct reply_header *h = req->headers, *next; h; h = next) {
        next = h->next;
        free(h);
    }
    struct http_conn *c = req->conn;
    unsigned was_stream = req->stream.begun;
    free(req->text);
    free(req);
    s->stats.n_active--;
    s->stats.n_streams -= was_stream;
    http_conn_release(c);
    http_check_drained(s);
}

/* Frees the request if nobody holds it any more: neither libmicrohttpd, the handler, nor a list. */
void http_request_release(struct http_request *req)
{
    bool mine = !req->handed || req->terminal;
    if (!mine || !req->completed || req->in_resume || req->in_gone || req->in_flush ||
        req->in_callback) {
        return;
    }
    http_log_request(req);
    free_request(req);
}

/* Makes libmicrohttpd process the request again at the end of this callback: it then takes the
 * reply, reads the stream, or closes. */
void http_request_resume(struct http_request *req)
{
    struct http_server *s = req->server;
    if (req->completed) {
        http_request_release(req);
        return;
    }
    if (!req->suspended || req->in_resume) {
        return;
    }
    req->in_resume = true;
    req->next_resume = NULL;
    *s->resume_tail = req;
    s->resume_tail = &req->next_resume;
}

/* on_gone is called later, from the loop, so that the handler is never called within one of its own
 * calls. */
void http_request_gone(struct http_request *req, enum http_gone why)
{
    struct http_server *s = req->server;
    if (req->gone) {
        return;
    }
    req->gone = why;
    s->stats.n_gone[why]++;
    http_timer_stop(s, &req->stream.timer);
    http_stream_drop(req);
    if (req->handed && !req->terminal) {
        req->in_gone = true;
        req->next_gone = NULL;
        *s->gone_tail = req;
        s->gone_tail = &req->next_gone;
        return; // libmicrohttpd keeps the request until the terminal call
    }
    http_request_resume(req);
}

/* --- The head --- */

/* Ids appear in logs and replies; they need to be distinct, not secret. */
static void make_id(struct http_request *req)
{
    struct http_server *s = req->server;
    static const char digits[] = "0123456789abcdef";
    uint64_t x[2] = {s->id_seed, ++s->n_ids};
    for (int i = 0; i < 2; i++) { // two rounds of splitmix64: distinct ids, not secret ones
        uint64_t z = x[i] + (x[1 - i] << 1 | 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        x[i] = z ^ z >> 31;
        for (int k = 0; k < 16; k++) {
            req->id[i * 16 + k] = digits[x[i] >> (60 - 4 * k) & 15];
        }
    }
    req->id[32] = '\0';
}

/* Includes options.n_room zeroed bytes for the caller. */
static struct http_request *new_request(struct http_conn *c)
{
    struct http_server *s = c->server;
    struct http_request *req = xcalloc(1, sizeof *req + s->options.n_room);
    req->server = s;
    req->conn = c;
    c->n_refs++;
    c->req = req;
    s->stats.n_active++;
    s->stats.n_requests++;
    req->record.arrived_ns = clock_now_ns();
    req->path = "";
    return req;
}

static struct http_conn *conn_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* After this callback libmicrohttpd parses the arguments, for which we have no use. If there are so
 * many that its memory for the connection is full, 0.9.75 begins to answer, but then goes on as if
 * it had not: it loses the request, and can spin for ever. So they are cut off. The target is in
 * libmicrohttpd's own buffer, which may be written to, as it does itself. */
static void hide_arguments(const struct http_server *s, const char *uri)
{
    char *question = s->mhd_version < 0x01000000 && uri ? strchr(uri, '?') : NULL;
    if (question) {
        question[1] = '\0';
    }
}

/* Called for each name and each value of an argument. Only arguments behind a NUL in the target are
 * left: libmicrohttpd looks for the question mark there, too, but hide_arguments can't see where
 * such a target ends. The request will be refused as bad. The argument that is being read becomes
 * the last: behind it there is its value, or the next argument, or else the version. */
void http_argument_seen(struct MHD_Connection *mhd, const char *s)
{
    struct http_conn *c = conn_of(mhd);
    struct http_request *req = c ? c->req : NULL;
    if (!req || c->server->mhd_version >= 0x01000000 || !req->uri_seen ||
        s <= req->uri_seen + req->n_uri) {
        return;
    }
    char *next = s == req->value_seen ? req->after_value : (char *)s + strlen(s) + 1;
    req->value_seen = next;
    req->after_value = next + strlen(next) + 1;
    *next = '\0';
}

/* The first callback of a request; its headers may not have arrived yet. */
void *http_uri_seen(void *arg, const char *uri, struct MHD_Connection *mhd)
{
    (void)arg;
    struct http_conn *c = conn_of(mhd);
    if (!c) {
        return NULL;
    }
    struct http_request *req = new_request(c);
    req->uri_seen = uri;
    req->n_uri = length_or_0(uri);
    req->is_bad = !uri || !http_split_uri(req, uri);
    hide_arguments(c->server, uri);
    http_conn_phase(c, CONN_HEAD, http_conn_head_ms(c));
    return req;
}

/* JSON is UTF-8; with another charset the text would be misread. */
static bool has_other_charset(const char *type)
{
    const char *value = strcasestr(type, "charset=");
    if (!value) {
        return false;
    }
    value += strlen("charset=");
    value += *value == '"';
    return strncasecmp(value, "utf-8", 5) != 0 && strncasecmp(value, "utf8", 4) != 0 &&
           strncasecmp(value, "us-ascii", 8) != 0;
}

static bool is_json_type(const char *type)
{
    size_t n = strcspn(type, "; \t");
    bool json = n == 16 && strncasecmp(type, "application/json", n) == 0;
    json = json || (n > 5 && strncasecmp(type + n - 5, "+json", 5) == 0);
    return json && !has_other_charset(type + n);
}

/* Rejects content types other than JSON; without one the body's first byte decides. */
static bool check_type(struct http_request *req)
{
    if (req->content_encoding && *req->content_encoding &&
        strcasecmp(req->content_encoding, "identity") != 0) {
        http_refuse(req, 415, "unsupported_media_type",
                    "Compressed request bodies are not supported.");
        return false;
    }
    if (req->route->flags & HTTP_ROUTE_JSON && req->has_body && req->content_type &&
        *req->content_type && !is_json_type(req->content_type)) {
        http_refuse(req, 415, "unsupported_media_type",
                    "The Content-Type must be application/json, in UTF-8.");
        return false;
    }
    return true;
}

static void refuse_size(struct http_request *req)
{
    http_refusef(req, 413, "request_too_large", "Request body exceeds %zu bytes.", req->max_body);
}

/* 405 lists the methods that the path has, as RFC 9110 demands. */
static void refuse_target(struct http_request *req, const struct buf *allow)
{
    if (allow->n_bytes > 0) {
        http_reply_header(req, "Allow", allow->data);
        http_refuse(req, 405, "method_not_supported", "This URL does not support that method.");
        return;
    }
    http_refusef(req, 404, "unknown_url", "Invalid URL (%s %.200s)", req->method, req->path);
}

/* Decides everything that can be decided before the body is read. False: the request has been
 * answered. */
static bool admit(struct http_request *req)
{
    struct http_server *s = req->server;
    struct buf allow;
    buf_init(&allow, 256);
    req->route = http_route_find(req, &allow);
    bool found = req->route != NULL;
    if (!found && !http_cors_preflight(req)) {
        refuse_target(req, &allow);
    }
    buf_deinit(&allow);
    if (!found) {
        return false;
    }
    bool always = req->route->flags & HTTP_ROUTE_ALWAYS;
    if (!always && s->state >= HTTP_CLOSING) {
        http_refuse(req, 503, "server_draining", "The server is shutting down.");
    } else if (!always && mem_is_short()) {
        http_refuse(req, 503, "server_overloaded", "The server is short of memory.");
    } else if (!always && req->conn->over_limit) {
        http_refuse(req, 503, "server_overloaded", "Too many connections.");
    } else if (req->route->scope && s->options.authorize &&
               !s->options.authorize(req, req->route, s->options.arg)) {
        ASSERT(req->terminal);
    } else if (check_type(req)) {
        if (req->route->max_body_bytes) {
            req->max_body = req->route->max_body_bytes;
        } else {
            req->max_body = s->options.max_body_bytes;
        }
        if (req->content_length > req->max_body) {
            refuse_size(req);
        }
    }
    return !req->terminal;
}

static enum MHD_Result queue(struct http_request *req);

/* The body of a rejected request is read and discarded so that the client gets the answer; but not
 * if the client waits for 100 Continue, nor if the body is huge. */
static enum MHD_Result after_refusal(struct http_request *req)
{
    if (req->must_close || req->expects_continue || req->content_length > DISCARD_BYTES) {
        req->must_close = true;
        return queue(req);
    }
    http_conn_phase(req->conn, CONN_BODY, 5000);
    return MHD_YES;
}

/* The head has arrived. Whatever can be refused without the body is refused here, before the client
 * sends it. */
static enum MHD_Result on_head(struct http_request *req, const char *method, const char *version)
{
    struct http_server *s = req->server;
    struct http_conn *c = req->conn;
    req->head_done = true;
    req->record.arrived_ns = clock_now_ns();
    make_id(req);
    size_t n_method = strnlen(method, sizeof req->method - 1);
    memcpy(req->method, method, n_method);
    req->is_head = strcmp(req->method, "HEAD") == 0;

    const char *why = NULL;
    int status = http_guard(req, method, version, &why);
    if (status != 0) {
        s->stats.n_bad_requests++;
        req->refused = req->must_close = true;
        http_refuse(req, status, status == 413 ? "request_too_large" : "bad_request", why);
        return queue(req); // early: libmicrohttpd reads nothing more from this connection
    }
    if (s->options.on_head) {
        s->options.on_head(req, s->options.arg);
    }
    req->refused = !admit(req);
    if (req->refused) {
        return after_refusal(req);
    }
    http_conn_phase(c, CONN_BODY, s->options.body_timeout_ms);
    return MHD_YES;
}

/* --- The body --- */

/* Doubles, but never beyond the announced length; all bodies together have a limit, too. */
static bool grow_body(struct http_request *req, size_t need)
{
    struct http_server *s = req->server;
    size_t cap = req->body_cap ? req->body_cap : 4096;
    while (cap < need) {
        cap *= 2;
    }
    if (req->content_length > 0 && cap > req->content_length + 1) {
        if (need > req->content_length + 1) {
            cap = need;
        } else {
            cap = (size_t)req->content_length + 1;
        }
    }
    if (s->stats.held_body_bytes + cap - req->body_cap > s->options.max_body_total_bytes) {
        return false;
    }
    char *body = realloc(req->body, cap);
    if (!body) {
        return false;
    }
    s->stats.held_body_bytes += cap - req->body_cap;
    req->body = body;
    req->body_cap = cap;
    return true;
}

/* The limit applies to the bytes received, whatever length the header announced. */
static void take_body(struct http_request *req, const char *data, size_t n_data)
{
    if (n_data > req->max_body - req->n_body) {
        refuse_size(req);
    } else if (req->n_body + n_data + 1 > req->body_cap &&
               !grow_body(req, req->n_body + n_data + 1)) {
        http_refuse(req, 503, "server_overloaded",
                    "The bodies of all requests together are too large.");
    } else {
        memcpy(req->body + req->n_body, data, n_data);
        req->n_body += n_data;
        req->body[req->n_body] = '\0';
        return;
    }
    req->refused = true; // in the middle of a body no reply can be queued: discard the rest
}

/* Everything is consumed at once: leftover bytes would make libmicrohttpd spin. */
static enum MHD_Result on_body(struct http_request *req, const char *data, size_t *n_data)
{
    struct http_server *s = req->server;
    size_t n = *n_data;
    *n_data = 0;
    s->stats.body_bytes += n;
    req->record.body_bytes += n;
    if (!req->refused) {
        take_body(req, data, n);
        return MHD_YES;
    }
    req->n_discarded += n;
    if (req->n_discarded <= DISCARD_BYTES) {
        return MHD_YES;
    }
    if (!req->conn->daemon->tls) {
        http_refuse_raw(s, req->conn->fd, req->status, "request_too_large", NULL, 0);
    }
    req->record.status = req->status;
    return MHD_NO;
}

/* --- Handler and reply --- */

/* Passes the reply to libmicrohttpd, which then sends it, or asks for a stream's bytes. */
static enum MHD_Result queue(struct http_request *req)
{
    struct http_server *s = req->server;
    bool stream = !req->response;
    struct MHD_Response *r = stream ? http_make_stream(req) : req->response;
    req->response = NULL;
    if (!r) {
        return MHD_NO;
    }
    int status = stream ? 200 : req->status;
    http_conn_phase(req->conn, CONN_REPLY, stream ? NEVER : (int64_t)s->options.stall_timeout_ms);
    enum MHD_Result ret = MHD_queue_response(req->conn->mhd, (unsigned)status, r);
    MHD_destroy_response(r);
    req->queued = ret == MHD_YES;
    if (req->queued) {
        req->record.head_ns = clock_now_ns();
        req->record.status = status;
        req->record.streamed = stream;
    }
    return ret;
}

static bool body_begins_like_json(const struct http_request *req)
{
    const char *p = req->body;
    return !p || p[strspn(p, " \t\r\n")] == '{';
}

/* A body without a content type is accepted if it looks like JSON, because many clients omit the
 * header. */
static void call_handler(struct http_request *req)
{
    struct http_server *s = req->server;
    http_conn_phase(req->conn, CONN_HANDLER, NEVER);
    if (req->route->flags & HTTP_ROUTE_JSON && req->has_body &&
        !(req->content_type && *req->content_type) && !body_begins_like_json(req)) {
        http_refuse(req, 415, "unsupported_media_type",
                    "The Content-Type must be application/json.");
        return;
    }
    req->handed = true;
    req->in_callback = true;
    req->route->handler(req, s->options.arg);
    req->in_callback = false;
    ASSERT(req->terminal || req->deferred);
}

/* The connection sleeps until the handler replies. */
static void suspend(struct http_request *req)
{
    MHD_suspend_connection(req->conn->mhd);
    req->suspended = true;
    /* The client may have left before we could notice. */
    if (req->conn->half_closed &&
        (req->conn->broken || !req->server->options.tolerate_half_close)) {
        http_request_gone(req, HTTP_GONE_CLOSED);
    }
}

/* The whole request has been read. Called once at that time, and again after each resume. */
static enum MHD_Result on_whole(struct http_request *req)
{
    if (!req->handed && !req->refused) {
        call_handler(req);
    }
    if (req->gone && !req->queued) {
        return MHD_NO;
    }
    if (req->response || req->stream.started) {
        return queue(req);
    }
    if (req->terminal) {
        return MHD_NO; // no memory for a reply
    }
    suspend(req);
    return MHD_YES;
}

/* libmicrohttpd calls this for the head, for parts of the body, and once more at its end. */
enum MHD_Result http_handle(void *arg, struct MHD_Connection *mhd, const char *url,
                            const char *method, const char *version, const char *data,
                            size_t *n_data, void **context)
{
    (void)arg;
    (void)mhd;
    (void)url;
    struct http_request *req = *context;
    if (!req) {
        return MHD_NO;
    }
    if (!req->head_done) {
        return on_head(req, method, version);
    }
    if (*n_data > 0) {
        return on_body(req, data, n_data);
    }
    return on_whole(req);
}

/* libmicrohttpd (up to 1.0.1 at least) closes a connection whose reader has ended the reply only
 * when it next processes that connection. With epoll there may be no event that causes this, since
 * a reset has already been reported. Only connections with a time-out of their own are processed in
 * every run. */
static void have_it_closed(struct http_conn *c)
{
    MHD_set_connection_option(c->mhd, MHD_CONNECTION_OPTION_TIMEOUT, 1u);
    c->daemon->ready = true;
}

/* libmicrohttpd is done with the request. */
static void complete(struct http_request *req, bool is_ok)
{
    struct http_server *s = req->server;
    struct http_conn *c = req->conn;
    c->req = NULL;
    http_conn_want_out(c, false);
    if (!req->head_done) { // libmicrohttpd rejected it, or the client disconnected
        s->stats.n_bad_requests++;
        make_id(req);
    }
    if (!is_ok || (req->handed && !req->terminal)) {
        http_request_gone(req, HTTP_GONE_CLOSED);
    }
    // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): only a completed request is freed
    req->completed = true;
    req->stream.fd = -1;
    if (req->must_close || s->state >= HTTP_CLOSING) {
        /* If the reply's head announced the close, libmicrohttpd closes the connection, and may
         * still be sending the last bytes. If the head was sent before the drain began, only we can
         * close it. */
        http_conn_phase(c, CONN_IDLE, req->must_close ? 2000 : 0);
    } else {
        http_conn_phase(c, CONN_IDLE, c->half_closed ? REST_MS : s->options.idle_timeout_ms);
    }
    http_request_release(req);
}

/* libmicrohttpd's last call for a request, which is made even if the client has left. */
void http_completed(void *arg, struct MHD_Connection *mhd, void **context,
                    enum MHD_RequestTerminationCode code)
{
    (void)arg;
    (void)mhd;
    struct http_request *req = *context;
    const bool is_ok = code == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    *context = NULL;
    if (!req) {
        return;
    }
    if (!is_ok) {
        have_it_closed(req->conn);
    }
    complete(req, is_ok);
}

/* Frees the request if libmicrohttpd closes the connection without its last call, as 0.9.75 did
 * before hide_arguments. */
void http_request_lost(struct http_conn *c)
{
    if (c->req) {
        complete(c->req, false);
    }
}
