// SPDX-License-Identifier: Apache-2.0
/* A block is free, held (with a count of holders), or idle, which means cached and held by nobody.
 * Idle blocks are reused when no free ones are left. */
#include "engine/schedule/kv_pool.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"

#include <stdlib.h>

void kv_pool_init(struct kv_pool *p, int32_t n_blocks, void (*forget)(void *arg, int32_t block),
                  void *arg)
{
    ASSERT(n_blocks > 0);
    size_t n = (size_t)n_blocks;
    *p = (struct kv_pool){
        .n_blocks = n_blocks, .n_free = n_blocks, .forget = forget, .forget_arg = arg};
    p->refs = xcalloc(n, sizeof *p->refs);
    p->cached = xcalloc(n, sizeof *p->cached);
    p->free_ids = xcalloc(n, sizeof *p->free_ids);
    idle_order_init(&p->idle, n_blocks);
    for (int32_t i = 0; i < n_blocks; i++) {
        p->free_ids[i] = n_blocks - 1 - i; // low ids first
    }
}

void kv_pool_deinit(struct kv_pool *p)
{
    free(p->refs);
    free(p->cached);
    free(p->free_ids);
    idle_order_deinit(&p->idle);
    *p = (struct kv_pool){0};
}

/* Takes a free block if there is one, otherwise the idle block that is least worth keeping, which
 * leaves the cache. */
int32_t kv_pool_alloc(struct kv_pool *p)
{
    int32_t block;
    if (p->n_free > 0) {
        block = p->free_ids[--p->n_free];
    } else {
        block = idle_order_first(&p->idle);
        idle_order_remove(&p->idle, block);
        p->cached[block] = false;
        p->forget(p->forget_arg, block);
        idle_order_forget(&p->idle, block);
    }
    ASSERT(p->refs[block] == 0);
    p->refs[block] = 1;
    return block;
}

/* A cached block that is idle becomes held again. */
void kv_pool_retain(struct kv_pool *p, int32_t block)
{
    if (p->refs[block] == 0) {
        ASSERT(p->cached[block]);
        idle_order_remove(&p->idle, block);
    }
    p->refs[block]++;
}

/* After the last release, a cached block becomes idle and any other block free. */
void kv_pool_release(struct kv_pool *p, int32_t block)
{
    ASSERT(p->refs[block] > 0);
    if (--p->refs[block] > 0) {
        return;
    }
    if (p->cached[block]) {
        idle_order_add(&p->idle, block);
    } else {
        p->free_ids[p->n_free++] = block;
    }
}

/* An idle block that leaves the cache becomes free. */
void kv_pool_set_cached(struct kv_pool *p, int32_t block, bool cached)
{
    if (p->cached[block] && !cached && p->refs[block] == 0) {
        idle_order_remove(&p->idle, block);
        p->free_ids[p->n_free++] = block;
    }
    p->cached[block] = cached;
    if (!cached) {
        idle_order_forget(&p->idle, block);
    }
}

/* Every block is in exactly one of the three states. For tests and the simulation. */
void kv_pool_check(const struct kv_pool *p)
{
    int32_t held = 0, idle = 0;
    idle_order_check(&p->idle);
    for (int32_t i = 0; i < p->n_blocks; i++) {
        ASSERT(p->refs[i] >= 0);
        held += p->refs[i] > 0;
        idle += p->refs[i] == 0 && p->cached[i];
        ASSERT(idle_order_has(&p->idle, i) == (p->refs[i] == 0 && p->cached[i]));
    }
    for (int32_t i = 0; i < p->n_free; i++) {
        ASSERT(p->refs[p->free_ids[i]] == 0 && !p->cached[p->free_ids[i]]);
    }
    ASSERT(idle == p->idle.n);
    ASSERT(p->n_free + idle + held == p->n_blocks);
}
