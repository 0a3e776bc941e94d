/* Times the ops through the seam: a pass that has an op many times is captured and replayed, and
 * the time of an empty pass is taken off. */
#include "cuda/cuda.h"
#include "bench/ops/cuda_timing.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- setting up --------------------------------------------------------------------------- */

static enum status make_weight(struct bench *b, enum weight_kind kind, enum dtype dtype,
                               int32_t n_experts, int64_t n_out, int64_t n_in,
                               const struct weight **out, struct err *err)
{
    const struct weight_part part =
        weight_part_plain(NULL, dtype, n_out * n_experts, n_in, n_in);
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

static enum status make_weights(struct bench *b, struct err *err)
{
    const enum dtype t = b->dtype;
    for (int32_t i = 0; i < COPIES; i++) {
        TRY(make_weight(b, WEIGHT_LINEAR, t, 1, QKV, HIDDEN, &b->w_qkv[i], err));
        TRY(make_weight(b, WEIGHT_LINEAR, t, 1, HIDDEN, HIDDEN, &b->w_o[i], err));
        TRY(make_weight(b, WEIGHT_LINEAR, t, 1, 2 * FFN, HIDDEN, &b->w_gate_up[i], err));
        TRY(make_weight(b, WEIGHT_LINEAR, t, 1, HIDDEN, FFN, &b->w_down[i], err));
    }
    TRY(make_weight(b, WEIGHT_LINEAR, t, 1, VOCAB, HIDDEN, &b->w_head, err));
    TRY(make_weight(b, WEIGHT_LINEAR, t, 1, 8192, 8192, &b->w_square, err));
    TRY(make_weight(b, WEIGHT_EMBED, t, 1, VOCAB, HIDDEN, &b->w_embed, err));
    TRY(make_weight(b, WEIGHT_VECTOR, DT_F32, 1, 1, HIDDEN, &b->w_norm, err));
    TRY(make_weight(b, WEIGHT_VECTOR, DT_F32, 1, 1, HEADS, &b->w_sinks, err));
    TRY(make_weight(b, WEIGHT_VECTOR, DT_F32, 1, 1, MLA_LORA, &b->w_kv_norm, err));
    TRY(make_weight(b, WEIGHT_HEADS, t, MLA_HEADS, MLA_LORA, MLA_NOPE, &b->w_uk, err));
    TRY(make_weight(b, WEIGHT_HEADS, t, MLA_HEADS, MLA_NOPE, MLA_LORA, &b->w_uv, err));
    b->moe[0] = (struct bench_moe){.route = "moe route", .experts = "moe experts", .hidden = 2048,
                                   .ffn = 768, .n_experts = 128, .k = 8};
    b->moe[1] = (struct bench_moe){.route = "moe route of 8", .experts = "moe experts of 14336",
                                   .hidden = 4096, .ffn = 14336, .n_experts = 8, .k = 2};
    for (int32_t i = 0; i < MOE_SHAPES; i++) {
        struct bench_moe *m = &b->moe[i];
        TRY(make_weight(b, WEIGHT_LINEAR, DT_F32, 1, m->n_experts, m->hidden, &m->w_router, err));
        TRY(make_weight(b, WEIGHT_EXPERTS, t, m->n_experts, 2 * m->ffn, m->hidden, &m->w_up, err));
        TRY(make_weight(b, WEIGHT_EXPERTS, t, m->n_experts, m->hidden, m->ffn, &m->w_down, err));
    }
    float inv_freq[HEAD_DIM / 2];
    for (int32_t i = 0; i < HEAD_DIM / 2; i++) {
        inv_freq[i] = powf(500000.0f, -(float)i / (HEAD_DIM / 2));
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
        layers[i] = (struct kv_layer){HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM, false};
    }
    const struct kv_set_desc set = {LAYERS, layers, b->dtype};
    TRY(b->ops->kv_open(b->be, 0, &set, err));
    struct kv_layer mla[LAYERS];
    for (int32_t i = 0; i < LAYERS; i++) {
        mla[i] = (struct kv_layer){MLA_HEADS, 1, MLA_KEY, MLA_LORA, true};
    }
    const struct kv_set_desc mla_set = {LAYERS, mla, b->dtype};
    TRY(b->ops->kv_open(b->be, 1, &mla_set, err));
    const enum dtype act = b->facts.act;
    TRY(make_tensor(b, ROWS, HIDDEN, b->facts.residual, &b->x));
    TRY(make_tensor(b, ROWS, HIDDEN, act, &b->h));
    TRY(make_tensor(b, ROWS, QKV, act, &b->qkv));
    TRY(make_tensor(b, ROWS, HEADS * HEAD_DIM, act, &b->attn));
    TRY(make_tensor(b, ROWS, 2 * FFN, act, &b->wide));
    TRY(make_tensor(b, ROWS, FFN, act, &b->narrow));
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

/* Lane l's block i; with `shared` all lanes have the first in common. */
enum status bench_give_blocks(struct bench *b, int32_t n_lanes, int32_t n_blocks, bool shared)
{
    int32_t ids[LANE_BLOCKS];
    for (int32_t lane = 0; lane < n_lanes; lane++) {
        for (int32_t i = 0; i < n_blocks; i++) {
            const bool common = shared && i < n_blocks - 1;
            ids[i] = common ? lane / 16 * n_blocks + i : (lane * n_blocks + i) * 7 % N_BLOCKS;
        }
        TRY(b->ops->lane_blocks(b->be, lane, 0, n_blocks, ids));
    }
    return OK;
}

enum status bench_draw_by(struct bench *b, const struct sampling_params *params)
{
    struct pass_results results[4];
    TRY(b->ops->step_begin(b->be, 0));
    for (int32_t i = 0; i < LANES; i++) {
        TRY(b->ops->lane_params(b->be, i, params));
    }
    TRY(b->ops->step_end(b->be));
    return b->ops->step_wait(b->be, 0, results, 4);
}

/* ---- a line ------------------------------------------------------------------------------- */

void bench_make_pass(struct bench *b, const struct line *l)
{
    struct pass *p = &b->pass;
    memset(p, 0, sizeof *p);
    p->model = b->next_model++;
    p->kv_set = l->kv_set;
    p->n_rows = l->n_rows;
    p->n_seqs = l->shape == PREFILL ? 1 : l->n_rows;
    for (int32_t i = 0; i < l->n_rows; i++) {
        const int32_t lane = l->shape == PREFILL ? 0 : i;
        const int32_t pos = l->context + (l->shape == PREFILL ? i : 0);
        b->rows[i] = (struct pass_row){lane % LANES, 17 * i % VOCAB, pos, pos};
        if (i < p->n_seqs) {
            b->seqs[i] = (struct pass_seq){lane % LANES, i, l->shape == PREFILL ? l->n_rows : 1,
                                           l->context, false};
        }
    }
    if (l->shape == SHARED) {
        for (int32_t i = 0; i < l->n_rows; i += 16) {
            b->groups[p->n_groups++] = (struct pass_group){i, 16, l->context / BLOCK};
        }
    }
    p->n_out = p->n_draws = l->n_rows < OUT_ROWS ? l->n_rows : OUT_ROWS;
    for (int32_t i = 0; i < p->n_out; i++) {
        b->out_rows[i] = i;
        b->draws[i] = (struct pass_draw){.out_row = i, .lane = i, .pos = l->context,
                                         .tree_row = -1};
    }
    p->rows = b->rows;
    p->seqs = b->seqs;
    p->groups = b->groups;
    p->out_rows = b->out_rows;
    p->draws = b->draws;
    p->n_pool = l->pools ? p->n_out : 0;
    for (int32_t i = 0; i < p->n_pool; i++) {
        b->pool[i] = (struct pass_pool){.lane = i, .first_out = i, .n_out = 1, .start = true,
                                        .finish = true};
    }
    p->pool = b->pool;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of a pass that has the op n times: the median of several. */
static enum status time_pass(struct bench *b, const struct line *l, int32_t n, double *us)
{
    double all[REPEATS];
    for (int32_t r = -3; r < REPEATS; r++) { // the first are issued and captured
        struct pass_shape shape;
        struct pass_results results[4];
        const int64_t start = clock_now_ns();
        TRY(b->ops->step_begin(b->be, 0));
        TRY(b->ops->pass_begin(b->be, &b->pass, &shape));
        for (int32_t i = 0; shape.issue && i < n; i++) {
            TRY(l->issue(b, l, i));
        }
        TRY(b->ops->pass_end(b->be));
        TRY(b->ops->step_end(b->be));
        TRY(b->ops->step_wait(b->be, 0, results, 4));
        if (r >= 0) {
            all[r] = (double)(clock_now_ns() - start) * 1e-3;
        }
    }
    qsort(all, REPEATS, sizeof all[0], compare_doubles);
    *us = all[REPEATS / 2];
    return OK;
}

enum status bench_run_line(struct bench *b, const struct line *l, double *us)
{
    struct pass_results results[4];
    TRY(b->ops->step_begin(b->be, 1));
    const int32_t n_lanes = l->shape == PREFILL ? 1 : l->n_rows < LANES ? l->n_rows : LANES;
    const int32_t n_tokens = l->context + (l->shape == PREFILL ? l->n_rows : 1);
    if (n_tokens <= LANE_BLOCKS * BLOCK) {
        TRY(bench_give_blocks(b, n_lanes, (n_tokens + BLOCK - 1) / BLOCK, l->shape == SHARED));
    }
    TRY(b->ops->step_end(b->be));
    TRY(b->ops->step_wait(b->be, 1, results, 4));
    double once, many, empty;
    bench_make_pass(b, l);
    TRY(time_pass(b, l, 0, &empty));
    b->pass.model = b->next_model++;
    TRY(time_pass(b, l, 1, &once));
    const double estimate = once > empty ? once - empty : 1.0;
    int32_t n = (int32_t)(20000.0 / estimate);
    n = n < 4 ? 4 : n > 64 ? 64 : n;
    b->pass.model = b->next_model++;
    TRY(time_pass(b, l, n, &many));
    *us = (many - empty) / n;
    return OK;
}

static enum status run_all(struct bench *b, struct err *err)
{
    TRY(b->ops->facts(b->be, &b->facts));
    fprintf(b->out, "%s, weights and KV in %zu-byte elements\n", b->facts.device,
            dtype_bytes(b->dtype));
    TRY(make_weights(b, err));
    TRY(set_up(b, err));
    TRY(bench_warm_up(b));
    return bench_lines(b);
}

enum status cuda_bench(const struct backend_options *options, const char *only, struct err *err)
{
    struct bench b = {.filter = only, .out = stdout, .dtype = options->dtype};
    TRY(cuda_open(options, &b.be, err));
    b.ops = b.be->ops;
    enum status st = run_all(&b, err);
    if (st != OK && err->text[0] == '\0') {
        err_set(err, st, "the bench ended early: %s", status_name(st));
    }
    b.ops->close(b.be);
    free(b.rows);
    free(b.seqs);
    free(b.groups);
    free(b.out_rows);
    free(b.draws);
    free(b.pool);
    return st;
}
