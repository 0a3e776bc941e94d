// SPDX-License-Identifier: Apache-2.0
/* Executes a step's lane updates, passes and draws, in the same order on every rank.
 * Thread: as stated per function. */
#ifndef SLUICE_ENGINE_CLUSTER_STEP_RUN_H
#define SLUICE_ENGINE_CLUSTER_STEP_RUN_H

#include "engine/cluster/ranks.h"
#include "engine/cluster/step.h"

/* On the rank's own thread. step_run_pass: one pass of a model, between its backend's step_begin
 * and step_end. step_execute: the whole step, except waiting for its results; if draws wait for
 * masks, it leaves them to step_execute_draws. */
enum status step_run_pass(const struct pass *pass, struct model *m, struct model_outputs want,
                          int32_t n_vocab_used);
enum status step_execute(const struct step *st, struct rank *r, int32_t n_vocab_used);
enum status step_execute_draws(struct rank *r, int32_t n_vocab_used);

/* On the engine's thread. Runs passes of every draft model on all ranks before the rest of the
 * step, and returns their results, from which the host chooses the next passes. The first call
 * begins the step. results: those of rank 0, n_passes per model; NULL: not needed. */
enum status step_run_ahead(struct step *st, const struct draft_pass *passes, int32_t n_passes,
                           struct ranks *ranks, int32_t n_vocab_used, struct pass_results *results);

#endif
