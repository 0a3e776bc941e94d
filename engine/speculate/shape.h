// SPDX-License-Identifier: Apache-2.0
/* The shapes of trees: how wide and how large they may be, combs that are laid out before they are
 * drafted, and whether growing pays more.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SPECULATE_SHAPE_H
#define SLUICE_ENGINE_SPECULATE_SHAPE_H

#include "engine/speculate/proposer.h"

/* Children of a node at `depth`; nodes that a sequence is to have room for; ids that a draft model
 * is to tell: noise may bring any of the likeliest to the front. */
int32_t spec_tree_children(const struct spec *sp, int32_t depth);
int32_t spec_tree_most(const struct spec *sp, int32_t depth, int32_t n_sequences);
int32_t spec_tree_top_n(const struct spec *sp, const struct sequence *seq);

/* Of one of n sequences, or summed over them: siblings beside the spine, expected tokens, seconds
 * of the step, and how often the spine ends early. */
struct spec_plan {
    int32_t beside;
    float tokens, seconds, ends;
};

/* A comb of `depth` for one of n such sequences, whose drafts are accepted with this probability
 * each, with the number of siblings, at most `most`, that gives the most tokens per second. */
struct spec_plan spec_plan_comb(const struct spec *sp, int32_t n, float acceptance, int32_t depth,
                                int32_t most);

/* Where n siblings lie: beside[d] for the spine's node of depth d + 1. */
void spec_lay_beside(const struct spec *sp, float acceptance, int32_t depth, int32_t n,
                     uint8_t *beside);

/* Whether trees grown by the host promise more tokens per second than the combs `all`. */
bool spec_worth_growing(const struct spec *sp, const struct spec_plan *all);

#endif
