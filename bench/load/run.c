// SPDX-License-Identifier: Apache-2.0
/* Sends the requests and measures: one thread, one epoll set, and as many connections as requests
 * are in flight. The client must not limit the measured server, so it parses only what it needs,
 * and keeps an answer only if a later turn contains it. */
#include "bench/load/run.h"

#include "bench/load/events.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "server/client/client.h"
#include "server/client/http_in.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

const char *const outcome_names[N_OUTCOMES] = {
    "not_sent", "ok",     "connect",    "http",    "closed",
    "protocol", "stream", "incomplete", "timeout", "interrupted",
};

enum {
    STREAM_ARRIVALS = 20,
    READ_BYTES = 65536,
    MAX_BODY_BYTES = 256 << 20,
    MAX_ITL = 1 << 26, // number of gaps that are stored, at most 256 MiB
    MAX_EVENTS = 256,  // per epoll_wait
};

/* A connection and the request that it serves. Connections are kept alive and reused. */
struct conn {
    struct run *run;
    struct conn *next; // in the list of idle connections
    int fd;
    int index;
    int64_t unit, turn;
    int64_t thinks_until;     // time to send the next turn; 0: no turn is waiting
    struct bench_record *rec; // NULL: idle
    struct buf out;           // the request; n_sent bytes of it are sent
    size_t n_sent;
    bool reused;    // the connection has served an earlier request
    bool got_bytes; // part of this answer has arrived
    bool wants_write;
    struct http_in in;
    struct events events;
    struct buf history, answer;
};

/* The state of the run. Times are in ns since its start. */
struct run {
    const struct bench_options *o;
    const struct bench_load *load;
    struct bench_results *r;
    struct addrinfo *address;
    int epoll;
    struct conn **conns;
    int n_conns, cap_conns;
    struct conn *idle;
    int64_t n_turns, next_unit, n_in_flight, n_thinking, n_done, n_failed;
    int64_t start, now, next_due, last_print, last_events;
    bool stop_starting;
};

static volatile sig_atomic_t interrupted;

static void on_sigint(int sig)
{
    (void)sig;
    interrupted = 1;
}

static void start_turn(struct conn *c, int64_t due);

/* ---- receiving ---- */

/* The clock is read when bytes arrive, so all events of one packet have the same time. */
static void on_text(void *arg)
{
    struct conn *c = arg;
    struct bench_results *r = c->run->r;
    const int64_t now = c->run->now;
    if (c->rec->first == 0) {
        c->rec->first = now;
    } else if (r->n_itl < MAX_ITL) {
        if (r->n_itl == r->cap_itl) {
            r->cap_itl = r->cap_itl > 0 ? 2 * r->cap_itl : 65536;
            r->itl_ms = xrealloc(r->itl_ms, r->cap_itl * sizeof *r->itl_ms);
        }
        r->itl_ms[r->n_itl++] = (float)((double)(now - c->rec->last) / 1e6);
    }
    c->rec->last = now;
}

/* The body of the first error is kept as an example. */
static void on_body(void *arg, const char *bytes, size_t n_bytes)
{
    struct conn *c = arg;
    if (c->in.status == 200) {
        events_feed(&c->events, bytes, n_bytes);
    } else if (c->run->n_failed == 0 && c->run->r->example[0] == '\0') {
        snprintf(c->run->r->example, sizeof c->run->r->example, "%.*s",
                 n_bytes < 390 ? (int)n_bytes : 390, bytes);
    }
}

static void close_fd(struct conn *c)
{
    if (c->fd >= 0) {
        close(c->fd);
        c->fd = -1;
    }
    c->reused = false;
}

static void give_back(struct conn *c)
{
    c->next = c->run->idle;
    c->run->idle = c;
}

/* Starts the next turn, at once or after its client's think time. */
static void think(struct conn *c)
{
    struct run *run = c->run;
    const int64_t ns = bench_load_think_ns(run->load, c->unit, c->turn);
    if (ns <= 0) {
        start_turn(c, run->now);
        return;
    }
    c->thinks_until = run->now + ns;
    run->n_thinking++;
}

/* A stream without [DONE] was cut off, even if the connection ended cleanly. */
static enum outcome outcome_of_answer(const struct conn *c)
{
    if (c->in.status != 200) {
        return OUTCOME_HTTP;
    }
    if (c->events.error) {
        return OUTCOME_STREAM;
    }
    return c->events.done ? OUTCOME_OK : OUTCOME_INCOMPLETE;
}

/* Records the request's result. In a conversation the next turn follows after the think time.
 * Otherwise the connection becomes idle, or is closed if it cannot carry another request. */
static void finish(struct conn *c, enum outcome outcome)
{
    struct run *run = c->run;
    struct bench_record *rec = c->rec;
    if (outcome == OUTCOME_OK) {
        outcome = outcome_of_answer(c);
    }
    rec->outcome = (uint8_t)outcome;
    rec->end = run->now;
    rec->http_status = (int16_t)c->in.status;
    rec->prompt_tokens = (int32_t)c->events.prompt_tokens;
    rec->cached_tokens = (int32_t)c->events.cached_tokens;
    rec->n_events = (int32_t)c->events.n_text_events;
    if (c->events.completion_tokens >= 0) {
        rec->output_tokens = (int32_t)c->events.completion_tokens;
    } else {
        rec->output_tokens = (int32_t)c->events.n_text_events;
    }
    run->r->n_events += c->events.n_events;
    run->n_failed += outcome != OUTCOME_OK;
    run->n_done++;
    run->n_in_flight--;
    c->rec = NULL;
    c->reused = true;
    if (!c->in.keep_alive || (outcome != OUTCOME_OK && outcome != OUTCOME_HTTP)) {
        close_fd(c);
    }
    const bool more = c->turn + 1 < bench_load_turns(run->load, c->unit) && outcome == OUTCOME_OK &&
                      !run->stop_starting;
    if (more) {
        bench_load_answer(&c->history, or_empty(c->answer.data), c->answer.n_bytes);
        c->turn++;
        think(c);
    } else {
        give_back(c);
    }
}

/* ---- connections ---- */

/* Watches EPOLLOUT only while there is something to send; otherwise epoll_wait would always return
 * immediately. */
static void watch(struct conn *c, bool wants_write)
{
    if (c->wants_write == wants_write) {
        return;
    }
    struct epoll_event ev = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(c->run->epoll, EPOLL_CTL_MOD, c->fd, &ev);
    c->wants_write = wants_write;
}

/* Connecting does not wait; the request is sent when the socket is writable. */
static bool open_fd(struct conn *c)
{
    const struct addrinfo *a = c->run->address;
    c->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        return false;
    }
    const int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    c->wants_write = true;
    if ((connect(c->fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) ||
        epoll_ctl(c->run->epoll, EPOLL_CTL_ADD, c->fd, &ev) != 0) {
        close_fd(c);
        return false;
    }
    return true;
}

/* Sends as much as the socket accepts now. */
static void send_some(struct conn *c)
{
    while (c->n_sent < c->out.n_bytes) {
        const ssize_t n =
            send(c->fd, c->out.data + c->n_sent, c->out.n_bytes - c->n_sent, MSG_NOSIGNAL);
        if (n <= 0) {
            // Broken connections are detected when reading, which also finds an early answer.
            watch(c, n < 0 && (errno == EAGAIN || errno == ENOTCONN));
            return;
        }
        c->n_sent += (size_t)n;
    }
    watch(c, false);
}

/* The connection has ended. The server may have closed a kept-alive connection just as we sent the
 * request; such a request is sent once more, on a new connection. */
static void on_closed(struct conn *c)
{
    if (c->rec == NULL) {
        close_fd(c);
        return;
    }
    if (c->reused && !c->got_bytes) {
        close_fd(c);
        c->run->r->n_reconnects++;
        c->n_sent = 0;
        if (!open_fd(c)) {
            finish(c, OUTCOME_CONNECT);
        }
        return;
    }
    const bool connected = c->n_sent > 0;
    if (c->got_bytes && http_in_eof(&c->in) == HTTP_IN_DONE) {
        c->in.keep_alive = false;
        finish(c, OUTCOME_OK);
        return;
    }
    close_fd(c);
    finish(c, connected ? OUTCOME_CLOSED : OUTCOME_CONNECT);
}

/* Reads what has arrived. If bytes arrive without a request, client and server disagree about the
 * state of the connection. */
static void receive(struct conn *c)
{
    static char bytes[READ_BYTES]; // static, since only one thread calls this and the contents are
                                   // not needed afterwards
    const ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0 || c->rec == NULL) { // unsolicited bytes: do not reuse the connection
        on_closed(c);
        return;
    }
    c->got_bytes = true;
    c->run->now = clock_now_ns() - c->run->start;
    const enum http_in_result got = http_in_feed(&c->in, bytes, (size_t)n);
    if (got == HTTP_IN_DONE) {
        finish(c, OUTCOME_OK);
    } else if (got == HTTP_IN_BAD) {
        finish(c, OUTCOME_PROTOCOL);
    }
}

/* Takes an idle connection if there is one, as the connection pool of an SDK does. */
static struct conn *take_conn(struct run *run)
{
    struct conn *c = run->idle;
    if (c != NULL) {
        run->idle = c->next;
        return c;
    }
    if (run->n_conns == run->cap_conns) {
        run->cap_conns = run->cap_conns > 0 ? 2 * run->cap_conns : 64;
        run->conns = xrealloc(run->conns, (size_t)run->cap_conns * sizeof *run->conns);
    }
    c = xcalloc(1, sizeof *c);
    c->run = run;
    c->fd = -1;
    buf_init(&c->out, MAX_BODY_BYTES);
    buf_init(&c->history, MAX_BODY_BYTES);
    buf_init(&c->answer, MAX_BODY_BYTES);
    http_in_init(&c->in, on_body, c);
    events_init(&c->events, on_text, c);
    run->conns[run->n_conns++] = c;
    return c;
}

/* Head and body are in one buffer, so that a small request is one packet. */
static void put_request(struct conn *c)
{
    const struct bench_options *o = c->run->o;
    struct buf body;
    buf_init(&body, MAX_BODY_BYTES);
    bench_load_body(c->run->load, c->unit, c->turn, &c->history, &body);
    buf_clear(&c->out);
    buf_printf(&c->out, "POST %s/v1/%s HTTP/1.1\r\nHost: %s:%s\r\n", o->peer.path,
               o->chat ? "chat/completions" : "completions", o->peer.host, o->peer.port);
    buf_puts(&c->out, "Content-Type: application/json\r\nAccept: text/event-stream\r\n");
    if (o->api_key != NULL) {
        buf_printf(&c->out, "Authorization: Bearer %s\r\n", o->api_key);
    }
    buf_printf(&c->out, "Content-Length: %zu\r\n\r\n", body.n_bytes);
    buf_put(&c->out, body.data, body.n_bytes);
    buf_deinit(&body);
}

/* `due` is when the request should have been sent. Latency counts from there, so that a slow client
 * cannot hide a slow server. */
static void start_turn(struct conn *c, int64_t due)
{
    struct run *run = c->run;
    c->rec = &run->r->records[c->unit * run->n_turns + c->turn];
    c->rec->due = due;
    buf_clear(&c->answer);
    c->events.answer = run->n_turns > 1 ? &c->answer : NULL;
    http_in_reset(&c->in);
    events_reset(&c->events);
    c->n_sent = 0;
    c->got_bytes = false;
    put_request(c);
    run->n_in_flight++;
    run->r->max_in_flight = greater(run->n_in_flight, run->r->max_in_flight);
    if (c->fd >= 0) {
        send_some(c);
    } else if (!open_fd(c)) {
        finish(c, OUTCOME_CONNECT);
    }
}

/* ---- the loop ---- */

/* A conversation also occupies its slot while its client thinks. */
static bool has_place(const struct run *run)
{
    return run->o->concurrency == 0 || run->n_in_flight + run->n_thinking < run->o->concurrency;
}

/* With a rate, arrivals are a Poisson process, independent of the answers. Without one, the next
 * request starts as soon as a slot is free. */
static void start_due(struct run *run)
{
    const struct bench_options *o = run->o;
    while (!run->stop_starting && run->next_unit < o->n_requests && run->next_due <= run->now &&
           has_place(run)) {
        struct conn *c = take_conn(run);
        c->unit = run->next_unit++;
        c->turn = 0;
        buf_clear(&c->history);
        const int64_t due = o->rate > 0 ? run->next_due : run->now;
        if (o->rate > 0) {
            const double u = bench_load_uniform(o->seed, STREAM_ARRIVALS, run->next_unit);
            run->next_due += (int64_t)(-log(u) / o->rate * 1e9);
        }
        start_turn(c, due);
    }
}

/* Continues the conversations whose think time is over, or ends them if the run's time is over. */
static void wake_thinkers(struct run *run)
{
    for (int i = 0; run->n_thinking > 0 && i < run->n_conns; i++) {
        struct conn *c = run->conns[i];
        const int64_t due = c->thinks_until;
        if (due == 0 || (due > run->now && !run->stop_starting)) {
            continue;
        }
        c->thinks_until = 0;
        run->n_thinking--;
        if (run->stop_starting) {
            give_back(c);
        } else {
            start_turn(c, due);
        }
    }
}

/* A timeout also closes the connection, since the answer could still arrive. */
static void check_timeouts(struct run *run)
{
    for (int i = 0; i < run->n_conns; i++) {
        struct conn *c = run->conns[i];
        if (c->rec != NULL && (double)(run->now - c->rec->due) > run->o->timeout * 1e9) {
            finish(c, OUTCOME_TIMEOUT);
        }
    }
}

/* Shows the progress on one line, which is overwritten each time. */
static void print_progress(struct run *run, bool last)
{
    const int64_t total = run->o->n_requests * run->n_turns; // agents: an upper bound
    int64_t events = run->r->n_events;
    for (int i = 0; i < run->n_conns; i++) {
        if (run->conns[i]->rec != NULL) {
            events += run->conns[i]->events.n_events;
        }
    }
    const double s = (double)(run->now - run->last_print) / 1e9;
    fprintf(stderr,
            "\r%6.1f s  %lld of %lld done, %lld in flight, %lld failed, %.0f events/s\033[K%s",
            (double)run->now / 1e9, (long long)run->n_done, (long long)total,
            (long long)run->n_in_flight, (long long)run->n_failed,
            s > 0 ? (double)(events - run->last_events) / s : 0, text_if(last, "\r\033[K"));
    run->last_print = run->now;
    run->last_events = events;
}

/* Milliseconds until the next arrival or the end of a think time; at most 200, for the display. */
static int wait_ms(const struct run *run)
{
    const bool can_start =
        !run->stop_starting && run->next_unit < run->o->n_requests && has_place(run);
    int64_t due = can_start ? run->next_due : INT64_MAX;
    for (int i = 0; run->n_thinking > 0 && i < run->n_conns; i++) {
        const int64_t until = run->conns[i]->thinks_until;
        if (until > 0 && until < due) {
            due = until;
        }
    }
    const int64_t ms = due == INT64_MAX ? 200 : (due - run->now) / 1000000;
    if (ms < 0) {
        return 0;
    }
    return ms > 200 ? 200 : (int)ms;
}

/* After an interrupt no request is started, and running ones are counted as interrupted. */
static void loop(struct run *run)
{
    const bool tty = isatty(2);
    struct epoll_event events[MAX_EVENTS];
    int64_t last_check = 0;
    for (;;) {
        run->now = clock_now_ns() - run->start;
        if (interrupted || (run->o->duration > 0 && (double)run->now > run->o->duration * 1e9)) {
            run->stop_starting = true;
        }
        for (int i = 0; interrupted && i < run->n_conns; i++) {
            if (run->conns[i]->rec != NULL) {
                finish(run->conns[i], OUTCOME_INTERRUPTED);
            }
        }
        wake_thinkers(run);
        start_due(run);
        if (run->n_in_flight == 0 && run->n_thinking == 0 &&
            (run->stop_starting || run->next_unit == run->o->n_requests)) {
            break;
        }
        const int n = epoll_wait(run->epoll, events, MAX_EVENTS, wait_ms(run));
        run->now = clock_now_ns() - run->start;
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if ((events[i].events & EPOLLOUT) && c->fd >= 0 && !(events[i].events & EPOLLERR)) {
                send_some(c);
            }
            if ((events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) && c->fd >= 0) {
                receive(c);
            }
        }
        if (run->now - last_check > 200000000) {
            check_timeouts(run);
            last_check = run->now;
        }
        if (tty && run->now - run->last_print > 500000000) {
            print_progress(run, false);
        }
    }
    run->r->wall_s = (double)run->now / 1e9;
    if (tty) {
        print_progress(run, true);
    }
}

static enum status resolve(const struct bench_options *o, struct addrinfo **a, struct err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    const int rc = getaddrinfo(o->peer.host, o->peer.port, &hints, a);
    if (rc != 0) {
        return err_set(err, ERR_IO, "%s: %s", o->peer.host, gai_strerror(rc));
    }
    return OK;
}

/* Raises the limit on open files to what the connections need. */
enum status bench_run(const struct bench_options *o, const struct bench_load *load,
                      struct bench_results *r, struct err *err)
{
    *r = (struct bench_results){0};
    struct run run = {.o = o, .load = load, .r = r};
    run.n_turns = r->n_turns = bench_has_turns(o) ? o->turns : 1;
    r->n_records = o->n_requests * run.n_turns;
    r->records = mem_try_calloc((size_t)r->n_records, sizeof *r->records);
    if (r->records == NULL) {
        return err_set(err, ERR_NOMEM, "no memory for %lld requests", (long long)r->n_records);
    }
    TRY(resolve(o, &run.address, err));
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    run.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (run.epoll < 0) {
        freeaddrinfo(run.address);
        return err_set(err, ERR_IO, "epoll: %s", strerror(errno));
    }
    const struct sigaction action = {.sa_handler = on_sigint, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    run.start = clock_now_ns();
    loop(&run);
    for (int i = 0; i < run.n_conns; i++) {
        struct conn *c = run.conns[i];
        close_fd(c);
        buf_deinit(&c->out);
        buf_deinit(&c->history);
        buf_deinit(&c->answer);
        http_in_deinit(&c->in);
        events_deinit(&c->events);
        free(c);
    }
    free(run.conns);
    close(run.epoll);
    freeaddrinfo(run.address);
    return OK;
}

void bench_results_deinit(struct bench_results *r)
{
    free(r->records);
    free(r->itl_ms);
}

/* ---- one blocking GET ---- */

static void append(void *arg, const char *bytes, size_t n_bytes)
{
    buf_put(arg, bytes, n_bytes);
}

/* Sends a single request on its own connection. */
enum status bench_get(const struct bench_options *o, const char *path, struct buf *body,
                      struct err *err)
{
    int status;
    const struct client_request request = {
        .method = "GET", .path = path, .key = o->api_key, .timeout_s = 10};
    enum status st = client_call(&o->peer, &request, append, body, &status, err);
    if (st == OK && status != 200) {
        st = err_set(err, ERR_IO, "status %d", status);
    }
    if (st != OK) {
        return err_prefix(err, st, "%s%s", o->url, path);
    }
    return OK;
}
