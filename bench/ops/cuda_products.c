// SPDX-License-Identifier: Apache-2.0
/* Measurements of products with a single weight. */
#include "bench/ops/cuda_timing.h"

/* Runs alternate between copies of a weight, so that no run finds its weight in the L2 cache. */
enum status bench_issue_linear(struct bench *b, const struct line *l, int32_t i)
{
    const struct linear_args a = {
        .weight = l->weight[i % (l->n_out == VOCAB || l->n_out == 8192 ? 1 : COPIES)],
        .x = l->from,
        .y = l->to,
        .n_rows = l->n_rows};
    return b->ops->linear(b->be, &a);
}

/* Times each product of a layer at all batch sizes. Small batches are limited by bytes, large ones
 * by operations. */
enum status bench_product_lines(struct bench *b, double element)
{
    static const int32_t rows[] = {1, 4, 8, 16, 32, 64, 128, 256, 1024, 8192};
    const struct line shapes[] = {
        {.name = "qkv",
         .weight = b->w_qkv,
         .from = b->h,
         .to = b->qkv,
         .n_out = QKV,
         .n_in = HIDDEN},
        {.name = "o",
         .weight = b->w_o,
         .from = b->attn,
         .to = b->h,
         .n_out = HIDDEN,
         .n_in = HIDDEN},
        {.name = "gate_up",
         .weight = b->w_gate_up,
         .from = b->h,
         .to = b->mid,
         .n_out = 2 * FFN,
         .n_in = HIDDEN},
        {.name = "down",
         .weight = b->w_down,
         .from = b->act,
         .to = b->h,
         .n_out = HIDDEN,
         .n_in = FFN},
        {.name = "head",
         .weight = &b->w_head,
         .from = b->h,
         .to = b->logits,
         .n_out = VOCAB,
         .n_in = HIDDEN},
    };
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            struct line l = shapes[s];
            if (l.n_out == VOCAB && rows[r] > OUT_ROWS) {
                continue;
            }
            l.issue = bench_issue_linear;
            l.n_rows = rows[r];
            l.operations = 2.0 * l.n_rows * l.n_out * l.n_in;
            l.bytes = element * ((double)l.n_out * l.n_in + (double)l.n_rows * l.n_in) +
                      (double)l.n_rows * l.n_out * (l.n_out == VOCAB ? 4 : element);
            l.shape = rows[r] > LANES ? PREFILL : DECODE;
            TRY(bench_print_line(b, &l));
        }
    }
    return OK;
}

static enum status issue_linear_act(struct bench *b, const struct line *l, int32_t i)
{
    const struct linear_args a = {
        .weight = b->w_gate_up[i % COPIES], .x = b->h, .y = b->mid, .n_rows = l->n_rows};
    const struct activation_args act = {.x = b->mid,
                                        .out = b->act,
                                        .n_rows = l->n_rows,
                                        .width = FFN,
                                        .kind = ACT_SILU,
                                        .gated = true};
    return b->ops->linear_act(b->be, &a, &act);
}

/* Times products fused with the ops around them, as the engine calls them. */
enum status bench_fused_product_lines(struct bench *b, double element)
{
    static const int32_t rows[] = {1, 64, 256};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const struct line l = {.name = "gate_up with silu",
                               .issue = issue_linear_act,
                               .n_rows = rows[r],
                               .bytes = element * 2.0 * FFN * HIDDEN,
                               .operations = 4.0 * FFN * HIDDEN * rows[r]};
        TRY(bench_print_line(b, &l));
    }
    return OK;
}
