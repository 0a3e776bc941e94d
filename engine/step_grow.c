// SPDX-License-Identifier: Apache-2.0
/* The passes of token trees. A tree is grown before the target's pass of the same step. First its
 * spine, as a chain is drafted: the device feeds each draft to the next pass, and the host reads
 * them all at once, with the likeliest ids beside each. Then, where it pays, one draft pass a level
 * for nodes off the spine: the host decides what each one feeds. Slots behind the root hold the fed
 * nodes in the order in which they were fed; a level's pass feeds everything behind the trunk
 * again, since new rows see only the past and each other. */
#include "engine/step_tree.h"

#include "engine/speculate/shape.h"

#include "engine/cluster/step_run.h"

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

/* The rows of a tree from its trunk on, and a draw for each node that is fed for the first time. */
static void add_tree(struct planned_step *ps, struct spec_tree *t)
{
    struct draft_pass *d = &ps->step.level;
    struct pass *p = &d->pass;
    int32_t first_row = p->n_rows, skip = tree_trunk(t);
    const struct sampling_params *params = &t->seq->request->params;
    d->seqs[p->n_seqs++] =
        (struct pass_seq){t->seq->lane, first_row, t->n_fed - skip, t->first + skip, true};
    for (int32_t f = skip; f < t->n_fed; f++) {
        const struct tree_node *n = &t->nodes[t->by_fed[f]];
        int32_t row = p->n_rows++, pos = t->first + n->depth;
        d->rows[row] = (struct pass_row){t->seq->lane, n->token, pos, t->first + f};
        step_mask(ps->level_mask, first_row, f - skip, t->nodes[n->parent].fed - skip);
        if (f >= t->n_seen) {
            ps->drawn[p->n_draws] = (struct tree_pick){t, t->by_fed[f]};
            d->out_rows[p->n_out] = row;
            bool judged = t->seq->proposal.law > 0;
            d->draws[p->n_draws++] =
                (struct pass_draw){.out_row = p->n_out++,
                                   .lane = t->seq->lane,
                                   .pos = pos,
                                   .n_prompt = t->seq->n_prompt,
                                   .kind = DRAW_DRAFT,
                                   .logprobs = !judged,
                                   .noise = params->temperature > 0.0f,
                                   .top_n = judged ? 0 : t->top_n,
                                   .tree_row = row,
                                   .law = judged ? t->seq->proposal.law + f : 0,
                                   .more = judged ? t->children[n->depth] - 1 : 0};
        }
    }
    t->n_seen = t->n_fed;
}

/* The draft pass of a level; a tree for which it has no room grows no more. */
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

/* Runs passes of the draft models, on the other nodes as well, and takes the results. */
static enum status run_ahead(struct planned_step *ps, const struct draft_pass *passes,
                             int32_t n_passes, const struct step_site *site)
{
    bool begun = ps->step.begun;
    for (int32_t i = 0; i < n_passes; i++) {
        TRY(site->send_level(&ps->step, &passes[i].pass, site->send_arg));
        ps->step.begun = true; // the lanes' news go with the first alone
    }
    ps->step.begun = begun;
    return step_run_ahead(&ps->step, passes, n_passes, site->ranks, site->n_vocab_used,
                          ps->results);
}

/* ---- growth ------------------------------------------------------------------------------- */

/* What n-gram lookup finds is a path of candidates like any other. */
static void look_up(struct spec *sp, struct spec_tree *t)
{
    int32_t found[MAX_DRAFTS], at = 0;
    int32_t n = ngram_look_up(sp, t->seq, t->depth, found);
    for (int32_t i = 0; i < n && at >= 0; i++) {
        at = tree_add(t, at, found[i], t->nodes[at].logp + sp->learnt.lookup_logp);
        t->looked_up = i == 0 ? at : t->looked_up;
    }
}

/* Children of a node, by draw number `draw` of pass `pass` of all models. */
static void expand(struct planned_step *ps, const struct spec *sp, struct spec_tree *t,
                   int32_t node, int32_t pass, int32_t draw)
{
    const struct draw_result *drawn[MAX_DRAFT_MODELS];
    if (t->seq->proposal.law > 0) {
        tree_expand_drawn(t, node, &ps->results[pass].draws[draw]); // of the one model
        return;
    }
    for (int32_t m = 0; m < ps->step.n_draft_models; m++) {
        drawn[m] = &ps->results[pass * ps->step.n_draft_models + m].draws[draw];
    }
    tree_expand(t, node, drawn, ps->step.n_draft_models,
                spec_tree_children(sp, t->nodes[node].depth));
}

/* Passes of the spine of a tree: as many as it may have levels, of those the step has. */
static int32_t spine_length(const struct spec_tree *t, int32_t n_passes)
{
    int32_t n = t->depth < t->most ? t->depth : t->most;
    return n < n_passes ? n : n_passes;
}

/* What the chain of passes gives every tree: its spine, which was fed, and the ids beside it. Where
 * several models draft, the last one's draws are what the next pass reads. */
static enum status grow_spines(struct planned_step *ps, struct spec *sp, int32_t n_passes,
                               const struct step_site *site)
{
    for (int32_t i = 0; i < ps->grove.n_trees && sp->options.lookup; i++) {
        look_up(sp, &ps->grove.trees[i]);
    }
    TRY(run_ahead(ps, ps->step.draft, n_passes, site));
    int32_t last = ps->step.n_draft_models - 1;
    for (int32_t j = 0; j < n_passes; j++) {
        const struct draft_pass *d = &ps->step.draft[j];
        const struct pass_results *r = &ps->results[j * ps->step.n_draft_models + last];
        for (int32_t i = 0; i < d->pass.n_draws; i++) {
            struct spec_tree *t = ps->draft_owners[j][i]->tree;
            int32_t node = t->by_fed[t->n_fed - 1]; // the spine's end
            expand(ps, sp, t, node, j, i);
            int32_t next = tree_add(t, node, r->draws[i].token, -INFINITY);
            if (next >= 0) {
                t->nodes[next].spine = true;
            }
            if (j + 1 < spine_length(t, n_passes) && next >= 0) {
                t->nodes[next].fed = t->n_fed;
                t->by_fed[t->n_fed++] = next;
                t->n_seen = t->n_fed;
            }
        }
        ps->grove.spent += spec_cost(sp->costs.draft, d->pass.n_draws) + sp->costs.tell;
    }
    return OK;
}

/* What was grown is what the plan now has. */
static void settle(struct planned_step *ps, struct spec *sp)
{
    int32_t rows = ps->grove.base_rows;
    grove_choose(sp, &ps->grove);
    for (int32_t i = 0; i < ps->grove.n_trees; i++) {
        struct spec_tree *t = &ps->grove.trees[i];
        plan_trim(&ps->plan, &ps->plan.entries[t->entry], t->n_rows - 1);
        rows += t->n_rows - 1;
        if (t->n_rows == 1) {
            ps->plan.entries[t->entry].seq->tree = NULL; // an ordinary decode row
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
    ps->step.n_draft_passes = 0; // they run here
    enum status status = grow_spines(ps, sp, n_passes, site);
    for (int32_t level = 1; level < n_passes && status == OK; level++) {
        if (grove_frontier(sp, g, level) == 0) {
            continue;
        }
        build_level(ps, limits);
        if (ps->step.level.pass.n_draws == 0) {
            continue;
        }
        status = run_ahead(ps, &ps->step.level, 1, site);
        for (int32_t i = 0; i < ps->step.level.pass.n_draws && status == OK; i++) {
            expand(ps, sp, ps->drawn[i].tree, ps->drawn[i].node, 0, i);
        }
    }
    settle(ps, sp);
    return status;
}
