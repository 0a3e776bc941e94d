// SPDX-License-Identifier: Apache-2.0
/* How a waiting sequence comes to run, and who gives way to it: a sequence may take blocks, or a
 * lane, from those that come later in the order, the last first. Inside of the scheduler.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_ADMIT_H
#define SLUICE_ENGINE_SCHEDULE_ADMIT_H

#include "engine/schedule/scheduler.h"

enum admission { ADMITTED, DEFERRED, NO_ROOM };

/* Gives a waiting sequence a lane, the cached front of its tokens, and blocks for all the rest, so
 * that a chunked prompt never stops half-way for want of blocks. */
enum admission scheduler_admit(struct scheduler *s, struct plan *p, struct sequence *seq);

/* Blocks for the first n_tokens tokens of a running sequence, at the cost of later ones if it must
 * be. False, and nothing is taken, when it would not suffice. */
bool scheduler_grow(struct scheduler *s, struct plan *p, struct sequence *seq, int32_t n_tokens);

/* The prompt's rows end in this entry of the plan: siblings that still wait share its full blocks
 * and draw their first token from its last row; a partial last block is copied before the next
 * step. */
void scheduler_fork(struct scheduler *s, struct plan *p, int32_t entry);

#endif
