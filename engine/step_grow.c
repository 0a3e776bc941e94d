// SPDX-License-Identifier: Apache-2.0
/* The passes that grow token trees, before the target's pass of the same step. First comes the
 * spine, which is drafted like a chain: the device feeds each draft to the next pass, and at the
 * end the host reads all of them, with the most likely alternatives to each. Then, if it pays, one
 * draft pass per level feeds nodes off the spine, which the host chooses. Slots after the root hold
 * the fed nodes in the order in which they were fed. New rows see only the past and each other, so
 * each level's pass feeds everything after the trunk again. */
#include "engine/step_tree.h"

#include "engine/base/minmax.h"
#include "engine/speculate/shape.h"

#include <math.h>

/* ---- a level's pass ----------------------------------------------------------------------- */

static void begin_level(struct planned_step *ps)
{
    struct draft_pass *d = &ps->step.level;
    d->pass = (struct pass){.rows = d->rows,
                            .seqs = d->seqs,
                            .out_rows = d->out_rows,
                            .draws = d->draws,
                            .tree_mask = ps->level_mask};
}

/* Adds a tree's rows from the end of its trunk on, and a draw for each node that is fed for the
 * first time. */
static void add_tree(struct planned_step *ps, struct spec_tree *t)
{
    struct draft_pass *d = &ps->step.level;
    struct pass *p = &d->pass;
    int32_t first_row = p->n_rows, skip = tree_trunk(t);
    const struct sampling_params *params = &t->seq->request->params;
    d->seqs[p->n_seqs++] = step_seq(t->seq, first_row, t->n_fed - skip, t->first + skip, true);
    int32_t path[MAX_DRAFTS];
    for (int32_t f = skip; f < t->n_fed; f++) {
        const struct tree_node *n = &t->nodes[t->by_fed[f]];
        int32_t row = p->n_rows++, pos = t->first + n->depth;
        d->rows[row] = (struct pass_row){t->seq->lane, n->token, pos, t->first + f};
        step_mask(ps->level_mask, first_row, f - skip, t->nodes[n->parent].fed - skip);
        if (f >= t->n_seen) {
            ps->drawn[p->n_draws] = (struct tree_pick){t, t->by_fed[f]};
            d->out_rows[p->n_out] = row;
            bool with_law = t->seq->proposal.law > 0;
            struct pass_draw *draw = &d->draws[p->n_draws++];
            *draw = (struct pass_draw){.out_row = p->n_out++,
                                       .lane = t->seq->lane,
                                       .pos = pos,
                                       .n_prompt = t->seq->n_prompt,
                                       .kind = DRAW_DRAFT,
                                       .logprobs = !with_law,
                                       .noise = params->temperature > 0.0f,
                                       .top_n = with_law ? 0 : t->top_n,
                                       .tree_row = row,
                                       .law = with_law ? t->seq->proposal.law + f : 0,
                                       .more = with_law ? t->children[n->depth] - 1 : 0};
            int32_t n_path = tree_path_tokens(t, t->by_fed[f], path);
            step_mask_draft(ps, p, draw, t->seq, path, n_path);
        }
    }
    t->n_seen = t->n_fed;
}

/* Builds the draft pass of a level. A tree that does not fit into it stops growing. */
static void build_level(struct planned_step *ps, const struct scheduler_limits *l)
{
    begin_level(ps);
    for (int32_t i = 0; i < ps->grove.n_trees; i++) {
        struct spec_tree *t = &ps->grove.trees[i];
        const struct pass *p = &ps->step.level.pass;
        if (t->n_fed == t->n_seen) {
            continue;
        }
        if (p->n_rows + t->n_fed > l->max_rows || p->n_draws + t->n_fed - t->n_seen > l->max_out) {
            while (t->n_fed > t->n_seen) {
                t->nodes[t->by_fed[--t->n_fed]].fed = -1;
            }
            t->depth = 0;
            continue;
        }
        add_tree(ps, t);
    }
}

/* ---- growth ------------------------------------------------------------------------------- */

/* Candidates from n-gram lookup form a path like any other. */
static void look_up(const struct planned_step *ps, struct spec *sp, struct spec_tree *t)
{
    struct proposal found;
    int32_t at = 0;
    found.n_drafts = ngram_look_up(sp, t->seq, t->depth, found.drafts);
    if (constraint_exists(t->seq->request)) {
        constraint_cut(&ps->constraints[t->seq->index], t->seq, &found);
    }
    for (int32_t i = 0; i < found.n_drafts && at >= 0; i++) {
        at = tree_add(t, at, found.drafts[i], t->nodes[at].logp + sp->learnt.lookup_logp);
        if (i == 0) {
            t->looked_up = at;
        }
    }
}

/* Adds the children that draw number `draw` of the pass returned to a node; `results` has one entry
 * per model. */
static void expand(const struct planned_step *ps, const struct spec *sp, struct spec_tree *t,
                   int32_t node, const struct pass *pass, const struct pass_results *results,
                   int32_t draw)
{
    struct draw_result filtered[MAX_DRAFT_MODELS];
    const struct draw_result *drawn[MAX_DRAFT_MODELS];
    if (t->seq->proposal.law > 0) {
        tree_expand_drawn(t, node, &results[0].draws[draw]); // there is only one model here
        return;
    }
    for (int32_t m = 0; m < ps->step.n_draft_models; m++) {
        filtered[m] = results[m].draws[draw];
        step_filter_drafts(ps, pass, draw, &filtered[m]);
        drawn[m] = &filtered[m];
    }
    tree_expand(t, node, drawn, ps->step.n_draft_models,
                spec_tree_children(sp, t->nodes[node].depth));
}

/* The number of spine passes of a tree: one per level that it may have, limited by the passes of
 * the step. */
static int32_t spine_length(const struct spec_tree *t, int32_t n_passes)
{
    int32_t n = lesser(t->depth, t->most);
    return lesser(n, n_passes);
}

/* Adds to every tree what pass j of the chain drew: the next node of the spine, which is fed, and
 * the ids beside it. If there are several draft models, the next pass reads the draws of the last
 * one. */
static void grow_spine(struct planned_step *ps, struct spec *sp, int32_t j, int32_t n_passes,
                       const struct pass_results *results)
{
    const struct draft_pass *d = &ps->step.draft[j];
    int32_t last = ps->step.n_draft_models - 1;
    for (int32_t i = 0; i < d->pass.n_draws; i++) {
        struct sequence *seq = ps->draft_owners[j][i];
        struct spec_tree *t = seq->tree;
        int32_t node = t->by_fed[t->n_fed - 1]; // the last node of the spine
        expand(ps, sp, t, node, &d->pass, results, i);
        seq->proposal.drafts[j] = results[last].draws[i].token;
        int32_t next = tree_add(t, node, seq->proposal.drafts[j], -INFINITY);
        if (next >= 0) {
            t->nodes[next].spine = true;
        }
        if (j + 1 < spine_length(t, n_passes) && next >= 0) {
            t->nodes[next].fed = t->n_fed;
            t->by_fed[t->n_fed++] = next;
            t->n_seen = t->n_fed;
        }
    }
    ps->grove.spent += spec_cost(sp->costs.draft, d->pass.n_draws) + sp->costs.top_ids;
}

/* The device feeds each draft to the next pass, and the host reads all of them at the end. If a
 * grammar restricts the drafts, the host reads them one by one. */
static enum status grow_spines(struct planned_step *ps, struct spec *sp, int32_t n_passes,
                               const struct step_site *site)
{
    int32_t n_at_once = step_drafts_masked(ps) ? 1 : n_passes;
    for (int32_t i = 0; i < ps->grove.n_trees && sp->options.lookup; i++) {
        look_up(ps, sp, &ps->grove.trees[i]);
    }
    for (int32_t j = 0; j < n_passes; j += n_at_once) {
        if (n_at_once == 1) {
            step_mask_pass(ps, j);
        }
        TRY(step_run_drafts(ps, &ps->step.draft[j], n_at_once, site));
        for (int32_t k = 0; k < n_at_once; k++) {
            grow_spine(ps, sp, j + k, n_passes, ps->results + k * ps->step.n_draft_models);
        }
    }
    return OK;
}

/* Makes the grown trees the plan's drafts. */
static void settle(struct planned_step *ps, struct spec *sp)
{
    int32_t rows = ps->grove.base_rows;
    grove_choose(sp, &ps->grove);
    for (int32_t i = 0; i < ps->grove.n_trees; i++) {
        struct spec_tree *t = &ps->grove.trees[i];
        plan_trim(&ps->plan, &ps->plan.entries[t->entry], t->n_rows - 1);
        rows += t->n_rows - 1;
        if (t->n_rows == 1) {
            ps->plan.entries[t->entry].seq->tree = NULL; // the entry becomes an ordinary decode row
        }
    }
    spec_learn_seconds(&sp->learnt, ps->grove.spent + spec_cost(sp->costs.target, rows),
                       sp->comb_seconds);
}

enum status step_grow_trees(struct planned_step *ps, const struct scheduler_limits *limits,
                            struct spec *sp, const struct step_site *site)
{
    struct spec_grove *g = &ps->grove;
    int32_t n_passes = ps->step.n_draft_passes;
    if (n_passes == 0 || ps->step.draft[0].pass.n_draws == 0 || g->n_trees == 0 || !g->grows) {
        return OK;
    }
    ps->step.n_draft_passes = 0; // they have already run
    enum status status = grow_spines(ps, sp, n_passes, site);
    for (int32_t level = 1; level < n_passes && status == OK; level++) {
        if (grove_frontier(sp, g, level) == 0) {
            continue;
        }
        build_level(ps, limits);
        if (ps->step.level.pass.n_draws == 0) {
            continue;
        }
        status = step_run_drafts(ps, &ps->step.level, 1, site);
        for (int32_t i = 0; i < ps->step.level.pass.n_draws && status == OK; i++) {
            expand(ps, sp, ps->drawn[i].tree, ps->drawn[i].node, &ps->step.level.pass, ps->results,
                   i);
        }
    }
    settle(ps, sp);
    return status;
}
