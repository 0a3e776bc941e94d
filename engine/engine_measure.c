// SPDX-License-Identifier: Apache-2.0
/* Measures at startup, on the loaded models, how the cost of a pass depends on its number of rows.
 * Speculation chooses its depth by this curve. */
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/minmax.h"
#include "engine/cluster/step_run.h"
#include "engine/engine_state.h"

enum { MOST_ROWS = 1 << (SPEC_COST_POINTS - 1), ROUNDS = 12, EXTRA_PASSES = 4 };

struct measure {
    const struct scheduler_limits *limits;
    const struct spec_options *options;
    int32_t n_vocab_used;
    bool draft;
    bool with_top_ids; // its draws return the most likely ids
    int32_t n_rows, n_passes;
    float seconds; // the result, measured on rank 0
};

/* Fills the pass with n rows, spread over all lanes. False if they do not fit. */
static bool fill_pass(const struct measure *m, struct pass *p, struct pass_row *rows,
                      struct pass_seq *seqs, struct pass_draw *draws, int32_t *out_rows)
{
    const struct scheduler_limits *l = m->limits;
    int32_t lanes = 1;
    while (lanes * 2 <= l->max_lanes && lanes * 2 <= m->n_rows && lanes * 2 <= l->n_blocks &&
           (l->n_pages == 0 || lanes * 2 <= l->n_pages)) {
        lanes *= 2;
    }
    int32_t each = m->n_rows / lanes, longest = l->max_len;
    if (m->draft && m->options->draft_max_len < longest) {
        longest = m->options->draft_max_len;
    }
    if (each > l->block_tokens || each > longest || m->n_rows > l->max_rows ||
        m->n_rows > l->max_out) {
        return false;
    }
    *p = (struct pass){.model = m->draft,
                       .kv_set = m->draft,
                       .n_rows = m->n_rows,
                       .rows = rows,
                       .n_seqs = lanes,
                       .seqs = seqs,
                       .n_out = m->n_rows,
                       .out_rows = out_rows,
                       .n_draws = m->n_rows,
                       .draws = draws};
    for (int32_t i = 0; i < m->n_rows; i++) {
        rows[i] = (struct pass_row){i / each, i % 7, i % each, i % each};
        out_rows[i] = i;
        draws[i] = (struct pass_draw){.out_row = i,
                                      .lane = i / each,
                                      .pos = i % each,
                                      .kind = DRAW_SAMPLE,
                                      .tree_row = -1,
                                      .logprobs = m->with_top_ids,
                                      .top_n = m->with_top_ids ? m->options->width : 0};
    }
    for (int32_t i = 0; i < lanes; i++) {
        seqs[i] = (struct pass_seq){.lane = i, .first_row = i * each, .n_rows = each};
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
        if (m->limits->n_pages > 0) {
            TRY(ops->lane_pages(r->be, i, 0, 1, &i));
        }
    }
    for (int32_t i = 0; i < m->n_passes; i++) {
        TRY(step_run_pass(p, model, (struct model_outputs){.logits = true}, m->n_vocab_used));
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

/* What to time the passes on. */
struct site {
    struct ranks *ranks;
    struct measure common;
};

/* Every rank runs the same number of passes, because their collectives would not match
 * otherwise. */
static enum status measure_once(const struct site *site, bool draft, int32_t n_rows,
                                int32_t n_passes, bool with_top_ids, float *least)
{
    struct measure m = site->common;
    m.draft = draft;
    m.n_rows = n_rows;
    m.n_passes = n_passes;
    m.with_top_ids = with_top_ids;
    TRY(ranks_run(site->ranks, measure_rank, &m));
    if (m.seconds > 0.0f && (*least <= 0.0f || m.seconds < *least)) {
        *least = m.seconds;
    }
    return OK;
}

/* Times a pass for each number of rows. The first rounds may capture graphs. The minimum over
 * rounds filters out short disturbances by other programs; a longer one affects all points alike.
 */
static enum status measure_round(const struct site *site, bool draft, float *cost)
{
    for (int32_t i = 0; i < SPEC_COST_POINTS; i++) {
        TRY(measure_once(site, draft, 1 << i, 1, false, &cost[i]));
    }
    return OK;
}

/* Times several draft passes in one step, and one that also returns the most likely ids. */
static enum status measure_looks(const struct site *site, struct spec_timed_steps *t)
{
    TRY(measure_once(site, true, 1, t->n_passes, false, &t->chain));
    return measure_once(site, true, 1, 1, true, &t->with_top_ids);
}

static void show(const char *what, const float *cost)
{
    log_info("speculation: %s, 1 / 2 / 4 / 8 / 16 rows: %.0f / %.0f / %.0f / %.0f / %.0f us", what,
             (double)cost[0] * 1e6, (double)cost[1] * 1e6, (double)cost[2] * 1e6,
             (double)cost[3] * 1e6, (double)cost[4] * 1e6);
}

static void show_all(const struct spec_costs *c, bool drafts)
{
    show("a pass of the model", c->target);
    if (drafts) {
        show("a pass of the draft model", c->draft);
        log_info("speculation: a round trip to the host between passes takes %.0f us; "
                 "returning the most likely ids takes %.0f us",
                 (double)c->round_trip * 1e6, (double)c->top_ids * 1e6);
    }
}

enum status spec_measure(struct ranks *ranks, const struct scheduler_limits *limits,
                         const struct spec_options *options, int32_t n_vocab_used,
                         struct spec_costs *out)
{
    const struct site site = {ranks,
                              {.limits = limits, .options = options, .n_vocab_used = n_vocab_used}};
    int32_t extra = lesser(options->k, EXTRA_PASSES);
    struct spec_timed_steps timed = {.n_passes = 1 + extra};
    for (int32_t i = 0; i < ROUNDS; i++) {
        TRY(measure_round(&site, false, out->target));
        if (options->n_models > 0) {
            TRY(measure_round(&site, true, out->draft));
            TRY(measure_looks(&site, &timed));
        }
    }
    spec_costs_settle(out, &timed, spec_models_per_pass(options));
    show_all(out, options->n_models > 0);
    return OK;
}
