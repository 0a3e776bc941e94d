// SPDX-License-Identifier: Apache-2.0
/* Statistics of verified drafts, and counters. Only learnt.c writes them; proposers read them.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SPECULATE_LEARNT_H
#define SLUICE_ENGINE_SPECULATE_LEARNT_H

#include "engine/device/backend.h"
#include "engine/schedule/sequence.h"
#include "engine/speculate/costs.h"

struct spec_learnt {
    float doubt; // moving average of the share of rejected drafts, over all sequences; the initial
                 // value for new ones
    int64_t n_drafts, n_draft_tokens, n_accepted;
    int64_t accepted_per_pos[MAX_DRAFTS];

    /* Trees. */
    float lookup_logp; // log of the share of n-gram lookups whose first token was right
    // By depth: how many nodes were expected to be right, and how many were.
    float expected[MAX_DRAFTS], right[MAX_DRAFTS];
    float rescue[MAX_SIBLINGS]; // by rank of a sibling: how often it is right where the spine ends
    float grow_gain;    // where the spine ends: how many more tokens a grown tree gives than a comb
    float grow_seconds; // how many seconds longer a step with grown trees takes than one with combs
};

/* spec_learnt_init sets initial values. spec_learnt_expect sets the initial cost of a grown tree,
 * once costs have been measured. */
void spec_learnt_init(struct spec_learnt *l);
void spec_learnt_expect(struct spec_learnt *l, const struct spec_costs *costs, int32_t k);

/* The share of a sequence's drafts that were rejected. A new sequence starts with the average of
 * the others, but never so high that no drafts would be tried. */
float spec_doubt_of(const struct spec_learnt *l, const struct spec_trust *trust);

/* The expected share of right nodes at this depth, given the drafts' log-probability `logp`. */
float spec_gain_of(const struct spec_learnt *l, int32_t depth, float logp);

/* ---- after a verified step */

/* spec_count counts all drafts of a sequence. spec_learn updates the acceptance rate with the first
 * n drafts of a chain or spine; `right` of them were right. */
void spec_count(struct spec_learnt *l, int32_t n_drafts, int32_t n_accepted);
void spec_learn(struct spec_learnt *l, struct spec_trust *trust, int32_t n, int32_t right);

/* Learns from one depth of a tree: `expected` right nodes were expected there, and one or none was
 * right. */
void spec_learn_depth(struct spec_learnt *l, int32_t depth, float expected, bool right);
void spec_learn_lookup(struct spec_learnt *l, bool right);

/* Learns from a place where the spine ended and had n siblings beside it. `which` is the index of
 * the right sibling; -1: none was right. */
void spec_learn_beside(struct spec_learnt *l, int32_t n, int32_t which);

/* Three updates of the gain of grown trees:
 * spec_learn_growth: the tokens that a tree gave beyond those of a comb.
 * spec_learn_seconds: the time of a step with grown trees, and of one with combs.
 * spec_forget: a step without grown trees. */
void spec_learn_growth(struct spec_learnt *l, float tokens);
void spec_learn_seconds(struct spec_learnt *l, float grown, float planned);
void spec_forget(struct spec_learnt *l);

#endif
