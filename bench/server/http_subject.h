// SPDX-License-Identifier: Apache-2.0
/* Part of http_bench: the server under test. It is the whole front end (server/http/http.h) with
 * handlers that simulate an engine: streams of time-stamped tokens, small requests answered at once
 * or by another thread, and prompts that occupy the pool. Included once.
 * Thread: subject_main is a process of its own; functions run on its loop's thread, unless stated
 * otherwise. */
#ifndef SLUICE_BENCH_SERVER_HTTP_SUBJECT_H
#define SLUICE_BENCH_SERVER_HTTP_SUBJECT_H

#include "bench/server/http_load.h"
#include "server/api/reply.h"
#include "server/http/http.h"

#include <signal.h>

enum { MAX_STREAMS = 10000, MAX_CONNECTIONS = MAX_STREAMS + 200 };

struct slot {
    struct http_request *req;
    long long sent_step;
};

struct pending { // a small request waiting for the engine
    struct http_request *req;
    struct pending *next;
    bool ready;
};

/* The server under test and the simulated engine. */
static struct bench_server {
    struct http_server *http;
    struct steps steps;
    struct slot *slots;
    int n_slots;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct pending *inbox, *outbox;
} bs = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void wake_http(void *arg)
{
    http_wake(arg);
}

/* Removes a stream: the last slot is moved to its place. */
static void on_stream_gone(struct http_request *req, enum http_gone why, void *arg)
{
    (void)why;
    (void)arg;
    for (int i = 0; i < bs.n_slots; i++) {
        if (bs.slots[i].req == req) {
            bs.slots[i] = bs.slots[--bs.n_slots];
            bs.steps.side->n_streams--;
            break;
        }
    }
    http_stream_end(req);
}

/* Starts a stream, whose first token is that of the next step. */
static void get_stream(struct http_request *req, void *arg)
{
    static const struct http_events events = {.on_gone = on_stream_gone};
    (void)arg;
    http_defer(req, &events, NULL);
    http_stream_begin(req, NULL);
    http_stream_write(req, ": open\n\n", 8);
    bs.slots[bs.n_slots++] = (struct slot){req, bs.steps.n};
    bs.steps.side->n_streams++;
}

/* A stream that is more than 200 steps late skips the oldest. */
static int advance(struct slot *slot, long long n)
{
    int n_events = 0;
    if (n - slot->sent_step > 200) {
        slot->sent_step = n - 200;
    }
    for (; slot->sent_step < n; n_events++) {
        slot->sent_step++;
        char *to = http_stream_reserve(slot->req, MAX_EVENT);
        long long stamp = bs.steps.stamps[slot->sent_step % N_STAMPS];
        http_stream_commit(slot->req, format_event(to, stamp));
    }
    return n_events;
}

/* Sends the replies that the engine's thread has made; runs on the loop's thread. */
static void send_replies(void)
{
    pthread_mutex_lock(&bs.lock);
    struct pending *list = bs.outbox;
    bs.outbox = NULL;
    pthread_mutex_unlock(&bs.lock);
    while (list) {
        struct pending *p = list;
        list = p->next;
        if (p->req) {
            reply_text(p->req, 200,
                       "{\"object\":\"text_completion\",\"choices\":[{\"text\":\"x\"}]}");
        }
        free(p);
    }
}

/* Called once for any number of steps, like the wake callback of an engine. */
static void on_wake(void *arg)
{
    (void)arg;
    send_replies();
    long long step = bs.steps.n, n_events = 0;
    for (int i = 0; i < bs.n_slots; i++) {
        if (!http_stream_is_full(bs.slots[i].req) && bs.slots[i].sent_step < step) {
            n_events += advance(&bs.slots[i], step);
        }
    }
    bs.steps.side->n_events += n_events;
    publish_cpu(bs.steps.side);
    if (n_events > 0 || bs.n_slots > 0) {
        steps_done(&bs.steps, step);
    }
}

static void post_sync(struct http_request *req, void *arg)
{
    (void)arg;
    reply_text(req, 200, "{\"object\":\"text_completion\",\"choices\":[{\"text\":\"x\"}]}");
}

/* The engine may answer the request at the same time, so a lock is needed. */
static void on_pending_gone(struct http_request *req, enum http_gone why, void *arg)
{
    (void)why;
    struct pending *p = arg;
    pthread_mutex_lock(&bs.lock);
    p->req = NULL; // the engine's answer will be dropped
    pthread_mutex_unlock(&bs.lock);
    reply_errorf(req, 503, "cancelled", NULL, "gone");
}

/* Wakes the engine only if it may be asleep. */
static void post_engine(struct http_request *req, void *arg)
{
    static const struct http_events events = {.on_gone = on_pending_gone};
    (void)arg;
    struct pending *p = xcalloc(1, sizeof *p);
    p->req = req;
    http_defer(req, &events, p);
    pthread_mutex_lock(&bs.lock);
    bool was_empty = !bs.inbox;
    p->next = bs.inbox;
    bs.inbox = p;
    if (was_empty) {
        pthread_cond_signal(&bs.changed);
    }
    pthread_mutex_unlock(&bs.lock);
}

/* The engine for small requests: answers all pending ones, then wakes the loop once. */
static void *answer_main(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&bs.lock);
    while (!bs.steps.side->quit) {
        if (!bs.inbox) {
            struct timespec t;
            clock_gettime(CLOCK_REALTIME, &t);
            t.tv_sec++;
            pthread_cond_timedwait(&bs.changed, &bs.lock, &t);
            continue;
        }
        struct pending *list = bs.inbox, *last = list;
        bs.inbox = NULL;
        while (last->next) {
            last = last->next;
        }
        last->next = bs.outbox;
        bs.outbox = list;
        pthread_mutex_unlock(&bs.lock);
        http_wake(bs.http);
        pthread_mutex_lock(&bs.lock);
    }
    pthread_mutex_unlock(&bs.lock);
    return NULL;
}

/* A prompt's work in the pool: one pass over its bytes that takes as long as a parser and
 * tokenizer. */
static void chew(void *arg)
{
    struct http_request *req = arg;
    size_t n;
    const char *body = http_body(req, &n);
    volatile unsigned sum = 0;
    for (int pass = 0; pass < 10; pass++) {
        for (size_t i = 0; i < n; i++) {
            sum += (unsigned char)body[i];
        }
    }
}

static void chewed(void *arg)
{
    bs.steps.side->n_prompts++;
    reply_text(arg, 200, "{}");
}

static void post_prompt(struct http_request *req, void *arg)
{
    static const struct http_events events = {NULL, NULL};
    (void)arg;
    http_defer(req, &events, NULL);
    http_pool_run(bs.http, chew, chewed, req);
}

/* /sync answers at once, /engine through another thread. */
static const struct http_route routes[] = {
    {"GET", "/stream", get_stream, 0, 0, 0},
    {"POST", "/sync", post_sync, 0, 0, HTTP_ROUTE_JSON},
    {"POST", "/engine", post_engine, 0, 0, HTTP_ROUTE_JSON},
    {"POST", "/prompt", post_prompt, 0, 0, 0},
    {0},
};

/* Ends the process when the benchmark sets the flag. */
static void *watch_main(void *arg)
{
    struct side *side = arg;
    while (!side->quit) {
        side->rss_bytes = rss_bytes();
        nap(50000000);
    }
    kill(getpid(), SIGTERM);
    return NULL;
}

/* Pool threads inherit the CPU affinity of the thread that first uses the pool. */
static void no_work(void *arg)
{
    (void)arg;
}

static void subject_main(struct side *side, int max)
{
    (void)max;
    const char *listen[] = {"127.0.0.1:0"};
    struct http_options o = {.listen = listen,
                             .n_listen = 1,
                             .routes = routes,
                             .on_wake = on_wake,
                             .log_fd = -1,
                             .max_connections = MAX_CONNECTIONS,
                             .signals = true,
                             .drain_timeout_ms = 1};
    struct err err = {""};
    reply_set_options(&o);
    if (http_server_open(&o, &bs.http, &err) != OK) {
        fprintf(stderr, "http_bench: %s\n", err.text);
        exit(1);
    }
    bs.slots = xcalloc(MAX_CONNECTIONS, sizeof *bs.slots);
    bs.steps.side = side;
    bs.steps.wake = wake_http;
    bs.steps.arg = bs.http;
    pthread_mutex_init(&bs.steps.lock, NULL);
    pthread_cond_init(&bs.steps.changed, NULL);
    side->port = atoi(strrchr(http_server_address(bs.http, 0), ':') + 1);
    pthread_t threads[3];
    pthread_create(&threads[0], NULL, steps_main, &bs.steps);
    pthread_create(&threads[1], NULL, answer_main, NULL);
    pthread_create(&threads[2], NULL, watch_main, side);
    http_pool_run(bs.http, no_work, no_work, NULL);
    nap(20000000);
    pin(0); // called last, so that the threads created above do not inherit it
    http_server_run(bs.http);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    http_server_close(bs.http);
}

#endif
