// SPDX-License-Identifier: Apache-2.0
/* Snapshots of recurrent states: a fixed number of slots, and the choice of the slot that a new
 * snapshot replaces. The value of a snapshot is the number of tokens that it saves times the
 * probability that it is used. This probability is learnt for each reason to take snapshots. */
#include "engine/schedule/states.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"

#include <stdlib.h>

/* Low slots are taken first. */
void states_init(struct states *s, int32_t n, int32_t n_blocks)
{
    *s = (struct states){.n = n, .n_free = n};
    s->slots = xcalloc((size_t)n, sizeof *s->slots);
    s->free_slots = xcalloc((size_t)n, sizeof *s->free_slots);
    for (int32_t i = 0; i < n; i++) {
        s->slots[i].block = -1;
        s->free_slots[i] = n - 1 - i;
    }
    s->of_block = xcalloc((size_t)(n > 0 ? n_blocks : 0), sizeof *s->of_block);
    for (int32_t i = 0; n > 0 && i < n_blocks; i++) {
        s->of_block[i] = -1;
    }
}

void states_deinit(struct states *s)
{
    free(s->slots);
    free(s->free_slots);
    free(s->of_block);
    *s = (struct states){0};
}

/* ---- value -------------------------------------------------------------------------------- */

enum {
    TRUST = 16,    // chosen: the prior weighs as much as this number of snapshots
    MEMORY = 1024, // chosen: after this number of snapshots the statistics are halved
    // Chosen: idleness lowers a snapshot's value only after this many other snapshots were taken or
    // used.
    LEAST_AGE = 64,
};

/* The share of the snapshots taken for this reason that were used. */
static double chance_of(const struct states *s, int32_t reason)
{
    static const double before[N_STATE_REASONS] = {1.0 / 16, 1.0 / 4, 1, 4};
    return ((double)s->n_used[reason] + TRUST * before[reason]) /
           ((double)s->n_taken[reason] + TRUST);
}

/* Old experience fades, because both counts are halved from time to time. */
static void count(struct states *s, int32_t reason, bool used)
{
    if (used) {
        s->n_used[reason]++;
    } else if (++s->n_taken[reason] > MEMORY) {
        s->n_taken[reason] /= 2;
        s->n_used[reason] /= 2;
    }
}

/* Tokens saved, times the probability that the snapshot is used before another one is taken. */
static double worth(const struct states *s, const struct snapshot *x)
{
    int32_t from = x->above >= 0 ? s->slots[x->above].pos : 0;
    double age = (double)(s->clock - x->last_use);
    return (x->pos - from) * (chance_of(s, x->reason) + x->n_uses) / (s->n + LEAST_AGE + age);
}

/* The least valuable slot that nobody holds, if its value is less than `than`. -1: none. */
static int32_t least(const struct states *s, double than)
{
    int32_t slot = -1;
    for (int32_t i = 0; i < s->n; i++) {
        if (s->slots[i].block >= 0 && s->slots[i].holds == 0 && worth(s, &s->slots[i]) < than) {
            slot = i;
            than = worth(s, &s->slots[i]);
        }
    }
    return slot;
}

/* ---- slots -------------------------------------------------------------------------------- */

/* Frees a slot. Snapshots after it on the same prefix now save, in addition, the tokens that it
 * saved. */
static void detach(struct states *s, int32_t slot)
{
    struct snapshot *x = &s->slots[slot];
    s->of_block[x->block] = -1;
    x->block = -1;
    // Snapshots after this one are now preceded by the one before it.
    for (int32_t i = 0; i < s->n; i++) {
        if (s->slots[i].block >= 0 && s->slots[i].above == slot) {
            s->slots[i].above = x->above;
        }
    }
    if (x->holds == 0) {
        s->free_slots[s->n_free++] = slot;
    }
}

/* -1 if all existing snapshots are more valuable or held. */
int32_t states_take(struct states *s, int32_t block, int32_t pos, int32_t above,
                    enum state_reason reason)
{
    ASSERT(s->of_block[block] < 0 && (above < 0 || s->slots[above].block >= 0));
    struct snapshot x = {.block = block,
                         .pos = pos,
                         .above = above,
                         .holds = 1,
                         .last_use = ++s->clock,
                         .reason = (uint8_t)reason};
    if (s->n_free == 0) {
        int32_t other = least(s, worth(s, &x));
        if (other < 0) {
            return -1;
        }
        if (x.above == other) {
            x.above = s->slots[other].above;
        }
        detach(s, other);
    }
    int32_t slot = s->free_slots[--s->n_free];
    s->slots[slot] = x;
    s->of_block[block] = slot;
    count(s, x.reason, false);
    return slot;
}

void states_hold(struct states *s, int32_t slot)
{
    s->slots[slot].holds++;
}

/* A slot whose block has left the cache is freed when no copy reads or writes it any more. */
void states_release(struct states *s, int32_t slot)
{
    struct snapshot *x = &s->slots[slot];
    ASSERT(x->holds > 0);
    if (--x->holds == 0 && x->block < 0) {
        s->free_slots[s->n_free++] = slot;
    }
}

/* The first use counts as a success of its reason. */
void states_use(struct states *s, int32_t slot)
{
    struct snapshot *x = &s->slots[slot];
    if (x->n_uses == 0) {
        count(s, x->reason, true);
    }
    x->last_use = ++s->clock;
    if (x->reason == STATE_PAUSE) { // the preempted sequence has resumed
        x->reason = STATE_END;
    } else {
        x->n_uses++;
    }
}

void states_set_above(struct states *s, int32_t slot, int32_t above)
{
    ASSERT(above < 0 || s->slots[above].pos < s->slots[slot].pos);
    s->slots[slot].above = above;
}

void states_forget(struct states *s, int32_t block)
{
    if (states_at(s, block) >= 0) {
        detach(s, s->of_block[block]);
    }
}

void states_check(const struct states *s, int32_t n_blocks)
{
    int32_t taken = 0;
    for (int32_t i = 0; i < s->n; i++) {
        const struct snapshot *x = &s->slots[i];
        taken += x->block >= 0 || x->holds > 0;
        ASSERT(x->holds >= 0 && (x->block < 0 || s->of_block[x->block] == i));
        ASSERT(x->block < 0 || x->above < 0 || s->slots[x->above].block >= 0);
    }
    ASSERT(taken + s->n_free == s->n);
    for (int32_t b = 0; s->n > 0 && b < n_blocks; b++) {
        ASSERT(s->of_block[b] < 0 || s->slots[s->of_block[b]].block == b);
    }
}
