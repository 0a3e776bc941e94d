// SPDX-License-Identifier: Apache-2.0
/* Statistics of verified drafts, and counters. Only learnt.c writes them; proposers read them.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SPECULATE_LEARNT_H
#define SLUICE_ENGINE_SPECULATE_LEARNT_H

#include "engine/device/backend.h"
#include "engine/schedule/sequence.h"
#include "engine/speculate/costs.h"

struct spec_learnt {
    float doubt; // running share of rejected drafts over all sequences: the initial value of new
                 // ones
    int64_t n_drafts, n_draft_tokens, n_accepted;
    int64_t accepted_per_pos[MAX_DRAFTS];

    /* Trees. */
    float lookup_logp; // log of the share of n-gram lookup's first tokens that were right
    float expected[MAX_DRAFTS], right[MAX_DRAFTS]; // by depth: expected and right nodes
    float rescue[MAX_SIBLINGS]; // how often the sibling of this rank is right where a spine ends
    float grow_gain;            // tokens of a grown tree beyond a comb's, where a spine ends
    float grow_seconds;         // of a step with grown trees, beyond one with combs
};

/* spec_learnt_init sets initial values; spec_learnt_expect, once costs are measured, the initial
 * cost of a grown tree. */
void spec_learnt_init(struct spec_learnt *l);
void spec_learnt_expect(struct spec_learnt *l, const struct spec_costs *costs, int32_t k);

/* The share of rejected drafts of a sequence. For a new sequence the average of the others is used,
 * but never so high that drafts would not be tried. */
float spec_doubt_of(const struct spec_learnt *l, const struct spec_trust *trust);

/* The expected share of right nodes at this depth, given the drafts' log-probability `logp`. */
float spec_gain_of(const struct spec_learnt *l, int32_t depth, float logp);

/* ---- after a verified step */

/* spec_count counts all drafts of a sequence. spec_learn learns the rate of acceptance from the
 * first n drafts of a chain or spine, of which `right` were right. */
void spec_count(struct spec_learnt *l, int32_t n_drafts, int32_t n_accepted);
void spec_learn(struct spec_learnt *l, struct spec_trust *trust, int32_t n, int32_t right);

/* Learns from one depth of a tree, where `expected` right nodes were expected and one was right, or
 * none. */
void spec_learn_depth(struct spec_learnt *l, int32_t depth, float expected, bool right);
void spec_learn_lookup(struct spec_learnt *l, bool right);

/* Learns from a place where a spine ended beside n siblings, of which number `which` was right (-1:
 * none). */
void spec_learn_beside(struct spec_learnt *l, int32_t n, int32_t which);

/* Three updates of the gain of grown trees:
 * spec_learn_growth: the tokens that a tree gave beyond those of a comb.
 * spec_learn_seconds: the time of a step with grown trees, and of one with combs.
 * spec_forget: a step without grown trees. */
void spec_learn_growth(struct spec_learnt *l, float tokens);
void spec_learn_seconds(struct spec_learnt *l, float grown, float planned);
void spec_forget(struct spec_learnt *l);

#endif
