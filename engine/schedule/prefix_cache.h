// SPDX-License-Identifier: Apache-2.0
/* The prefix cache: finds KV blocks by the tokens that they hold. A node identifies one block by
 * its parent node, its exact tokens, and for the first block the salt and the adapter. The hash
 * only finds candidates; tokens are compared. Nodes are entered when a sequence is admitted, before
 * its rows are computed ("pending", with a producer), so that later sequences with the same prefix
 * wait for it instead of computing it again. Nodes become valid when the step that computes their
 * rows has been submitted.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_PREFIX_CACHE_H
#define SLUICE_ENGINE_SCHEDULE_PREFIX_CACHE_H

#include "engine/schedule/kv_pool.h"
#include "engine/schedule/request.h"

#include <stddef.h>

enum node_state {
    NODE_NONE,
    NODE_PENDING,
    NODE_AGAIN, // valid, and being recomputed for a sequence that needs the recurrent state after
                // its rows
    NODE_VALID,
};

struct prefix_node {
    uint64_t uid, parent; // parent: the uid of a node or a root
    uint64_t hash;
    int32_t next; // the next node in the bucket
    // In the list of nodes whose parents share a bucket; -1: none.
    int32_t older, newer;
    int32_t producer; // index of the sequence, while pending or being recomputed
    uint8_t state;    // enum node_state
    bool proven;      // the result of a row that sees the block was a number
    int64_t doubted;  // value of `now` at the last doubt of a proven block; 0: none
};

enum { PREFIX_MAX_SALTS = 256 }; // chosen; prefix_cache_root says what happens beyond that

struct prefix_cache {
    struct kv_pool *pool;
    int32_t block_tokens;
    struct prefix_node *nodes; // [n_blocks]
    int32_t *tokens;           // [n_blocks, block_tokens]
    int32_t *buckets;          // [n_buckets], by parent and tokens
    int32_t *newest;           // [n_buckets], by parent alone: the newest node
    uint32_t n_buckets;
    uint64_t next_uid, key;
    struct {
        uint64_t adapter;
        char salt[MAX_SALT_BYTES + 1];
        uint64_t uid, last_use;
    } roots[PREFIX_MAX_SALTS];
    uint64_t clock;
    void (*on_valid)(void *arg,
                     int32_t block); // called when a block's rows have become readable; may be NULL
    void *on_valid_arg;
    // Called when a block has left the cache; may be NULL.
    void (*on_gone)(void *arg, int32_t block);
    void *on_gone_arg;
};

/* hash_key: all table positions depend on it; 0 makes all hashes equal (for tests). */
void prefix_cache_init(struct prefix_cache *c, struct kv_pool *pool, int32_t block_tokens,
                       uint64_t hash_key);
void prefix_cache_deinit(struct prefix_cache *c);

/* The root for a salt (NULL: the common one) and an adapter, given by a number of its own that is
 * never that of another one (0: none). A salt longer than
 * MAX_SALT_BYTES gets a new root each time, so its blocks are never shared. If there are too many
 * roots, the one unused for longest is replaced. */
uint64_t prefix_cache_root(struct prefix_cache *c, const char *salt, uint64_t adapter);

/* The hash of a node with these tokens under this parent. */
uint64_t prefix_cache_hash(const struct prefix_cache *c, uint64_t parent, const int32_t *tokens);

/* The block with these tokens under this parent, or -1. Changes nothing. */
int32_t prefix_cache_find(const struct prefix_cache *c, uint64_t parent, const int32_t *tokens);

/* The valid block under this parent whose first tokens agree with the most of these n tokens (at
 * most a block's); *n_equal: the number that agree. -1: no block begins with the first token. Only
 * the newest blocks are compared. */
int32_t prefix_cache_closest(const struct prefix_cache *c, uint64_t parent, const int32_t *tokens,
                             int32_t n, int32_t *n_equal);

/* Enters a held block and returns its uid. The cache must not contain an equal node. */
uint64_t prefix_cache_insert(struct prefix_cache *c, int32_t block, uint64_t parent,
                             const int32_t *tokens, enum node_state state, int32_t producer);
/* The held block `to`, which has the same tokens, takes the place of the valid block `from`. */
void prefix_cache_move(struct prefix_cache *c, int32_t from, int32_t to);
void prefix_cache_validate(struct prefix_cache *c, int32_t block);
/* The node changes from NODE_VALID to NODE_AGAIN. */
void prefix_cache_renew(struct prefix_cache *c, int32_t block, int32_t producer);
void prefix_cache_remove(struct prefix_cache *c, int32_t block); // also tells the pool

/* prove: the result of a row that sees the block was a number. doubt: it was not, perhaps because
 * of the block, so the block leaves the cache unless it has been proven since the last doubt.
 * Doubts with the same `now` (> 0) count as one. */
void prefix_cache_prove(struct prefix_cache *c, int32_t block);
void prefix_cache_doubt(struct prefix_cache *c, int32_t block, int64_t now);

/* Forgets every idle block. */
void prefix_cache_reset(struct prefix_cache *c);

#endif
