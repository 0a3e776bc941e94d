// SPDX-License-Identifier: Apache-2.0
/* The dummy model of `sluice bench-ops` (bench_ops.c). Like main.c, this file may name the
 * backends. */
#include "bench/ops/bench_ops.h"

#include "cpu/cpu.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/device/ops_default.h"
#ifdef SLUICE_CUDA
#include "cuda/cuda.h"
#endif

#include <stdlib.h>
#include <string.h>

/* Shapes of Llama 3.2 1B, Llama 3.1 8B, and one for a quick test. */
static const struct shape shapes[] = {
    {"1b", 2048, 16, 32, 8, 64, 8192, 128256},
    {"8b", 4096, 32, 32, 8, 128, 14336, 128256},
    {"tiny", 256, 2, 8, 2, 32, 512, 1000},
};

enum { BLOCK = 16 };

const struct shape *bench_shape(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (strcmp(shapes[i].name, name) == 0) {
            return &shapes[i];
        }
    }
    return NULL;
}

/* ---- set-up ------------------------------------------------------------------------------- */

/* The backend generates the values from a seed; each weight has its own. */
static enum status open_weight(struct bench *b, enum weight_kind kind, int64_t n_out, int64_t n_in,
                               struct weight **out, struct err *err)
{
    static uint64_t seed = 1;
    struct weight_part part = weight_part_plain(NULL, DT_F32, n_out, n_in, n_in);
    struct weight_desc d = {
        .name = "dummy",
        .kind = kind,
        .dtype = kind == WEIGHT_VECTOR ? DT_F32 : b->dtype,
        .n_out = n_out,
        .n_in = n_in,
        .n_experts = 1,
        .n_parts = 1,
        .parts = &part,
        .k_segments = 1,
        .dummy_seed = seed++,
        .dummy_scale = 0.02f,
    };
    return b->ops->weight_open(b->be, &d, out, err);
}

/* A layer's weights in the fused form that the engine uses: q, k and v are one weight, and so are
 * gate and up. */
static enum status open_weights(struct bench *b, struct err *err)
{
    const struct shape *s = &b->shape;
    int64_t q = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    b->layers = xcalloc((size_t)s->n_layers, sizeof *b->layers);
    for (int32_t i = 0; i < s->n_layers; i++) {
        struct layer *l = &b->layers[i];
        TRY(open_weight(b, WEIGHT_VECTOR, 1, s->hidden, &l->norm_1, err));
        TRY(open_weight(b, WEIGHT_LINEAR, q + 2 * kv, s->hidden, &l->qkv, err));
        TRY(open_weight(b, WEIGHT_LINEAR, s->hidden, q, &l->o, err));
        TRY(open_weight(b, WEIGHT_VECTOR, 1, s->hidden, &l->norm_2, err));
        TRY(open_weight(b, WEIGHT_LINEAR, 2 * (int64_t)s->ffn, s->hidden, &l->gate_up, err));
        TRY(open_weight(b, WEIGHT_LINEAR, s->hidden, s->ffn, &l->down, err));
    }
    TRY(open_weight(b, WEIGHT_VECTOR, 1, s->hidden, &b->norm, err));
    TRY(open_weight(b, WEIGHT_EMBED, s->vocab, s->hidden, &b->embed, err));
    float inv_freq[256];
    for (int32_t i = 0; i < s->head_dim / 2; i++) {
        inv_freq[i] = 1.0f / (1.0f + (float)(i * i)); // arbitrary; only the time matters
    }
    struct rope_desc rope = {s->head_dim / 2, inv_freq, 1.0f, false, b->context + b->max_rows + 1};
    return b->ops->rope_open(b->be, &rope, &b->rope);
}

static enum status matrix(struct bench *b, int64_t rows, int64_t width, enum dtype dtype,
                          struct tensor *out)
{
    *out = (struct tensor){.dtype = dtype, .stride = (int32_t)width};
    return b->ops->alloc(b->be, (size_t)(rows * width) * dtype_bytes(dtype), &out->mem);
}

/* Set 0 is plain; the others are the quantised formats. */
const struct kv_choice *bench_kv_format(int32_t set)
{
    static const char *const names[BENCH_KV_SETS] = {"fp8", "int8", "int4"};
    if (set == 0) {
        return kv_choice_plain(DT_BF16);
    }
    return kv_choice_find(names[set - 1]);
}

/* Opens the unquantised set, and for `--only kv` the others. */
static enum status open_sets(struct bench *b, struct kv_set_desc desc, int32_t n, struct err *err)
{
    for (int32_t i = 0; i < n; i++) {
        desc.format = bench_kv_format(i)->format;
        TRY(b->ops->kv_open(b->be, i, &desc, err));
    }
    return OK;
}

/* Allocates blocks for all lanes at the longest context, and activations for the most rows. */
static enum status open_memory(struct bench *b, struct err *err)
{
    const struct shape *s = &b->shape;
    int32_t per_lane = (b->context + b->max_rows) / BLOCK + 1;
    bool kv = b->only && strcmp(b->only, "kv") == 0;
    b->n_lanes = kv ? 4 : BENCH_LANES;
    b->n_blocks = per_lane + b->n_lanes * (b->context / BLOCK + 2);
    struct backend_limits limits = {
        .max_rows = b->max_rows,
        .max_out_rows = BENCH_LANES,
        .max_lanes = BENCH_LANES,
        .max_len = b->context + b->max_rows,
        .max_blocks_per_lane = per_lane,
        .n_blocks = b->n_blocks,
        .block_tokens = BLOCK,
        .vocab = s->vocab,
        .hidden = s->hidden,
        .n_steps = 1,
        .max_passes = 1,
    };
    TRY(b->ops->setup(b->be, &limits, err));
    struct kv_layer *layers = xcalloc((size_t)s->n_layers, sizeof *layers);
    for (int32_t i = 0; i < s->n_layers; i++) {
        layers[i] = (struct kv_layer){.n_heads = s->n_heads,
                                      .n_kv_heads = s->n_kv_heads,
                                      .head_dim_k = s->head_dim,
                                      .head_dim_v = s->head_dim};
    }
    struct kv_set_desc plain = {.n_layers = s->n_layers, .layers = layers, .dtype = b->dtype};
    enum status st = open_sets(b, plain, kv ? BENCH_KV_SETS : 1, err);
    free(layers);
    TRY(st);
    struct backend_facts facts;
    TRY(b->ops->facts(b->be, &facts));
    int32_t q = s->n_heads * s->head_dim;
    TRY(matrix(b, b->max_rows, s->hidden, facts.residual, &b->x));
    TRY(matrix(b, b->max_rows, s->hidden, facts.act, &b->h));
    TRY(matrix(b, b->max_rows, q + 2 * s->n_kv_heads * s->head_dim, facts.act, &b->qkv));
    TRY(matrix(b, b->max_rows, q, facts.act, &b->attn));
    TRY(matrix(b, b->max_rows, 2 * s->ffn, facts.act, &b->mid));
    TRY(matrix(b, b->max_rows, s->ffn, facts.act, &b->act));
    TRY(matrix(b, b->max_rows, s->hidden, facts.act, &b->delta));
    TRY(matrix(b, BENCH_LANES, s->hidden, facts.residual, &b->out_x));
    TRY(matrix(b, BENCH_LANES, q, facts.act, &b->out_attn));
    TRY(matrix(b, BENCH_LANES, s->hidden, facts.act, &b->out));
    return matrix(b, BENCH_LANES, s->vocab, DT_F32, &b->logits);
}

static enum status open_backend(struct bench *b, struct err *err)
{
    struct backend_options o = {.n_ranks = 1, .dtype = b->dtype, .threads = b->threads};
    if (strcmp(b->device, "cpu") == 0) {
        return cpu_open(&o, &b->be, err);
    }
    if (strcmp(b->device, "scalar") == 0) {
        return cpu_open_scalar(&o, &b->be, err);
    }
#ifdef SLUICE_CUDA
    if (strncmp(b->device, "cuda", 4) == 0) {
        if (b->device[4] == ':') {
            o.device = (int32_t)strtol(b->device + 5, NULL, 10);
        } else {
            o.device = 0;
        }
        return cuda_open(&o, &b->be, err);
    }
#endif
    return err_set(err, ERR_INVALID, "no such device: %s (cpu, scalar, cuda, cuda:N)", b->device);
}

/* Opens the backend, the model, its memory and the arrays of a pass. */
enum status bench_open(struct bench *b, struct err *err)
{
    b->rows = xcalloc((size_t)b->max_rows, sizeof *b->rows);
    b->seqs = xcalloc(BENCH_LANES, sizeof *b->seqs);
    b->out_rows = xcalloc(BENCH_LANES, sizeof *b->out_rows);
    b->draws = xcalloc(BENCH_LANES, sizeof *b->draws);
    TRY(open_backend(b, err));
    b->ops = b->be->ops;
    TRY(open_weights(b, err));
    return open_memory(b, err);
}

void bench_close(struct bench *b)
{
    if (b->be) {
        b->be->ops->close(b->be);
    }
    free(b->layers);
    free(b->rows);
    free(b->seqs);
    free(b->groups);
    free(b->out_rows);
    free(b->draws);
    free(b->pool);
}

/* ---- passes ------------------------------------------------------------------------------- */

/* Begins a step with one pass: sets each lane's blocks and sampling parameters, and adds rows after
 * `past` tokens. */
enum status bench_begin(struct bench *b, int32_t n_seqs, int32_t rows, int32_t past)
{
    int32_t next = 0, blocks = (past + rows) / BLOCK + 1;
    int32_t *table = xcalloc((size_t)blocks, sizeof *table);
    struct pass_shape shape;
    struct sampling_params params = sampling_params_default();
    params.temperature = 0.0f;
    TRY(b->ops->step_begin(b->be, 0));
    for (int32_t i = 0; i < n_seqs; i++) {
        for (int32_t j = 0; j < blocks; j++) {
            table[j] = next++;
        }
        TRY(b->ops->lane_blocks(b->be, i, 0, blocks, table));
        TRY(b->ops->lane_params(b->be, i, &params));
        b->seqs[i] = (struct pass_seq){i, i * rows, rows, past, false, 0, 0};
        for (int32_t r = 0; r < rows; r++) {
            b->rows[i * rows + r] =
                (struct pass_row){i, (i + r) % b->shape.vocab, past + r, past + r};
        }
        b->out_rows[i] = (i + 1) * rows - 1;
        b->draws[i] = (struct pass_draw){.out_row = i,
                                         .lane = i,
                                         .pos = past + rows - 1,
                                         .n_prompt = past + rows,
                                         .tree_row = -1};
    }
    free(table);
    b->pass = (struct pass){.kv_set = b->kv_set,
                            .n_rows = n_seqs * rows,
                            .rows = b->rows,
                            .n_seqs = n_seqs,
                            .seqs = b->seqs,
                            .n_out = n_seqs,
                            .out_rows = b->out_rows,
                            .n_draws = n_seqs,
                            .draws = b->draws};
    return b->ops->pass_begin(b->be, &b->pass, &shape);
}

enum status bench_end(struct bench *b)
{
    struct pass_results results;
    TRY(b->ops->pass_end(b->be));
    TRY(b->ops->step_end(b->be));
    return b->ops->step_wait(b->be, 0, &results, 1);
}

enum status bench_linear(struct bench *b, struct weight *w, struct tensor x, struct tensor y,
                         int32_t n)
{
    struct linear_args a = {.weight = w, .x = x, .y = y, .n_rows = n};
    return b->ops->linear(b->be, &a);
}

static struct norm_args norm_args(const struct bench *b, struct weight *w, struct tensor delta,
                                  struct tensor x, struct tensor out, int32_t n)
{
    return (struct norm_args){.x = x,
                              .delta = delta,
                              .out = out,
                              .weight = w,
                              .n_rows = n,
                              .width = b->shape.hidden,
                              .eps = 1e-5f,
                              .delta_scale = 1.0f};
}

enum status bench_norm(struct bench *b, struct weight *w, struct tensor delta, struct tensor x,
                       struct tensor out, int32_t n)
{
    struct norm_args a = norm_args(b, w, delta, x, out, n);
    return b->ops->norm(b->be, &a);
}

enum status bench_store(struct bench *b, int32_t layer, int32_t n)
{
    const struct shape *s = &b->shape;
    struct rope_store_args a = {.qkv = b->qkv,
                                .rope = b->rope,
                                .n_rows = n,
                                .layer = layer,
                                .n_heads = s->n_heads,
                                .n_kv_heads = s->n_kv_heads,
                                .head_dim = s->head_dim};
    return b->ops->rope_store(b->be, &a);
}

enum status bench_attention(struct bench *b, int32_t layer, int32_t n)
{
    const struct shape *s = &b->shape;
    struct attention_args a = {.q = b->qkv,
                               .out = b->attn,
                               .n_rows = n,
                               .layer = layer,
                               .n_heads = s->n_heads,
                               .n_kv_heads = s->n_kv_heads,
                               .head_dim_k = s->head_dim,
                               .head_dim_v = s->head_dim,
                               .scale = 0.125f};
    return b->ops->attention(b->be, &a);
}

enum status bench_activate(struct bench *b, int32_t n)
{
    struct activation_args a = {.x = b->mid,
                                .out = b->act,
                                .n_rows = n,
                                .width = b->shape.ffn,
                                .kind = ACT_SILU,
                                .gated = true};
    return b->ops->activation(b->be, &a);
}

enum status bench_head(struct bench *b)
{
    struct linear_args a = {
        .weight = b->embed, .x = b->out, .y = b->logits, .n_rows = b->pass.n_out, .head = true};
    return b->ops->linear(b->be, &a);
}

enum status bench_sample(struct bench *b)
{
    struct sample_args a = {.logits = b->logits,
                            .n_out = b->pass.n_out,
                            .n_draws = b->pass.n_draws,
                            .n_vocab_used = b->shape.vocab};
    return b->ops->sample(b->be, &a);
}

enum status bench_mlp(struct bench *b, const struct layer *l, const struct norm_args *norm,
                      int32_t n)
{
    struct linear_args up = {.weight = l->gate_up, .x = b->h, .y = b->mid, .n_rows = n};
    struct activation_args act = {.x = b->mid,
                                  .out = b->act,
                                  .n_rows = n,
                                  .width = b->shape.ffn,
                                  .kind = ACT_SILU,
                                  .gated = true};
    struct linear_args down = {.weight = l->down, .x = b->act, .y = b->delta, .n_rows = n};
    if (norm) {
        return ops_norm_linear(b->be, norm, &up, &act, &down);
    }
    return ops_mlp(b->be, &up, &act, &down);
}

/* Ends the time of one op and starts that of the next. */
static void lap(struct bench *b)
{
    if (b->laps) {
        int64_t now = clock_now_ns();
        double t = (double)(now - b->lap_start) * 1e-9;
        b->laps[b->lap] = lesser(t, b->laps[b->lap]);
        b->lap_start = now;
        b->lap++;
    }
}

enum { LAYER_LAPS = 5, OTHER_LAPS = 6 };

int32_t bench_n_laps(const struct bench *b)
{
    return b->shape.n_layers * LAYER_LAPS + OTHER_LAPS;
}

#define OP(call)                                                                                   \
    do {                                                                                           \
        TRY(call);                                                                                 \
        lap(b);                                                                                    \
    } while (0)

/* Keeps only the output rows, as the decoder does. */
static enum status narrow(struct bench *b, struct tensor *x, struct tensor *attn, int32_t *n)
{
    const struct shape *s = &b->shape;
    if (*n == b->pass.n_out) {
        return OK;
    }
    *n = b->pass.n_out;
    struct gather_args rows = {*x, b->out_x, *n, s->hidden};
    struct gather_args heads = {*attn, b->out_attn, *n, s->n_heads * s->head_dim};
    *x = b->out_x;
    *attn = b->out_attn;
    TRY(b->ops->gather(b->be, &rows));
    return b->ops->gather(b->be, &heads);
}

/* Issues the same ops in the same order as a model of this shape. If laps are wanted, the time of
 * each op is recorded. */
enum status bench_forward(struct bench *b)
{
    int32_t n = b->pass.n_rows;
    struct tensor none = {{NULL}, DT_F32, 0}, x = b->x, attn = b->attn;
    struct embed_args embed = {b->embed, b->x, n, .scale = 1.0f};
    b->lap = 0;
    b->lap_start = b->laps ? clock_now_ns() : 0;
    OP(b->ops->embed(b->be, &embed));
    for (int32_t i = 0; i < b->shape.n_layers; i++) {
        struct layer *l = &b->layers[i];
        struct norm_args norm = norm_args(b, l->norm_1, i > 0 ? b->delta : none, x, b->h, n);
        struct linear_args qkv = {.weight = l->qkv, .x = b->h, .y = b->qkv, .n_rows = n};
        OP(ops_norm_linear(b->be, &norm, &qkv, NULL, NULL));
        OP(bench_store(b, i, n));
        OP(bench_attention(b, i, n));
        if (i == b->shape.n_layers - 1) {
            OP(narrow(b, &x, &attn, &n));
        }
        OP(bench_linear(b, l->o, attn, b->delta, n));
        norm = norm_args(b, l->norm_2, b->delta, x, b->h, n);
        OP(bench_mlp(b, l, &norm, n));
    }
    OP(bench_norm(b, b->norm, b->delta, x, b->out, n));
    OP(bench_head(b));
    struct logits_args logits = {.local = b->logits,
                                 .logits = b->logits,
                                 .n_out = n,
                                 .vocab = b->shape.vocab,
                                 .scale = 1.0f};
    OP(b->ops->logits(b->be, &logits));
    OP(bench_sample(b));
    return OK;
}
