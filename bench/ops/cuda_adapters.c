// SPDX-License-Identifier: Apache-2.0
/* What low-rank adapters add to the products of a layer. */
#include "bench/ops/cuda_timing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N_ADAPTERS = 64 };
static const int32_t ranks[BENCH_RANKS] = {16, 64};

/* The products; their parts have ranks of their own. */
static const struct {
    const char *name;
    int32_t n_out, n_in, n_parts;
} products[BENCH_ADAPTED] = {{"qkv", QKV, HIDDEN, 3},
                             {"o", HIDDEN, HIDDEN, 1},
                             {"gate_up", 2 * FFN, HIDDEN, 2},
                             {"down", HIDDEN, FFN, 1}};

static enum status make(struct bench *b, int64_t n_out, int64_t n_in, const struct weight **out,
                        struct err *err)
{
    const struct weight_part part =
        weight_part_plain(NULL, b->dtype, n_out * N_ADAPTERS, n_in, n_in);
    const struct weight_desc d = {.name = "made up",
                                  .kind = WEIGHT_ADAPTER,
                                  .dtype = b->dtype,
                                  .n_out = n_out,
                                  .n_in = n_in,
                                  .n_experts = N_ADAPTERS,
                                  .n_parts = 1,
                                  .parts = &part,
                                  .k_segments = 1,
                                  .dummy_seed = (uint64_t)b->next_model++,
                                  .dummy_scale = 0.1f / sqrtf((float)n_in)};
    struct weight *w = NULL;
    TRY(b->ops->weight_open(b->be, &d, &w, err));
    *out = w;
    return OK;
}

enum status bench_make_adapters(struct bench *b, struct err *err)
{
    for (int32_t i = 0; i < BENCH_ADAPTED * BENCH_RANKS * COPIES; i++) {
        const int32_t p = i / COPIES / BENCH_RANKS, r = i / COPIES % BENCH_RANKS;
        const int32_t n = products[p].n_parts;
        struct adapter_pair *pair = &b->adapters[p][r][i % COPIES];
        TRY(make(b, ranks[r] * n, products[p].n_in, &pair->down, err));
        TRY(make(b, products[p].n_out, ranks[r], &pair->up, err));
        for (pair->n_runs = 0; pair->n_runs < n; pair->n_runs++) {
            struct adapter_run *run = &pair->runs[pair->n_runs];
            run->first_out = products[p].n_out / n * pair->n_runs;
            run->first_rank = ranks[r] * pair->n_runs;
        }
    }
    return OK;
}

/* The product reads so much that the adapters are never in a cache. */
static enum status issue(struct bench *b, const struct line *l, int32_t i)
{
    const struct linear_args a = {.weight = l->weight[i % COPIES],
                                  .x = l->from,
                                  .y = l->to,
                                  .n_rows = l->n_rows,
                                  .adapter = l->n_adapters > 0 ? &l->adapters[i % COPIES] : NULL};
    TRY(b->ops->linear(b->be, &a));
    return a.adapter ? b->ops->linear_adapter(b->be, &a) : OK;
}

/* Prints the time of the product, and how much longer it takes with adapters. */
static enum status print(struct bench *b, struct line l, int32_t product)
{
    char what[BENCH_RANKS][80];
    bool wanted = false;
    for (int32_t r = 0; r < BENCH_RANKS; r++) {
        snprintf(what[r], sizeof what[r], "adapters for %s %d: %d x %d", products[product].name,
                 l.n_rows, l.n_adapters, ranks[r]);
        wanted = wanted || !b->only || strstr(what[r], b->only);
    }
    double alone = 0, both;
    const int32_t n_adapters = l.n_adapters;
    if (wanted) {
        l.n_adapters = 0;
        TRY(bench_run_line(b, &l, &alone));
        l.n_adapters = n_adapters;
    }
    for (int32_t r = 0; r < BENCH_RANKS; r++) {
        if (!b->only || strstr(what[r], b->only)) {
            l.adapters = b->adapters[product][r];
            TRY(bench_run_line(b, &l, &both));
            printf("%-34s %10.2f us, %.2f more with them (%.1f %%)\n", what[r], alone, both - alone,
                   100 * (both / alone - 1));
            fflush(stdout);
        }
    }
    return OK;
}

enum status bench_adapter_lines(struct bench *b)
{
    static const struct {
        int32_t n_rows, n_adapters;
    } passes[] = {{1, 1}, {16, 1}, {16, 16}, {64, 1}, {64, 64}, {256, 64}, {2048, 1}, {8192, 1}};
    const struct weight *const *weights[] = {b->w_qkv, b->w_o, b->w_gate_up, b->w_down};
    const struct tensor from[] = {b->h, b->attn, b->h, b->act}, to[] = {b->qkv, b->h, b->mid, b->h};
    for (int32_t p = 0; p < BENCH_ADAPTED; p++) {
        for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
            const struct line l = {.name = products[p].name,
                                   .issue = issue,
                                   .n_rows = passes[i].n_rows,
                                   .weight = weights[p],
                                   .from = from[p],
                                   .to = to[p],
                                   .shape = passes[i].n_rows > LANES ? PREFILL : DECODE,
                                   .n_adapters = passes[i].n_adapters};
            TRY(print(b, l, p));
        }
    }
    return OK;
}
