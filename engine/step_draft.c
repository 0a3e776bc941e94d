/* The draft model's passes of a step. Its KV lies under the same block ids as the target's; one
 * rule keeps it right: pass 0 feeds known[draft_computed:], whatever the reason it lags (a bonus
 * token, a pause, a cache hit, a preemption). */
#include "engine/step.h"

#include "engine/schedule/holdings.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"

#include <stdlib.h>

void step_init_draft(struct step *st, const struct scheduler_limits *limits, const struct spec *sp)
{
    size_t lanes = (size_t)limits->max_lanes;
    int32_t max_drafts = sp->n_models > 0 ? sp->k : 0;
    st->n_draft_models = sp->n_models;
    for (int32_t i = 0; i < max_drafts; i++) {
        size_t rows = i == 0 ? (size_t)limits->max_rows : lanes;
        struct draft_pass *d = &st->draft[i];
        d->rows = xcalloc(rows, sizeof *d->rows);
        d->seqs = xcalloc(lanes, sizeof *d->seqs);
        d->out_rows = xcalloc(lanes, sizeof *d->out_rows);
        d->draws = xcalloc(lanes, sizeof *d->draws);
        d->owners = xcalloc(lanes, sizeof *d->owners);
    }
    st->feeds = max_drafts > 0 ? xcalloc(lanes, sizeof *st->feeds) : NULL;
}

void step_deinit_draft(struct step *st)
{
    for (int32_t i = 0; i < MAX_DRAFTS; i++) {
        free(st->draft[i].rows);
        free(st->draft[i].seqs);
        free(st->draft[i].out_rows);
        free(st->draft[i].draws);
        free(st->draft[i].owners);
    }
    free(st->feeds);
}

static void begin_pass(struct draft_pass *d)
{
    d->pass = (struct pass){.rows = d->rows, .seqs = d->seqs,
                            .out_rows = d->out_rows, .draws = d->draws};
}

/* The ids beside a spine's: a comb's are drafts at once, among others the host picks. */
static void add_beside(struct pass_draw *draw, const struct spec_tree *t, int32_t depth)
{
    if (t->planned) {
        draw->more = t->beside[depth];
        draw->more_slot = t->first + t->beside_row[depth];
    } else if (t->seq->law > 0) {
        draw->more = t->children[depth] - 1;
    } else {
        draw->logprobs = true;
        draw->top_n = t->top_n;
    }
}

/* Rows first .. first + n of the sequence; draft number `depth` is drawn from the last if `draws`. */
static void add_rows(struct draft_pass *d, struct sequence *seq, int32_t first, int32_t n,
                     bool draws, int32_t depth)
{
    struct pass *p = &d->pass;
    d->seqs[p->n_seqs++] = (struct pass_seq){seq->lane, p->n_rows, n, first, false};
    for (int32_t pos = first; pos < first + n; pos++) {
        int32_t token = pos < seq->n_known ? sequence_token(seq, pos) : -1;
        d->rows[p->n_rows++] = (struct pass_row){seq->lane, token, pos, pos};
    }
    if (draws) {
        d->owners[p->n_draws] = seq;
        d->out_rows[p->n_out] = p->n_rows - 1;
        d->draws[p->n_draws++] = (struct pass_draw){
            .out_row = p->n_out++, .lane = seq->lane, .pos = first + n - 1,
            .n_prompt = seq->n_prompt, .kind = DRAW_DRAFT, .keep = true,
            .noise = seq->request->params.temperature > 0.0f, .tree_row = -1,
            .law = seq->law > 0 ? seq->law + depth : 0};
        if (seq->tree) {
            add_beside(&d->draws[p->n_draws - 1], seq->tree, depth);
        }
    }
}

/* Whether the draft model keeps up with the sequence now. Where speculation is off or paused it
 * costs nothing; when it comes back, pass 0 feeds what was missed. */
static bool follows(const struct plan_entry *e)
{
    const struct sequence *seq = e->seq;
    bool decodes = e->first >= seq->n_prompt;
    return seq->request->pool == POOL_NONE && seq->request->params.num_speculative_tokens != 0 &&
           (seq->spec_pause == 0 || !decodes || e->n_drafts > 0);
}

/* An entry's known rows, as far as the draft model's context, the budget and shared blocks allow. */
static void feed(struct step *st, struct scheduler *s, const struct plan_entry *e, int32_t max_len)
{
    struct sequence *seq = e->seq;
    int32_t end = e->first + e->n_rows - e->n_drafts;
    end = end < max_len ? end : max_len;
    int32_t room = s->limits.max_rows - st->draft[0].pass.n_rows;
    int32_t n = holdings_draft_rows(&s->holdings, seq, end);
    n = n < room ? n : room;
    bool draws = e->n_drafts > 0 && seq->drafts_on_device;
    ASSERT(!draws || (n > 0 && seq->draft_computed + n == end)); // the proposer saw to it
    if (n > 0) {
        add_rows(&st->draft[0], seq, seq->draft_computed, n, draws, 0);
        st->feeds[st->n_feeds++] = (struct draft_feed){seq, seq->draft_computed, n};
        seq->draft_computed += n;
    }
}

/* Drafts that the device makes one from the other: all of a chain, the spine of a tree. */
static int32_t chain_of(const struct plan_entry *e)
{
    int32_t depth = e->seq->draft_depth;
    return e->seq->tree && depth < e->n_drafts ? depth : e->n_drafts;
}

void step_build_draft(struct step *st, struct scheduler *s, const struct spec *sp)
{
    int32_t deepest = 0;
    st->n_draft_passes = st->n_feeds = st->grove.n_trees = 0;
    if (!sp->drafts_now) {
        return;
    }
    if (sp->method == SPEC_TREE) {
        step_plant_trees(st, sp);
    }
    begin_pass(&st->draft[0]);
    for (int32_t pass = 0; pass < 2; pass++) { // those that speculate first: they must fit
        for (int32_t i = 0; i < st->plan.n_entries; i++) {
            const struct plan_entry *e = &st->plan.entries[i];
            bool speculates = e->n_drafts > 0 && e->seq->drafts_on_device;
            if (speculates == (pass == 0) && follows(e)) {
                feed(st, s, e, sp->draft_max_len);
                deepest = speculates && chain_of(e) > deepest ? chain_of(e) : deepest;
            }
        }
    }
    if (st->draft[0].pass.n_rows == 0) {
        return;
    }
    st->n_draft_passes = deepest > 1 ? deepest : 1;
    for (int32_t j = 1; j < st->n_draft_passes; j++) {
        begin_pass(&st->draft[j]);
        for (int32_t i = 0; i < st->plan.n_entries; i++) {
            const struct plan_entry *e = &st->plan.entries[i];
            if (chain_of(e) > j && e->seq->drafts_on_device) {
                add_rows(&st->draft[j], e->seq, e->first + e->n_rows - e->n_drafts + j - 1, 1,
                         true, j);
                e->seq->draft_computed += !e->seq->tree; // a tree's path decides
            }
        }
    }
}

enum status step_run_draft(const struct pass *pass, struct rank *r, int32_t model,
                           int32_t n_vocab_used)
{
    struct pass p = *pass;
    p.model = p.kv_set = 1 + model;
    return step_run_pass(&p, &r->draft[model], (struct model_outputs){.logits = p.n_draws > 0},
                         n_vocab_used);
}

void step_commit_draft_ids(struct step *st)
{
    for (int32_t j = 0; j < st->n_draft_passes; j++) {
        const struct draft_pass *d = &st->draft[j];
        for (int32_t i = 0; i < d->pass.n_draws; i++) {
            struct spec_tree *t = d->owners[i]->tree;
            d->owners[i]->drafts[j] = st->results[j].draws[i].token;
            if (t) {
                tree_name_comb(t, j, &st->results[j].draws[i]);
            }
        }
    }
}

void step_commit_draft_kv(struct step *st, struct scheduler *s)
{
    for (int32_t i = 0; i < st->n_feeds; i++) {
        struct sequence *seq = st->feeds[i].seq;
        if (seq->state != SEQ_RUNNING) {
            continue;
        }
        // Rejected drafts were fed too: their rows are overwritten by the next feed.
        int32_t right = seq->draft_computed < seq->n_known - 1 ? seq->draft_computed
                                                               : seq->n_known - 1;
        if (seq->n_inflight <= 1) { // no later step has fed more
            seq->draft_computed = right;
        }
        int32_t sure = st->feeds[i].first + st->feeds[i].n;
        holdings_draft_fed(&s->holdings, seq, right > sure ? right : sure < seq->n_known ? sure : right);
    }
}
