// SPDX-License-Identifier: Apache-2.0
/* | The order of waiting requests: one whose prefix is cached is moved before an earlier one that
 * would evict it, but no request is overtaken by more than a limited number of computed prompt
 * tokens. Internal to the scheduler.
 *
 * An overtaker is moved in the total order to just before the first waiting sequence, and stays
 * there, so that sequence cannot take its blocks back, and preemption needs no special case. A
 * sequence that has run before, or that has overtaken others, cannot be overtaken.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_OVERTAKE_H
#define SLUICE_ENGINE_SCHEDULE_OVERTAKE_H

#include "engine/schedule/scheduler.h"

/* Called for the first waiting sequence in the order, when a lane and `rows` rows are left: returns
 * the sequence to admit first, now directly before `head` in the order, or `head` itself. */
struct sequence *scheduler_let_pass(struct scheduler *s, struct sequence *head, int32_t rows);

#endif
