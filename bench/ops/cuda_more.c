/* More lines of `sluice bench-ops --device cuda`: ops that few families have, and those that run once a
 * pass. */
#include "bench/ops/cuda_timing.h"

static enum status issue_attention(struct bench *b, const struct line *l, int32_t i)
{
    const struct attention_args a = {
        .q = b->qkv, .out = b->attn, .n_rows = l->n_rows, .layer = i % LAYERS, .n_heads = HEADS,
        .n_kv_heads = KV_HEADS, .head_dim_k = HEAD_DIM, .head_dim_v = HEAD_DIM,
        .scale = 0.0883883f, .window = l->window, .softcap = l->softcap,
        .sinks = l->sinks ? b->w_sinks : NULL};
    return b->ops->attention(b->be, &a);
}

static enum status issue_linear_act(struct bench *b, const struct line *l, int32_t i)
{
    const struct linear_args a = {.weight = b->w_gate_up[i % COPIES], .x = b->h, .y = b->wide,
                                  .n_rows = l->n_rows};
    const struct activation_args act = {.x = b->wide, .out = b->narrow, .n_rows = l->n_rows,
                                        .width = FFN, .kind = ACT_SILU, .gated = true};
    return b->ops->linear_act(b->be, &a, &act);
}

/* As a greedy pass has it, the draws behind it. */
static enum status issue_drawn_head(struct bench *b, const struct line *l, int32_t i)
{
    struct logit_bests bests = {.n_bands = 0};
    const struct linear_args a = {.weight = b->w_head, .x = b->h, .y = b->logits,
                                  .n_rows = l->n_rows, .head = true, .n_drawn = VOCAB,
                                  .bests = &bests};
    (void)i;
    TRY(b->ops->linear(b->be, &a));
    const struct sample_args draw = {.logits = b->logits, .n_out = l->n_rows,
                                     .n_draws = l->n_rows, .n_vocab_used = VOCAB, .bests = bests};
    return b->ops->sample(b->be, &draw);
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
    const struct row_gate_args a = {.x = b->h, .y = b->attn, .weight = b->w_norm,
                                    .n_rows = l->n_rows, .x_width = HIDDEN, .y_width = HIDDEN};
    (void)i;
    return b->ops->row_gate(b->be, &a);
}

static enum status issue_logits(struct bench *b, const struct line *l, int32_t i)
{
    const struct logits_args a = {b->logits, b->logits, l->n_rows, VOCAB, 1.0f, 30.0f};
    (void)i;
    return b->ops->logits(b->be, &a);
}

static enum status issue_pool(struct bench *b, const struct line *l, int32_t i)
{
    const struct pool_args a = {b->h, l->n_rows, HIDDEN};
    (void)i;
    return b->ops->pool(b->be, &a);
}

/* ---- MLA: q lies in `wide`, the latent in `h`, absorbed queries in `narrow` --------------- */

static struct tensor of_width(struct tensor t, int32_t width)
{
    t.stride = width;
    return t;
}

static enum status issue_mla_store(struct bench *b, const struct line *l, int32_t i)
{
    const struct mla_store_args a = {
        .q = of_width(b->wide, MLA_HEADS * MLA_Q), .kv = of_width(b->h, MLA_KEY),
        .q_out = of_width(b->narrow, MLA_HEADS * MLA_KEY), .rope = b->mla_rope,
        .n_rows = l->n_rows, .layer = i % LAYERS, .n_heads = MLA_HEADS, .q_head = MLA_Q,
        .q_rope_offset = MLA_NOPE, .rope_dim = MLA_ROPE, .kv_lora = MLA_LORA,
        .q_out_head = MLA_KEY, .q_out_offset = MLA_LORA, .kv_norm = b->w_kv_norm, .eps = 1e-6f};
    return b->ops->mla_store(b->be, &a);
}

static enum status issue_absorb(struct bench *b, const struct line *l, int32_t i)
{
    const struct linear_heads_args a = {
        .weight = b->w_uk, .x = of_width(b->wide, MLA_HEADS * MLA_Q),
        .y = of_width(b->narrow, MLA_HEADS * MLA_KEY), .n_rows = l->n_rows, .x_head = MLA_Q,
        .y_head = MLA_KEY};
    (void)i;
    return b->ops->linear_heads(b->be, &a);
}

static enum status issue_expand(struct bench *b, const struct line *l, int32_t i)
{
    const struct linear_heads_args a = {
        .weight = b->w_uv, .x = of_width(b->narrow, MLA_HEADS * MLA_LORA),
        .y = of_width(b->attn, MLA_HEADS * MLA_NOPE), .n_rows = l->n_rows, .x_head = MLA_LORA,
        .y_head = MLA_NOPE};
    (void)i;
    return b->ops->linear_heads(b->be, &a);
}

static enum status issue_mla_attention(struct bench *b, const struct line *l, int32_t i)
{
    const struct attention_args a = {
        .q = of_width(b->narrow, MLA_HEADS * MLA_KEY), .out = of_width(b->wide, MLA_HEADS * MLA_LORA),
        .n_rows = l->n_rows, .layer = i % LAYERS, .n_heads = MLA_HEADS, .n_kv_heads = 1,
        .head_dim_k = MLA_KEY, .head_dim_v = MLA_LORA, .scale = 0.0721688f};
    return b->ops->attention(b->be, &a);
}

/* ---- the lines ---------------------------------------------------------------------------- */

/* Attention as other families have it, and its softmax's further terms. */
static enum status other_attention_lines(struct bench *b, double element)
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
            const double pairs = prefill ? 2048.0 * seen - (l.window ? seen * seen / 2 : 2048.0 * 1024)
                                         : 64 * seen;
            l.operations = 4.0 * pairs * HEADS * HEAD_DIM;
            l.bytes = element * 2 * (prefill ? 2048.0 : 64 * seen) * KV_HEADS * HEAD_DIM;
            TRY(bench_print_line(b, &l));
        }
    }
    return OK;
}

static enum status mla_lines(struct bench *b, double element)
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
        l.name = prefill ? "mla attention of one, rows" : "mla attention of";
        l.issue = issue_mla_attention;
        l.context = prefill ? 0 : 2047;
        const double pairs = prefill ? n * (n + 1) / 2 : n * 2048;
        l.operations = 2.0 * pairs * MLA_HEADS * (MLA_KEY + MLA_LORA);
        l.bytes = element * (prefill ? n : n * 2048) * MLA_KEY;
        TRY(bench_print_line(b, &l));
    }
    return OK;
}

/* What runs once a pass, on out rows, and what few families have. */
static enum status other_lines(struct bench *b, double element)
{
    static const int32_t rows[] = {1, 64, 256};
    const double head = (double)VOCAB * HIDDEN;
    struct sampling_params greedy = sampling_params_default();
    greedy.temperature = 0.0f;
    TRY(bench_draw_by(b, &greedy));
    const struct line ops[] = {
        {.name = "gate_up with silu", .issue = issue_linear_act, .bytes = 2.0 * FFN * HIDDEN,
         .operations = 4.0 * FFN * HIDDEN},
        {.name = "head and greedy draws", .issue = issue_drawn_head, .bytes = head,
         .operations = 2.0 * head},
        {.name = "gather", .issue = issue_gather, .n_in = 2 * HIDDEN},
        {.name = "row gate", .issue = issue_row_gate, .n_in = 3 * HIDDEN},
        {.name = "logits, capped", .issue = issue_logits, .n_in = (int32_t)(8 * VOCAB / element)},
        {.name = "pool", .issue = issue_pool, .n_in = HIDDEN, .pools = true},
    };
    for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++) {
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            struct line l = ops[o];
            l.n_rows = rows[r];
            l.bytes = element * (l.bytes + (double)l.n_in * l.n_rows); // n_in: what a row moves
            l.operations *= l.n_rows;
            TRY(bench_print_line(b, &l));
        }
    }
    return OK;
}

enum status bench_more_lines(struct bench *b, double element)
{
    TRY(other_attention_lines(b, element));
    TRY(mla_lines(b, element));
    return other_lines(b, element);
}
