// SPDX-License-Identifier: Apache-2.0
/* A client for one request; see client.h. */
#include "server/client/client.h"

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "server/client/http_in.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_REQUEST_BYTES = 256 << 20, LOOK_MS = 100 /* how often `stop` is checked */ };

/* Waits until the socket is ready for `events`. */
static enum status await(int fd, short events, const struct client_request *request,
                         struct err *err)
{
    const int64_t begin = clock_now_ns(), limit = (int64_t)request->timeout_s * 1000000000;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        if (request->stop != NULL && *request->stop != 0) {
            return err_set(err, ERR_CANCELLED, "stopped");
        }
        const int n = poll(&p, 1, LOOK_MS);
        if (n > 0) {
            return OK;
        }
        if (n < 0 && errno != EINTR) {
            return err_set(err, ERR_IO, "%s", strerror(errno));
        }
        if (limit > 0 && clock_now_ns() - begin > limit) {
            return err_set(err, ERR_TIMEOUT, "no answer in time");
        }
    }
}

/* A connected non-blocking socket in *fd; -1 on failure. */
static enum status open_one(int family, const struct sockaddr *address, socklen_t n_address,
                            const struct client_request *request, int *fd, struct err *err)
{
    *fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) {
        return err_set(err, ERR_IO, "%s", strerror(errno));
    }
    enum status st = OK;
    int failed = 0;
    if (connect(*fd, address, n_address) != 0) {
        socklen_t n = sizeof failed;
        failed = errno;
        if (failed == EINPROGRESS) {
            st = await(*fd, POLLOUT, request, err);
            failed = 0;
            getsockopt(*fd, SOL_SOCKET, SO_ERROR, &failed, &n);
        }
    }
    if (st == OK && failed != 0) {
        st = err_set(err, ERR_IO, "%s", strerror(failed));
    }
    if (st != OK) {
        close(*fd);
        *fd = -1;
    }
    return st;
}

/* Tries all addresses of the host in turn. */
static enum status open_socket(const struct client_peer *peer, const struct client_request *request,
                               int *fd, struct err *err)
{
    *fd = -1;
    if (peer->unix_path[0] != '\0') {
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        memcpy(un.sun_path, peer->unix_path, sizeof un.sun_path);
        return open_one(AF_UNIX, (const struct sockaddr *)&un, sizeof un, request, fd, err);
    }
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    const int rc = getaddrinfo(peer->host, peer->port, &hints, &list);
    if (rc != 0) {
        return err_set(err, ERR_IO, "%s: %s", peer->host, gai_strerror(rc));
    }
    enum status st = ERR_IO;
    for (const struct addrinfo *a = list; a != NULL && st == ERR_IO; a = a->ai_next) {
        st = open_one(a->ai_family, a->ai_addr, a->ai_addrlen, request, fd, err);
    }
    freeaddrinfo(list);
    return st;
}

/* Head and body are in one buffer, so that a small request is one packet. */
static void put_request(const struct client_peer *peer, const struct client_request *request,
                        struct buf *out)
{
    const bool v6 = strchr(peer->host, ':') != NULL;
    buf_printf(out, "%s %s%s HTTP/1.1\r\nHost: ", request->method, peer->path, request->path);
    if (peer->unix_path[0] != '\0') {
        buf_puts(out, "localhost\r\n");
    } else {
        buf_printf(out, v6 ? "[%s]:%s\r\n" : "%s:%s\r\n", peer->host, peer->port);
    }
    buf_puts(out, "Connection: close\r\n");
    if (request->key != NULL) {
        buf_printf(out, "Authorization: Bearer %s\r\n", request->key);
    }
    if (request->body != NULL) {
        const size_t n = strlen(request->body);
        buf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n", n);
        buf_put(out, request->body, n);
    } else {
        buf_puts(out, "\r\n");
    }
}

/* Stops early if the connection breaks: a server may answer (413) and close before it has read
 * everything. The error is reported when the answer is read. */
static enum status send_all(int fd, const struct client_request *request, const struct buf *out,
                            struct err *err)
{
    size_t sent = 0;
    while (sent < out->n_bytes) {
        const ssize_t n = send(fd, out->data + sent, out->n_bytes - sent, MSG_NOSIGNAL);
        if (n >= 0) {
            sent += (size_t)n;
        } else if (errno == EAGAIN || errno == EINTR) {
            TRY(await(fd, POLLOUT, request, err));
        } else {
            return OK;
        }
    }
    return OK;
}

/* Reads the answer. A body without a length ends when the connection does. */
static enum status receive_all(int fd, const struct client_request *request, struct http_in *in,
                               struct err *err)
{
    char bytes[16384];
    for (;;) {
        const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            TRY(await(fd, POLLIN, request, err));
            continue;
        }
        if (n < 0) {
            return err_set(err, ERR_IO, "%s", strerror(errno));
        }
        enum http_in_result got;
        if (n == 0) {
            got = http_in_eof(in);
        } else {
            got = http_in_feed(in, bytes, (size_t)n);
        }
        if (got == HTTP_IN_DONE) {
            return OK;
        }
        if (n == 0) {
            return err_set(err, ERR_IO, "the connection was closed");
        }
        if (got == HTTP_IN_BAD) {
            return err_set(err, ERR_FORMAT, "the answer is not HTTP");
        }
    }
}

/* Where to store the status, and the function that receives the body. */
struct receiver {
    struct http_in in;
    void (*on_body)(void *arg, const char *bytes, size_t n_bytes);
    void *arg;
    int *status;
};

static void on_bytes(void *arg, const char *bytes, size_t n_bytes)
{
    struct receiver *r = arg;
    *r->status = r->in.status;
    r->on_body(r->arg, bytes, n_bytes);
}

enum status client_call(const struct client_peer *peer, const struct client_request *request,
                        void (*on_body)(void *arg, const char *bytes, size_t n_bytes), void *arg,
                        int *status, struct err *err)
{
    int fd;
    struct buf out;
    struct receiver r = {.on_body = on_body, .arg = arg, .status = status};
    *status = 0;
    enum status st = open_socket(peer, request, &fd, err);
    if (st != OK) {
        return err_prefix(err, st, "cannot connect");
    }
    buf_init(&out, MAX_REQUEST_BYTES);
    http_in_init(&r.in, on_bytes, &r);
    put_request(peer, request, &out);
    if (out.failed) {
        st = err_set(err, ERR_LIMIT, "the request is too large");
    } else {
        st = OK;
    }
    if (st == OK) {
        st = send_all(fd, request, &out, err);
    }
    if (st == OK) {
        st = receive_all(fd, request, &r.in, err);
    }
    *status = r.in.status;
    http_in_deinit(&r.in);
    buf_deinit(&out);
    close(fd);
    return st;
}
