// SPDX-License-Identifier: Apache-2.0
/* Whether a checkpoint's bytes can be what was trained: no NaN, no infinity, and the sums of a
 * sluice.sha256 beside them.
 * Thread: any. */
#ifndef SLUICE_ENGINE_MODEL_CHECK_H
#define SLUICE_ENGINE_MODEL_CHECK_H

#include "engine/model/checkpoint.h"

enum check_depth {
    CHECK_OFF,
    CHECK_SAMPLED, // pieces all over each tensor; and the sums, if there are any
    CHECK_FULL,    // every element
};

/* "off", "sampled" or "full"; NULL: sampled. */
enum check_depth check_depth_of(const char *name);

/* ERR_FORMAT names the first tensor or file that is broken. Matrices that are all zero are told in
 * the log: some are meant to be. `dir` is where the checkpoint was opened. */
enum status checkpoint_check_weights(const struct checkpoint *ck, const char *dir,
                                     enum check_depth depth, struct err *err);

#endif
