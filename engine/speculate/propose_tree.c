// SPDX-License-Identifier: Apache-2.0
/* Trees of drafts. A comb is laid out before it is drafted and needs only a chain's passes; other
 * trees are grown by the host, level by level. Measurements decide which is better. */
#include "engine/base/minmax.h"
#include "engine/speculate/shape.h"
#include "engine/speculate/tree.h"

#include <math.h>

/* ---- proposals ---------------------------------------------------------------------------- */

/* The user's choice. 1: the host grows trees; 0: it does not; -1: measurements decide. */
static int32_t grow_option(const struct spec *sp)
{
    const struct spec_options *o = &sp->options;
    bool chain = o->n_expansion > 0 && o->n_models == 1 && !o->lookup;
    for (int32_t d = 0; d < o->n_expansion; d++) {
        chain = chain && o->expansion[d] == 1;
    }
    if (chain) {
        return 0;
    }
    if (o->n_expansion > 0 || o->lookup || o->n_models > 1) {
        return 1;
    }
    if (o->rejection == REJECT_PROBABILISTIC) {
        // With p / q verification the shape must not depend on the draws, so trees are laid out in
        // advance.
        return 0;
    }
    if (o->fixed || !spec_costs_known(&sp->costs)) {
        return 1;
    }
    return -1;
}

/* Plans a comb for every decoding sequence, within the budget, and decides whether grown trees
 * would be better. */
static void plan_combs(struct spec *sp, const struct spec_view *v)
{
    struct spec_plan all = {0};
    int32_t nodes = 0, rows = 0, deepest = 0, option = grow_option(sp), budget = sp->options.budget;
    int32_t share = budget / (v->n_running > 0 ? v->n_running : 1);
    for (int32_t i = 0; i < v->n; i++) {
        const struct spec_candidate *c = &v->seqs[i];
        int32_t k = c->depth;
        c->proposal->n_beside = 0;
        if (k == 0) {
            rows++;
            all.tokens += 1.0f;
            continue;
        }
        int32_t left = lesser(budget - nodes, share);
        bool chain = sp->options.n_expansion > 0 || left < k || c->tree_depth < k;
        int32_t most = chain ? 0 : left - k;
        struct spec_plan p = spec_plan_comb(sp, v->n_running, 1.0f - c->trust->doubt, k, most);
        c->proposal->n_beside = p.beside;
        if (p.beside > 0) {
            nodes += k + p.beside;
        }
        rows += 1 + k + p.beside;
        deepest = greater(k, deepest);
        all.tokens += p.tokens;
        all.ends += p.ends;
    }
    sp->comb_seconds = all.seconds = (float)deepest * spec_cost(sp->costs.draft, v->n_running) +
                                     spec_cost(sp->costs.target, rows > 0 ? rows : 1);
    if (option >= 0) {
        sp->grows = option;
    } else {
        sp->grows = deepest > 0 && spec_worth_growing(sp, &all);
    }
    if (option < 0 && deepest > 0 && !sp->grows) {
        spec_forget(&sp->learnt);
    }
}

void tree_propose(struct spec *sp, const struct spec_view *v)
{
    struct draft_load load = {0};
    plan_combs(sp, v);
    for (int32_t i = 0; i < v->n; i++) {
        struct spec_candidate *c = &v->seqs[i];
        if (sp->grows && c->tree_depth < c->depth) {
            c->depth = c->tree_depth;
        }
        if (c->ready && c->depth > 0) {
            int32_t n;
            if (sp->grows) {
                n = spec_tree_most(sp, c->depth, v->n_running);
            } else {
                n = c->depth + c->proposal->n_beside;
            }
            draft_propose(sp, v, c, n, &load);
        }
    }
}

enum spec_passes tree_passes(const struct spec *sp)
{
    return sp->grows ? SPEC_LEVEL_PASSES : SPEC_CHAIN_PASSES;
}

/* ---- learning ----------------------------------------------------------------------------- */

/* The number of siblings with rows beside the spine's node at `depth`. *which: the index of the one
 * that has row `row`; -1: none has it. */
static int32_t find_beside(const struct spec_tree *t, int32_t depth, int32_t row, int32_t *which)
{
    int32_t n = 0, parent = -1;
    *which = -1;
    for (int32_t r = 1; r < t->n_rows && parent < 0; r++) {
        const struct tree_node *node = &t->nodes[t->by_row[r]];
        if (node->spine && node->depth == depth) {
            parent = node->parent;
        } else {
            parent = -1;
        }
    }
    for (int32_t r = 1; r < t->n_rows; r++) {
        const struct tree_node *node = &t->nodes[t->by_row[r]];
        if (node->parent == parent && !node->spine) {
            if (r == row) {
                *which = n;
            }
            n++;
        }
    }
    return n;
}

/* Learns the acceptance rate of the spine, and which siblings are right where it ends. */
static void learn_shape(struct spec *sp, const struct spec_trial *trial)
{
    const struct spec_tree *t = trial->tree;
    const int32_t *path = trial->path;
    int32_t spine = 0, right = 0, n_path = trial->n_right, which;
    for (int32_t r = 1; r < t->n_rows; r++) {
        spine += t->nodes[t->by_row[r]].spine;
    }
    while (right < n_path && t->nodes[t->by_row[path[right]]].spine) {
        right++;
    }
    bool cut_on_spine = trial->cut && right == n_path;
    spec_learn(&sp->learnt, trial->trust, cut_on_spine ? right : spine, right);
    if (right >= spine || cut_on_spine) {
        return;
    }
    int32_t n = find_beside(t, right + 1, n_path > right ? path[right] : -1, &which);
    spec_learn_beside(&sp->learnt, n, which);
    // The tree is compared with a comb that has the planned number of siblings.
    if (!t->planned && !trial->cut) {
        int32_t beside =
            (trial->seq->proposal.n_beside + t->depth - 1) / (t->depth > 0 ? t->depth : 1);
        bool rescued = which >= 0 && which < beside;
        spec_learn_growth(&sp->learnt, (float)(n_path - right - rescued));
    }
}

/* Compares the probabilities that the drafts gave to the nodes at each depth with the outcome. */
static void learn_depths(struct spec *sp, const struct spec_trial *trial)
{
    const struct spec_tree *t = trial->tree;
    float expected[MAX_DRAFTS] = {0};
    for (int32_t r = 1; r < t->n_rows; r++) {
        const struct tree_node *n = &t->nodes[t->by_row[r]];
        expected[n->depth] += expf(n->logp);
    }
    int32_t n_verified = trial->cut ? trial->n_right : t->levels;
    for (int32_t d = 1; d <= n_verified; d++) {
        spec_learn_depth(&sp->learnt, d, expected[d], d <= trial->n_right);
    }
}

void tree_observe(struct spec *sp, const struct spec_trial *trial)
{
    const struct spec_tree *t = trial->tree;
    if (!t) {
        chain_observe(sp, trial);
        return;
    }
    if (!t->planned) { // a comb's probabilities are not known in advance
        learn_depths(sp, trial);
    }
    if (t->looked_up >= 0) {
        spec_learn_lookup(&sp->learnt,
                          trial->n_right > 0 && t->by_row[trial->path[0]] == t->looked_up);
    }
    learn_shape(sp, trial);
}

/* ---- the row ------------------------------------------------------------------------------ */

static enum status read_tree(struct spec_options *o, const struct json *j, struct err *err)
{
    TRY(spec_options_read_models(o, j, MAX_DRAFT_MODELS, err));
    return spec_options_read_tree(o, j, err);
}

const struct proposer proposer_tree = {.name = "tree",
                                       .trees = true,
                                       .read = read_tree,
                                       .open = ngram_open,
                                       .close = ngram_close,
                                       .propose = tree_propose,
                                       .passes = tree_passes,
                                       .observe = tree_observe};
