// SPDX-License-Identifier: Apache-2.0
/* Admission of waiting sequences, and preemption: a sequence may take blocks, or a lane, from those
 * later in the order, the last first. Internal to the scheduler.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_ADMIT_H
#define SLUICE_ENGINE_SCHEDULE_ADMIT_H

#include "engine/schedule/scheduler.h"

enum admission { ADMITTED, DEFERRED, NO_ROOM };

/* Gives a waiting sequence a lane, the cached front of its tokens, and blocks for all the rest, so
 * that a chunked prompt never stalls half-way for lack of blocks. */
enum admission scheduler_admit(struct scheduler *s, struct plan *p, struct sequence *seq);

/* Allocates blocks for the first n_tokens tokens of a running sequence, preempting later ones if
 * necessary. False, and nothing is changed, if that would not suffice. */
bool scheduler_grow(struct scheduler *s, struct plan *p, struct sequence *seq, int32_t n_tokens);

/* The prompt's rows end in this entry of the plan: siblings that are still waiting share its full
 * blocks and sample their first token from its last row; a partial last block is copied before the
 * next step. */
void scheduler_fork(struct scheduler *s, struct plan *p, int32_t entry);

#endif
