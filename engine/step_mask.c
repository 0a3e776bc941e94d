// SPDX-License-Identifier: Apache-2.0
#include "engine/step_build.h"

/* Rows of one sequence whose drafts are judged follow each other: row i's draw stands behind the
 * first i drafts. A row behind a draft that is not allowed keeps a mask of zeros. */
static void build_mask(struct planned_step *ps, struct constraint *c, struct sequence *seq,
                       int32_t draw, int32_t n_drafts)
{
    struct step *st = &ps->step;
    int64_t words = mask_words(st->vocab);
    uint32_t *mask = st->masks + st->pass.n_masks * words;
    enum status status = constraint_mask(c, seq, seq->proposal.drafts, n_drafts, mask);
    st->draws[draw].mask = ++st->pass.n_masks;
    if (status != OK && n_drafts == 0) {
        c->failure = status;
        ps->closed[ps->n_closed++] = seq;
    }
}

void step_build_masks(struct planned_step *ps, struct constraint *constraints)
{
    const struct draw_owner *before = NULL;
    int32_t n_drafts = 0;
    ps->n_closed = 0;
    for (int32_t i = 0; i < ps->step.pass.n_draws; i++) {
        const struct draw_owner *o = &ps->owners[i];
        if (o->score || !o->seq->request->grammar) {
            continue;
        }
        bool behind = before && before->seq == o->seq && before->verify && o->verify;
        n_drafts = behind ? n_drafts + 1 : 0;
        before = o;
        if (!constraint_is_ahead(&constraints[o->seq->index], o->seq)) {
            build_mask(ps, &constraints[o->seq->index], o->seq, i, n_drafts);
        }
    }
}
