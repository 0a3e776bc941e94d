// SPDX-License-Identifier: Apache-2.0
/* Trees that are laid out before they are drafted: combs, which consist of a spine and leaf
 * siblings beside its nodes. A chain of draft passes produces a whole comb without a round trip to
 * the host, because each draw also returns the siblings. A comb without siblings is a chain.
 * Measurements decide how many siblings pay, and whether a deeper tree grown level by level is
 * better. */
#include "engine/speculate/shape.h"
#include "engine/base/minmax.h"

#include <string.h>

/* ---- sizes -------------------------------------------------------------------------------- */

int32_t spec_tree_children(const struct spec *sp, int32_t depth)
{
    const struct spec_options *o = &sp->options;
    if (o->n_expansion == 0) {
        return o->width;
    }
    return depth < o->n_expansion ? o->expansion[depth] : 0;
}

int32_t spec_tree_top_n(const struct spec *sp, const struct sequence *seq)
{
    int32_t most = 1;
    for (int32_t d = 0; d < sp->options.k; d++) {
        most = greater(spec_tree_children(sp, d), most);
    }
    bool noise = seq->request->params.temperature > 0.0f;
    if (noise || most > MAX_TOP_LOGPROBS) {
        return MAX_TOP_LOGPROBS;
    }
    return most;
}

int32_t spec_tree_most(const struct spec *sp, int32_t depth, int32_t n_sequences)
{
    int32_t nodes = 0, level = 1;
    for (int32_t d = 0; d < depth; d++) {
        level = level * spec_tree_children(sp, d);
        level = lesser(level, MAX_TREE_NODES);
        nodes += level;
    }
    // A sequence may use twice its share of the budget, because a predictable one gains more than
    // an unpredictable one.
    int32_t share;
    if (n_sequences > 1) {
        share = 2 * sp->options.budget / n_sequences;
    } else {
        share = sp->options.budget;
    }
    share = lesser(share, sp->options.budget);
    share = greater(share, depth);
    nodes = lesser(nodes, share);
    return lesser(nodes, MAX_TREE_NODES - 1);
}

/* ---- combs -------------------------------------------------------------------------------- */

/* The depth at which the next sibling is worth most. *value: its worth, which is the chance that
 * the spine ends at that depth times the chance that the sibling is then right. -1: all depths are
 * full. */
static int32_t next_beside(const struct spec *sp, float acceptance, int32_t depth,
                           const uint8_t *beside, float *value)
{
    int32_t best = -1;
    float reach = 1.0f - acceptance;
    for (int32_t d = 0; d < depth; d++, reach *= acceptance) {
        float v;
        if (beside[d] < sp->options.width - 1) {
            v = reach * sp->learnt.rescue[beside[d]];
        } else {
            v = -1.0f;
        }
        if (v >= 0.0f && (best < 0 || v > *value)) {
            best = d;
            *value = v;
        }
    }
    return best;
}

void spec_lay_beside(const struct spec *sp, float acceptance, int32_t depth, int32_t n,
                     uint8_t *beside)
{
    float value = 0.0f;
    memset(beside, 0, MAX_DRAFTS * sizeof *beside);
    for (int32_t d; n > 0 && (d = next_beside(sp, acceptance, depth, beside, &value)) >= 0; n--) {
        beside[d]++;
    }
}

struct spec_plan spec_plan_comb(const struct spec *sp, int32_t n, float acceptance, int32_t depth,
                                int32_t most)
{
    struct spec_plan p = {.tokens = 1.0f};
    float reach = 1.0f, value = 0.0f;
    uint8_t beside[MAX_DRAFTS] = {0};
    for (int32_t d = 0; d < depth; d++) {
        reach *= acceptance;
        p.tokens += reach;
    }
    p.ends = 1.0f - reach;
    float passes = (float)depth * spec_cost(sp->costs.draft, n);
    p.seconds = passes + spec_cost(sp->costs.target, n * (1 + depth));
    bool costs = !sp->options.fixed && spec_costs_known(&sp->costs);
    float tokens = p.tokens;
    most = lesser(most, depth * (sp->options.width - 1));
    for (int32_t i = 1; i <= most; i++) {
        int32_t d = next_beside(sp, acceptance, depth, beside, &value);
        beside[d]++;
        tokens += value;
        float seconds = passes + spec_cost(sp->costs.target, n * (1 + depth + i));
        if (!costs || tokens / seconds > p.tokens / p.seconds) {
            p = (struct spec_plan){
                .beside = i, .tokens = tokens, .seconds = seconds, .ends = p.ends};
        }
    }
    return p;
}

/* ---- or grown trees ----------------------------------------------------------------------- */

bool spec_worth_growing(const struct spec *sp, const struct spec_plan *all)
{
    float grown = all->tokens + all->ends * sp->learnt.grow_gain;
    return grown / (all->seconds + sp->learnt.grow_seconds) > all->tokens / all->seconds;
}
