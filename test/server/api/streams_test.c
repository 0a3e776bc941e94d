// SPDX-License-Identifier: Apache-2.0
// test/run: alone
/* Crowds on the whole server: probes are answered in time beside thousands of streams and beside
 * large bodies, and readers with slow links do not slow others down.
 *
 *     STREAMS=10000 streams_test probes    1,500 by default, 10,000 in `make nightly`
 */
#include "test/server/api/streams_bed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

enum { CONNECTS_PER_TURN = 64 /* arbitrary */ };

/* ---- probes ------------------------------------------------------------------------------------
 */

enum { N_PROBERS = 8, PROBE_EVERY_MS = 200 }; // readiness and liveness 20 times a second each

/* Probes of independent senders, as in reality: none waits for the answer to another probe. The
 * control is a process that only answers: its latency is what the machine and this client add. */
struct prober {
    pthread_t threads[N_PROBERS];
    pthread_mutex_t lock;
    const struct server *of;
    int control_port;
    pid_t control;
    _Atomic bool quit;
    _Atomic int n_started;
    struct times all, net, alone; // net: without the time for which the loop had no processor
    int n_bad;
};

static void serve_control(int lfd)
{
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    for (;;) {
        char in[1024];
        int fd = accept(lfd, NULL, NULL);
        if (recv(fd, in, sizeof in, 0) > 0) {
            (void)!send(fd, answer, sizeof answer - 1, MSG_NOSIGNAL);
        }
        close(fd);
    }
}

/* Opens a new connection, as an orchestrator's probe does. True if the status is 200. */
static bool probe(int port, const char *path)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 5};
    char text[512] = "";
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    bool good = connect(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
                send(fd, text, (size_t)n, MSG_NOSIGNAL) == n &&
                recv(fd, text, sizeof text - 1, 0) > 12 && memcmp(text, "HTTP/1.1 200", 12) == 0;
    close(fd);
    return good;
}

static void wait_until(int64_t ns)
{
    int64_t left_ns = ns - clock_now_ns();
    if (left_ns > 0) {
        nanosleep(&(struct timespec){left_ns / 1000000000, left_ns % 1000000000}, NULL);
    }
}

/* Times count from when a probe was due. */
static void *probe_main(void *arg)
{
    struct prober *p = arg;
    const int who = p->n_started++;
    int64_t due_ns = clock_now_ns() + who * PROBE_EVERY_MS * 1000000LL / N_PROBERS;
    for (; !p->quit; due_ns += PROBE_EVERY_MS * 1000000LL) {
        due_ns = greater(due_ns, clock_now_ns());
        wait_until(due_ns);
        double starved = starved_ms(p->of->pid);
        bool good = probe(p->of->port, who % 2 ? "/health/live" : "/health/ready");
        int64_t between_ns = clock_now_ns();
        double ms = (double)(between_ns - due_ns) / 1e6;
        starved = starved_ms(p->of->pid) - starved;
        probe(p->control_port, "/");
        pthread_mutex_lock(&p->lock);
        note(&p->all, ms);
        note(&p->net, ms - starved);
        note(&p->alone, (double)(clock_now_ns() - between_ns) / 1e6);
        p->n_bad += !good;
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

static void prober_start(struct prober *p, const struct server *of)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int lfd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(lfd, (struct sockaddr *)&a, n) == 0 && listen(lfd, 16) == 0);
    CHECK(getsockname(lfd, (struct sockaddr *)&a, &n) == 0);
    *p = (struct prober){.of = of, .control_port = ntohs(a.sin_port), .control = fork()};
    if (p->control == 0) {
        serve_control(lfd);
    }
    close(lfd);
    pthread_mutex_init(&p->lock, NULL);
    for (int i = 0; i < N_PROBERS; i++) {
        CHECK_EQ(pthread_create(&p->threads[i], NULL, probe_main, p), 0);
    }
}

static void prober_stop(struct prober *p)
{
    p->quit = true;
    for (int i = 0; i < N_PROBERS; i++) {
        pthread_join(p->threads[i], NULL);
    }
    kill(p->control, SIGKILL);
    waitpid(p->control, NULL, 0);
}

static void say(const char *what, struct times *t)
{
    printf("%s: %zu, p50 %.1f ms, p99 %.1f, max %.1f\n", what, t->n, quantile(t, 0.5),
           quantile(t, 0.99), quantile(t, 1));
}

static void say_times(struct prober *p)
{
    say("probes", &p->all);
    say("    without the loop's waits for a processor", &p->net);
    say("    a process that only answers", &p->alone);
}

/* The 99th percentile, because other work on the machine makes a few late; the figures in
 * docs/results are maxima. */
static bool in_time(struct prober *p)
{
    return is_slow() || quantile(&p->net, 0.99) < 100 + quantile(&p->alone, 0.99);
}

static void prober_free(struct prober *p)
{
    pthread_mutex_destroy(&p->lock);
    free(p->all.ms);
    free(p->net.ms);
    free(p->alone.ms);
}

/* ---- the tests --------------------------------------------------------------------------------
 */

/* As many streams as this process may have descriptors for. */
static int crowd_size(void)
{
    const char *given = getenv("STREAMS");
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    int n = check_nightly() ? 10000 : 1500;
    n = given ? atoi(given) : n;
    return is_slow() ? 300 : (int)lesser((rlim_t)n, r.rlim_max - 300);
}

/* The streams come within seconds, get 40,000 tokens a second together, and end. If they came
 * faster, they would fill the kernel's queue of new connections, which makes TCP repeat a probe's
 * SYN after a second. */
TEST(probes_are_answered_in_time_beside_thousands_of_streams)
{
    enum { RATE = 40000, OPENED_PER_S = 2000 };
    const int seconds = check_nightly() || getenv("STREAMS") ? 10 : 5;
    int n = crowd_size(), step_us = n * (1000000 / RATE);
    struct kind kind = {.max_tokens = seconds * 1000000 / step_us};
    struct server s;
    struct prober p;
    struct crowd c;
    REQUIRE(learn(&kind));
    REQUIRE(server_start(&s, step_us));
    prober_start(&p, &s);
    crowd_open(&c, s.port, n);
    double server_cpu = cpu_s(s.pid), own_cpu = cpu_s(getpid());
    int64_t start_ns = clock_now_ns();
    for (int64_t due = 0; c.n_open < n; crowd_turn(&c, 1)) {
        due = (clock_now_ns() - start_ns) * OPENED_PER_S / 1000000000;
        for (int i = 0; i < CONNECTS_PER_TURN && c.n_open < lesser(due, n); i++) {
            stream_watch(&c, stream_open(&c, &kind, 0));
        }
    }
    int most = c.n_open - c.n_over;
    double opened_s = (double)(clock_now_ns() - start_ns) / 1e9;
    crowd_finish(&c, 300);
    double over_s = (double)(clock_now_ns() - start_ns) / 1e9;
    nap_ms(500);
    prober_stop(&p);
    printf("%d streams of %d tokens, opened in %.1f s, %d at a time, over in %.1f s; %d good\n", n,
           kind.max_tokens, opened_s, most, over_s, c.n_good);
    printf("CPU: server %.2f cores, its loop waited %.1f s for one, client %.2f; %.0f MB\n",
           (cpu_s(s.pid) - server_cpu) / over_s, starved_ms(s.pid) / 1e3,
           (cpu_s(getpid()) - own_cpu) / over_s, rss_mb(&s));
    say_times(&p);
    CHECK_EQ(p.n_bad, 0);
    CHECK_EQ(c.n_good, n);
    CHECK_EQ(most, n);
    CHECK(in_time(&p));
    crowd_close(&c);
    CHECK_EQ(server_stop(&s), 0);
    prober_free(&p);
    forget(&kind);
}

enum { N_SENDERS = 16, BODY_BYTES = 15600000 };

/* One prompt that is far too long, twice. The argument becomes the number of answers. */
static void *send_bodies(void *arg)
{
    struct server *s = arg;
    intptr_t n = 0;
    const size_t n_bytes = is_slow() ? BODY_BYTES / 30 : BODY_BYTES;
    char *body = xmalloc(n_bytes + 64);
    int at = sprintf(body, "{\"prompt\":\"");
    memset(body + at, 'a', n_bytes);
    memcpy(body + at + n_bytes, "\"}", 3);
    for (int i = 0; i < 2; i++) {
        struct buf answer;
        buf_init(&answer, 1 << 20);
        int status = ask(s->port, "/v1/completions", body, &answer);
        n += status == 400 || status == 413 || status == 503;
        buf_deinit(&answer);
    }
    free(body);
    return (void *)n;
}

/* The loop only reads them, each in a moment; the pool parses and tokenizes them. */
TEST(large_bodies_of_many_clients_delay_nobody)
{
    pthread_t threads[N_SENDERS];
    struct server s;
    struct prober p;
    REQUIRE(server_start(&s, 1000));
    prober_start(&p, &s);
    for (int i = 0; i < N_SENDERS; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, send_bodies, &s), 0);
    }
    intptr_t n_answers = 0;
    for (int i = 0; i < N_SENDERS; i++) {
        void *n;
        pthread_join(threads[i], &n);
        n_answers += (intptr_t)n;
    }
    prober_stop(&p);
    say_times(&p);
    CHECK_EQ(n_answers, 2 * N_SENDERS);
    CHECK_EQ(p.n_bad, 0);
    CHECK(in_time(&p));
    CHECK_EQ(server_stop(&s), 0);
    prober_free(&p);
}

enum { N_USUAL = 8, N_TARDY = 200, N_WINDOWS = 3 };

/* Reads for a while, but from each slow stream only a byte every 20 ms. That keeps their windows
 * closed, and after ten seconds the server would take the client for dead. */
static void read_for(struct crowd *c, int ms)
{
    int64_t end_ns = clock_now_ns() + ms * 1000000LL, byte_ns = 0;
    while (clock_now_ns() < end_ns) {
        crowd_turn(c, 5);
        if (clock_now_ns() >= byte_ns) {
            byte_ns = clock_now_ns() + 20000000;
            for (int i = N_USUAL; i < c->n_open; i++) {
                stream_read(c, &c->streams[i], 1);
            }
        }
    }
}

/* The 90th percentile of the time between two events of the usual streams. The best of a few
 * windows, since other work on the machine can only increase it. */
static double gap_of(struct crowd *c)
{
    double best = 1e9;
    for (int w = 0; w < N_WINDOWS; w++) {
        struct times gaps = {0};
        for (int i = 0; i < N_USUAL; i++) {
            c->streams[i].gaps = &gaps;
        }
        read_for(c, 400);
        for (int i = 0; i < N_USUAL; i++) {
            c->streams[i].gaps = NULL;
        }
        best = gaps.n > 0 ? lesser(best, quantile(&gaps, 0.9)) : best;
        free(gaps.ms);
    }
    return best;
}

/* The slow clients have tiny receive windows and read a byte at a time, so their sockets fill, and
 * their answers wait in the engine's output. Once their links are fast, they get every byte. */
TEST(slow_links_delay_nobody_and_take_bounded_memory)
{
    enum { STEP_US = 10000, HELD_BYTES = 128 << 10 }; // twice the default of stream_soft_bytes
    struct kind usual = {.max_tokens = 500}, tardy = {.max_tokens = 300, .logprobs = 20};
    struct server s;
    struct crowd c;
    if (is_slow()) {
        SKIP("a sanitizer's server does not keep up with the steps");
    }
    REQUIRE(learn(&usual) && learn(&tardy));
    REQUIRE(server_start(&s, STEP_US));
    crowd_open(&c, s.port, N_USUAL + N_TARDY);
    for (int i = 0; i < N_USUAL; i++) {
        stream_watch(&c, stream_open(&c, &usual, 0));
    }
    read_for(&c, 200);
    double before = gap_of(&c), rss = rss_mb(&s);
    for (int i = 0; i < N_TARDY; i++) {
        stream_open(&c, &tardy, 1); // the kernel's minimum, 2,304 bytes
    }
    for (int i = 0; i < 40 && metric(s.port, "sluice_http_short_sends_total") < N_TARDY; i++) {
        read_for(&c, 100);
    }
    read_for(&c, 500);
    double beside = gap_of(&c);
    for (int i = 0; i < 200 && c.n_over < N_USUAL;
         i++) { // the engine has long made the others' tokens
        read_for(&c, 100);
    }
    double held = metric(s.port, "sluice_http_held_stream_bytes");
    printf("events of %d streams come every %.1f ms (p90), beside %d slow links every %.1f; these "
           "hold %.1f MB, and the server has grown by %.0f MB\n",
           N_USUAL, before, N_TARDY, beside, held / 1e6, rss_mb(&s) - rss);
    CHECK(beside < 2 * before + 20);
    CHECK(metric(s.port, "sluice_http_short_sends_total") >= N_TARDY);
    CHECK(held > 0 && held <= (double)N_TARDY * HELD_BYTES);
    CHECK_EQ(c.n_over, N_USUAL);
    for (int i = N_USUAL; i < c.n_open; i++) {
        stream_watch(&c, &c.streams[i]);
    }
    crowd_finish(&c, 120);
    CHECK_EQ(c.n_good, N_USUAL + N_TARDY);
    crowd_close(&c);
    CHECK_EQ(server_stop(&s), 0);
    forget(&usual);
    forget(&tardy);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    return check_main(argc, argv);
}
