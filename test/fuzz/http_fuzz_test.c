// SPDX-License-Identifier: Apache-2.0
/* The front end, in process: bytes of a client in, through libmicrohttpd, the guard, routes and
 * handlers, on one thread. The input's first byte is the number of pieces that the rest is sent in,
 * and the second byte determines where it is cut. For any input:
 *   - a strict reading of the bytes (below, own and small) contains at least as many requests as
 *     were executed: nothing hidden in a body, a header or a broken head ever runs;
 *   - each executed body is the one that the strict reading has;
 *   - the output is a sequence of whole HTTP replies;
 *   - afterwards the connection is closed and nothing that belongs to it is left. */
#include "server/api/reply.h"
#include "server/http/private.h"
#include "test/fuzz/fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <strings.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_REQUESTS = 64, MAX_REPLY = 1 << 20, PATIENCE_MS = 20000 };

static struct http_server *server;
static char socket_path[64];

static struct {
    int n;
    size_t n_body[MAX_REQUESTS];
} executed;

/* --- Handlers: one that answers at once, one that uses the pool, one that streams --- */

static void note(struct http_request *req)
{
    size_t n;
    http_body(req, &n);
    ASSERT(executed.n < MAX_REQUESTS);
    executed.n_body[executed.n++] = n;
}

static void answer(struct http_request *req, void *arg)
{
    (void)arg;
    note(req);
    http_reply_header(req, "x-echo", http_param(req) ? http_param(req) : "");
    reply_text(req, 200, "{}");
}

/* On the pool's thread: reads every byte, so that a body which was freed is noticed. */
static void work(void *arg)
{
    size_t n, sum = 0;
    const char *body = http_body(arg, &n);
    for (size_t i = 0; i < n; i++) {
        sum += (unsigned char)body[i];
    }
    volatile size_t sink = sum;
    (void)sink;
}

static void worked(void *arg)
{
    reply_text(arg, 200, "{}");
}

/* A handler whose reply comes later, from the pool. */
static void defer(struct http_request *req, void *arg)
{
    static const struct http_events events = {NULL, NULL};
    (void)arg;
    note(req);
    http_defer(req, &events, NULL);
    http_pool_run(server, work, worked, req);
}

/* A reply of several events. */
static void stream(struct http_request *req, void *arg)
{
    (void)arg;
    note(req);
    http_stream_begin(req, NULL);
    reply_event(req, "{\"a\":1}", 7);
    reply_event(req, "[DONE]", 6);
    http_stream_end(req);
}

/* One route for each way to reply and each option of a route. */
static const struct http_route routes[] = {
    {"GET", "/", answer, 0, 0, 0},
    {"POST", "/echo", answer, 0, 0, HTTP_ROUTE_JSON},
    {"GET", "/v1/models/{id}", answer, 0, 0, 0},
    {"POST", "/pool", defer, 0, 2000, 0},
    {"GET", "/stream", stream, 0, 0, 0},
    {"POST", "/stream", stream, 0, 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

/* A socket in /tmp with the process's number, so that several may run at once. */
static void open_server(void)
{
    snprintf(socket_path, sizeof socket_path, "/tmp/http_fuzz.%d", (int)getpid());
    char spec[96];
    snprintf(spec, sizeof spec, "unix:%s", socket_path);
    const char *listen[] = {spec};
    struct http_options o = {.listen = listen,
                             .n_listen = 1,
                             .routes = routes,
                             .log_fd = -1,
                             .tolerate_half_close = true,
                             .max_body_bytes = 4000,
                             .max_connections = 64,
                             .cors_origins = "https://a"};
    struct err err = {""};
    reply_set_options(&o);
    if (http_server_open(&o, &server, &err) != OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    log_set_level(LOG_ERROR);
    http_server_begin(server);
}

/* --- The strict reading --- */

struct reading {
    int n;
    size_t n_body[MAX_REQUESTS];
};

struct text {
    const char *at, *end;
};

/* Lines end in CR LF only; accepting anything else makes request smuggling possible. */
static bool take_line(struct text *t, struct text *line)
{
    const char *cr = memmem(t->at, (size_t)(t->end - t->at), "\r\n", 2);
    if (!cr) {
        return false;
    }
    *line = (struct text){t->at, cr};
    t->at = cr + 2;
    return true;
}

/* RFC 9110, 5.6.2. */
static bool is_token(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] <= ' ' || s[i] >= 127 || strchr("\"(),/:;<=>?@[\\]{}", s[i])) {
            return false;
        }
    }
    return n > 0;
}

/* RFC 9110, 5.5: no control characters but tabs. */
static bool is_field_text(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if ((c < ' ' && c != '\t') || c == 127) {
            return false;
        }
    }
    return true;
}

/* What a strict reader knows about a request after its header. */
struct strict_head {
    bool http10, close, chunked;
    int n_lengths, n_codings, n_hosts;
    size_t length;
};

/* Method, target, version and single spaces between them. */
static bool read_request_line(struct text line, struct strict_head *h)
{
    size_t n = (size_t)(line.end - line.at);
    const char *space = memchr(line.at, ' ', n);
    if (!space || !is_token(line.at, (size_t)(space - line.at)) || n < 12) {
        return false;
    }
    const char *version = line.end - 8;
    if (version <= space + 2 || version[-1] != ' ' ||
        (memcmp(version, "HTTP/1.1", 8) != 0 && memcmp(version, "HTTP/1.0", 8) != 0)) {
        return false;
    }
    for (const char *p = space + 1; p < version - 1; p++) {
        if ((unsigned char)*p <= ' ' || *p == 127) {
            return false;
        }
    }
    h->http10 = version[7] == '0';
    return true;
}

/* Fields that decide where the request ends; two lengths, or a length and a coding, are an
 * error. */
static bool read_field(struct text line, struct strict_head *h)
{
    const char *colon = memchr(line.at, ':', (size_t)(line.end - line.at));
    if (!colon || !is_token(line.at, (size_t)(colon - line.at))) {
        return false;
    }
    const char *v = colon + 1, *end = line.end;
    while (v < end && (*v == ' ' || *v == '\t')) {
        v++;
    }
    while (end > v && (end[-1] == ' ' || end[-1] == '\t')) {
        end--;
    }
    size_t n = (size_t)(end - v), n_name = (size_t)(colon - line.at);
    if (!is_field_text(v, n)) {
        return false;
    }
    if (n_name == 14 && strncasecmp(line.at, "content-length", 14) == 0) {
        h->n_lengths++;
        h->length = 0;
        for (size_t i = 0; i < n; i++) {
            if (v[i] < '0' || v[i] > '9' || i > 15) {
                return false;
            }
            h->length = h->length * 10 + (size_t)(v[i] - '0');
        }
        return n > 0;
    }
    if (n_name == 17 && strncasecmp(line.at, "transfer-encoding", 17) == 0) {
        h->n_codings++;
        h->chunked = n == 7 && strncasecmp(v, "chunked", 7) == 0;
        return h->chunked;
    }
    h->n_hosts += n_name == 4 && strncasecmp(line.at, "host", 4) == 0;
    if (n_name == 10 && strncasecmp(line.at, "connection", 10) == 0) {
        h->close = h->close || (n >= 5 && strncasecmp(v, "close", 5) == 0);
    }
    return true;
}

/* A head. Chunks are not read: a body that is cut elsewhere still belongs to one request, and
 * nothing may be executed after it. */
static bool read_head(struct text *t, struct strict_head *h)
{
    struct text line;
    *h = (struct strict_head){0};
    while (t->at < t->end &&
           (*t->at == '\n' || (t->end - t->at > 1 && memcmp(t->at, "\r\n", 2) == 0))) {
        t->at++; // empty lines before a request, even if they end in a bare LF
    }
    if (!take_line(t, &line) || !read_request_line(line, h)) {
        return false;
    }
    for (;;) {
        if (!take_line(t, &line)) {
            return false;
        }
        if (line.at == line.end) {
            break;
        }
        if (!read_field(line, h)) {
            return false;
        }
    }
    return h->n_lengths <= 1 && h->n_codings <= 1 && h->n_lengths + h->n_codings <= 1 &&
           h->n_hosts <= 1 && (h->http10 ? h->n_codings == 0 : h->n_hosts == 1);
}

/* The requests that a strict reader finds before the first error. */
static struct reading read_strictly(const char *bytes, size_t n)
{
    struct reading r = {0};
    struct text t = {bytes, bytes + n};
    struct strict_head h;
    while (r.n < MAX_REQUESTS && read_head(&t, &h)) {
        if (h.chunked) {
            r.n_body[r.n++] = SIZE_MAX; // the body has no known length: this request is the last
            break;
        }
        if (h.length > (size_t)(t.end - t.at)) {
            break; // the body never becomes complete
        }
        r.n_body[r.n++] = h.length;
        t.at += h.length;
    }
    return r;
}

/* --- What came back --- */

/* Every reply is complete and well-formed, up to the end of the connection. */
static void check_replies(const char *bytes, size_t n)
{
    struct text t = {bytes, bytes + n}, line;
    while (t.at < t.end) {
        size_t length = 0;
        bool chunked = false, has_length = false, is_empty;
        ASSERT(take_line(&t, &line));
        ASSERT(line.end - line.at >= 12 && memcmp(line.at, "HTTP/1.", 7) == 0);
        int status = atoi(line.at + 9);
        ASSERT(status >= 100 && status < 600);
        while (ASSERT(take_line(&t, &line)), line.at < line.end) {
            ASSERT(memchr(line.at, ':', (size_t)(line.end - line.at)));
            ASSERT(is_field_text(line.at, (size_t)(line.end - line.at)));
            if (strncasecmp(line.at, "content-length:", 15) == 0) {
                length = strtoul(line.at + 15, NULL, 10);
                has_length = true;
            }
            chunked = chunked || strncasecmp(line.at, "transfer-encoding: chunked", 26) == 0;
        }
        is_empty = status == 204 || status == 100;
        if (!is_empty && !chunked && !has_length) {
            return; // the body lasts until the connection is closed
        }
        if (chunked) {
            size_t size;
            do {
                if (!take_line(&t, &line)) {
                    return; // a reply to HEAD, or a cut one; other tests check these
                }
                size = strtoul(line.at, NULL, 16);
                ASSERT(size <= (size_t)(t.end - t.at));
                t.at += size + 2;
            } while (size > 0 && t.at < t.end);
        } else if (t.at < t.end && length <= (size_t)(t.end - t.at) &&
                   !(length > 0 && memcmp(t.at, "HTTP/1.", 7) == 0)) { // else a reply to HEAD
            t.at += length;
        } else if (length > (size_t)(t.end - t.at)) {
            return; // the last one, a reply to HEAD
        }
    }
}

/* --- One connection --- */

/* Reads all that has arrived; `closed` when the server has closed. */
static bool takes_all(int fd, char *reply, size_t *n_reply, bool *closed)
{
    bool news = false;
    for (;;) {
        ssize_t n = recv(fd, reply + *n_reply, MAX_REPLY - *n_reply, MSG_DONTWAIT);
        if (n <= 0) {
            *closed = n == 0 || (errno != EAGAIN && errno != EINTR);
            return news;
        }
        *n_reply += (size_t)n;
        news = true;
        ASSERT(*n_reply < MAX_REPLY);
    }
}

/* Runs the loop until nothing more comes, with time for the pool's thread. */
static void turn(int fd, char *reply, size_t *n_reply, bool *closed)
{
    for (int quiet = 0; quiet < 3 && !*closed; quiet++) {
        uv_run(&server->loop, UV_RUN_NOWAIT);
        if (takes_all(fd, reply, n_reply, closed)) {
            quiet = 0;
        }
    }
}

/* Not blocking, since client and server are one thread. */
static int connect_client(void)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    memcpy(un.sun_path, socket_path, strlen(socket_path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT(fd >= 0 && connect(fd, (struct sockaddr *)&un, sizeof un) == 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* Nothing may be left of a connection, and it must end: otherwise the server spins or leaks. */
static void finish(int fd, char *reply, size_t *n_reply, bool closed)
{
    int64_t end = clock_now_ns() + PATIENCE_MS * 1000000LL;
    shutdown(fd, SHUT_WR);
    while (!closed || server->stats.n_active > 0 || server->stats.n_connections > 0) {
        turn(fd, reply, n_reply, &closed);
        if (closed) {
            uv_run(&server->loop, UV_RUN_NOWAIT);
        }
        ASSERT(clock_now_ns() < end);
        if (server->n_pool_jobs > 0) {
            poll(NULL, 0, 1);
        }
    }
    close(fd);
    ASSERT(server->stats.held_body_bytes == 0 && server->stats.held_stream_bytes == 0);
}

/* libmicrohttpd 0.9.75 ends lines by writing zeros over their last bytes, and takes a line that
 * begins with a zero or a colon as empty. What was there before is not known afterwards
 * (README). */
static bool is_blind_spot(const char *bytes, size_t n)
{
    return server->mhd_version < 0x01000000 &&
           (memchr(bytes, '\0', n) || memmem(bytes, n, "\n:", 2) || memmem(bytes, n, "\r:", 2));
}

/* The input in readable form. */
static void show(const char *bytes, size_t n, int n_strict)
{
    fprintf(stderr, "%d executed of %d:\n", executed.n, n_strict);
    for (size_t i = 0; i < n; i++) {
        fprintf(stderr, bytes[i] < ' ' || bytes[i] > 126 ? "\\x%02x" : "%c",
                (unsigned char)bytes[i]);
    }
    fputc('\n', stderr);
}

/* Sends the input in pieces, because errors hide in a parser's state between reads. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char reply[MAX_REPLY];
    size_t n_reply = 0;
    bool closed = false;
    if (!server) {
        open_server();
    }
    if (size < 2) {
        return 0;
    }
    const char *bytes = (const char *)data + 2;
    size_t n = size - 2, n_pieces = 1 + data[0] % 4, cut = n_pieces > 1 ? n * data[1] / 256 : n;
    executed.n = 0;
    int fd = connect_client();
    for (size_t i = 0, at = 0; i < n_pieces && at < n && !closed; i++) {
        size_t end = at + (n - at) / 2;
        if (i == 0) {
            end = cut;
        } else if (i + 1 == n_pieces) {
            end = n;
        }
        ssize_t sent = 0;
        if (end > at) {
            sent = send(fd, bytes + at, end - at, MSG_NOSIGNAL);
        }
        if (sent < 0) {
            break; // the server has closed the connection
        }
        at += (size_t)sent;
        turn(fd, reply, &n_reply, &closed);
    }
    finish(fd, reply, &n_reply, closed);

    check_replies(reply, n_reply);
    if (is_blind_spot(bytes, n)) {
        return 0;
    }
    struct reading strict = read_strictly(bytes, n);
    if (executed.n > strict.n) {
        show(bytes, n, strict.n);
    }
    ASSERT(executed.n <= strict.n);
    for (int i = 0, k = 0; i < executed.n; i++, k++) { // refused requests were not executed
        while (k < strict.n && strict.n_body[k] != SIZE_MAX &&
               strict.n_body[k] != executed.n_body[i]) {
            k++;
        }
        ASSERT(k < strict.n);
    }
    return 0;
}

#ifndef LIBFUZZER
/* The first two bytes of each seed choose the pieces. */
int main(void)
{
#define FEW "&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&"
#define MANY FEW FEW FEW FEW FEW FEW FEW FEW // fill libmicrohttpd's memory for a connection
    static const char *const seeds[] = {
        "0\x01GET /?" MANY " HTTP/1.1\r\nHo\rxs:\n t\r\n",
        "0\x01GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/models/a%2fb?x=1 HTTP/1.1\r\nHost: "
        "x\r\n\r\n",
        "1\x80POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Content-Length: 9\r\n\r\n{\"a\": 1}\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "2\x40POST /pool HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
        "0\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "0\x01POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 36\r\n\r\n{}  "
        " "
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "1\x60POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length : 36\r\n\r\nGET / HTTP/1.1\r\nHost: "
        "x\r\n\r\n",
        "0\x01POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n"
        "\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "3\x20GET /stream HTTP/1.1\r\nHost: x\r\n\r\nHEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
        "0\x01GET /stream HTTP/1.0\r\n\r\n",
        "0\x01OPTIONS /echo HTTP/1.1\r\nHost: x\r\nOrigin: https://a\r\n"
        "Access-Control-Request-Method: POST\r\n\r\n",
        "2\x90POST /pool HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
        "2\r\n\r\n{}",
        "0\x01GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
        "0\x01GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\nGET http://x/ HTTP/1.1\r\nHost: "
        "x\r\n\r\n",
        "0\x01POST /pool HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\nabc",
        "1\x50POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n"
        "abcDELETE /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "0\x01POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/jsn\r\nContent-Length: "
        "9\r\n"
        "\r\n{\"a\": 1}\nGET  HTTP/1.1\r\nHost: x\r\n\r\n",
        "0\x01PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "0\x01GET / HTTP/1.1\nHost: x\n\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "0\x01\r\nGET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: a.b\r\ntraceparent: "
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\r\n",
    };
    int rc = fuzz_main(seeds, sizeof seeds / sizeof seeds[0], 6000);
    unlink(socket_path);
    return rc;
}
#endif
