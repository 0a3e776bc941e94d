// SPDX-License-Identifier: Apache-2.0
#include "engine/base/wire.h"
#include "engine/base/optional.h"

#include "engine/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* True if the fd is ready or broken; if it is broken, the next call on it reports the error. */
static bool wait_for(int fd, short events, int64_t deadline_ns)
{
    for (;;) {
        int64_t left = deadline_ns - clock_now_ns();
        if (left < 0) {
            return false;
        }
        int64_t ms = left / 1000000 + 1;
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, ms > 1000 ? 1000 : (int)ms);
        if (n > 0) {
            return true;
        }
        if (n < 0 && errno != EINTR) {
            return true;
        }
    }
}

static void set_stream(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* A socket bound to this address, or -1 with errno set. */
static int bind_to(const struct addrinfo *a)
{
    int on = 1, off = 0;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    bool good = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
    if (a->ai_family == AF_INET6) { // "::" accepts IPv4 too
        good = good && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0;
    }
    if (!good || bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 128) != 0) {
        int why = errno;
        wire_close(&fd);
        errno = why;
    }
    return fd;
}

/* Without a host, listens on all IPv6 addresses and, through them, on IPv4. Port 0 picks a free
 * port, which is returned. */
enum status wire_listen(const char *host, int32_t port, int *out, int32_t *bound_port,
                        struct err *err)
{
    const char *shown = or_text(host, "all addresses");
    char service[16];
    *out = -1;
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int rc = getaddrinfo(or_text(host, "::"), service, &hints, &list);
    if (rc != 0) {
        return err_set(err, ERR_INVALID, "cannot resolve '%s': %s", shown, gai_strerror(rc));
    }
    int why = 0;
    for (const struct addrinfo *a = list; a && *out < 0; a = a->ai_next) {
        *out = bind_to(a);
        why = errno;
    }
    freeaddrinfo(list);
    if (*out < 0 && !host) { // the machine has IPv6 only
        return wire_listen("0.0.0.0", port, out, bound_port, err);
    }
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    if (*out < 0 || getsockname(*out, (struct sockaddr *)&bound, &n) != 0) {
        wire_close(out);
        return err_set(err, ERR_IO, "cannot listen on %s port %d: %s", shown, port, strerror(why));
    }
    *bound_port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                    : ((struct sockaddr_in *)&bound)->sin_port);
    return OK;
}

/* Connections that broke before they were accepted are skipped; running out of descriptors
 * is an error. */
enum status wire_accept(int listener, int64_t deadline_ns, int *fd, char *from, size_t from_bytes)
{
    struct sockaddr_storage a;
    for (;;) {
        socklen_t n = sizeof a;
        *fd = accept4(listener, (struct sockaddr *)&a, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (*fd >= 0) {
            set_stream(*fd);
            char host[128] = "?";
            getnameinfo((struct sockaddr *)&a, n, host, sizeof host, NULL, 0, NI_NUMERICHOST);
            if (from) {
                snprintf(from, from_bytes, "%s", host);
            }
            return OK;
        }
        if (errno == EMFILE || errno == ENFILE || errno == EBADF || errno == EINVAL) {
            return ERR_IO;
        }
        if (!wait_for(listener, POLLIN, deadline_ns)) {
            return ERR_TIMEOUT;
        }
    }
}

/* Connecting may take until the deadline; the result is then read from the socket. */
static int connect_to(const struct addrinfo *a, int64_t deadline_ns)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    int rc = connect(fd, a->ai_addr, a->ai_addrlen), why = errno;
    if (rc != 0 && why == EINPROGRESS) {
        socklen_t n = sizeof why;
        if (!wait_for(fd, POLLOUT, deadline_ns)) {
            why = ETIMEDOUT;
        } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &n) != 0) {
            why = errno;
        }
    } else if (rc == 0) {
        why = 0;
    }
    if (why != 0) {
        wire_close(&fd);
        errno = why;
        return -1;
    }
    set_stream(fd);
    return fd;
}

/* Tries all addresses of the name in turn. */
enum status wire_connect(const char *host, int32_t port, int64_t deadline_ns, int *fd,
                         struct err *err)
{
    *fd = -1;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0) {
        // The name may become resolvable later: a headless service lists its pods only once they
        // run.
        return err_set(err, rc == EAI_AGAIN || rc == EAI_NONAME ? ERR_IO : ERR_INVALID, "%s: %s",
                       host, gai_strerror(rc));
    }
    errno = ECONNREFUSED;
    for (struct addrinfo *a = list; a && *fd < 0; a = a->ai_next) {
        *fd = connect_to(a, deadline_ns);
    }
    int why = errno;
    freeaddrinfo(list);
    if (*fd >= 0) {
        return OK;
    }
    return err_set(err, ERR_IO, "%s port %d: %s", host, port, strerror(why));
}

/* SIGPIPE is off for this call, so a broken stream is reported as an error, not as a signal. */
enum status wire_send(int fd, const void *bytes, size_t n_bytes, int64_t deadline_ns)
{
    const char *p = bytes;
    while (n_bytes > 0) {
        ssize_t n = send(fd, p, n_bytes, MSG_NOSIGNAL);
        if (n > 0) {
            p += n;
            n_bytes -= (size_t)n;
        } else if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            return ERR_IO;
        } else if (!wait_for(fd, POLLOUT, deadline_ns)) {
            return ERR_TIMEOUT;
        }
    }
    return OK;
}

/* Receives the bytes that have arrived, without waiting; 0 bytes mean "nothing yet". */
enum status wire_read_some(int fd, void *bytes, size_t n_bytes, size_t *got)
{
    *got = 0;
    ssize_t n = recv(fd, bytes, n_bytes, 0);
    if (n > 0) {
        *got = (size_t)n;
        return OK;
    }
    bool later = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    return later ? OK : ERR_IO;
}

enum status wire_recv(int fd, void *bytes, size_t n_bytes, int64_t deadline_ns)
{
    char *p = bytes;
    while (n_bytes > 0) {
        size_t got;
        TRY(wire_read_some(fd, p, n_bytes, &got));
        p += got;
        n_bytes -= got;
        if (got == 0 && !wait_for(fd, POLLIN, deadline_ns)) {
            return ERR_TIMEOUT;
        }
    }
    return OK;
}

/* Sends what is pending, then reads until the peer closes, so that a reset does not discard data in
 * flight. */
void wire_finish(int fd, int64_t deadline_ns)
{
    char unread[4096];
    size_t got;
    shutdown(fd, SHUT_WR);
    while (wire_read_some(fd, unread, sizeof unread, &got) == OK) {
        if (got == 0 && !wait_for(fd, POLLIN, deadline_ns)) {
            return;
        }
    }
}

void wire_break(int fd)
{
    if (fd >= 0) {
        shutdown(fd, SHUT_RDWR);
    }
}

void wire_close(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}
