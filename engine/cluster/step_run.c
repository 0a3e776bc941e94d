// SPDX-License-Identifier: Apache-2.0
/* Executes the parts of a step in their fixed order. All nodes run this same code, so their
 * backends get the same calls. */
#include "engine/cluster/step_run.h"

/* A lane with a new sequence gets its parameters and tokens, then its blocks. */
static enum status update_lane(struct backend *be, const struct lane_update *u)
{
    if (u->fresh) {
        TRY(be->ops->lane_params(be, u->lane, &u->params));
        TRY(be->ops->lane_tokens(be, u->lane, 0, u->n_prompt, u->prompt));
        if (u->n_generated > 0) {
            TRY(be->ops->lane_tokens(be, u->lane, u->n_prompt, u->n_generated, u->generated));
        }
    }
    if (u->n_blocks > 0) {
        return be->ops->lane_blocks(be, u->lane, u->first_block, u->n_blocks, u->blocks);
    }
    return OK;
}

/* If a graph is replayed, the pass needs no ops from here (shape->issue). */
static enum status run_forward(const struct pass *pass, struct model *m, struct model_outputs want,
                               struct pass_shape *shape)
{
    TRY(m->be->ops->pass_begin(m->be, pass, shape));
    want.hidden = pass->hidden;
    want.adapted = pass_is_adapted(pass);
    if (shape->issue) {
        return model_forward(m, shape, want);
    }
    return OK;
}

/* Masks, noise and the sampler's other inputs are part of the pass; the call only passes the
 * logits. */
static enum status run_draws(struct model *m, const struct pass_shape *shape, int32_t n_vocab_used)
{
    struct sample_args sample = {.logits = m->logits,
                                 .n_out = shape->n_out,
                                 .n_draws = shape->n_draws,
                                 .n_vocab_used = n_vocab_used,
                                 .bests = m->bests};
    if (shape->issue) {
        return m->be->ops->sample(m->be, &sample);
    }
    return OK;
}

/* The target's pass with its draws issued immediately, because they need nothing from the host. */
enum status step_run_pass(const struct pass *pass, struct model *m, struct model_outputs want,
                          int32_t n_vocab_used)
{
    struct pass_shape shape;
    TRY(run_forward(pass, m, want, &shape));
    if (want.logits) {
        TRY(run_draws(m, &shape, n_vocab_used));
    }
    return m->be->ops->pass_end(m->be);
}

/* Moves accepted paths while the block tables are still those of the step that computed them. */
static enum status move_paths(const struct tree_moves *m, struct backend *be)
{
    for (int32_t set = 0; set <= MAX_DRAFT_MODELS; set++) {
        if (m->n_moves[set] > 0) {
            TRY(be->ops->move_slots(be, m->n_moves[set], m->moves[set], set));
        }
    }
    for (int32_t i = 0; i < m->n_paths; i++) {
        const struct tree_path *p = &m->paths[i];
        TRY(be->ops->lane_tokens(be, p->lane, p->first, p->n, p->tokens));
    }
    return OK;
}

/* The tables and copies of window pages. */
static enum status begin_pages(const struct step *st, struct backend *be)
{
    for (int32_t i = 0; i < st->n_page_updates; i++) {
        const struct page_update *u = &st->page_updates[i];
        TRY(be->ops->lane_pages(be, u->lane, u->first, u->n, u->pages));
    }
    if (st->n_page_copies > 0) {
        return be->ops->copy_pages(be, st->n_page_copies, st->page_copies);
    }
    return OK;
}

/* Paths of accepted drafts move first. Blocks are copied after the tables have been updated. */
static enum status begin_lanes(const struct step *st, struct backend *be)
{
    const struct backend_ops *ops = be->ops;
    TRY(move_paths(st->moves, be));
    for (int32_t i = 0; i < st->n_lanes; i++) {
        TRY(update_lane(be, &st->lanes[i]));
    }
    TRY(begin_pages(st, be));
    if (st->n_copies > 0) {
        TRY(ops->copy_blocks(be, st->n_copies, st->copies));
    }
    if (st->n_state_copies > 0) {
        return ops->copy_states(be, 0, st->n_state_copies, st->state_copies);
    }
    return OK;
}

static enum status run_draft(const struct pass *pass, struct rank *r, int32_t model,
                             int32_t n_vocab_used)
{
    struct pass p = *pass;
    model += pass->model;
    p.model = p.kv_set = 1 + model;
    return step_run_pass(&p, &r->draft[model], (struct model_outputs){.logits = p.n_draws > 0},
                         n_vocab_used);
}

/* Asks for all logits and no best logits. The best logits are described by the model's struct,
 * which a replayed pass would not fill in again, so the draws would find those of an earlier
 * pass. */
static enum status run_without_draws(const struct step *st, struct rank *r)
{
    const struct backend_ops *ops = r->be->ops;
    struct model_outputs want = st->want;
    want.all_logits = true;
    r->target.bests = (struct logit_bests){.n_bands = 0};
    TRY(run_forward(&st->pass, &r->target, want, &r->shape));
    return ops->pass_pause ? ops->pass_pause(r->be) : OK;
}

/* The draft passes, then the target's pass. If the draws wait for masks, the host computes them
 * while the pass runs. */
enum status step_execute(const struct step *st, struct rank *r, int32_t n_vocab_used)
{
    struct backend *be = r->be;
    TRY(be->ops->step_begin(be, st->slot));
    if (!st->begun) {
        TRY(begin_lanes(st, be));
    }
    for (int32_t i = 0; i < st->n_draft_passes; i++) {
        for (int32_t m = 0; m < st->n_draft_models; m++) {
            TRY(run_draft(&st->draft[i].pass, r, m, n_vocab_used));
        }
    }
    if (st->pass.draws_wait) {
        return run_without_draws(st, r);
    }
    TRY(step_run_pass(&st->pass, &r->target, st->want, n_vocab_used));
    return be->ops->step_end(be);
}

/* The second half of a step whose draws waited. The masks have arrived by now. */
enum status step_execute_draws(struct rank *r, int32_t n_vocab_used)
{
    struct backend *be = r->be;
    if (be->ops->pass_draws) {
        TRY(be->ops->pass_draws(be, &r->shape));
    }
    TRY(run_draws(&r->target, &r->shape, n_vocab_used));
    TRY(be->ops->pass_end(be));
    return be->ops->step_end(be);
}

/* ---- ahead of the step -------------------------------------------------------------------- */

/* Draft passes that run before the step is complete, because the tree's shape depends on their
 * results. */
struct ahead {
    const struct step *st;
    const struct draft_pass *passes;
    int32_t n_passes, n_vocab_used;
    struct pass_results *results;
};

static enum status run_ahead(struct rank *r, void *arg)
{
    const struct ahead *job = arg;
    const struct step *st = job->st;
    int32_t n = job->n_passes * st->n_draft_models;
    struct pass_results own[MAX_STEP_PASSES];
    TRY(r->be->ops->step_begin(r->be, st->slot));
    if (!st->begun) {
        TRY(begin_lanes(st, r->be));
    }
    for (int32_t i = 0; i < n; i++) {
        TRY(run_draft(&job->passes[i / st->n_draft_models].pass, r, i % st->n_draft_models,
                      job->n_vocab_used));
    }
    TRY(r->be->ops->step_end(r->be));
    bool returned = r->local == 0 && job->results;
    return r->be->ops->step_wait(r->be, st->slot, returned ? job->results : own, n);
}

enum status step_run_ahead(struct step *st, const struct draft_pass *passes, int32_t n_passes,
                           struct ranks *ranks, int32_t n_vocab_used, struct pass_results *results)
{
    struct ahead job = {st, passes, n_passes, n_vocab_used, results};
    TRY(ranks_run(ranks, run_ahead, &job));
    st->begun = true;
    return OK;
}
