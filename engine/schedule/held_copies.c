// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/held_copies.h"

#include "engine/base/assert.h"
#include "engine/base/minmax.h"

#include <string.h>

/* The block to copy from is held until here, so no other copy of the plan writes to it, and
 * backends may copy in any order. A step copies before it computes rows, and this plan allocates
 * nothing more, so the block keeps its content until it is copied. */
static void plan_copy(struct holdings *h, struct plan *p, const struct block_copy *copy)
{
    ASSERT(p->n_copies < h->limits->max_lanes);
    p->copies[p->n_copies++] = *copy;
    if (h->limits->n_pages > 0) {
        ASSERT(p->n_page_copies < max_page_copies(h->limits));
        p->page_copies[p->n_page_copies++] =
            (struct block_copy){h->windows.page_of[copy->from], h->windows.page_of[copy->to]};
    }
    held_windows_end_copy(h, copy->from);
    kv_pool_release(&h->pool, copy->from);
}

/* ---- parts of cached blocks --------------------------------------------------------------- */

/* With recurrent state there are no parts, because a sequence continues only from a boundary. A
 * sequence that waits for the producer of its next block needs none. */
void held_copies_find(const struct holdings *h, const struct sequence *seq,
                      struct cached_front *front)
{
    const struct scheduler_limits *l = h->limits;
    int32_t first = front->n_blocks * l->block_tokens, tokens[MAX_BLOCK_TOKENS];
    // The last token's row is always computed.
    int32_t n = lesser(l->block_tokens, seq->n_known - 1 - first);
    if (l->match_unit >= l->block_tokens || l->state_block > 0 || front->producer >= 0 ||
        front->n_blocks < front->n_matched || n < l->match_unit) {
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = sequence_token(seq, first + i);
    }
    front->part = prefix_cache_closest(&h->cache, front->chain, tokens, n, &n);
    if (l->n_pages > 0 && front->part >= 0 && h->windows.page_of[front->part] < 0) {
        return;
    }
    front->n_part = n - n % l->match_unit;
}

/* This does not count as a use by another owner, as sharing a block does: the sequence has its own
 * copy, so the owner may still release the block. */
void held_copies_begin(struct holdings *h, const struct sequence *seq,
                       const struct cached_front *front)
{
    if (front->n_part > 0) {
        int32_t to = holdings_blocks(h, seq)[front->n_blocks];
        held_windows_hold_copy(h, front->part, true);
        h->pending_parts[h->n_pending_parts++] = (struct pending_part){seq, {front->part, to}};
    }
}

/* The index of the pending copy with which the sequence began; -1: none. */
static int32_t pending_part_of(const struct holdings *h, const struct sequence *seq)
{
    for (int32_t i = 0; i < h->n_pending_parts; i++) {
        if (h->pending_parts[i].seq == seq) {
            return i;
        }
    }
    return -1;
}

static void plan_parts(struct holdings *h, struct plan *p)
{
    for (int32_t i = 0; i < h->n_pending_parts; i++) {
        plan_copy(h, p, &h->pending_parts[i].copy);
    }
    h->n_pending_parts = 0;
}

/* ---- siblings ----------------------------------------------------------------------------- */

/* Removes pending forks [first, first + n). */
static void cut_forks(struct holdings *h, int32_t first, int32_t n)
{
    size_t rest = (size_t)(h->n_pending_forks - first - n);
    memmove(h->pending_forks + first, h->pending_forks + first + n,
            rest * sizeof *h->pending_forks);
    h->n_pending_forks -= n;
}

/* The index of the pending copy with which the sequence was forked; -1: none. A sequence is forked
 * at most once. */
static int32_t pending_fork_of(const struct holdings *h, const struct sequence *seq)
{
    for (int32_t i = 0; i < h->n_pending_forks; i++) {
        if (h->pending_forks[i].seq == seq) {
            return i;
        }
    }
    return -1;
}

bool held_copies_forks(const struct holdings *h, const struct sequence *seq)
{
    return pending_fork_of(h, seq) >= 0;
}

/* With recurrent layers, a fork also copies the whole state of the lane. */
static void plan_fork_copies(struct holdings *h, struct plan *p, const struct pending_fork *f)
{
    if (f->has_copy) {
        plan_copy(h, p, &f->copy);
    }
    if (h->limits->state_block > 0) {
        p->state_copies[p->n_state_copies++] =
            (struct state_copy){f->from_lane, f->to_lane, f->pos};
    }
}

/* ---- both --------------------------------------------------------------------------------- */

int32_t held_copies_source(const struct holdings *h, const struct sequence *seq)
{
    int32_t fork = pending_fork_of(h, seq), part = pending_part_of(h, seq);
    if (fork >= 0 && h->pending_forks[fork].has_copy) {
        return h->pending_forks[fork].copy.from;
    }
    return part >= 0 ? h->pending_parts[part].copy.from : -1;
}

void held_copies_drop(struct holdings *h, const struct sequence *seq)
{
    int32_t fork = pending_fork_of(h, seq), part = pending_part_of(h, seq);
    int32_t from = held_copies_source(h, seq);
    if (from >= 0) {
        held_windows_end_copy(h, from);
        kv_pool_release(&h->pool, from);
    }
    if (fork >= 0) {
        cut_forks(h, fork, 1);
    }
    if (part >= 0) {
        h->pending_parts[part] = h->pending_parts[--h->n_pending_parts];
    }
}

void held_copies_plan(struct holdings *h, struct plan *p)
{
    int32_t n = 0;
    while (n < h->n_pending_forks && !plan_forks(p, h->pending_forks[n].seq)) {
        plan_fork_copies(h, p, &h->pending_forks[n++]);
    }
    cut_forks(h, 0, n);
    plan_parts(h, p);
}
