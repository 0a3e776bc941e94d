// SPDX-License-Identifier: Apache-2.0
/* A step as bytes, for the other nodes: what step_execute reads, but for the laws of drafts: drafts
 * are drawn the same without, and who judges them is node 0 alone. Both ends are the same build, so
 * numbers travel as they lie in memory; everything that is an index, a count or an id is
 * checked on arrival against the limits of the engine that will execute it.
 * Thread: the engine thread. */
#ifndef SLUICE_ENGINE_CLUSTER_STEP_WIRE_H
#define SLUICE_ENGINE_CLUSTER_STEP_WIRE_H

#include "engine/base/buf.h"
#include "engine/cluster/step.h"

/* Appends the step to `out` (out->failed when it did not fit); or, with `level`, of a step whose
 * trees still grow, what has not been sent of it yet and this pass of the draft models. */
void step_encode(const struct step *st, const struct pass *level, struct buf *out);

/* Appends the masks of a step whose draws wait, which was sent without them. */
void step_encode_draws(const struct step *st, struct buf *out);

enum step_frame { STEP_WHOLE, STEP_LEVEL, STEP_DRAWS };

/* Fills st (from step_init with the same sizes) and `moves` (from tree_moves_init) so that
 * step_execute can run it; or step_run_ahead the pass st->level.pass; or, of the step that came
 * last, step_execute_draws. Lists of lane updates and masks point into `bytes`, which must be
 * aligned to 8 and stay until that was done. ERR_FORMAT with a sentence when anything is out of
 * bounds; st is then of no use. */
enum status step_decode(struct step *st, struct tree_moves *moves, enum step_frame *frame,
                        const struct step_sizes *sizes, const void *bytes, size_t n_bytes,
                        struct err *err);

#endif
