// SPDX-License-Identifier: Apache-2.0
/* Snapshots of recurrent state: which block of the prefix cache each lies behind, what it is worth,
 * and which one makes room for another. Slots and numbers, no memory.
 *
 * A snapshot saves those who come to its block the tokens between it and the one before it on the
 * way there. How often that will be is told by how often it was of use, by what became of others
 * that were taken for the same reason, and by how long ago: the least product goes first. Thread:
 * engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_STATES_H
#define SLUICE_ENGINE_SCHEDULE_STATES_H

#include <stdbool.h>
#include <stdint.h>

/* Why a snapshot was taken; before anything is learnt, the likelier to be used the later. */
enum state_reason {
    STATE_STEP,   // one of those that lie every so many tokens
    STATE_END,    // of a prompt, or of a sequence: others may go on from there
    STATE_BRANCH, // two texts were seen to part there
    STATE_PAUSE,  // of a preempted sequence, which comes back
    N_STATE_REASONS,
};

struct snapshot {
    int32_t block; // it is the state behind this block; -1: none
    int32_t pos;   // tokens before it
    int32_t above; // the snapshot before it on its way, as far as is known; -1: none
    int32_t n_uses;
    int32_t holds; // while above 0 the slot is not given to another block
    uint64_t last_use;
    uint8_t reason;
};

struct states {
    int32_t n, n_free;
    struct snapshot *slots;
    int32_t *free_slots;
    int32_t *of_block;                                       // [n_blocks]: slot, or -1
    uint64_t clock;                                          // of snapshots taken and used
    float n_taken[N_STATE_REASONS], n_used[N_STATE_REASONS]; // used: once or more
};

void states_init(struct states *s, int32_t n, int32_t n_blocks);
void states_deinit(struct states *s);

/* The snapshot behind a block, or -1. */
static inline int32_t states_at(const struct states *s, int32_t block)
{
    return s->n > 0 ? s->of_block[block] : -1;
}

/* A slot for the state behind a block that has none, `above` being the one before it; held once.
 * -1: what there is, is worth more. */
int32_t states_take(struct states *s, int32_t block, int32_t pos, int32_t above,
                    enum state_reason reason);

/* The slot's content is written or read by a step that is not submitted yet; and no longer. */
void states_hold(struct states *s, int32_t slot);
void states_release(struct states *s, int32_t slot);

/* A sequence goes on from it. */
void states_use(struct states *s, int32_t slot);

/* What is known now of the one before it. */
void states_lies_behind(struct states *s, int32_t slot, int32_t above);

/* The block has left the cache. */
void states_forget(struct states *s, int32_t block);

static inline int32_t states_taken(const struct states *s)
{
    return s->n - s->n_free;
}

/* Proves that slots and blocks agree and none is lost. Aborts if not. For tests. */
void states_check(const struct states *s, int32_t n_blocks);

#endif
