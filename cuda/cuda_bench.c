/* Times the ops through the seam: a pass that has an op many times is captured and replayed, and the
 * time of an empty pass is taken off. */
#include "cuda/cuda.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Llama-3.1-8B, and the experts of Qwen3-30B-A3B. */
enum {
    HIDDEN = 4096,
    HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    FFN = 14336,
    VOCAB = 128256,
    QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM,
    MOE_HIDDEN = 2048,
    MOE_FFN = 768,
    MOE_EXPERTS = 128,
    MOE_K = 8,
    ROWS = 8192,
    OUT_ROWS = 256,
    LANES = 256,
    BLOCK = 64,
    LANE_BLOCKS = 132, // 8,448 tokens
    N_BLOCKS = 10240,
    LAYERS = 2,
    COPIES = 4, // of each weight, so that a cache does not hold them
    REPEATS = 7,
};

struct bench {
    struct backend *be;
    const struct backend_ops *ops;
    struct backend_facts facts;
    enum dtype dtype;
    const char *filter;
    FILE *out;
    int32_t next_model; // a pass's graph is keyed by it: each line has its own
    double copy_peak, product_peak; // bytes and operations per second
    double empty_us[2]; // of a pass without ops, by whether it is captured

    struct tensor x, h, qkv, attn, wide, narrow, logits;
    struct dmem ids, weights;
    const struct weight *w_qkv[COPIES], *w_o[COPIES], *w_gate_up[COPIES], *w_down[COPIES];
    const struct weight *w_head, *w_embed, *w_norm, *w_router, *w_experts_up, *w_experts_down;
    const struct weight *w_square;
    struct rope_table *rope;

    struct pass pass;
    struct pass_row *rows;
    struct pass_seq *seqs;
    struct pass_group *groups;
    int32_t *out_rows;
    struct pass_draw *draws;
};

/* What a line measures: `issue` launches the op once, i counts the launches. */
struct line {
    const char *name;
    enum status (*issue)(struct bench *b, const struct line *l, int32_t i);
    int32_t n_rows, context; // context: tokens that are there already
    double bytes, operations;
    const struct weight *const *weight;
    struct tensor from, to;
    int32_t n_out, n_in;
    enum { DECODE, PREFILL, SHARED } shape;
};

/* ---- setting up --------------------------------------------------------------------------- */

static enum status make_weight(struct bench *b, enum weight_kind kind, enum dtype dtype,
                               int32_t n_experts, int64_t n_out, int64_t n_in,
                               const struct weight **out, struct err *err)
{
    const struct weight_part part = {NULL, dtype, n_out * n_experts, n_in, n_in, 1};
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
    TRY(make_weight(b, WEIGHT_LINEAR, DT_F32, 1, MOE_EXPERTS, MOE_HIDDEN, &b->w_router, err));
    TRY(make_weight(b, WEIGHT_EXPERTS, t, MOE_EXPERTS, 2 * MOE_FFN, MOE_HIDDEN, &b->w_experts_up,
                    err));
    TRY(make_weight(b, WEIGHT_EXPERTS, t, MOE_EXPERTS, MOE_HIDDEN, MOE_FFN, &b->w_experts_down,
                    err));
    float inv_freq[HEAD_DIM / 2];
    for (int32_t i = 0; i < HEAD_DIM / 2; i++) {
        inv_freq[i] = powf(500000.0f, -(float)i / (HEAD_DIM / 2));
    }
    const struct rope_desc rope = {HEAD_DIM / 2, inv_freq, 1.0f, false, LANE_BLOCKS * BLOCK};
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
        layers[i] = (struct kv_layer){KV_HEADS, HEAD_DIM, HEAD_DIM, false};
    }
    const struct kv_set_desc set = {LAYERS, layers, b->dtype};
    TRY(b->ops->kv_open(b->be, 0, &set, err));
    const enum dtype act = b->facts.act;
    TRY(make_tensor(b, ROWS, HIDDEN, b->facts.residual, &b->x));
    TRY(make_tensor(b, ROWS, HIDDEN, act, &b->h));
    TRY(make_tensor(b, ROWS, QKV, act, &b->qkv));
    TRY(make_tensor(b, ROWS, HEADS * HEAD_DIM, act, &b->attn));
    TRY(make_tensor(b, ROWS, 2 * FFN, act, &b->wide));
    TRY(make_tensor(b, ROWS, FFN, act, &b->narrow));
    TRY(make_tensor(b, OUT_ROWS, VOCAB, DT_F32, &b->logits));
    TRY(b->ops->alloc(b->be, (size_t)ROWS * MOE_K * 4, &b->ids));
    TRY(b->ops->alloc(b->be, (size_t)ROWS * MOE_K * 4, &b->weights));
    b->rows = xcalloc(ROWS, sizeof *b->rows);
    b->seqs = xcalloc(ROWS, sizeof *b->seqs);
    b->groups = xcalloc(ROWS, sizeof *b->groups);
    b->out_rows = xcalloc(OUT_ROWS, sizeof *b->out_rows);
    b->draws = xcalloc(OUT_ROWS, sizeof *b->draws);
    return OK;
}

/* Lane l's block i; with `shared` all lanes have the first in common. */
static enum status give_blocks(struct bench *b, int32_t n_lanes, int32_t n_blocks, bool shared)
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

/* ---- a line ------------------------------------------------------------------------------- */

static void make_pass(struct bench *b, const struct line *l)
{
    struct pass *p = &b->pass;
    memset(p, 0, sizeof *p);
    p->model = b->next_model++;
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

static enum status run_line(struct bench *b, const struct line *l, double *us)
{
    struct pass_results results[4];
    TRY(b->ops->step_begin(b->be, 1));
    const int32_t n_lanes = l->shape == PREFILL ? 1 : l->n_rows < LANES ? l->n_rows : LANES;
    const int32_t n_tokens = l->context + (l->shape == PREFILL ? l->n_rows : 1);
    if (n_tokens <= LANE_BLOCKS * BLOCK) {
        TRY(give_blocks(b, n_lanes, (n_tokens + BLOCK - 1) / BLOCK, l->shape == SHARED));
    }
    TRY(b->ops->step_end(b->be));
    TRY(b->ops->step_wait(b->be, 1, results, 4));
    double once, many, empty;
    make_pass(b, l);
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

static enum status print_line(struct bench *b, const struct line *l)
{
    char what[80];
    snprintf(what, sizeof what, "%s %d", l->name, l->n_rows);
    if (l->context > 0) {
        snprintf(what, sizeof what, "%s %d at %d", l->name, l->n_rows, l->context);
    }
    if (b->filter && !strstr(what, b->filter)) {
        return OK;
    }
    double us;
    TRY(run_line(b, l, &us));
    const double bandwidth = l->bytes / us * 1e6, rate = l->operations / us * 1e6;
    const double share_bytes = b->copy_peak > 0 ? bandwidth / b->copy_peak : 0;
    const double share_rate = b->product_peak > 0 ? rate / b->product_peak : 0;
    fprintf(b->out, "%-34s %10.2f us %8.0f GB/s %8.1f TFLOP/s %5.0f %%\n", what, us,
            bandwidth * 1e-9, rate * 1e-12,
            100 * (share_bytes > share_rate ? share_bytes : share_rate));
    fflush(b->out);
    return OK;
}

/* ---- the ops ------------------------------------------------------------------------------ */

static enum status issue_linear(struct bench *b, const struct line *l, int32_t i)
{
    const struct linear_args a = {.weight = l->weight[i % (l->n_out == VOCAB || l->n_out == 8192
                                                               ? 1
                                                               : COPIES)],
                                  .x = l->from, .y = l->to, .n_rows = l->n_rows};
    return b->ops->linear(b->be, &a);
}

static enum status issue_norm(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct norm_args a = {.x = b->x, .delta = b->attn, .out = b->h, .weight = b->w_norm,
                                .n_rows = l->n_rows, .width = HIDDEN, .eps = 1e-5f,
                                .delta_scale = 1e-3f};
    return b->ops->norm(b->be, &a);
}

static enum status issue_embed(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct embed_args a = {b->w_embed, b->x, l->n_rows, 1.0f};
    return b->ops->embed(b->be, &a);
}

static enum status issue_rope(struct bench *b, const struct line *l, int32_t i)
{
    const struct rope_store_args a = {.qkv = b->qkv, .rope = b->rope, .n_rows = l->n_rows,
                                      .layer = i % LAYERS, .n_heads = HEADS,
                                      .n_kv_heads = KV_HEADS, .head_dim = HEAD_DIM};
    return b->ops->rope_store(b->be, &a);
}

static enum status issue_attention(struct bench *b, const struct line *l, int32_t i)
{
    const struct attention_args a = {.q = b->qkv, .out = b->attn, .n_rows = l->n_rows,
                                     .layer = i % LAYERS, .n_heads = HEADS,
                                     .n_kv_heads = KV_HEADS, .head_dim_k = HEAD_DIM,
                                     .head_dim_v = HEAD_DIM, .scale = 0.0883883f};
    return b->ops->attention(b->be, &a);
}

static enum status issue_activation(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct activation_args a = {b->wide, b->narrow, l->n_rows, FFN, ACT_SILU, true};
    return b->ops->activation(b->be, &a);
}

static enum status issue_sample(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct sample_args a = {b->logits, l->n_rows, l->n_rows, VOCAB};
    return b->ops->sample(b->be, &a);
}

static struct moe_ffn_args moe_args(struct bench *b, const struct line *l)
{
    struct tensor x = b->h, y = b->attn;
    x.stride = y.stride = MOE_HIDDEN;
    return (struct moe_ffn_args){.gate_up = b->w_experts_up, .down = b->w_experts_down, .x = x,
                                 .y = y, .ids = b->ids, .weights = b->weights,
                                 .n_rows = l->n_rows, .n_experts = MOE_EXPERTS, .k = MOE_K,
                                 .ffn = MOE_FFN, .kind = ACT_SILU};
}

static enum status issue_route(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct moe_ffn_args m = moe_args(b, l);
    const struct moe_route_args a = {.router = b->w_router, .x = m.x, .ids = b->ids,
                                     .weights = b->weights, .n_rows = l->n_rows,
                                     .n_experts = MOE_EXPERTS, .k = MOE_K, .renormalise = true,
                                     .scale = 1.0f};
    return b->ops->moe_route(b->be, &a);
}

static enum status issue_moe(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct moe_ffn_args a = moe_args(b, l);
    return b->ops->moe_ffn(b->be, &a);
}

static enum status issue_copy(struct bench *b, const struct line *l, int32_t i)
{
    static struct block_copy copies[N_BLOCKS / 2];
    (void)i;
    for (int32_t c = 0; c < l->n_out; c++) {
        copies[c] = (struct block_copy){c, N_BLOCKS / 2 + c};
    }
    return b->ops->copy_blocks(b->be, l->n_out, copies);
}

/* ---- the table ---------------------------------------------------------------------------- */

/* Copies cannot be captured: they are timed between passes, many blocks at once. */
static enum status measure_copy(struct bench *b)
{
    const struct line l = {.n_out = N_BLOCKS / 2};
    double best = 0;
    const double bytes = 2.0 * l.n_out * BLOCK * QKV / 3 * LAYERS * (double)dtype_bytes(b->dtype);
    for (int32_t r = 0; r < REPEATS; r++) {
        struct pass_results results[4];
        const int64_t start = clock_now_ns();
        TRY(b->ops->step_begin(b->be, 0));
        for (int32_t i = 0; i < 4; i++) {
            TRY(issue_copy(b, &l, i));
        }
        TRY(b->ops->step_end(b->be));
        TRY(b->ops->step_wait(b->be, 0, results, 4));
        const double rate = 4 * bytes / ((double)(clock_now_ns() - start) * 1e-9);
        best = rate > best ? rate : best;
    }
    b->copy_peak = best;
    fprintf(b->out, "%-34s %13s %8.0f GB/s\n", "copy of KV blocks (peak)", "", best * 1e-9);
    return OK;
}

static enum status measure_product(struct bench *b)
{
    const struct weight *w = b->w_square;
    struct tensor x = b->wide, y = b->wide;
    x.stride = y.stride = 8192;
    y.mem = dmem_at(y.mem, (size_t)ROWS * 8192 * dtype_bytes(y.dtype));
    const struct line l = {.name = "product 8192 x 8192 x", .issue = issue_linear, .n_rows = ROWS,
                           .weight = &w, .from = x, .to = y, .n_out = 8192, .n_in = 8192,
                           .shape = PREFILL, .operations = 2.0 * ROWS * 8192 * 8192};
    double us;
    TRY(run_line(b, &l, &us));
    b->product_peak = l.operations / us * 1e6;
    fprintf(b->out, "%-34s %10.2f us %13s %8.1f TFLOP/s\n", "product 8192^3 (peak)", us, "",
            b->product_peak * 1e-12);
    return OK;
}

static enum status linear_lines(struct bench *b, double element)
{
    static const int32_t rows[] = {1, 4, 8, 16, 32, 64, 128, 256, 1024, 8192};
    const struct line shapes[] = {
        {.name = "qkv", .weight = b->w_qkv, .from = b->h, .to = b->qkv, .n_out = QKV,
         .n_in = HIDDEN},
        {.name = "o", .weight = b->w_o, .from = b->attn, .to = b->h, .n_out = HIDDEN,
         .n_in = HIDDEN},
        {.name = "gate_up", .weight = b->w_gate_up, .from = b->h, .to = b->wide,
         .n_out = 2 * FFN, .n_in = HIDDEN},
        {.name = "down", .weight = b->w_down, .from = b->narrow, .to = b->h, .n_out = HIDDEN,
         .n_in = FFN},
        {.name = "head", .weight = &b->w_head, .from = b->h, .to = b->logits, .n_out = VOCAB,
         .n_in = HIDDEN},
    };
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            struct line l = shapes[s];
            if (l.n_out == VOCAB && rows[r] > OUT_ROWS) {
                continue;
            }
            l.issue = issue_linear;
            l.n_rows = rows[r];
            l.operations = 2.0 * l.n_rows * l.n_out * l.n_in;
            l.bytes = element * ((double)l.n_out * l.n_in + (double)l.n_rows * l.n_in) +
                      (double)l.n_rows * l.n_out * (l.n_out == VOCAB ? 4 : element);
            l.shape = rows[r] > LANES ? PREFILL : DECODE;
            TRY(print_line(b, &l));
        }
    }
    return OK;
}

static enum status row_lines(struct bench *b, double element)
{
    static const int32_t rows[] = {1, 64, 256, 8192};
    const double row_bytes[] = {2 * HIDDEN, 4 * HIDDEN, 2 * QKV, 3 * FFN};
    const struct line ops[] = {{.name = "embed", .issue = issue_embed},
                               {.name = "norm with residual", .issue = issue_norm},
                               {.name = "rope and store", .issue = issue_rope},
                               {.name = "silu gate", .issue = issue_activation}};
    for (size_t o = 0; o < 4; o++) {
        for (size_t r = 0; r < 4; r++) {
            struct line l = ops[o];
            l.n_rows = rows[r];
            l.bytes = element * row_bytes[o] * l.n_rows;
            l.shape = rows[r] > LANES ? PREFILL : DECODE;
            TRY(print_line(b, &l));
        }
    }
    return OK;
}

static enum status attention_lines(struct bench *b, double element)
{
    static const struct {
        int32_t n_rows, context, shape;
    } cases[] = {{1, 256, DECODE},    {8, 2047, DECODE},   {32, 2047, DECODE},
                 {128, 2047, DECODE}, {256, 255, DECODE},  {64, 2047, DECODE},
                 {16, 8191, DECODE},  {256, 2047, SHARED}, {16, 2047, PREFILL},
                 {512, 0, PREFILL},   {2048, 0, PREFILL},  {4096, 0, PREFILL},
                 {8192, 0, PREFILL},  {256, 7936, PREFILL}, {1024, 7168, PREFILL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool prefill = cases[i].shape == PREFILL;
        struct line l = {.issue = issue_attention, .n_rows = cases[i].n_rows,
                         .context = cases[i].context, .shape = cases[i].shape};
        l.name = prefill ? "attention of one, rows"
                 : l.shape == SHARED ? "attention, 16 share a prefix"
                                     : "attention of";
        const double n = l.n_rows, c = l.context;
        const double pairs = prefill ? n * c + n * (n + 1) / 2 : n * (c + 1);
        const double keys = prefill ? c + n : l.shape == SHARED ? n / 16 * c : n * (c + 1);
        l.operations = 4.0 * pairs * HEADS * HEAD_DIM;
        l.bytes = element * 2 * keys * KV_HEADS * HEAD_DIM;
        TRY(print_line(b, &l));
    }
    return OK;
}

static enum status sample_lines(struct bench *b)
{
    static const int32_t rows[] = {1, 8, 64, 256};
    static const char *const names[] = {"sample greedy", "sample temperature",
                                        "sample top-k and top-p"};
    for (int32_t kind = 0; kind < 3; kind++) {
        struct sampling_params p = sampling_params_default();
        p.temperature = kind == 0 ? 0.0f : 0.8f;
        p.top_p = kind == 2 ? 0.95f : 1.0f;
        p.top_k = kind == 2 ? 50 : 0;
        struct pass_results results[4];
        TRY(b->ops->step_begin(b->be, 0));
        for (int32_t i = 0; i < LANES; i++) {
            TRY(b->ops->lane_params(b->be, i, &p));
        }
        TRY(b->ops->step_end(b->be));
        TRY(b->ops->step_wait(b->be, 0, results, 4));
        for (size_t r = 0; r < 4; r++) {
            const struct line l = {.name = names[kind], .issue = issue_sample, .n_rows = rows[r],
                                   .bytes = 4.0 * VOCAB * rows[r]};
            TRY(print_line(b, &l));
        }
    }
    return OK;
}

static enum status moe_lines(struct bench *b, double element)
{
    static const int32_t rows[] = {1, 8, 64, 256, 2048, 8192};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const double n = rows[r];
        /* Experts that at least one row picks, if picks are even. */
        const double active = MOE_EXPERTS * (1 - pow(1 - (double)MOE_K / MOE_EXPERTS, n));
        struct line l = {.name = "moe route", .issue = issue_route, .n_rows = rows[r],
                         .bytes = 4.0 * MOE_EXPERTS * MOE_HIDDEN + element * n * MOE_HIDDEN,
                         .operations = 2.0 * n * MOE_EXPERTS * MOE_HIDDEN,
                         .shape = rows[r] > LANES ? PREFILL : DECODE};
        TRY(print_line(b, &l));
        l.name = "moe experts";
        l.issue = issue_moe;
        l.bytes = element * 3 * active * MOE_FFN * MOE_HIDDEN;
        l.operations = 6.0 * n * MOE_K * MOE_FFN * MOE_HIDDEN;
        TRY(print_line(b, &l));
    }
    return OK;
}

/* Activations are zero at first; an embedding and products fill them with something random. */
static enum status warm_up(struct bench *b)
{
    const struct line l = {.n_rows = ROWS, .shape = PREFILL};
    struct pass_shape shape;
    struct pass_results results[4];
    TRY(b->ops->step_begin(b->be, 0));
    TRY(give_blocks(b, 1, ROWS / BLOCK, false));
    make_pass(b, &l);
    TRY(b->ops->pass_begin(b->be, &b->pass, &shape));
    TRY(issue_embed(b, &l, 0));
    const struct norm_args norm = {.x = b->x, .out = b->h, .n_rows = ROWS, .width = HIDDEN,
                                   .eps = 1e-5f};
    TRY(b->ops->norm(b->be, &norm));
    const struct {
        const struct weight *w;
        struct tensor from, to;
    } products[] = {{b->w_qkv[0], b->h, b->qkv}, {b->w_gate_up[0], b->h, b->wide}};
    for (size_t i = 0; i < 2; i++) {
        const struct linear_args a = {.weight = products[i].w, .x = products[i].from,
                                      .y = products[i].to, .n_rows = ROWS};
        TRY(b->ops->linear(b->be, &a));
    }
    TRY(issue_activation(b, &l, 0));
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        TRY(issue_rope(b, &l, layer));
    }
    const struct linear_args head = {.weight = b->w_head, .x = b->h, .y = b->logits,
                                     .n_rows = OUT_ROWS};
    TRY(b->ops->linear(b->be, &head));
    TRY(b->ops->pass_end(b->be));
    TRY(b->ops->step_end(b->be));
    TRY(b->ops->step_wait(b->be, 0, results, 4));
    /* Every page gets the keys of the first ones. */
    enum { FILLED = ROWS / BLOCK };
    for (int32_t at = FILLED; at < N_BLOCKS; at += FILLED) {
        struct block_copy copies[FILLED];
        for (int32_t i = 0; i < FILLED; i++) {
            copies[i] = (struct block_copy){i * 7 % N_BLOCKS, at + i};
        }
        TRY(b->ops->step_begin(b->be, 0));
        TRY(b->ops->copy_blocks(b->be, N_BLOCKS - at < FILLED ? N_BLOCKS - at : FILLED, copies));
        TRY(b->ops->step_end(b->be));
        TRY(b->ops->step_wait(b->be, 0, results, 4));
    }
    return OK;
}

static enum status run_all(struct bench *b, struct err *err)
{
    const double element = (double)dtype_bytes(b->dtype);
    TRY(b->ops->facts(b->be, &b->facts));
    fprintf(b->out, "%s, weights and KV in %zu-byte elements\n", b->facts.device,
            dtype_bytes(b->dtype));
    TRY(make_weights(b, err));
    TRY(set_up(b, err));
    TRY(warm_up(b));
    TRY(measure_copy(b));
    TRY(measure_product(b));
    TRY(row_lines(b, element));
    TRY(linear_lines(b, element));
    TRY(moe_lines(b, element));
    TRY(sample_lines(b));
    return attention_lines(b, element);
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
    return st;
}
