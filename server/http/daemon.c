// SPDX-License-Identifier: Apache-2.0
/* libmicrohttpd's daemons: one for plain connections, one for TLS. Neither has a listening socket;
 * both are driven through their epoll descriptors. */
#include "server/http/private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PEM_BYTES = 1 << 20 };

/* MHD_USE_NO_THREAD_SAFETY of 1.0: without it each resume writes to an eventfd. The value is
 * defined here so that a program built with an older header benefits from a newer library. */
enum { NO_THREAD_SAFETY = 1 << 19 };

/* "0.9.75" as 0x00097500: the version of the library at run time, not at build time. */
static int library_version(void)
{
    int major = 0, minor = 0, patch = 0;
    if (sscanf(MHD_get_version(), "%d.%d.%d", &major, &minor, &patch) < 2) {
        return 0;
    }
    if (major == 0) {
        return minor << 16 | (patch / 10) << 12 | (patch % 10) << 8;
    }
    return major << 24 | minor << 16 | patch << 8;
}

/* Most of these messages are about errors of clients, which the request log has anyway. */
static void on_mhd_log(void *arg, const char *fmt, va_list args) PRINTF_LIKE(2, 0);
static void on_mhd_log(void *arg, const char *fmt, va_list args)
{
    (void)arg;
    if (log_get_level() > LOG_DEBUG) {
        return;
    }
    char text[512];
    int n = vsnprintf(text, sizeof text, fmt, args);
    text[n > 0 && (size_t)n < sizeof text && text[n - 1] == '\n' ? n - 1 : (int)sizeof text - 1] =
        '\0';
    log_debug("libmicrohttpd: %s", text);
}

/* Replaces libmicrohttpd's decoding: route.c decodes the original target, once. */
static size_t no_unescape(void *arg, struct MHD_Connection *mhd, char *text)
{
    (void)arg;
    http_argument_seen(mhd, text);
    return strlen(text);
}

static void on_connection(void *arg, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_daemon *d = arg;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*context) {
            http_request_lost(*context);
            http_conn_closed(*context);
        }
        return;
    }
    struct http_conn *c = d->server->accepting;
    d->server->accepting = NULL;
    *context = c;
    if (c) {
        http_conn_open(c, mhd);
    }
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
    struct http_daemon *d = poll->data;
    (void)status;
    (void)events;
    d->server->now_ns = clock_now_ns();
    d->ready = true;
    http_settle(d->server);
}

static enum status read_pem(const char *path, char **text, struct err *err)
{
    FILE *f = fopen(path, "r");
    if (!f) {
        return err_set(err, ERR_IO, "cannot open %s", path);
    }
    *text = xcalloc(1, MAX_PEM_BYTES + 1);
    size_t n = fread(*text, 1, MAX_PEM_BYTES, f);
    fclose(f);
    if (n > 0) {
        return OK;
    }
    return err_set(err, ERR_IO, "%s is empty", path);
}

/* conn.c keeps all deadlines, so libmicrohttpd gets none. One thread makes all calls, so version
 * 1.0 need not lock. */
static struct MHD_Daemon *start(struct http_daemon *d, char *cert, char *key)
{
    struct http_server *s = d->server;
    unsigned flags =
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG;
    if (cert) {
        flags |= (unsigned)MHD_USE_TLS;
    }
    bool modern = s->mhd_version >= 0x01000000;
    if (modern) {
        flags |= (unsigned)NO_THREAD_SAFETY;
    }
    /* The strictest level of 1.0. At this level 0.9.75 would answer some requests twice, so with
     * 0.9.75 guard.c does the checks. The pool's size also bounds a request's head. */
    struct MHD_OptionItem tls[] = {
        {cert ? MHD_OPTION_HTTPS_MEM_CERT : MHD_OPTION_END, 0, cert},
        {key ? MHD_OPTION_HTTPS_MEM_KEY : MHD_OPTION_END, 0, key},
        {MHD_OPTION_HTTPS_PRIORITIES, 0,
         (void *)(s->options.tls13_only ? "NORMAL:-VERS-ALL:+VERS-TLS1.3"
                                        : "NORMAL:-VERS-ALL:+VERS-TLS1.2:+VERS-TLS1.3")},
        {MHD_OPTION_END, 0, NULL},
    };
    return MHD_start_daemon(
        flags, 0, NULL, NULL, http_handle, s, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, NULL,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, s->options.max_header_bytes,
        MHD_OPTION_CONNECTION_LIMIT, s->options.max_connections * 2 + 1024,
        MHD_OPTION_CONNECTION_TIMEOUT, 0u, MHD_OPTION_STRICT_FOR_CLIENT, modern ? 1 : 0,
        MHD_OPTION_UNESCAPE_CALLBACK, no_unescape, NULL, MHD_OPTION_URI_LOG_CALLBACK, http_uri_seen,
        s, MHD_OPTION_NOTIFY_COMPLETED, http_completed, s, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, d, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
}

enum status http_daemon_open(struct http_server *s, bool tls, struct http_daemon **out,
                             struct err *err)
{
    char *cert = NULL, *key = NULL;
    s->mhd_version = library_version();
    if (tls) {
        enum status st = read_pem(s->tls_cert, &cert, err);
        if (st == OK) {
            st = read_pem(s->tls_key, &key, err);
        }
        if (st != OK) {
            free(cert);
            free(key);
            return st;
        }
    }
    struct http_daemon *d = xcalloc(1, sizeof *d);
    d->server = s;
    d->tls = tls;
    d->mhd = start(d, cert, key);
    if (key) {
        explicit_bzero(key, strlen(key)); // libmicrohttpd has parsed it
    }
    free(cert);
    free(key);
    if (!d->mhd) {
        free(d);
        if (tls) {
            return err_set(err, ERR_INVALID,
                           "TLS cannot start with %s and %s: they must be a PEM certificate chain "
                           "and the private key of its first certificate",
                           s->tls_cert, s->tls_key);
        }
        return err_set(err, ERR_IO, "libmicrohttpd %s does not start", MHD_get_version());
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(d->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    uv_poll_init(&s->loop, &d->poll, info->epoll_fd);
    d->poll.data = d;
    uv_poll_start(&d->poll, UV_READABLE, on_ready);
    d->next = s->daemons;
    s->daemons = d;
    *out = d;
    return OK;
}

void http_daemons_run(struct http_server *s)
{
    for (struct http_daemon *d = s->daemons; d; d = d->next) {
        if (d->ready) {
            d->ready = false;
            MHD_run(d->mhd);
            MHD_UNSIGNED_LONG_LONG ms = 1;
            d->ready = d->ready || (MHD_get_timeout(d->mhd, &ms) == MHD_YES && ms == 0);
        }
    }
}

bool http_daemons_pending(struct http_server *s)
{
    for (struct http_daemon *d = s->daemons; d; d = d->next) {
        if (d->ready) {
            return true;
        }
    }
    return false;
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct http_daemon *d = handle->data;
    MHD_stop_daemon(d->mhd); // also closes its epoll descriptor
    free(d);
}

static void stop(struct http_server *s, struct http_daemon *d)
{
    for (struct http_daemon **p = &s->daemons; *p; p = &(*p)->next) {
        if (*p == d) {
            *p = d->next;
            break;
        }
    }
    uv_close((uv_handle_t *)&d->poll, on_poll_closed);
}

/* Called after new certificates are loaded: the old daemon serves its connections until the last
 * one ends. */
void http_daemon_retire(struct http_server *s, struct http_daemon *d)
{
    d->retired = true;
    if (d->n_connections == 0) {
        stop(s, d);
    }
}

void http_daemons_close(struct http_server *s)
{
    while (s->daemons) {
        stop(s, s->daemons);
    }
}
