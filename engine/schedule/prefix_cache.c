// SPDX-License-Identifier: Apache-2.0
/* The prefix cache: a hash table from (parent block, tokens) to block. A block is identified by its
 * parent's uid and its own tokens, so a chain of blocks identifies a prefix without storing it as a
 * whole. */
#include "engine/schedule/prefix_cache.h"

#include "engine/base/assert.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"

#include <stdlib.h>
#include <string.h>

/* Where the list begins that contains the children of this parent. */
static int32_t *newest_of(const struct prefix_cache *c, uint64_t parent)
{
    return &c->newest[c->key == 0 ? 0 : hash_mix(c->key ^ parent) & (c->n_buckets - 1)];
}

static void unlink_sibling(struct prefix_cache *c, const struct prefix_node *n)
{
    if (n->newer >= 0) {
        c->nodes[n->newer].older = n->older;
    } else {
        *newest_of(c, n->parent) = n->older;
    }
    if (n->older >= 0) {
        c->nodes[n->older].newer = n->newer;
    }
}

/* Removes the block from the tables, and calls on_gone. */
static void unlink_node(struct prefix_cache *c, int32_t block)
{
    struct prefix_node *n = &c->nodes[block];
    int32_t *at = &c->buckets[n->hash & (c->n_buckets - 1)];
    while (*at != block) {
        ASSERT(*at >= 0);
        at = &c->nodes[*at].next;
    }
    *at = n->next;
    unlink_sibling(c, n);
    n->state = NODE_NONE;
    if (c->on_gone) {
        c->on_gone(c->on_gone_arg, block);
    }
}

/* Called when the pool reuses an idle block's id. */
static void forget(void *arg, int32_t block)
{
    unlink_node(arg, block);
}

void prefix_cache_init(struct prefix_cache *c, struct kv_pool *pool, int32_t block_tokens,
                       uint64_t hash_key)
{
    size_t n = (size_t)pool->n_blocks;
    *c = (struct prefix_cache){
        .pool = pool, .block_tokens = block_tokens, .key = hash_key, .n_buckets = 64};
    while (c->n_buckets < n * 2) {
        c->n_buckets *= 2;
    }
    c->nodes = xcalloc(n, sizeof *c->nodes);
    c->tokens = xcalloc(n * (size_t)block_tokens, sizeof *c->tokens);
    c->buckets = xmalloc(c->n_buckets * sizeof *c->buckets);
    memset(c->buckets, 0xFF, c->n_buckets * sizeof *c->buckets);
    c->newest = xmalloc(c->n_buckets * sizeof *c->newest);
    memset(c->newest, 0xFF, c->n_buckets * sizeof *c->newest);
    pool->forget = forget;
    pool->forget_arg = c;
    c->roots[0].uid = ++c->next_uid;
}

void prefix_cache_deinit(struct prefix_cache *c)
{
    free(c->nodes);
    free(c->tokens);
    free(c->buckets);
    free(c->newest);
    *c = (struct prefix_cache){0};
}

/* The chains of each salt and adapter begin at a separate root. Only the most recent roots are
 * remembered; a root that was replaced gets a new uid, so its blocks are never found again. */
uint64_t prefix_cache_root(struct prefix_cache *c, const char *salt, uint64_t adapter)
{
    salt = or_empty(salt);
    if (salt[0] == '\0' && adapter == 0) {
        return c->roots[0].uid;
    }
    size_t n = strlen(salt);
    if (n > MAX_SALT_BYTES) {
        return ++c->next_uid;
    }
    int32_t oldest = 1;
    for (int32_t i = 1; i < PREFIX_MAX_SALTS; i++) {
        if (c->roots[i].uid && c->roots[i].adapter == adapter &&
            strcmp(c->roots[i].salt, salt) == 0) {
            c->roots[i].last_use = ++c->clock;
            return c->roots[i].uid;
        }
        if (c->roots[i].last_use < c->roots[oldest].last_use) {
            oldest = i;
        }
    }
    // This makes the blocks of the longest unused root unreachable; they age out of the pool.
    memcpy(c->roots[oldest].salt, salt, n + 1);
    c->roots[oldest].adapter = adapter;
    c->roots[oldest].uid = ++c->next_uid;
    c->roots[oldest].last_use = ++c->clock;
    return c->roots[oldest].uid;
}

/* A key of 0 makes all hashes equal, so that tests can provoke collisions. */
uint64_t prefix_cache_hash(const struct prefix_cache *c, uint64_t parent, const int32_t *tokens)
{
    if (c->key == 0) {
        return 0;
    }
    return hash_bytes(tokens, (size_t)c->block_tokens * sizeof *tokens, c->key ^ hash_mix(parent));
}

/* The hash only selects candidates; parent and tokens are compared in full. */
int32_t prefix_cache_find(const struct prefix_cache *c, uint64_t parent, const int32_t *tokens)
{
    uint64_t hash = prefix_cache_hash(c, parent, tokens);
    size_t bytes = (size_t)c->block_tokens * sizeof *tokens;
    for (int32_t b = c->buckets[hash & (c->n_buckets - 1)]; b >= 0; b = c->nodes[b].next) {
        const struct prefix_node *n = &c->nodes[b];
        if (n->hash == hash && n->parent == parent &&
            memcmp(&c->tokens[(size_t)b * (size_t)c->block_tokens], tokens, bytes) == 0) {
            return b;
        }
    }
    return -1;
}

static int32_t count_equal(const int32_t *a, const int32_t *b, int32_t n)
{
    int32_t i = 0;
    while (i < n && a[i] == b[i]) {
        i++;
    }
    return i;
}

int32_t prefix_cache_closest(const struct prefix_cache *c, uint64_t parent, const int32_t *tokens,
                             int32_t n, int32_t *n_equal)
{
    enum { MAX_COMPARED = 64 }; // chosen: bounds the work where a parent has thousands of children
    int32_t best = -1, b = *newest_of(c, parent);
    *n_equal = 0;
    for (int32_t k = 0; k < MAX_COMPARED && b >= 0; k++, b = c->nodes[b].older) {
        const struct prefix_node *node = &c->nodes[b];
        if (node->parent == parent && node->state == NODE_VALID) {
            const int32_t *own = &c->tokens[(size_t)b * (size_t)c->block_tokens];
            int32_t equal = count_equal(own, tokens, n);
            if (equal > *n_equal) {
                *n_equal = equal;
                best = b;
            }
        }
    }
    return best;
}

static void tell_if_valid(const struct prefix_cache *c, int32_t block)
{
    if (c->on_valid && c->nodes[block].state == NODE_VALID) {
        c->on_valid(c->on_valid_arg, block);
    }
}

/* Enters the block under this uid into all tables. */
static struct prefix_node *link_node(struct prefix_cache *c, int32_t block, uint64_t uid,
                                     uint64_t parent, const int32_t *tokens)
{
    struct prefix_node *n = &c->nodes[block];
    ASSERT(n->state == NODE_NONE && c->pool->refs[block] > 0);
    uint64_t hash = prefix_cache_hash(c, parent, tokens);
    int32_t *bucket = &c->buckets[hash & (c->n_buckets - 1)], *newest = newest_of(c, parent);
    *n = (struct prefix_node){.uid = uid,
                              .parent = parent,
                              .hash = hash,
                              .next = *bucket,
                              .older = *newest,
                              .newer = -1,
                              .producer = -1,
                              .state = NODE_VALID};
    *bucket = block;
    if (*newest >= 0) {
        c->nodes[*newest].newer = block;
    }
    *newest = block;
    memcpy(&c->tokens[(size_t)block * (size_t)c->block_tokens], tokens,
           (size_t)c->block_tokens * sizeof *tokens);
    kv_pool_set_cached(c->pool, block, true);
    return n;
}

/* `state` says whether the block's KV is computed or a producer is still computing it. */
uint64_t prefix_cache_insert(struct prefix_cache *c, int32_t block, uint64_t parent,
                             const int32_t *tokens, enum node_state state, int32_t producer)
{
    struct prefix_node *n = link_node(c, block, ++c->next_uid, parent, tokens);
    n->state = (uint8_t)state;
    n->producer = producer;
    tell_if_valid(c, block);
    return n->uid;
}

/* The children name their parent by its uid, which stays. */
void prefix_cache_move(struct prefix_cache *c, int32_t from, int32_t to)
{
    const struct prefix_node old = c->nodes[from];
    ASSERT(old.state == NODE_VALID && from != to);
    prefix_cache_remove(c, from);
    struct prefix_node *n =
        link_node(c, to, old.uid, old.parent, &c->tokens[(size_t)from * (size_t)c->block_tokens]);
    n->proven = old.proven;
    n->doubted = old.doubted;
}

/* Called when the block's KV is computed; other sequences may use it from now on. */
void prefix_cache_validate(struct prefix_cache *c, int32_t block)
{
    ASSERT(c->nodes[block].state != NODE_NONE);
    c->nodes[block].state = NODE_VALID;
    c->nodes[block].producer = -1;
    tell_if_valid(c, block);
}

void prefix_cache_renew(struct prefix_cache *c, int32_t block, int32_t producer)
{
    ASSERT(c->nodes[block].state == NODE_VALID);
    c->nodes[block].state = NODE_AGAIN;
    c->nodes[block].producer = producer;
}

void prefix_cache_remove(struct prefix_cache *c, int32_t block)
{
    unlink_node(c, block);
    kv_pool_set_cached(c->pool, block, false);
}

void prefix_cache_prove(struct prefix_cache *c, int32_t block)
{
    c->nodes[block].proven = true;
}

/* A prefix that many requests share is proven by each of them. If proven blocks had no second
 * chance, one request that breaks only in its own part would remove the whole prefix, and all that
 * is cached after it. */
void prefix_cache_doubt(struct prefix_cache *c, int32_t block, int64_t now)
{
    struct prefix_node *n = &c->nodes[block];
    if (n->proven) {
        n->proven = false;
        n->doubted = now;
    } else if (n->state == NODE_VALID && n->doubted != now) {
        prefix_cache_remove(c, block);
    }
}

void prefix_cache_reset(struct prefix_cache *c)
{
    while (c->pool->idle.n > 0) {
        prefix_cache_remove(c, idle_order_first(&c->pool->idle));
    }
}
