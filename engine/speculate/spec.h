// SPDX-License-Identifier: Apache-2.0
/* Speculation: proposers guess the tokens that come next, the ordinary forward pass computes all
 * the guesses' rows at once, and the ordinary sampler draws at each of them. A guess stands while
 * it equals what was drawn, so the text is the same whatever is proposed.
 *
 * A sequence that speculates is not planned while its last token is still in flight, since the
 * proposer needs it; with speculation paused it runs two steps deep like any other.
 *
 * Here is what the engine calls, the same for every proposer (proposer.h).
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SPECULATE_SPEC_H
#define SLUICE_ENGINE_SPECULATE_SPEC_H

#include "engine/speculate/proposer.h"

/* config: JSON in vLLM's shape, or NULL for none. */
enum status spec_init(struct spec *sp, const char *config, struct err *err);
/* Once the longest text is known; and the end, also of one that was not opened. */
void spec_open(struct spec *sp, int32_t max_len);
void spec_close(struct spec *sp);

/* What buffers are sized for: whether there may be trees; drafts of a plan of n sequences; passes
 * of each draft model in a step; laws that a step keeps. */
bool spec_has_trees(const struct spec *sp);
int32_t spec_max_drafts(const struct spec *sp, int32_t n_sequences);
int32_t spec_max_passes(const struct spec *sp);
int32_t spec_max_laws(const struct spec *sp, int32_t max_lanes);

/* Before each plan, first how deep each sequence is worth drafting for; then, with the candidates'
 * lags filled in for those that are ready and have a depth, the proposals. */
void spec_consider(struct spec *sp, struct spec_view *v);
void spec_propose(struct spec *sp, const struct spec_view *v);

/* The draft passes of the step that was proposed for. */
enum spec_passes spec_passes(const struct spec *sp);

/* Whether a draft for the place behind the last known token stands, given what was drawn there. */
bool spec_stands(const struct spec *sp, const struct sequence *seq, int32_t draft, int32_t drawn);

/* After a verified step: counts a sequence's drafts, of which there must be some, and learns of
 * them. */
void spec_observe(struct spec *sp, const struct spec_trial *t);

#endif
