/* The log's lines leave in batches, written on the thread pool: a pipe that nobody empties must
 * not stop the loop. Lines over the bound are dropped and counted. */
#include "server/http/private.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LINES_BYTES = 4 << 20 };

struct log_job {
    struct http_server *server;
    struct buf lines;
};

static int64_t wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fill(struct http_request *req)
{
    struct request_log *log = &req->log;
    log->request_id = req->id;
    log->peer = req->conn->peer;
    log->method = req->method;
    log->path = req->path;
    log->route = req->route ? req->route->path : NULL;
    log->user_agent = req->user_agent;
    log->gone = req->gone;
    log->end_ns = clock_now_ns();
    if (log->head_ns == 0 && log->status == 0) {
        log->status = req->head_done ? 499 : 400;
    }
    log->sent_bytes = req->stream.n_sent;
    if (req->queued && !log->streamed && !req->is_head) {
        log->sent_bytes = req->n_reply;
    }
}

void http_log_request(struct http_request *req)
{
    struct http_server *s = req->server;
    fill(req);
    if (s->options.on_done) {
        s->options.on_done(&req->log, s->options.arg);
    }
    bool quiet = req->route && req->route->flags & HTTP_ROUTE_QUIET && req->log.status < 500;
    if (s->options.log_fd < 0 || quiet) {
        return;
    }
    size_t before = s->log_lines.n_bytes;
    s->log_lines.max_bytes = MAX_LINES_BYTES;
    log_request_format(&s->log_lines, &req->log, wall_ns());
    if (s->log_lines.failed) {
        s->log_lines.failed = false;
        s->log_lines.n_bytes = before;
        s->n_log_dropped++;
    }
}

static void write_all(int fd, const char *p, size_t n_bytes, int patience_ms)
{
    while (n_bytes > 0) {
        ssize_t n = write(fd, p, n_bytes);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd wait = {.fd = fd, .events = POLLOUT};
            if (poll(&wait, 1, patience_ms) > 0) {
                continue;
            }
        }
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return;
        }
        p += n;
        n_bytes -= (size_t)n;
    }
}

static void on_pool(void *arg)
{
    struct log_job *job = arg;
    write_all(job->server->options.log_fd, job->lines.data, job->lines.n_bytes, -1);
}

static void on_written(void *arg)
{
    struct log_job *job = arg;
    job->server->log_job = NULL;
    buf_deinit(&job->lines);
    free(job);
}

void http_log_tick(struct http_server *s)
{
    if (s->log_job || s->log_lines.n_bytes == 0) {
        return;
    }
    if (s->n_log_dropped > 0) {
        log_warn("%llu lines of the request log were dropped: nobody reads them fast enough",
                 (unsigned long long)s->n_log_dropped);
        s->n_log_dropped = 0;
    }
    struct log_job *job = xcalloc(1, sizeof *job);
    job->server = s;
    job->lines = s->log_lines;
    s->log_lines = (struct buf){0};
    s->log_job = job;
    http_pool_run(s, on_pool, on_written, job);
}

/* After the loop; the pool writes no lines by now. */
void http_log_flush(struct http_server *s)
{
    if (s->log_lines.n_bytes > 0) {
        write_all(s->options.log_fd, s->log_lines.data, s->log_lines.n_bytes, 200);
        buf_clear(&s->log_lines);
    }
}

void http_log_close(struct http_server *s)
{
    http_log_flush(s);
    buf_deinit(&s->log_lines);
}
