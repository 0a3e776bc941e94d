// SPDX-License-Identifier: Apache-2.0
/* Speculation: proposers guess the next tokens, the ordinary forward pass computes the rows of all
 * guesses at once, and the ordinary sampler samples at each of them. A guess is accepted while it
 * equals the sampled token, so the text does not depend on the guesses.
 *
 * A speculating sequence is not planned while its last token is in flight, because the proposer
 * needs that token. While its speculation is paused, it can have two steps in flight like any other
 * sequence.
 *
 * This is the interface for the engine, the same for every proposer (proposer.h).
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SPECULATE_SPEC_H
#define SLUICE_ENGINE_SPECULATE_SPEC_H

#include "engine/speculate/proposer.h"

/* config: JSON in vLLM's shape, or NULL for no speculation. */
enum status spec_init(struct spec *sp, const char *config, struct err *err);
/* spec_open is called once the longest text is known. spec_close may be called even if spec_open
 * was not. */
void spec_open(struct spec *sp, int32_t max_len);
void spec_close(struct spec *sp);

/* These determine the sizes of buffers. In this order: whether there may be trees; the maximum
 * number of drafts in a plan of n sequences; of passes of each draft model in a step; and of
 * distributions that a step keeps. */
bool spec_has_trees(const struct spec *sp);
int32_t spec_max_drafts(const struct spec *sp, int32_t n_sequences);
int32_t spec_max_passes(const struct spec *sp);
int32_t spec_max_laws(const struct spec *sp, int32_t max_lanes);

/* Called before each plan. spec_consider chooses the depth for each sequence. The caller then fills
 * in the lags of the candidates that are ready and have a depth, and spec_propose makes the
 * proposals. */
void spec_consider(struct spec *sp, struct spec_view *v);
void spec_propose(struct spec *sp, const struct spec_view *v);

/* The kind of draft passes that the step with the current proposals needs. */
enum spec_passes spec_passes(const struct spec *sp);

/* Whether a draft for the position after the last known token is accepted, given the token sampled
 * there. */
bool spec_stands(const struct spec *sp, const struct sequence *seq, int32_t draft, int32_t drawn);

/* Called after a verified step: counts a sequence's drafts (at least one) and learns from them. */
void spec_observe(struct spec *sp, const struct spec_trial *t);

#endif
