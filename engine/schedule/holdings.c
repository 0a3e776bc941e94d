// SPDX-License-Identifier: Apache-2.0
/* The resources that sequences hold: a lane, blocks of the cache, and for recurrent layers the
 * states in them, and for layers with a window the pages in it. Only this file changes a sequence's
 * blocks. It adds to the plan what the backend has to do for such a change. */
#include "engine/schedule/holdings.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/schedule/held_copies.h"

#include <stdlib.h>
#include <string.h>

static void on_gone(void *arg, int32_t block)
{
    struct holdings *h = arg;
    retention_gone(&h->retention, block);
    held_states_gone(h, block);
    held_windows_gone(h, block);
}

/* Allocates for the maximum number of sequences, so that planning never allocates. */
void holdings_init(struct holdings *h, const struct scheduler_limits *limits)
{
    *h = (struct holdings){.limits = limits};
    size_t lanes = (size_t)limits->max_lanes, blocks = (size_t)limits->n_blocks;
    kv_pool_init(&h->pool, limits->n_blocks, NULL, NULL);
    prefix_cache_init(&h->cache, &h->pool, limits->block_tokens, limits->hash_key);
    retention_init(&h->retention, &h->pool.idle);
    h->cache.on_gone = on_gone;
    h->cache.on_gone_arg = h;
    h->free_lanes = xcalloc(lanes, sizeof *h->free_lanes);
    for (int32_t i = 0; i < limits->max_lanes; i++) {
        h->free_lanes[i] = limits->max_lanes - 1 - i;
    }
    h->n_free_lanes = limits->max_lanes;
    h->lane_blocks = xcalloc(lanes * (size_t)limits->max_blocks_per_lane, sizeof *h->lane_blocks);
    h->draft_valid = xcalloc(blocks, sizeof *h->draft_valid);
    h->draft_producer = xcalloc(blocks, sizeof *h->draft_producer);
    h->pending_forks = xcalloc(lanes, sizeof *h->pending_forks);
    h->pending_parts = xcalloc(lanes, sizeof *h->pending_parts);
    h->hits = xcalloc((size_t)limits->max_blocks_per_lane, sizeof *h->hits);
    h->scratch = xcalloc(blocks, sizeof *h->scratch);
    held_states_init(h);
    held_windows_init(h);
}

void holdings_deinit(struct holdings *h)
{
    held_windows_deinit(h);
    held_states_deinit(h);
    retention_deinit(&h->retention);
    prefix_cache_deinit(&h->cache);
    kv_pool_deinit(&h->pool);
    free(h->free_lanes);
    free(h->lane_blocks);
    free(h->draft_valid);
    free(h->draft_producer);
    free(h->pending_forks);
    free(h->pending_parts);
    free(h->hits);
    free(h->scratch);
    *h = (struct holdings){0};
}

/* ---- counting ----------------------------------------------------------------------------- */

struct room holdings_available(const struct holdings *h)
{
    return (struct room){kv_pool_available(&h->pool), h->limits->n_pages - h->windows.n_reserved};
}

struct room holdings_need(const struct holdings *h, const struct sequence *seq,
                          const struct cached_front *front)
{
    return (struct room){holdings_blocks_for(h, seq->n_known) - front->n_blocks,
                         windows_pages(h->limits, seq->n_known, 0)};
}

/* Counts one more hold of a block that is being given up; true if that was the last. */
static bool gives_up(struct holdings *h, int32_t block)
{
    return ++h->scratch[block] == h->pool.refs[block];
}

/* A block can be reclaimed if all of its holders are among these sequences, so their references to
 * it are counted and compared with the pool's count. */
struct room holdings_reclaimable(struct holdings *h, struct sequence *const *seqs, int32_t n)
{
    int32_t n_blocks = 0, n_pages = 0;
    for (int32_t k = 0; k < n; k++) {
        const int32_t *blocks = holdings_blocks(h, seqs[k]);
        int32_t source = held_copies_source(h, seqs[k]);
        for (int32_t i = 0; i < seqs[k]->n_blocks; i++) {
            n_blocks += gives_up(h, blocks[i]);
        }
        n_blocks += source >= 0 && gives_up(h, source);
        n_pages += seqs[k]->n_reserved + (source >= 0);
    }
    for (int32_t k = 0; k < n; k++) {
        const int32_t *blocks = holdings_blocks(h, seqs[k]);
        int32_t source = held_copies_source(h, seqs[k]);
        for (int32_t i = 0; i < seqs[k]->n_blocks; i++) {
            h->scratch[blocks[i]] = 0;
        }
        if (source >= 0) {
            h->scratch[source] = 0;
        }
    }
    return (struct room){n_blocks, n_pages};
}

/* ---- the cache ---------------------------------------------------------------------------- */

/* A block may contain both prompt and output tokens; these are then copied to `room`. */
const int32_t *holdings_block_tokens(const struct holdings *h, const struct sequence *seq,
                                     int32_t i, int32_t room[MAX_BLOCK_TOKENS])
{
    int32_t n = h->limits->block_tokens, first = i * n;
    if (first + n <= seq->n_prompt) {
        return seq->request->prompt + first;
    }
    if (first >= seq->n_prompt) {
        return seq->output->tokens + (first - seq->n_prompt);
    }
    for (int32_t j = 0; j < n; j++) {
        room[j] = sequence_token(seq, first + j);
    }
    return room;
}

/* Whether the sequence may use cached blocks. It may not if the result of every row is needed. */
static bool reads_cache(const struct holdings *h, const struct sequence *seq)
{
    return h->limits->prefix_cache && !seq->request->params.prompt_logprobs &&
           seq->request->pool == POOL_NONE;
}

int32_t holdings_most_front(const struct holdings *h, const struct sequence *seq)
{
    if (reads_cache(h, seq)) {
        return (seq->n_known - 1) / h->limits->block_tokens;
    }
    return 0;
}

/* hits: receives the ids of the blocks; may be NULL. */
static struct cached_front match(const struct holdings *h, const struct sequence *seq,
                                 int32_t *hits)
{
    int32_t room[MAX_BLOCK_TOKENS];
    int32_t limit = holdings_most_front(h, seq);
    struct cached_front front = {.chain = seq->root, .producer = -1, .snapshot = -1};
    for (; front.n_matched < limit; front.n_matched++) {
        const int32_t *tokens = holdings_block_tokens(h, seq, front.n_matched, room);
        int32_t b = prefix_cache_find(&h->cache, front.chain, tokens);
        if (b < 0) {
            break;
        }
        const struct prefix_node *node = &h->cache.nodes[b];
        if (node->state != NODE_VALID) {
            front.producer = node->producer;
            break;
        }
        front.chain = node->uid;
        if (hits) {
            hits[front.n_matched] = b;
        }
    }
    front.n_blocks = front.n_matched;
    return front;
}

struct cached_front holdings_match(const struct holdings *h, const struct sequence *seq)
{
    return match(h, seq, NULL);
}

struct cached_front holdings_find(struct holdings *h, const struct sequence *seq)
{
    struct cached_front front = match(h, seq, h->hits);
    held_states_find(h, &front);
    held_windows_find(h, &front);
    if (reads_cache(h, seq)) {
        held_copies_find(h, seq, &front);
    }
    return front;
}

/* Enters blocks [seq->n_entered, end) with the given state into the cache, unless it has an equal
 * node. */
static void enter(struct holdings *h, struct sequence *seq, int32_t end, enum node_state state)
{
    int32_t room[MAX_BLOCK_TOKENS];
    const int32_t *blocks = holdings_blocks(h, seq);
    for (int32_t i = seq->n_entered; i < end && h->limits->prefix_cache; i++) {
        const int32_t *tokens = holdings_block_tokens(h, seq, i, room);
        int32_t equal = prefix_cache_find(&h->cache, seq->chain, tokens);
        if (equal >= 0) {
            seq->chain = h->cache.nodes[equal].uid;
            held_windows_mark(h, seq, i, equal);
        } else {
            seq->chain =
                prefix_cache_insert(&h->cache, blocks[i], seq->chain, tokens, state, seq->index);
            retention_entered(&h->retention, blocks[i],
                              retention_owner(&h->retention, seq->request));
            held_windows_entered(h, blocks[i]);
        }
        seq->n_entered = i + 1;
        held_states_mark(h, seq, i, equal >= 0 ? equal : blocks[i]);
    }
}

void holdings_reached(struct holdings *h, struct sequence *seq, int32_t n_sure)
{
    int32_t before = seq->n_entered;
    enter(h, seq, n_sure / h->limits->block_tokens, NODE_VALID);
    held_states_reached(h, seq, n_sure, before);
}

void holdings_prove(struct holdings *h, struct sequence *seq)
{
    const int32_t *blocks = holdings_blocks(h, seq);
    // the row that sampled the last token saw all tokens before it
    int32_t end = (seq->n_known - 1) / h->limits->block_tokens;
    end = lesser(end, seq->n_entered);
    for (; seq->n_known > seq->n_begun && seq->n_proven < end; seq->n_proven++) {
        prefix_cache_prove(&h->cache, blocks[seq->n_proven]);
    }
}

void holdings_doubt(struct holdings *h, const struct sequence *seq, int64_t now)
{
    const int32_t *blocks = holdings_blocks(h, seq);
    for (int32_t i = 0; i < seq->n_blocks; i++) {
        prefix_cache_doubt(&h->cache, blocks[i], now);
    }
}

/* Whether this sequence is computing the cached block, for the first time or again. */
static bool produces(const struct holdings *h, const struct sequence *seq, int32_t block)
{
    const struct prefix_node *n = &h->cache.nodes[block];
    return (n->state == NODE_PENDING || n->state == NODE_AGAIN) && n->producer == seq->index;
}

/* Called when a plan is complete. Blocks that its rows fill can be found from now on, because later
 * steps run after it. */
void holdings_publish(struct holdings *h, struct plan *p)
{
    int32_t size = h->limits->block_tokens;
    held_states_settle(h);
    for (int32_t e = 0; e < p->n_entries; e++) {
        const struct plan_entry *entry = &p->entries[e];
        const int32_t *blocks = holdings_blocks(h, entry->seq);
        held_states_publish(h, p, entry);
        int32_t end = entry->first + entry->n_rows;
        for (int32_t i = entry->first / size; (i + 1) * size <= end; i++) {
            if (produces(h, entry->seq, blocks[i])) {
                prefix_cache_validate(&h->cache, blocks[i]);
            } else {
                held_windows_replace(h, entry->seq, i);
            }
        }
    }
}

void holdings_forget_idle(struct holdings *h)
{
    prefix_cache_reset(&h->cache);
}

/* ---- begin and continue ------------------------------------------------------------------- */

/* A block must be available. */
static int32_t take_block(struct holdings *h)
{
    int32_t block = kv_pool_alloc(&h->pool);
    h->draft_valid[block] = false;
    h->draft_producer[block] = -1;
    return block;
}

/* Adds the blocks that the backend's table lacks to the plan; with `fresh` the whole table. */
static void grant(struct holdings *h, struct plan *p, struct sequence *seq, bool fresh)
{
    if (seq->n_granted < seq->n_blocks || fresh) {
        ASSERT(p->n_grants < 2 * h->limits->max_lanes);
        p->grants[p->n_grants++] =
            (struct plan_grant){seq, seq->n_granted, seq->n_blocks - seq->n_granted, fresh};
        seq->n_granted = seq->n_blocks;
    }
}

/* Takes a free lane. The backend's table and the draft models' KV have nothing for it yet. */
static void take_lane(struct holdings *h, struct sequence *seq)
{
    ASSERT(h->n_free_lanes > 0);
    seq->lane = h->free_lanes[--h->n_free_lanes];
    seq->n_blocks = seq->n_granted = seq->n_proven = 0;
    seq->n_begun = seq->n_known;
    // holdings_draft_rows skips what the blocks already have
    seq->draft_computed = seq->draft_marked = 0;
}

/* Idle blocks of a front are no longer available once the front is taken, so they count as
 * needed. */
int32_t holdings_idle_among(const struct holdings *h, const struct cached_front *front)
{
    int32_t n = 0;
    for (int32_t i = 0; i < front->n_blocks; i++) {
        n += h->pool.refs[h->hits[i]] == 0;
    }
    return n;
}

/* Holds the front's blocks, so that they are not reused while blocks are freed. */
void holdings_keep_front(struct holdings *h, const struct cached_front *front)
{
    for (int32_t i = 0; i < front->n_blocks; i++) {
        kv_pool_retain(&h->pool, h->hits[i]);
    }
    if (front->n_part > 0) {
        kv_pool_retain(&h->pool, front->part);
    }
    if (front->snapshot >= 0) {
        states_hold(&h->states.snapshots, front->snapshot);
    }
    held_windows_keep_front(h, front);
}

/* Releases from the end, so that the beginning of a prefix stays cached the longest. */
void holdings_drop_front(struct holdings *h, const struct cached_front *front)
{
    held_windows_drop_front(h, front);
    if (front->n_part > 0) {
        kv_pool_release(&h->pool, front->part);
    }
    for (int32_t i = front->n_blocks - 1; i >= 0; i--) {
        kv_pool_release(&h->pool, h->hits[i]);
    }
    if (front->snapshot >= 0) {
        states_release(&h->states.snapshots, front->snapshot);
    }
}

void holdings_spare_part(struct holdings *h, struct cached_front *front, struct room need)
{
    need.pages += h->limits->n_pages > 0; // the copy holds one, too
    if (front->n_part > 0 && !room_covers(holdings_available(h), need)) {
        held_windows_drop_part(h, front);
        kv_pool_release(&h->pool, front->part);
        front->n_part = 0;
    }
}

/* Reports that the sequence uses these cached blocks, which may belong to another owner. */
static void report_use(struct holdings *h, const struct sequence *seq,
                       const struct cached_front *front)
{
    const int32_t *blocks = holdings_blocks(h, seq);
    int32_t owner = retention_owner(&h->retention, seq->request);
    for (int32_t i = 0; i < front->n_matched; i++) {
        if (blocks[i] == h->hits[i]) {
            retention_used(&h->retention, blocks[i], owner);
        }
    }
}

/* Fills the table for all known tokens. Matched blocks after the front that nobody holds are
 * recomputed in place, since later cached blocks depend on them. If others hold them, the sequence
 * gets separate blocks. */
static void fill_table(struct holdings *h, struct sequence *seq, const struct cached_front *front)
{
    int32_t *blocks = holdings_blocks(h, seq), need = holdings_blocks_for(h, seq->n_known);
    for (int32_t i = 0; i < front->n_matched; i++) {
        bool idle = h->pool.refs[h->hits[i]] == 0;
        blocks[i] = i < front->n_blocks || idle ? h->hits[i] : -1;
        if (i >= front->n_blocks && idle) {
            kv_pool_retain(&h->pool, blocks[i]);
            prefix_cache_renew(&h->cache, blocks[i], seq->index);
        }
    }
    report_use(h, seq, front);
    for (seq->n_blocks = front->n_blocks; seq->n_blocks < need; seq->n_blocks++) {
        if (seq->n_blocks >= front->n_matched || blocks[seq->n_blocks] < 0) {
            blocks[seq->n_blocks] = take_block(h);
        }
    }
}

/* Gives the sequence a lane and its table: cached blocks, then new ones. Its chain continues from
 * the last cached block. */
void holdings_begin(struct holdings *h, struct plan *p, struct sequence *seq,
                    const struct cached_front *front)
{
    take_lane(h, seq);
    fill_table(h, seq, front);
    const int32_t *blocks = holdings_blocks(h, seq);
    int32_t last = front->n_blocks - 1;
    if (last >= 0) {
        seq->chain = h->cache.nodes[blocks[last]].uid;
    } else {
        seq->chain = seq->root;
    }
    seq->n_entered = front->n_blocks;
    held_states_begin(h, seq, front);
    held_windows_begin(h, p, seq, front);
    held_copies_begin(h, seq, front);
    enter(h, seq, seq->n_known / h->limits->block_tokens, NODE_PENDING);
    grant(h, p, seq, true);
}

static bool ends_inside_block(const struct holdings *h, const struct sequence *leader)
{
    return leader->n_prompt % h->limits->block_tokens != 0;
}

bool holdings_can_fork(const struct holdings *h, const struct sequence *leader)
{
    const bool copies = ends_inside_block(h, leader);
    struct room need = {copies, windows_pages(h->limits, leader->n_prompt + 1, 1)};
    need.pages += copies && h->limits->n_pages > 0;
    return h->n_free_lanes > 0 && room_covers(holdings_available(h), need);
}

/* Full blocks are shared. The last, partial one is copied, because both sequences will write to
 * it. */
void holdings_fork(struct holdings *h, struct plan *p, struct sequence *seq,
                   const struct sequence *leader)
{
    int32_t n_full = leader->n_prompt / h->limits->block_tokens;
    take_lane(h, seq);
    int32_t *blocks = holdings_blocks(h, seq);
    const int32_t *shared = holdings_blocks(h, leader);
    for (; seq->n_blocks < n_full; seq->n_blocks++) {
        kv_pool_retain(&h->pool, shared[seq->n_blocks]);
        blocks[seq->n_blocks] = shared[seq->n_blocks];
    }
    struct pending_fork fork = {seq, leader->lane, seq->lane, leader->n_prompt, false, {0, 0}};
    if (ends_inside_block(h, leader)) {
        blocks[seq->n_blocks++] = take_block(h);
        fork.has_copy = true;
        fork.copy = (struct block_copy){shared[n_full], blocks[n_full]};
        kv_pool_retain(&h->pool, shared[n_full]);
        held_windows_hold_copy(h, shared[n_full], false);
    }
    if (fork.has_copy || h->limits->state_block > 0) {
        h->pending_forks[h->n_pending_forks++] = fork;
    }
    seq->chain = leader->chain;
    seq->n_entered = lesser(n_full, leader->n_entered);
    held_states_fork(h, seq, leader);
    held_windows_fork(h, p, seq, leader);
    grant(h, p, seq, true);
}

struct room holdings_missing(const struct holdings *h, const struct sequence *seq, int32_t n_tokens)
{
    const int32_t n_rows = n_tokens - seq->n_computed;
    return (struct room){holdings_blocks_for(h, n_tokens) - seq->n_blocks,
                         windows_pages(h->limits, n_tokens, n_rows) - seq->n_reserved};
}

/* Allocates blocks for the next rows. A reservation for a prompt's chunks may become smaller. */
void holdings_grow(struct holdings *h, struct plan *p, struct sequence *seq, int32_t n_tokens)
{
    int32_t *blocks = holdings_blocks(h, seq);
    const struct room missing = holdings_missing(h, seq, n_tokens);
    while (seq->n_blocks < holdings_blocks_for(h, n_tokens)) {
        blocks[seq->n_blocks++] = take_block(h);
    }
    held_windows_shift(h, seq, n_tokens - seq->n_computed);
    held_windows_reserve(h, seq, seq->n_reserved + missing.pages);
    grant(h, p, seq, false);
}

/* ---- leave -------------------------------------------------------------------------------- */

/* Pending blocks that nobody will complete are removed from the cache, so that no sequence waits
 * for them. */
static void drop_blocks(struct holdings *h, struct sequence *seq)
{
    const int32_t *blocks = holdings_blocks(h, seq);
    // Released from the end, so that the last blocks are reused first.
    for (int32_t i = seq->n_blocks - 1; i >= 0; i--) {
        if (produces(h, seq, blocks[i])) {
            bool whole = h->cache.nodes[blocks[i]].state == NODE_AGAIN &&
                         seq->n_computed <= i * h->limits->block_tokens;
            if (whole) { // the node returns to its previous state
                prefix_cache_validate(&h->cache, blocks[i]);
            } else {
                prefix_cache_remove(&h->cache, blocks[i]);
            }
        }
        if (h->draft_producer[blocks[i]] == seq->index) {
            h->draft_producer[blocks[i]] = -1;
        }
        kv_pool_release(&h->pool, blocks[i]);
    }
    seq->n_blocks = 0;
}

/* The copies are added to the plan that follows the forking one: by then the rows to copy are
 * stored. Their order is: states out of lanes, forks, states into lanes. */
void holdings_plan_copies(struct holdings *h, struct plan *p)
{
    held_states_plan_outs(h, p);
    held_copies_plan(h, p);
    held_states_plan_ins(h, p);
}

void holdings_settle(struct holdings *h, struct sequence *seq, int32_t n_sure,
                     enum state_reason reason)
{
    if (!held_copies_forks(h, seq)) {
        enter(h, seq, n_sure / h->limits->block_tokens, NODE_VALID);
        held_states_leave(h, seq, n_sure, reason);
    }
}

void holdings_leave(struct holdings *h, struct sequence *seq)
{
    held_copies_drop(h, seq);
    held_states_drop(h, seq);
    held_windows_leave(h, seq);
    drop_blocks(h, seq);
    h->free_lanes[h->n_free_lanes++] = seq->lane;
    seq->lane = -1;
}

/* ---- checks ------------------------------------------------------------------------------- */

/* For tests: verifies that the counts of references, the lanes and the marks agree with the
 * sequences. */
void holdings_check(const struct holdings *h, const struct sequence *order)
{
    const struct scheduler_limits *l = h->limits;
    int32_t *held = xcalloc((size_t)l->n_blocks, sizeof *held), n_lanes = 0;
    int32_t *sources = xcalloc((size_t)l->max_lanes, sizeof *sources), n_sources = 0;
    bool *filled = xcalloc((size_t)l->n_blocks, sizeof *filled);
    kv_pool_check(&h->pool);
    retention_check(&h->retention);
    for (const struct sequence *q = order->next; q != order; q = q->next) {
        n_lanes += q->lane >= 0;
        const int32_t *blocks = q->lane >= 0 ? holdings_blocks(h, q) : NULL;
        if (held_copies_source(h, q) >= 0) {
            held[held_copies_source(h, q)]++;
            sources[n_sources++] = held_copies_source(h, q);
        }
        for (int32_t i = 0; blocks && i < q->n_blocks; i++) {
            held[blocks[i]]++;
            filled[blocks[i]] |= h->draft_producer[blocks[i]] == q->index;
        }
    }
    for (int32_t b = 0; b < l->n_blocks; b++) {
        ASSERT(held[b] == h->pool.refs[b]);
        ASSERT(h->pool.cached[b] == (h->cache.nodes[b].state != NODE_NONE));
        ASSERT(h->cache.nodes[b].state == NODE_NONE || h->cache.nodes[b].state == NODE_VALID ||
               held[b] > 0);
        // by a sequence that holds it
        ASSERT(held[b] == 0 || h->draft_producer[b] < 0 || filled[b]);
    }
    ASSERT(n_lanes + h->n_free_lanes == l->max_lanes);
    held_states_check(h);
    held_windows_check(h, order, sources, n_sources);
    free(sources);
    free(held);
    free(filled);
}
