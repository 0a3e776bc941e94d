// SPDX-License-Identifier: Apache-2.0
/* A step on the ranks: lanes' news, passes, draws, in the order that every rank keeps.
 * Thread: as said per function. */
#ifndef SLUICE_ENGINE_CLUSTER_STEP_RUN_H
#define SLUICE_ENGINE_CLUSTER_STEP_RUN_H

#include "engine/cluster/ranks.h"
#include "engine/cluster/step.h"

/* The rank's own thread: one pass of a model, between its backend's step_begin and step_end; the
 * whole step, but for waiting for its results; and, of a step whose draws wait, which step_execute
 * leaves open, what is left of it. */
enum status step_run_pass(const struct pass *pass, struct model *m, struct model_outputs want,
                          int32_t n_vocab_used);
enum status step_execute(const struct step *st, struct rank *r, int32_t n_vocab_used);
enum status step_execute_draws(struct rank *r, int32_t n_vocab_used);

/* The engine's thread: passes of every draft model on all ranks, ahead of the step that they belong
 * to, and their results, which decide what comes next. The first of them begins the step.
 * results: rank 0's, n_passes for each model; NULL: nobody reads them. */
enum status step_run_ahead(struct step *st, const struct draft_pass *passes, int32_t n_passes,
                           struct ranks *ranks, int32_t n_vocab_used, struct pass_results *results);

#endif
