/* The table of `sluice bench-ops --device cuda`: each op at an 8B model's shapes. */
#include "bench/ops/cuda_timing.h"
#include "engine/base/clock.h"

#include <math.h>
#include <string.h>

enum status bench_print_line(struct bench *b, const struct line *l)
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
    TRY(bench_run_line(b, l, &us));
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
    const struct activation_args a = {.x = b->wide, .out = b->narrow, .n_rows = l->n_rows,
                                      .width = FFN, .kind = ACT_SILU, .gated = true};
    return b->ops->activation(b->be, &a);
}

static enum status issue_sample(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct sample_args a = {.logits = b->logits, .n_out = l->n_rows, .n_draws = l->n_rows,
                                  .n_vocab_used = VOCAB};
    return b->ops->sample(b->be, &a);
}

static struct moe_ffn_args moe_args(struct bench *b, const struct line *l)
{
    const struct bench_moe *m = l->moe;
    struct tensor x = b->h, y = b->attn;
    x.stride = y.stride = m->hidden;
    return (struct moe_ffn_args){.gate_up = m->w_up, .down = m->w_down, .x = x, .y = y,
                                 .ids = b->ids, .weights = b->weights, .n_rows = l->n_rows,
                                 .n_experts = m->n_experts, .k = m->k, .ffn = m->ffn,
                                 .kind = ACT_SILU};
}

static enum status issue_route(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct moe_ffn_args m = moe_args(b, l);
    const struct moe_route_args a = {.router = l->moe->w_router, .x = m.x, .ids = b->ids,
                                     .weights = b->weights, .n_rows = l->n_rows,
                                     .n_experts = m.n_experts, .k = m.k, .renormalise = true,
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
    TRY(bench_run_line(b, &l, &us));
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
            TRY(bench_print_line(b, &l));
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
            TRY(bench_print_line(b, &l));
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
        TRY(bench_print_line(b, &l));
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
        TRY(bench_draw_by(b, &p));
        for (size_t r = 0; r < 4; r++) {
            const struct line l = {.name = names[kind], .issue = issue_sample, .n_rows = rows[r],
                                   .bytes = 4.0 * VOCAB * rows[r]};
            TRY(bench_print_line(b, &l));
        }
    }
    return OK;
}

/* The picks that the experts' lines work with, whatever lines are asked for. */
static enum status route_all(struct bench *b, const struct bench_moe *m)
{
    const struct line l = {.n_rows = ROWS, .shape = PREFILL, .moe = m};
    struct pass_shape shape;
    struct pass_results results[4];
    TRY(b->ops->step_begin(b->be, 0));
    bench_make_pass(b, &l);
    TRY(b->ops->pass_begin(b->be, &b->pass, &shape));
    TRY(issue_route(b, &l, 0));
    TRY(b->ops->pass_end(b->be));
    TRY(b->ops->step_end(b->be));
    return b->ops->step_wait(b->be, 0, results, 4);
}

static enum status moe_lines(struct bench *b, const struct bench_moe *m, double element)
{
    static const int32_t rows[] = {1, 8, 64, 256, 512, 1024, 2048, 4096, 8192};
    TRY(route_all(b, m));
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const double n = rows[r];
        /* Experts that at least one row picks, if picks are even. */
        const double active = m->n_experts * (1 - pow(1 - (double)m->k / m->n_experts, n));
        struct line l = {.name = m->route, .issue = issue_route, .n_rows = rows[r], .moe = m,
                         .bytes = 4.0 * m->n_experts * m->hidden + element * n * m->hidden,
                         .operations = 2.0 * n * m->n_experts * m->hidden,
                         .shape = rows[r] > LANES ? PREFILL : DECODE};
        TRY(bench_print_line(b, &l));
        l.name = m->experts;
        l.issue = issue_moe;
        l.bytes = element * 3 * active * m->ffn * m->hidden;
        l.operations = 6.0 * n * m->k * m->ffn * m->hidden;
        TRY(bench_print_line(b, &l));
    }
    return OK;
}

/* Activations are zero at first; an embedding and products fill them with something random. */
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

enum status bench_lines(struct bench *b)
{
    const double element = (double)dtype_bytes(b->dtype);
    TRY(measure_copy(b));
    TRY(measure_product(b));
    TRY(row_lines(b, element));
    TRY(linear_lines(b, element));
    for (int32_t i = 0; i < MOE_SHAPES; i++) {
        TRY(moe_lines(b, &b->moe[i], element));
    }
    TRY(sample_lines(b));
    TRY(attention_lines(b, element));
    return bench_more_lines(b, element);
}
