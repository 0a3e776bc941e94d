// SPDX-License-Identifier: Apache-2.0
/* The server as a whole: what wakes the loop, drain and stop, signals, open, run and close. */
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "server/http/private.h"
#include "server/http/sched.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

/* --- What wakes the loop --- */

/* The private epoll descriptor is ready: clients have left, or full sockets have room again. */
static void on_watch(uv_poll_t *poll, int status, int events)
{
    struct http_server *s = poll->data;
    (void)status;
    (void)events;
    s->now_ns = clock_now_ns();
    http_watch_ready(s);
    http_settle(s);
}

/* Another thread has something for this loop. Several wakes may become one call. */
static void on_wake(uv_async_t *wake)
{
    struct http_server *s = wake->data;
    s->now_ns = clock_now_ns();
    if (s->options.on_wake) {
        s->options.on_wake(s->options.arg);
    }
    http_settle(s);
}

void http_wake(struct http_server *s)
{
    uv_async_send(&s->wake);
}

/* Daemons with an old certificate end when their last connection does. */
static void retire_daemons(struct http_server *s)
{
    for (struct http_daemon *d = s->daemons, *next; d; d = next) {
        next = d->next;
        if (d->retired && d->n_connections == 0) {
            http_daemon_retire(s, d);
        }
    }
}

/* Once per TICK_MS: time limits, logs, and how late the loop is. */
static void on_tick(uv_timer_t *tick)
{
    struct http_server *s = tick->data;
    int64_t now = clock_now_ns();
    int64_t lag = now - s->last_tick_ns - TICK_MS * 1000000LL;
    s->stats.loop_lag_ns = s->last_tick_ns > 0 && lag > 0 ? lag : 0;
    s->now_ns = s->last_tick_ns = now;
    if (mem_is_short()) {
        mem_reserve_fill();
    }
    http_timers_tick(s);
    http_listen_tick(s);
    http_log_tick(s);
    http_systemd_tick(s);
    retire_daemons(s);
    http_settle(s);
    http_check_drained(s);
}

/* --- Drain and stop --- */

static void on_stop_due(struct http_timer *timer, void *arg)
{
    (void)timer;
    http_server_stop(arg);
}

/* The drain time is over: running requests are ended, and their connections get CUT_GRACE_MS for
 * the error message to arrive. */
static void on_drain_deadline(struct http_timer *timer, void *arg)
{
    struct http_server *s = arg;
    (void)timer;
    log_warn("drain time is over with %u requests running", s->stats.n_active);
    s->deadline_passed = s->was_cut = true;
    http_timer_start(s, &s->drain_timer, CUT_GRACE_MS, on_stop_due, s);
    if (s->options.on_drain_deadline) {
        s->options.on_drain_deadline(s->options.arg);
    }
}

static bool has_input(int fd)
{
    int n = 0;
    return ioctl(fd, FIONREAD, &n) == 0 && n > 0;
}

/* The drain delay is over, so load balancers have noticed: close the listeners and idle
 * connections. */
static void on_delay_over(struct http_timer *timer, void *arg)
{
    struct http_server *s = arg;
    (void)timer;
    s->state = HTTP_CLOSING;
    http_listen_close(s);
    for (struct http_conn *c = s->conns; c; c = c->next) {
        if (c->req || (c->phase != CONN_NEW && c->phase != CONN_IDLE)) {
            continue;
        }
        if (has_input(c->fd)) { // a request already sent gets its 503
            http_conn_deadline(c, CUT_GRACE_MS);
        } else {
            http_conn_cut(c);
        }
    }
    http_timer_start(s, &s->drain_timer, s->options.drain_timeout_ms, on_drain_deadline, s);
    http_check_drained(s);
}

/* True if a load balancer or probe may be watching. The drain delay gives it time to notice that
 * the server is no longer ready. */
static bool may_be_watched(const struct http_server *s)
{
    int64_t delay_ns = s->options.drain_delay_ms * 1000000LL;
    if (s->options.drain_if_busy && s->stats.n_active == 0) {
        return false;
    }
    bool was_there = s->left_ns > 0 && clock_now_ns() - s->left_ns < delay_ns;
    return delay_ns > 0 && (s->stats.n_connections > 0 || was_there);
}

/* Health checks fail from now on, but the listeners stay open for the drain delay, because a load
 * balancer notices late. */
void http_server_drain(struct http_server *s)
{
    if (s->state != HTTP_RUNNING) {
        return;
    }
    log_info("draining: %u requests on %u connections", s->stats.n_active, s->stats.n_connections);
    s->state = HTTP_DRAINING;
    http_notify(s, "STOPPING=1");
    if (s->options.on_drain) {
        s->options.on_drain(s->options.arg);
    }
    if (may_be_watched(s)) {
        http_timer_start(s, &s->drain_timer, s->options.drain_delay_ms, on_delay_over, s);
    } else {
        on_delay_over(&s->drain_timer, s);
    }
}

/* Stops at once: running requests are cancelled. */
void http_server_stop(struct http_server *s)
{
    if (s->stopping) {
        return;
    }
    s->stopping = true;
    s->stop_ns = clock_now_ns();
    s->was_cut = s->was_cut || s->stats.n_active > 0;
    s->state = HTTP_CLOSING;
    http_listen_close(s);
    for (struct http_conn *c = s->conns; c; c = c->next) {
        if (c->req) {
            http_request_gone(c->req, HTTP_GONE_SHUTDOWN);
        }
        http_conn_cut(c);
    }
    http_check_drained(s);
}

/* The first signal drains, the second one stops. SIGHUP reloads certificates and calls on_reload,
 * SIGUSR1 calls on_report. */
static void on_signal(uv_signal_t *signal, int number)
{
    struct http_server *s = signal->data;
    s->now_ns = clock_now_ns();
    if (number == SIGUSR1) {
        if (s->options.on_report) {
            s->options.on_report(s->options.arg);
        }
        return;
    }
    if (number != SIGHUP) {
        if (s->state == HTTP_RUNNING) {
            if (number == SIGINT) { // a person is waiting, and no balancer needs the delay
                s->options.drain_delay_ms = 0;
            }
            http_server_drain(s);
        } else {
            http_server_stop(s);
        }
        http_settle(s);
        return;
    }
    struct err err = {""};
    struct http_daemon *fresh;
    if (s->tls && http_daemon_open(s, true, &fresh, &err) == OK) {
        http_daemon_retire(s, s->tls);
        s->tls = fresh;
    } else if (err.text[0]) {
        log_error("the old certificates are still in use: %s", err.text);
    }
    if (s->options.on_reload) {
        s->options.on_reload(s->options.arg);
    }
    http_settle(s);
}

/* --- Open, run, close --- */

#define DEFAULT(field, value) o->field = o->field ? o->field : (value)

/* Replaces options that are 0 by their defaults. */
static void fill_defaults(struct http_options *o)
{
    DEFAULT(max_body_bytes, 16u << 20);
    DEFAULT(max_body_total_bytes, 1u << 30);
    DEFAULT(max_header_bytes, 16u << 10);
    DEFAULT(max_connections, 10500);
    DEFAULT(stream_soft_bytes, 64u << 10);
    DEFAULT(stream_hard_bytes, 16u << 20);
    DEFAULT(header_timeout_ms, 10000);
    DEFAULT(body_timeout_ms, 30000);
    DEFAULT(idle_timeout_ms, 75000);
    DEFAULT(stall_timeout_ms, 30000);
    DEFAULT(head_delay_ms, 5000);
    DEFAULT(keep_alive_ms, 15000);
    DEFAULT(drain_timeout_ms, 25000);
    DEFAULT(dead_peer_ms, 10000);
    DEFAULT(log_fd, STDOUT_FILENO);
}

static char *copy_or_null(const char *s)
{
    if (s && *s) {
        return xstrdup(s);
    }
    return NULL;
}

/* Strings are copied, because the caller's configuration may be replaced. */
static void copy_options(struct http_server *s, const struct http_options *options)
{
    s->options = *options;
    fill_defaults(&s->options);
    s->root_path = copy_or_null(options->root_path);
    size_t n = length_or_0(s->root_path);
    while (n > 0 && s->root_path[n - 1] == '/') {
        s->root_path[--n] = '\0';
    }
    s->cors_origins = copy_or_null(options->cors_origins);
    s->tls_cert = copy_or_null(options->tls_cert);
    s->tls_key = copy_or_null(options->tls_key);
    s->options.listen = NULL;
    s->options.n_listen = 0;
}

/* The server needs one descriptor per connection and a few more. A connection limit that the
 * operator has set and that cannot be met is an error; the default is lowered instead. */
static enum status check_descriptors(struct http_server *s, bool explicit_limit, struct err *err)
{
    struct rlimit limit;
    unsigned *max = &s->options.max_connections;
    rlim_t need = *max + *max / 20 + 256;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need) {
        return OK;
    }
    limit.rlim_cur = lesser(limit.rlim_max, need);
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= need) {
        return OK;
    }
    if (explicit_limit) {
        return err_set(err, ERR_LIMIT,
                       "%u connections need %llu descriptors, but the hard limit is %llu "
                       "(ulimit -Hn)",
                       *max, (unsigned long long)need, (unsigned long long)limit.rlim_max);
    }
    unsigned room = 16;
    if (limit.rlim_cur > 300) {
        room = (unsigned)(limit.rlim_cur - 256) * 20 / 21;
    }
    log_warn("connections are limited to %u: the hard limit of descriptors is %llu", room,
             (unsigned long long)limit.rlim_max);
    *max = room;
    return OK;
}

static void init_handles(struct http_server *s)
{
    uv_loop_init(&s->loop);
    uv_async_init(&s->loop, &s->wake, on_wake);
    uv_idle_init(&s->loop, &s->again);
    uv_timer_init(&s->loop, &s->tick);
    uv_signal_init(&s->loop, &s->sigterm);
    uv_signal_init(&s->loop, &s->sigint);
    uv_signal_init(&s->loop, &s->sighup);
    uv_signal_init(&s->loop, &s->sigusr1);
    s->watch_fd = epoll_create1(EPOLL_CLOEXEC);
    uv_poll_init(&s->loop, &s->watch, s->watch_fd);
    s->wake.data = s->again.data = s->tick.data = s->watch.data = s;
    s->sigterm.data = s->sigint.data = s->sighup.data = s->sigusr1.data = s;
}

/* Sockets that systemd has passed begin at descriptor 3. */
static enum status open_listeners(struct http_server *s, const struct http_options *options,
                                  struct err *err)
{
    int n_passed = options->systemd ? http_systemd_sockets() : 0;
    for (int i = 0; i < n_passed; i++) {
        TRY(http_listen_take(s, 3 + i, err));
    }
    for (size_t i = 0; i < options->n_listen; i++) {
        TRY(http_listen_open(s, options->listen[i], err));
    }
    if (s->n_listeners == 0) {
        return err_set(err, ERR_INVALID, "no address to listen on");
    }
    return OK;
}

/* Opens the parts in the order of their dependencies. */
static enum status open_parts(struct http_server *s, const struct http_options *options,
                              struct err *err)
{
    if (!s->tls_cert != !s->tls_key) {
        return err_set(err, ERR_INVALID, "TLS needs both a certificate and a key");
    }
    TRY(check_descriptors(s, options->max_connections > 0, err));
    if (s->watch_fd < 0) {
        return err_set(err, ERR_IO, "no epoll descriptor: %s", strerror(errno));
    }
    TRY(http_daemon_open(s, false, &s->plain, err));
    if (s->tls_cert) {
        TRY(http_daemon_open(s, true, &s->tls, err));
    }
    return open_listeners(s, options, err);
}

/* The loop does not run yet: no connection is accepted before http_server_begin. */
enum status http_server_open(const struct http_options *options, struct http_server **server,
                             struct err *err)
{
    struct http_server *s = xcalloc(1, sizeof *s);
    signal(SIGPIPE, SIG_IGN); // raised by writes of libmicrohttpd and the log
    copy_options(s, options);
    s->resume_tail = &s->resume;
    s->gone_tail = &s->gone;
    s->flush_tail = &s->flush;
    for (size_t i = 0; i < N_LINGER; i++) {
        s->linger[i].fd = -1;
    }
    s->scratch = xmalloc(SCRATCH_BYTES);
    s->now_ns = s->tick_base_ns = clock_now_ns();
    if (getrandom(&s->id_seed, sizeof s->id_seed, GRND_NONBLOCK) != sizeof s->id_seed) {
        s->id_seed = (uint64_t)s->now_ns ^ (uint64_t)getpid() << 40;
    }
    s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    init_handles(s);
    if (options->systemd) {
        http_systemd_open(s);
    }
    enum status st = open_parts(s, options, err);
    if (st != OK) {
        http_server_close(s);
        return st;
    }
    if (s->options.signals) { // from here on the loop handles them
        uv_signal_start(&s->sigterm, on_signal, SIGTERM);
        uv_signal_start(&s->sigint, on_signal, SIGINT);
        uv_signal_start(&s->sighup, on_signal, SIGHUP);
        uv_signal_start(&s->sigusr1, on_signal, SIGUSR1);
    }
    *server = s;
    return OK;
}

/* Closes connections that did not end in time; libmicrohttpd must not be stopped with a suspended
 * connection. Terminates, because each round advances every connection by at least one state. */
static void close_connections(struct http_server *s)
{
    for (int round = 0; round < 100 && s->conns; round++) {
        for (struct http_conn *c = s->conns; c; c = c->next) {
            if (c->req) {
                http_request_gone(c->req, HTTP_GONE_SHUTDOWN);
                http_request_resume(c->req);
            }
            http_conn_cut(c);
            c->daemon->ready = true;
        }
        http_settle(s);
    }
}

/* Separate from http_server_run for programs that run the loop themselves. */
void http_server_begin(struct http_server *s)
{
    s->now_ns = clock_now_ns();
    s->tick_base_ns = s->now_ns - s->tick_now * TICK_MS * 1000000LL;
    uv_poll_start(&s->watch, UV_READABLE, on_watch);
    uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
    mem_reserve_fill();
    http_log_open(s);
    if (s->state < HTTP_CLOSING) {
        http_listen_start(s);
        http_settle(s);
    }
}

/* Returns when everything has ended: connections, work of the pool, and the log. */
int http_server_run(struct http_server *s)
{
    http_sched_prefer_short_slices();
    http_server_begin(s);
    if (s->state < HTTP_CLOSING) {
        uv_run(&s->loop, UV_RUN_DEFAULT);
    }
    close_connections(s);
    while (s->n_pool_jobs > 0) {
        uv_run(&s->loop, UV_RUN_ONCE);
    }
    http_log_close(s);
    s->state = HTTP_STOPPED;
    return s->was_cut ? 1 : 0;
}

static void close_handle(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

/* Handles are closed by the loop, so it runs once more. */
void http_server_close(struct http_server *s)
{
    if (!s) {
        return;
    }
    http_listen_close(s);
    http_daemons_close(s);
    uv_walk(&s->loop, close_handle, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop);
    http_log_close(s);
    if (s->watch_fd >= 0) {
        close(s->watch_fd);
    }
    if (s->spare_fd >= 0) {
        close(s->spare_fd);
    }
    free(s->root_path);
    free(s->cors_origins);
    free(s->tls_cert);
    free(s->tls_key);
    free(s->notify_path);
    free(s->scratch);
    free(s->spare_room);
    free(s);
    mem_reserve_free();
}

const char *http_server_address(const struct http_server *s, size_t i)
{
    if (i < s->n_listeners) {
        return s->listeners[i].address;
    }
    return NULL;
}

enum http_state http_server_state(const struct http_server *s)
{
    return s->state;
}

void http_server_stats(const struct http_server *s, struct http_stats *stats)
{
    *stats = s->stats;
}
