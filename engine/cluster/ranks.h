// SPDX-License-Identifier: Apache-2.0
/* The ranks of one process: a thread each (the first is the caller's), the same work handed to all.
 * Ranks meet in collectives, so one that fails, or a set that is lost, must not leave the others
 * waiting: `abort` is called at once, by the thread that saw it, and has to end their waits.
 * Thread: one caller, the one that owns the first rank; ranks_abort any. */
#ifndef SLUICE_ENGINE_CLUSTER_RANKS_H
#define SLUICE_ENGINE_CLUSTER_RANKS_H

#include "engine/model/model.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    MAX_RANKS = 16,       // chosen: two hosts of eight devices
    RANK_PATIENCE_S = 10, // with a thread that hangs in its device; then ranks_run leaves it
};

/* What one rank holds; touched only by its own thread while it works. */
struct rank {
    int32_t index; // among all ranks of the set
    int32_t local; // among those of this process
    struct backend *be;
    struct model target, draft[MAX_DRAFT_MODELS]; // as many as the engine says
    struct pass_shape shape;                      // of the target's pass, while its draws wait
    enum status st;                               // of its last work
    struct err err;
    size_t free_bytes; // of its device, see size_blocks
};

struct ranks {
    int32_t n; // of this process
    struct rank rank[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    int32_t n_threads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t round; // of work handed out
    int32_t n_done; // workers that finished it
    enum status (*work)(struct rank *r, void *arg);
    void *arg;
    bool stopping;
    _Atomic bool aborted;
    bool stuck;               // a thread did not come back after an abort; it is never joined
    void (*abort)(void *arg); // ends the collectives of all ranks; NULL: there are none
    void *abort_arg;
};

/* Starts n - 1 threads for ranks first .. first + n - 1 of the set. */
enum status ranks_start(struct ranks *rs, int32_t first, int32_t n, struct err *err);

/* Called from any rank's failure and from ranks_abort, more than once. Set before work is run. */
void ranks_on_abort(struct ranks *rs, void (*abort)(void *arg), void *arg);

/* Sticky: from now on work that is under way is given RANK_PATIENCE_S to end. */
void ranks_abort(struct ranks *rs);

/* Runs work(rank, arg) on every rank and returns when all are done, with the first bad status. A
 * rank whose thread does not come back after an abort counts as ERR_DEVICE. Between two calls the
 * threads ask their backends now and then whether the devices live. */
enum status ranks_run(struct ranks *rs, enum status (*work)(struct rank *r, void *arg), void *arg);

/* Asks the same of the caller's own device; one that is lost aborts. */
void ranks_check(struct ranks *rs);

/* Joins the threads, unless one is stuck. Accepts a zeroed struct. */
void ranks_stop(struct ranks *rs);

#endif
