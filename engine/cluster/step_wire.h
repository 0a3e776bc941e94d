// SPDX-License-Identifier: Apache-2.0
/* Serialises a step for the other nodes: everything that step_execute reads, except the drafts'
 * distributions (laws). Drafts are drawn the same without them, and only node 0 verifies. Both ends
 * run the same build, so integers are sent in memory layout. The receiver checks every index, count
 * and id against the limits of the engine that will execute the step.
 * Thread: the engine thread. */
#ifndef SLUICE_ENGINE_CLUSTER_STEP_WIRE_H
#define SLUICE_ENGINE_CLUSTER_STEP_WIRE_H

#include "engine/base/buf.h"
#include "engine/cluster/step.h"

/* Appends the step to `out`, and sets out->failed if it does not fit. If `level` is given, the
 * step's trees are still growing: appends the parts of the step that have not been sent yet, and
 * this pass of the draft models. */
void step_encode(const struct step *st, const struct pass *level, struct buf *out);

/* Appends the masks of a step whose draws wait; they were not sent with the step. */
void step_encode_draws(const struct step *st, struct buf *out);

enum step_frame { STEP_WHOLE, STEP_LEVEL, STEP_DRAWS };

/* Fills st (from step_init with the same sizes) and `moves` (from tree_moves_init). *frame says
 * what was received: a step for step_execute; a level, for step_run_ahead to run st->level.pass; or
 * the masks of the last step, for step_execute_draws. Lists of lane updates and masks point into
 * `bytes`, which must be 8-byte aligned and stay valid until then. ERR_FORMAT with a sentence if
 * anything is out of range; st is then unusable. */
enum status step_decode(struct step *st, struct tree_moves *moves, enum step_frame *frame,
                        const struct step_sizes *sizes, const void *bytes, size_t n_bytes,
                        struct err *err);

#endif
