// SPDX-License-Identifier: Apache-2.0
/* The shapes of trees: limits of width and size, combs that are laid out before they are drafted,
 * and whether growing trees pays more.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SPECULATE_SHAPE_H
#define SLUICE_ENGINE_SPECULATE_SHAPE_H

#include "engine/speculate/proposer.h"

/* The maximum number of children of a node at `depth` (spec_tree_children), of nodes per sequence
 * (spec_tree_most), and of ids that a draft model returns (spec_tree_top_n). The last is larger
 * than the number of children because sampling noise may move any of the most likely ids to the
 * front. */
int32_t spec_tree_children(const struct spec *sp, int32_t depth);
int32_t spec_tree_most(const struct spec *sp, int32_t depth, int32_t n_sequences);
int32_t spec_tree_top_n(const struct spec *sp, const struct sequence *seq);

/* The shape of one sequence's comb, or the sum over n sequences. beside: number of siblings beside
 * the spine; tokens: expected tokens; seconds: of the step; ends: how often the spine ends
 * early. */
struct spec_plan {
    int32_t beside;
    float tokens, seconds, ends;
};

/* The best comb of this depth for each of n equal sequences whose drafts are accepted with this
 * probability. Its number of siblings, at most `most`, gives the most tokens per second. */
struct spec_plan spec_plan_comb(const struct spec *sp, int32_t n, float acceptance, int32_t depth,
                                int32_t most);

/* Distributes n siblings over the depths: beside[d] of them go beside the spine's node of depth d +
 * 1. */
void spec_lay_beside(const struct spec *sp, float acceptance, int32_t depth, int32_t n,
                     uint8_t *beside);

/* Whether trees grown by the host promise more tokens per second than combs. `all`: the sum of the
 * combs of all sequences. */
bool spec_worth_growing(const struct spec *sp, const struct spec_plan *all);

#endif
