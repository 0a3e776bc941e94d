// SPDX-License-Identifier: Apache-2.0
/* Tracks which KV blocks are held, idle or free, by id and count; it knows neither their tokens nor
 * their memory. A cached block without a holder is "idle": it can still be found in the cache until
 * its id is reused, in the order of idle_order.h. `forget` then tells the cache.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_KV_POOL_H
#define SLUICE_ENGINE_SCHEDULE_KV_POOL_H

#include "engine/schedule/idle_order.h"

struct kv_pool {
    int32_t n_blocks, n_free;
    int32_t *refs;     // number of holders
    bool *cached;      // the block is in the prefix cache
    int32_t *free_ids; // a stack
    struct idle_order idle;
    void (*forget)(void *arg, int32_t block);
    void *forget_arg;
};

void kv_pool_init(struct kv_pool *p, int32_t n_blocks, void (*forget)(void *arg, int32_t block),
                  void *arg);
void kv_pool_deinit(struct kv_pool *p);

/* Blocks that could be allocated now. */
static inline int32_t kv_pool_available(const struct kv_pool *p)
{
    return p->n_free + p->idle.n;
}

/* Allocates a block with one holder. There must be one available. */
int32_t kv_pool_alloc(struct kv_pool *p);
void kv_pool_retain(struct kv_pool *p, int32_t block);
void kv_pool_release(struct kv_pool *p, int32_t block);

/* The cache adds or drops a block. An idle block that is dropped becomes free. */
void kv_pool_set_cached(struct kv_pool *p, int32_t block, bool cached);

/* Verifies free + idle + held = all, and the lists' links. Aborts on errors. */
void kv_pool_check(const struct kv_pool *p);

#endif
