// SPDX-License-Identifier: Apache-2.0
/* Waiting sequences and their fronts: the longest cached prefix of each. A hash table finds the
 * sequences that a new block extends, and a heap the sequence that should be admitted next. */
#include "engine/schedule/fronts.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- the heap ----------------------------------------------------------------------------- */

/* Order of the heap: priority, then the longer cached prefix, then arrival. */
static bool is_better(const struct sequence *a, const struct sequence *b)
{
    if (a->priority != b->priority) {
        return a->priority < b->priority;
    }
    if (a->front.n_blocks != b->front.n_blocks) {
        return a->front.n_blocks > b->front.n_blocks;
    }
    return sequence_comes_before(a, b);
}

static void heap_put(struct fronts *f, int32_t at, struct sequence *seq)
{
    f->heap[at] = seq;
    seq->front.heap_at = at;
}

static void heap_up(struct fronts *f, int32_t at)
{
    struct sequence *seq = f->heap[at];
    while (at > 0 && is_better(seq, f->heap[(at - 1) / 2])) {
        heap_put(f, at, f->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_put(f, at, seq);
}

static void heap_down(struct fronts *f, int32_t at)
{
    struct sequence *seq = f->heap[at];
    for (int32_t child; (child = 2 * at + 1) < f->n_heap; at = child) {
        if (child + 1 < f->n_heap && is_better(f->heap[child + 1], f->heap[child])) {
            child++;
        }
        if (!is_better(f->heap[child], seq)) {
            break;
        }
        heap_put(f, at, f->heap[child]);
    }
    heap_put(f, at, seq);
}

static void heap_fix(struct fronts *f, int32_t at)
{
    heap_up(f, at);
    heap_down(f, f->heap[at]->front.heap_at);
}

/* The last entry fills the gap; it may then have to move up or down. */
static void heap_remove(struct fronts *f, int32_t at)
{
    struct sequence *last = f->heap[--f->n_heap];
    if (at < f->n_heap) {
        heap_put(f, at, last);
        heap_up(f, at);
        heap_down(f, last->front.heap_at);
    }
}

/* ---- filing ------------------------------------------------------------------------------- */

/* Files the sequence under its first missing block, so that the sequence is found when that block
 * becomes valid. */
static void file(struct fronts *f, struct sequence *seq)
{
    int32_t room[MAX_BLOCK_TOKENS];
    struct sequence_front *front = &seq->front;
    front->prev = front->next = NULL;
    front->bucket = -1;
    if (front->n_blocks >= holdings_most_front(f->holdings, seq)) {
        return; // there is no missing block that another sequence could provide
    }
    const int32_t *tokens = holdings_block_tokens(f->holdings, seq, front->n_blocks, room);
    uint64_t hash = prefix_cache_hash(&f->holdings->cache, front->chain, tokens);
    front->bucket = (int32_t)(hash & (f->n_buckets - 1));
    front->next = f->buckets[front->bucket];
    if (front->next) {
        front->next->front.prev = seq;
    }
    f->buckets[front->bucket] = seq;
}

/* Removal needs no search because the list is doubly linked. */
static void unfile(struct fronts *f, struct sequence *seq)
{
    struct sequence_front *front = &seq->front;
    if (front->bucket < 0) {
        return;
    }
    if (front->prev) {
        front->prev->front.next = front->next;
    } else {
        f->buckets[front->bucket] = front->next;
    }
    if (front->next) {
        front->next->front.prev = front->prev;
    }
    front->bucket = -1;
}

/* When the front grows, the sequence waits for another block, and may move up in the heap. */
static void set_front(struct fronts *f, struct sequence *seq, int32_t n_blocks, uint64_t chain)
{
    unfile(f, seq);
    seq->front.n_blocks = n_blocks;
    seq->front.chain = chain;
    file(f, seq);
    heap_fix(f, seq->front.heap_at);
}

/* Whether this is the block that is missing after the sequence's front. */
static bool lacks(const struct fronts *f, const struct sequence *seq, int32_t block)
{
    int32_t room[MAX_BLOCK_TOKENS];
    const struct prefix_cache *c = &f->holdings->cache;
    if (seq->front.chain != c->nodes[block].parent) {
        return false;
    }
    const int32_t *tokens = holdings_block_tokens(f->holdings, seq, seq->front.n_blocks, room);
    size_t size = (size_t)c->block_tokens;
    return memcmp(tokens, c->tokens + (size_t)block * size, size * sizeof *tokens) == 0;
}

/* Sequences that lacked this block are filed under the next block that they lack. That may be
 * several blocks further, since blocks after this one may already be cached from earlier use. */
static void on_valid(void *arg, int32_t block)
{
    struct fronts *f = arg;
    const struct prefix_node *node = &f->holdings->cache.nodes[block];
    struct sequence *next;
    for (struct sequence *q = f->buckets[node->hash & (f->n_buckets - 1)]; q; q = next) {
        next = q->front.next;
        if (lacks(f, q, block)) {
            struct cached_front found = holdings_match(f->holdings, q);
            set_front(f, q, found.n_matched, found.chain);
        }
    }
}

/* Registers on_valid, which the cache calls when a block becomes valid. */
void fronts_init(struct fronts *f, struct holdings *h, int32_t max_sequences)
{
    *f = (struct fronts){.holdings = h, .n_buckets = 64};
    while (f->n_buckets < 2 * (uint32_t)max_sequences) {
        f->n_buckets *= 2;
    }
    f->buckets = xcalloc(f->n_buckets, sizeof(struct sequence *));
    f->heap = xcalloc((size_t)max_sequences, sizeof(struct sequence *));
    h->cache.on_valid = on_valid;
    h->cache.on_valid_arg = f;
}

void fronts_deinit(struct fronts *f)
{
    free(f->buckets);
    free(f->heap);
    *f = (struct fronts){0};
}

/* The front of a new sequence need not be empty. */
void fronts_add(struct fronts *f, struct sequence *seq)
{
    struct cached_front found = holdings_match(f->holdings, seq);
    seq->front = (struct sequence_front){.n_blocks = found.n_matched, .chain = found.chain};
    file(f, seq);
    seq->front.filed = true;
    heap_put(f, f->n_heap++, seq);
    heap_up(f, seq->front.heap_at);
}

void fronts_remove(struct fronts *f, struct sequence *seq)
{
    if (seq->front.filed) {
        unfile(f, seq);
        heap_remove(f, seq->front.heap_at);
        seq->front.filed = false;
    }
}

struct sequence *fronts_best(const struct fronts *f)
{
    return f->n_heap > 0 ? f->heap[0] : NULL;
}

void fronts_correct(struct fronts *f, struct sequence *seq, const struct cached_front *front)
{
    set_front(f, seq, front->n_matched, front->chain);
}

void fronts_reorder(struct fronts *f, struct sequence *seq)
{
    if (seq->front.filed) {
        heap_fix(f, seq->front.heap_at);
    }
}
