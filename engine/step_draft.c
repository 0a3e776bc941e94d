// SPDX-License-Identifier: Apache-2.0
/* The draft models' passes of a step. Their KV uses the same block ids as the target's. One rule
 * keeps it valid: pass 0 feeds known[draft_computed:], whatever the reason for the lag (a bonus
 * token, a pause, a cache hit, a preemption). */
#include "engine/step_tree.h"

#include "engine/base/assert.h"
#include "engine/base/minmax.h"
#include "engine/cluster/step_run.h"

static void begin_pass(struct draft_pass *d, int32_t model)
{
    d->pass = (struct pass){.model = model,
                            .rows = d->rows,
                            .seqs = d->seqs,
                            .out_rows = d->out_rows,
                            .draws = d->draws};
}

/* Requests the ids beside a spine. In a comb they become drafts immediately; in other trees the
 * host picks among them. */
static void add_beside(struct pass_draw *draw, const struct spec_tree *t, int32_t depth)
{
    if (t->planned) {
        draw->more = t->beside[depth];
        draw->more_slot = t->first + t->beside_row[depth];
    } else if (t->seq->proposal.law > 0) {
        draw->more = t->children[depth] - 1;
    } else {
        draw->logprobs = true;
        draw->top_n = t->top_n;
    }
}

/* Adds rows first .. first + n of the sequence to the pass of draft number `depth`. If `draws`, the
 * last row draws that draft. */
static void add_rows(struct planned_step *ps, int32_t depth, struct sequence *seq, int32_t first,
                     int32_t n, bool draws)
{
    struct draft_pass *d = &ps->step.draft[depth];
    struct pass *p = &d->pass;
    d->seqs[p->n_seqs++] = step_seq(seq, p->n_rows, n, first, false);
    for (int32_t pos = first; pos < first + n; pos++) {
        int32_t token = pos < seq->n_known ? sequence_token(seq, pos) : -1;
        d->rows[p->n_rows++] = (struct pass_row){seq->lane, token, pos, pos};
    }
    if (draws) {
        ps->draft_owners[depth][p->n_draws] = seq;
        d->out_rows[p->n_out] = p->n_rows - 1;
        d->draws[p->n_draws++] =
            (struct pass_draw){.out_row = p->n_out++,
                               .lane = seq->lane,
                               .pos = first + n - 1,
                               .n_prompt = seq->n_prompt,
                               .kind = DRAW_DRAFT,
                               .keep = true,
                               .noise = seq->request->params.temperature > 0.0f,
                               .tree_row = -1,
                               .law = seq->proposal.law > 0 ? seq->proposal.law + depth : 0};
        if (seq->tree) {
            add_beside(&d->draws[p->n_draws - 1], seq->tree, depth);
        }
    }
}

/* True if the draft models can catch up with the sequence in this step. They are not fed while
 * speculation is off or paused; when it resumes, pass 0 feeds the rows that they lack. */
static bool follows(const struct plan_entry *e)
{
    const struct sequence *seq = e->seq;
    bool decodes = e->first >= seq->n_prompt;
    return seq->request->pool == POOL_NONE && seq->request->params.num_speculative_tokens != 0 &&
           (seq->trust.pause == 0 || !decodes || e->n_drafts > 0);
}

/* The number of drafts that the device draws one after the other: all drafts of a chain, or the
 * spine of a tree. */
static int32_t chain_of(const struct plan_entry *e)
{
    int32_t depth = e->seq->proposal.depth;
    if (e->seq->tree && depth < e->n_drafts) {
        return depth;
    }
    return e->n_drafts;
}

/* Adds an entry's known rows, as far as the draft models' context, the budget and shared blocks
 * allow. */
static void feed(struct planned_step *ps, struct holdings *h, const struct plan_entry *e,
                 int32_t max_len, int32_t n_feeding)
{
    struct sequence *seq = e->seq;
    int32_t end;
    if (ps->reads_target) {
        end = e->first + 1;
    } else {
        end = e->first + e->n_rows - e->n_drafts;
    }
    end = lesser(end, max_len);
    const struct pass *p = &ps->step.draft[0].pass; // later passes may also contain rows of drafts
    int32_t room = h->limits->max_rows - p->n_rows - (n_feeding - 1) * p->n_draws;
    int32_t n = holdings_draft_rows(h, seq, end);
    n = lesser(n, room);
    bool draws = e->n_drafts > 0 && seq->proposal.on_device;
    ASSERT(!draws || (n > 0 && seq->draft_computed + n == end)); // the proposer guarantees this
    if (n > 0) {
        add_rows(ps, 0, seq, seq->draft_computed, n, draws);
        ps->feeds[ps->n_feeds++] =
            (struct draft_feed){seq, seq->draft_computed, n, draws ? chain_of(e) : 0};
        seq->draft_computed += n;
    }
}

/* Feeding pass j: module j reads the rows that the previous module read, and the drafts of the
 * modules before it. */
static void feed_again(struct planned_step *ps, int32_t j)
{
    for (int32_t i = 0; i < ps->n_feeds; i++) {
        const struct draft_feed *f = &ps->feeds[i];
        const bool draws = f->chain > j;
        add_rows(ps, j, f->seq, f->first, draws ? f->n + j : f->n, draws);
    }
}

/* Pass j after the feeding passes: it feeds the row of the last draft. */
static void draft_on(struct planned_step *ps, int32_t j)
{
    for (int32_t i = 0; i < ps->plan.n_entries; i++) {
        const struct plan_entry *e = &ps->plan.entries[i];
        if (chain_of(e) > j && e->seq->proposal.on_device) {
            add_rows(ps, j, e->seq, e->first + e->n_rows - e->n_drafts + j - 1, 1, true);
            // for a tree it depends on the accepted path
            e->seq->draft_computed += !e->seq->tree && !ps->reads_target;
        }
    }
}

void step_build_draft(struct planned_step *ps, struct holdings *h, const struct spec *sp)
{
    const int32_t n_feeding = spec_feeding_passes(&sp->options);
    int32_t deepest = n_feeding;
    ps->step.n_draft_passes = ps->n_feeds = ps->grove.n_trees = 0;
    ps->reads_target = sp->options.head != HEAD_NONE;
    if (spec_passes(sp) == SPEC_NO_PASSES) {
        return;
    }
    step_plant_trees(ps, sp);
    begin_pass(&ps->step.draft[0], 0);
    // Speculating sequences come first, because their rows must fit.
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < ps->plan.n_entries; i++) {
            const struct plan_entry *e = &ps->plan.entries[i];
            bool speculates = e->n_drafts > 0 && e->seq->proposal.on_device;
            if (speculates == (pass == 0) && follows(e)) {
                feed(ps, h, e, sp->options.draft_max_len, n_feeding);
                if (speculates && chain_of(e) > deepest) {
                    deepest = chain_of(e);
                }
            }
        }
    }
    if (ps->step.draft[0].pass.n_rows == 0) {
        return;
    }
    ps->step.n_draft_passes = deepest;
    for (int32_t j = 1; j < deepest; j++) {
        begin_pass(&ps->step.draft[j], lesser(j, n_feeding - 1));
        if (j < n_feeding) {
            feed_again(ps, j);
        } else {
            draft_on(ps, j);
        }
    }
}

/* The draws of pass j, in `results`, are draft number j of their sequences. */
static void name_drafts(struct planned_step *ps, int32_t j, const struct pass_results *results)
{
    const struct draft_pass *d = &ps->step.draft[j];
    for (int32_t i = 0; i < d->pass.n_draws; i++) {
        struct sequence *seq = ps->draft_owners[j][i];
        seq->proposal.drafts[j] = results->draws[i].token;
        if (seq->tree) {
            tree_name_comb(seq->tree, j, &results->draws[i]);
        }
    }
}

void step_commit_draft_ids(struct planned_step *ps)
{
    for (int32_t j = 0; j < ps->step.n_draft_passes; j++) {
        name_drafts(ps, j, &ps->results[j]);
    }
}

void step_mask_pass(struct planned_step *ps, int32_t j)
{
    struct draft_pass *d = &ps->step.draft[j];
    for (int32_t i = 0; i < d->pass.n_draws; i++) {
        const struct sequence *seq = ps->draft_owners[j][i];
        step_mask_draft(ps, &d->pass, &d->draws[i], seq, seq->proposal.drafts, j);
    }
}

enum status step_run_drafts(struct planned_step *ps, const struct draft_pass *passes,
                            int32_t n_passes, const struct step_site *site)
{
    bool begun = ps->step.begun;
    for (int32_t i = 0; i < n_passes; i++) {
        TRY(site->send_level(&ps->step, &passes[i].pass, site->send_arg));
        ps->step.begun = true; // only the first pass is sent with the lane updates
    }
    ps->step.begun = begun;
    return step_run_ahead(&ps->step, passes, n_passes, site->ranks, site->n_vocab_used,
                          ps->results);
}

enum status step_draft_masked(struct planned_step *ps, const struct step_site *site)
{
    int32_t n_passes = ps->step.n_draft_passes;
    if (n_passes == 0 || !step_drafts_masked(ps)) {
        return OK;
    }
    ps->step.n_draft_passes = 0; // they have already run
    for (int32_t j = 0; j < n_passes; j++) {
        step_mask_pass(ps, j);
        TRY(step_run_drafts(ps, &ps->step.draft[j], 1, site));
        name_drafts(ps, j, &ps->results[0]);
    }
    return OK;
}

void step_commit_draft_kv(struct planned_step *ps, struct holdings *h)
{
    for (int32_t i = 0; i < ps->n_feeds; i++) {
        struct sequence *seq = ps->feeds[i].seq;
        if (seq->state != SEQ_RUNNING) {
            continue;
        }
        // Rejected drafts were fed as well; the next feed overwrites their rows.
        int32_t right = lesser(seq->draft_computed, seq->n_known - 1);
        if (seq->n_inflight <= 1) { // no later step has fed more rows
            seq->draft_computed = right;
        }
        int32_t sure = ps->feeds[i].first + ps->feeds[i].n;
        int32_t known = sure < seq->n_known ? sure : right;
        holdings_draft_fed(h, seq, right > sure ? right : known);
    }
}
