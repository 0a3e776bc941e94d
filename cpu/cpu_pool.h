// SPDX-License-Identifier: Apache-2.0
/* A pool of threads that share the items of one job after another. Items are dealt in equal runs,
 * one run per thread, so that a thread meets the same weights each step; who is done early takes
 * from the others. A job ends when its items are done: a thread that the system has put aside is
 * not waited for unless it is inside an item. Idle threads spin for some microseconds, then sleep.
 * Nothing here allocates after pool_create.
 * Thread: pool_run is the owner's alone; items run on any thread of the pool. */
#ifndef SLUICE_CPU_POOL_H
#define SLUICE_CPU_POOL_H

#include <stdint.h>

struct pool;

/* n_threads counts the owner; 0: as many as the process may use. NULL when a thread cannot be
 * started or there is no memory. */
struct pool *pool_create(int32_t n_threads);
void pool_destroy(struct pool *pool); // accepts NULL

int32_t pool_n_threads(const struct pool *pool);

/* Calls fn(arg, item, thread) for each item in [0, n_items); `thread` is in [0, n_threads) and no
 * two calls with the same one overlap. Returns when all are done. */
void pool_run(struct pool *pool, int32_t n_items,
              void (*fn)(void *arg, int32_t item, int32_t thread), void *arg);

#endif
