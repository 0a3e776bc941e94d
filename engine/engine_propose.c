// SPDX-License-Identifier: Apache-2.0
/* The engine's side of speculation: which sequences there are to propose for, and what the draft
 * models' KV lacks of them. */
#include "engine/engine_state.h"

static bool decodes(const struct sequence *seq)
{
    return seq->state == SEQ_RUNNING && seq->n_computed >= seq->n_prompt - 1;
}

/* With recurrent state the nodes lie in the root's block, and none of them at its end (backend.h).
 */
static int32_t tree_depth(const struct scheduler_limits *l, const struct sequence *seq)
{
    if (l->state_block == 0) {
        return MAX_DRAFTS;
    }
    int32_t left = l->state_block - 2 - (seq->n_known - 1) % l->state_block;
    return left > 0 ? left : 0;
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

/* Blocks that nobody else fills are the sequence's to fill from here on. */
static int32_t claim_draft_rows(struct holdings *h, struct sequence *seq)
{
    int32_t can = holdings_draft_rows(h, seq, seq->n_known);
    int32_t lag = seq->n_known - seq->draft_computed;
    return can < lag ? -1 : lag;
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
        const struct sequence *seq = v.seqs[i].seq;
        struct proposal *p = v.seqs[i].proposal;
        if (seq->request->grammar && p->n_drafts > 0 && !p->on_device) {
            constraint_cut(&e->constraints[seq->index], seq, p);
        }
    }
}
