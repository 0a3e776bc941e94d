/* What a pass of n rows costs, measured at the start on the real models: speculation pays by this
 * curve, so it is not guessed. */
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/cluster/step_run.h"
#include "engine/engine_state.h"

enum { MOST_ROWS = 1 << (SPEC_COST_POINTS - 1), ROUNDS = 12, EXTRA_PASSES = 4 };

struct measure {
    const struct engine *e;
    bool draft;
    bool tells; // its draws tell the likeliest ids
    int32_t n_rows, n_passes;
    float seconds; // of rank 0
};

/* n rows over as many lanes as there are; false when they do not fit. */
static bool fill_pass(const struct measure *m, struct pass *p, struct pass_row *rows,
                      struct pass_seq *seqs, struct pass_draw *draws, int32_t *out_rows)
{
    const struct scheduler_limits *l = &m->e->scheduler.limits;
    int32_t lanes = 1;
    while (lanes * 2 <= l->max_lanes && lanes * 2 <= m->n_rows && lanes * 2 <= l->n_blocks) {
        lanes *= 2;
    }
    int32_t each = m->n_rows / lanes, longest = l->max_len;
    if (m->draft && m->e->spec.draft_max_len < longest) {
        longest = m->e->spec.draft_max_len;
    }
    if (each > l->block_tokens || each > longest || m->n_rows > l->max_rows || m->n_rows > l->max_out) {
        return false;
    }
    *p = (struct pass){.model = m->draft, .kv_set = m->draft, .n_rows = m->n_rows, .rows = rows,
                       .n_seqs = lanes, .seqs = seqs, .n_out = m->n_rows, .out_rows = out_rows,
                       .n_draws = m->n_rows, .draws = draws};
    for (int32_t i = 0; i < m->n_rows; i++) {
        rows[i] = (struct pass_row){i / each, i % 7, i % each, i % each};
        out_rows[i] = i;
        draws[i] = (struct pass_draw){.out_row = i, .lane = i / each, .pos = i % each,
                                      .kind = DRAW_SAMPLE, .tree_row = -1, .logprobs = m->tells,
                                      .top_n = m->tells ? m->e->spec.width : 0};
    }
    for (int32_t i = 0; i < lanes; i++) {
        seqs[i] = (struct pass_seq){i, i * each, each, 0, false};
    }
    return true;
}

static enum status run_once(struct rank *r, const struct measure *m, const struct pass *p)
{
    const struct backend_ops *ops = r->be->ops;
    const struct sampling_params params = sampling_params_default();
    struct model *model = m->draft ? &r->draft[0] : &r->target;
    struct pass_results results[1 + EXTRA_PASSES];
    TRY(ops->step_begin(r->be, 0));
    for (int32_t i = 0; i < p->n_seqs; i++) {
        TRY(ops->lane_params(r->be, i, &params));
        TRY(ops->lane_blocks(r->be, i, 0, 1, &i));
    }
    for (int32_t i = 0; i < m->n_passes; i++) {
        TRY(step_run_pass(p, model, (struct model_outputs){.logits = true}, m->e->n_vocab_used));
    }
    TRY(ops->step_end(r->be));
    return ops->step_wait(r->be, 0, results, m->n_passes);
}

static enum status measure_rank(struct rank *r, void *arg)
{
    struct measure *m = arg;
    struct pass_row rows[MOST_ROWS];
    struct pass_seq seqs[MOST_ROWS];
    struct pass_draw draws[MOST_ROWS];
    int32_t out_rows[MOST_ROWS];
    struct pass p;
    if (!fill_pass(m, &p, rows, seqs, draws, out_rows)) {
        return OK;
    }
    int64_t begin = clock_now_ns();
    TRY(run_once(r, m, &p));
    if (r->index == 0) {
        m->seconds = (float)(clock_now_ns() - begin) / 1e9f;
    }
    return OK;
}

/* Every rank takes as many turns, or their collectives would not meet. */
static enum status measure_once(struct engine *e, struct measure m, float *least)
{
    m.e = e;
    TRY(ranks_run(&e->ranks, measure_rank, &m));
    if (m.seconds > 0.0f && (*least <= 0.0f || m.seconds < *least)) {
        *least = m.seconds;
    }
    return OK;
}

/* Once round all numbers of rows. The first rounds may capture graphs; the least time is what other
 * programs did not disturb, and a disturbance that lasts falls on all points alike. */
static enum status measure_round(struct engine *e, bool draft, float *cost)
{
    for (int32_t i = 0; i < SPEC_COST_POINTS; i++) {
        TRY(measure_once(e, (struct measure){.draft = draft, .n_rows = 1 << i, .n_passes = 1},
                         &cost[i]));
    }
    return OK;
}

/* Several draft passes of one step, and one that tells more. */
static enum status measure_looks(struct engine *e, float *chain, float *telling, int32_t n_passes)
{
    TRY(measure_once(e, (struct measure){.draft = true, .n_rows = 1, .n_passes = n_passes}, chain));
    return measure_once(e, (struct measure){.draft = true, .n_rows = 1, .n_passes = 1,
                                            .tells = true}, telling);
}

/* What a step costs beyond its passes is the price of the host's looking at a pass's results before
 * the next; the draft's passes run one behind the other without. */
static void set_looks(struct spec *sp, float chain, float telling, int32_t n_passes)
{
    float one = sp->draft_cost[0], each = (chain - one) / (float)(n_passes - 1);
    each = each > 0.0f && each < one ? each : one;
    sp->look_cost = one - each;
    sp->tell_cost = telling > one ? telling - one : 0.0f;
    for (int32_t i = 0; i < SPEC_COST_POINTS; i++) {
        sp->draft_cost[i] -= sp->look_cost;
    }
}

/* Points that did not fit, and noise: more rows never cost less. */
static void mend(float *cost)
{
    for (int32_t i = SPEC_COST_POINTS - 2; i >= 0; i--) {
        if (cost[i + 1] > 0.0f && cost[i] > cost[i + 1]) {
            cost[i] = cost[i + 1];
        }
    }
    for (int32_t i = 1; i < SPEC_COST_POINTS; i++) {
        cost[i] = cost[i] > 0.0f ? cost[i] : 2.0f * cost[i - 1];
    }
}

static void show(const char *what, const float *cost)
{
    log_info("speculation: %s, 1 / 2 / 4 / 8 / 16 rows: %.0f / %.0f / %.0f / %.0f / %.0f us", what,
             (double)cost[0] * 1e6, (double)cost[1] * 1e6, (double)cost[2] * 1e6,
             (double)cost[3] * 1e6, (double)cost[4] * 1e6);
}

enum status spec_measure(struct engine *e)
{
    if (e->spec.method == SPEC_NONE || e->spec.fixed) {
        return OK;
    }
    struct spec *sp = &e->spec;
    float chain = 0.0f, telling = 0.0f;
    int32_t n_passes = 1 + (sp->k < EXTRA_PASSES ? sp->k : EXTRA_PASSES);
    for (int32_t i = 0; i < ROUNDS; i++) {
        TRY(measure_round(e, false, sp->target_cost));
        if (sp->n_models > 0) {
            TRY(measure_round(e, true, sp->draft_cost));
            TRY(measure_looks(e, &chain, &telling, n_passes));
        }
    }
    mend(sp->target_cost);
    mend(sp->draft_cost);
    if (sp->n_models > 0) {
        set_looks(sp, chain, telling, n_passes);
        sp->grow_seconds = sp->look_cost + (float)sp->k * sp->tell_cost + sp->draft_cost[2];
    }
    for (int32_t i = 0; i < SPEC_COST_POINTS; i++) { // taken to be equal: they feed the same rows
        sp->draft_cost[i] *= (float)sp->n_models;
    }
    show("a pass of the model", sp->target_cost);
    if (sp->n_models > 0) {
        show("a pass of the draft model", sp->draft_cost);
        log_info("speculation: the host's look at a pass's draws: %.0f us; the likeliest ids told: %.0f "
                 "us", (double)sp->look_cost * 1e6, (double)sp->tell_cost * 1e6);
    }
    return OK;
}
