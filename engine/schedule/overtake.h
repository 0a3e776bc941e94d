// SPDX-License-Identifier: Apache-2.0
/* Order for what waits: a request whose prefix is in the cache goes before an earlier one that
 * would evict it, but nobody is overtaken by more than a bound of computed prompt tokens. Inside of
 * the scheduler.
 *
 * An overtaker is moved in the total order, to just before the first that waits, and stays there:
 * so no sequence takes its blocks back from it, and preemption need not know. Nobody overtakes a
 * sequence that has run before, or that has overtaken others.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_OVERTAKE_H
#define SLUICE_ENGINE_SCHEDULE_OVERTAKE_H

#include "engine/schedule/scheduler.h"

/* Called for the first waiting sequence in the order, when a lane and `rows` rows are left: who is
 * to be admitted first, now standing directly before `head`, or head itself. */
struct sequence *scheduler_let_pass(struct scheduler *s, struct sequence *head, int32_t rows);

#endif
