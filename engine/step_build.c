// SPDX-License-Identifier: Apache-2.0
/* Turns a plan into a step: the changed lanes, the rows of the pass in an order in which neighbours
 * share keys, the draws, and the owner of each result. Only node 0 does this, because the step
 * itself has no pointers to sequences. */
#include "engine/step_build.h"

#include "engine/step_tree.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

/* Allocates for the largest step, so that building a step never allocates. */
void planned_step_init(struct planned_step *ps, int32_t slot, const struct step_sizes *sizes)
{
    const struct scheduler_limits *l = sizes->limits;
    size_t lanes = (size_t)l->max_lanes, out = (size_t)l->max_out;
    size_t words = (size_t)l->max_rows * TREE_MASK_WORDS;
    *ps = (struct planned_step){0};
    plan_init(&ps->plan, l);
    step_init(&ps->step, slot, sizes);
    ps->owners = xcalloc((size_t)l->max_draws, sizeof *ps->owners);
    ps->pool_owners = xcalloc(max_pools(l), sizeof *ps->pool_owners);
    ps->sorted = xcalloc(lanes, sizeof *ps->sorted);
    ps->room = xcalloc(lanes, sizeof *ps->room);
    ps->closed = xcalloc(lanes, sizeof *ps->closed);
    ps->max_masks = sizes->max_masks;
    for (int32_t i = 0; i < sizes->n_draft_passes; i++) {
        ps->draft_owners[i] = xcalloc(lanes, sizeof *ps->draft_owners[i]);
    }
    if (sizes->n_draft_passes > 0) {
        ps->feeds = xcalloc(lanes, sizeof *ps->feeds);
    } else {
        ps->feeds = NULL;
    }
    if (sizes->trees) {
        ps->grove.trees = xcalloc(lanes, sizeof *ps->grove.trees);
        ps->grove.picks = xcalloc(lanes * MAX_TREE_CANDIDATES, sizeof *ps->grove.picks);
        ps->drawn = xcalloc(out, sizeof *ps->drawn);
        ps->level_mask = xcalloc(words, sizeof *ps->level_mask);
        ps->mask = xcalloc(words, sizeof *ps->mask);
    }
}

void planned_step_deinit(struct planned_step *ps)
{
    plan_deinit(&ps->plan);
    step_deinit(&ps->step);
    free(ps->owners);
    free(ps->pool_owners);
    free(ps->sorted);
    free(ps->room);
    free(ps->closed);
    for (int32_t i = 0; i < MAX_DRAFTS; i++) {
        free(ps->draft_owners[i]);
    }
    free(ps->feeds);
    free(ps->grove.trees);
    free(ps->grove.picks);
    free(ps->drawn);
    free(ps->level_mask);
    free(ps->mask);
    *ps = (struct planned_step){0};
}

/* ---- lanes -------------------------------------------------------------------------------- */

/* Fresh lanes get the whole sequence, other lanes only their new blocks. Each sample of a request
 * has its own seed. */
void step_build_lanes(struct planned_step *ps, const struct holdings *h)
{
    struct step *st = &ps->step;
    st->begun = false;
    st->n_lanes = ps->plan.n_grants;
    for (int32_t i = 0; i < ps->plan.n_grants; i++) {
        const struct plan_grant *g = &ps->plan.grants[i];
        const struct sequence *seq = g->seq;
        struct lane_update *u = &st->lanes[i];
        *u = (struct lane_update){.lane = seq->lane,
                                  .first_block = g->first,
                                  .n_blocks = g->n,
                                  .blocks = holdings_blocks(h, seq) + g->first,
                                  .fresh = g->fresh};
        if (g->fresh) {
            u->prompt = seq->request->prompt;
            u->n_prompt = seq->n_prompt;
            u->generated = seq->output ? seq->output->tokens : NULL;
            u->n_generated = sequence_generated(seq);
            u->params = seq->request->params;
            u->params.seed += (uint64_t)seq->sample;
            if (u->params.allowed_each) {
                u->params.allowed += seq->sample;
                u->params.n_allowed = 1;
            }
        }
    }
    st->n_page_updates = ps->plan.n_pages;
    for (int32_t i = 0; i < ps->plan.n_pages; i++) {
        const struct plan_pages *g = &ps->plan.pages[i];
        st->page_updates[i] = (struct page_update){g->seq->lane, g->first, g->n,
                                                   holdings_pages(h, g->seq) + g->first};
    }
    st->n_page_copies = ps->plan.n_page_copies;
    memcpy(st->page_copies, ps->plan.page_copies,
           (size_t)st->n_page_copies * sizeof *st->page_copies);
    st->n_copies = ps->plan.n_copies;
    memcpy(st->copies, ps->plan.copies, (size_t)st->n_copies * sizeof *st->copies);
    st->n_state_copies = ps->plan.n_state_copies;
    memcpy(st->state_copies, ps->plan.state_copies,
           (size_t)st->n_state_copies * sizeof *st->state_copies);
}

/* ---- groups ------------------------------------------------------------------------------- */

static int compare_blocks(const struct plan_entry *a, const struct plan_entry *b,
                          const struct holdings *h)
{
    int32_t x = holdings_blocks(h, a->seq)[0], y = holdings_blocks(h, b->seq)[0];
    return x < y ? -1 : x > y;
}

/* Stable merge sort by first block, so that equal sequences keep their order. */
static void sort_entries(struct plan_entry *v, struct plan_entry *room, int32_t n,
                         const struct holdings *h)
{
    for (int32_t width = 1; width < n; width *= 2) {
        for (int32_t i = 0; i < n; i += 2 * width) {
            int32_t mid = lesser(i + width, n);
            int32_t end = lesser(i + 2 * width, n);
            int32_t a = i, b = mid, k = i;
            while (a < mid && b < end) {
                room[k++] = compare_blocks(&v[b], &v[a], h) < 0 ? v[b++] : v[a++];
            }
            while (a < mid) {
                room[k++] = v[a++];
            }
            while (b < end) {
                room[k++] = v[b++];
            }
        }
        memcpy(v, room, (size_t)n * sizeof *v);
    }
}

/* The number of leading blocks that two entries share and that contain only past positions. */
static int32_t common_blocks(const struct plan_entry *a, const struct plan_entry *b, int32_t limit,
                             const struct holdings *h)
{
    const int32_t *x = holdings_blocks(h, a->seq), *y = holdings_blocks(h, b->seq);
    int32_t size = h->limits->block_tokens, n = 0;
    int32_t past = lesser(a->first, b->first);
    limit = lesser(limit, past / size);
    while (n < limit && x[n] == y[n]) {
        n++;
    }
    return n;
}

/* Groups neighbouring entries that share their leading blocks. */
static void build_groups(struct planned_step *ps, const struct holdings *h)
{
    struct step *st = &ps->step;
    int32_t n = ps->plan.n_entries;
    for (int32_t i = 0; i < n;) {
        int32_t end = i + 1, shared = 0;
        while (end < n) {
            int32_t limit = shared;
            if (end == i + 1) {
                limit = h->limits->max_blocks_per_lane;
            }
            int32_t common = common_blocks(&ps->sorted[i], &ps->sorted[end], limit, h);
            if (common == 0) {
                break;
            }
            shared = common;
            end++;
        }
        if (end - i > 1) {
            st->groups[st->pass.n_groups++] = (struct pass_group){i, end - i, shared};
        }
        i = end;
    }
}

/* ---- rows and draws ----------------------------------------------------------------------- */

/* The draw goes to the backend; the owner of its result is stored here, at the same index. */
static void add_draw(struct planned_step *ps, int32_t out_row, const struct sequence *seq,
                     struct pass_draw draw, struct draw_owner owner)
{
    struct step *st = &ps->step;
    draw.out_row = out_row;
    draw.lane = seq->lane;
    draw.pos = owner.pos;
    draw.n_prompt = seq->n_prompt;
    st->draws[st->pass.n_draws] = draw;
    ps->owners[st->pass.n_draws++] = owner;
}

/* The draw returns its whole row of logits if the request names the alternatives, wants more than a
 * draw can list, or wants their processed scores. */
static void ask_logprobs(struct planned_step *ps, struct pass_draw *d, int32_t n_top, bool whole)
{
    d->logprobs = true;
    if (whole || n_top > MAX_TOP_LOGPROBS) {
        d->logits = ++ps->step.pass.n_logits;
    } else {
        d->top_n = n_top;
    }
}

/* The device does not keep a token that is to be compared with a draft, because the host decides
 * first. */
static void add_sample(struct planned_step *ps, int32_t out_row, struct sequence *seq, int32_t pos,
                       bool verify, int32_t tree_row)
{
    const struct sampling_params *p = &seq->request->params;
    struct pass_draw d = {.kind = DRAW_SAMPLE, .keep = !verify, .tree_row = tree_row};
    if (p->logprobs) {
        ask_logprobs(ps, &d, p->top_logprobs, p->logprob_ids || p->processed);
    }
    add_draw(ps, out_row, seq, d, (struct draw_owner){seq, pos, false, verify});
}

/* Row `pos` scores the prompt token after it. */
static void add_score(struct planned_step *ps, int32_t out_row, struct sequence *seq, int32_t pos)
{
    struct pass_draw d = {.kind = DRAW_SCORE, .tree_row = -1};
    const struct sampling_params *p = &seq->request->params;
    ask_logprobs(ps, &d, p->prompt_top_logprobs, p->prompt_logprob_ids);
    add_draw(ps, out_row, seq, d, (struct draw_owner){seq, pos, true, false});
}

static int32_t add_out(struct planned_step *ps, int32_t row)
{
    struct step *st = &ps->step;
    st->out_rows[st->pass.n_out] = row;
    return st->pass.n_out++;
}

/* Adds rows first_out .. +n_out to the sequence's vector; the last of them is at `pos`. */
static void add_pool(struct planned_step *ps, struct sequence *seq, int32_t first_out,
                     int32_t n_out, int32_t pos, bool start, bool finish)
{
    struct step *st = &ps->step;
    ps->pool_owners[st->pass.n_pool] = (struct pool_owner){seq, pos};
    st->pools[st->pass.n_pool++] = (struct pass_pool){.lane = seq->lane,
                                                      .first_out = first_out,
                                                      .n_out = n_out,
                                                      .start = start,
                                                      .finish = finish};
}

/* A mean needs all rows, over several steps; the last state only the last row. The first one is
 * that of an encoder, whose rows are all in one pass. The maximum is found on the host. */
static void build_pool(struct planned_step *ps, const struct plan_entry *e, int32_t first_row)
{
    struct step *st = &ps->step;
    struct sequence *seq = e->seq;
    const enum pool_kind kind = seq->request->pool;
    const bool one = kind == POOL_LAST || kind == POOL_FIRST;
    const bool each = kind == POOL_TOKENS || kind == POOL_MAX;
    const int32_t first_out = st->pass.n_out, n_out = one ? e->draws : e->n_rows;
    const int32_t last = e->first + e->n_rows - 1;
    for (int32_t i = 0; i < n_out; i++) {
        add_out(ps, first_row + (kind == POOL_FIRST ? 0 : e->n_rows - n_out + i));
    }
    for (int32_t i = 0; i < n_out && each; i++) {
        add_pool(ps, seq, first_out + i, 1, e->first + i, true, true);
    }
    if (n_out > 0 && !each) {
        add_pool(ps, seq, first_out, n_out, last, one || e->first == 0, e->draws);
    }
    st->want.pooled = true;
}

/* One draw for the row of the newest token and one for each draft after it, and scores of the
 * prompt if they were requested. Rows of a tree have positions of their own. */
static void build_draws(struct planned_step *ps, const struct plan_entry *e, int32_t first_row)
{
    struct step *st = &ps->step;
    struct sequence *seq = e->seq;
    bool scores = seq->request->params.prompt_logprobs && e->first < seq->n_prompt;
    int32_t n_plain = e->n_rows - e->n_drafts; // the last of these is the row of the newest token
    for (int32_t i = 0; i < e->n_rows; i++) {
        int32_t pos = e->first + i;
        bool sample = e->draws && i >= n_plain - 1;
        bool score = scores && pos + 1 < seq->n_prompt;
        if (!sample && !score) {
            continue;
        }
        int32_t out = add_out(ps, first_row + i);
        if (sample && seq->tree) {
            add_sample(ps, out, seq, step_tree_pos(seq->tree, i), true, first_row + i);
            st->draws[st->pass.n_draws - 1].law = step_tree_law(seq->tree, i);
        } else if (sample) {
            add_sample(ps, out, seq, pos, e->n_drafts > 0, -1);
            bool tests_draft = seq->proposal.on_device && i >= n_plain - 1 && i < e->n_rows - 1;
            if (tests_draft && seq->proposal.law > 0) {
                st->draws[st->pass.n_draws - 1].law = seq->proposal.law + i - (n_plain - 1);
            } else {
                st->draws[st->pass.n_draws - 1].law = 0;
            }
        } else {
            add_score(ps, out, seq, pos);
        }
    }
}

/* A token that the host does not know yet is sent as -1, and the device takes it from the lane's
 * history. */
static void build_rows(struct planned_step *ps, const struct plan_entry *e, int32_t first_row)
{
    const struct sequence *seq = e->seq;
    int32_t n_plain = e->n_rows - e->n_drafts, n = seq->tree ? n_plain : e->n_rows;
    for (int32_t i = 0; i < n; i++) {
        int32_t pos = e->first + i;
        int32_t token = -1; // it is drawn by a step in flight, or it is a draft of this step
        if (i < n_plain && pos < seq->n_known) {
            token = sequence_token(seq, pos);
        } else if (i >= n_plain && !seq->proposal.on_device) {
            token = seq->proposal.drafts[i - n_plain];
        }
        ps->step.rows[first_row + i] = (struct pass_row){seq->lane, token, pos, pos};
    }
    if (seq->tree) {
        step_tree_rows(ps, seq->tree, first_row);
    }
}

/* Siblings draw from the last row of the prompt, which only their leader computes. */
static void build_forks(struct planned_step *ps)
{
    struct step *st = &ps->step;
    for (int32_t i = 0; i < ps->plan.n_forks; i++) {
        const struct plan_fork *f = &ps->plan.forks[i];
        const struct plan_entry *e = &ps->plan.entries[f->entry];
        for (int32_t j = 0; j < st->pass.n_draws; j++) {
            if (ps->owners[j].seq == e->seq && !ps->owners[j].score) {
                add_sample(ps, st->draws[j].out_row, f->seq, e->seq->n_prompt - 1, false, -1);
                break;
            }
        }
    }
}

/* Entries are sorted so that sequences with common blocks are adjacent, and attention can read the
 * shared keys once. */
void step_build(struct planned_step *ps, const struct holdings *h)
{
    struct step *st = &ps->step;
    struct plan *p = &ps->plan;
    st->pass = (struct pass){.rows = st->rows,
                             .seqs = st->seqs,
                             .groups = st->groups,
                             .out_rows = st->out_rows,
                             .draws = st->draws,
                             .pool = st->pools,
                             .tree_mask = ps->mask,
                             .masks = st->masks,
                             .bidirectional = ps->bidirectional,
                             .n_keeps = p->n_keeps,
                             .keeps = st->keeps};
    memcpy(st->keeps, p->keeps, (size_t)p->n_keeps * sizeof *st->keeps);
    st->want = (struct model_outputs){0};
    memcpy(ps->sorted, p->entries, (size_t)p->n_entries * sizeof *ps->sorted);
    sort_entries(ps->sorted, ps->room, p->n_entries, h);
    if (!ps->ungrouped) {
        build_groups(ps, h);
    }
    for (int32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *e = &ps->sorted[i];
        int32_t first = st->pass.n_rows;
        build_rows(ps, e, first);
        st->seqs[i] = step_seq(e->seq, first, e->n_rows, e->first, e->seq->tree != NULL);
        st->pass.n_rows += e->n_rows;
        if (e->seq->request->pool != POOL_NONE) {
            build_pool(ps, e, first);
        } else {
            build_draws(ps, e, first);
        }
    }
    st->pass.n_seqs = p->n_entries;
    build_forks(ps);
    st->want.logits = st->pass.n_draws > 0;
    ASSERT(st->pass.n_rows == p->n_rows && st->pass.n_draws <= p->n_draws);
}
