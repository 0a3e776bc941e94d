// SPDX-License-Identifier: Apache-2.0
/* The capacity of `sluice bench` itself. A responder that only sends prepared events answers its
 * requests, and the generator's CPU time is read at the end.
 *
 *   bursts  an answer is sent in large pieces, as events of a fast server reach a busy client
 *   single  every event is its own packet, so that the responder, too, sends them one by one
 *
 * Fails below 300,000 events per second of the generator's CPU time in bursts. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_EVENTS = 512, N_STREAMS = 64, MAX_FDS = 1024, WANTED = 300000 };

#define EVENT                                                                                      \
    "data: "                                                                                       \
    "{\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1700000000,"     \
    "\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" word%d\",\"logprobs\":null,"            \
    "\"finish_reason\":null}]}\n\n"

/* ---- the responder ----------------------------------------------------------------------------
 */

/* The whole answer, built once; the responder only sends parts of it. */
static struct answer {
    char *bytes;
    size_t ends[N_EVENTS + 3]; // end offsets of the pieces: the head, each event, the end
    int n_ends;
} answer;

/* A connection of the responder. */
struct stream {
    bool open, answering;
    char head[2048];
    size_t n_head, n_body, sent;
    int piece;
};

static void add_piece(const char *text, size_t n)
{
    const size_t at = answer.n_ends > 0 ? answer.ends[answer.n_ends - 1] : 0;
    memcpy(answer.bytes + at, text, n);
    answer.ends[answer.n_ends++] = at + n;
}

/* The events that sluice would send, each in a chunk. */
static void make_answer(void)
{
    char text[512], chunk[600];
    answer.bytes = xmalloc((N_EVENTS + 3) * sizeof chunk);
    add_piece(text, (size_t)snprintf(text, sizeof text,
                                     "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                     "Transfer-Encoding: chunked\r\n\r\n"));
    for (int i = 0; i <= N_EVENTS; i++) {
        const int n = i < N_EVENTS ? snprintf(text, sizeof text, EVENT, i)
                                   : snprintf(text, sizeof text, "data: [DONE]\n\n");
        const char *end = i < N_EVENTS ? "" : "0\r\n\r\n";
        add_piece(chunk,
                  (size_t)snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n%s", (unsigned)n, text, end));
    }
}

/* Returns true if a whole request has arrived, and discards it. */
static bool take_request(int fd, struct stream *s)
{
    char buf[65536];
    const ssize_t n = recv(fd, buf, sizeof buf, 0);
    if (n <= 0) {
        close(fd);
        s->open = false;
        return false;
    }
    const size_t room = sizeof s->head - 1 - s->n_head, kept = lesser((size_t)n, room);
    memcpy(s->head + s->n_head, buf, kept);
    s->n_head += kept;
    s->head[s->n_head] = '\0';
    s->n_body += (size_t)n;
    const char *body = strstr(s->head, "\r\n\r\n"),
               *length = strcasestr(s->head, "content-length:");
    if (!body || !length) {
        return false;
    }
    if (s->n_body < (size_t)(body + 4 - s->head) + strtoul(length + 15, NULL, 10)) {
        return false;
    }
    s->n_head = s->n_body = s->sent = 0;
    s->piece = 0;
    s->answering = true;
    return true;
}

/* Sends one piece, or everything that is left. EAGAIN is normal: the generator should be the
 * bottleneck. */
static void send_some(int fd, struct stream *s, bool single)
{
    const size_t all = answer.ends[answer.n_ends - 1], to = single ? answer.ends[s->piece] : all;
    const ssize_t n = send(fd, answer.bytes + s->sent, to - s->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
        s->answering = errno == EAGAIN;
        return;
    }
    s->sent += (size_t)n;
    s->piece += s->sent == answer.ends[s->piece];
    s->answering = s->sent < all;
}

/* An epoll loop that answers each request as soon as it is complete. */
static void respond(int listener, bool single)
{
    static struct stream streams[MAX_FDS];
    const int ep = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, events[64];
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
    for (int n_answering = 0, top = 0;;) {
        const int n = epoll_wait(ep, events, 64, n_answering > 0 ? 0 : -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd != listener) {
                take_request(fd, &streams[fd]);
                continue;
            }
            fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (fd < 0 || fd >= MAX_FDS) {
                _exit(1);
            }
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
            streams[fd] = (struct stream){.open = true};
            top = greater(fd, top);
            epoll_ctl(ep, EPOLL_CTL_ADD, fd,
                      &(struct epoll_event){.events = EPOLLIN, .data.fd = fd});
        }
        n_answering = 0;
        for (int fd = 0; fd <= top; fd++) {
            if (streams[fd].open && streams[fd].answering) {
                send_some(fd, &streams[fd], single);
                n_answering++;
            }
        }
    }
}

/* ---- a run ------------------------------------------------------------------------------------
 */

/* Runs the responder in a process of its own, so that its CPU time does not count. */
static pid_t start_responder(bool single, int *port)
{
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, n) || listen(listener, 512) ||
        getsockname(listener, (struct sockaddr *)&at, &n)) {
        perror("responder");
        exit(1);
    }
    *port = ntohs(at.sin_port);
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        respond(listener, single);
    }
    close(listener);
    return pid;
}

static double seconds_of(const struct timeval *t)
{
    return (double)t->tv_sec + (double)t->tv_usec / 1e6;
}

/* Events per second of the generator's CPU time; 0 if it failed. */
static double run(const char *program, bool single, int n_requests)
{
    int port;
    const pid_t responder = start_responder(single, &port);
    char url[64], requests[16], streams[16], len[16];
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    snprintf(requests, sizeof requests, "%d", n_requests);
    snprintf(streams, sizeof streams, "%d", N_STREAMS);
    snprintf(len, sizeof len, "%d", N_EVENTS);
    const int64_t begin = clock_now_ns();
    const pid_t pid = fork();
    if (pid == 0) {
        if (freopen("/dev/null", "w", stdout) == NULL) {
            _exit(1);
        }
        execl(program, program, "bench", "--url", url, "--model", "m", "--requests", requests,
              "--concurrency", streams, "--input-len", "16", "--output-len", len, (char *)NULL);
        _exit(127);
    }
    int status = 1;
    struct rusage used;
    wait4(pid, &status, 0, &used);
    const double wall = (double)(clock_now_ns() - begin) / 1e9,
                 busy = seconds_of(&used.ru_utime) + seconds_of(&used.ru_stime);
    kill(responder, SIGKILL);
    waitpid(responder, NULL, 0);
    if (status != 0) {
        printf("generator_bench: %s bench failed (status %d)\n", program, status);
        return 0;
    }
    const double n_events = (double)n_requests * N_EVENTS;
    printf("%s: %.0f events, %.0f/s, %.0f per second of its processor time (%.2f us each)\n",
           single ? "single" : "bursts", n_events, n_events / wall, n_events / busy,
           busy / n_events * 1e6);
    return n_events / busy;
}

/* Exits with 1 if the generator is too slow. */
int main(void)
{
    char program[512];
    const char *build = getenv("SLUICE_BUILD");
    snprintf(program, sizeof program, "%s/sluice", or_text(build, "build/release"));
    make_answer();
    const double bursts = run(program, false, 8000), single = run(program, true, 2000);
    if (bursts < WANTED || single <= 0) {
        printf("generator_bench: under %d events/s\n", WANTED);
        return 1;
    }
    return 0;
}
