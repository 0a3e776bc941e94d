// SPDX-License-Identifier: Apache-2.0
/* The engine's part in speculation: which sequences to propose drafts for, and which tokens the
 * draft models' KV lacks. */
#include "engine/base/minmax.h"
#include "engine/engine_state.h"

#include <string.h>

static bool decodes(const struct sequence *seq)
{
    return seq->state == SEQ_RUNNING && seq->n_computed >= seq->n_prompt - 1;
}

/* With recurrent state, all nodes of a tree must lie in the root's block, and none except the root
 * at the block's last position (backend.h). */
static int32_t tree_depth(const struct scheduler_limits *l, const struct sequence *seq)
{
    if (l->state_block == 0) {
        return MAX_DRAFTS;
    }
    int32_t left = l->state_block - 2 - (seq->n_known - 1) % l->state_block;
    return greater(left, 0);
}

static struct spec_view view_of(struct engine *e)
{
    struct scheduler *s = &e->scheduler;
    struct spec_view v = {.seqs = e->candidates,
                          .n_running = s->n_running,
                          .max_rows = s->limits.max_rows,
                          .max_len = s->limits.max_len};
    for (struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        if (!decodes(seq)) {
            seq->proposal.n_beside = 0;
            continue;
        }
        v.seqs[v.n++] = (struct spec_candidate){.seq = seq,
                                                .proposal = &seq->proposal,
                                                .trust = &seq->trust,
                                                .tree_depth = tree_depth(&s->limits, seq),
                                                .ready = seq->n_inflight == 0 &&
                                                         seq->n_computed == seq->n_known - 1};
    }
    return v;
}

/* Claims the blocks that no other sequence is filling, so that this sequence may fill them. */
static int32_t claim_draft_rows(struct holdings *h, struct sequence *seq)
{
    int32_t can = holdings_draft_rows(h, seq, seq->n_known);
    int32_t lag = seq->n_known - seq->draft_computed;
    return can < lag ? -1 : lag;
}

/* Drafts that the grammar forbids are not proposed, and text that the grammar forces comes before
 * guesses. While a token of forced text is in flight, the rest of that text waits for it. */
static void propose_constrained(struct engine *e, struct spec_candidate *c)
{
    struct constraint *of = &e->constraints[c->seq->index];
    struct proposal *p = c->proposal;
    int32_t forced[MAX_DRAFTS], most = lesser(c->most, MAX_DRAFTS);
    int32_t n = constraint_forced(of, c->seq, forced, most);
    if (!c->ready) {
        p->waits_for_token |= n > 2;
        return;
    }
    if (p->n_drafts > 0 && !p->on_device) {
        constraint_cut(of, c->seq, p);
    }
    p->forced = n > 0 && (p->on_device || n >= p->n_drafts);
    if (p->forced) {
        memcpy(p->drafts, forced, (size_t)n * sizeof *forced);
        p->n_drafts = n;
        p->on_device = false;
        p->law = 0;
    }
}

void engine_propose(struct engine *e)
{
    struct scheduler *s = &e->scheduler;
    if (!e->spec.proposer) {
        return;
    }
    struct spec_view v = view_of(e);
    spec_consider(&e->spec, &v);
    for (int32_t i = 0; i < v.n && e->spec.options.n_models > 0; i++) {
        struct spec_candidate *c = &v.seqs[i];
        if (c->ready && c->depth > 0) {
            c->lag = claim_draft_rows(&s->holdings, &s->sequences[c->seq->index]);
        }
    }
    spec_propose(&e->spec, &v);
    for (int32_t i = 0; i < v.n; i++) {
        if (constraint_exists(v.seqs[i].seq->request)) {
            propose_constrained(e, &v.seqs[i]);
        }
    }
}
