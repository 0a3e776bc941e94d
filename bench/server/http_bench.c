// SPDX-License-Identifier: Apache-2.0
/* Compares the HTTP front end with a bare epoll loop that sends the same bytes in the same run. It
 * measures the events per second in lock-step with an engine that produces tokens on demand, the
 * age at the client of tokens that come at a fixed pace, memory per stream, small requests per
 * second, and the effect of a long prompt on another stream. Servers and clients are separate
 * processes. The machine is shared with other programs, so the two servers alternate, and ratios
 * are medians over the turns.
 *     http_bench [quick] [asleep] [PART...]   parts: see main; without one, all.
 * asleep: the clients wait in epoll_wait, so that sends pay for waking them (http_load.h). 10,000
 * streams need about 10,300 descriptors per process. */
#include "bench/server/http_load.h"
#include "bench/server/http_subject.h"
#include "engine/base/minmax.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MAX_TURNS = 16, N_REQUEST_CONNS = 64 };

static struct {
    struct side bare, sluice;
} *shared;

/* Runs a function in a child process; its results are in shared memory. */
static void become(void (*run)(struct side *side, int max), struct side *side)
{
    fflush(stdout);
    if (fork() == 0) {
        signal(SIGPIPE, SIG_IGN);
        run(side, MAX_STREAMS + 100);
        exit(0);
    }
}

/* Waits until the streams are open at both the server and the client. */
static void set_streams(struct side *side, int n)
{
    side->want_streams = n;
    for (int i = 0; i < 600 && (side->have_streams != n || side->n_streams != n); i++) {
        nap(50000000);
    }
    if (side->n_streams != n) {
        fprintf(stderr, "http_bench: %d of %d streams are open\n", (int)side->n_streams, n);
        exit(1);
    }
    nap(200000000);
}

struct turn {
    double events_per_s, cpu_us;
};

/* Events per second, and CPU time per event, over ns nanoseconds. */
static struct turn lockstep(struct side *side, long long ns)
{
    side->pace = PACE_LOCKSTEP;
    nap(100000000);
    long long t = clock_now_ns(), n = side->n_events, cpu = side->cpu_ns;
    nap(ns);
    long long dt = clock_now_ns() - t, dn = side->n_events - n, dcpu = side->cpu_ns - cpu;
    side->pace = PACE_STOP;
    nap(50000000);
    struct turn r = {(double)dn * 1e9 / (double)dt, dn > 0 ? (double)dcpu / 1e3 / (double)dn : 0};
    return r;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static double sluice_rate; // of the last run of throughput()

/* The two servers take turns, so that a change of the machine's speed affects both; their medians
 * are compared. */
static void throughput(int n_streams, int n_turns, double least)
{
    long long ns = n_streams >= 1000 ? 1500000000 : 400000000;
    double ratio[MAX_TURNS], cpu[MAX_TURNS], a[MAX_TURNS], b[MAX_TURNS], ca[MAX_TURNS],
        cb[MAX_TURNS];
    set_streams(&shared->bare, n_streams);
    set_streams(&shared->sluice, n_streams);
    for (int i = 0; i < n_turns; i++) { // alternate who goes first
        struct turn s, bare;
        if (i % 2) {
            s = lockstep(&shared->sluice, ns);
            bare = lockstep(&shared->bare, ns);
        } else {
            bare = lockstep(&shared->bare, ns);
            s = lockstep(&shared->sluice, ns);
        }
        a[i] = s.events_per_s;
        b[i] = bare.events_per_s;
        ca[i] = s.cpu_us;
        cb[i] = bare.cpu_us;
        ratio[i] = a[i] / b[i];
        cpu[i] = cb[i] / ca[i];
    }
    double r = median(ratio, n_turns);
    sluice_rate = median(a, n_turns);
    printf("SSE %5d streams: %7.0f events/s, bare epoll %7.0f, ratio %.3f (at least %.2f: %s); "
           "loop CPU "
           "%.2f and %.2f us/event, ratio %.3f\n",
           n_streams, sluice_rate, median(b, n_turns), r, least, r >= least ? "ok" : "TOO LOW",
           median(ca, n_turns), median(cb, n_turns), median(cpu, n_turns));
    fflush(stdout);
}

struct ages {
    double p50_ms, p99_ms, max_ms, events_per_s, cpu_us;
};

/* Percentiles from the client's histogram. */
static struct ages ages_of(const struct side *side, double seconds)
{
    long long total = 0, sum = 0;
    struct ages a = {-1, -1, (double)side->lag_max_ns / 1e6, 0, 0};
    for (int i = 0; i <= N_BUCKETS; i++) {
        total += side->histogram[i];
    }
    for (int i = 0; i <= N_BUCKETS; i++) {
        sum += side->histogram[i];
        if (a.p50_ms < 0 && sum * 2 >= total) {
            a.p50_ms = i * (BUCKET_NS / 1e6);
        }
        if (a.p99_ms < 0 && sum * 100 >= total * 99) {
            a.p99_ms = i * (BUCKET_NS / 1e6);
        }
    }
    a.events_per_s = (double)total / seconds;
    return a;
}

/* Reads the counters at the beginning and at the end of a measurement; the result is their
 * difference. */
static struct ages measure(struct side *side, double seconds)
{
    long long cpu = side->cpu_ns, n = side->n_events;
    side->epoch++;
    nap(60000000);
    nap((long long)(seconds * 1e9));
    struct ages a = ages_of(side, seconds + 0.06);
    n = side->n_events - n;
    if (n > 0) {
        a.cpu_us = (double)(side->cpu_ns - cpu) / 1e3 / (double)n;
    } else {
        a.cpu_us = 0;
    }
    return a;
}

/* Every stream gets one token in each period, as from an engine. */
static struct ages paced(struct side *side, int n_streams, long long period_ns, double seconds)
{
    set_streams(side, n_streams);
    side->period_ns = period_ns;
    side->pace = PACE_TIMED;
    nap(300000000);
    struct ages a = measure(side, seconds);
    side->pace = PACE_STOP;
    nap(200000000);
    return a;
}

/* Takes the best of a few turns, since other work on the machine can only increase an age. The
 * figure of the bare loop shows what the machine allows; the ratio compares adjacent turns. */
static void latency(int n_streams, double seconds, double limit_ms)
{
    enum { N_TURNS = 5 };
    struct ages s = {0}, bare = {0};
    double ratio[N_TURNS], cpu[N_TURNS], bare_cpu[N_TURNS];
    for (int i = 0; i < N_TURNS; i++) {
        struct ages a, b;
        if (i % 2) { // alternate who goes first
            a = paced(&shared->sluice, n_streams, 50000000, seconds);
            b = paced(&shared->bare, n_streams, 50000000, seconds);
        } else {
            b = paced(&shared->bare, n_streams, 50000000, seconds);
            a = paced(&shared->sluice, n_streams, 50000000, seconds);
        }
        if (i == 0 || b.p99_ms < bare.p99_ms) {
            bare = b;
        }
        if (i == 0 || a.p99_ms < s.p99_ms) {
            s = a;
        }
        ratio[i] = a.p99_ms / b.p99_ms;
        cpu[i] = a.cpu_us;
        bare_cpu[i] = b.cpu_us;
    }
    double r = median(ratio, N_TURNS);
    printf("token to client, %5d streams x 20/s: p50 %.2f p99 %.2f ms (p99 at most %.0f: %s), bare "
           "%.2f / %.2f, ratio of the best %.2f, of adjacent turns %.2f (limit 1.15: %s); loop CPU "
           "%.2f and "
           "%.2f us/event\n",
           n_streams, s.p50_ms, s.p99_ms, limit_ms, s.p99_ms <= limit_ms ? "ok" : "TOO HIGH",
           bare.p50_ms, bare.p99_ms, s.p99_ms / bare.p99_ms, r, r <= 1.15 ? "ok" : "TOO HIGH",
           median(cpu, N_TURNS), median(bare_cpu, N_TURNS));
    fflush(stdout);
}

/* Produces events at twice the rate reached in lock-step. Their age must not grow over time. */
static void overload(int n_streams, double carried)
{
    struct side *side = &shared->sluice;
    set_streams(side, n_streams);
    side->period_ns = (long long)(1e9 * n_streams / (2 * carried));
    side->pace = PACE_TIMED;
    nap(1000000000);
    struct ages first = measure(side, 1.0), last = first;
    for (int i = 0; i < 3; i++) {
        last = measure(side, 1.0);
    }
    side->pace = PACE_STOP;
    nap(500000000);
    const double scale_ms = N_BUCKETS * (BUCKET_NS / 1e6);
    const char *verdict = "GROWS";
    if (last.p99_ms >= scale_ms) {
        verdict = "off the scale, cannot be judged";
    } else if (last.p99_ms < 1.5 * first.p99_ms + 50) {
        verdict = "does not grow";
    }
    printf(
        "overload, %d streams, %.0f events/s offered: p99 %.0f ms in the 2nd second, %.0f in the "
        "5th (%s)\n",
        n_streams, 2 * carried, first.p99_ms, last.p99_ms, verdict);
    fflush(stdout);
}

/* Resident memory per stream, of a server that has had no other streams. */
static void memory(void)
{
    struct side *side = &shared->sluice;
    set_streams(side, 0);
    nap(300000000);
    /* The heap keeps the memory of earlier streams, so this part starts a fresh server. */
    long before = side->rss_bytes;
    set_streams(side, MAX_STREAMS);
    side->period_ns = 50000000;
    side->pace = PACE_TIMED;
    nap(1000000000);
    side->pace = PACE_STOP;
    nap(500000000);
    double per = (double)(side->rss_bytes - before) / MAX_STREAMS / 1000;
    printf("memory: %.1f kB a stream at %d (at most 25: %s)\n", per, MAX_STREAMS,
           per <= 25 ? "ok" : "TOO HIGH");
    fflush(stdout);
}

/* --- Small requests --- */

/* Without pipelining: each connection waits for its reply. */
static double requests_per_s(int port, const char *path, double seconds)
{
    pin(1);
    char request[512];
    static const char body[] =
        "{\"model\":\"demo\",\"prompt\":\"Once upon a time\",\"max_tokens\":1}";
    int n_request =
        snprintf(request, sizeof request,
                 "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 "Authorization: Bearer x\r\nContent-Length: %zu\r\n\r\n%s",
                 path, sizeof body - 1, body);
    int ep = epoll_create1(0), fds[N_REQUEST_CONNS];
    for (int i = 0; i < N_REQUEST_CONNS; i++) {
        fds[i] = client_connect(port);
        struct epoll_event e = {.events = EPOLLIN, .data.fd = fds[i]};
        epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &e);
        ssize_t n = send(fds[i], request, (size_t)n_request, MSG_NOSIGNAL);
        (void)n;
    }
    long long n_replies = 0, start = clock_now_ns();
    struct epoll_event events[N_REQUEST_CONNS];
    while (clock_now_ns() - start < (long long)(seconds * 1e9)) {
        int n = epoll_wait(ep, events, N_REQUEST_CONNS, 100);
        for (int i = 0; i < n; i++) {
            char in[4096];
            // a reply fits and arrives at once
            ssize_t r = recv(events[i].data.fd, in, sizeof in, 0);
            if (r < 12 || memcmp(in, "HTTP/1.1 200", 12) != 0) {
                fprintf(stderr, "http_bench: %s was answered with %.40s\n", path, in);
                exit(1);
            }
            n_replies++;
            (void)send(events[i].data.fd, request, (size_t)n_request, MSG_NOSIGNAL);
        }
    }
    double rate = (double)n_replies * 1e9 / (double)(clock_now_ns() - start);
    for (int i = 0; i < N_REQUEST_CONNS; i++) {
        close(fds[i]);
    }
    close(ep);
    return rate;
}

/* The difference between the two rates is the cost of handing a request to another thread. */
static void small_requests(double seconds)
{
    double sync = requests_per_s(shared->sluice.port, "/sync", seconds);
    double engine = requests_per_s(shared->sluice.port, "/engine", seconds);
    printf(
        "small requests on %d connections: %.0f/s through the engine's thread, %.0f/s answered at "
        "once (at least 50000: %s)\n",
        N_REQUEST_CONNS, engine, sync, engine >= 50000 ? "ok" : "TOO LOW");
    fflush(stdout);
}

/* --- A long prompt beside other streams --- */

/* Repeatedly sends a body of one megabyte, like a long prompt. */
static void post_megabytes(int port, double seconds)
{
    size_t n_body = 1 << 20;
    char *request = xcalloc(1, n_body + 200);
    int n =
        snprintf(request, 200,
                 "POST /prompt HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", n_body);
    memset(request + n, 'a', n_body);
    int fd = client_connect(port);
    long long end = clock_now_ns() + (long long)(seconds * 1e9);
    while (clock_now_ns() < end) {
        char in[4096];
        size_t n_all = (size_t)n + n_body;
        for (size_t sent = 0; sent < n_all;) {
            ssize_t r = send(fd, request + sent, n_all - sent, MSG_NOSIGNAL);
            sent += r > 0 ? (size_t)r : n_all;
        }
        if (recv(fd, in, sizeof in, 0) <= 0) {
            break;
        }
        nap(20000000);
    }
    close(fd);
    free(request);
}

/* Measures how much later a token arrives while long prompts are read. */
static void long_prompts(double seconds)
{
    enum { N_TURNS = 5 };
    struct side *side = &shared->sluice;
    struct ages quiet = {0}, busy = {0};
    double cpu_ms = 0;
    for (int i = 0; i < N_TURNS; i++) { // the best turn of each counts, as for the ages of tokens
        long long cpu = side->cpu_ns, n = side->n_prompts;
        struct ages q = paced(side, 20, 10000000, seconds);
        double alone = (double)(side->cpu_ns - cpu);
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            post_megabytes(side->port, seconds + 1);
            _exit(0);
        }
        cpu = side->cpu_ns;
        struct ages b = paced(side, 20, 10000000, seconds);
        double with = (double)(side->cpu_ns - cpu);
        waitpid(pid, NULL, 0);
        if (i == 0 || q.p99_ms < quiet.p99_ms) {
            quiet = q;
        }
        if (i == 0 || b.p99_ms < busy.p99_ms) {
            busy = b;
        }
        double each = (with - alone) / 1e6 / (double)(side->n_prompts - n);
        if (i == 0 || each < cpu_ms) {
            cpu_ms = each;
        }
    }
    double more = busy.p99_ms - quiet.p99_ms;
    printf("1 MB prompts beside 20 streams: token age p99 %.2f ms, %.2f without (adds %.2f, at "
           "most 2: "
           "%s); max %.1f and %.1f; each takes %.2f ms of the loop\n",
           busy.p99_ms, quiet.p99_ms, more, more <= 2 ? "ok" : "TOO HIGH", busy.max_ms,
           quiet.max_ms, cpu_ms);
    fflush(stdout);
}

/* Starts the server and the client of one side. */
static void start(struct side *side, void (*run)(struct side *side, int max), bool sleeps)
{
    memset(side, 0, sizeof *side);
    side->sleeps = sleeps;
    become(run, side);
    while (side->port == 0) {
        nap(1000000);
    }
    become(client_main, side);
}

static void stop(struct side *side)
{
    side->quit = 1;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    nap(1500000000);
}

static bool named(int argc, char **argv, const char *word)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], word) == 0) {
            return true;
        }
    }
    return false;
}

/* True if the part is named on the command line, or if no part is named. */
static bool wanted(int argc, char **argv, const char *part)
{
    int n_modes = named(argc, argv, "quick") + named(argc, argv, "asleep");
    return argc - 1 == n_modes || named(argc, argv, part);
}

/* `quick`: a short run. `asleep`: clients sleep in epoll_wait between events. */
int main(int argc, char **argv)
{
    bool quick = named(argc, argv, "quick"), asleep = named(argc, argv, "asleep");
    struct rlimit limit = {MAX_STREAMS * 2, MAX_STREAMS * 2};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < MAX_STREAMS + 800) {
        printf("http_bench: skipped, it needs %d descriptors\n", MAX_STREAMS + 800);
        return 0;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    start(&shared->bare, bare_main, asleep);
    start(&shared->sluice, subject_main, asleep);
    double seconds = quick ? 1 : 3;
    int n_turns = quick ? 4 : 10;
    if (wanted(argc, argv, "memory")) {
        memory();
    }
    if (wanted(argc, argv, "10000")) {
        throughput(MAX_STREAMS, n_turns, 0.85);
    }
    set_streams(&shared->bare, 100);
    set_streams(&shared->sluice, 100);
    if (wanted(argc, argv, "100")) {
        throughput(100, n_turns, 0.85);
        latency(100, seconds, 2);
    }
    if (wanted(argc, argv, "small")) {
        small_requests(seconds);
    }
    if (wanted(argc, argv, "prompts")) {
        long_prompts(seconds);
    }
    if (wanted(argc, argv, "1000")) {
        latency(1000, seconds, 6);
    }
    if (wanted(argc, argv, "5000")) {
        latency(5000, seconds, 30);
        throughput(5000, quick ? 2 : 4, 0.85);
        overload(5000, sluice_rate);
    }
    stop(&shared->sluice);
    stop(&shared->bare);
    return 0;
}
