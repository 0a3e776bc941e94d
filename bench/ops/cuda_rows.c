// SPDX-License-Identifier: Apache-2.0
/* Measurements of row-wise ops; also fills all rows with random contents. */
#include "bench/ops/cuda_timing.h"
#include "engine/base/minmax.h"

/* delta_scale is small, so that x does not grow from call to call. */
static enum status issue_norm(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct norm_args a = {.x = b->x,
                                .delta = b->attn,
                                .out = b->h,
                                .weight = b->w_norm,
                                .n_rows = l->n_rows,
                                .width = HIDDEN,
                                .eps = 1e-5f,
                                .delta_scale = 1e-3f};
    return b->ops->norm(b->be, &a);
}

static enum status issue_embed(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct embed_args a = {b->w_embed, b->x, l->n_rows, .scale = 1.0f};
    return b->ops->embed(b->be, &a);
}

/* Successive launches use different layers, so that pages are not in the cache. */
static enum status issue_rope(struct bench *b, const struct line *l, int32_t i)
{
    const struct rope_store_args a = {.qkv = b->qkv,
                                      .rope = b->rope,
                                      .n_rows = l->n_rows,
                                      .layer = i % LAYERS,
                                      .n_heads = HEADS,
                                      .n_kv_heads = KV_HEADS,
                                      .head_dim = HEAD_DIM};
    return b->ops->rope_store(b->be, &a);
}

static enum status issue_activation(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct activation_args a = {.x = b->mid,
                                      .out = b->act,
                                      .n_rows = l->n_rows,
                                      .width = FFN,
                                      .kind = ACT_SILU,
                                      .gated = true};
    return b->ops->activation(b->be, &a);
}

/* The streams are in `mid`, the gates in `logits`. A result is nearly zero, so that streams do not
 * grow from call to call. */
static enum status issue_hyper(struct bench *b, const struct line *l, int32_t i)
{
    struct tensor streams = b->mid, gates = b->logits;
    (void)i;
    streams.stride = STREAMS * HIDDEN;
    gates.stride = HYPER_GATES(STREAMS);
    const struct hyper_args a = {.streams = streams,
                                 .delta = b->attn,
                                 .out = b->h,
                                 .gates = gates,
                                 .fn = b->w_hyper_fn,
                                 .base = b->w_hyper_base,
                                 .scale = b->w_hyper_scale,
                                 .norm = b->w_norm,
                                 .n_rows = l->n_rows,
                                 .width = HIDDEN,
                                 .n = STREAMS,
                                 .n_sinkhorn = 20,
                                 .norm_eps = 1e-6f,
                                 .eps = 1e-6f,
                                 .magnitude = 1e-3f};
    return b->ops->hyper(b->be, &a);
}

/* Times row-wise ops, which are limited by the bytes of their rows. Streams are read twice and
 * written once. */
enum status bench_row_lines(struct bench *b, double element)
{
    static const int32_t rows[] = {1, 64, 256, 8192};
    const double row_bytes[] = {2 * HIDDEN, 4 * HIDDEN, 2 * QKV, 3 * FFN,
                                (3 * STREAMS + 2) * HIDDEN};
    const struct line ops[] = {{.name = "embed", .issue = issue_embed},
                               {.name = "norm with residual", .issue = issue_norm},
                               {.name = "rope and store", .issue = issue_rope},
                               {.name = "silu gate", .issue = issue_activation},
                               {.name = "hyper-connections", .issue = issue_hyper}};
    for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++) {
        for (size_t r = 0; r < 4; r++) {
            struct line l = ops[o];
            l.n_rows = rows[r];
            l.bytes = element * row_bytes[o] * l.n_rows;
            l.shape = rows[r] > LANES ? PREFILL : DECODE;
            TRY(bench_print_line(b, &l));
        }
    }
    return OK;
}

static enum status issue_gather(struct bench *b, const struct line *l, int32_t i)
{
    struct tensor out = b->attn;
    (void)i;
    out.dtype = b->x.dtype;
    const struct gather_args a = {b->x, out, l->n_rows, HIDDEN};
    return b->ops->gather(b->be, &a);
}

static enum status issue_row_gate(struct bench *b, const struct line *l, int32_t i)
{
    const struct row_gate_args a = {.x = b->h,
                                    .y = b->attn,
                                    .weight = b->w_norm,
                                    .n_rows = l->n_rows,
                                    .x_width = HIDDEN,
                                    .y_width = HIDDEN};
    (void)i;
    return b->ops->row_gate(b->be, &a);
}

static enum status issue_logits(struct bench *b, const struct line *l, int32_t i)
{
    const struct logits_args a = {.local = b->logits,
                                  .logits = b->logits,
                                  .n_out = l->n_rows,
                                  .vocab = VOCAB,
                                  .scale = 1.0f,
                                  .softcap = 30.0f};
    (void)i;
    return b->ops->logits(b->be, &a);
}

static enum status issue_pool(struct bench *b, const struct line *l, int32_t i)
{
    const struct pool_args a = {b->h, l->n_rows, HIDDEN};
    (void)i;
    return b->ops->pool(b->be, &a);
}

/* Times ops that run once per pass on the output rows, and ops that only few model families
 * have. */
enum status bench_out_row_lines(struct bench *b, double element)
{
    static const int32_t rows[] = {1, 64, 256};
    const struct line ops[] = {
        {.name = "gather", .issue = issue_gather, .n_in = 2 * HIDDEN},
        {.name = "row gate", .issue = issue_row_gate, .n_in = 3 * HIDDEN},
        {.name = "logits, capped", .issue = issue_logits, .n_in = (int32_t)(8 * VOCAB / element)},
        {.name = "pool", .issue = issue_pool, .n_in = HIDDEN, .pools = true},
    };
    for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++) {
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            struct line l = ops[o];
            l.n_rows = rows[r];
            l.bytes = element * (double)l.n_in * l.n_rows; // n_in: elements moved per row
            TRY(bench_print_line(b, &l));
        }
    }
    return OK;
}

/* Gives every page a copy of the keys in the first pages. */
enum status bench_copy_pages(struct bench *b)
{
    enum { FILLED = ROWS / BLOCK };
    struct pass_results results[4];
    for (int32_t at = FILLED; at < N_BLOCKS; at += FILLED) {
        struct block_copy copies[FILLED];
        for (int32_t i = 0; i < FILLED; i++) {
            copies[i] = (struct block_copy){i * 7 % N_BLOCKS, at + i};
        }
        TRY(b->ops->step_begin(b->be, 0));
        TRY(b->ops->copy_blocks(b->be, lesser(N_BLOCKS - at, FILLED), copies));
        TRY(b->ops->step_end(b->be));
        TRY(b->ops->step_wait(b->be, 0, results, 4));
    }
    return OK;
}

/* Activations are initially zero; an embedding and products fill them with random values. */
enum status bench_warm_up(struct bench *b)
{
    const struct line l = {.n_rows = ROWS, .shape = PREFILL};
    struct pass_shape shape;
    struct pass_results results[4];
    TRY(b->ops->step_begin(b->be, 0));
    TRY(bench_give_blocks(b, 1, ROWS / BLOCK, false));
    bench_make_pass(b, &l);
    TRY(b->ops->pass_begin(b->be, &b->pass, &shape));
    TRY(issue_embed(b, &l, 0));
    const struct norm_args norm = {
        .x = b->x, .out = b->h, .n_rows = ROWS, .width = HIDDEN, .eps = 1e-5f};
    TRY(b->ops->norm(b->be, &norm));
    const struct {
        const struct weight *w;
        struct tensor from, to;
    } products[] = {{b->w_qkv[0], b->h, b->qkv}, {b->w_gate_up[0], b->h, b->mid}};
    for (size_t i = 0; i < 2; i++) {
        const struct linear_args a = {
            .weight = products[i].w, .x = products[i].from, .y = products[i].to, .n_rows = ROWS};
        TRY(b->ops->linear(b->be, &a));
    }
    TRY(issue_activation(b, &l, 0));
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        TRY(issue_rope(b, &l, layer));
    }
    const struct linear_args head = {
        .weight = b->w_head, .x = b->h, .y = b->logits, .n_rows = OUT_ROWS};
    TRY(b->ops->linear(b->be, &head));
    TRY(b->ops->pass_end(b->be));
    TRY(b->ops->step_end(b->be));
    TRY(b->ops->step_wait(b->be, 0, results, 4));
    return bench_copy_pages(b);
}
