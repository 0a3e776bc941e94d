// SPDX-License-Identifier: Apache-2.0
/* The holdings' part for prefixes that end inside a block: the sequence gets a copy of a cached
 * block whose first tokens are its own next ones, and overwrites the rest. Only holdings.c calls
 * this.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_HELD_PARTS_H
#define SLUICE_ENGINE_SCHEDULE_HELD_PARTS_H

#include "engine/schedule/holdings.h"

/* Sets the part of the front of a sequence that may use cached blocks. */
void held_parts_find(const struct holdings *h, const struct sequence *seq,
                     struct cached_front *front);

/* Called when the sequence has its table: the copy is pending, and now holds the block. */
void held_parts_begin(struct holdings *h, const struct sequence *seq,
                      const struct cached_front *front);
/* The sequence leaves before its copy is in a plan. */
void held_parts_drop(struct holdings *h, const struct sequence *seq);

/* Adds the pending copies to the plan. */
void held_parts_plan(struct holdings *h, struct plan *p);

#endif
