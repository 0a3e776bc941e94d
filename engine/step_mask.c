// SPDX-License-Identifier: Apache-2.0
/* Grammar masks of draws. A mask belongs to a draw, not to a lane, because it is a function of the
 * tokens before the draw's row, including drafts. */
#include "engine/step_tree.h"

#include <math.h>
#include <string.h>

/* ---- the target's draws ------------------------------------------------------------------- */

/* The drafts that precede the draw of a row. `row` counts from 0 among the rows that the sequence
 * verifies. In a chain these are the first drafts, in a tree the path to the row's node. */
static int32_t path_to(const struct sequence *seq, int32_t row, int32_t drafts[MAX_DRAFTS])
{
    if (seq->tree) {
        return tree_path_tokens(seq->tree, seq->tree->by_row[row], drafts);
    }
    for (int32_t i = 0; i < row; i++) {
        drafts[i] = seq->proposal.drafts[i];
    }
    return row;
}

/* Calls `take` for each draw of a token. row: counted as above. */
static void for_each_draw(struct planned_step *ps,
                          void (*take)(struct planned_step *ps, int32_t draw, int32_t row))
{
    const struct draw_owner *before = NULL;
    int32_t row = 0;
    for (int32_t i = 0; i < ps->step.pass.n_draws; i++) {
        const struct draw_owner *o = &ps->owners[i];
        if (o->score) {
            continue;
        }
        bool continues = before && before->seq == o->seq && before->verify && o->verify;
        row = continues ? row + 1 : 0;
        before = o;
        take(ps, i, row);
    }
}

static void reserve(struct planned_step *ps, int32_t draw, int32_t row)
{
    struct sequence *seq = ps->owners[draw].seq;
    struct pass *p = &ps->step.pass;
    if (!constraint_exists(seq->request)) {
        return;
    }
    bool in_flight = seq->n_flight > 1; // a token before this draw is still in flight
    int32_t n_unknown = seq->n_flight - 1 + row;
    if (!constraint_is_free(&ps->constraints[seq->index], seq, n_unknown)) {
        ps->step.draws[draw].mask = ++p->n_masks;
        p->draws_wait |= in_flight;
    }
}

bool step_reserve_masks(struct planned_step *ps)
{
    ps->step.pass.n_masks = 0;
    for_each_draw(ps, reserve);
    return ps->step.pass.draws_wait;
}

/* The mask of a row after a forbidden draft stays all zero. */
static void fill(struct planned_step *ps, int32_t draw, int32_t row)
{
    struct step *st = &ps->step;
    const struct pass_draw *d = &st->draws[draw];
    struct sequence *seq = ps->owners[draw].seq;
    if (d->mask == 0) {
        return;
    }
    uint32_t *mask = st->masks + (int64_t)(d->mask - 1) * mask_words(st->vocab);
    // The sequence has ended: its request must not be accessed, and nobody reads this draw.
    if (seq->state == SEQ_RETIRING) {
        memset(mask, 0, (size_t)mask_words(st->vocab) * sizeof *mask);
        return;
    }
    int32_t drafts[MAX_DRAFTS], n = path_to(seq, row, drafts);
    struct constraint *c = &ps->constraints[seq->index];
    enum status status = constraint_mask(c, seq, drafts, n, mask);
    if (status != OK && row == 0) {
        c->failure = status;
        ps->closed[ps->n_closed++] = seq;
    }
}

void step_fill_masks(struct planned_step *ps)
{
    ps->n_closed = 0;
    for_each_draw(ps, fill);
}

/* ---- drafts' draws ------------------------------------------------------------------------ */

void step_mask_draft(struct planned_step *ps, struct pass *p, struct pass_draw *draw,
                     const struct sequence *seq, const int32_t *drafts, int32_t n_drafts)
{
    struct step *st = &ps->step;
    if (!constraint_exists(seq->request) || p->n_masks == ps->max_masks) {
        return;
    }
    uint32_t *mask = st->masks + (int64_t)p->n_masks * mask_words(st->vocab);
    struct constraint *c = &ps->constraints[seq->index];
    // if this fails, the draft is an ordinary guess
    if (constraint_mask(c, seq, drafts, n_drafts, mask) == OK) {
        p->masks = st->masks;
        draw->mask = ++p->n_masks;
    }
}

bool step_drafts_masked(const struct planned_step *ps)
{
    for (int32_t i = 0; i < ps->plan.n_entries; i++) {
        const struct plan_entry *e = &ps->plan.entries[i];
        if (e->n_drafts > 0 && e->seq->proposal.on_device && constraint_exists(e->seq->request)) {
            return true;
        }
    }
    return false;
}

static bool allows(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> (id % 32) & 1;
}

void step_filter_drafts(const struct planned_step *ps, const struct pass *p, int32_t draw,
                        struct draw_result *r)
{
    int32_t row = p->draws[draw].mask;
    if (row == 0) {
        return;
    }
    const uint32_t *mask = p->masks + (int64_t)(row - 1) * mask_words(ps->step.vocab);
    bool known = false;
    float sum = 0.0f;
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_top; i++) {
        if (allows(mask, r->top_ids[i])) {
            r->top_ids[n] = r->top_ids[i];
            r->top_logprobs[n] = r->top_logprobs[i];
            sum += expf(r->top_logprobs[n]);
            known |= r->top_ids[n++] == r->token;
        }
    }
    sum += known ? 0.0f : expf(r->logprob);
    if (n < r->n_top && sum > 0.0f) { // the remaining ids are renormalised
        r->logprob -= logf(sum);
        for (int32_t i = 0; i < n; i++) {
            r->top_logprobs[i] -= logf(sum);
        }
    }
    r->n_top = n;
}
