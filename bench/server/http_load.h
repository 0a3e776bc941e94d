// SPDX-License-Identifier: Apache-2.0
/* Parts of http_bench: state shared by its processes, the event that every server sends, a bare
 * epoll server, and the client. Included once.
 * Thread: as stated for each part; the shared counters are atomic. */
#ifndef SLUICE_BENCH_SERVER_HTTP_LOAD_H
#define SLUICE_BENCH_SERVER_HTTP_LOAD_H

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { N_STAMPS = 4096, N_BUCKETS = 40000, BUCKET_NS = 50000, MAX_EVENT = 512, N_EVENTS = 256 };

enum pace { PACE_STOP, PACE_LOCKSTEP, PACE_TIMED };

/* The part of the shared memory that belongs to one server and its client. */
struct side {
    _Atomic int port;
    _Atomic int n_streams; // open on the server
    _Atomic int pace;
    _Atomic long long period_ns;
    _Atomic long long n_events, cpu_ns; // events sent; CPU time of the loop's thread
    _Atomic long long n_prompts;        // prompts of 1 MB that were answered
    _Atomic long rss_bytes;
    /* Commands to the client, and its results. */
    _Atomic int want_streams, have_streams;
    _Atomic int epoch;  // a change clears the histogram
    _Atomic int sleeps; // waits in epoll_wait when idle
    _Atomic long long n_seen, lag_max_ns;
    _Atomic unsigned histogram[N_BUCKETS + 1];
    _Atomic int quit;
};

/* The steps of the simulated engine. Each has a time stamp, so that an event sent late still
 * carries the time of its token. */
struct steps {
    struct side *side;
    _Atomic long long n; // steps made
    _Atomic long long stamps[N_STAMPS];
    void (*wake)(void *arg);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    long long n_done; // the loop has sent everything up to this step
};

static inline void steps_done(struct steps *s, long long n)
{
    pthread_mutex_lock(&s->lock);
    s->n_done = n;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* The server's loop runs on one core; engines and clients run on another if there is one. */
static inline void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core % (int)sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof set, &set);
}

static inline void nap(long long ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    nanosleep(&t, NULL);
}

/* Thread: engine. In lock-step it makes the next token once all events of the last have been sent;
 * in timed mode it does not wait. */
static inline void *steps_main(void *arg)
{
    struct steps *s = arg;
    long long next = 0;
    pin(1);
    while (!s->side->quit) {
        int pace = s->side->pace;
        if (pace == PACE_STOP || s->side->n_streams == 0) {
            nap(1000000);
            next = 0;
            continue;
        }
        if (pace == PACE_TIMED) {
            long long now = clock_now_ns();
            next = next ? next + s->side->period_ns : now;
            if (next > now) {
                nap(next - now);
            }
        }
        long long n = s->n + 1;
        s->stamps[n % N_STAMPS] = clock_now_ns();
        s->n = n;
        s->wake(s->arg);
        if (pace == PACE_LOCKSTEP) {
            pthread_mutex_lock(&s->lock);
            while (s->n_done < n && !s->side->quit) {
                struct timespec t;
                clock_gettime(CLOCK_REALTIME, &t);
                t.tv_sec++;
                pthread_cond_timedwait(&s->changed, &s->lock, &t);
            }
            pthread_mutex_unlock(&s->lock);
        }
    }
    return NULL;
}

static const char event_head[] =
    "data: "
    "{\"id\":\"chatcmpl-0123456789abcdef0123\",\"object\":\"chat.completion.chunk\",\"created\":"
    "1750000000,\"model\":\"demo\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" "
    "token\"}}],\"t\":";

/* The event that every server sends, about 190 bytes. */
static inline size_t format_event(char *to, long long stamp)
{
    memcpy(to, event_head, sizeof event_head - 1);
    char *p = to + sizeof event_head - 1;
    for (int i = 14; i >= 0; i--) { // 15 digits: 11 days of nanoseconds
        p[i] = (char)('0' + stamp % 10);
        stamp /= 10;
    }
    memcpy(p + 15, "}\n\n", 3);
    return sizeof event_head - 1 + 18;
}

static inline void publish_cpu(struct side *side)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    side->cpu_ns = t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Resident pages from /proc. */
static inline long rss_bytes(void)
{
    long size = 0, rss = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%ld %ld", &size, &rss) != 2) {
            rss = 0;
        }
        fclose(f);
    }
    return rss * sysconf(_SC_PAGESIZE);
}

/* --- The bare server: an epoll loop that only sends these bytes --- */

struct bare_stream {
    int fd;
    bool blocked, open;
    long long sent_step;
    char *rest; // bytes that the socket did not accept
    size_t n_rest;
};

/* Frees the stream's slot for the next connection. */
static inline void bare_close(struct bare_stream *st, struct side *side)
{
    if (st->open) {
        side->n_streams--;
    }
    close(st->fd);
    free(st->rest);
    *st = (struct bare_stream){.fd = -1};
}

/* Bytes that the socket does not accept are kept until epoll reports room for them. */
static inline void bare_send(struct bare_stream *st, int ep, const char *bytes, size_t n,
                             struct side *side)
{
    ssize_t r = send(st->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (r == (ssize_t)n) {
        return;
    }
    if (r < 0 && errno != EAGAIN) {
        bare_close(st, side);
        return;
    }
    r = greater(0, r);
    char *rest = xmalloc(n - (size_t)r);
    memcpy(rest, bytes + r, n - (size_t)r);
    free(st->rest);
    st->rest = rest;
    st->n_rest = n - (size_t)r;
    st->blocked = true;
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLOUT, .data.ptr = st};
    epoll_ctl(ep, EPOLL_CTL_MOD, st->fd, &e);
}

/* Sends all events that the stream has not received yet, as one chunk. */
static inline int bare_advance(struct bare_stream *st, struct steps *steps, int ep, long long n)
{
    char out[64 << 10];
    size_t n_out = 6;
    int n_events = 0;
    if (n - st->sent_step > 200) { // both servers skip older ones
        st->sent_step = n - 200;
    }
    for (; st->sent_step < n; n_events++) {
        st->sent_step++;
        n_out += format_event(out + n_out, steps->stamps[st->sent_step % N_STAMPS]);
    }
    char digits[24];
    snprintf(digits, sizeof digits, "%04zx", n_out - 6);
    memcpy(out, digits, 4);
    memcpy(out + 4, "\r\n", 2);
    memcpy(out + n_out, "\r\n", 2);
    bare_send(st, ep, out, n_out + 2, steps->side);
    return n_events;
}

static inline void bare_wake(void *arg)
{
    uint64_t one = 1;
    ssize_t n = write(*(int *)arg, &one, sizeof one);
    (void)n;
}

/* The first bytes are the request; anything later is ignored. */
static inline void bare_readable(struct bare_stream *st, struct steps *steps)
{
    static const char reply[] =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    char in[2048];
    ssize_t n = recv(st->fd, in, sizeof in, MSG_DONTWAIT);
    if (n <= 0) {
        bare_close(st, steps->side);
    } else if (!st->open) { // the client sends a request in one packet
        st->open = true;
        st->sent_step = steps->n;
        (void)send(st->fd, reply, sizeof reply - 1, MSG_NOSIGNAL);
        steps->side->n_streams++;
    }
}

/* The kernel chooses the port; its number goes to shared memory. */
static inline int bare_listen(struct side *side)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 4096) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) < 0) {
        perror("listen");
        exit(1);
    }
    side->port = ntohs(a.sin_port);
    return fd;
}

/* Accepts all pending connections. */
static inline void bare_accept(int lfd, int ep, struct bare_stream *streams, int max)
{
    for (;;) {
        int fd = accept4(lfd, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) {
            return;
        }
        int on = 1, sndbuf = 64 << 10;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf);
        for (int i = 0; i < max; i++) {
            if (streams[i].fd < 0) {
                streams[i].fd = fd;
                struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = &streams[i]};
                epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
                break;
            }
        }
    }
}

static inline void bare_event(struct epoll_event *e, struct steps *steps, int ep)
{
    struct bare_stream *st = e->data.ptr;
    if (st->blocked && e->events & EPOLLOUT) {
        struct epoll_event in = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = st};
        st->blocked = false;
        epoll_ctl(ep, EPOLL_CTL_MOD, st->fd, &in);
        bare_send(st, ep, st->rest, st->n_rest, steps->side);
    } else if (e->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        bare_close(st, steps->side);
    } else if (e->events & EPOLLIN) {
        bare_readable(st, steps);
    }
}

/* The loop: wakes up for each step, and sends its token to all streams. */
static inline void bare_main(struct side *side, int max)
{
    int wake = eventfd(0, EFD_NONBLOCK), ep = epoll_create1(0), lfd = bare_listen(side);
    struct steps steps = {.side = side,
                          .wake = bare_wake,
                          .arg = &wake,
                          .lock = PTHREAD_MUTEX_INITIALIZER,
                          .changed = PTHREAD_COND_INITIALIZER};
    struct bare_stream *streams = xcalloc((size_t)max, sizeof *streams);
    for (int i = 0; i < max; i++) {
        streams[i].fd = -1;
    }
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}, events[256];
    epoll_ctl(ep, EPOLL_CTL_ADD, wake, &e);
    e.data.ptr = &lfd;
    epoll_ctl(ep, EPOLL_CTL_ADD, lfd, &e);
    pthread_t engine;
    pthread_create(&engine, NULL, steps_main, &steps);
    pin(0);
    while (!side->quit) {
        int n = epoll_wait(ep, events, 256, 100);
        bool woken = false;
        for (int i = 0; i < n; i++) {
            if (!events[i].data.ptr) {
                uint64_t count;
                woken = read(wake, &count, sizeof count) > 0;
            } else if (events[i].data.ptr == &lfd) {
                bare_accept(lfd, ep, streams, max);
            } else {
                bare_event(&events[i], &steps, ep);
            }
        }
        if (woken) {
            long long step = steps.n, n_events = 0;
            for (int i = 0; i < max; i++) {
                if (streams[i].open && !streams[i].blocked && streams[i].sent_step < step) {
                    n_events += bare_advance(&streams[i], &steps, ep, step);
                }
            }
            side->n_events += n_events;
            publish_cpu(side);
            steps_done(&steps, step);
        }
    }
    pthread_join(engine, NULL);
    free(streams);
}

/* --- The client: opens streams, reads all, and records the age of each event --- */

/* To send to a client that sleeps in epoll_wait, the sender must also wake it up. On a virtual
 * machine this is more than half of the cost of a send; a server with remote clients never pays it.
 * So after a round that has read all ready sockets, this client polls again only after LOOK_NS,
 * like a network card that coalesces interrupts. Ages are measured at each read, so they are too
 * long by up to LOOK_NS, never too short. `sleeps` turns this off. */
enum { LOOK_NS = 100000 };

/* Connects with a blocking socket, since the client has nothing else to do. */
static inline int client_connect(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
        perror("connect");
        exit(1);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* Each event contains the time at which it was made, 15 digits of nanoseconds, so that its age is
 * known without matching events. */
static inline void client_note(struct side *side, const char *bytes, size_t n)
{
    static const char mark[] = "\"t\":";
    const char *end = bytes + n;
    long long now = clock_now_ns(), n_seen = 0;
    for (const char *p = bytes; (p = memmem(p, (size_t)(end - p), mark, 4)) && p + 19 <= end;) {
        long long stamp = 0;
        for (int i = 4; i < 19; i++) {
            stamp = stamp * 10 + (p[i] - '0');
        }
        p += 19;
        long long age = now - stamp;
        long long bucket = age < 0 ? 0 : age / BUCKET_NS;
        side->histogram[lesser(bucket, N_BUCKETS)]++;
        if (age > side->lag_max_ns) {
            side->lag_max_ns = age;
        }
        n_seen++;
    }
    side->n_seen += n_seen;
}

/* Opens or closes streams until there are as many as requested. */
static inline void client_set_streams(struct side *side, int ep, int *fds)
{
    static const char request[] = "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
    int have = side->have_streams, want = side->want_streams;
    while (have > want) {
        close(fds[--have]);
    }
    while (have < want) {
        int fd = client_connect(side->port);
        ssize_t n = send(fd, request, sizeof request - 1, MSG_NOSIGNAL);
        (void)n;
        fcntl(fd, F_SETFL, O_NONBLOCK);
        struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
        fds[have++] = fd;
    }
    side->have_streams = have;
}

/* The client's thread has its own processor. A timer slack of 1 ns keeps epoll from waiting longer
 * than its timeout. */
static inline void client_main(struct side *side, int max)
{
    static char in[256 << 10];
    int *fds = xcalloc((size_t)max, sizeof *fds), ep = epoll_create1(0), epoch = 0;
    struct epoll_event events[N_EVENTS];
    pin(1);
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (!side->quit) {
        if (side->have_streams != side->want_streams) {
            client_set_streams(side, ep, fds);
        }
        if (epoch != side->epoch) {
            epoch = side->epoch;
            for (int i = 0; i <= N_BUCKETS; i++) {
                side->histogram[i] = 0;
            }
            side->n_seen = side->lag_max_ns = 0;
        }
        int n = epoll_wait(ep, events, N_EVENTS, 20);
        for (int i = 0; i < n; i++) {
            ssize_t r = recv(events[i].data.fd, in, sizeof in, 0);
            if (r > 0) {
                client_note(side, in, (size_t)r);
            } else if (r == 0) {
                epoll_ctl(ep, EPOLL_CTL_DEL, events[i].data.fd, NULL);
            }
        }
        if (n > 0 && n < N_EVENTS && !side->sleeps) {
            nap(LOOK_NS);
        }
    }
    free(fds);
}

#endif
