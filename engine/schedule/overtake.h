// SPDX-License-Identifier: Apache-2.0
/* The order of waiting requests: a request whose prefix is cached moves before an earlier one that
 * would evict that prefix, but no request is overtaken by more than a limited number of computed
 * prompt tokens. Internal to the scheduler.
 *
 * An overtaker moves in the total order to just before the first waiting sequence, and stays there.
 * That sequence then cannot preempt the overtaker, and preemption needs no special case. A sequence
 * that has run before, or that has overtaken others, cannot be overtaken.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_OVERTAKE_H
#define SLUICE_ENGINE_SCHEDULE_OVERTAKE_H

#include "engine/schedule/scheduler.h"

/* Called for `head`, the first waiting sequence in the order, when a lane and `rows` rows are left.
 * Returns the sequence to admit first: `head`, or another one that is now directly before it in the
 * order. */
struct sequence *scheduler_let_pass(struct scheduler *s, struct sequence *head, int32_t rows);

#endif
