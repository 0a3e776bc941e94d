// SPDX-License-Identifier: Apache-2.0
/* One connection: its deadlines, and the private epoll descriptor that detects when clients leave.
 * libmicrohttpd ignores a suspended connection and restarts its time-outs with each byte, so both
 * jobs are done here, on the socket that it owns. */
#include "engine/base/minmax.h"
#include "server/http/private.h"
#include "server/http/tcp.h"

#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { N_EVENTS = 256 };

static void on_deadline(struct http_timer *timer, void *arg);

static void set_option(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof value); // not essential, so errors are ignored
}

/* A peer that vanished silently is detected by three keep-alive probes (by default the first after
 * 5 s, half of dead_peer_ms, and the others 2 s apart), or by bytes unacknowledged for longer than
 * dead_peer_ms. The small send buffer limits what the kernel buffers for a stalled reader (4.2 MB
 * by default). */
static void set_socket_options(struct http_conn *c)
{
    set_option(c->fd, SOL_SOCKET, SO_SNDBUF, 64 << 10);
    if (strncmp(c->peer, "unix", 4) == 0) {
        return;
    }
    set_option(c->fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(c->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    int dead_ms = (int)c->server->options.dead_peer_ms;
    set_option(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, dead_ms < 4000 ? 1 : dead_ms / 2000);
    set_option(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, dead_ms < 10000 ? 1 : dead_ms / 5000);
    set_option(c->fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(c->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, dead_ms);
}

void http_conn_open(struct http_conn *c, struct MHD_Connection *mhd)
{
    struct http_server *s = c->server;
    c->mhd = mhd;
    c->n_refs = 1;
    c->next = s->conns;
    c->link = &s->conns;
    if (c->next) {
        c->next->link = &c->next;
    }
    s->conns = c;
    s->stats.n_connections++;
    c->daemon->n_connections++;
    set_socket_options(c);
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (epoll_ctl(s->watch_fd, EPOLL_CTL_ADD, c->fd, &e) < 0) {
        log_warn("a connection cannot be watched; it is closed");
        http_conn_cut(c);
    }
    http_conn_phase(c, CONN_NEW, http_conn_head_ms(c));
}

int64_t http_conn_head_ms(const struct http_conn *c)
{
    enum { AT_ONCE_MS = 500 }; // three round trips of a distant TLS client
    int64_t ms = c->server->options.header_timeout_ms;
    if (c->over_limit && ms > AT_ONCE_MS) {
        return AT_ONCE_MS;
    }
    return ms;
}

bool http_conn_make_place(struct http_server *s)
{
    struct http_conn *oldest = NULL;
    unsigned left = s->stats.n_connections - s->options.max_connections;
    for (struct http_conn *c = s->conns; c && left > 0; c = c->next) { // newest first
        left -= c->over_limit;
        if (c->over_limit && !c->broken && c->phase <= CONN_BODY) {
            oldest = c;
        }
    }
    if (oldest && !oldest->daemon->tls) {
        http_refuse_raw(s, oldest->fd, 503, "server_overloaded", "Too many connections.", 1);
    }
    if (oldest) {
        http_conn_cut(oldest);
    }
    return oldest != NULL;
}

/* libmicrohttpd is about to close the socket, which removes it from the epoll set. */
void http_conn_closed(struct http_conn *c)
{
    struct http_server *s = c->server;
    *c->link = c->next;
    if (c->next) {
        c->next->link = c->link;
    }
    http_timer_stop(s, &c->timer);
    c->mhd = NULL;
    c->fd = -1;
    s->stats.n_connections--;
    http_address_leave(s, c->address);
    c->address = NULL;
    s->left_ns = clock_now_ns();
    c->daemon->n_connections--;
    http_conn_release(c);
    http_check_drained(s);
}

void http_conn_release(struct http_conn *c)
{
    if (--c->n_refs == 0) {
        free(c);
    }
}

void http_conn_deadline(struct http_conn *c, int64_t deadline_ms)
{
    struct http_server *s = c->server;
    if (deadline_ms < 0) {
        c->deadline_ns = INT64_MAX;
        return;
    }
    c->deadline_ns = s->now_ns + deadline_ms * 1000000;
    int64_t due = (c->deadline_ns - s->tick_base_ns) / (TICK_MS * 1000000LL) + 1;
    if (!c->timer.link || c->timer.due_tick > due) { // if it fires before the deadline, it is
                                                     // restarted
        http_timer_start(s, &c->timer, deadline_ms, on_deadline, c);
    }
}

/* After a FIN nothing more arrives, so a request that will still become complete does so within a
 * moment. libmicrohttpd may not notice that: 0.9.75 stops reading when the last bytes and the FIN
 * arrive together. */
void http_conn_phase(struct http_conn *c, enum conn_phase phase, int64_t deadline_ms)
{
    c->phase = phase;
    http_conn_deadline(c, c->half_closed && phase <= CONN_BODY ? REST_MS : deadline_ms);
}

/* After the shutdown libmicrohttpd reads end of file and cleans up, and our epoll descriptor
 * reports that the client has left. */
void http_conn_cut(struct http_conn *c)
{
    c->broken = true;
    if (c->fd >= 0) {
        shutdown(c->fd, SHUT_RDWR);
    }
    if (c->req && c->req->handed) {
        http_request_gone(c->req, HTTP_GONE_SLOW);
    }
}

static void answer_late(struct http_conn *c)
{
    if (c->req) {
        c->req->record.status = 408;
    }
    if (!c->daemon->tls) {
        http_refuse_raw(c->server, c->fd, 408, "request_timeout",
                        "The request did not arrive in time.", 0);
    }
}

/* Milliseconds that a body may still take, given the bytes received. */
static int64_t body_time_left(const struct http_conn *c)
{
    const struct http_request *req = c->req;
    uint64_t n = req ? req->record.body_bytes : 0;
    if (!req || req->refused) {
        return 0;
    }
    int64_t allowed_ms = c->server->options.body_timeout_ms + (int64_t)(n >> 16) * 1000;
    return allowed_ms - (c->server->now_ns - req->record.arrived_ns) / 1000000;
}

/* Whether a reply makes progress is only known to the kernel, as the number of acknowledged bytes:
 * libmicrohttpd does not report it, and epoll reports a socket as writable only when a third of its
 * buffer is free. */
static int64_t reply_time_left(struct http_conn *c)
{
    int64_t acked = http_tcp_acked_bytes(c->fd), before = c->acked_bytes;
    c->acked_bytes = acked;
    if (acked > before) {
        return (int64_t)c->server->options.stall_timeout_ms;
    }
    return 0;
}

/* True if the peer's FIN ends the connection: no handler runs and no reply is being sent. */
static bool ends_with_fin(const struct http_conn *c)
{
    return c->half_closed && c->phase != CONN_HANDLER && c->phase != CONN_REPLY;
}

/* Time to process bytes that arrived before the FIN but that libmicrohttpd has not read yet. */
static int64_t fin_time_left(const struct http_conn *c)
{
    const struct http_server *s = c->server;
    int n_unread = 0;
    bool late = s->now_ns - c->left_ns > s->options.header_timeout_ms * 1000000LL;
    if (!late && ioctl(c->fd, FIONREAD, &n_unread) == 0 && n_unread > 0) {
        return REST_MS;
    }
    return 0;
}

/* The connection's time is up, unless its body, reply or end has some left. A client that was late
 * with its request is told so before the connection is cut. */
static void on_deadline(struct http_timer *timer, void *arg)
{
    struct http_conn *c = arg;
    struct http_server *s = c->server;
    (void)timer;
    if (c->deadline_ns == INT64_MAX || c->fd < 0) {
        return;
    }
    int64_t left_ms = (c->deadline_ns - s->now_ns + 999999) / 1000000;
    if (left_ms <= 0 && ends_with_fin(c)) {
        left_ms = fin_time_left(c);
    } else if (left_ms <= 0 && c->phase == CONN_BODY) {
        left_ms = body_time_left(c);
    } else if (left_ms <= 0 && (c->phase == CONN_REPLY || c->phase == CONN_HANDLER)) {
        left_ms = reply_time_left(c);
    }
    if (left_ms > 0) {
        http_conn_deadline(c, left_ms);
        return;
    }
    if (!c->half_closed && (c->phase == CONN_HEAD || c->phase == CONN_BODY ||
                            (c->phase == CONN_NEW && http_tcp_has_received(c->fd)))) {
        answer_late(c);
    }
    http_conn_cut(c);
}

void http_conn_want_out(struct http_conn *c, bool on)
{
    if (c->wants_out == on || c->fd < 0) {
        return;
    }
    c->wants_out = on;
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLET | (on ? EPOLLOUT : 0u), .data.ptr = c};
    if (epoll_ctl(c->server->watch_fd, EPOLL_CTL_MOD, c->fd, &e) < 0) {
        http_conn_cut(c);
    }
}

/* The peer has closed or reset the connection, or shut down its writing side, which looks the same
 * as closing. A reply that the handler has already made is still sent. */
static void on_left(struct http_conn *c, uint32_t events)
{
    struct http_request *req = c->req;
    if (!c->half_closed) {
        c->left_ns = c->server->now_ns;
    }
    c->half_closed = true;
    if (ends_with_fin(c)) {
        http_conn_deadline(c, REST_MS);
    }
    c->broken = c->broken || (events & (EPOLLHUP | EPOLLERR));
    if (!c->broken && c->server->options.tolerate_half_close) {
        return;
    }
    bool reply_is_mhds = req && req->terminal && !(req->queued && req->suspended);
    if (req && req->handed && !reply_is_mhds) {
        http_request_gone(req, HTTP_GONE_CLOSED);
    }
}

/* Nothing here calls libmicrohttpd, so no connection is freed while its event is in the batch. */
void http_watch_ready(struct http_server *s)
{
    struct epoll_event events[N_EVENTS];
    int n;
    do {
        n = epoll_wait(s->watch_fd, events, N_EVENTS, 0);
        for (int i = 0; i < n; i++) {
            struct http_conn *c = events[i].data.ptr;
            if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
                on_left(c, events[i].events);
            } else if (events[i].events & EPOLLOUT && c->req) {
                http_stream_flush(c->req);
            }
        }
    } while (n == N_EVENTS);
}
