// SPDX-License-Identifier: Apache-2.0
/* What was learnt of drafts while they were judged, and what is counted of them. Only learnt.c
 * writes it; whoever proposes reads it.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SPECULATE_LEARNT_H
#define SLUICE_ENGINE_SPECULATE_LEARNT_H

#include "engine/schedule/sequence.h"
#include "engine/speculate/costs.h"

struct spec_learnt {
    float doubt; // running share of rejected drafts, of all sequences: where new ones begin
    int64_t n_drafts, n_draft_tokens, n_accepted;
    int64_t accepted_per_pos[MAX_DRAFTS];

    /* Trees. */
    float lookup_logp; // log of the share of n-gram lookup's first tokens that were right
    float said[MAX_DRAFTS], right[MAX_DRAFTS]; // by depth: expected and right nodes
    float rescue[MAX_SIBLINGS]; // where a spine ends: how often the sibling of this rank is right
    float grow_gain;            // there: tokens of a grown tree beyond a comb's
    float grow_seconds;         // of a step with grown trees beyond one with combs
};

/* Before anything was judged; and, once costs are known, what a grown tree is taken to cost. */
void spec_learnt_init(struct spec_learnt *l);
void spec_learnt_expect(struct spec_learnt *l, const struct spec_costs *costs, int32_t k);

/* The share of rejected drafts of a sequence. What others' drafts were worth speaks for those of a
 * new one, but never against trying. */
float spec_doubt_of(const struct spec_learnt *l, const struct spec_trust *trust);

/* The share of nodes of this depth that will be right, of which the drafts say `logp`. */
float spec_gain_of(const struct spec_learnt *l, int32_t depth, float logp);

/* ---- after a verified step */

/* A sequence's drafts, all together; and the first n of a chain, or of a spine, of which so many
 * were right: what is learnt of the next ones. */
void spec_count(struct spec_learnt *l, int32_t n_drafts, int32_t n_accepted);
void spec_learn(struct spec_learnt *l, struct spec_trust *trust, int32_t n, int32_t right);

/* At a depth of a tree, so many nodes were expected to be right, and one was or none. */
void spec_learn_depth(struct spec_learnt *l, int32_t depth, float said, bool right);
void spec_learn_lookup(struct spec_learnt *l, bool right);

/* A spine ended beside n siblings, of which number `which` was right (-1: none). */
void spec_learn_beside(struct spec_learnt *l, int32_t n, int32_t which);

/* A grown tree gave so many tokens more than a comb would have; a step with such trees took so
 * long, and would have taken so long with combs; a step had none. */
void spec_learn_growth(struct spec_learnt *l, float tokens);
void spec_learn_seconds(struct spec_learnt *l, float grown, float planned);
void spec_forget(struct spec_learnt *l);

#endif
