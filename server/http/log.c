// SPDX-License-Identifier: Apache-2.0
/* The request log. Lines are buffered, and each tick passes them to a writer thread: a full pipe
 * must not block the loop, nor occupy a pool thread. */
#include "engine/base/line_writer.h"
#include "server/http/private.h"

#include <time.h>

enum { MAX_LINES_BYTES = 1 << 20, MAX_WAITING_BYTES = 4 << 20, CLOSE_PATIENCE_MS = 500 };

static int64_t wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Completes the record for callbacks and the log, once the reply has ended. */
static void fill(struct http_request *req)
{
    struct http_record *r = &req->record;
    r->request_id = req->id;
    r->peer = req->conn->peer;
    r->method = req->method;
    r->path = req->path;
    r->route = req->route ? req->route->path : NULL;
    r->user_agent = req->user_agent;
    r->gone = req->gone;
    r->end_ns = clock_now_ns();
    if (r->head_ns == 0 && r->status == 0) {
        r->status = req->head_done ? 499 : 400;
    }
    r->sent_bytes = req->stream.n_sent;
    if (req->queued && !r->streamed && !req->is_head) {
        r->sent_bytes = req->n_reply;
    }
}

/* Quiet routes, such as health checks, are not logged unless log_quiet is set. */
void http_log_request(struct http_request *req)
{
    struct http_server *s = req->server;
    fill(req);
    if (s->options.on_done) {
        s->options.on_done(&req->record, req->room, s->options.arg);
    }
    bool quiet = req->route && req->route->flags & HTTP_ROUTE_QUIET && !s->options.log_quiet;
    if (s->options.log_fd < 0 || !s->options.put_line || quiet) {
        return;
    }
    size_t before = s->log_lines.n_bytes;
    s->log_lines.max_bytes = MAX_LINES_BYTES;
    s->options.put_line(&s->log_lines, &req->record, req->room, wall_ns());
    if (s->log_lines.failed) {
        s->log_lines.failed = false;
        s->log_lines.n_bytes = before;
        s->n_log_dropped++;
    }
}

/* Lines that were lost are reported in the log of messages. */
void http_log_tick(struct http_server *s)
{
    if (s->log_lines.n_bytes == 0) {
        return;
    }
    if (s->log_writer) {
        line_writer_put(s->log_writer, s->log_lines.data, s->log_lines.n_bytes);
        uint64_t n_lost = line_writer_lost(s->log_writer) + s->n_log_dropped;
        if (n_lost > s->n_log_reported) {
            log_warn("%llu lines of the request log were lost: the reader is too slow",
                     (unsigned long long)(n_lost - s->n_log_reported));
            s->n_log_reported = n_lost;
        }
    }
    buf_clear(&s->log_lines);
}

void http_log_open(struct http_server *s)
{
    if (s->options.log_fd >= 0) {
        s->log_writer = line_writer_open(s->options.log_fd, "request log", MAX_WAITING_BYTES, NULL);
    }
}

/* Waits for the writer thread, for a bounded time. */
void http_log_close(struct http_server *s)
{
    http_log_tick(s);
    if (s->log_writer) {
        line_writer_close(s->log_writer, CLOSE_PATIENCE_MS);
        s->log_writer = NULL;
    }
    buf_deinit(&s->log_lines);
}
