// SPDX-License-Identifier: Apache-2.0
/* The table of `sluice bench-ops --device cuda`: its weights and memory, and the order of its
 * lines. */
#include "bench/ops/cuda_timing.h"
#include "cuda/cuda.h"
#include "engine/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The device generates the dummy values; `make_weight` never reads its data. */
static enum status make_weight(struct bench *b, enum weight_kind kind, enum dtype dtype,
                               int32_t n_experts, int64_t n_out, int64_t n_in,
                               const struct weight **out, struct err *err)
{
    const struct weight_part part = weight_part_plain(NULL, dtype, n_out * n_experts, n_in, n_in);
    const struct weight_desc d = {
        .name = "made up",
        .kind = kind,
        .dtype = dtype,
        .n_out = n_out,
        .n_in = n_in,
        .n_experts = n_experts,
        .n_parts = 1,
        .parts = &part,
        .k_segments = 1,
        .dummy_seed = (uint64_t)b->next_model++,
        .dummy_scale = 1.0f / sqrtf((float)n_in),
    };
    struct weight *w = NULL;
    TRY(b->ops->weight_open(b->be, &d, &w, err));
    *out = w;
    return OK;
}

/* Makes a layer of an 8B model in several copies, and the weights of the other measurements. */
static enum status make_weights(struct bench *b, struct err *err)
{
    const enum dtype t = b->dtype;
    for (int32_t i = 0; i < COPIES; i++) {
        TRY(make_weight(b, WEIGHT_LINEAR, t, 1, QKV, HIDDEN, &b->w_qkv[i], err));
        TRY(make_weight(b, WEIGHT_LINEAR, t, 1, HIDDEN, HIDDEN, &b->w_o[i], err));
        TRY(make_weight(b, WEIGHT_LINEAR, t, 1, 2 * FFN, HIDDEN, &b->w_gate_up[i], err));
        TRY(make_weight(b, WEIGHT_LINEAR, t, 1, HIDDEN, FFN, &b->w_down[i], err));
    }
    TRY(bench_make_quantised(b, err));
    TRY(bench_make_adapters(b, err));
    TRY(make_weight(b, WEIGHT_LINEAR, t, 1, VOCAB, HIDDEN, &b->w_head, err));
    TRY(make_weight(b, WEIGHT_LINEAR, t, 1, 8192, 8192, &b->w_square, err));
    TRY(make_weight(b, WEIGHT_EMBED, t, 1, VOCAB, HIDDEN, &b->w_embed, err));
    TRY(make_weight(b, WEIGHT_VECTOR, DT_F32, 1, 1, HIDDEN, &b->w_norm, err));
    TRY(make_weight(b, WEIGHT_VECTOR, DT_F32, 1, STREAM_GATES, STREAMS * HIDDEN, &b->w_hyper_fn,
                    err));
    TRY(make_weight(b, WEIGHT_VECTOR, DT_F32, 1, 1, STREAM_GATES, &b->w_hyper_base, err));
    TRY(make_weight(b, WEIGHT_VECTOR, DT_F32, 1, 1, 3, &b->w_hyper_scale, err));
    TRY(make_weight(b, WEIGHT_VECTOR, DT_F32, 1, 1, HEADS, &b->w_sinks, err));
    TRY(make_weight(b, WEIGHT_VECTOR, DT_F32, 1, 1, MLA_LORA, &b->w_kv_norm, err));
    TRY(make_weight(b, WEIGHT_HEADS, t, MLA_HEADS, MLA_LORA, MLA_NOPE, &b->w_uk, err));
    TRY(make_weight(b, WEIGHT_HEADS, t, MLA_HEADS, MLA_NOPE, MLA_LORA, &b->w_uv, err));
    b->moe[0] = (struct bench_moe){.route = "moe route",
                                   .experts = "moe experts",
                                   .hidden = 2048,
                                   .ffn = 768,
                                   .n_experts = 128,
                                   .k = 8};
    b->moe[1] = (struct bench_moe){.route = "moe route of 8",
                                   .experts = "moe experts of 14336",
                                   .hidden = 4096,
                                   .ffn = 14336,
                                   .n_experts = 8,
                                   .k = 2};
    for (int32_t i = 0; i < MOE_SHAPES; i++) {
        struct bench_moe *m = &b->moe[i];
        TRY(make_weight(b, WEIGHT_LINEAR, DT_F32, 1, m->n_experts, m->hidden, &m->w_router, err));
        TRY(make_weight(b, WEIGHT_EXPERTS, t, m->n_experts, 2 * m->ffn, m->hidden, &m->w_up, err));
        TRY(make_weight(b, WEIGHT_EXPERTS, t, m->n_experts, m->hidden, m->ffn, &m->w_down, err));
    }
    float inv_freq[HEAD_DIM / 2];
    for (int32_t i = 0; i < HEAD_DIM / 2; i++) {
        inv_freq[i] = powf(500000.0f, -2.0f * (float)i / HEAD_DIM);
    }
    const struct rope_desc rope = {HEAD_DIM / 2, inv_freq, 1.0f, false, LANE_BLOCKS * BLOCK};
    const struct rope_desc mla = {MLA_ROPE / 2, inv_freq, 1.0f, true, LANE_BLOCKS * BLOCK};
    TRY(b->ops->rope_open(b->be, &mla, &b->mla_rope));
    return b->ops->rope_open(b->be, &rope, &b->rope);
}

static enum status make_tensor(struct bench *b, int64_t rows, int32_t width, enum dtype dtype,
                               struct tensor *out)
{
    *out = (struct tensor){.dtype = dtype, .stride = width};
    return b->ops->alloc(b->be, (size_t)rows * (size_t)width * dtype_bytes(dtype), &out->mem);
}

/* Memory of activations and pages, shared by all measurements. */
static enum status set_up(struct bench *b, struct err *err)
{
    const struct backend_limits limits = {
        .max_rows = ROWS,
        .max_out_rows = OUT_ROWS,
        .max_lanes = LANES,
        .max_len = LANE_BLOCKS * BLOCK,
        .max_blocks_per_lane = LANE_BLOCKS,
        .n_blocks = N_BLOCKS,
        .block_tokens = BLOCK,
        .vocab = VOCAB,
        .hidden = HIDDEN,
        .n_steps = 2,
        .max_passes = 4,
    };
    TRY(b->ops->setup(b->be, &limits, err));
    struct kv_layer layers[LAYERS];
    for (int32_t i = 0; i < LAYERS; i++) {
        layers[i] = (struct kv_layer){.n_heads = HEADS,
                                      .n_kv_heads = KV_HEADS,
                                      .head_dim_k = HEAD_DIM,
                                      .head_dim_v = HEAD_DIM};
    }
    const struct kv_set_desc set = {.n_layers = LAYERS, .layers = layers, .dtype = b->dtype};
    TRY(b->ops->kv_open(b->be, 0, &set, err));
    struct kv_layer mla[3 * LAYERS]; // layers of MLA, then their indexes, then those by blocks
    for (int32_t i = 0; i < LAYERS; i++) {
        mla[i] = (struct kv_layer){.n_heads = MLA_HEADS,
                                   .n_kv_heads = 1,
                                   .head_dim_k = MLA_KEY,
                                   .head_dim_v = MLA_LORA,
                                   .v_in_k = true};
        mla[LAYERS + i] = (struct kv_layer){.n_heads = INDEX_HEADS,
                                            .n_kv_heads = 1,
                                            .head_dim_k = INDEX_DIM,
                                            .head_dim_v = INDEX_DIM,
                                            .v_in_k = true,
                                            .index = true};
        mla[2 * LAYERS + i] = (struct kv_layer){.n_heads = M3_HEADS,
                                                .n_kv_heads = M3_KV_HEADS,
                                                .head_dim_k = HEAD_DIM,
                                                .head_dim_v = HEAD_DIM};
    }
    const struct kv_set_desc mla_set = {.n_layers = 3 * LAYERS, .layers = mla, .dtype = b->dtype};
    TRY(b->ops->kv_open(b->be, 1, &mla_set, err));
    const enum dtype act = b->facts.act;
    TRY(make_tensor(b, ROWS, HIDDEN, b->facts.residual, &b->x));
    TRY(make_tensor(b, ROWS, HIDDEN, act, &b->h));
    TRY(make_tensor(b, ROWS, QKV, act, &b->qkv));
    TRY(make_tensor(b, ROWS, HEADS * HEAD_DIM, act, &b->attn));
    TRY(make_tensor(b, ROWS, 2 * FFN, act, &b->mid));
    TRY(make_tensor(b, ROWS, FFN, act, &b->act));
    TRY(make_tensor(b, OUT_ROWS, VOCAB, DT_F32, &b->logits));
    TRY(b->ops->alloc(b->be, (size_t)ROWS * MOE_MOST_K * 4, &b->ids));
    TRY(b->ops->alloc(b->be, (size_t)ROWS * MOE_MOST_K * 4, &b->weights));
    b->rows = xcalloc(ROWS, sizeof *b->rows);
    b->seqs = xcalloc(ROWS, sizeof *b->seqs);
    b->groups = xcalloc(ROWS, sizeof *b->groups);
    b->out_rows = xcalloc(OUT_ROWS, sizeof *b->out_rows);
    b->draws = xcalloc(OUT_ROWS, sizeof *b->draws);
    b->pool = xcalloc(OUT_ROWS, sizeof *b->pool);
    return OK;
}

/* Measures the peaks first, since the other lines are printed as shares of them. */
static enum status print_lines(struct bench *b)
{
    const double element = (double)dtype_bytes(b->dtype);
    TRY(bench_peak_lines(b));
    TRY(bench_row_lines(b, element));
    TRY(bench_product_lines(b, element));
    TRY(bench_quantised_lines(b, element));
    TRY(bench_adapter_lines(b));
    TRY(bench_expert_lines(b, element));
    TRY(bench_draw_lines(b));
    TRY(bench_attention_lines(b, element));
    TRY(bench_mla_lines(b, element));
    TRY(bench_index_lines(b, element));
    TRY(bench_fused_product_lines(b, element));
    TRY(bench_head_lines(b, element));
    return bench_out_row_lines(b, element);
}

static enum status run_all(struct bench *b, struct err *err)
{
    TRY(b->ops->facts(b->be, &b->facts));
    printf("%s, weights and KV in %zu-byte elements\n", b->facts.device, dtype_bytes(b->dtype));
    TRY(make_weights(b, err));
    TRY(set_up(b, err));
    TRY(bench_warm_up(b));
    return print_lines(b);
}

enum status cuda_bench(struct bench *b, const struct backend_options *options, struct err *err)
{
    TRY(cuda_open(options, &b->be, err));
    b->ops = b->be->ops;
    enum status st = run_all(b, err);
    if (st != OK && err->text[0] == '\0') {
        err_set(err, st, "the benchmark stopped: %s", status_name(st));
    }
    return st;
}
