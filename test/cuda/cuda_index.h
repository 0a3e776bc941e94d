// SPDX-License-Identifier: Apache-2.0
/* Sparse attention for the op tests: layers with an index, inputs that depend only on the lane and
 * the slot of a row, and what the ops must compute, in double precision, from the definitions in
 * engine/device/ops.h.
 * Thread: the main thread. */
#ifndef SLUICE_TEST_CUDA_INDEX_H
#define SLUICE_TEST_CUDA_INDEX_H

#include "cpu/cpu_kv_codes.h"
#include "test/cuda/cuda_layers.h"

enum { MOST_LANES = 10, MOST_LEN = 50000, MOST_DIM = 640 };
enum { ATTENTION_LAYER = 0, INDEX_LAYER = 1 };

struct index_shape {
    int32_t heads, lora, rope; // of attention: keys have lora + rope elements
    int32_t index_heads, index_dim, n_pairs;
    bool interleaved;
    int32_t top_k, block_tokens;
};

struct index_bed {
    struct pair p;
    struct index_shape s;
    struct stored stored;
    bool exact; // index keys, queries and weights are small integers, so scores are exact
    struct rope_table *rope;
    struct weight *kv_norm_w, *norm_w, *bias_w;
    float kv_norm[MOST_DIM], norm[MOST_DIM], bias[MOST_DIM], inv_freq[MOST_DIM];
    /* What the pages hold, by lane and slot. */
    float *index_keys[MOST_LANES], *keys[MOST_LANES];
    struct test_pass t;
};

/* The ops' results for the rows of a pass. */
struct index_result {
    int32_t *lists; // [n_rows, top_k + 1]: the number of keys, then their slots
    float *index_q, *out;
    int32_t q_stride, out_stride;
};

static inline int32_t key_dim(const struct index_bed *t)
{
    return t->s.lora + t->s.rope;
}

/* ---- inputs -------------------------------------------------------------------------------- */

enum input { INPUT_INDEX_Q, INPUT_INDEX_W, INPUT_INDEX_K, INPUT_KEY, INPUT_QUERY };

static inline uint32_t hash_of(uint32_t kind, int64_t at)
{
    uint64_t x = ((uint64_t)at + 1) * 0x9e3779b97f4a7c15u + kind * 0xd1b54a32d192ed03u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

/* Element i of a row. Exact keys are +-1 with as many of either, which a LayerNorm without eps
 * leaves unchanged. */
static inline float input_of(const struct index_bed *t, enum input kind, int32_t lane, int32_t slot,
                             int32_t i)
{
    const int64_t at = (((int64_t)lane * MOST_LEN) + slot) * (1 << 17) + i;
    if (t->exact && kind == INPUT_INDEX_K) {
        return (hash_of(kind, at - i % 2) + (uint32_t)i) % 2 != 0 ? 1.0f : -1.0f;
    }
    if (t->exact && kind == INPUT_INDEX_Q) {
        return (float)(hash_of(kind, at) % 5) - 2.0f;
    }
    if (t->exact && kind == INPUT_INDEX_W) {
        return (float)(hash_of(kind, at) % 7) - 3.0f;
    }
    return random_float(77 + kind, at, kind == INPUT_INDEX_W ? 0.2f : 1.0f, t->p.dtype);
}

/* Rows of the pass, with NaN after the last element of each. */
static inline struct pair_tensor inputs_of(struct index_bed *t, enum input kind, int32_t width)
{
    const int32_t n = t->t.pass.n_rows, stride = width + 8;
    struct pair_tensor x = tensor_make(&t->p, n, stride, t->p.dtype);
    float *values = xcalloc((size_t)n * (size_t)stride + 4, sizeof *values);
    for (int32_t r = 0; COMPARED && r < n; r++) {
        const struct pass_row *row = &t->t.rows[r];
        for (int32_t i = 0; i < stride; i++) {
            values[(size_t)r * (size_t)stride + (size_t)i] =
                i < width ? input_of(t, kind, row->lane, row->slot_pos, i) : NAN;
        }
    }
    tensor_put(&t->p, &x, values);
    free(values);
    return x;
}

/* ---- what the pages hold ------------------------------------------------------------------- */

static inline void round_stored(const struct index_bed *t, float *x, int32_t n)
{
    const struct pair *p = &t->p;
    if (t->stored.format == KV_PLAIN) {
        for (int32_t i = 0; i < n; i++) {
            x[i] = round_to(x[i], p->dtype);
        }
        return;
    }
    const struct kv_plane plane =
        kv_plane_make(t->stored.format, p->dtype, true, 16, n, t->stored.k_scale, 0);
    uint8_t codes[MOST_DIM];
    struct kv_scale scale;
    kv_encode_scalar(&plane, x, n, codes, &scale);
    for (int32_t i = 0; i < n; i++) {
        x[i] = kv_decode(&plane, scale, codes[i]);
    }
}

/* Rotates the first elements of a head. */
static inline void rotate(const struct index_bed *t, int32_t pos, float *x)
{
    const int32_t n = t->s.n_pairs;
    for (int32_t i = 0; i < n; i++) {
        float *a = x + (t->s.interleaved ? 2 * i : i);
        float *b = x + (t->s.interleaved ? 2 * i + 1 : i + n);
        const float angle = (float)pos * t->inv_freq[i];
        const double c = cos((double)angle), s = sin((double)angle), u = *a, v = *b;
        *a = (float)(u * c - v * s);
        *b = (float)(v * c + u * s);
    }
}

static inline void remember_row(struct index_bed *t, const struct pass_row *row)
{
    const int32_t d = t->s.index_dim, dk = key_dim(t);
    float *k = t->index_keys[row->lane] + (size_t)row->slot_pos * (size_t)d;
    float *key = t->keys[row->lane] + (size_t)row->slot_pos * (size_t)dk;
    double mean = 0, squares = 0, latent = 0;
    for (int32_t i = 0; i < d; i++) {
        k[i] = input_of(t, INPUT_INDEX_K, row->lane, row->slot_pos, i);
        mean += (double)k[i] / d;
    }
    for (int32_t i = 0; i < d; i++) {
        squares += (k[i] - mean) * (k[i] - mean) / d;
    }
    for (int32_t i = 0; i < d; i++) {
        k[i] = (float)((k[i] - mean) / sqrt(squares + (t->exact ? 0.0 : 1e-6)) * t->norm[i] +
                       t->bias[i]);
    }
    rotate(t, row->pos, k);
    round_stored(t, k, d);
    for (int32_t i = 0; i < dk; i++) {
        key[i] = input_of(t, INPUT_KEY, row->lane, row->slot_pos, i);
        latent += i < t->s.lora ? (double)key[i] * key[i] / t->s.lora : 0.0;
    }
    for (int32_t i = 0; i < t->s.lora; i++) {
        key[i] = (float)(key[i] / sqrt(latent + 1e-6) * t->kv_norm[i]);
    }
    round_stored(t, key, dk);
}

/* The slots that row r sees, in ascending order. Returns their number. */
static inline int32_t slots_seen(const struct index_bed *t, int32_t r, int32_t *slots)
{
    const struct pass *pass = &t->t.pass;
    const uint64_t *mask = t->t.tree_mask + (size_t)r * TREE_MASK_WORDS;
    int32_t i = 0, n = 0;
    while (r >= pass->seqs[i].first_row + pass->seqs[i].n_rows) {
        i++;
    }
    const struct pass_seq *seq = &pass->seqs[i];
    for (int32_t slot = 0; slot < seq->n_past + seq->n_rows; slot++) {
        const int32_t node = slot - seq->n_past;
        bool sees = node <= r - seq->first_row;
        if (seq->tree && node >= 0) {
            sees = (mask[node / 64] >> (node % 64) & 1) != 0;
        }
        if (sees) {
            slots[n++] = slot;
        }
    }
    return n;
}

/* ---- the bed ------------------------------------------------------------------------------- */

static inline struct weight *vector_of(struct pair *p, const float *values, int32_t n)
{
    const struct weight_part part = weight_part_plain(values, DT_F32, 1, n, n);
    const struct weight_desc desc = {.name = "test",
                                     .kind = WEIGHT_VECTOR,
                                     .dtype = DT_F32,
                                     .n_out = 1,
                                     .n_in = n,
                                     .n_experts = 1,
                                     .n_parts = 1,
                                     .parts = &part,
                                     .k_segments = 1};
    struct weight *w = NULL;
    struct err err = {""};
    CHECK_EQ(p->be[GPU]->ops->weight_open(p->be[GPU], &desc, &w, &err), OK);
    return w;
}

static inline void make_weights(struct index_bed *t)
{
    for (int32_t i = 0; i < MOST_DIM; i++) {
        t->kv_norm[i] = 1.0f + random_float(5, i, 0.3f, DT_F32);
        t->norm[i] = t->exact ? (float)(1 + i % 2) : 1.0f + random_float(6, i, 0.3f, DT_F32);
        t->bias[i] = t->exact ? 0.0f : random_float(7, i, 0.3f, DT_F32);
        t->inv_freq[i] = powf(10000.0f, -(float)i / (float)greater(t->s.n_pairs, 1));
    }
    t->kv_norm_w = vector_of(&t->p, t->kv_norm, t->s.lora);
    t->norm_w = vector_of(&t->p, t->norm, t->s.index_dim);
    t->bias_w = vector_of(&t->p, t->bias, t->s.index_dim);
}

static inline bool bed_open(struct index_bed *t, enum dtype dtype, bool deterministic, bool exact,
                            const struct index_shape *s, struct stored stored, int32_t longest,
                            int32_t max_len)
{
    struct backend_limits limits = pair_limits();
    limits.max_rows = MAX_TEST_ROWS;
    limits.block_tokens = s->block_tokens;
    limits.max_len = max_len;
    limits.max_blocks_per_lane = (max_len + MAX_TREE_NODES) / s->block_tokens + 1;
    const int32_t per_lane = (longest + MAX_TREE_NODES) / s->block_tokens + 1;
    limits.n_blocks = MOST_LANES * per_lane;
    limits.max_tree_nodes = deterministic ? 100 : 0;
    memset(t, 0, sizeof *t);
    t->exact = exact;
    t->s = *s;
    t->stored = stored;
    if (!pair_open(&t->p, dtype, deterministic, &limits)) {
        return false;
    }
    make_weights(t);
    const struct kv_layer layers[] = {[ATTENTION_LAYER] = {.n_heads = s->heads,
                                                           .n_kv_heads = 1,
                                                           .head_dim_k = s->lora + s->rope,
                                                           .head_dim_v = s->lora,
                                                           .v_in_k = true,
                                                           .k_scale = stored.k_scale,
                                                           .v_scale = stored.v_scale},
                                      [INDEX_LAYER] = {.n_heads = s->index_heads,
                                                       .n_kv_heads = 1,
                                                       .head_dim_k = s->index_dim,
                                                       .head_dim_v = s->index_dim,
                                                       .v_in_k = true,
                                                       .index = true,
                                                       .k_scale = stored.k_scale,
                                                       .v_scale = stored.v_scale}};
    const struct kv_set_desc set = {
        .n_layers = COUNT(layers), .layers = layers, .dtype = dtype, .format = stored.format};
    const struct rope_desc rope = {s->n_pairs, t->inv_freq, 1.0f, s->interleaved, longest};
    struct backend *be = t->p.be[GPU];
    struct err err = {""};
    for (int b = 0; b < 2; b++) {
        CHECK_EQ(t->p.be[b]->ops->kv_open(t->p.be[b], 0, &set, &err), OK);
    }
    if (s->n_pairs > 0) {
        CHECK_EQ(be->ops->rope_open(be, &rope, &t->rope), OK);
    }
    for (int32_t lane = 0; lane < MOST_LANES; lane++) {
        const size_t n = (size_t)(longest + MAX_TREE_NODES);
        t->index_keys[lane] = xcalloc(n * (size_t)s->index_dim, sizeof(float));
        t->keys[lane] = xcalloc(n * (size_t)key_dim(t), sizeof(float));
    }
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    give_blocks(&t->p, MOST_LANES, per_lane);
    struct pass_results none[8];
    CHECK_EQ(be->ops->step_end(be), OK);
    CHECK_EQ(be->ops->step_wait(be, 0, none, 8), OK);
    return true;
}

static inline void bed_close(struct index_bed *t)
{
    for (int32_t lane = 0; lane < MOST_LANES; lane++) {
        free(t->index_keys[lane]);
        free(t->keys[lane]);
    }
    pair_close(&t->p);
}

/* ---- the ops ------------------------------------------------------------------------------- */

static inline void issue_stores(struct index_bed *t, const struct pair_tensor *q, int32_t n_heads)
{
    struct backend *be = t->p.be[GPU];
    const int32_t n = t->t.pass.n_rows;
    const struct pair_tensor k = inputs_of(t, INPUT_INDEX_K, t->s.index_dim);
    const struct pair_tensor kv = inputs_of(t, INPUT_KEY, key_dim(t));
    const struct pair_tensor unused = tensor_make(&t->p, n, t->s.rope, t->p.dtype);
    const struct index_store_args store = {.q = q->t[GPU],
                                           .k = k.t[GPU],
                                           .rope = t->rope,
                                           .n_rows = n,
                                           .layer = INDEX_LAYER,
                                           .n_heads = n_heads,
                                           .head_dim = t->s.index_dim,
                                           .norm = t->norm_w,
                                           .norm_bias = t->bias_w,
                                           .eps = t->exact ? 0.0f : 1e-6f};
    const struct mla_store_args mla = {.q = unused.t[GPU],
                                       .kv = kv.t[GPU],
                                       .q_out = unused.t[GPU],
                                       .n_rows = n,
                                       .layer = ATTENTION_LAYER,
                                       .n_heads = 1,
                                       .q_head = t->s.rope,
                                       .rope_dim = t->s.rope,
                                       .kv_lora = t->s.lora,
                                       .q_out_head = t->s.rope,
                                       .kv_norm = t->kv_norm_w,
                                       .eps = 1e-6f};
    CHECK_EQ(be->ops->index_store(be, &store), OK);
    CHECK_EQ(be->ops->mla_store(be, &mla), OK);
}

static inline void issue_picks(struct index_bed *t, const struct pair_tensor *index_q,
                               const struct pair_tensor *out, struct key_picks *picks)
{
    struct backend *be = t->p.be[GPU];
    const struct index_shape *s = &t->s;
    const int32_t n = t->t.pass.n_rows;
    const struct pair_tensor w = inputs_of(t, INPUT_INDEX_W, s->index_heads);
    const struct pair_tensor q = inputs_of(t, INPUT_QUERY, s->heads * key_dim(t));
    const struct index_pick_args pick = {.q = index_q->t[GPU],
                                         .weights = w.t[GPU],
                                         .n_rows = n,
                                         .layer = INDEX_LAYER,
                                         .n_heads = s->index_heads,
                                         .head_dim = s->index_dim,
                                         .top_k = s->top_k,
                                         .picks = picks};
    const struct attention_args attention = {.q = q.t[GPU],
                                             .out = out->t[GPU],
                                             .n_rows = n,
                                             .layer = ATTENTION_LAYER,
                                             .n_heads = s->heads,
                                             .n_kv_heads = 1,
                                             .head_dim_k = key_dim(t),
                                             .head_dim_v = s->lora,
                                             .scale = 0.07f,
                                             .picks = picks};
    CHECK_EQ(be->ops->index_pick(be, &pick), OK);
    CHECK_EQ(be->ops->attention(be, &attention), OK);
}

/* Reads the lists. Without lists a row attends to all keys, which may be no more than top_k. */
static inline int32_t *lists_of(const struct index_bed *t, const struct key_picks *picks)
{
    const int32_t n_rows = t->t.pass.n_rows, top_k = t->s.top_k;
    const size_t n_words = (size_t)n_rows * (size_t)(top_k + 1);
    int32_t *lists = xcalloc(n_words, sizeof *lists);
    static int32_t slots[MOST_LEN + MAX_TREE_NODES];
    CHECK_EQ(picks->top_k, top_k);
    if (picks->p.p) {
        CHECK_EQ(t->p.be[GPU]->ops->read(t->p.be[GPU], lists, picks->p, n_words * sizeof *lists),
                 OK);
        return lists;
    }
    for (int32_t r = 0; r < n_rows; r++) {
        int32_t *list = lists + (size_t)r * (size_t)(top_k + 1);
        const int32_t n = slots_seen(t, r, slots);
        CHECK(n <= top_k);
        list[0] = lesser(n, top_k);
        memcpy(list + 1, slots, (size_t)list[0] * sizeof *list);
    }
    return lists;
}

/* Runs the ops over the rows of t->t. Without a result only keys are stored. */
static inline void run_rows(struct index_bed *t, struct index_result *result)
{
    struct backend *be = t->p.be[GPU];
    const struct index_shape *s = &t->s;
    const int32_t n = t->t.pass.n_rows, n_heads = result ? s->index_heads : 1;
    const int32_t out_width = s->heads * s->lora;
    const struct pair_tensor q = inputs_of(t, INPUT_INDEX_Q, n_heads * s->index_dim);
    struct pair_tensor out = {0};
    struct key_picks picks = {.top_k = 0};
    struct pass_results none[8];
    struct pass_shape shape;
    for (int32_t r = 0; COMPARED && r < n; r++) {
        remember_row(t, &t->t.rows[r]);
    }
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    CHECK_EQ(be->ops->pass_begin(be, &t->t.pass, &shape), OK);
    issue_stores(t, &q, n_heads);
    if (result) {
        out = tensor_poisoned(&t->p, n, out_width + 8, t->p.dtype);
        issue_picks(t, &q, &out, &picks);
    }
    CHECK_EQ(be->ops->pass_end(be), OK);
    CHECK_EQ(be->ops->step_end(be), OK);
    CHECK_EQ(be->ops->step_wait(be, 0, none, 8), OK);
    if (!result) {
        return;
    }
    *result = (struct index_result){.lists = lists_of(t, &picks),
                                    .index_q = tensor_get(&t->p, &q, GPU),
                                    .out = tensor_get(&t->p, &out, GPU),
                                    .q_stride = q.stride,
                                    .out_stride = out.stride};
}

static inline void result_free(struct index_result *r)
{
    free(r->lists);
    free(r->index_q);
    free(r->out);
}

/* Stores the past of each sequence, in passes of up to MAX_TEST_ROWS rows. */
static inline void store_pasts(struct index_bed *t, const struct seq_spec *specs, int32_t n_specs)
{
    for (int32_t lane = 0; lane < n_specs; lane++) {
        for (int32_t first = 0; first < specs[lane].n_past; first += MAX_TEST_ROWS) {
            struct seq_spec one[MOST_LANES] = {{0}};
            const int32_t left = specs[lane].n_past - first;
            one[lane] = (struct seq_spec){first, lesser(left, (int32_t)MAX_TEST_ROWS), false};
            pass_of(&t->t, one, n_specs, false, 3);
            run_rows(t, NULL);
        }
    }
}

#endif
