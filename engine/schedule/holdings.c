#include "engine/schedule/holdings.h"

#include "engine/base/assert.h"

#include <string.h>

int32_t holdings_blocks_for(const struct scheduler *s, int32_t n_tokens)
{
    return (n_tokens + s->limits.block_tokens - 1) / s->limits.block_tokens;
}

int32_t holdings_take_block(struct scheduler *s)
{
    int32_t block = kv_pool_alloc(&s->pool);
    s->draft_valid[block] = false;
    s->draft_producer[block] = -1;
    return block;
}

/* The tokens of full block i, gathered where the prompt and the output meet in it. */
static const int32_t *block_tokens(const struct scheduler *s, const struct sequence *seq, int32_t i,
                                   int32_t *room)
{
    int32_t n = s->limits.block_tokens, first = i * n;
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

bool holdings_reads_cache(const struct scheduler *s, const struct sequence *seq)
{
    return s->limits.prefix_cache && !seq->request->params.prompt_logprobs &&
           seq->request->pool == POOL_NONE;
}

int32_t holdings_look_up(const struct scheduler *s, const struct sequence *seq, int32_t *hit,
                         uint64_t *chain, struct sequence **producer)
{
    int32_t room[MAX_BLOCK_TOKENS];
    int32_t limit = (seq->n_known - 1) / s->limits.block_tokens;
    *chain = seq->root;
    *producer = NULL;
    for (int32_t i = 0; i < limit; i++) {
        int32_t b = prefix_cache_find(&s->cache, *chain, block_tokens(s, seq, i, room));
        if (b < 0) {
            return i;
        }
        const struct prefix_node *node = &s->cache.nodes[b];
        if (node->state == NODE_PENDING) {
            *producer = &s->sequences[node->producer];
            return i;
        }
        *chain = node->uid;
        hit[i] = b;
    }
    return limit;
}

void holdings_enter(struct scheduler *s, struct sequence *seq, int32_t end, enum node_state state)
{
    int32_t room[MAX_BLOCK_TOKENS];
    const int32_t *blocks = scheduler_blocks(s, seq);
    for (int32_t i = seq->n_entered; i < end && s->limits.prefix_cache; i++) {
        const int32_t *tokens = block_tokens(s, seq, i, room);
        int32_t equal = prefix_cache_find(&s->cache, seq->chain, tokens);
        seq->chain = equal >= 0 ? s->cache.nodes[equal].uid
                                : prefix_cache_insert(&s->cache, blocks[i], seq->chain, tokens,
                                                      state, seq->index);
        seq->n_entered = i + 1;
    }
}

bool holdings_produces(const struct scheduler *s, const struct sequence *seq, int32_t block)
{
    const struct prefix_node *n = &s->cache.nodes[block];
    return n->state == NODE_PENDING && n->producer == seq->index;
}

static void drop_blocks(struct scheduler *s, struct sequence *seq)
{
    const int32_t *blocks = scheduler_blocks(s, seq);
    for (int32_t i = seq->n_blocks - 1; i >= 0; i--) { // tails first: they are reused first
        if (holdings_produces(s, seq, blocks[i])) {
            prefix_cache_remove(&s->cache, blocks[i]);
        }
        if (s->draft_producer[blocks[i]] == seq->index) {
            s->draft_producer[blocks[i]] = -1;
        }
        kv_pool_release(&s->pool, blocks[i]);
    }
    seq->n_blocks = 0;
}

void holdings_cut_copies(struct scheduler *s, int32_t first, int32_t n)
{
    size_t rest = (size_t)(s->n_pending_copies - first - n);
    memmove(s->pending_copies + first, s->pending_copies + first + n,
            rest * sizeof *s->pending_copies);
    memmove(s->pending_for + first, s->pending_for + first + n, rest * sizeof *s->pending_for);
    s->n_pending_copies -= n;
}

static void drop_copies(struct scheduler *s, const struct sequence *seq)
{
    for (int32_t i = 0; i < s->n_pending_copies; i++) {
        if (s->pending_for[i] == seq) {
            holdings_cut_copies(s, i, 1);
            return; // a sequence is forked once
        }
    }
}

void holdings_leave(struct scheduler *s, struct sequence *seq)
{
    drop_copies(s, seq);
    drop_blocks(s, seq);
    s->free_lanes[s->n_free_lanes++] = seq->lane;
    seq->lane = -1;
    s->n_running--;
}

/* Whether a sequence can be taken back to waiting: not what this very plan counts on. */
static bool can_preempt(const struct scheduler *s, const struct sequence *seq)
{
    return seq->state == SEQ_RUNNING && seq->planned_in != s->n_plans;
}

bool holdings_may_preempt(const struct scheduler *s, const struct sequence *seq,
                          const struct sequence *other)
{
    return sequence_comes_before(seq, other) && can_preempt(s, other);
}

/* Drops what the plan so far has of a sequence that is preempted while planning. */
static void unplan(struct plan *p, const struct sequence *seq)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_grants; i++) {
        if (p->grants[i].seq != seq) {
            p->grants[n++] = p->grants[i];
        }
    }
    p->n_grants = n;
}

void holdings_preempt(struct scheduler *s, struct plan *p, struct sequence *other)
{
    ASSERT(other->state == SEQ_RUNNING);
    unplan(p, other);
    holdings_leave(s, other);
    other->state = SEQ_WAITING;
    other->n_computed = 0;
    other->n_drafts = 0;
    other->request->n_preemptions++;
    s->n_waiting++;
    s->waiting_tokens += other->n_prompt;
    s->n_preemptions++;
}

/* Blocks that preempting the sequences after `seq` would make available. A shared block counts
 * when its last holder is among them. */
static int32_t reclaimable(struct scheduler *s, const struct sequence *seq)
{
    int32_t n = 0;
    for (struct sequence *v = s->order.prev; v != seq; v = v->prev) {
        const int32_t *blocks = can_preempt(s, v) ? scheduler_blocks(s, v) : NULL;
        for (int32_t i = 0; blocks && i < v->n_blocks; i++) {
            n += ++s->scratch[blocks[i]] == s->pool.refs[blocks[i]];
        }
    }
    for (struct sequence *v = s->order.prev; v != seq; v = v->prev) {
        const int32_t *blocks = can_preempt(s, v) ? scheduler_blocks(s, v) : NULL;
        for (int32_t i = 0; blocks && i < v->n_blocks; i++) {
            s->scratch[blocks[i]] = 0;
        }
    }
    return n;
}

bool holdings_make_room(struct scheduler *s, struct plan *p, struct sequence *seq, int32_t n)
{
    int32_t available = kv_pool_available(&s->pool);
    if (available >= n) {
        return true;
    }
    if (available + reclaimable(s, seq) < n) {
        return false;
    }
    for (struct sequence *v = s->order.prev; v != seq && kv_pool_available(&s->pool) < n;) {
        struct sequence *before = v->prev;
        if (can_preempt(s, v)) {
            holdings_preempt(s, p, v);
        }
        v = before;
    }
    return kv_pool_available(&s->pool) >= n;
}

bool holdings_has_lane(const struct scheduler *s, const struct sequence *seq)
{
    const struct sequence *v = s->order.prev;
    while (v != seq && s->n_free_lanes == 0 && !can_preempt(s, v)) {
        v = v->prev;
    }
    return v != seq || s->n_free_lanes > 0;
}

int32_t holdings_take_lane(struct scheduler *s, struct plan *p, const struct sequence *seq)
{
    for (struct sequence *v = s->order.prev; v != seq && s->n_free_lanes == 0; v = v->prev) {
        if (can_preempt(s, v)) {
            holdings_preempt(s, p, v);
            break;
        }
    }
    ASSERT(s->n_free_lanes > 0);
    return s->free_lanes[--s->n_free_lanes];
}

void holdings_grant(struct scheduler *s, struct plan *p, struct sequence *seq, bool fresh)
{
    if (seq->n_granted < seq->n_blocks || fresh) {
        ASSERT(p->n_grants < 2 * s->limits.max_lanes);
        p->grants[p->n_grants++] =
            (struct plan_grant){seq, seq->n_granted, seq->n_blocks - seq->n_granted, fresh};
        seq->n_granted = seq->n_blocks;
    }
}

bool holdings_grow(struct scheduler *s, struct plan *p, struct sequence *seq, int32_t n_tokens)
{
    int32_t need = holdings_blocks_for(s, n_tokens) - seq->n_blocks;
    if (need > 0 && !holdings_make_room(s, p, seq, need)) {
        return false;
    }
    int32_t *blocks = scheduler_blocks(s, seq);
    for (; need > 0; need--) {
        blocks[seq->n_blocks++] = holdings_take_block(s);
    }
    holdings_grant(s, p, seq, false);
    return true;
}

/* ---- the draft model's KV ----------------------------------------------------------------- */

int32_t holdings_draft_rows(struct scheduler *s, struct sequence *seq, int32_t end)
{
    const int32_t *blocks = scheduler_blocks(s, seq);
    int32_t size = s->limits.block_tokens, held = seq->n_blocks * size;
    held = held < end ? held : end; // what comes behind it will be this sequence's own
    while (seq->draft_computed % size == 0 && seq->draft_computed + size <= held &&
           s->draft_valid[blocks[seq->draft_computed / size]]) {
        seq->draft_computed += size;
    }
    int32_t reach = seq->draft_computed;
    for (int32_t b = reach / size; reach < held; b++) {
        int32_t *producer = &s->draft_producer[blocks[b]];
        bool shared = s->pool.refs[blocks[b]] > 1 || s->pool.cached[blocks[b]];
        if (shared && *producer >= 0 && *producer != seq->index) {
            end = reach;
            break;
        }
        *producer = seq->index;
        reach = (b + 1) * size;
    }
    return end - seq->draft_computed;
}

void holdings_draft_fed(struct scheduler *s, struct sequence *seq, int32_t end)
{
    if (seq->lane < 0) {
        return;
    }
    const int32_t *blocks = scheduler_blocks(s, seq);
    int32_t size = s->limits.block_tokens;
    for (int32_t b = seq->draft_marked / size; (b + 1) * size <= end; b++) {
        s->draft_valid[blocks[b]] = true;
        if (s->draft_producer[blocks[b]] == seq->index) {
            s->draft_producer[blocks[b]] = -1;
        }
    }
    seq->draft_marked = end / size * size;
}
