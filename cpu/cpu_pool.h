// SPDX-License-Identifier: Apache-2.0
/* A thread pool that runs one job of items after another. Items are divided into equal runs, one
 * per thread, so that a thread reads the same weights in every step; a thread that finishes early
 * takes items from the others. A job ends when its items are done, so a descheduled thread delays
 * it only if it is inside an item. Idle threads spin for some microseconds, then sleep. Nothing
 * here allocates after pool_create.
 * Thread: pool_run is for the owner only; items run on any thread of the pool. */
#ifndef SLUICE_CPU_POOL_H
#define SLUICE_CPU_POOL_H

#include <stdint.h>

struct pool;

/* n_threads includes the owner; 0: as many as the process may use. NULL if a thread cannot be
 * started or memory is short. */
struct pool *pool_create(int32_t n_threads);
void pool_destroy(struct pool *pool); // accepts NULL

int32_t pool_n_threads(const struct pool *pool);

/* Calls fn(arg, item, thread) for each item in [0, n_items). `thread` is in [0, n_threads), and no
 * two calls with the same `thread` overlap. Returns when all calls are done. */
void pool_run(struct pool *pool, int32_t n_items,
              void (*fn)(void *arg, int32_t item, int32_t thread), void *arg);

#endif
