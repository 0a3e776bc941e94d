// SPDX-License-Identifier: Apache-2.0
/* Serialises a step for the other nodes: everything step_execute reads, except the laws of drafts
 * (drafts are drawn the same without them, and only node 0 verifies). Both ends run the same build,
 * so integers are sent in memory layout; every index, count and id is checked on arrival against
 * the limits of the engine that will execute the step.
 * Thread: the engine thread. */
#ifndef SLUICE_ENGINE_CLUSTER_STEP_WIRE_H
#define SLUICE_ENGINE_CLUSTER_STEP_WIRE_H

#include "engine/base/buf.h"
#include "engine/cluster/step.h"

/* Appends the step to `out` (out->failed if it did not fit). With `level`, for a step whose trees
 * still grow: appends the parts of the step that have not been sent yet, and this pass of the draft
 * models. */
void step_encode(const struct step *st, const struct pass *level, struct buf *out);

/* Appends the masks of a step whose draws wait, which were not sent with it. */
void step_encode_draws(const struct step *st, struct buf *out);

enum step_frame { STEP_WHOLE, STEP_LEVEL, STEP_DRAWS };

/* Fills st (from step_init with the same sizes) and `moves` (from tree_moves_init) so that
 * step_execute can run the step; or so that step_run_ahead can run the pass st->level.pass; or, for
 * the step received last, so that step_execute_draws can. Lists of lane updates and masks point
 * into `bytes`, which must be 8-byte aligned and stay valid until then. ERR_FORMAT with a sentence
 * if anything is out of range; st is then unusable. */
enum status step_decode(struct step *st, struct tree_moves *moves, enum step_frame *frame,
                        const struct step_sizes *sizes, const void *bytes, size_t n_bytes,
                        struct err *err);

#endif
