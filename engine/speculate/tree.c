// SPDX-License-Identifier: Apache-2.0
/* Token trees: candidates by likelihood, the nodes that are fed to the draft models, and the rows
 * of the target's pass. A node has a separate index for each of these, because not every candidate
 * is fed or gets a row. */
#include "engine/speculate/tree.h"

#include "engine/base/assert.h"
#include "engine/base/exact.h"
#include "engine/base/minmax.h"
#include "engine/model/model.h"

#include <math.h>

/* ---- nodes --------------------------------------------------------------------------------- */

/* The root is the newest token, which has a row with or without drafts. */
void tree_begin(struct spec_tree *t, const struct sequence *seq, int32_t token)
{
    t->seq = seq;
    t->n_nodes = t->n_fed = t->n_rows = t->n_seen = 1;
    t->looked_up = -1;
    t->levels = 0;
    t->planned = false;
    t->nodes[0] = (struct tree_node){.token = token, .parent = -1};
    t->by_fed[0] = t->by_row[0] = 0;
}

/* A token occurs only once below a parent, with the highest probability that was proposed for
 * it. */
int32_t tree_add(struct spec_tree *t, int32_t parent, int32_t token, float logp)
{
    for (int32_t i = parent + 1; i < t->n_nodes; i++) {
        struct tree_node *n = &t->nodes[i];
        if (n->parent == parent && n->token == token) {
            n->logp = greater(logp, n->logp);
            return i;
        }
    }
    if (t->n_nodes == MAX_TREE_CANDIDATES) {
        return -1;
    }
    t->nodes[t->n_nodes] = (struct tree_node){.token = token,
                                              .parent = parent,
                                              .depth = t->nodes[parent].depth + 1,
                                              .fed = -1,
                                              .row = -1,
                                              .logp = logp};
    return t->n_nodes++;
}

/* ---- children ----------------------------------------------------------------------------- */

enum { MAX_IDS = 1 + MAX_TOP_LOGPROBS };

/* Candidate ids for the children of a node, with their probabilities. */
struct guesses {
    int32_t n;
    int32_t token[MAX_IDS * MAX_DRAFT_MODELS];
    float p[MAX_IDS * MAX_DRAFT_MODELS];
};

/* If several draft models propose the same token, their probabilities add up. */
static void guess(struct guesses *g, int32_t token, float p)
{
    for (int32_t i = 0; i < g->n; i++) {
        if (g->token[i] == token) {
            g->p[i] += p;
            return;
        }
    }
    g->token[g->n] = token;
    g->p[g->n++] = p;
}

/* One draft model's guesses for position `pos`. The target samples with noise of (seed, pos), so
 * the same noise on the draft's log-probabilities predicts which id it will sample. The model's own
 * draw, which respects all sampling parameters, comes first. */
static void guess_from(struct guesses *g, const struct draw_result *r, const struct sequence *seq,
                       int32_t pos, float share)
{
    float t = seq->request->params.temperature, score[MAX_IDS], best = -INFINITY, sum = 0.0f;
    uint64_t seed = seq->request->params.seed + (uint64_t)seq->sample;
    int32_t ids[MAX_IDS], n = 0;
    ids[n] = r->token;
    score[n++] = r->logprob;
    for (int32_t i = 0; i < r->n_top; i++) {
        if (r->top_ids[i] != r->token) {
            ids[n] = r->top_ids[i];
            score[n++] = r->top_logprobs[i];
        }
    }
    for (int32_t i = 0; i < n; i++) {
        if (t > 0.0f) {
            score[i] =
                score[i] / t + gumbel_noise(rng_bits(seed, pos, RNG_SAMPLE, (uint32_t)ids[i]));
        }
        best = greater(score[i], best);
    }
    if (!(best > -INFINITY)) { // true for NaN as well, since a draft model may return anything
        return;
    }
    score[0] = best;
    for (int32_t i = 0; i < n; i++) {
        sum += expf(score[i] - best);
    }
    // Without noise, the ids that were not returned keep their share of the probability.
    float scale = t > 0.0f || sum * expf(best) > 1.0f ? 1.0f / sum : expf(best);
    for (int32_t i = 0; i < n; i++) {
        guess(g, ids[i], share * scale * expf(score[i] - best));
    }
}

/* Adds the k likeliest children, by the average of the draft models' distributions. */
void tree_expand(struct spec_tree *t, int32_t node, const struct draw_result *const *drawn,
                 int32_t n_drawn, int32_t k)
{
    struct guesses g = {0};
    int32_t pos = t->first + t->nodes[node].depth + 1;
    for (int32_t i = 0; i < n_drawn; i++) {
        guess_from(&g, drawn[i], t->seq, pos, 1.0f / (float)n_drawn);
    }
    for (; k > 0; k--) {
        int32_t best = -1;
        for (int32_t i = 0; i < g.n; i++) {
            if (g.p[i] > 0.0f && (best < 0 || g.p[i] > g.p[best])) {
                best = i;
            }
        }
        if (best < 0) {
            return;
        }
        float p = lesser(g.p[best], 1.0f);
        tree_add(t, node, g.token[best], t->nodes[node].logp + logf(p));
        g.p[best] = 0.0f;
    }
}

/* Adds the drawn children. If drafts are sampled, the choice of nodes to try must not depend on the
 * sampled tokens, or the distribution of the answer would change. */
void tree_expand_drawn(struct spec_tree *t, int32_t node, const struct draw_result *drawn)
{
    // A constant instead of the draw's probability, because the drawn token must not decide which
    // nodes are tried.
    float logp = t->nodes[node].logp;
    tree_add(t, node, drawn->token, logp - 0.5f);
    for (int32_t i = 0; i < drawn->n_top; i++) {
        tree_add(t, node, drawn->top_ids[i], logp - 1.5f - (float)i);
    }
}

/* ---- combs -------------------------------------------------------------------------------- */

/* A node whose token the device will draw. */
static int32_t lay_node(struct spec_tree *t, int32_t parent, bool spine)
{
    int32_t k = t->n_nodes++;
    t->nodes[k] = (struct tree_node){.token = -1,
                                     .parent = parent,
                                     .fed = -1,
                                     .row = t->n_rows,
                                     .depth = t->nodes[parent].depth + 1,
                                     .spine = spine};
    t->by_row[t->n_rows++] = k;
    return k;
}

/* Lays out a spine of the likeliest tokens, with siblings beside it, before anything is drawn. */
void tree_lay_comb(struct spec_tree *t, int32_t depth)
{
    t->planned = true;
    t->depth = t->levels = depth;
    for (int32_t d = 0; d < depth; d++) {
        int32_t k = lay_node(t, d, true); // the spine's node of depth d is node d
        if (d + 1 < depth) {
            t->nodes[k].fed = t->n_fed;
            t->by_fed[t->n_fed++] = k;
        }
    }
    t->n_seen = t->n_fed;
    for (int32_t d = 0; d < depth; d++) {
        t->beside_row[d] = t->n_rows;
        for (int32_t i = 0; i < t->beside[d]; i++) {
            lay_node(t, d, false);
        }
    }
}

void tree_name_comb(struct spec_tree *t, int32_t d, const struct draw_result *drawn)
{
    t->nodes[d + 1].token = drawn->token;
    for (int32_t i = 0; i < t->beside[d]; i++) {
        t->nodes[t->by_row[t->beside_row[d] + i]].token = drawn->top_ids[i];
    }
}

/* ---- walks --------------------------------------------------------------------------------- */

/* The trunk: the nodes that all later candidates descend from. */
int32_t tree_trunk(const struct spec_tree *t)
{
    int32_t trunk = 1;
    for (; trunk < t->n_seen; trunk++) {
        for (int32_t f = trunk; f < t->n_fed; f++) {
            // All later nodes descend from this one, and this one from the previous one.
            int32_t parent = t->nodes[t->nodes[t->by_fed[f]].parent].fed;
            if (f == trunk ? parent != trunk - 1 : parent < trunk) {
                return trunk;
            }
        }
    }
    return trunk;
}

/* Walks from the node up to the root. */
int32_t tree_path_tokens(const struct spec_tree *t, int32_t node, int32_t tokens[MAX_DRAFTS])
{
    int32_t depth = t->nodes[node].depth;
    for (int32_t at = node; t->nodes[at].parent >= 0; at = t->nodes[at].parent) {
        tokens[t->nodes[at].depth - 1] = t->nodes[at].token;
    }
    return depth;
}

/* The row of the child with this token; -1: the tree ends here. */
int32_t tree_next(const struct spec_tree *t, int32_t row, int32_t token)
{
    for (int32_t r = row + 1; r < t->n_rows; r++) {
        const struct tree_node *n = &t->nodes[t->by_row[r]];
        if (n->token == token && t->nodes[n->parent].row == row) {
            return r;
        }
    }
    return -1;
}
