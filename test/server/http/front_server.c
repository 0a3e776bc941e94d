// SPDX-License-Identifier: Apache-2.0
/* A small program on the HTTP front end, for test_http*.py: handlers of every kind, and an "engine"
 * thread that makes tokens at a given rate. Arguments are --name value pairs of http_options. It
 * prints "listening ADDRESS" for each listener. */
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "server/api/reply.h"
#include "server/http/http.h"

#include <inttypes.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A request that is answered later: a stream, a job on the pool, or a reply by timer. n_tokens is
 * -1 if it is not a stream. */
struct job {
    struct http_request *req;
    struct http_timer timer;
    struct job *next, **link; // links of the engine's list, protected by its lock
    long n_tokens, n_made, n_sent, n_bytes;
    int64_t period_ns, next_ns;
    bool cancelled, running;
    int fail_at; // fail with an error event after so many tokens; -1: never
    bool pooled_upper;
    char *text;
    size_t n_text;
};

/* Counters are read by tests through /stats. `lock` protects the list and n_made, which
 * the engine thread writes; everything else belongs to the loop thread. */
static struct app {
    struct http_server *server;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job *jobs;
    bool stop;
    bool loading;
    long n_handled, n_items, n_gone, n_gone_slow, n_gone_shutdown, n_done, n_live;
    int64_t gone_ns; // when on_gone was last called
} app = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* Tests pass parameters in the query. */
static long arg_long(struct http_request *req, const char *name, long otherwise)
{
    const char *text = http_query(req, name);
    if (text && *text) {
        return strtol(text, NULL, 10);
    }
    return otherwise;
}

/* --- The engine --- */

/* Called with the lock held. *next: when the next token is due. */
static bool make_tokens(int64_t now, int64_t *next)
{
    bool made = false;
    *next = now + 100000000;
    for (struct job *j = app.jobs; j; j = j->next) {
        if (j->n_made < j->n_tokens && j->next_ns <= now) {
            j->n_made++;
            j->next_ns = now + j->period_ns;
            made = true;
        }
        if (j->n_made < j->n_tokens && j->next_ns < *next) {
            *next = j->next_ns;
        }
    }
    return made;
}

/* Makes tokens when they are due and wakes the loop, as an engine does. */
static void *engine_main(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&app.lock);
    while (!app.stop) {
        int64_t next;
        if (make_tokens(clock_now_ns(), &next)) {
            pthread_mutex_unlock(&app.lock);
            http_wake(app.server);
            pthread_mutex_lock(&app.lock);
        }
        int64_t wait_ns = next - clock_now_ns();
        if (wait_ns > 0) {
            struct timespec t;
            clock_gettime(CLOCK_REALTIME, &t);
            t.tv_nsec += wait_ns;
            t.tv_sec += t.tv_nsec / 1000000000;
            t.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&app.changed, &app.lock, &t);
        }
    }
    pthread_mutex_unlock(&app.lock);
    return NULL;
}

/* Adds a job to the engine's list; called on the loop's thread. */
static void engine_add(struct job *j)
{
    pthread_mutex_lock(&app.lock);
    j->next = app.jobs;
    j->link = &app.jobs;
    if (j->next) {
        j->next->link = &j->next;
    }
    app.jobs = j;
    j->running = true;
    app.n_live++;
    pthread_cond_signal(&app.changed);
    pthread_mutex_unlock(&app.lock);
}

/* A job may be in the engine's list, or have left it. */
static void end_job(struct job *j)
{
    pthread_mutex_lock(&app.lock);
    if (j->running) {
        *j->link = j->next;
        if (j->next) {
            j->next->link = j->link;
        }
        app.n_live--;
    }
    pthread_mutex_unlock(&app.lock);
    http_timer_stop(app.server, &j->timer);
    app.n_done++;
    free(j->text);
    free(j);
}

/* The terminal callback of a client that has gone. A job on the pool must live until the
 * pool returns it. */
static void on_gone(struct http_request *req, enum http_gone why, void *arg)
{
    app.n_gone += why == HTTP_GONE_CLOSED;
    app.n_gone_slow += why == HTTP_GONE_SLOW;
    app.n_gone_shutdown += why == HTTP_GONE_SHUTDOWN;
    app.gone_ns = clock_now_ns();
    struct job *j = arg;
    if (j->pooled_upper) { // the pool still has it, and will make the terminal call
        j->cancelled = true;
        return;
    }
    struct call_error e = {.status = 503, .code = "cancelled"};
    if (j->n_tokens >= 0) {
        http_stream_end(req);
    } else {
        reply_error(req, &e);
    }
    end_job(j);
}

static const struct http_events events = {.on_gone = on_gone};

/* Makes the job of a deferred request; it is freed when the request ends. */
static struct job *new_job(struct http_request *req)
{
    struct job *j = xcalloc(1, sizeof *j);
    j->req = req;
    j->n_tokens = -1;
    app.n_handled++;
    http_defer(req, &events, j);
    return j;
}

/* The event contains its number and time, so that tests notice gaps and delays. */
static void send_token(struct job *j)
{
    char text[64];
    int n = snprintf(text, sizeof text, "{\"i\":%ld,\"t\":%" PRId64 ",\"x\":\"", j->n_sent,
                     clock_now_ns());
    size_t n_all = (size_t)n + (size_t)j->n_bytes + 2;
    char *event = xmalloc(n_all);
    memcpy(event, text, (size_t)n);
    memset(event + n, 'a' + (int)(j->n_sent % 26), (size_t)j->n_bytes);
    memcpy(event + n_all - 2, "\"}", 2);
    reply_event(j->req, event, n_all);
    free(event);
    j->n_sent++;
}

/* Sends the tokens that the engine has made for one stream. False if the stream has ended. */
static bool advance(struct job *j, long n_made)
{
    struct call_error e = {.status = 500, .code = "internal_error", .message = "token failed"};
    while (j->n_sent < n_made) {
        if (j->fail_at >= 0 && j->n_sent == j->fail_at) {
            reply_stream_end(j->req, &e, true);
            end_job(j);
            return false;
        }
        send_token(j);
        if (http_is_gone(j->req)) {
            return true; // on_gone will be called
        }
    }
    if (j->n_sent == j->n_tokens) {
        reply_stream_end(j->req, NULL, true);
        end_job(j);
        return false;
    }
    return true;
}

/* Runs on the loop thread after http_wake. The lock is released while a stream is written,
 * and a stream that ends removes only its own job, so `next` stays valid. */
static void on_wake(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&app.lock);
    for (struct job *j = app.jobs, *next; j; j = next) {
        next = j->next;
        long n_made = j->n_made;
        pthread_mutex_unlock(&app.lock);
        advance(j, n_made);
        pthread_mutex_lock(&app.lock);
    }
    pthread_mutex_unlock(&app.lock);
}

/* --- Handlers --- */

/* Handlers on the loop thread. */
static void get_hello(struct http_request *req, void *arg)
{
    (void)arg;
    app.n_handled++;
    reply_text(req, 200, "{\"hello\":\"world\"}");
}

static void post_echo(struct http_request *req, void *arg)
{
    (void)arg;
    app.n_handled++;
    size_t n;
    const char *body = http_body(req, &n);
    http_reply(req, 200, "application/octet-stream", or_empty(body), n);
}

/* Work on the pool, which can be slow. */
static void to_upper(void *arg)
{
    struct job *j = arg;
    for (size_t i = 0; i < j->n_text; i++) {
        j->text[i] = (char)(j->text[i] >= 'a' && j->text[i] <= 'z' ? j->text[i] - 32 : j->text[i]);
    }
    usleep((unsigned)(j->period_ns / 1000));
}

static void upper_done(void *arg)
{
    struct job *j = arg;
    http_reply(j->req, 200, "text/plain", j->text, j->n_text);
    end_job(j);
}

static void post_upper(struct http_request *req, void *arg)
{
    (void)arg;
    struct job *j = new_job(req);
    size_t n;
    const char *body = http_body(req, &n);
    j->text = xcalloc(1, n + 1);
    memcpy(j->text, or_empty(body), n);
    j->n_text = n;
    j->pooled_upper = true;
    j->period_ns = arg_long(req, "ms", 0) * 1000000;
    http_pool_run(app.server, to_upper, upper_done, j);
}

/* n tokens of `bytes` bytes, `rate` per second; fail=K: an error event after K. */
static void get_stream(struct http_request *req, void *arg)
{
    (void)arg;
    struct job *j = new_job(req);
    j->n_tokens = arg_long(req, "n", 5);
    j->n_bytes = arg_long(req, "bytes", 100);
    j->fail_at = (int)arg_long(req, "fail", -1);
    j->period_ns = 1000000000 / arg_long(req, "rate", 1000);
    j->next_ns = clock_now_ns() + arg_long(req, "first_ms", 0) * 1000000;
    http_body_free(req);
    http_stream_begin(req, NULL);
    engine_add(j);
}

static void late_due(struct http_timer *timer, void *arg)
{
    (void)timer;
    struct job *j = arg;
    reply_text(j->req, 200, "{\"late\":true}");
    end_job(j);
}

static void get_late(struct http_request *req, void *arg)
{
    (void)arg;
    struct job *j = new_job(req);
    http_timer_start(app.server, &j->timer, arg_long(req, "ms", 100), late_due, j);
}

/* Ends a stream with an error, either before or after its head was sent. */
static void refuse_due(struct http_timer *timer, void *arg)
{
    (void)timer;
    struct job *j = arg;
    struct call_error e = {.status = 503, .code = "server_overloaded", .retry_after_s = 7};
    reply_stream_end(j->req, &e, true);
    end_job(j);
}

/* A stream that is refused late: by a status before the head is sent, by an error event
 * afterwards. */
static void get_refused(struct http_request *req, void *arg)
{
    (void)arg;
    struct job *j = new_job(req);
    j->n_tokens = 0;
    http_stream_begin(req, NULL);
    http_timer_start(app.server, &j->timer, arg_long(req, "ms", 100), refuse_due, j);
}

/* Never answers: the request ends when the client leaves or the server shuts down. */
static void get_hang(struct http_request *req, void *arg)
{
    (void)arg;
    new_job(req);
}

/* Replies larger than all buffers. */
static void get_big(struct http_request *req, void *arg)
{
    (void)arg;
    app.n_handled++;
    size_t n = (size_t)arg_long(req, "n", 1000);
    struct buf b;
    buf_init(&b, 1u << 30);
    if (buf_reserve(&b, n)) {
        memset(b.data, 'x', n);
        b.n_bytes = n;
    }
    http_reply_buf(req, 200, "text/plain", &b);
}

static void item(struct http_request *req, void *arg)
{
    (void)arg;
    app.n_handled++;
    app.n_items++;
    const char *q = http_query(req, "q");
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_puts(&b, "{\"id\":");
    buf_put_json(&b, http_param(req), strlen(http_param(req)));
    buf_puts(&b, ",\"q\":");
    buf_put_json(&b, q ? q : "none", strlen(q ? q : "none"));
    buf_puts(&b, "}");
    reply_json(req, 200, &b);
}

/* Counters, so that tests can wait for what happens inside. */
static void get_stats(struct http_request *req, void *arg)
{
    (void)arg;
    struct http_stats s;
    http_server_stats(app.server, &s);
    struct buf b;
    buf_init(&b, 4096);
    buf_printf(&b,
               "{\"handled\":%ld,\"gone\":%ld,\"slow\":%ld,\"shutdown\":%ld,\"done\":%ld,"
               "\"live\":%ld,\"gone_ns\":%" PRId64 ",\"now_ns\":%" PRId64 ",\"items\":%ld,",
               app.n_handled, app.n_gone, app.n_gone_slow, app.n_gone_shutdown, app.n_done,
               app.n_live, app.gone_ns, clock_now_ns(), app.n_items);
    buf_printf(
        &b,
        "\"connections\":%u,\"active\":%u,\"streams\":%u,\"refused\":%" PRIu64 ",\"bad\":%" PRIu64
        ",\"held_body\":%zu,\"held_stream\":%zu,\"short\":%" PRIu64 ",\"state\":%d}",
        s.n_connections, s.n_active, s.n_streams, s.n_refused, s.n_bad_requests, s.held_body_bytes,
        s.held_stream_bytes, s.n_short_sends, (int)http_server_state(app.server));
    reply_json(req, 200, &b);
}

static void get_health(struct http_request *req, void *arg)
{
    (void)arg;
    bool red = http_server_state(app.server) != HTTP_RUNNING;
    reply_text(req, red ? 503 : 200, red ? "{\"status\":\"draining\"}" : "{\"status\":\"ok\"}");
}

/* Requests that are still running at the drain's deadline get an error event. */
static void on_drain_deadline(void *arg)
{
    (void)arg;
    struct call_error e = {.status = 503, .code = "server_draining", .message = "shutting down"};
    pthread_mutex_lock(&app.lock);
    while (app.jobs) {
        struct job *j = app.jobs;
        pthread_mutex_unlock(&app.lock);
        reply_stream_end(j->req, &e, true);
        end_job(j);
        pthread_mutex_lock(&app.lock);
    }
    pthread_mutex_unlock(&app.lock);
}

/* Routes with scope 1 need the key. */
static bool authorize(struct http_request *req, const struct http_route *route, void *arg)
{
    (void)route;
    (void)arg;
    const char *key = http_header(req, "Authorization");
    if (key && strcmp(key, "Bearer secret") == 0) {
        return true;
    }
    http_reply_header(req, "WWW-Authenticate", "Bearer");
    reply_errorf(req, 401, "invalid_api_key", NULL, "Incorrect API key provided.");
    return false;
}

/* For systemd's watchdog. */
static bool is_healthy(void *arg)
{
    (void)arg;
    return true;
}

static const struct http_route routes[] = {
    {"GET", "/hello", get_hello, 0, 0, 0},
    {"POST", "/hello", get_hello, 0, 0, 0},
    {"POST", "/echo", post_echo, 0, 0, 0},
    {"POST", "/json", post_echo, 0, 0, HTTP_ROUTE_JSON},
    {"POST", "/small", post_echo, 0, 1000, 0},
    {"POST", "/upper", post_upper, 0, 0, 0},
    {"POST", "/secret", post_echo, 1, 0, 0},
    {"GET", "/stream", get_stream, 0, 0, 0},
    {"POST", "/stream", get_stream, 0, 0, 0},
    {"GET", "/late", get_late, 0, 0, 0},
    {"GET", "/refused", get_refused, 0, 0, 0},
    {"GET", "/hang", get_hang, 0, 0, 0},
    {"GET", "/big", get_big, 0, 0, 0},
    {"GET", "/items/{id}", item, 0, 0, 0},
    {"DELETE", "/items/{id}", item, 0, 0, 0},
    {"POST", "/items/{id}/cancel", item, 0, 0, 0},
    {"GET", "/stats", get_stats, 0, 0, HTTP_ROUTE_ALWAYS | HTTP_ROUTE_QUIET},
    {"GET", "/health", get_health, 0, 0, HTTP_ROUTE_ALWAYS | HTTP_ROUTE_QUIET},
    {0},
};

/* Options by name. */
static const struct {
    const char *name;
    size_t offset;
    bool is_size;
} numbers[] = {
#define NUMBER(field, is_size) {"--" #field, offsetof(struct http_options, field), is_size}
    NUMBER(max_body_bytes, true),    NUMBER(max_body_total_bytes, true),
    NUMBER(max_header_bytes, true),  NUMBER(max_connections, false),
    NUMBER(max_per_address, false),  NUMBER(stream_soft_bytes, true),
    NUMBER(stream_hard_bytes, true), NUMBER(header_timeout_ms, false),
    NUMBER(body_timeout_ms, false),  NUMBER(idle_timeout_ms, false),
    NUMBER(stall_timeout_ms, false), NUMBER(head_delay_ms, false),
    NUMBER(keep_alive_ms, false),    NUMBER(drain_delay_ms, false),
    NUMBER(drain_timeout_ms, false), NUMBER(dead_peer_ms, false),
};

static const char *listens[16];

static void read_option(struct http_options *o, const char *name, const char *value)
{
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (strcmp(name, numbers[i].name) == 0) {
            void *at = (char *)o + numbers[i].offset;
            if (numbers[i].is_size) {
                *(size_t *)at = strtoul(value, NULL, 10);
            } else {
                *(unsigned *)at = (unsigned)strtoul(value, NULL, 10);
            }
            return;
        }
    }
    if (strcmp(name, "--listen") == 0) {
        listens[o->n_listen++] = value;
    } else if (strcmp(name, "--cors_origins") == 0) {
        o->cors_origins = value;
    } else if (strcmp(name, "--root_path") == 0) {
        o->root_path = value;
    } else if (strcmp(name, "--tls_cert") == 0) {
        o->tls_cert = value;
    } else if (strcmp(name, "--tls_key") == 0) {
        o->tls_key = value;
    } else if (strcmp(name, "--tolerate_half_close") == 0) {
        o->tolerate_half_close = true;
    } else if (strcmp(name, "--log_fd") == 0) {
        o->log_fd = (int)strtol(value, NULL, 10);
    } else {
        fprintf(stderr, "what is %s?\n", name);
        exit(2);
    }
}

/* Runs until a signal; prints the addresses, since tests use port 0. */
int main(int argc, char **argv)
{
    struct http_options o = {
        .listen = listens,
        .routes = routes,
        .signals = true,
        .systemd = true,
        .log_fd = -1,
        .on_wake = on_wake,
        .authorize = authorize,
        .on_drain_deadline = on_drain_deadline,
    };
    for (int i = 1; i + 1 < argc; i += 2) {
        read_option(&o, argv[i], argv[i + 1]);
    }
    struct err err = {""};
    reply_set_options(&o);
    if (http_server_open(&o, &app.server, &err) != OK) {
        fprintf(stderr, "front_server: %s\n", err.text);
        return 1;
    }
    for (size_t i = 0; http_server_address(app.server, i); i++) {
        printf("listening %s\n", http_server_address(app.server, i));
    }
    printf("libmicrohttpd %s\n", MHD_get_version());
    fflush(stdout);
    http_set_watchdog(app.server, is_healthy, NULL);
    http_notify(app.server, "READY=1");
    pthread_t engine;
    pthread_create(&engine, NULL, engine_main, NULL);
    int rc = http_server_run(app.server);
    pthread_mutex_lock(&app.lock);
    app.stop = true;
    pthread_cond_signal(&app.changed);
    pthread_mutex_unlock(&app.lock);
    pthread_join(engine, NULL);
    http_server_close(app.server);
    return rc;
}
