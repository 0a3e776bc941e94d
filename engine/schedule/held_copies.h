// SPDX-License-Identifier: Apache-2.0
/* The holdings' part for copies of blocks that are not in a plan yet. A sibling gets a copy of its
 * leader's last block. A sequence whose next tokens are the first ones of a cached block gets a
 * copy of that block, and overwrites the rest of it. Only holdings.c calls this. Thread: the
 * engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_HELD_COPIES_H
#define SLUICE_ENGINE_SCHEDULE_HELD_COPIES_H

#include "engine/schedule/holdings.h"

/* Sets the part of the front of a sequence that may use cached blocks. */
void held_copies_find(const struct holdings *h, const struct sequence *seq,
                      struct cached_front *front);

/* Called when the sequence has its table: the copy is pending, and now holds the block. */
void held_copies_begin(struct holdings *h, const struct sequence *seq,
                       const struct cached_front *front);

/* Whether the copies with which the sequence was forked are still pending. */
bool held_copies_forks(const struct holdings *h, const struct sequence *seq);

/* The block that a pending copy for this sequence holds, since it will be copied; -1: none. A
 * sequence has at most one such copy. */
int32_t held_copies_source(const struct holdings *h, const struct sequence *seq);

/* The sequence leaves before its copies are in a plan. */
void held_copies_drop(struct holdings *h, const struct sequence *seq);

/* Adds the pending copies to the plan, except those for sequences that this plan forks. */
void held_copies_plan(struct holdings *h, struct plan *p);

#endif
