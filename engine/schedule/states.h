// SPDX-License-Identifier: Apache-2.0
/* Snapshots of recurrent state: the block of the prefix cache that each follows, its value, and
 * which one a new snapshot replaces. This file manages slots and numbers, not memory.
 *
 * When a sequence resumes from a snapshot, it saves the tokens between that snapshot and the
 * previous one on the path. The probability of such a use is estimated from the snapshot's own
 * uses, from those of other snapshots taken for the same reason, and from its age. The snapshot
 * with the smallest product of tokens and probability is replaced first.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_STATES_H
#define SLUICE_ENGINE_SCHEDULE_STATES_H

#include <stdbool.h>
#include <stdint.h>

/* Why a snapshot was taken, in increasing order of the initial estimate of its use. */
enum state_reason {
    STATE_STEP,   // taken periodically
    STATE_END,    // at the end of a prompt or sequence, where others may continue
    STATE_BRANCH, // where two texts diverged
    STATE_PAUSE,  // of a preempted sequence, which will resume there
    N_STATE_REASONS,
};

struct snapshot {
    int32_t block; // the block that the state follows; -1: none
    int32_t pos;   // number of tokens before the state
    int32_t above; // the previous snapshot on its path, if known; -1: none
    int32_t n_uses;
    int32_t holds; // if above 0, the slot cannot be reassigned
    uint64_t last_use;
    uint8_t reason;
};

struct states {
    int32_t n, n_free;
    struct snapshot *slots;
    int32_t *free_slots;
    int32_t *of_block; // [n_blocks]: slot of the snapshot after the block, or -1
    uint64_t clock;    // number of snapshots taken and used so far
    float n_taken[N_STATE_REASONS], n_used[N_STATE_REASONS]; // n_used: those used at least once
};

void states_init(struct states *s, int32_t n, int32_t n_blocks);
void states_deinit(struct states *s);

/* The snapshot that follows a block, or -1. */
static inline int32_t states_at(const struct states *s, int32_t block)
{
    return s->n > 0 ? s->of_block[block] : -1;
}

/* Takes a slot, held once, for the state after a block without a snapshot; `above` is the previous
 * snapshot on its path. -1: all existing snapshots are more valuable. */
int32_t states_take(struct states *s, int32_t block, int32_t pos, int32_t above,
                    enum state_reason reason);

/* states_hold: a step that is not submitted yet will write or read the slot. states_release ends
 * one hold. */
void states_hold(struct states *s, int32_t slot);
void states_release(struct states *s, int32_t slot);

/* Called when a sequence resumes from the snapshot. */
void states_use(struct states *s, int32_t slot);

/* Sets the previous snapshot (`above`) on the path of this one. */
void states_set_above(struct states *s, int32_t slot, int32_t above);

/* Called when the block has left the cache. */
void states_forget(struct states *s, int32_t block);

static inline int32_t states_taken(const struct states *s)
{
    return s->n - s->n_free;
}

/* Verifies that slots and blocks agree and none is lost. Aborts on errors. For tests. */
void states_check(const struct states *s, int32_t n_blocks);

#endif
