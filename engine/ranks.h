/* The ranks of one process: a thread each (rank 0 is the caller's), the same work handed to all.
 * Thread: one caller, the one that owns rank 0. */
#ifndef SLUICE_ENGINE_RANKS_H
#define SLUICE_ENGINE_RANKS_H

#include "engine/model.h"

#include <pthread.h>

enum { MAX_RANKS = 16 };

/* What one rank holds; touched only by its own thread while it works. */
struct rank {
    int32_t index;
    struct backend *be;
    struct model target, draft[MAX_DRAFT_MODELS]; // as many as the engine says
    enum status st; // of its last work
    struct err err;
};

struct ranks {
    int32_t n;
    struct rank rank[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    int32_t n_threads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t round;  // of work handed out
    int32_t n_done;  // workers that finished it
    enum status (*work)(struct rank *r, void *arg);
    void *arg;
    bool stopping;
};

/* Starts n - 1 threads. */
enum status ranks_start(struct ranks *rs, int32_t n, struct err *err);

/* Runs work(rank, arg) on every rank and returns when all are done, with the first bad status. */
enum status ranks_run(struct ranks *rs, enum status (*work)(struct rank *r, void *arg), void *arg);

/* Joins the threads. Accepts a zeroed struct. */
void ranks_stop(struct ranks *rs);

#endif
