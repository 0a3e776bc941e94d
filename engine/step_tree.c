// SPDX-License-Identifier: Apache-2.0
/* Trees in a step: which entries of the plan have one, the rows and masks of trees in the target's
 * pass, and the moves after a path is accepted. */
#include "engine/step_tree.h"

#include "engine/speculate/shape.h"

#include "engine/base/assert.h"
#include "engine/base/minmax.h"

#include <string.h>

/* ---- rows --------------------------------------------------------------------------------- */

void step_mask(uint64_t *masks, int32_t first_row, int32_t row, int32_t parent_row)
{
    uint64_t *mask = masks + (int64_t)(first_row + row) * TREE_MASK_WORDS;
    memset(mask, 0, TREE_MASK_WORDS * sizeof *mask);
    if (parent_row >= 0) {
        ASSERT(parent_row < row);
        memcpy(mask, masks + (int64_t)(first_row + parent_row) * TREE_MASK_WORDS,
               TREE_MASK_WORDS * sizeof *mask);
    }
    mask[row / 64] |= (uint64_t)1 << (row % 64);
}

int32_t step_tree_pos(const struct spec_tree *t, int32_t row)
{
    return t->first + t->nodes[t->by_row[row]].depth;
}

int32_t step_tree_law(const struct spec_tree *t, int32_t row)
{
    int32_t fed = t->nodes[t->by_row[row]].fed;
    for (int32_t r = row + 1; r < t->n_rows && fed >= 0 && t->seq->proposal.law > 0; r++) {
        if (t->nodes[t->by_row[r]].parent == t->by_row[row]) {
            return t->seq->proposal.law + fed;
        }
    }
    return 0;
}

void step_tree_rows(struct planned_step *ps, const struct spec_tree *t, int32_t first_row)
{
    step_mask(ps->mask, first_row, 0, -1);
    for (int32_t r = 1; r < t->n_rows; r++) {
        const struct tree_node *n = &t->nodes[t->by_row[r]];
        ps->step.rows[first_row + r] =
            (struct pass_row){t->seq->lane, n->token, t->first + n->depth, t->first + r};
        step_mask(ps->mask, first_row, r, t->nodes[n->parent].row);
    }
}

/* ---- planting ----------------------------------------------------------------------------- */

/* Lays out a comb reduced to the rows that the plan leaves; siblings are dropped first. */
static void plan_comb(struct spec_tree *t, const struct spec *sp)
{
    int32_t depth = lesser(t->depth, t->most);
    spec_lay_beside(sp, 1.0f - t->seq->trust.doubt, depth, t->most - depth, t->beside);
    tree_lay_comb(t, depth);
    ASSERT(t->n_rows == t->most + 1);
}

void step_plant_trees(struct planned_step *ps, const struct spec *sp)
{
    struct spec_grove *g = &ps->grove;
    g->n_trees = 0;
    g->spent = sp->costs.round_trip;
    g->base_rows = ps->plan.n_rows;
    g->grows = spec_passes(sp) == SPEC_LEVEL_PASSES;
    for (int32_t i = 0; i < ps->plan.n_entries; i++) {
        const struct plan_entry *e = &ps->plan.entries[i];
        bool chain =
            !e->seq->proposal.on_device || (!g->grows && e->n_drafts <= e->seq->proposal.depth);
        if (e->n_drafts == 0 || chain) {
            continue;
        }
        struct spec_tree *t = &g->trees[g->n_trees++];
        tree_begin(t, e->seq, sequence_token(e->seq, e->seq->n_known - 1));
        t->entry = i;
        t->first = e->first;
        t->depth = e->seq->proposal.depth;
        t->most = e->n_drafts;
        t->top_n = spec_tree_top_n(sp, e->seq);
        for (int32_t d = 0; d < t->depth; d++) {
            t->children[d] = (uint8_t)spec_tree_children(sp, d);
        }
        e->seq->tree = t;
        g->base_rows -= e->n_drafts;
        if (!g->grows) {
            plan_comb(t, sp);
        }
    }
}

/* ---- the accepted path -------------------------------------------------------------------- */

static void add_move(struct tree_moves *m, int32_t set, int32_t lane, int32_t from, int32_t to)
{
    if (from != to) {
        m->moves[set][m->n_moves[set]++] = (struct slot_move){lane, from, to};
    }
}

void tree_moves_add(struct tree_moves *m, const struct planned_step *ps, struct sequence *seq,
                    const int32_t *path, int32_t n_path)
{
    const struct spec_tree *t = seq->tree;
    struct tree_path *p = &m->paths[m->n_paths++];
    *p = (struct tree_path){
        .lane = seq->lane, .first = t->first + 1, .n = seq->n_known - t->first - 1};
    for (int32_t i = 0; i < p->n; i++) {
        p->tokens[i] = sequence_token(seq, p->first + i);
    }
    bool fed = !ps->reads_target;
    seq->draft_computed = t->first + 1;
    for (int32_t i = 0; i < n_path; i++) {
        const struct tree_node *n = &t->nodes[t->by_row[path[i]]];
        add_move(m, 0, seq->lane, t->first + path[i], t->first + 1 + i);
        fed = fed && n->fed >= 0;
        for (int32_t d = 0; d < ps->step.n_draft_models && fed; d++) {
            add_move(m, 1 + d, seq->lane, t->first + n->fed, t->first + 1 + i);
        }
        seq->draft_computed += fed;
    }
}
