// SPDX-License-Identifier: Apache-2.0
/* Checks that a checkpoint's bytes are plausible: no NaN, no infinity, and matching checksums if
 * the folder has a sluice.sha256.
 * Thread: any. */
#ifndef SLUICE_ENGINE_MODEL_CHECK_H
#define SLUICE_ENGINE_MODEL_CHECK_H

#include "engine/model/checkpoint.h"

enum check_depth {
    CHECK_OFF,
    CHECK_SAMPLED, // samples spread over each tensor, and the checksums if there are any
    CHECK_FULL,    // every element
};

/* "off", "sampled" or "full"; NULL: sampled. */
enum check_depth check_depth_of(const char *name);

/* ERR_FORMAT names the first broken tensor or file. A matrix of zeros is only logged, because some
 * models have one on purpose. `dir` is the path that was given to checkpoint_open. */
enum status checkpoint_check_weights(const struct checkpoint *ck, const char *dir,
                                     enum check_depth depth, struct err *err);

/* True for the causal masks that old files store as if they were weights. They may be infinite. */
bool check_is_mask(const char *name);

#endif
