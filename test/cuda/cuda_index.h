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
    int32_t rope_at; // of the index
    bool has_sinks;
};

struct index_bed {
    struct pair p;
    struct index_shape s;
    struct stored stored;
    bool exact; // index keys, queries and weights are small integers, so scores are exact
    struct rope_table *rope;
    struct weight *kv_norm_w, *norm_w, *bias_w, *sinks_w;
    float kv_norm[MOST_DIM], norm[MOST_DIM], bias[MOST_DIM], inv_freq[MOST_DIM], sinks[MOST_DIM];
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

enum input { NO_INPUT, INPUT_INDEX_Q, INPUT_INDEX_W, INPUT_INDEX_K, INPUT_KEY, INPUT_QUERY };

static inline uint64_t hash_of(uint32_t kind, int64_t at)
{
    uint64_t x = ((uint64_t)at + 1) * 0x9e3779b97f4a7c15u + kind * 0xd1b54a32d192ed03u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Nearly normal: the sum of four uniform numbers, in steps of 2^-15. There are too many inputs for
 * random_float. */
static inline float quick_float(uint64_t bits)
{
    const uint64_t sum =
        (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    return ((float)sum / 65536.0f - 2.0f) * 1.75f;
}

/* Element i of a row. Exact keys are +-1 with as many of either, which a LayerNorm without eps
 * leaves unchanged. */
static inline float input_of(const struct index_bed *t, enum input kind, int32_t lane, int32_t slot,
                             int32_t i)
{
    const int64_t at = (((int64_t)lane * MOST_LEN) + slot) * (1 << 17) + i;
    if (t->exact && kind == INPUT_INDEX_K) {
        return (hash_of(kind, at - i % 2) + (uint64_t)i) % 2 != 0 ? 1.0f : -1.0f;
    }
    if (t->exact && kind == INPUT_INDEX_Q) {
        return (float)(hash_of(kind, at) % 5) - 2.0f;
    }
    if (t->exact && kind == INPUT_INDEX_W) {
        return (float)(hash_of(kind, at) % 7) - 3.0f;
    }
    const float x = quick_float(hash_of(kind, at)) * (kind == INPUT_INDEX_W ? 0.25f : 1.0f);
    return fabsf(x) < 6.2e-5f ? 0.0f : round_to(x, t->p.dtype); // no subnormal halves
}

/* Room for `n_rows` rows of each operand. */
struct operands {
    int32_t n_rows, index_heads;
    struct pair_tensor index_q, index_w, index_k, key, query, out, unused;
};

static inline struct pair_tensor operand_make(struct index_bed *t, int32_t n_rows, int32_t width)
{
    return tensor_make(&t->p, n_rows, width + 8, t->p.dtype);
}

/* With few index heads, only for the stores. */
static inline struct operands operands_make(struct index_bed *t, int32_t n_rows,
                                            int32_t index_heads)
{
    const struct index_shape *s = &t->s;
    struct operands o = {.n_rows = n_rows, .index_heads = index_heads};
    o.index_q = operand_make(t, n_rows, index_heads * s->index_dim);
    o.index_k = operand_make(t, n_rows, s->index_dim);
    o.key = operand_make(t, n_rows, key_dim(t));
    o.unused = operand_make(t, n_rows, s->rope);
    if (index_heads == s->index_heads) {
        o.index_w = operand_make(t, n_rows, s->index_heads);
        o.query = operand_make(t, n_rows, s->heads * key_dim(t));
        o.out = operand_make(t, n_rows, s->heads * s->lora);
    }
    return o;
}

/* The pass's rows of an operand, with NaN after the last element of each and in all further
 * rows. */
static inline void operand_fill(struct index_bed *t, struct pair_tensor *x, enum input kind)
{
    const int32_t stride = x->stride, width = stride - 8, n = t->t.pass.n_rows;
    float *values = xcalloc((size_t)x->n_rows * (size_t)stride + 4, sizeof *values);
    for (int32_t r = 0; COMPARED && r < x->n_rows; r++) {
        const struct pass_row *row = &t->t.rows[r];
        for (int32_t i = 0; i < stride; i++) {
            const bool is_input = r < n && i < width && kind != NO_INPUT;
            values[(size_t)r * (size_t)stride + (size_t)i] =
                is_input ? input_of(t, kind, row->lane, row->slot_pos, i) : NAN;
        }
    }
    tensor_put(&t->p, x, values);
    free(values);
}

static inline void operands_fill(struct index_bed *t, struct operands *o)
{
    operand_fill(t, &o->index_q, INPUT_INDEX_Q);
    operand_fill(t, &o->index_k, INPUT_INDEX_K);
    operand_fill(t, &o->key, INPUT_KEY);
    if (o->out.n_rows > 0) {
        operand_fill(t, &o->index_w, INPUT_INDEX_W);
        operand_fill(t, &o->query, INPUT_QUERY);
        operand_fill(t, &o->out, NO_INPUT);
    }
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

/* Rotates elements of a head from rope_at on. */
static inline void rotate(const struct index_bed *t, int32_t pos, float *head)
{
    const int32_t n = t->s.n_pairs;
    float *x = head + t->s.rope_at;
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

static inline void make_weights(struct index_bed *t)
{
    for (int32_t i = 0; i < MOST_DIM; i++) {
        t->kv_norm[i] = 1.0f + random_float(5, i, 0.3f, DT_F32);
        t->norm[i] = t->exact ? (float)(1 + i % 2) : 1.0f + random_float(6, i, 0.3f, DT_F32);
        t->bias[i] = t->exact ? 0.0f : random_float(7, i, 0.3f, DT_F32);
        t->sinks[i] = random_float(8, i, 2.0f, DT_F32);
        t->inv_freq[i] = powf(10000.0f, -(float)i / (float)greater(t->s.n_pairs, 1));
    }
    t->kv_norm_w = vector_of(&t->p, GPU, t->kv_norm, t->s.lora);
    t->norm_w = vector_of(&t->p, GPU, t->norm, t->s.index_dim);
    t->bias_w = vector_of(&t->p, GPU, t->bias, t->s.index_dim);
    t->sinks_w = t->s.has_sinks ? vector_of(&t->p, GPU, t->sinks, t->s.heads) : NULL;
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
    const struct rope_desc rope = {s->n_pairs, t->inv_freq, 1.0f, s->interleaved, max_len};
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

static inline void issue_stores(struct index_bed *t, const struct operands *o, int32_t n_rows)
{
    struct backend *be = t->p.be[GPU];
    const struct index_store_args store = {.q = o->index_q.t[GPU],
                                           .k = o->index_k.t[GPU],
                                           .rope = t->rope,
                                           .n_rows = n_rows,
                                           .layer = INDEX_LAYER,
                                           .n_heads = o->index_heads,
                                           .head_dim = t->s.index_dim,
                                           .rope_at = t->s.rope_at,
                                           .norm = t->norm_w,
                                           .norm_bias = t->bias_w,
                                           .norm_kind = NORM_LAYER,
                                           .eps = t->exact ? 0.0f : 1e-6f};
    const struct mla_store_args mla = {.q = o->unused.t[GPU],
                                       .kv = o->key.t[GPU],
                                       .q_out = o->unused.t[GPU],
                                       .n_rows = n_rows,
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

static inline void issue_pick(struct index_bed *t, const struct operands *o, int32_t n_rows,
                              struct key_picks *picks)
{
    struct backend *be = t->p.be[GPU];
    const struct index_pick_args pick = {.q = o->index_q.t[GPU],
                                         .weights = o->index_w.t[GPU],
                                         .n_rows = n_rows,
                                         .layer = INDEX_LAYER,
                                         .n_heads = t->s.index_heads,
                                         .head_dim = t->s.index_dim,
                                         .top_k = t->s.top_k,
                                         .picks = picks};
    CHECK_EQ(be->ops->index_pick(be, &pick), OK);
}

static inline struct attention_args picked_attention(const struct index_bed *t,
                                                     const struct operands *o, int32_t n_rows,
                                                     const struct key_picks *picks)
{
    return (struct attention_args){.q = o->query.t[GPU],
                                   .out = o->out.t[GPU],
                                   .n_rows = n_rows,
                                   .layer = ATTENTION_LAYER,
                                   .n_heads = t->s.heads,
                                   .n_kv_heads = 1,
                                   .head_dim_k = key_dim(t),
                                   .head_dim_v = t->s.lora,
                                   .scale = 0.07f,
                                   .sinks = t->sinks_w,
                                   .picks = picks};
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

/* One pass of the ops over the rows of t->t. A replayed pass issues nothing, and then `picks` is
 * that of an earlier pass. */
static inline void run_pass(struct index_bed *t, struct operands *o, struct key_picks *picks)
{
    struct backend *be = t->p.be[GPU];
    struct pass_results none[8];
    struct pass_shape shape;
    for (int32_t r = 0; COMPARED && r < t->t.pass.n_rows; r++) {
        remember_row(t, &t->t.rows[r]);
    }
    operands_fill(t, o);
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    CHECK_EQ(be->ops->pass_begin(be, &t->t.pass, &shape), OK);
    REQUIRE(shape.n_rows <= o->n_rows);
    if (shape.issue) {
        issue_stores(t, o, shape.n_rows);
    }
    if (shape.issue && picks) {
        issue_pick(t, o, shape.n_rows, picks);
        const struct attention_args a = picked_attention(t, o, shape.n_rows, picks);
        CHECK_EQ(be->ops->attention(be, &a), OK);
    }
    CHECK_EQ(be->ops->pass_end(be), OK);
    CHECK_EQ(be->ops->step_end(be), OK);
    CHECK_EQ(be->ops->step_wait(be, 0, none, 8), OK);
}

static inline struct index_result result_of(struct index_bed *t, const struct operands *o,
                                            const struct key_picks *picks)
{
    return (struct index_result){.lists = lists_of(t, picks),
                                 .index_q = tensor_get(&t->p, &o->index_q, GPU),
                                 .out = tensor_get(&t->p, &o->out, GPU),
                                 .q_stride = o->index_q.stride,
                                 .out_stride = o->out.stride};
}

static inline struct index_result run_rows(struct index_bed *t)
{
    struct key_picks picks = {.top_k = 0};
    struct operands o = operands_make(t, t->t.pass.n_rows, t->s.index_heads);
    run_pass(t, &o, &picks);
    return result_of(t, &o, &picks);
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
    struct operands o = operands_make(t, MAX_TEST_ROWS, 1);
    for (int32_t lane = 0; lane < n_specs; lane++) {
        for (int32_t first = 0; first < specs[lane].n_past; first += MAX_TEST_ROWS) {
            struct seq_spec one[MOST_LANES] = {{0}};
            const int32_t left = specs[lane].n_past - first;
            one[lane] = (struct seq_spec){first, lesser(left, (int32_t)MAX_TEST_ROWS), false};
            pass_of(&t->t, one, n_specs, false, 3);
            run_pass(t, &o, NULL);
        }
    }
}

#endif
