#include "engine/step.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

void step_init(struct step *st, int32_t slot, const struct scheduler_limits *limits,
               const struct spec *sp)
{
    size_t lanes = (size_t)limits->max_lanes;
    *st = (struct step){.slot = slot};
    plan_init(&st->plan, limits);
    st->lanes = xcalloc(2 * lanes, sizeof *st->lanes);
    st->rows = xcalloc((size_t)limits->max_rows, sizeof *st->rows);
    st->seqs = xcalloc(lanes, sizeof *st->seqs);
    st->groups = xcalloc(lanes, sizeof *st->groups);
    st->out_rows = xcalloc((size_t)limits->max_out, sizeof *st->out_rows);
    st->draws = xcalloc((size_t)limits->max_draws, sizeof *st->draws);
    st->owners = xcalloc((size_t)limits->max_draws, sizeof *st->owners);
    st->pools = xcalloc(lanes, sizeof *st->pools);
    st->pool_owners = xcalloc(lanes, sizeof *st->pool_owners);
    st->sorted = xcalloc(lanes, sizeof *st->sorted);
    st->room = xcalloc(lanes, sizeof *st->room);
    step_init_draft(st, limits, sp);
    step_init_tree(st, limits, sp);
}

void step_deinit(struct step *st)
{
    plan_deinit(&st->plan);
    free(st->lanes);
    free(st->rows);
    free(st->seqs);
    free(st->groups);
    free(st->out_rows);
    free(st->draws);
    free(st->owners);
    free(st->pools);
    free(st->pool_owners);
    free(st->sorted);
    free(st->room);
    step_deinit_draft(st);
    step_deinit_tree(st);
    *st = (struct step){0};
}

void step_build_lanes(struct step *st, struct scheduler *s)
{
    st->begun = false;
    st->n_lanes = st->plan.n_grants;
    for (int32_t i = 0; i < st->plan.n_grants; i++) {
        const struct plan_grant *g = &st->plan.grants[i];
        const struct sequence *seq = g->seq;
        struct lane_update *u = &st->lanes[i];
        *u = (struct lane_update){.lane = seq->lane, .first_block = g->first, .n_blocks = g->n,
                                  .blocks = holdings_blocks(&s->holdings, seq) + g->first,
                                  .fresh = g->fresh};
        if (g->fresh) {
            u->prompt = seq->request->prompt;
            u->n_prompt = seq->n_prompt;
            u->generated = seq->output ? seq->output->tokens : NULL;
            u->n_generated = sequence_generated(seq);
            u->params = seq->request->params;
            u->params.seed += (uint64_t)seq->sample;
        }
    }
}

/* ---- groups ------------------------------------------------------------------------------- */

static int compare_blocks(const struct plan_entry *a, const struct plan_entry *b,
                          struct scheduler *s)
{
    int32_t x = holdings_blocks(&s->holdings, a->seq)[0], y = holdings_blocks(&s->holdings, b->seq)[0];
    return x < y ? -1 : x > y;
}

/* Merge sort by first block, stable: equal sequences stay in order. */
static void sort_entries(struct plan_entry *v, struct plan_entry *room, int32_t n,
                         struct scheduler *s)
{
    for (int32_t width = 1; width < n; width *= 2) {
        for (int32_t i = 0; i < n; i += 2 * width) {
            int32_t mid = i + width < n ? i + width : n, end = i + 2 * width < n ? i + 2 * width : n;
            int32_t a = i, b = mid, k = i;
            while (a < mid && b < end) {
                room[k++] = compare_blocks(&v[b], &v[a], s) < 0 ? v[b++] : v[a++];
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

/* Blocks that two entries have in common from the front, both wholly in the past. */
static int32_t common_blocks(const struct plan_entry *a, const struct plan_entry *b,
                             int32_t limit, struct scheduler *s)
{
    const int32_t *x = holdings_blocks(&s->holdings, a->seq), *y = holdings_blocks(&s->holdings, b->seq);
    int32_t size = s->limits.block_tokens, n = 0;
    int32_t past = a->first < b->first ? a->first : b->first;
    limit = limit < past / size ? limit : past / size;
    while (n < limit && x[n] == y[n]) {
        n++;
    }
    return n;
}

/* Runs of neighbours that share their leading blocks. */
static void build_groups(struct step *st, struct scheduler *s)
{
    int32_t n = st->plan.n_entries;
    st->pass.n_groups = 0;
    for (int32_t i = 0; i < n;) {
        int32_t end = i + 1, shared = 0;
        while (end < n) {
            int32_t limit = end == i + 1 ? s->limits.max_blocks_per_lane : shared;
            int32_t common = common_blocks(&st->sorted[i], &st->sorted[end], limit, s);
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

static void add_draw(struct step *st, int32_t out_row, const struct sequence *seq,
                     struct pass_draw draw, struct draw_owner owner)
{
    draw.out_row = out_row;
    draw.lane = seq->lane;
    draw.pos = owner.pos;
    draw.n_prompt = seq->n_prompt;
    st->draws[st->pass.n_draws] = draw;
    st->owners[st->pass.n_draws++] = owner;
}

static void add_sample(struct step *st, int32_t out_row, struct sequence *seq, int32_t pos,
                       bool verify, int32_t tree_row)
{
    const struct sampling_params *p = &seq->request->params;
    struct pass_draw d = {.kind = DRAW_SAMPLE, .keep = !verify, .logprobs = p->logprobs,
                          .top_n = p->logprobs ? p->top_logprobs : 0, .tree_row = tree_row};
    add_draw(st, out_row, seq, d, (struct draw_owner){seq, pos, false, verify});
}

/* Row `pos` scores the prompt token behind it. */
static void add_score(struct step *st, int32_t out_row, struct sequence *seq, int32_t pos)
{
    struct pass_draw d = {.kind = DRAW_SCORE, .logprobs = true, .tree_row = -1,
                          .top_n = seq->request->params.prompt_top_logprobs};
    add_draw(st, out_row, seq, d, (struct draw_owner){seq, pos, true, false});
}

static int32_t add_out(struct step *st, int32_t row)
{
    st->out_rows[st->pass.n_out] = row;
    return st->pass.n_out++;
}

static void build_pool(struct step *st, const struct plan_entry *e, int32_t first_row)
{
    struct sequence *seq = e->seq;
    bool mean = seq->request->pool == POOL_MEAN;
    int32_t first_out = st->pass.n_out, n_out = mean ? e->n_rows : e->draws ? 1 : 0;
    for (int32_t i = 0; i < n_out; i++) {
        add_out(st, first_row + e->n_rows - n_out + i);
    }
    if (n_out > 0) {
        st->pool_owners[st->pass.n_pool] = seq;
        st->pools[st->pass.n_pool++] =
            (struct pass_pool){.lane = seq->lane, .first_out = first_out, .n_out = n_out,
                               .start = !mean || e->first == 0, .finish = e->draws};
    }
    st->want.pooled = true;
}

static void build_draws(struct step *st, const struct plan_entry *e, int32_t first_row)
{
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
        int32_t out = add_out(st, first_row + i);
        if (sample && seq->tree) {
            add_sample(st, out, seq, step_tree_pos(seq->tree, i), true, first_row + i);
            st->draws[st->pass.n_draws - 1].law = step_tree_law(seq->tree, i);
        } else if (sample) {
            add_sample(st, out, seq, pos, e->n_drafts > 0, -1);
            bool judged = seq->drafts_on_device && i >= n_plain - 1 && i < e->n_rows - 1;
            st->draws[st->pass.n_draws - 1].law =
                judged && seq->law > 0 ? seq->law + i - (n_plain - 1) : 0;
        } else {
            add_score(st, out, seq, pos);
        }
    }
}

static void build_rows(struct step *st, const struct plan_entry *e, int32_t first_row)
{
    const struct sequence *seq = e->seq;
    int32_t n_plain = e->n_rows - e->n_drafts, n = seq->tree ? n_plain : e->n_rows;
    for (int32_t i = 0; i < n; i++) {
        int32_t pos = e->first + i;
        int32_t token = i >= n_plain         ? seq->drafts_on_device ? -1 : seq->drafts[i - n_plain]
                        : pos < seq->n_known ? sequence_token(seq, pos)
                                             : -1; // drawn by a step in flight
        st->rows[first_row + i] = (struct pass_row){seq->lane, token, pos, pos};
    }
    if (seq->tree) {
        step_tree_rows(st, seq->tree, first_row);
    }
}

static void build_forks(struct step *st)
{
    for (int32_t i = 0; i < st->plan.n_forks; i++) {
        const struct plan_fork *f = &st->plan.forks[i];
        const struct plan_entry *e = &st->plan.entries[f->entry];
        for (int32_t j = 0; j < st->pass.n_draws; j++) {
            if (st->owners[j].seq == e->seq && !st->owners[j].score) {
                add_sample(st, st->draws[j].out_row, f->seq, e->seq->n_prompt - 1, false, -1);
                break;
            }
        }
    }
}

void step_build(struct step *st, struct scheduler *s)
{
    struct plan *p = &st->plan;
    st->pass = (struct pass){.rows = st->rows, .seqs = st->seqs, .groups = st->groups,
                             .out_rows = st->out_rows, .draws = st->draws, .pool = st->pools,
                             .tree_mask = st->mask};
    st->want = (struct model_outputs){0};
    memcpy(st->sorted, p->entries, (size_t)p->n_entries * sizeof *st->sorted);
    sort_entries(st->sorted, st->room, p->n_entries, s);
    build_groups(st, s);
    for (int32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *e = &st->sorted[i];
        int32_t first = st->pass.n_rows;
        build_rows(st, e, first);
        st->seqs[i] = (struct pass_seq){e->seq->lane, first, e->n_rows, e->first,
                                          e->seq->tree != NULL};
        st->pass.n_rows += e->n_rows;
        if (e->seq->request->pool != POOL_NONE) {
            build_pool(st, e, first);
        } else {
            build_draws(st, e, first);
        }
    }
    st->pass.n_seqs = p->n_entries;
    build_forks(st);
    st->want.logits = st->pass.n_draws > 0;
    ASSERT(st->pass.n_rows == p->n_rows && st->pass.n_draws <= p->n_draws);
}

/* ---- on a rank ---------------------------------------------------------------------------- */

static enum status update_lane(struct backend *be, const struct lane_update *u)
{
    if (u->fresh) {
        TRY(be->ops->lane_params(be, u->lane, &u->params));
        TRY(be->ops->lane_tokens(be, u->lane, 0, u->n_prompt, u->prompt));
        if (u->n_generated > 0) {
            TRY(be->ops->lane_tokens(be, u->lane, u->n_prompt, u->n_generated, u->generated));
        }
    }
    return u->n_blocks > 0
               ? be->ops->lane_blocks(be, u->lane, u->first_block, u->n_blocks, u->blocks)
               : OK;
}

enum status step_run_pass(const struct pass *pass, struct model *m, struct model_outputs want,
                          int32_t n_vocab_used)
{
    const struct backend_ops *ops = m->be->ops;
    struct pass_shape shape;
    TRY(ops->pass_begin(m->be, pass, &shape));
    if (shape.issue) {
        TRY(model_forward(m, &shape, want));
        if (want.logits) {
            struct sample_args sample = {.logits = m->logits, .n_out = shape.n_out,
                                         .n_draws = shape.n_draws, .n_vocab_used = n_vocab_used};
            TRY(ops->sample(m->be, &sample));
        }
    }
    return ops->pass_end(m->be);
}

/* Accepted paths move while the tables are those of the step that computed them. */
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

enum status step_begin_lanes(const struct step *st, struct backend *be)
{
    const struct backend_ops *ops = be->ops;
    TRY(move_paths(st->moves, be));
    for (int32_t i = 0; i < st->n_lanes; i++) {
        TRY(update_lane(be, &st->lanes[i]));
    }
    if (st->plan.n_copies > 0) {
        TRY(ops->copy_blocks(be, st->plan.n_copies, st->plan.copies));
    }
    return OK;
}

enum status step_execute(const struct step *st, struct rank *r, int32_t n_vocab_used)
{
    struct backend *be = r->be;
    TRY(be->ops->step_begin(be, st->slot));
    if (!st->begun) {
        TRY(step_begin_lanes(st, be));
    }
    for (int32_t i = 0; i < st->n_draft_passes; i++) {
        for (int32_t m = 0; m < st->n_draft_models; m++) {
            TRY(step_run_draft(&st->draft[i].pass, r, m, n_vocab_used));
        }
    }
    TRY(step_run_pass(&st->pass, &r->target, st->want, n_vocab_used));
    return be->ops->step_end(be);
}
