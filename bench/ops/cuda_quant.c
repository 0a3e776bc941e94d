// SPDX-License-Identifier: Apache-2.0
/* Measurements of products with weights that stay quantised. */
#include "bench/ops/cuda_timing.h"

#include <stdio.h>

/* Formats that checkpoints of this size use. */
static const struct {
    const char *name;
    enum dtype values, scales;
    int32_t zero, block_rows, block_cols; // block_cols 0: all columns
    double bytes;                         // per weight
} formats[BENCH_FORMATS] = {
    {"fp8 in blocks", DT_E4M3, DT_F32, 0, 128, 128, 1.0 + 4.0 / 128},
    {"fp8", DT_E4M3, DT_BF16, 0, 1, 0, 1.0},
    {"int4", DT_U4, DT_BF16, 8, 1, 128, 0.5 + 2.0 / 128},
    {"mxfp4", DT_E2M1, DT_E8M0, 0, 1, 32, 0.5 + 1.0 / 32},
};

/* The products of a layer of an 8B model. */
static const struct {
    const char *name;
    int32_t n_out, n_in;
    bool is_gated;
} products[BENCH_QUANT_PRODUCTS] = {
    {"qkv", QKV, HIDDEN, false},
    {"o", HIDDEN, HIDDEN, false},
    {"gate_up with silu", 2 * FFN, HIDDEN, true},
    {"down", HIDDEN, FFN, false},
};

/* Makes weights of dummy numbers, with the scales and zero points of each format. */
enum status bench_make_quantised(struct bench *b, struct err *err)
{
    for (int32_t f = 0; f < BENCH_FORMATS; f++) {
        for (int32_t i = 0; i < BENCH_QUANT_PRODUCTS * COPIES; i++) {
            const int32_t n_out = products[i / COPIES].n_out, n_in = products[i / COPIES].n_in;
            struct weight_part part = weight_part_plain(NULL, formats[f].values, n_out, n_in, n_in);
            part.codec.scales.dtype = formats[f].scales;
            part.codec.zero = formats[f].zero;
            part.codec.block_rows = formats[f].block_rows;
            if (formats[f].block_cols) {
                part.codec.block_cols = formats[f].block_cols;
            } else {
                part.codec.block_cols = n_in;
            }
            const struct weight_desc d = {.name = "made up",
                                          .kind = WEIGHT_LINEAR,
                                          .dtype = b->dtype,
                                          .n_out = n_out,
                                          .n_in = n_in,
                                          .n_experts = 1,
                                          .n_parts = 1,
                                          .parts = &part,
                                          .k_segments = 1,
                                          .dummy_seed = (uint64_t)b->next_model++,
                                          .dummy_scale = 0.02f};
            struct weight *w = NULL;
            TRY(b->ops->weight_open(b->be, &d, &w, err));
            b->w_quantised[f][i / COPIES][i % COPIES] = w;
        }
    }
    return OK;
}

/* As in the engine, gated products are fused with the activation. */
static enum status issue(struct bench *b, const struct line *l, int32_t i)
{
    struct product_sums sums = {.n = 0}; // as in the engine, products may leave partial sums
    const struct linear_args a = {.weight = l->weight[i % COPIES],
                                  .x = l->from,
                                  .y = l->to,
                                  .n_rows = l->n_rows,
                                  .sums = &sums};
    const struct activation_args act = {.x = b->mid,
                                        .out = b->act,
                                        .n_rows = l->n_rows,
                                        .width = FFN,
                                        .kind = ACT_SILU,
                                        .gated = true};
    if (l->n_out == 2 * FFN) {
        return b->ops->linear_act(b->be, &a, &act);
    }
    return b->ops->linear(b->be, &a);
}

/* Bytes are the format's own, so formats can be compared by their share of the bandwidth. */
enum status bench_quantised_lines(struct bench *b, double element)
{
    static const int32_t rows[] = {1, 8, 16, 32, 64, 128, 256, 1024, 8192};
    const struct tensor from[BENCH_QUANT_PRODUCTS] = {b->h, b->attn, b->h, b->act};
    const struct tensor to[BENCH_QUANT_PRODUCTS] = {b->qkv, b->h, b->mid, b->h};
    for (int32_t f = 0; f < BENCH_FORMATS; f++) {
        for (int32_t i = 0; i < BENCH_QUANT_PRODUCTS; i++) {
            for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
                char name[64];
                snprintf(name, sizeof name, "%s, %s", formats[f].name, products[i].name);
                struct line l = {.name = name,
                                 .issue = issue,
                                 .n_rows = rows[r],
                                 .weight = b->w_quantised[f][i],
                                 .from = from[i],
                                 .to = to[i],
                                 .n_out = products[i].n_out,
                                 .n_in = products[i].n_in};
                const double n = (double)l.n_out * l.n_in;
                l.operations = 2.0 * n * l.n_rows;
                l.bytes =
                    formats[f].bytes * n +
                    element * l.n_rows * (l.n_in + (products[i].is_gated ? l.n_out / 2 : l.n_out));
                l.shape = rows[r] > LANES ? PREFILL : DECODE;
                TRY(bench_print_line(b, &l));
            }
        }
    }
    return OK;
}
