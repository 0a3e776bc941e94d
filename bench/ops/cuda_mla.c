// SPDX-License-Identifier: Apache-2.0
/* Measurements of MLA: q is in `mid`, the latent in `h`, absorbed queries in `act`. */
#include "bench/ops/cuda_timing.h"

static struct tensor of_width(struct tensor t, int32_t width)
{
    t.stride = width;
    return t;
}

/* Stores the latent and applies rope to the queries' rotated part. */
static enum status issue_mla_store(struct bench *b, const struct line *l, int32_t i)
{
    const struct mla_store_args a = {.q = of_width(b->mid, MLA_HEADS * MLA_Q),
                                     .kv = of_width(b->h, MLA_KEY),
                                     .q_out = of_width(b->act, MLA_HEADS * MLA_KEY),
                                     .rope = b->mla_rope,
                                     .n_rows = l->n_rows,
                                     .layer = i % LAYERS,
                                     .n_heads = MLA_HEADS,
                                     .q_head = MLA_Q,
                                     .q_rope_offset = MLA_NOPE,
                                     .rope_dim = MLA_ROPE,
                                     .kv_lora = MLA_LORA,
                                     .q_out_head = MLA_KEY,
                                     .q_out_offset = MLA_LORA,
                                     .kv_norm = b->w_kv_norm,
                                     .eps = 1e-6f};
    return b->ops->mla_store(b->be, &a);
}

/* Multiplies queries with W_UK; after this, attention runs on the latents alone. */
static enum status issue_absorb(struct bench *b, const struct line *l, int32_t i)
{
    const struct linear_heads_args a = {.weight = b->w_uk,
                                        .x = of_width(b->mid, MLA_HEADS * MLA_Q),
                                        .y = of_width(b->act, MLA_HEADS * MLA_KEY),
                                        .n_rows = l->n_rows,
                                        .x_head = MLA_Q,
                                        .y_head = MLA_KEY};
    (void)i;
    return b->ops->linear_heads(b->be, &a);
}

/* Multiplies the result of attention with W_UV, which gives the values of each head. */
static enum status issue_expand(struct bench *b, const struct line *l, int32_t i)
{
    const struct linear_heads_args a = {.weight = b->w_uv,
                                        .x = of_width(b->act, MLA_HEADS * MLA_LORA),
                                        .y = of_width(b->attn, MLA_HEADS * MLA_NOPE),
                                        .n_rows = l->n_rows,
                                        .x_head = MLA_LORA,
                                        .y_head = MLA_NOPE};
    (void)i;
    return b->ops->linear_heads(b->be, &a);
}

static enum status issue_mla_attention(struct bench *b, const struct line *l, int32_t i)
{
    const struct attention_args a = {.q = of_width(b->act, MLA_HEADS * MLA_KEY),
                                     .out = of_width(b->mid, MLA_HEADS * MLA_LORA),
                                     .n_rows = l->n_rows,
                                     .layer = i % LAYERS,
                                     .n_heads = MLA_HEADS,
                                     .n_kv_heads = 1,
                                     .head_dim_k = MLA_KEY,
                                     .head_dim_v = MLA_LORA,
                                     .scale = 0.0721688f};
    return b->ops->attention(b->be, &a);
}

/* All query heads share one KV head, so each element of the cache is used in MLA_HEADS products. */
enum status bench_mla_lines(struct bench *b, double element)
{
    static const int32_t rows[] = {1, 64, 256, 2048};
    const double weight = (double)MLA_HEADS * MLA_LORA * MLA_NOPE;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const double n = rows[r];
        const bool prefill = rows[r] > LANES;
        struct line l = {.n_rows = rows[r], .kv_set = 1, .shape = prefill ? PREFILL : DECODE};
        l.name = "mla store";
        l.issue = issue_mla_store;
        l.bytes = element * n * 2 * (MLA_KEY + MLA_HEADS * MLA_ROPE);
        TRY(bench_print_line(b, &l));
        l.name = "mla, keys absorbed";
        l.issue = issue_absorb;
        l.bytes = element * (weight + n * MLA_HEADS * (MLA_NOPE + MLA_LORA));
        l.operations = 2.0 * n * weight;
        TRY(bench_print_line(b, &l));
        l.name = "mla, values expanded";
        l.issue = issue_expand;
        TRY(bench_print_line(b, &l));
        if (prefill) {
            l.name = "mla attention of one, rows";
        } else {
            l.name = "mla attention of";
        }
        l.issue = issue_mla_attention;
        l.context = prefill ? 0 : 2047;
        const double pairs = prefill ? n * (n + 1) / 2 : n * 2048;
        l.operations = 2.0 * pairs * MLA_HEADS * (MLA_KEY + MLA_LORA);
        l.bytes = element * (prefill ? n : n * 2048) * MLA_KEY;
        TRY(bench_print_line(b, &l));
    }
    return OK;
}
