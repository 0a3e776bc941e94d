// SPDX-License-Identifier: Apache-2.0
#include "engine/speculate/learnt.h"
#include "engine/base/minmax.h"

#include <math.h>

/* Rate of learning: about the last 30 trials count. While the host grows no trees, the estimated
 * gain of growing them drifts back up until it is tried again. */
#define LEARN 0.03f
#define FORGET 0.0005f
#define FIRST_GAIN 0.7f    // chosen: tokens that a grown tree adds where the spine ends
#define START_DOUBT 0.3f   // chosen: low enough that drafts are tried at first
#define START_NODES 5.0f   // chosen: weighs as much as a few dozen steps
#define START_LOOKUP -0.7f // log of one half

static void drift(float *x, float to, float share)
{
    *x += share * (to - *x);
}

void spec_learnt_init(struct spec_learnt *l)
{
    // Chosen: typical of a draft model that matches its target well.
    static const float first[] = {0.3f, 0.12f, 0.06f};
    *l = (struct spec_learnt){
        .doubt = START_DOUBT, .lookup_logp = START_LOOKUP, .grow_gain = FIRST_GAIN};
    for (int32_t i = 0; i < MAX_SIBLINGS; i++) {
        l->rescue[i] = i < 3 ? first[i] : 0.03f;
    }
    for (int32_t d = 0; d < MAX_DRAFTS; d++) {
        l->expected[d] = l->right[d] = START_NODES;
    }
}

void spec_learnt_expect(struct spec_learnt *l, const struct spec_costs *costs, int32_t k)
{
    l->grow_seconds = costs->round_trip + (float)k * costs->top_ids + costs->draft[2];
}

float spec_doubt_of(const struct spec_learnt *l, const struct spec_trust *trust)
{
    float first = lesser(l->doubt, START_DOUBT);
    return trust->doubt < 0.0f ? first : trust->doubt;
}

float spec_gain_of(const struct spec_learnt *l, int32_t depth, float logp)
{
    float gain = expf(logp) * l->right[depth] / l->expected[depth];
    return lesser(gain, 1.0f);
}

void spec_count(struct spec_learnt *l, int32_t n_drafts, int32_t n_accepted)
{
    l->n_drafts += n_drafts > 0;
    l->n_draft_tokens += n_drafts;
    l->n_accepted += n_accepted;
    for (int32_t i = 0; i < n_accepted; i++) {
        l->accepted_per_pos[i]++;
    }
}

void spec_learn(struct spec_learnt *l, struct spec_trust *trust, int32_t n, int32_t right)
{
    // Each right draft is one trial of the acceptance rate, and so is the first wrong one.
    for (int32_t i = 0; i < n && i <= right; i++) {
        float wrong = i < right ? 0.0f : 1.0f;
        trust->doubt += 0.1f * (wrong - trust->doubt);
        l->doubt += 0.02f * (wrong - l->doubt);
    }
}

void spec_learn_depth(struct spec_learnt *l, int32_t depth, float expected, bool right)
{
    l->expected[depth] =
        0.99f * l->expected[depth] + expected; // averages over about the last hundred steps
    l->right[depth] = 0.99f * l->right[depth] + (right ? 1.0f : 0.0f);
}

void spec_learn_lookup(struct spec_learnt *l, bool right)
{
    l->lookup_logp = logf(0.95f * expf(l->lookup_logp) + (right ? 0.05f : 0.001f));
}

void spec_learn_beside(struct spec_learnt *l, int32_t n, int32_t which)
{
    for (int32_t i = 0; i < n && i < MAX_SIBLINGS; i++) {
        drift(&l->rescue[i], i == which ? 1.0f : 0.0f, LEARN);
    }
}

void spec_learn_growth(struct spec_learnt *l, float tokens)
{
    drift(&l->grow_gain, tokens, LEARN);
}

void spec_learn_seconds(struct spec_learnt *l, float grown, float planned)
{
    drift(&l->grow_seconds, grown - planned, LEARN);
}

void spec_forget(struct spec_learnt *l)
{
    drift(&l->grow_gain, FIRST_GAIN, FORGET);
}
