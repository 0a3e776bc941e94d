// SPDX-License-Identifier: Apache-2.0
/* Work for libuv's threads; completion is reported on the loop. */
#include "engine/base/thread.h"
#include "server/http/private.h"

#include <stdlib.h>

struct pool_job {
    uv_work_t work;
    struct http_server *server;
    void (*run)(void *arg);
    void (*done)(void *arg);
    void *arg;
    bool is_awaited; // http_server_run waits for it
};

static void on_pool_work(uv_work_t *work)
{
    struct pool_job *job = work->data;
    thread_name("pool"); // created by libuv
    job->run(job->arg);
}

static void on_pool_done(uv_work_t *work, int status)
{
    struct pool_job *job = work->data;
    struct http_server *s = job->server;
    (void)status; // jobs are never cancelled
    s->now_ns = clock_now_ns();
    s->n_pool_jobs -= job->is_awaited;
    job->done(job->arg);
    free(job);
    http_settle(s);
}

static void queue_job(const struct pool_job *template)
{
    struct pool_job *job = xcalloc(1, sizeof *job);
    *job = *template;
    job->work.data = job;
    job->server->n_pool_jobs += job->is_awaited;
    int rc = uv_queue_work(&job->server->loop, &job->work, on_pool_work, on_pool_done);
    ASSERT(rc == 0); // fails only without a callback
}

void http_pool_run(struct http_server *s, void (*work)(void *arg), void (*done)(void *arg),
                   void *arg)
{
    queue_job(
        &(struct pool_job){.server = s, .run = work, .done = done, .arg = arg, .is_awaited = true});
}

void http_pool_run_unawaited(struct http_server *s, void (*work)(void *arg),
                             void (*done)(void *arg), void *arg)
{
    queue_job(&(struct pool_job){.server = s, .run = work, .done = done, .arg = arg});
}
