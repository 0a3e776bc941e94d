// SPDX-License-Identifier: Apache-2.0
/* Measurements of mixtures of experts: the router and the experts. */
#include "bench/ops/cuda_timing.h"

#include <math.h>

static struct moe_ffn_args moe_args(struct bench *b, const struct line *l)
{
    const struct bench_moe *m = l->moe;
    struct tensor x = b->h, y = b->attn;
    x.stride = y.stride = m->hidden;
    return (struct moe_ffn_args){.gate_up = m->w_up,
                                 .down = m->w_down,
                                 .x = x,
                                 .y = y,
                                 .ids = b->ids,
                                 .weights = b->weights,
                                 .n_rows = l->n_rows,
                                 .n_experts = m->n_experts,
                                 .k = m->k,
                                 .ffn = m->ffn,
                                 .kind = ACT_SILU};
}

static enum status issue_route(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct moe_ffn_args m = moe_args(b, l);
    const struct moe_route_args a = {.router = l->moe->w_router,
                                     .x = m.x,
                                     .ids = b->ids,
                                     .weights = b->weights,
                                     .n_rows = l->n_rows,
                                     .n_experts = m.n_experts,
                                     .k = m.k,
                                     .renormalise = true,
                                     .scale = 1.0f};
    return b->ops->moe_route(b->be, &a);
}

static enum status issue_moe(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct moe_ffn_args a = moe_args(b, l);
    return b->ops->moe_ffn(b->be, &a);
}

/* Computes the experts' picks, which the experts' lines need even if the router's line is not
 * selected. */
static enum status route_all(struct bench *b, const struct bench_moe *m)
{
    const struct line l = {.n_rows = ROWS, .shape = PREFILL, .moe = m};
    struct pass_shape shape;
    struct pass_results results[4];
    TRY(b->ops->step_begin(b->be, 0));
    bench_make_pass(b, &l);
    TRY(b->ops->pass_begin(b->be, &b->pass, &shape));
    TRY(issue_route(b, &l, 0));
    TRY(b->ops->pass_end(b->be));
    TRY(b->ops->step_end(b->be));
    return b->ops->step_wait(b->be, 0, results, 4);
}

/* Bytes are those of the experts that are expected to be picked; operations are those of all
 * picks. */
static enum status moe_lines(struct bench *b, const struct bench_moe *m, double element)
{
    static const int32_t rows[] = {1, 8, 64, 256, 512, 1024, 2048, 4096, 8192};
    TRY(route_all(b, m));
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const double n = rows[r];
        /* The expected number of experts with at least one pick, if picks are uniform. */
        const double active = m->n_experts * (1 - pow(1 - (double)m->k / m->n_experts, n));
        struct line l = {.name = m->route,
                         .issue = issue_route,
                         .n_rows = rows[r],
                         .moe = m,
                         .bytes = 4.0 * m->n_experts * m->hidden + element * n * m->hidden,
                         .operations = 2.0 * n * m->n_experts * m->hidden,
                         .shape = rows[r] > LANES ? PREFILL : DECODE};
        TRY(bench_print_line(b, &l));
        l.name = m->experts;
        l.issue = issue_moe;
        l.bytes = element * 3 * active * m->ffn * m->hidden;
        l.operations = 6.0 * n * m->k * m->ffn * m->hidden;
        TRY(bench_print_line(b, &l));
    }
    return OK;
}

enum status bench_expert_lines(struct bench *b, double element)
{
    for (int32_t i = 0; i < MOE_SHAPES; i++) {
        TRY(moe_lines(b, &b->moe[i], element));
    }
    return OK;
}
