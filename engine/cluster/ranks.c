// SPDX-License-Identifier: Apache-2.0
/* Runs the same work on all ranks of this process, on threads that wait for the next round. */
#include "engine/cluster/ranks.h"

#include "engine/base/assert.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/thread.h"

#include <time.h>

enum { POLL_MS = 200 }; // interval of checks for a lost device or set while all wait

/* Waits for `changed` for up to POLL_MS, with the lock held. */
static bool wait_moment(struct ranks *rs)
{
    int64_t end = clock_now_ns() + POLL_MS * 1000000LL;
    struct timespec t = {end / 1000000000, end % 1000000000};
    return pthread_cond_timedwait(&rs->changed, &rs->lock, &t) == 0;
}

void ranks_abort(struct ranks *rs)
{
    atomic_store(&rs->aborted, true);
    if (rs->abort) {
        rs->abort(rs->abort_arg);
    }
}

/* A device can fail between steps, while another rank waits for it. So the thread that owns the
 * device checks it from time to time. */
static void check_device(struct ranks *rs, struct rank *r)
{
    if (r->be && r->be->ops->alive && !atomic_load(&rs->aborted) &&
        r->be->ops->alive(r->be) != OK) {
        log_error("rank %d: its device is lost", r->index);
        ranks_abort(rs);
    }
}

void ranks_check(struct ranks *rs)
{
    check_device(rs, &rs->rank[0]);
}

static enum status run_work(struct ranks *rs, struct rank *r,
                            enum status (*work)(struct rank *r, void *arg), void *arg)
{
    enum status st = work(r, arg);
    if (st != OK) {
        ranks_abort(rs);
    }
    return st;
}

/* A worker's loop. It wakes from time to time while it waits, to notice a device that was
 * lost. */
static void *worker(void *p)
{
    struct rank *r = p;
    // The struct contains its ranks by value, so its address can be computed from that of a rank.
    struct ranks *rs =
        (struct ranks *)(void *)((char *)(r - r->local) - offsetof(struct ranks, rank));
    uint64_t seen = 0;
    thread_name("rank %d", r->index);
    pthread_mutex_lock(&rs->lock);
    for (;;) {
        while (rs->round == seen && !rs->stopping) {
            if (!wait_moment(rs) && rs->round == seen && !rs->stopping) {
                pthread_mutex_unlock(&rs->lock);
                check_device(rs, r);
                pthread_mutex_lock(&rs->lock);
            }
        }
        if (rs->round == seen) {
            break;
        }
        seen = rs->round;
        enum status (*work)(struct rank *r, void *arg) = rs->work;
        void *arg = rs->arg;
        pthread_mutex_unlock(&rs->lock);
        r->st = run_work(rs, r, work, arg);
        pthread_mutex_lock(&rs->lock);
        rs->n_done++;
        pthread_cond_broadcast(&rs->changed);
    }
    pthread_mutex_unlock(&rs->lock);
    return NULL;
}

/* The first rank runs on the caller's thread, so a single rank needs no thread. */
enum status ranks_start(struct ranks *rs, int32_t first, int32_t n, struct err *err)
{
    ASSERT(n >= 1 && n <= MAX_RANKS);
    *rs = (struct ranks){.n = n};
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&rs->lock, NULL);
    pthread_cond_init(&rs->changed, &attr);
    pthread_condattr_destroy(&attr);
    for (int32_t i = 0; i < n; i++) {
        rs->rank[i].index = first + i;
        rs->rank[i].local = i;
    }
    for (int32_t i = 1; i < n; i++) {
        if (pthread_create(&rs->threads[i], NULL, worker, &rs->rank[i]) != 0) {
            ranks_stop(rs);
            return err_set(err, ERR_NOMEM, "no thread for rank %d", first + i);
        }
        rs->n_threads++;
    }
    return OK;
}

void ranks_on_abort(struct ranks *rs, void (*abort)(void *arg), void *arg)
{
    rs->abort_arg = arg;
    rs->abort = abort;
}

/* Called with the lock held. False if a thread does not return in time after an abort. */
static bool wait_for_workers(struct ranks *rs)
{
    int64_t end = INT64_MAX;
    while (rs->n_done < rs->n - 1) {
        if (end == INT64_MAX && atomic_load(&rs->aborted)) {
            end = clock_now_ns() + RANK_PATIENCE_S * 1000000000LL;
        }
        if (clock_now_ns() > end) {
            return false;
        }
        wait_moment(rs);
    }
    return true;
}

/* A round: all ranks get the work, and the call returns when all have done it. A rank that never
 * returns makes the whole object unusable (stuck). */
enum status ranks_run(struct ranks *rs, enum status (*work)(struct rank *r, void *arg), void *arg)
{
    if (rs->stuck) {
        return ERR_DEVICE;
    }
    if (rs->n > 1) {
        pthread_mutex_lock(&rs->lock);
        rs->work = work;
        rs->arg = arg;
        rs->n_done = 0;
        rs->round++;
        pthread_cond_broadcast(&rs->changed);
        pthread_mutex_unlock(&rs->lock);
    }
    rs->rank[0].st = run_work(rs, &rs->rank[0], work, arg);
    if (rs->n > 1) {
        pthread_mutex_lock(&rs->lock);
        rs->stuck = !wait_for_workers(rs);
        pthread_mutex_unlock(&rs->lock);
    }
    if (rs->stuck) {
        log_error("the thread of a rank hangs in its device");
        return ERR_DEVICE;
    }
    for (int32_t i = 0; i < rs->n; i++) {
        TRY(rs->rank[i].st);
    }
    return OK;
}

void ranks_stop(struct ranks *rs)
{
    if (rs->n == 0) {
        return;
    }
    pthread_mutex_lock(&rs->lock);
    rs->stopping = true;
    pthread_cond_broadcast(&rs->changed);
    pthread_mutex_unlock(&rs->lock);
    if (rs->stuck) {
        return; // its thread still reads this struct, and the process is about to exit
    }
    for (int32_t i = 1; i <= rs->n_threads; i++) {
        pthread_join(rs->threads[i], NULL);
    }
    pthread_cond_destroy(&rs->changed);
    pthread_mutex_destroy(&rs->lock);
    *rs = (struct ranks){0};
}
