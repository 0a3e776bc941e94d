// SPDX-License-Identifier: Apache-2.0
/* What tests with crowds of streams share: a server with a scripted engine (api_server.c), and one
 * thread that reads many streams through epoll and compares each text with that of an idle server.
 * In C, because the client must cost less than the server.
 * Thread: a crowd belongs to the thread that reads it; the functions on a server, any. */
#ifndef SLUICE_TEST_SERVER_API_STREAMS_BED_H
#define SLUICE_TEST_SERVER_API_STREAMS_BED_H

#include "bench/load/events.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "server/client/client.h"
#include "server/client/http_in.h"
#include "test/check.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    N_PROMPTS = 16, // different ones, so that mixed-up streams would differ
    N_EVENTS = 256,
};

static inline const char *tree(void)
{
    const char *path = getenv("SLUICE_BUILD");
    return path ? path : "build/release";
}

/* Under a sanitizer, times are not checked. */
static inline bool is_slow(void)
{
    return strstr(tree(), "asan") || strstr(tree(), "tsan");
}

static inline void nap_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* ---- a server ---------------------------------------------------------------------------------
 */

struct server {
    pid_t pid;
    int port;
};

/* The port after "listening on" in the server's messages; 0: not there yet. */
static inline int port_in(const char *path)
{
    char line[512];
    int port = 0;
    FILE *f = fopen(path, "r");
    while (f && port == 0 && fgets(line, sizeof line, f)) {
        const char *colon = strrchr(line, ':');
        if (strstr(line, "listening on") && colon) {
            port = atoi(colon + 1);
        }
    }
    if (f) {
        fclose(f);
    }
    return port;
}

static inline void append(void *arg, const char *bytes, size_t n)
{
    buf_put(arg, bytes, n);
}

/* One request; the answer's body is appended. Returns its status, 0 if there is none. */
static inline int ask(int port, const char *path, const char *body, struct buf *answer)
{
    struct client_peer peer = {.host = "127.0.0.1"};
    struct client_request r = {
        .method = body ? "POST" : "GET", .path = path, .body = body, .timeout_s = 60};
    struct err err = {""};
    int status = 0;
    snprintf(peer.port, sizeof peer.port, "%d", port);
    return client_call(&peer, &r, append, answer, &status, &err) == OK ? status : 0;
}

/* Starts a server whose engine takes step_us for each step. */
static inline bool server_start(struct server *s, int step_us)
{
    char program[512], step[16], path[] = "/tmp/sluice-streams-XXXXXX";
    snprintf(program, sizeof program, "%s/test/server/api_server", tree());
    snprintf(step, sizeof step, "%d", step_us);
    int fd = mkstemp(path);
    *s = (struct server){.pid = fork()};
    if (s->pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        setenv("FAKE_STEP_US", step, 1);
        setenv("FAKE_LANES", "12000", 1);
        setenv("FAKE_QUEUE", "12000", 1);
        dup2(null, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
        execl(program, program, "models/demo", "--port", "0", "--drain-delay", "0",
              "--max-connections", "12000", "--max-num-queued-reqs", "12000", (char *)NULL);
        _exit(127);
    }
    close(fd);
    for (int i = 0; i < 2400 && s->port == 0 && waitpid(s->pid, NULL, WNOHANG) == 0; i++) {
        nap_ms(25);
        s->port = port_in(path);
    }
    unlink(path);
    struct buf ignored;
    buf_init(&ignored, 4096);
    for (int i = 0; i < 2400 && ask(s->port, "/health/ready", NULL, &ignored) != 200; i++) {
        nap_ms(25);
    }
    buf_deinit(&ignored);
    return s->port > 0;
}

/* The exit status; -1: it had to be killed. */
static inline int server_stop(const struct server *s)
{
    int status;
    kill(s->pid, SIGTERM);
    for (int i = 0; i < 1600; i++) {
        if (waitpid(s->pid, &status, WNOHANG) == s->pid) {
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        }
        nap_ms(25);
    }
    kill(s->pid, SIGKILL);
    waitpid(s->pid, &status, 0);
    return -1;
}

static inline double rss_mb(const struct server *s)
{
    char path[64];
    long size, rss = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)s->pid);
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%ld %ld", &size, &rss) != 2) {
            rss = 0;
        }
        fclose(f);
    }
    return (double)rss * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

/* CPU time of a process with all its threads. */
static inline double cpu_s(pid_t pid)
{
    char path[64], line[1024];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    const char *after = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    if (after) {
        sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    }
    if (f) {
        fclose(f);
    }
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* Time for which a process's main thread was ready to run but had no processor. */
static inline double starved_ms(pid_t pid)
{
    char path[64];
    unsigned long long ran, waited = 0;
    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)pid);
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%llu %llu", &ran, &waited) != 2) {
            waited = 0;
        }
        fclose(f);
    }
    return (double)waited / 1e6;
}

/* A metric without labels. */
static inline double metric(int port, const char *name)
{
    struct buf text;
    char line[128];
    buf_init(&text, 16 << 20);
    ask(port, "/metrics", NULL, &text);
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = text.data ? strstr(text.data, line) : NULL;
    double value = at ? atof(at + strlen(line)) : -1;
    buf_deinit(&text);
    return value;
}

/* ---- a crowd of streams ------------------------------------------------------------------------
 */

/* What all streams of a kind ask for, and the texts that an idle server gave. */
struct kind {
    int max_tokens, logprobs; // logprobs 0: none
    char *wanted[N_PROMPTS];
};

struct times {
    double *ms;
    size_t n, cap;
};

struct stream {
    struct http_in in;
    struct events events;
    struct buf text;
    const struct kind *kind;
    struct times *gaps; // if set: time between events
    int fd, prompt;
    int64_t last_ns;
    bool over, good;
};

struct crowd {
    int ep, port;
    struct stream *streams;
    int n, n_open, n_over, n_good;
};

static inline void note(struct times *t, double ms)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 1024;
        t->ms = xrealloc(t->ms, t->cap * sizeof *t->ms);
    }
    t->ms[t->n++] = ms;
}

static inline int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The share may be 1: the maximum. */
static inline double quantile(struct times *t, double share)
{
    if (t->n == 0) {
        return -1;
    }
    qsort(t->ms, t->n, sizeof *t->ms, by_value);
    return t->ms[lesser((size_t)(share * (double)t->n), t->n - 1)];
}

static inline void put_body(struct buf *b, const struct kind *kind, int prompt, bool streamed)
{
    buf_printf(b, "{\"prompt\":\"crowd %d of streams\",\"max_tokens\":%d,\"ignore_eos\":true",
               prompt, kind->max_tokens);
    if (kind->logprobs > 0) {
        buf_printf(b, ",\"logprobs\":%d", kind->logprobs);
    }
    buf_printf(b, ",\"stream\":%s}", streamed ? "true" : "false");
}

/* Gets the texts, as they stand between the quotes of the JSON, from a server that has nothing else
 * to do. */
static inline bool learn(struct kind *kind)
{
    struct server s;
    bool good = server_start(&s, 20);
    for (int i = 0; i < N_PROMPTS && good; i++) {
        struct buf body, answer;
        buf_init(&body, 4096);
        buf_init(&answer, 16 << 20);
        put_body(&body, kind, i, false);
        good = ask(s.port, "/v1/completions", body.data, &answer) == 200;
        char *from = good ? strstr(answer.data, "\"text\":\"") : NULL;
        char *to = from ? from + 8 : NULL;
        while (to && *to && *to != '"') {
            to += *to == '\\' ? 2 : 1;
        }
        good = to && *to == '"';
        kind->wanted[i] = good ? xstrndup(from + 8, (size_t)(to - from - 8)) : NULL;
        buf_deinit(&body);
        buf_deinit(&answer);
    }
    return server_stop(&s) == 0 && good;
}

static inline void forget(struct kind *kind)
{
    for (int i = 0; i < N_PROMPTS; i++) {
        free(kind->wanted[i]);
    }
}

static inline void on_text(void *arg)
{
    struct stream *st = arg;
    int64_t now_ns = clock_now_ns();
    if (st->gaps && st->last_ns > 0) {
        note(st->gaps, (double)(now_ns - st->last_ns) / 1e6);
    }
    st->last_ns = now_ns;
}

static inline void on_body(void *arg, const char *bytes, size_t n)
{
    struct stream *st = arg;
    events_feed(&st->events, bytes, n);
}

static inline void crowd_open(struct crowd *c, int port, int n)
{
    *c = (struct crowd){.port = port, .n = n, .ep = epoll_create1(EPOLL_CLOEXEC)};
    c->streams = xcalloc((size_t)n, sizeof *c->streams);
}

static inline void stream_over(struct crowd *c, struct stream *st, bool whole)
{
    const char *wanted = st->kind->wanted[st->prompt];
    st->over = true;
    st->good = whole && st->in.status == 200 && st->events.done && !st->events.error &&
               st->text.data && strcmp(st->text.data, wanted) == 0;
    if (!st->good && c->n_over - c->n_good < 3) {
        printf("stream %d: status %d, %s, %zu of %zu bytes of text\n", (int)(st - c->streams),
               st->in.status, whole ? "whole" : "cut off", st->text.n_bytes, strlen(wanted));
    }
    c->n_over++;
    c->n_good += st->good;
    close(st->fd);
}

/* Opens the next stream. rcvbuf 0: the kernel's default. */
static inline struct stream *stream_open(struct crowd *c, const struct kind *kind, int rcvbuf)
{
    struct stream *st = &c->streams[c->n_open];
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)c->port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    *st = (struct stream){.kind = kind, .prompt = c->n_open++ % N_PROMPTS};
    buf_init(&st->text, 1 << 20);
    http_in_init(&st->in, on_body, st);
    events_init(&st->events, on_text, st);
    st->events.answer = &st->text;
    st->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (rcvbuf > 0) {
        setsockopt(st->fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    }
    struct buf body, request;
    buf_init(&body, 4096);
    buf_init(&request, 4096);
    put_body(&body, kind, st->prompt, true);
    buf_printf(&request,
               "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
               "application/json\r\nContent-Length: %zu\r\n\r\n%s",
               body.n_bytes, body.data);
    if (connect(st->fd, (struct sockaddr *)&a, sizeof a) != 0 ||
        send(st->fd, request.data, request.n_bytes, MSG_NOSIGNAL) != (ssize_t)request.n_bytes) {
        stream_over(c, st, false);
    }
    buf_deinit(&body);
    buf_deinit(&request);
    return st;
}

static inline void stream_watch(const struct crowd *c, struct stream *st)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = st};
    fcntl(st->fd, F_SETFL, O_NONBLOCK);
    epoll_ctl(c->ep, EPOLL_CTL_ADD, st->fd, &e);
}

/* Reads up to n bytes. */
static inline void stream_read(struct crowd *c, struct stream *st, size_t n)
{
    static char in[64 << 10];
    ssize_t r = st->over ? 0 : recv(st->fd, in, lesser(n, sizeof in), MSG_DONTWAIT);
    if (st->over || (r < 0 && (errno == EAGAIN || errno == EINTR))) {
        return;
    }
    enum http_in_result result = HTTP_IN_BAD;
    if (r > 0) {
        result = http_in_feed(&st->in, in, (size_t)r);
    }
    if (result != HTTP_IN_MORE) {
        stream_over(c, st, result == HTTP_IN_DONE);
    }
}

/* Reads from the streams that have data, and waits up to `ms` for some. */
static inline void crowd_turn(struct crowd *c, int ms)
{
    struct epoll_event events[N_EVENTS];
    int n = epoll_wait(c->ep, events, N_EVENTS, ms);
    for (int i = 0; i < n; i++) {
        stream_read(c, events[i].data.ptr, SIZE_MAX);
    }
}

/* Reads until all streams have ended or the time is up. */
static inline void crowd_finish(struct crowd *c, double seconds)
{
    int64_t end_ns = clock_now_ns() + (int64_t)(seconds * 1e9);
    while (c->n_over < c->n_open && clock_now_ns() < end_ns) {
        crowd_turn(c, 20);
    }
}

static inline void crowd_close(struct crowd *c)
{
    for (int i = 0; i < c->n_open; i++) {
        struct stream *st = &c->streams[i];
        if (!st->over) {
            close(st->fd);
        }
        http_in_deinit(&st->in);
        events_deinit(&st->events);
        buf_deinit(&st->text);
    }
    free(c->streams);
    close(c->ep);
}

#endif
