// SPDX-License-Identifier: Apache-2.0
/* Measurements of sparse attention as in DeepSeek V3.2 with 8 ranks, and by blocks as in MiniMax
 * M3: picks, and attention over them. The index layers follow the layers of MLA in their set, and
 * after them come layers of plain attention. Index queries are in `mid`, weights in `h`, other
 * queries in `act`. */
#include "bench/ops/cuda_timing.h"
#include "engine/base/minmax.h"

static struct tensor of_width(struct tensor t, int32_t width)
{
    t.stride = width;
    return t;
}

static struct key_picks picks;

static enum status issue_pick(struct bench *b, const struct line *l, int32_t i)
{
    const struct index_pick_args a = {.q = of_width(b->mid, INDEX_HEADS * INDEX_DIM),
                                      .weights = of_width(b->h, INDEX_HEADS),
                                      .n_rows = l->n_rows,
                                      .layer = LAYERS + i % LAYERS,
                                      .n_heads = INDEX_HEADS,
                                      .head_dim = INDEX_DIM,
                                      .top_k = INDEX_TOP,
                                      .picks = &picks};
    return b->ops->index_pick(b->be, &a);
}

/* The first pass of a line, whose time does not count, makes the lists that it needs. */
static enum status issue_picked_attention(struct bench *b, const struct line *l, int32_t i)
{
    static int32_t n_rows, context; // of the lists
    if (n_rows != l->n_rows || context != l->context || picks.block > 0) {
        TRY(issue_pick(b, l, i));
        n_rows = l->n_rows;
        context = l->context;
    }
    const struct attention_args a = {.q = of_width(b->act, MLA_HEADS * MLA_KEY),
                                     .out = of_width(b->attn, MLA_HEADS * MLA_LORA),
                                     .n_rows = l->n_rows,
                                     .layer = i % LAYERS,
                                     .n_heads = MLA_HEADS,
                                     .n_kv_heads = 1,
                                     .head_dim_k = MLA_KEY,
                                     .head_dim_v = MLA_LORA,
                                     .scale = 0.0721688f,
                                     .picks = &picks};
    return b->ops->attention(b->be, &a);
}

static enum status issue_block_pick(struct bench *b, const struct line *l, int32_t i)
{
    const struct index_pick_args a = {.q = of_width(b->mid, M3_KV_HEADS * INDEX_DIM),
                                      .n_rows = l->n_rows,
                                      .layer = LAYERS + i % LAYERS,
                                      .n_heads = M3_KV_HEADS,
                                      .head_dim = INDEX_DIM,
                                      .top_k = M3_TOP,
                                      .block = M3_BLOCK,
                                      .n_local = 1,
                                      .picks = &picks};
    return b->ops->index_pick(b->be, &a);
}

static enum status issue_block_attention(struct bench *b, const struct line *l, int32_t i)
{
    static int32_t n_rows, context; // of the lists
    if (n_rows != l->n_rows || context != l->context || picks.block == 0) {
        TRY(issue_block_pick(b, l, i));
        n_rows = l->n_rows;
        context = l->context;
    }
    const struct attention_args a = {.q = of_width(b->act, M3_HEADS * HEAD_DIM),
                                     .out = of_width(b->mid, M3_HEADS * HEAD_DIM),
                                     .n_rows = l->n_rows,
                                     .layer = 2 * LAYERS + i % LAYERS,
                                     .n_heads = M3_HEADS,
                                     .n_kv_heads = M3_KV_HEADS,
                                     .head_dim_k = HEAD_DIM,
                                     .head_dim_v = HEAD_DIM,
                                     .scale = 0.0883883f,
                                     .picks = &picks};
    return b->ops->attention(b->be, &a);
}

static enum status store_keys(struct bench *b, int32_t layer)
{
    const struct index_store_args index = {.q = of_width(b->mid, INDEX_HEADS * INDEX_DIM),
                                           .k = b->h,
                                           .rope = b->mla_rope,
                                           .n_rows = ROWS,
                                           .layer = LAYERS + layer,
                                           .n_heads = INDEX_HEADS,
                                           .head_dim = INDEX_DIM,
                                           .norm_kind = NORM_LAYER,
                                           .eps = 1e-6f};
    const struct rope_store_args plain = {.qkv = of_width(b->act, 3 * M3_KV_HEADS * HEAD_DIM),
                                          .n_rows = ROWS,
                                          .layer = 2 * LAYERS + layer,
                                          .n_heads = M3_KV_HEADS,
                                          .n_kv_heads = M3_KV_HEADS,
                                          .head_dim = HEAD_DIM};
    const struct mla_store_args mla = {.q = of_width(b->act, MLA_ROPE),
                                       .kv = of_width(b->h, MLA_KEY),
                                       .q_out = of_width(b->act, MLA_ROPE),
                                       .rope = b->mla_rope,
                                       .n_rows = ROWS,
                                       .layer = layer,
                                       .n_heads = 1,
                                       .q_head = MLA_ROPE,
                                       .rope_dim = MLA_ROPE,
                                       .kv_lora = MLA_LORA,
                                       .q_out_head = MLA_ROPE,
                                       .kv_norm = b->w_kv_norm,
                                       .eps = 1e-6f};
    TRY(b->ops->index_store(b->be, &index));
    TRY(b->ops->rope_store(b->be, &plain));
    return b->ops->mla_store(b->be, &mla);
}

/* Fills the pages of the set with keys. */
static enum status fill_pages(struct bench *b)
{
    const struct line l = {.n_rows = ROWS, .shape = PREFILL, .kv_set = 1};
    struct pass_shape shape;
    struct pass_results results[4];
    TRY(b->ops->step_begin(b->be, 0));
    TRY(bench_give_blocks(b, 1, ROWS / BLOCK, false));
    bench_make_pass(b, &l);
    TRY(b->ops->pass_begin(b->be, &b->pass, &shape));
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        TRY(store_keys(b, layer));
    }
    TRY(b->ops->pass_end(b->be));
    TRY(b->ops->step_end(b->be));
    TRY(b->ops->step_wait(b->be, 0, results, 4));
    return bench_copy_pages(b);
}

/* The same rows and context as `like`. pairs: of rows and keys; keys: that are read. */
static enum status block_lines(struct bench *b, const struct line *like, double element,
                               double pairs, double keys)
{
    const bool prefill = like->shape == PREFILL;
    const double picked = (double)like->n_rows * M3_TOP * M3_BLOCK;
    struct line l = *like;
    l.name = prefill ? "block pick, rows" : "block pick of";
    l.issue = issue_block_pick;
    l.operations = 2.0 * pairs * M3_KV_HEADS * INDEX_DIM;
    TRY(bench_print_line(b, &l));
    l.name = prefill ? "attention to picked blocks, rows" : "attention to picked blocks of";
    l.issue = issue_block_attention;
    l.operations = 4.0 * picked * M3_HEADS * HEAD_DIM;
    l.bytes = element * (prefill ? lesser(keys, picked) : picked) * 2 * M3_KV_HEADS * HEAD_DIM;
    return bench_print_line(b, &l);
}

/* A prompt's rows are the last ones before the context ends. */
enum status bench_index_lines(struct bench *b, double element)
{
    static const int32_t rows[] = {1, 16, 64, 1024}, contexts[] = {4096, 16384, 65536};
    TRY(fill_pages(b));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t c = 0; c < sizeof contexts / sizeof contexts[0]; c++) {
            const bool prefill = rows[i] > LANES;
            const int32_t past = contexts[c] - (prefill ? rows[i] : 1);
            const double n = rows[i], keys = prefill ? contexts[c] : n * contexts[c];
            const double pairs = n * (past + 1) + (prefill ? n * (n - 1) / 2 : 0);
            const double picked = n * INDEX_TOP;
            const struct line pick = {.name = prefill ? "index pick, rows" : "index pick of",
                                      .issue = issue_pick,
                                      .n_rows = rows[i],
                                      .context = past,
                                      .kv_set = 1,
                                      .shape = prefill ? PREFILL : DECODE,
                                      .operations = 2.0 * pairs * INDEX_HEADS * INDEX_DIM,
                                      .bytes = element * keys * INDEX_DIM};
            struct line attention = pick;
            attention.name = prefill ? "picked attention, rows" : "picked attention of";
            attention.issue = issue_picked_attention;
            attention.operations = 2.0 * picked * MLA_HEADS * (MLA_KEY + MLA_LORA);
            attention.bytes = element * (prefill ? lesser(keys, picked) : picked) * MLA_KEY;
            TRY(bench_print_line(b, &pick));
            TRY(bench_print_line(b, &attention));
            TRY(block_lines(b, &pick, element, pairs, keys));
        }
    }
    return OK;
}
