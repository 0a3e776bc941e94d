// SPDX-License-Identifier: Apache-2.0
/* Recurrent states of sequences: which boundaries get a snapshot, and when a state is copied out of
 * or into a lane. For models without recurrent layers these functions do nothing. */
#include "engine/schedule/holdings.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

void held_states_gone(struct holdings *h, int32_t block)
{
    if (h->states.block > 0) {
        states_forget(&h->states.snapshots, block);
    }
}

/* The distance between state boundaries is a multiple of the cache's block size, so that a snapshot
 * belongs to exactly one block. */
void held_states_init(struct holdings *h)
{
    struct held_states *hs = &h->states;
    const struct scheduler_limits *l = h->limits;
    *hs = (struct held_states){.block = l->state_block};
    if (hs->block == 0) {
        return;
    }
    ASSERT(hs->block % l->block_tokens == 0);
    size_t lanes = (size_t)l->max_lanes;
    hs->per_lane = l->max_blocks_per_lane * l->block_tokens / hs->block + 1;
    states_init(&hs->snapshots, l->n_snapshots, l->n_blocks);
    hs->marks = xcalloc(lanes * (size_t)hs->per_lane, sizeof *hs->marks);
    hs->outs = xcalloc(2 * lanes, sizeof *hs->outs);
    hs->ins = xcalloc(lanes, sizeof *hs->ins);
    hs->kept = xcalloc((size_t)max_keeps(l), sizeof *hs->kept);
}

void held_states_deinit(struct holdings *h)
{
    struct held_states *hs = &h->states;
    states_deinit(&hs->snapshots);
    free(hs->marks);
    free(hs->outs);
    free(hs->ins);
    free(hs->kept);
    *hs = (struct held_states){0};
}

/* ---- boundaries --------------------------------------------------------------------------- */

/* The lane's mark for a boundary greater than 0. */
static struct state_mark *mark_of(const struct holdings *h, int32_t lane, int32_t boundary)
{
    const struct held_states *hs = &h->states;
    return hs->marks + (int64_t)lane * hs->per_lane + boundary / hs->block - 1;
}

/* Whether the block before the boundary is still in the cache; *block becomes its id. */
static bool is_known(const struct holdings *h, const struct sequence *seq, int32_t boundary,
                     int32_t *block)
{
    if (boundary > seq->n_entered * h->limits->block_tokens) {
        return false;
    }
    const struct state_mark *m = mark_of(h, seq->lane, boundary);
    const struct prefix_node *n = &h->cache.nodes[m->block];
    *block = m->block;
    return n->state != NODE_NONE && n->uid == m->uid;
}

static int32_t last_boundary(const struct held_states *hs, int32_t pos)
{
    return pos / hs->block * hs->block;
}

/* The deepest snapshot before a boundary on the sequence's path; -1: none. */
static int32_t snapshot_above(const struct holdings *h, const struct sequence *seq,
                              int32_t boundary)
{
    int32_t block;
    for (int32_t e = boundary - h->states.block; e > 0; e -= h->states.block) {
        if (is_known(h, seq, e, &block) && states_at(&h->states.snapshots, block) >= 0) {
            return states_at(&h->states.snapshots, block);
        }
    }
    return -1;
}

/* A slot, with a hold, for the state at that boundary. -1: there is a snapshot already, or no slot
 * is available. */
static int32_t take(struct holdings *h, const struct sequence *seq, int32_t boundary,
                    enum state_reason reason)
{
    struct states *s = &h->states.snapshots;
    int32_t block;
    if (s->n == 0 || !is_known(h, seq, boundary, &block) || states_at(s, block) >= 0) {
        return -1;
    }
    return states_take(s, block, boundary, snapshot_above(h, seq, boundary), reason);
}

/* Whether the sequence should take a snapshot when it reaches this boundary. */
static bool is_wanted(const struct holdings *h, const struct sequence *seq, int32_t boundary,
                      enum state_reason *reason)
{
    if (boundary == seq->branch) {
        *reason = STATE_BRANCH;
    } else if (boundary == last_boundary(&h->states, seq->n_prompt - 1)) {
        *reason = STATE_END; // the last boundary from which the same prompt can resume
    } else {
        *reason = STATE_STEP;
        return boundary % h->limits->state_interval == 0;
    }
    return true;
}

/* ---- begin -------------------------------------------------------------------------------- */

/* Shortens the matched front to the longest part that ends at a snapshot; the rows after that are
 * computed again. */
void held_states_find(const struct holdings *h, struct cached_front *front)
{
    const struct held_states *hs = &h->states;
    if (hs->block == 0) {
        return;
    }
    int32_t per = hs->block / h->limits->block_tokens;
    for (int32_t n = front->n_matched / per * per; n > 0; n -= per) {
        front->snapshot = states_at(&hs->snapshots, h->hits[n - 1]);
        if (front->snapshot >= 0) {
            front->n_blocks = n;
            return;
        }
    }
    front->n_blocks = 0;
}

/* Remembers the node that ends at a boundary, so that a snapshot taken there later is filed under
 * that node. */
void held_states_mark(struct holdings *h, const struct sequence *seq, int32_t i, int32_t node)
{
    struct held_states *hs = &h->states;
    int32_t end = (i + 1) * h->limits->block_tokens;
    if (hs->block > 0 && end % hs->block == 0) {
        *mark_of(h, seq->lane, end) = (struct state_mark){h->cache.nodes[node].uid, node};
    }
}

/* Records that the snapshots along a front lie on one path. */
static void learn_way(struct holdings *h, const struct cached_front *front)
{
    struct states *s = &h->states.snapshots;
    int32_t per = h->states.block / h->limits->block_tokens, above = -1;
    for (int32_t n = per; n <= front->n_blocks; n += per) {
        int32_t slot = states_at(s, h->hits[n - 1]);
        if (slot >= 0) {
            states_set_above(s, slot, above);
            above = slot;
        }
    }
}

/* A restored sequence begins at a snapshot, which is copied into its lane. If the cache has more
 * blocks than the snapshot covers, the sequence should take another snapshot where they end
 * (seq->branch). */
void held_states_begin(struct holdings *h, struct sequence *seq, const struct cached_front *front)
{
    struct held_states *hs = &h->states;
    seq->branch = 0;
    if (hs->block == 0) {
        return;
    }
    int32_t size = h->limits->block_tokens, begin = front->n_blocks * size;
    for (int32_t i = 0; i < front->n_blocks; i++) {
        held_states_mark(h, seq, i, h->hits[i]);
    }
    int32_t parted = last_boundary(hs, front->n_matched * size);
    seq->branch = parted > begin ? parted : 0;
    if (front->snapshot >= 0) {
        learn_way(h, front);
        states_use(&hs->snapshots, front->snapshot);
        hs->ins[hs->n_ins++] = (struct pending_state){seq, seq->lane, front->snapshot, begin};
    }
}

/* A sibling has the same prefix, so it gets the same marks. */
void held_states_fork(struct holdings *h, const struct sequence *seq, const struct sequence *leader)
{
    const struct held_states *hs = &h->states;
    if (hs->block > 0) {
        memcpy(mark_of(h, seq->lane, hs->block), mark_of(h, leader->lane, hs->block),
               (size_t)hs->per_lane * sizeof *hs->marks);
    }
}

/* ---- continue and leave ------------------------------------------------------------------- */

/* Copies the lane's state at its last boundary to a snapshot, before the next step. */
static void copy_out(struct holdings *h, const struct sequence *seq, int32_t boundary,
                     enum state_reason reason)
{
    struct held_states *hs = &h->states;
    int32_t slot = -1;
    if (hs->n_outs < 2 * h->limits->max_lanes) {
        slot = take(h, seq, boundary, reason);
    }
    if (slot >= 0) {
        hs->outs[hs->n_outs++] = (struct pending_state){NULL, seq->lane, slot, boundary};
    }
}

/* Whether the lane still has the state of the last boundary before n_sure. A lane keeps the state
 * of its last boundary, or of the last two if rows may be rejected. */
static bool has_record(const struct holdings *h, const struct sequence *seq, int32_t n_sure)
{
    int32_t kept = h->limits->state_ahead > 0 ? 2 : 1;
    return seq->n_computed < last_boundary(&h->states, n_sure) + kept * h->states.block;
}

/* The pass itself stores the states at the boundaries that this plan's rows cross, except at the
 * last one, whose state the lane still has after the pass. */
void held_states_publish(struct holdings *h, struct plan *p, const struct plan_entry *entry)
{
    struct held_states *hs = &h->states;
    const struct sequence *seq = entry->seq;
    int32_t end = entry->first + entry->n_rows;
    enum state_reason reason;
    if (hs->block == 0 || entry->n_drafts > 0) {
        return; // drafts may be rejected: see holdings_reached
    }
    for (int32_t e = last_boundary(hs, entry->first) + hs->block; e <= end; e += hs->block) {
        if (!is_wanted(h, seq, e, &reason)) {
            continue;
        }
        if (e + hs->block > end) {
            copy_out(h, seq, e, reason);
            return;
        }
        int32_t slot = -1;
        if (hs->n_kept < max_keeps(h->limits)) {
            slot = take(h, seq, e, reason);
        }
        if (slot >= 0) {
            hs->kept[hs->n_kept++] = (struct pending_state){NULL, seq->lane, slot, e};
            p->keeps[p->n_keeps++] = (struct state_keep){seq->lane, e, h->limits->max_lanes + slot};
        }
    }
}

/* Called when the tokens up to n_sure are final, so the state at the last boundary before them can
 * be stored. */
void held_states_reached(struct holdings *h, const struct sequence *seq, int32_t n_sure,
                         int32_t before)
{
    struct held_states *hs = &h->states;
    enum state_reason reason;
    int32_t e = hs->block > 0 ? last_boundary(hs, n_sure) : 0;
    if (e > before * h->limits->block_tokens && is_wanted(h, seq, e, &reason) &&
        has_record(h, seq, n_sure)) {
        copy_out(h, seq, e, reason);
    }
}

void held_states_leave(struct holdings *h, const struct sequence *seq, int32_t n_sure,
                       enum state_reason reason)
{
    int32_t e = h->states.block > 0 ? last_boundary(&h->states, n_sure) : 0;
    if (e > 0 && has_record(h, seq, n_sure)) {
        copy_out(h, seq, e, reason);
    }
}

/* ---- copies for the plan ------------------------------------------------------------------- */

/* Adds a copy to the plan. Its hold on the slot ends here: a copy that reuses the slot is added
 * later, and so executes later. */
static void plan_copy(struct holdings *h, struct plan *p, const struct pending_state *x, bool out)
{
    int32_t slot = h->limits->max_lanes + x->slot;
    ASSERT(p->n_state_copies < max_state_copies(h->limits));
    p->state_copies[p->n_state_copies++] =
        (struct state_copy){out ? x->lane : slot, out ? slot : x->lane, x->pos};
    states_release(&h->states.snapshots, x->slot);
}

void held_states_plan_outs(struct holdings *h, struct plan *p)
{
    struct held_states *hs = &h->states;
    for (int32_t i = 0; i < hs->n_outs; i++) {
        plan_copy(h, p, &hs->outs[i], true);
    }
    hs->n_outs = 0;
}

void held_states_plan_ins(struct holdings *h, struct plan *p)
{
    struct held_states *hs = &h->states;
    for (int32_t i = 0; i < hs->n_ins; i++) {
        plan_copy(h, p, &hs->ins[i], false);
    }
    hs->n_ins = 0;
}

void held_states_settle(struct holdings *h)
{
    struct held_states *hs = &h->states;
    while (hs->n_kept > 0) {
        states_release(&hs->snapshots, hs->kept[--hs->n_kept].slot);
    }
}

/* Cancels a pending copy of a state into this lane. */
void held_states_drop(struct holdings *h, const struct sequence *seq)
{
    struct held_states *hs = &h->states;
    for (int32_t i = 0; i < hs->n_ins; i++) {
        if (hs->ins[i].seq == seq) {
            states_release(&hs->snapshots, hs->ins[i].slot);
            hs->ins[i] = hs->ins[--hs->n_ins];
            return;
        }
    }
}

/* For tests: verifies that the number of holds of every slot equals the number of references to
 * it. */
void held_states_check(const struct holdings *h)
{
    const struct held_states *hs = &h->states;
    const struct states *s = &hs->snapshots;
    int32_t n_held = 0;
    if (hs->block == 0) {
        return;
    }
    states_check(s, h->limits->n_blocks);
    for (int32_t i = 0; i < s->n; i++) {
        const struct snapshot *x = &s->slots[i];
        n_held += x->holds;
        ASSERT(x->block < 0 || h->cache.nodes[x->block].state != NODE_NONE);
    }
    ASSERT(n_held == hs->n_outs + hs->n_ins + hs->n_kept);
}
