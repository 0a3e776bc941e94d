// SPDX-License-Identifier: Apache-2.0
/* Which KV blocks are held, idle or free: ids and counts, no tokens and no memory. A block with no
 * holder that the prefix cache knows stays findable ("idle") until its id is handed out again, in
 * the order of idle_order.h; then the cache is told to forget it.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_KV_POOL_H
#define SLUICE_ENGINE_SCHEDULE_KV_POOL_H

#include "engine/schedule/idle_order.h"

struct kv_pool {
    int32_t n_blocks, n_free;
    int32_t *refs;     // holders
    bool *cached;      // the prefix cache knows it
    int32_t *free_ids; // a stack
    struct idle_order idle;
    void (*forget)(void *arg, int32_t block);
    void *forget_arg;
};

void kv_pool_init(struct kv_pool *p, int32_t n_blocks, void (*forget)(void *arg, int32_t block),
                  void *arg);
void kv_pool_deinit(struct kv_pool *p);

/* Blocks that could be handed out now. */
static inline int32_t kv_pool_available(const struct kv_pool *p)
{
    return p->n_free + p->idle.n;
}

/* A block with one holder. There must be one available. */
int32_t kv_pool_alloc(struct kv_pool *p);
void kv_pool_retain(struct kv_pool *p, int32_t block);
void kv_pool_release(struct kv_pool *p, int32_t block);

/* The cache begins or stops to know a block. One that is idle and no longer known becomes free. */
void kv_pool_set_cached(struct kv_pool *p, int32_t block, bool cached);

/* Proves free + idle + held = all, and the lists' links. Aborts if not. */
void kv_pool_check(const struct kv_pool *p);

#endif
