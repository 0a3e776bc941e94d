// SPDX-License-Identifier: Apache-2.0
/* One turn of the loop: everything that a callback made due is done before the loop sleeps
 * again. */
#include "server/http/private.h"

enum { MAX_ROUNDS = 8 };

static void tell_gone(struct http_server *s)
{
    while (s->gone) {
        struct http_request *req = s->gone;
        s->gone = req->next_gone;
        if (!s->gone) {
            s->gone_tail = &s->gone;
        }
        bool tell = !req->terminal && !req->gone_reported && req->events && req->events->on_gone;
        req->gone_reported = true;
        req->in_gone = false;
        if (tell) {
            req->events->on_gone(req, req->gone, req->events_arg); // may free it
        } else if (req->terminal) {
            http_request_resume(req);
        }
    }
}

/* Processes the requests listed now; on_writable may write, which lists a request again. */
static void flush_streams(struct http_server *s)
{
    struct http_request *list = s->flush;
    s->flush = NULL;
    s->flush_tail = &s->flush;
    while (list) {
        struct http_request *req = list;
        list = req->next_flush;
        req->in_flush = false; // a completed request does nothing there, so this one survives the
                               // call
        http_stream_opened(req);
        http_request_release(req);
    }
    http_flush_scratch(s);
}

/* Resuming any connection makes libmicrohttpd walk all suspended ones, so resume all at once. */
static void resume_all(struct http_server *s)
{
    while (s->resume) {
        struct http_request *req = s->resume;
        s->resume = req->next_resume;
        req->in_resume = false;
        req->suspended = false;
        MHD_resume_connection(req->conn->mhd);
        req->conn->daemon->ready = true;
    }
    s->resume_tail = &s->resume;
}

static void on_again(uv_idle_t *again)
{
    struct http_server *s = again->data;
    uv_idle_stop(again);
    s->now_ns = clock_now_ns();
    http_settle(s);
}

void http_settle(struct http_server *s)
{
    if (s->settling) {
        return;
    }
    s->settling = true;
    bool more = true;
    for (int i = 0; i < MAX_ROUNDS && more; i++) {
        tell_gone(s);
        flush_streams(s);
        resume_all(s);
        http_daemons_run(s);
        more = s->gone || s->flush || s->resume || s->scratch_req || http_daemons_pending(s);
    }
    s->settling = false;
    if (more) { // let the loop check its descriptors first
        uv_idle_start(&s->again, on_again);
    }
}

void http_check_drained(struct http_server *s)
{
    bool empty = s->stats.n_active == 0 && s->stats.n_connections == 0;
    bool late = s->stopping && clock_now_ns() - s->stop_ns > CUT_GRACE_MS * 1000000LL;
    if (s->state == HTTP_CLOSING && (empty || late)) {
        uv_stop(&s->loop);
    }
}
