// SPDX-License-Identifier: Apache-2.0
/* Listening sockets and accepting connections. We call accept ourselves, so that one daemon serves
 * any number of listeners, a client above the limit gets an answer, and running out of descriptors
 * neither spins nor stalls. */
#include "server/http/private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    BACKLOG = 4096,
    ACCEPTS_PER_TURN = 256,
    N_CUT = 64, // connections that we have cut to free slots, not yet closed by libmicrohttpd
};

/* Formats an address as users write it: host and port, with brackets for IPv6. */
static void format_address(const struct sockaddr *sa, char *text, size_t n_text)
{
    char host[INET6_ADDRSTRLEN] = "";
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)sa;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        snprintf(text, n_text, "%s:%u", host, ntohs(in->sin_port));
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)sa;
        if (IN6_IS_ADDR_V4MAPPED(&in->sin6_addr)) {
            inet_ntop(AF_INET, in->sin6_addr.s6_addr + 12, host, sizeof host);
            snprintf(text, n_text, "%s:%u", host, ntohs(in->sin6_port));
        } else {
            inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
            snprintf(text, n_text, "[%s]:%u", host, ntohs(in->sin6_port));
        }
    } else {
        snprintf(text, n_text, "unix");
    }
}

/* Takes ownership of the descriptor, even on failure. */
static enum status add_listener(struct http_server *s, int fd, bool inherited, const char *path,
                                struct err *err)
{
    struct sockaddr_storage sa;
    memset(&sa, 0, sizeof sa);
    socklen_t n_sa = sizeof sa;
    int type = 0;
    socklen_t n_type = sizeof type;
    if (s->n_listeners == MAX_LISTENERS) {
        close(fd);
        return err_set(err, ERR_LIMIT, "more than %d listeners", MAX_LISTENERS);
    }
    if (getsockname(fd, (struct sockaddr *)&sa, &n_sa) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n_type) < 0 || type != SOCK_STREAM) {
        close(fd);
        return err_set(err, ERR_INVALID, "descriptor %d is not a stream socket", fd);
    }
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (listen(fd, BACKLOG) < 0) {
        int e = errno;
        close(fd);
        return err_set(err, ERR_IO, "cannot listen: %s", strerror(e));
    }
    struct http_listener *l = &s->listeners[s->n_listeners++];
    *l = (struct http_listener){.server = s, .fd = fd, .inherited = inherited};
    l->is_unix = sa.ss_family == AF_UNIX;
    if (l->is_unix) {
        const struct sockaddr_un *un = (const struct sockaddr_un *)(const void *)&sa;
        snprintf(l->address, sizeof l->address, "unix:%s", un->sun_path);
        l->unlink_path = path ? xstrdup(path) : NULL;
    } else {
        format_address((const struct sockaddr *)&sa, l->address, sizeof l->address);
    }
    return OK;
}

/* A socket file without a listener is stale and is replaced. */
static bool is_stale(const struct sockaddr_un *un)
{
    struct stat st;
    if (stat(un->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode)) {
        return false;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool refused = fd >= 0 && connect(fd, (const struct sockaddr *)un, sizeof *un) < 0 &&
                   errno == ECONNREFUSED;
    if (fd >= 0) {
        close(fd);
    }
    return refused;
}

/* An address in use has its own status, because the user can choose another one. */
static enum status bind_status(int error)
{
    return error == EADDRINUSE ? ERR_BUSY : ERR_IO;
}

/* Replaces a socket file left by a server that has died. */
static enum status listen_unix(struct http_server *s, const char *path, struct err *err)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    if (strlen(path) == 0 || strlen(path) >= sizeof un.sun_path) {
        return err_set(err, ERR_INVALID, "'%s' is not a path for a Unix socket", path);
    }
    memcpy(un.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return err_set(err, ERR_IO, "no Unix socket: %s", strerror(errno));
    }
    if (is_stale(&un)) {
        unlink(path);
    }
    if (bind(fd, (const struct sockaddr *)&un, sizeof un) < 0) {
        int e = errno;
        close(fd);
        return err_set(err, bind_status(e), "cannot bind %s: %s", path, strerror(e));
    }
    return add_listener(s, fd, false, path, err);
}

/* Listens on one resolved address. */
static enum status listen_address(struct http_server *s, const struct addrinfo *a, const char *spec,
                                  struct err *err)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return err_set(err, ERR_IO, "no socket for %s: %s", spec, strerror(errno));
    }
    int on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6) { // "::" accepts IPv4 too, whatever the system default
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (bind(fd, a->ai_addr, a->ai_addrlen) < 0) {
        int e = errno;
        close(fd);
        return err_set(err, bind_status(e), "cannot bind %s: %s", spec, strerror(e));
    }
    return add_listener(s, fd, false, NULL, err);
}

/* The port comes after the last colon, since IPv6 addresses have colons. */
static enum status listen_tcp(struct http_server *s, const char *spec, struct err *err)
{
    char host[256];
    const char *colon = strrchr(spec, ':');
    size_t n_port = colon ? strlen(colon + 1) : 0;
    if (!colon || (size_t)(colon - spec) >= sizeof host || n_port < 1 || n_port > 5 ||
        strspn(colon + 1, "0123456789") != n_port || strtol(colon + 1, NULL, 10) > 65535) {
        return err_set(err, ERR_INVALID, "'%s' is not HOST:PORT, unix:PATH or fd:N", spec);
    }
    size_t n_host = (size_t)(colon - spec);
    memcpy(host, spec, n_host);
    host[n_host] = '\0';
    const char *name = host;
    if (n_host >= 2 && host[0] == '[' && host[n_host - 1] == ']') {
        host[n_host - 1] = '\0';
        name = host + 1;
    }
    bool all = *name == '\0' || strcmp(name, "*") == 0;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int rc = getaddrinfo(all ? "::" : name, colon + 1, &hints, &list);
    if (rc != 0) {
        return err_set(err, ERR_INVALID, "cannot resolve %s: %s", spec, gai_strerror(rc));
    }
    enum status st = OK, first = OK;
    size_t before = s->n_listeners;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        st = listen_address(s, a, spec, err);
        if (first == OK) {
            first = st;
        }
    }
    freeaddrinfo(list);
    if (all && s->n_listeners == before) { // the system has no IPv6
        char v4[32];
        snprintf(v4, sizeof v4, "0.0.0.0%s", colon);
        return listen_tcp(s, v4, err);
    }
    return s->n_listeners > before ? OK : first;
}

/* `spec` names a TCP address, a Unix socket, or a descriptor that the parent has opened. */
enum status http_listen_open(struct http_server *s, const char *spec, struct err *err)
{
    if (strncmp(spec, "unix:", 5) == 0) {
        return listen_unix(s, spec + 5, err);
    }
    if (strncmp(spec, "fd:", 3) == 0) {
        char *end;
        long fd = strtol(spec + 3, &end, 10);
        if (*end || end == spec + 3 || fd < 0 || fd > 1 << 20) {
            return err_set(err, ERR_INVALID, "'%s' is not fd:N", spec);
        }
        return http_listen_take(s, (int)fd, err);
    }
    return listen_tcp(s, spec, err);
}

enum status http_listen_take(struct http_server *s, int fd, struct err *err)
{
    return add_listener(s, fd, true, NULL, err);
}

/* --- Refusing --- */

static void swallow(int fd)
{
    char sink[4096];
    for (int i = 0; i < 16 && recv(fd, sink, sizeof sink, MSG_DONTWAIT) > 0; i++) {
    }
}

/* Closing a socket with unread bytes resets the connection, and the client may never read the
 * answer. So rejected sockets linger for a second, but only a few of them. */
static void refuse(struct http_server *s, int fd, bool tls, const char *why)
{
    s->stats.n_refused++;
    if (!tls) {
        http_refuse_raw(s, fd, 503, "server_overloaded", why, 1);
    }
    shutdown(fd, SHUT_WR);
    swallow(fd);
    size_t oldest = 0;
    for (size_t i = 0; i < N_LINGER; i++) {
        if (s->linger[i].fd < 0) {
            oldest = i;
            break;
        }
        if (s->linger[i].due_ns < s->linger[oldest].due_ns) {
            oldest = i;
        }
    }
    if (s->linger[oldest].fd >= 0) {
        swallow(s->linger[oldest].fd);
        close(s->linger[oldest].fd);
    }
    s->linger[oldest].fd = fd;
    s->linger[oldest].due_ns = s->now_ns + 1000000000;
}

/* Sockets that were refused stay open until the client has read its answer: closing with
 * unread data would reset the connection. */
static void linger_tick(struct http_server *s, bool all)
{
    for (size_t i = 0; i < N_LINGER; i++) {
        if (s->linger[i].fd >= 0 && (all || s->linger[i].due_ns <= s->now_ns)) {
            swallow(s->linger[i].fd);
            close(s->linger[i].fd);
            s->linger[i].fd = -1;
        }
    }
}

/* --- Accepting --- */

static void pause_listeners(struct http_server *s, bool pause);

/* No descriptors are left: frees the spare one to answer one client, then pauses accepting. */
static void out_of_descriptors(struct http_server *s, struct http_listener *l)
{
    linger_tick(s, true);
    if (s->spare_fd >= 0) {
        close(s->spare_fd);
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            s->stats.n_refused++;
            http_refuse_raw(s, fd, 503, "server_overloaded", "Too many connections.", 1);
            shutdown(fd, SHUT_WR);
            swallow(fd);
            close(fd);
        }
        s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    s->accept_pause_ns = s->now_ns + TICK_MS * 1000000LL;
    pause_listeners(s, true);
}

/* The number of connections above the limit. */
static unsigned reserve_of(const struct http_server *s)
{
    return 16 + s->options.max_connections / 20;
}

/* Accepts some connections above the limit too, for HTTP_ROUTE_ALWAYS and so that other requests
 * get a proper error. Connections beyond that reserve are refused at once. */
static void take(struct http_server *s, struct http_listener *l, int fd,
                 const struct sockaddr_storage *sa, socklen_t n_sa)
{
    const struct http_options *o = &s->options;
    bool tls = s->tls && !l->is_unix;
    s->stats.n_accepted++;
    unsigned most = o->max_connections + reserve_of(s), n = s->stats.n_connections;
    if (n >= most + N_CUT || (n >= most && !http_conn_make_place(s))) {
        refuse(s, fd, tls, "Too many connections.");
        return;
    }
    struct http_address *address;
    if (!http_address_enter(s, (const struct sockaddr *)sa, &address)) {
        refuse(s, fd, tls, "Too many connections from this address.");
        return;
    }
    struct http_conn *c = xcalloc(1, sizeof *c);
    c->server = s;
    c->address = address;
    c->daemon = tls ? s->tls : s->plain;
    c->fd = fd;
    c->over_limit = s->stats.n_connections >= o->max_connections;
    format_address((const struct sockaddr *)sa, c->peer, sizeof c->peer);
    s->accepting = c;
    /* libmicrohttpd cannot handle addresses of Unix sockets. */
    struct sockaddr_in none = {.sin_family = AF_INET};
    const struct sockaddr *addr;
    if (l->is_unix) {
        addr = (const struct sockaddr *)&none;
    } else {
        addr = (const struct sockaddr *)sa;
    }
    if (MHD_add_connection(c->daemon->mhd, fd, addr, l->is_unix ? sizeof none : n_sa) != MHD_YES &&
        s->accepting) {
        s->accepting = NULL;
        http_address_leave(s, address);
        free(c); // libmicrohttpd has closed the socket
    }
    s->accepting = NULL;
}

/* The number of connections above the limit that are accepted per turn. It is small, so that a head
 * that arrives together with its connection is read before that connection is among those that are
 * closed. libmicrohttpd reads, and closes what was cut, up to two turns later. */
static unsigned accepts_over_limit(const struct http_server *s)
{
    const unsigned few = reserve_of(s) / 4;
    return few < N_CUT / 2 ? few : N_CUT / 2;
}

/* Accepts a bounded number of connections per turn, so that running requests get their time. */
static void on_listener(uv_poll_t *poll, int status, int events)
{
    struct http_listener *l = poll->data;
    struct http_server *s = l->server;
    (void)status;
    (void)events;
    s->now_ns = clock_now_ns();
    const unsigned most_over = accepts_over_limit(s);
    unsigned n_over = 0;
    for (int i = 0; i < ACCEPTS_PER_TURN && n_over < most_over; i++) {
        struct sockaddr_storage sa;
        socklen_t n_sa = sizeof sa;
        memset(&sa, 0, sizeof sa);
        int fd = accept4(l->fd, (struct sockaddr *)&sa, &n_sa, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            take(s, l, fd, &sa, n_sa);
            n_over += s->stats.n_connections > s->options.max_connections;
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            out_of_descriptors(s, l);
            break;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            break; // EAGAIN, or an error of that client only
        }
    }
    http_settle(s);
}

/* While descriptors are exhausted the listeners are not polled: they would be ready all the time.
 */
static void pause_listeners(struct http_server *s, bool pause)
{
    for (size_t i = 0; i < s->n_listeners; i++) {
        struct http_listener *l = &s->listeners[i];
        if (l->fd >= 0 && l->polling == pause) {
            l->polling = !pause;
            if (pause) {
                uv_poll_stop(&l->poll);
            } else {
                uv_poll_start(&l->poll, UV_READABLE, on_listener);
            }
        }
    }
}

void http_listen_start(struct http_server *s)
{
    for (size_t i = 0; i < s->n_listeners; i++) {
        struct http_listener *l = &s->listeners[i];
        uv_poll_init(&s->loop, &l->poll, l->fd);
        l->poll.data = l;
    }
    pause_listeners(s, false);
}

void http_listen_tick(struct http_server *s)
{
    linger_tick(s, false);
    if (s->accept_pause_ns > 0 && s->now_ns >= s->accept_pause_ns) {
        s->accept_pause_ns = 0;
        pause_listeners(s, false);
    }
}

/* Also removes the files of Unix sockets. */
void http_listen_close(struct http_server *s)
{
    for (size_t i = 0; i < s->n_listeners; i++) {
        struct http_listener *l = &s->listeners[i];
        if (l->fd < 0) {
            continue;
        }
        if (l->poll.data) {
            uv_close((uv_handle_t *)&l->poll, NULL);
        }
        close(l->fd);
        l->fd = -1;
        if (l->unlink_path) {
            unlink(l->unlink_path);
        }
        free(l->unlink_path);
        l->unlink_path = NULL;
    }
    s->accept_pause_ns = 0;
    linger_tick(s, true);
}
