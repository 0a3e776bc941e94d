// SPDX-License-Identifier: Apache-2.0
/* The shapes of trees: limits of width and size, combs that are laid out before they are drafted,
 * and whether growing trees pays more.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SPECULATE_SHAPE_H
#define SLUICE_ENGINE_SPECULATE_SHAPE_H

#include "engine/speculate/proposer.h"

/* The maximum number of children of a node at `depth`; of nodes per sequence; and of ids that a
 * draft model returns, since sampling noise may move any of the most likely ones to the front. */
int32_t spec_tree_children(const struct spec *sp, int32_t depth);
int32_t spec_tree_most(const struct spec *sp, int32_t depth, int32_t n_sequences);
int32_t spec_tree_top_n(const struct spec *sp, const struct sequence *seq);

/* Of one of n sequences, or summed over them: siblings beside the spine, expected tokens, seconds
 * of the step, and how often the spine ends early. */
struct spec_plan {
    int32_t beside;
    float tokens, seconds, ends;
};

/* The comb of `depth` for one of n such sequences, whose drafts are each accepted with this
 * probability, with the number of siblings, at most `most`, that gives the most tokens per
 * second. */
struct spec_plan spec_plan_comb(const struct spec *sp, int32_t n, float acceptance, int32_t depth,
                                int32_t most);

/* The places of n siblings: beside[d] for the spine's node of depth d + 1. */
void spec_lay_beside(const struct spec *sp, float acceptance, int32_t depth, int32_t n,
                     uint8_t *beside);

/* Whether trees grown by the host promise more tokens per second than the combs `all`. */
bool spec_worth_growing(const struct spec *sp, const struct spec_plan *all);

#endif
