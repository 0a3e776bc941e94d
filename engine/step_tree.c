/* The passes of token trees. A tree is grown before the target's pass of the same step. First its
 * spine, as a chain is drafted: the device feeds each draft to the next pass, and the host reads
 * them all at once, with the likeliest ids beside each. Then, where it pays, one draft pass a level
 * for nodes off the spine: the host decides what each one feeds. Slots behind the root hold the fed
 * nodes in the order in which they were fed; a level's pass feeds everything behind the trunk
 * again, since new rows see only the past and each other. */
#include "engine/step.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------- */

void step_init_tree(struct step *st, const struct scheduler_limits *limits, const struct spec *sp)
{
    if (sp->method != SPEC_TREE) {
        return;
    }
    size_t lanes = (size_t)limits->max_lanes, rows = (size_t)limits->max_rows;
    size_t out = (size_t)limits->max_out;
    st->grove.trees = xcalloc(lanes, sizeof *st->grove.trees);
    st->grove.picks = xcalloc(lanes * MAX_TREE_CANDIDATES, sizeof *st->grove.picks);
    st->tree.rows = xcalloc(rows, sizeof *st->tree.rows);
    st->tree.seqs = xcalloc(lanes, sizeof *st->tree.seqs);
    st->tree.out_rows = xcalloc(out, sizeof *st->tree.out_rows);
    st->tree.draws = xcalloc(out, sizeof *st->tree.draws);
    st->drawn = xcalloc(out, sizeof *st->drawn);
    st->draft_mask = xcalloc(rows * TREE_MASK_WORDS, sizeof *st->draft_mask);
    st->mask = xcalloc(rows * TREE_MASK_WORDS, sizeof *st->mask);
}

void step_deinit_tree(struct step *st)
{
    free(st->grove.trees);
    free(st->grove.picks);
    free(st->tree.rows);
    free(st->tree.seqs);
    free(st->tree.out_rows);
    free(st->tree.draws);
    free(st->drawn);
    free(st->draft_mask);
    free(st->mask);
}

/* ---- masks -------------------------------------------------------------------------------- */

/* mask = the parent's and the row itself; parent_row -1: the past alone. */
static void mask_of(uint64_t *masks, int32_t first_row, int32_t row, int32_t parent_row)
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
    for (int32_t r = row + 1; r < t->n_rows && fed >= 0 && t->seq->law > 0; r++) {
        if (t->nodes[t->by_row[r]].parent == t->by_row[row]) {
            return t->seq->law + fed;
        }
    }
    return 0;
}

void step_tree_rows(struct step *st, const struct spec_tree *t, int32_t first_row)
{
    mask_of(st->mask, first_row, 0, -1);
    for (int32_t r = 1; r < t->n_rows; r++) {
        const struct tree_node *n = &t->nodes[t->by_row[r]];
        st->rows[first_row + r] = (struct pass_row){t->seq->lane, n->token, t->first + n->depth,
                                                    t->first + r};
        mask_of(st->mask, first_row, r, t->nodes[n->parent].row);
    }
}

/* ---- growth ------------------------------------------------------------------------------- */

/* The shape of a comb as far as the plan has room, the siblings going first. */
static void plan_comb(struct spec_tree *t, const struct spec *sp)
{
    int32_t depth = t->depth < t->most ? t->depth : t->most;
    spec_lay_beside(sp, 1.0f - t->seq->spec_doubt, depth, t->most - depth, t->beside);
    tree_lay_comb(t, depth);
    ASSERT(t->n_rows == t->most + 1);
}

void step_plant_trees(struct step *st, const struct spec *sp)
{
    struct spec_grove *g = &st->grove;
    g->n_trees = 0;
    g->spent = sp->look_cost;
    g->base_rows = st->plan.n_rows;
    g->grows = sp->grows_now;
    for (int32_t i = 0; i < st->plan.n_entries; i++) {
        const struct plan_entry *e = &st->plan.entries[i];
        if (e->n_drafts == 0 || (!g->grows && e->n_drafts <= e->seq->draft_depth)) {
            continue; // an ordinary row, or a chain
        }
        struct spec_tree *t = &g->trees[g->n_trees++];
        tree_begin(t, e->seq, sequence_token(e->seq, e->seq->n_known - 1));
        t->entry = i;
        t->first = e->first;
        t->depth = e->seq->draft_depth;
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

/* What n-gram lookup finds is a path of candidates like any other. */
static void look_up(struct spec *sp, struct scheduler *s, struct spec_tree *t)
{
    int32_t found[MAX_DRAFTS], at = 0;
    int32_t n = spec_ngram(spec_known_tokens(s, t->seq), t->seq->n_known, sp->min_n, sp->max_n,
                           t->depth, found);
    for (int32_t i = 0; i < n && at >= 0; i++) {
        at = tree_add(t, at, found[i], t->nodes[at].logp + sp->lookup_logp);
        t->looked_up = i == 0 ? at : t->looked_up;
    }
}

static void begin_level(struct step *st)
{
    struct draft_pass *d = &st->tree;
    d->pass = (struct pass){.rows = d->rows, .seqs = d->seqs, .out_rows = d->out_rows,
                            .draws = d->draws, .tree_mask = st->draft_mask};
}

/* The rows of a tree from its trunk on, and a draw for each node that is fed for the first time. */
static void add_tree(struct step *st, struct spec_tree *t)
{
    struct pass *p = &st->tree.pass;
    int32_t first_row = p->n_rows, skip = tree_trunk(t);
    const struct sampling_params *params = &t->seq->request->params;
    st->tree.seqs[p->n_seqs++] = (struct pass_seq){t->seq->lane, first_row, t->n_fed - skip,
                                                   t->first + skip, true};
    for (int32_t f = skip; f < t->n_fed; f++) {
        const struct tree_node *n = &t->nodes[t->by_fed[f]];
        int32_t row = p->n_rows++, pos = t->first + n->depth;
        st->tree.rows[row] = (struct pass_row){t->seq->lane, n->token, pos, t->first + f};
        mask_of(st->draft_mask, first_row, f - skip, t->nodes[n->parent].fed - skip);
        if (f >= t->n_seen) {
            st->drawn[p->n_draws] = (struct tree_pick){t, t->by_fed[f]};
            st->tree.out_rows[p->n_out] = row;
            bool judged = t->seq->law > 0;
            st->tree.draws[p->n_draws++] = (struct pass_draw){
                .out_row = p->n_out++, .lane = t->seq->lane, .pos = pos,
                .n_prompt = t->seq->n_prompt, .kind = DRAW_DRAFT, .logprobs = !judged,
                .noise = params->temperature > 0.0f, .top_n = judged ? 0 : t->top_n,
                .tree_row = row, .law = judged ? t->seq->law + f : 0,
                .more = judged ? t->children[n->depth] - 1 : 0};
        }
    }
    t->n_seen = t->n_fed;
}

/* The draft pass of a level; a tree for which it has no room grows no more. */
static void build_level(struct step *st, const struct scheduler_limits *l)
{
    begin_level(st);
    for (int32_t i = 0; i < st->grove.n_trees; i++) {
        struct spec_tree *t = &st->grove.trees[i];
        const struct pass *p = &st->tree.pass;
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
        add_tree(st, t);
    }
}

struct draft_job {
    struct step *st;
    const struct draft_pass *passes;
    int32_t n_passes, n_vocab_used;
};

static enum status draft_on_rank(struct rank *r, void *arg)
{
    const struct draft_job *job = arg;
    struct step *st = job->st;
    struct pass_results own[MAX_STEP_PASSES];
    TRY(r->be->ops->step_begin(r->be, st->slot));
    if (!st->begun) {
        TRY(step_begin_lanes(st, r->be));
    }
    for (int32_t i = 0; i < job->n_passes * st->n_draft_models; i++) {
        TRY(step_run_draft(&job->passes[i / st->n_draft_models].pass, r, i % st->n_draft_models,
                           job->n_vocab_used));
    }
    TRY(r->be->ops->step_end(r->be));
    return r->be->ops->step_wait(r->be, st->slot, r->local == 0 ? st->results : own,
                                 job->n_passes * st->n_draft_models);
}

enum status step_run_level(struct step *st, const struct draft_pass *passes, int32_t n_passes,
                           struct ranks *ranks, int32_t n_vocab_used)
{
    bool begun = st->begun;
    for (int32_t i = 0; i < n_passes && st->send_level; i++) {
        TRY(st->send_level(st, &passes[i].pass, st->send_arg));
        st->begun = true; // the lanes' news go with the first alone
    }
    st->begun = begun;
    struct draft_job job = {st, passes, n_passes, n_vocab_used};
    TRY(ranks_run(ranks, draft_on_rank, &job));
    st->begun = true;
    return OK;
}

/* Children of a node, by draw number `draw` of pass `pass` of all models. */
static void expand(struct step *st, const struct spec *sp, struct spec_tree *t, int32_t node,
                   int32_t pass, int32_t draw)
{
    const struct draw_result *drawn[MAX_DRAFT_MODELS];
    if (t->seq->law > 0) {
        tree_expand_drawn(t, node, &st->results[pass].draws[draw]); // of the one model
        return;
    }
    for (int32_t m = 0; m < st->n_draft_models; m++) {
        drawn[m] = &st->results[pass * st->n_draft_models + m].draws[draw];
    }
    tree_expand(t, node, drawn, st->n_draft_models,
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
static enum status grow_spines(struct step *st, struct scheduler *s, struct spec *sp,
                               struct ranks *ranks, int32_t n_passes, int32_t n_vocab_used)
{
    for (int32_t i = 0; i < st->grove.n_trees && sp->lookup; i++) {
        look_up(sp, s, &st->grove.trees[i]);
    }
    TRY(step_run_level(st, st->draft, n_passes, ranks, n_vocab_used));
    int32_t last = st->n_draft_models - 1;
    for (int32_t j = 0; j < n_passes; j++) {
        const struct draft_pass *d = &st->draft[j];
        const struct pass_results *r = &st->results[j * st->n_draft_models + last];
        for (int32_t i = 0; i < d->pass.n_draws; i++) {
            struct spec_tree *t = d->owners[i]->tree;
            int32_t node = t->by_fed[t->n_fed - 1]; // the spine's end
            expand(st, sp, t, node, j, i);
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
        st->grove.spent += spec_cost(sp->draft_cost, d->pass.n_draws) + sp->tell_cost;
    }
    return OK;
}

/* What was grown is what the plan now has. */
static void settle(struct step *st, struct spec *sp)
{
    int32_t rows = st->grove.base_rows;
    grove_choose(sp, &st->grove);
    for (int32_t i = 0; i < st->grove.n_trees; i++) {
        struct spec_tree *t = &st->grove.trees[i];
        plan_trim(&st->plan, &st->plan.entries[t->entry], t->n_rows - 1);
        rows += t->n_rows - 1;
        if (t->n_rows == 1) {
            t->seq->tree = NULL; // an ordinary decode row
        }
    }
    spec_learn_seconds(sp, st->grove.spent + spec_cost(sp->target_cost, rows), sp->plan_seconds);
}

enum status step_grow_trees(struct step *st, struct scheduler *s, struct spec *sp,
                            struct ranks *ranks, int32_t n_vocab_used)
{
    struct spec_grove *g = &st->grove;
    if (st->n_draft_passes == 0 || st->draft[0].pass.n_draws == 0 || g->n_trees == 0 || !g->grows) {
        return OK;
    }
    int32_t n_passes = st->n_draft_passes;
    st->n_draft_passes = 0; // they run here
    enum status status = grow_spines(st, s, sp, ranks, n_passes, n_vocab_used);
    for (int32_t level = 1; level < n_passes && status == OK; level++) {
        if (grove_frontier(sp, g, level) == 0) {
            continue;
        }
        build_level(st, &s->limits);
        if (st->tree.pass.n_draws == 0) {
            continue;
        }
        status = step_run_level(st, &st->tree, 1, ranks, n_vocab_used);
        for (int32_t i = 0; i < st->tree.pass.n_draws && status == OK; i++) {
            expand(st, sp, st->drawn[i].tree, st->drawn[i].node, 0, i);
        }
    }
    settle(st, sp);
    return status;
}

/* ---- the accepted path -------------------------------------------------------------------- */

void tree_moves_init(struct tree_moves *m, const struct scheduler_limits *limits)
{
    size_t lanes = (size_t)limits->max_lanes;
    m->paths = xcalloc(lanes, sizeof *m->paths);
    for (int32_t set = 0; set <= MAX_DRAFT_MODELS; set++) {
        m->moves[set] = xcalloc(lanes * MAX_DRAFTS, sizeof *m->moves[set]);
    }
}

void tree_moves_deinit(struct tree_moves *m)
{
    free(m->paths);
    for (int32_t set = 0; set <= MAX_DRAFT_MODELS; set++) {
        free(m->moves[set]);
    }
    *m = (struct tree_moves){0};
}

void tree_moves_clear(struct tree_moves *m)
{
    m->n_paths = 0;
    memset(m->n_moves, 0, sizeof m->n_moves);
}

static void add_move(struct tree_moves *m, int32_t set, int32_t lane, int32_t from, int32_t to)
{
    if (from != to) {
        m->moves[set][m->n_moves[set]++] = (struct slot_move){lane, from, to};
    }
}

void tree_moves_add(struct tree_moves *m, const struct step *st, struct spec_tree *t,
                    const int32_t *path, int32_t n_path)
{
    struct sequence *seq = t->seq;
    struct tree_path *p = &m->paths[m->n_paths++];
    *p = (struct tree_path){.lane = seq->lane, .first = t->first + 1,
                            .n = seq->n_known - t->first - 1};
    for (int32_t i = 0; i < p->n; i++) {
        p->tokens[i] = sequence_token(seq, p->first + i);
    }
    bool fed = true;
    seq->draft_computed = t->first + 1;
    for (int32_t i = 0; i < n_path; i++) {
        const struct tree_node *n = &t->nodes[t->by_row[path[i]]];
        add_move(m, 0, seq->lane, t->first + path[i], t->first + 1 + i);
        fed = fed && n->fed >= 0;
        for (int32_t d = 0; d < st->n_draft_models && fed; d++) {
            add_move(m, 1 + d, seq->lane, t->first + n->fed, t->first + 1 + i);
        }
        seq->draft_computed += fed;
    }
}
