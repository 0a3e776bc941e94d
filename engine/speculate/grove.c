// SPDX-License-Identifier: Apache-2.0
#include "engine/speculate/grove.h"
#include "engine/base/minmax.h"

#include <math.h>

/* ---- picks -------------------------------------------------------------------------------- */

static const struct tree_node *node_of(const struct tree_pick *p)
{
    return &p->tree->nodes[p->node];
}

/* Orders nodes by falling probability. A child is never more likely than its parent and has a
 * higher index. So wherever the list is cut, the parent of each node before the cut is before the
 * cut as well. */
static bool goes_before(const struct tree_pick *a, const struct tree_pick *b)
{
    float x = node_of(a)->logp, y = node_of(b)->logp;
    if (x != y) {
        return x > y;
    }
    if (a->tree != b->tree) {
        return a->tree < b->tree;
    }
    return a->node < b->node;
}

/* Shell sort, because it needs no extra memory. */
static void sort_picks(struct tree_pick *v, int32_t n)
{
    for (int32_t gap = n / 2; gap > 0; gap /= 2) {
        for (int32_t i = gap; i < n; i++) {
            struct tree_pick x = v[i];
            int32_t j = i;
            for (; j >= gap && goes_before(&x, &v[j - gap]); j -= gap) {
                v[j] = v[j - gap];
            }
            v[j] = x;
        }
    }
}

static float gain_of(const struct spec *sp, const struct tree_pick *p)
{
    return spec_gain_of(&sp->learnt, node_of(p)->depth, node_of(p)->logp);
}

static bool counts_cost(const struct spec *sp)
{
    return !sp->options.fixed && sp->options.n_expansion == 0 && spec_costs_known(&sp->costs);
}

/* Ranks all candidates, and returns how many of them are worth their rows. */
static int32_t rank_nodes(const struct spec *sp, struct spec_grove *g, int32_t *n_all,
                          float *tokens, float *seconds)
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_trees; i++) {
        for (int32_t k = 1; k < g->trees[i].n_nodes; k++) {
            g->picks[n++] = (struct tree_pick){&g->trees[i], k};
        }
    }
    *n_all = n;
    *tokens = (float)g->n_trees;
    if (sp->options.n_expansion > 0) {
        return n; // already in the order of levels
    }
    sort_picks(g->picks, n);
    if (!counts_cost(sp)) {
        return n;
    }
    *seconds = g->spent + spec_cost(sp->costs.target, g->base_rows);
    float sum = *tokens;
    int32_t best = 0;
    for (int32_t i = 0; i < n && i < sp->options.budget; i++) {
        sum += gain_of(sp, &g->picks[i]);
        float time = g->spent + spec_cost(sp->costs.target, g->base_rows + i + 1);
        if (sum / time > *tokens / *seconds) {
            *tokens = sum;
            *seconds = time;
            best = i + 1;
        }
    }
    return best;
}

/* ---- growth ------------------------------------------------------------------------------- */

/* Appends the best nodes of a tree at this level, at most `most`, to the picks. */
static int32_t add_level(struct spec_grove *g, int32_t n, struct spec_tree *t, int32_t level,
                         int32_t most)
{
    int32_t from = n;
    for (int32_t k = 1; k < t->n_nodes && t->depth > level; k++) {
        if (t->nodes[k].depth == level && t->nodes[k].fed < 0 &&
            t->nodes[t->nodes[k].parent].fed >= 0) {
            g->picks[n++] = (struct tree_pick){t, k};
        }
    }
    sort_picks(g->picks + from, n - from);
    return n - from < most ? n : from + most;
}

/* The number of the level's nodes that are worth feeding. Each costs a row in a draft pass, and one
 * in the target's pass for its most likely child. */
static int32_t worth_feeding(const struct spec *sp, const struct spec_grove *g, int32_t n,
                             int32_t refed, float tokens, float seconds)
{
    float rate = tokens / seconds, sum = tokens;
    int32_t best = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct tree_pick *p = &g->picks[i];
        sum += gain_of(sp, p) * (1.0f - p->tree->seq->trust.doubt);
        float row = spec_cost(sp->costs.target, g->base_rows + i + 1) -
                    spec_cost(sp->costs.target, g->base_rows);
        float time = seconds + row + spec_cost(sp->costs.draft, refed + i + 1) + sp->costs.top_ids +
                     sp->costs.round_trip;
        if (sum / time > rate) {
            rate = sum / time;
            best = i + 1;
        }
    }
    return best;
}

/* Chooses the nodes of all trees to feed to the draft model next: the most likely ones, as long as
 * their gain exceeds their cost. */
int32_t grove_frontier(const struct spec *sp, struct spec_grove *g, int32_t level)
{
    float tokens, seconds = 0.0f;
    int32_t all, n = 0, refed = 0;
    rank_nodes(sp, g, &all, &tokens, &seconds);
    for (int32_t i = 0; i < g->n_trees; i++) {
        struct spec_tree *t = &g->trees[i];
        int32_t room = t->most + 1 - t->n_fed;
        int32_t most = sp->options.n_expansion > 0 ? room : sp->options.width;
        n = add_level(g, n, t, level, lesser(most, room));
        refed += t->n_fed - tree_trunk(t);
    }
    if (counts_cost(sp)) {
        sort_picks(g->picks, n);
        n = worth_feeding(sp, g, n, refed, tokens, seconds);
        float pass =
            spec_cost(sp->costs.draft, refed + n) + sp->costs.top_ids + sp->costs.round_trip;
        g->spent += n > 0 ? pass : 0.0f;
    }
    for (int32_t i = 0; i < n; i++) {
        struct spec_tree *t = g->picks[i].tree;
        t->by_fed[t->n_fed] = g->picks[i].node;
        t->nodes[g->picks[i].node].fed = t->n_fed++;
    }
    return n;
}

/* ---- the choice --------------------------------------------------------------------------- */

static void give_row(struct spec_tree *t, int32_t node)
{
    t->nodes[node].row = t->n_rows;
    t->by_row[t->n_rows++] = node;
    t->levels = greater(t->nodes[node].depth, t->levels);
}

/* Assigns rows along the path on which each node is followed by its most likely child. A chosen
 * node has row 0 until a row is assigned to it. */
static void number_path(struct spec_tree *t)
{
    for (int32_t at = 0, next; at >= 0; at = next) {
        next = -1;
        for (int32_t k = at + 1; k < t->n_nodes; k++) {
            const struct tree_node *n = &t->nodes[k];
            if (n->parent == at && n->row == 0 && (next < 0 || n->logp > t->nodes[next].logp)) {
                next = k;
            }
        }
        if (next >= 0) {
            give_row(t, next);
        }
    }
}

/* Chooses the rows of the target's pass: the best nodes of all trees, within the budget. */
void grove_choose(const struct spec *sp, struct spec_grove *g)
{
    float tokens, seconds = 0.0f;
    int32_t all, worth = rank_nodes(sp, g, &all, &tokens, &seconds), n_taken = 0;
    for (int32_t i = 0; i < worth && n_taken < sp->options.budget; i++) {
        struct spec_tree *t = g->picks[i].tree;
        if (t->most > 0) {
            t->most--;
            n_taken++;
            t->nodes[g->picks[i].node].row = 0;
        }
    }
    for (int32_t i = 0; i < g->n_trees; i++) {
        number_path(&g->trees[i]);
    }
    // Parents come first, because picks are in the order in which nodes were chosen.
    for (int32_t i = 0; i < worth; i++) {
        struct spec_tree *t = g->picks[i].tree;
        if (t->nodes[g->picks[i].node].row == 0) {
            give_row(t, g->picks[i].node);
        }
    }
}
