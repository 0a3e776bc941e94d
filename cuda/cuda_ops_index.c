// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: the keys of index layers, and the lists of keys that rows attend to. Attention
 * over these lists is in cuda_ops_attention.c. */
#include "cuda/cuda_ops.h"
#include "cuda/index.h"
#include "engine/base/minmax.h"

enum {
    SCORE_BYTES = 128 << 20, // of the scores of a group of rows, at most
    GROUP_ROWS = 1 << 15,    // rows of a group, at most
};

static const struct rope_view no_rope = {.max_pos = 1};

/* The pages of an index layer of the pass; NULL if they do not match. */
static const struct kv_view *index_kv(const struct cuda_backend *be, int32_t layer, int32_t n_rows,
                                      int32_t head_dim)
{
    const struct kv_view *kv = be->passes.pass ? kv_layer(&be->kv, be->passes.set, layer) : NULL;
    const bool ok = kv && n_rows <= be->passes.view.n_rows && kv->n_kv_heads == 1 &&
                    kv->v_offset == 0 && kv->head_dim_k == head_dim && head_dim <= MAX_INDEX_DIM;
    return ok ? kv : NULL;
}

static bool norm_fits(const struct weight *w, int32_t head_dim)
{
    return !w || vector_length(w) == head_dim;
}

/* A centred norm has no form for queries. */
static bool norms_fit(const struct index_store_args *a)
{
    return norm_fits(a->norm, a->head_dim) && norm_fits(a->norm_bias, a->head_dim) &&
           norm_fits(a->q_norm, a->head_dim) && !(a->q_norm && a->norm_kind != NORM_RMS);
}

/* One kernel normalises, rotates and stores the keys, and normalises, rotates and scales the
 * queries. */
enum status cuda_op_index_store(struct backend *base, const struct index_store_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *kv = index_kv(be, a->layer, a->n_rows, a->head_dim);
    if (!kv || a->pool != 0 || a->n_heads <= 0 || !fits(a->q, a->n_heads * a->head_dim) ||
        !fits(a->k, a->head_dim) || a->q.dtype != a->k.dtype || !norms_fit(a) ||
        !head_growth_ok(&a->growth, a->n_heads) || a->rope_at < 0 ||
        (a->rope && a->rope_at + 2 * a->rope->view.n_pairs > a->head_dim)) {
        return ERR_INVALID;
    }
    const struct index_norms norms = {vector(a->norm), vector(a->norm_bias), vector(a->q_norm)};
    const struct head_factors growth = head_factors(&a->growth);
    CUDA_TRY(&be->device, k_index_store(be->device.stream, a, a->rope ? &a->rope->view : &no_rope,
                                        &norms, &growth, kv, &be->passes.view));
    return OK;
}

/* The largest number of slots that a row of the pass may see. A pass that may be captured stands
 * for others, of any length. */
static int64_t most_slots(const struct cuda_backend *be, int32_t n_rows)
{
    const struct backend_limits *l = &be->limits;
    const int64_t table = (int64_t)l->max_blocks_per_lane * l->block_tokens;
    int64_t most = lesser(table, (int64_t)l->max_len + MAX_TREE_NODES);
    if (n_rows > ATTENTION_CAPTURED_ROWS) {
        const struct pass *pass = be->passes.pass;
        int32_t longest = 1;
        for (int32_t i = 0; i < pass->n_seqs; i++) {
            const int32_t n = pass->seqs[i].n_past + pass->seqs[i].n_rows;
            longest = greater(n, longest);
        }
        most = lesser(most, (int64_t)longest);
    }
    return (most + INDEX_TILE - 1) / INDEX_TILE * INDEX_TILE;
}

/* True if every row sees all of its keys, whatever passes are replayed later. Attention without
 * lists then has the same result, and is faster for prompts. Its bits differ, so in deterministic
 * mode this must hold for all passes. */
static bool sees_all(const struct cuda_backend *be, int32_t n_rows, int64_t most_keys)
{
    const struct pass *pass = be->passes.pass;
    if (be->limits.max_len <= most_keys) {
        return true;
    }
    bool all = n_rows > ATTENTION_CAPTURED_ROWS && !be->device.options.deterministic;
    for (int32_t i = 0; all && i < pass->n_seqs; i++) {
        all = pass->seqs[i].n_past + pass->seqs[i].n_rows <= most_keys;
    }
    return all;
}

/* Tensors, sizes and room for the lists. */
static bool pick_fits(const struct cuda_backend *be, const struct index_pick_args *a,
                      const struct kv_view *kv)
{
    const int64_t n_sets = a->block > 0 ? a->n_heads : 1;
    return kv && a->pool == 0 && a->n_heads > 0 && a->top_k > 0 && a->picks &&
           fits(a->q, a->n_heads * a->head_dim) && a->q.dtype == kv->dtype && be->scratch.picks &&
           a->block >= 0 && (a->block == 0 || (a->n_local >= 0 && a->n_local <= a->top_k)) &&
           (a->block > 0 || (fits(a->weights, a->n_heads) && a->weights.dtype == a->q.dtype)) &&
           n_sets * PICK_STRIDE((int64_t)a->top_k) <= PICK_STRIDE(MAX_INDEX_PICKS);
}

/* Chooses how the scores of a row lie: of all slots, or for each head of grains and a tree's nodes.
 * Returns their bytes. */
static size_t lay_out_scores(const struct cuda_backend *be, struct index_launch *l, int32_t n_rows)
{
    const int64_t slots = most_slots(be, n_rows);
    if (l->block == 0) {
        l->scores_stride = slots;
        return (size_t)slots * sizeof(float);
    }
    l->grain = k_block_grain(l);
    l->scores_stride = slots / l->grain + MAX_TREE_NODES;
    return (size_t)l->n_heads * (size_t)l->scores_stride * sizeof(float);
}

static cudaError_t launch_picks(cudaStream_t stream, const struct index_launch *l)
{
    const cudaError_t e = l->block > 0 ? k_block_scores(stream, l) : k_index_scores(stream, l);
    if (e != cudaSuccess) {
        return e;
    }
    return l->block > 0 ? k_block_select(stream, l) : k_index_select(stream, l);
}

/* Picks for as many rows at a time as have room for their scores. */
enum status cuda_op_index_pick(struct backend *base, const struct index_pick_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *kv = index_kv(be, a->layer, a->n_rows, a->head_dim);
    if (!pick_fits(be, a, kv)) {
        return ERR_INVALID;
    }
    *a->picks = (struct key_picks){
        .top_k = a->top_k, .block = a->block, .n_sets = a->block > 0 ? a->n_heads : 1};
    if (sees_all(be, a->n_rows, index_most_keys(a->top_k, a->block))) {
        return OK;
    }
    struct index_launch l = {.q = a->q.mem.p,
                             .weights = a->weights.mem.p,
                             .q_stride = a->q.stride,
                             .weights_stride = a->weights.stride,
                             .dtype = a->q.dtype,
                             .n_heads = a->n_heads,
                             .head_dim = a->head_dim,
                             .top_k = a->top_k,
                             .kv = *kv,
                             .pass = be->passes.view,
                             .scores = be->scratch.memory,
                             .lists = be->scratch.picks,
                             .sm = be->device.sm,
                             .n_sms = be->device.n_sms,
                             .block = a->block,
                             .n_local = a->n_local};
    const size_t row_bytes = lay_out_scores(be, &l, a->n_rows);
    const size_t room = lesser(be->scratch.n_bytes, (size_t)SCORE_BYTES) / row_bytes;
    if (room == 0) {
        return ERR_UNSUPPORTED;
    }
    const int32_t group = (int32_t)lesser(room, (size_t)GROUP_ROWS);
    for (; l.first_row < a->n_rows; l.first_row = l.end_row) {
        l.end_row = lesser(a->n_rows, l.first_row + group);
        CUDA_TRY(&be->device, launch_picks(be->device.stream, &l));
    }
    a->picks->p.p = be->scratch.picks;
    return OK;
}
