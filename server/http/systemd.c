// SPDX-License-Identifier: Apache-2.0
/* systemd's interface for services: sockets from descriptor 3 on, notifications on a datagram
 * socket, and watchdog pings. No library is needed. */
#include "server/http/private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

static int64_t number_from_env(const char *name)
{
    const char *text = getenv(name);
    if (!text || !*text) {
        return -1;
    }
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || *end || v < 0) {
        return -1;
    }
    return v;
}

/* The variables are meant for one process: a different LISTEN_PID means that they were
 * inherited. */
int http_systemd_sockets(void)
{
    int64_t n = number_from_env("LISTEN_FDS");
    bool ours = number_from_env("LISTEN_PID") == (int64_t)getpid();
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDNAMES");
    if (ours && n > 0 && n <= MAX_LISTENERS) {
        return (int)n;
    }
    return 0;
}

void http_systemd_open(struct http_server *s)
{
    const char *path = getenv("NOTIFY_SOCKET");
    if (path && (path[0] == '/' || path[0] == '@')) {
        s->notify_path = xstrdup(path);
    }
    int64_t usec = number_from_env("WATCHDOG_USEC");
    int64_t pid = number_from_env("WATCHDOG_PID");
    if (usec > 0 && (pid < 0 || pid == (int64_t)getpid())) {
        s->watchdog_ns = usec * 1000 / 2; // twice per period, as the manual advises
    }
}

void http_notify(struct http_server *s, const char *text)
{
    if (!s->notify_path) {
        return;
    }
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = strlen(s->notify_path);
    if (n >= sizeof to.sun_path) {
        return;
    }
    memcpy(to.sun_path, s->notify_path, n);
    if (to.sun_path[0] == '@') {
        to.sun_path[0] = '\0'; // the abstract namespace
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return;
    }
    socklen_t n_to = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    if (sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&to, n_to) <
        0) {
        log_debug("systemd could not be notified: %s", strerror(errno));
    }
    close(fd);
}

void http_set_watchdog(struct http_server *s, bool (*healthy)(void *arg), void *arg)
{
    s->healthy = healthy;
    s->healthy_arg = arg;
}

void http_systemd_tick(struct http_server *s)
{
    if (s->watchdog_ns <= 0 || s->now_ns - s->watchdog_last_ns < s->watchdog_ns) {
        return;
    }
    s->watchdog_last_ns = s->now_ns;
    if (!s->healthy || s->healthy(s->healthy_arg)) {
        http_notify(s, "WATCHDOG=1");
    }
}
