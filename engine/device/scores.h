// SPDX-License-Identifier: Apache-2.0
/* The scores of a draw before its temperature: step 1 of struct sample_args in ops.h. The CPU
 * draws from them, and the engine reports them.
 * Thread: any. */
#ifndef SLUICE_DEVICE_SCORES_H
#define SLUICE_DEVICE_SCORES_H

#include "engine/device/params.h"

/* The tokens that are known at a draw, in two parts. */
struct score_tokens {
    const int32_t *first, *rest;
    int32_t n_first, n_rest, n_prompt;
};

/* Bit sets over the vocabulary; NULL: none. `mask` is not a ban, so it is never dropped. */
struct score_masks {
    const uint32_t *mask, *allowed;
};

/* If the bans leave nothing to draw, first those of min_tokens are dropped, then all bans. */
enum bans { NO_BANS, LASTING_BANS, ALL_BANS };

/* Turns logits into scores, in place. `count` is [n_vocab], all zero before and after. */
void scores_make(float *scores, int32_t n_vocab, const struct sampling_params *p,
                 const struct score_tokens *k, const struct score_masks *masks, enum bans bans,
                 uint32_t *count);
/* True if the scores are the logits unchanged. n_drawn: the number of tokens after the prompt. */
bool scores_are_logits(const struct sampling_params *p, int32_t n_drawn);

#endif
