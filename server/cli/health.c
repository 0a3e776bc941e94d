/* `sluice health [URL]`: exit code 0 if the server answers 200 there. For containers and scripts on
 * machines without curl. */
#include "server/cli/commands.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define TIMEOUT_S 5 // for the connection, and for each read and write
#define DEFAULT_URL "http://127.0.0.1:8000/health"

struct target {
    char host[256], port[8], path[512];
};

/* http://HOST[:PORT][/PATH], HOST also as [v6 address]. */
static bool parse_url(const char *url, struct target *t)
{
    if (strncmp(url, "http://", 7) != 0) {
        return false;
    }
    const char *host = url + 7;
    const bool v6 = *host == '[';
    host += v6;
    const size_t n = strcspn(host, v6 ? "]" : ":/");
    const char *at = host + n + (v6 && host[n] == ']');
    if (n == 0 || n >= sizeof t->host || (v6 && host[n] != ']')) {
        return false;
    }
    snprintf(t->host, sizeof t->host, "%.*s", (int)n, host);
    snprintf(t->port, sizeof t->port, "80");
    if (*at == ':') {
        const size_t digits = strspn(++at, "0123456789");
        if (digits == 0 || digits > 5) {
            return false;
        }
        snprintf(t->port, sizeof t->port, "%.*s", (int)digits, at);
        at += digits;
    }
    if ((*at && *at != '/') || strlen(at) >= sizeof t->path || strpbrk(at, " \r\n")) {
        return false;
    }
    snprintf(t->path, sizeof t->path, "%s", *at ? at : "/health");
    return true;
}

/* A connected socket, or -1 with errno or *why set. */
static int open_socket(const struct target *t, const char **why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    const int rc = getaddrinfo(t->host, t->port, &hints, &list);
    if (rc != 0) {
        *why = gai_strerror(rc);
        return -1;
    }
    int fd = -1;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        const struct timeval limit = {.tv_sec = TIMEOUT_S};
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) ||
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) ||
            connect(fd, a->ai_addr, a->ai_addrlen)) {
            *why = errno == EINPROGRESS ? "no answer in time" : strerror(errno);
            if (fd >= 0) {
                close(fd);
            }
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd;
}

/* The reply's first bytes as text; false with *why if none came. */
static bool exchange(int fd, const struct target *t, char *reply, size_t cap, const char **why)
{
    char head[1024];
    const int n_head =
        snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
                 t->path, t->host);
    if (send(fd, head, (size_t)n_head, MSG_NOSIGNAL) != n_head) {
        *why = strerror(errno);
        return false;
    }
    size_t n = 0;
    while (n < cap - 1) {
        const ssize_t got = recv(fd, reply + n, cap - 1 - n, 0);
        if (got <= 0) {
            *why = got == 0 ? "the connection was closed" : strerror(errno);
            *why = got < 0 && errno == EAGAIN ? "no answer in time" : *why;
            break;
        }
        n += (size_t)got;
    }
    reply[n] = '\0';
    return n > 0;
}

int cmd_health(int argc, char **argv)
{
    const char *url = argc == 2 ? argv[1] : DEFAULT_URL, *why = "";
    struct target t;
    if (argc > 2 || !parse_url(url, &t)) {
        const bool help = argc == 2 && strcmp(argv[1], "--help") == 0;
        fprintf(help ? stdout : stderr,
                "usage: sluice health [URL]\n\n"
                "Exit code 0 if a GET of URL (%s) is answered with 200 within %d s.\n",
                DEFAULT_URL, TIMEOUT_S);
        return help ? 0 : 2;
    }
    const int fd = open_socket(&t, &why);
    char reply[2048] = "";
    const bool answered = fd >= 0 && exchange(fd, &t, reply, sizeof reply, &why);
    if (fd >= 0) {
        close(fd);
    }
    if (!answered) {
        fprintf(stderr, "sluice health: %s: %s\n", url, why);
        return 1;
    }
    const char *body = strstr(reply, "\r\n\r\n");
    int status = 0;
    sscanf(reply, "HTTP/1.%*1[01] %3d", &status);
    printf("%d %s\n", status, body ? body + 4 : "");
    return status == 200 ? 0 : 1;
}
