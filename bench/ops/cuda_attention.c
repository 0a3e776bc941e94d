// SPDX-License-Identifier: Apache-2.0
/* Measurements of attention. */
#include "bench/ops/cuda_timing.h"

/* Issues attention of a layer of Llama 3 8B; successive launches use different layers. */
static enum status issue_attention(struct bench *b, const struct line *l, int32_t i)
{
    const struct attention_args a = {.q = b->qkv,
                                     .out = b->attn,
                                     .n_rows = l->n_rows,
                                     .layer = i % LAYERS,
                                     .n_heads = HEADS,
                                     .n_kv_heads = KV_HEADS,
                                     .head_dim_k = HEAD_DIM,
                                     .head_dim_v = HEAD_DIM,
                                     .scale = 0.0883883f,
                                     .window = l->window,
                                     .softcap = l->softcap,
                                     .sinks = l->sinks ? b->w_sinks : NULL};
    return b->ops->attention(b->be, &a);
}

/* Decoding, shared prefixes and prefill. Bytes are those of the keys and values that must be
 * read. */
static enum status plain_lines(struct bench *b, double element)
{
    static const struct {
        int32_t n_rows, context, shape;
    } cases[] = {{1, 256, DECODE},    {8, 2047, DECODE},    {32, 2047, DECODE},
                 {128, 2047, DECODE}, {256, 255, DECODE},   {64, 2047, DECODE},
                 {16, 8191, DECODE},  {256, 2047, SHARED},  {16, 2047, PREFILL},
                 {512, 0, PREFILL},   {2048, 0, PREFILL},   {4096, 0, PREFILL},
                 {8192, 0, PREFILL},  {256, 7936, PREFILL}, {1024, 7168, PREFILL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool prefill = cases[i].shape == PREFILL;
        struct line l = {.issue = issue_attention,
                         .n_rows = cases[i].n_rows,
                         .context = cases[i].context,
                         .shape = cases[i].shape};
        if (prefill) {
            l.name = "attention of one, rows";
        } else {
            if (l.shape == SHARED) {
                l.name = "attention, 16 share a prefix";
            } else {
                l.name = "attention of";
            }
        }
        const double n = l.n_rows, c = l.context;
        const double pairs = prefill ? n * c + n * (n + 1) / 2 : n * (c + 1);
        const double decoded_keys = l.shape == SHARED ? n / 16 * c : n * (c + 1);
        const double keys = prefill ? c + n : decoded_keys;
        l.operations = 4.0 * pairs * HEADS * HEAD_DIM;
        l.bytes = element * 2 * keys * KV_HEADS * HEAD_DIM;
        TRY(bench_print_line(b, &l));
    }
    return OK;
}

/* The variants that other model families use: a window, a softcap, or sinks. */
static enum status other_lines(struct bench *b, double element)
{
    const struct line kinds[] = {{.name = "attention, window of 1024, of", .window = 1024},
                                 {.name = "attention, capped, of", .softcap = 50.0f},
                                 {.name = "attention, with sinks, of", .sinks = true}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int32_t prefill = 0; prefill < 2; prefill++) {
            struct line l = kinds[k];
            l.issue = issue_attention;
            l.n_rows = prefill ? 2048 : 64;
            l.context = prefill ? 0 : 2047;
            l.shape = prefill ? PREFILL : DECODE;
            const double seen = l.window ? l.window : 2048.0;
            double pairs;
            if (prefill) {
                pairs = 2048.0 * seen - (l.window ? seen * seen / 2 : 2048.0 * 1024);
            } else {
                pairs = 64 * seen;
            }
            l.operations = 4.0 * pairs * HEADS * HEAD_DIM;
            l.bytes = element * 2 * (prefill ? 2048.0 : 64 * seen) * KV_HEADS * HEAD_DIM;
            TRY(bench_print_line(b, &l));
        }
    }
    return OK;
}

enum status bench_attention_lines(struct bench *b, double element)
{
    TRY(plain_lines(b, element));
    return other_lines(b, element);
}
