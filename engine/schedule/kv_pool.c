// SPDX-License-Identifier: Apache-2.0
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
    p->prev = xcalloc(n + 1, sizeof *p->prev);
    p->next = xcalloc(n + 1, sizeof *p->next);
    for (int32_t i = 0; i < n_blocks; i++) {
        p->free_ids[i] = n_blocks - 1 - i; // low ids first
    }
    p->prev[n_blocks] = p->next[n_blocks] = n_blocks;
}

void kv_pool_deinit(struct kv_pool *p)
{
    free(p->refs);
    free(p->cached);
    free(p->free_ids);
    free(p->prev);
    free(p->next);
    *p = (struct kv_pool){0};
}

static void idle_unlink(struct kv_pool *p, int32_t block)
{
    p->next[p->prev[block]] = p->next[block];
    p->prev[p->next[block]] = p->prev[block];
    p->n_idle--;
}

static void idle_append(struct kv_pool *p, int32_t block)
{
    int32_t head = p->n_blocks, last = p->prev[head];
    p->next[last] = block;
    p->prev[block] = last;
    p->next[block] = head;
    p->prev[head] = block;
    p->n_idle++;
}

int32_t kv_pool_alloc(struct kv_pool *p)
{
    int32_t block;
    if (p->n_free > 0) {
        block = p->free_ids[--p->n_free];
    } else {
        ASSERT(p->n_idle > 0);
        block = p->next[p->n_blocks];
        idle_unlink(p, block);
        p->cached[block] = false;
        p->forget(p->forget_arg, block);
    }
    ASSERT(p->refs[block] == 0);
    p->refs[block] = 1;
    return block;
}

void kv_pool_retain(struct kv_pool *p, int32_t block)
{
    if (p->refs[block] == 0) {
        ASSERT(p->cached[block]);
        idle_unlink(p, block);
    }
    p->refs[block]++;
}

void kv_pool_release(struct kv_pool *p, int32_t block)
{
    ASSERT(p->refs[block] > 0);
    if (--p->refs[block] > 0) {
        return;
    }
    if (p->cached[block]) {
        idle_append(p, block);
    } else {
        p->free_ids[p->n_free++] = block;
    }
}

void kv_pool_set_cached(struct kv_pool *p, int32_t block, bool cached)
{
    if (p->cached[block] && !cached && p->refs[block] == 0) {
        idle_unlink(p, block);
        p->free_ids[p->n_free++] = block;
    }
    p->cached[block] = cached;
}

void kv_pool_check(const struct kv_pool *p)
{
    int32_t held = 0, idle = 0;
    for (int32_t i = 0; i < p->n_blocks; i++) {
        ASSERT(p->refs[i] >= 0);
        held += p->refs[i] > 0;
    }
    for (int32_t i = p->next[p->n_blocks]; i != p->n_blocks; i = p->next[i]) {
        ASSERT(p->refs[i] == 0 && p->cached[i] && p->prev[p->next[i]] == i);
        idle++;
    }
    for (int32_t i = 0; i < p->n_free; i++) {
        ASSERT(p->refs[p->free_ids[i]] == 0 && !p->cached[p->free_ids[i]]);
    }
    ASSERT(idle == p->n_idle);
    ASSERT(p->n_free + idle + held == p->n_blocks);
}
