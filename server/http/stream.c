// SPDX-License-Identifier: Apache-2.0
/* Streams, by one of two writers. The direct writer (HTTP/1.1 without TLS) lets libmicrohttpd
 * send the head, suspends the connection when it first asks for bytes, and from then on writes
 * chunks to the socket itself: a token costs one send() whatever the number of other streams,
 * and a full socket or an error is noticed at once. libmicrohttpd gets the connection back for
 * the last chunk. The other writer (TLS, HTTP/1.0, HEAD) feeds libmicrohttpd's reader and costs
 * a resume per wake-up.
 *
 * The direct writer formats into a scratch buffer shared by all streams, so a stream whose
 * socket accepts everything needs no buffer of its own. Writing to another stream sends the
 * scratch first. */
#include "engine/base/minmax.h"
#include "server/http/private.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const char comment[] = ": keep-alive\n\n";

_Static_assert(offsetof(struct http_request, stream.out.n_bytes) + sizeof(size_t) <= 64,
               "members accessed for each token must fit a cache line");

static size_t unsent(const struct http_request *req)
{
    return req->stream.out.n_bytes - req->stream.sent;
}

static bool is_dead(const struct http_request *req)
{
    return req->gone || req->completed;
}

static bool takes_scratch(const struct http_request *req)
{
    return req->stream.open && !req->gone && !req->stream.ended && req->stream.out.n_bytes == 0;
}

/* Selects the writer: direct for HTTP/1.1 without TLS, otherwise libmicrohttpd. */
void http_stream_begin(struct http_request *req, const char *content_type)
{
    struct http_server *s = req->server;
    struct stream *st = &req->stream;
    ASSERT(!st->begun && !req->terminal);
    st->begun = true;
    s->stats.n_streams++;
    st->content_type = content_type;
    st->direct = !req->conn->daemon->tls && !req->http10 && !req->is_head;
    st->last_write_ns = s->now_ns;
    buf_init(&st->out, SIZE_MAX / 4); // limited by stream_hard_bytes, see reads_too_slowly
    if (!is_dead(req)) {
        http_timer_start(s, &st->timer, s->options.head_delay_ms, http_stream_timer, req);
    }
}

bool http_stream_head_sent(const struct http_request *req)
{
    return req->stream.started;
}

/* Called for the first event, or after head_delay_ms: the head is sent this late so that an error
 * before it can still have its own status. */
static void start(struct http_request *req)
{
    struct http_server *s = req->server;
    if (req->stream.started) {
        return;
    }
    req->stream.started = true;
    http_request_resume(req);
    http_timer_start(s, &req->stream.timer, s->options.keep_alive_ms, http_stream_timer, req);
}

/* A comment is sent when nothing else was sent for a while, so that proxies do not close the
 * connection. */
void http_stream_timer(struct http_timer *timer, void *arg)
{
    struct http_request *req = arg;
    struct http_server *s = req->server;
    struct stream *st = &req->stream;
    (void)timer;
    if (is_dead(req) || st->ended) {
        return;
    }
    int64_t period_ms = s->options.keep_alive_ms;
    int64_t silent_ms = (s->now_ns - st->last_write_ns) / 1000000;
    if (!st->started || (silent_ms + TICK_MS > period_ms && unsent(req) == 0)) {
        if (!st->content_type) {
            http_stream_write(req, comment, sizeof comment - 1);
        } else {
            start(req);
        }
        silent_ms = 0;
    }
    if (!is_dead(req)) {
        int64_t left_ms = period_ms - silent_ms;
        http_timer_start(s, &st->timer, greater(left_ms, TICK_MS), http_stream_timer, req);
    }
}

/* Writes the length with four hexadecimal digits, so that the data can be put in its place before
 * the length is known. */
static void chunk_head(char *to, size_t n_bytes)
{
    static const char digits[] = "0123456789abcdef";
    to[0] = digits[n_bytes >> 12 & 15];
    to[1] = digits[n_bytes >> 8 & 15];
    to[2] = digits[n_bytes >> 4 & 15];
    to[3] = digits[n_bytes & 15];
    to[4] = '\r';
    to[5] = '\n';
}

static void blocked(struct http_request *req)
{
    struct http_server *s = req->server;
    s->stats.n_short_sends++;
    http_conn_want_out(req->conn, true);
    http_conn_deadline(req->conn, s->options.stall_timeout_ms);
}

/* True if the client reads too slowly. Only bytes left unsent by earlier turns of the loop count,
 * because it has had no time to read what this turn writes. */
static bool reads_too_slowly(struct http_request *req)
{
    struct http_server *s = req->server;
    struct stream *st = &req->stream;
    if (st->turn_ns != s->now_ns) {
        st->turn_ns = s->now_ns;
        st->n_left_over = unsent(req);
    }
    return st->n_left_over > s->options.stream_hard_bytes;
}

/* Appends framed or raw bytes to the unsent ones. */
static void keep(struct http_request *req, const char *bytes, size_t n_bytes)
{
    struct http_server *s = req->server;
    struct stream *st = &req->stream;
    if (st->sent > 0 && st->sent >= st->out.n_bytes / 2) {
        buf_consume(&st->out, st->sent);
        st->sent = 0;
    }
    buf_put(&st->out, bytes, n_bytes);
    s->stats.held_stream_bytes += n_bytes;
    if (st->out.failed) {
        http_conn_cut(req->conn);
        return;
    }
    st->full = st->full || unsent(req) >= s->options.stream_soft_bytes;
}

/* Streams with something to send are flushed together, after the loop's other work. */
static void push_flush(struct http_request *req)
{
    struct http_server *s = req->server;
    if (!req->in_flush) {
        req->in_flush = true;
        req->next_flush = NULL;
        *s->flush_tail = req;
        s->flush_tail = &req->next_flush;
    }
}

/* Keeps an event for later, or disconnects a client that reads too slowly. */
static void keep_event(struct http_request *req, const char *bytes, size_t n_bytes)
{
    struct stream *st = &req->stream;
    if (reads_too_slowly(req)) {
        http_conn_cut(req->conn);
        return;
    }
    if (!st->direct) {
        bool was_empty = unsent(req) == 0;
        keep(req, bytes, n_bytes);
        if (was_empty && req->queued && !req->gone) {
            http_conn_deadline(req->conn, req->server->options.stall_timeout_ms);
        }
        http_request_resume(req);
        return;
    }
    while (n_bytes > 0 && !req->gone) {
        size_t n = lesser(n_bytes, MAX_CHUNK);
        char head[CHUNK_HEAD];
        chunk_head(head, n);
        keep(req, head, sizeof head);
        keep(req, bytes, n);
        keep(req, "\r\n", 2);
        bytes += n;
        n_bytes -= n;
    }
    if (st->open && !req->gone && !req->conn->wants_out) {
        push_flush(req);
    }
}

/* Where the next event may be written: in the shared scratch, from which it is sent
 * without a copy, or in spare room, from which it is copied. */
char *http_stream_reserve(struct http_request *req, size_t n_bytes)
{
    struct http_server *s = req->server;
    s->reserved_scratch = false;
    if (takes_scratch(req) && n_bytes <= MAX_CHUNK) {
        if (s->scratch_req != req || s->n_scratch + n_bytes > MAX_CHUNK + CHUNK_HEAD) {
            http_flush_scratch(s);
        }
        if (takes_scratch(req)) { // the flush may have filled this very socket
            if (!s->scratch_req) {
                s->scratch_req = req;
                s->n_scratch = CHUNK_HEAD;
            }
            s->reserved_scratch = true;
            return s->scratch + s->n_scratch;
        }
    }
    if (s->scratch_req == req) { // preserves the order
        http_flush_scratch(s);
    }
    if (n_bytes > s->n_spare_room) {
        s->spare_room = xrealloc(s->spare_room, n_bytes);
        s->n_spare_room = n_bytes;
    }
    return s->spare_room;
}

/* Completes the last reservation. */
void http_stream_commit(struct http_request *req, size_t n_bytes)
{
    struct http_server *s = req->server;
    ASSERT(req->stream.begun && !req->terminal);
    if (s->reserved_scratch) {
        s->n_scratch += n_bytes;
    } else if (!is_dead(req) && n_bytes > 0) {
        keep_event(req, s->spare_room, n_bytes);
        start(req);
    }
    req->stream.last_write_ns = s->now_ns;
    s->stats.n_events++;
}

void http_stream_write(struct http_request *req, const void *bytes, size_t n_bytes)
{
    memcpy(http_stream_reserve(req, n_bytes), bytes, n_bytes);
    http_stream_commit(req, n_bytes);
}

bool http_stream_is_full(const struct http_request *req)
{
    return req->stream.full;
}

/* Number of bytes that the socket accepted, or -1 if the request is gone. */
static ssize_t send_some(struct http_request *req, const char *bytes, size_t n_bytes)
{
    ssize_t n = send(req->stream.fd, bytes, n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        n = 0;
    }
    if (n < 0) {
        http_request_gone(req, HTTP_GONE_CLOSED);
        return -1;
    }
    req->server->stats.sent_bytes += (uint64_t)n;
    req->stream.n_sent += (uint64_t)n;
    return n;
}

/* One send for all events of a turn; what does not fit the socket is kept. */
void http_flush_scratch(struct http_server *s)
{
    struct http_request *req = s->scratch_req;
    s->scratch_req = NULL;
    if (!req || req->gone || s->n_scratch == CHUNK_HEAD) {
        return;
    }
    chunk_head(s->scratch, s->n_scratch - CHUNK_HEAD);
    memcpy(s->scratch + s->n_scratch, "\r\n", 2);
    size_t n_all = s->n_scratch + 2;
    ssize_t n = send_some(req, s->scratch, n_all);
    if (n >= 0 && (size_t)n < n_all) {
        keep(req, s->scratch + n, n_all - (size_t)n);
        blocked(req);
    }
}

/* Calls on_writable once the unsent bytes are down to half of the soft limit, so that the handler
 * is not called for every event. */
static void notify_writable(struct http_request *req)
{
    if (req->stream.full && unsent(req) <= req->server->options.stream_soft_bytes / 2) {
        req->stream.full = false;
        if (!req->terminal && req->events && req->events->on_writable) {
            req->events->on_writable(req, req->events_arg);
        }
    }
}

/* Buffers of slow streams may be large, so they are freed and not kept. */
static void reset_out(struct http_request *req)
{
    struct stream *st = &req->stream;
    req->server->stats.held_stream_bytes -= unsent(req);
    buf_deinit(&st->out);
    st->out.failed = false;
    st->sent = 0;
}

/* Sends the unsent bytes of the direct writer, after the head or when the socket has room again. */
void http_stream_flush(struct http_request *req)
{
    struct http_server *s = req->server;
    struct stream *st = &req->stream;
    if (!st->open || is_dead(req)) {
        return;
    }
    while (unsent(req) > 0) {
        ssize_t n = send_some(req, st->out.data + st->sent, unsent(req));
        if (n < 0) {
            return;
        }
        st->sent += (size_t)n;
        s->stats.held_stream_bytes -= (size_t)n;
        if (unsent(req) > 0) { // edge-triggered: readiness is reported again only after the socket
                               // was full
            if (n == 0) {
                http_conn_want_out(req->conn, true);
                break;
            }
            http_conn_deadline(req->conn, s->options.stall_timeout_ms); // it made progress
        }
    }
    if (unsent(req) == 0) {
        reset_out(req);
        http_conn_want_out(req->conn, false);
        http_conn_deadline(req->conn, NEVER);
        if (st->ended) {
            http_request_resume(req);
        }
    } else if (req->conn->deadline_ns == INT64_MAX) {
        http_conn_deadline(req->conn, s->options.stall_timeout_ms);
    }
    notify_writable(req);
}

void http_stream_drop(struct http_request *req)
{
    if (req->server->scratch_req == req) {
        req->server->scratch_req = NULL;
    }
    reset_out(req);
}

/* libmicrohttpd asks for the first bytes, so the head is out. We suspend the connection and write
 * to it ourselves; libmicrohttpd gets it back for the last chunk. */
static ssize_t read_direct(struct http_request *req)
{
    struct stream *st = &req->stream;
    st->open = true;
    st->fd = req->conn->fd;
    if (st->ended && unsent(req) == 0) {
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    MHD_suspend_connection(req->conn->mhd);
    req->suspended = true;
    http_conn_phase(req->conn, CONN_HANDLER, NEVER);
    if (unsent(req) > 0) {
        push_flush(req);
    }
    if (req->conn->half_closed &&
        (req->conn->broken || !req->server->options.tolerate_half_close)) {
        http_request_gone(req, HTTP_GONE_CLOSED);
    }
    return 0;
}

/* libmicrohttpd asks for bytes. If there are none, suspend; otherwise it would keep asking. */
ssize_t http_stream_read(void *arg, uint64_t pos, char *bytes, size_t max_bytes)
{
    struct http_request *req = arg;
    struct http_server *s = req->server;
    struct stream *st = &req->stream;
    (void)pos;
    if (req->gone) {
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    if (st->direct) {
        return read_direct(req);
    }
    size_t n = lesser(unsent(req), max_bytes);
    if (n > 0) {
        memcpy(bytes, st->out.data + st->sent, n);
        st->sent += n;
        s->stats.held_stream_bytes -= n;
        s->stats.sent_bytes += n;
        st->n_sent += n;
        http_conn_deadline(req->conn, s->options.stall_timeout_ms);
        if (st->full && unsent(req) <= s->options.stream_soft_bytes / 2) {
            push_flush(req); // so that on_writable is called, but outside this call
        }
        return (ssize_t)n;
    }
    reset_out(req);
    if (st->ended) {
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    MHD_suspend_connection(req->conn->mhd);
    req->suspended = true;
    http_conn_phase(req->conn, CONN_HANDLER, NEVER);
    if (req->conn->half_closed && (req->conn->broken || !s->options.tolerate_half_close)) {
        http_request_gone(req, HTTP_GONE_CLOSED);
    }
    return 0;
}

/* Called for a suspended stream, outside libmicrohttpd's callbacks: the direct writer may begin, or
 * on_writable is due. */
void http_stream_opened(struct http_request *req)
{
    if (is_dead(req)) {
        return;
    }
    if (req->stream.direct) {
        http_stream_flush(req);
    } else {
        notify_writable(req);
    }
}

/* The unsent bytes are sent, then the last chunk. */
void http_stream_end(struct http_request *req)
{
    struct http_server *s = req->server;
    struct stream *st = &req->stream;
    ASSERT(st->begun && !req->terminal);
    http_timer_stop(s, &st->timer);
    http_body_free(req);
    if (s->scratch_req == req) {
        http_flush_scratch(s);
    }
    req->terminal = true;
    st->started = st->ended = true;
    if (is_dead(req) || !st->open || unsent(req) == 0) {
        http_request_resume(req);
    }
}
