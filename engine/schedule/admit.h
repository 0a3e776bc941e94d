// SPDX-License-Identifier: Apache-2.0
/* Admission of waiting sequences, and preemption: a sequence may take blocks, or a lane, from
 * sequences later in the order, starting with the last. Internal to the scheduler.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_ADMIT_H
#define SLUICE_ENGINE_SCHEDULE_ADMIT_H

#include "engine/schedule/scheduler.h"

enum admission { ADMITTED, DEFERRED, NO_ROOM };

/* Gives a waiting sequence a lane, the cached front of its tokens, and blocks for all its other
 * tokens, so that a chunked prompt never stalls half-way for lack of blocks. */
enum admission scheduler_admit(struct scheduler *s, struct plan *p, struct sequence *seq);

/* Allocates what a running sequence needs for its first n_tokens tokens, preempting later ones if
 * necessary. Returns false and changes nothing if even preemption would not free enough. */
bool scheduler_grow(struct scheduler *s, struct plan *p, struct sequence *seq, int32_t n_tokens);

/* Called when this plan entry contains the last row of a prompt. Waiting samples of the same
 * request then share the prompt's full blocks, and their first tokens are sampled from that row. A
 * partial last block is copied for them before the next step. */
void scheduler_fork(struct scheduler *s, struct plan *p, int32_t entry);

#endif
