// SPDX-License-Identifier: Apache-2.0
/* The ranks of one process, one thread each (the first rank uses the caller's). All of them are
 * given the same work. Ranks wait for each other in collectives, so if one fails or the set is
 * lost, the others must not wait for ever: the thread that notices calls `abort` at once, which has
 * to end those waits.
 * Thread: one caller, which owns the first rank; ranks_abort any. */
#ifndef SLUICE_ENGINE_CLUSTER_RANKS_H
#define SLUICE_ENGINE_CLUSTER_RANKS_H

#include "engine/model/model.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    MAX_RANKS = 16,       // chosen: two hosts with eight devices each
    RANK_PATIENCE_S = 10, // how long ranks_run waits for a thread that hangs in its device
};

/* One rank; while it works, only its own thread touches it. */
struct rank {
    int32_t index; // among all ranks of the set of nodes
    int32_t local; // among the ranks of this process
    struct backend *be;
    struct model target, draft[MAX_DRAFT_MODELS]; // one draft model each, up to the number in use
    struct pass_shape shape; // shape of the target's pass while its draws wait for their masks
    enum status st;          // result of its last work
    struct err err;
    size_t free_bytes; // free memory of its device; see size_blocks
};

struct ranks {
    int32_t n; // of this process
    struct rank rank[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    int32_t n_threads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t round; // number of work items handed out
    int32_t n_done; // number of workers that have finished the current item
    enum status (*work)(struct rank *r, void *arg);
    void *arg;
    bool stopping;
    _Atomic bool aborted;
    bool stuck;               // a thread did not return after an abort; it is never joined
    void (*abort)(void *arg); // ends the collectives of all ranks; NULL: there are none
    void *abort_arg;
};

/* Starts n - 1 threads for ranks first .. first + n - 1 of the set. */
enum status ranks_start(struct ranks *rs, int32_t first, int32_t n, struct err *err);

/* Sets the function to call when a rank fails, and in ranks_abort. The function may be called more
 * than once. Call this before running work. */
void ranks_on_abort(struct ranks *rs, void (*abort)(void *arg), void *arg);

/* Sticky. Work in progress has RANK_PATIENCE_S to return. */
void ranks_abort(struct ranks *rs);

/* Runs work(rank, arg) on every rank, and returns the first bad status once all are done. A rank
 * whose thread does not return after an abort counts as ERR_DEVICE. Between calls the threads check
 * now and then whether their devices are alive. */
enum status ranks_run(struct ranks *rs, enum status (*work)(struct rank *r, void *arg), void *arg);

/* Checks the caller's own device; aborts if it is lost. */
void ranks_check(struct ranks *rs);

/* Joins the threads, unless one is stuck. Accepts a zeroed struct. */
void ranks_stop(struct ranks *rs);

#endif
