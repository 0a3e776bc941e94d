// SPDX-License-Identifier: Apache-2.0
/* Lanes whose keys and values a test knows, a backend that stores them, and passes over them. Each
 * row of a pass can be compared with a naive softmax over the keys that it sees. Blocks without an
 * owner hold NaN. Thread: the test's. */
#ifndef SLUICE_TEST_CPU_ATTENTION_WORLD_H
#define SLUICE_TEST_CPU_ATTENTION_WORLD_H

#include "cpu/cpu_attention.h"
#include "engine/base/minmax.h"
#include "test/device/op_harness.h"

enum { LANES = 4, LEN = 1400 };

/* A layer's shape. Some cases have sizes that are not a multiple of a vector. */
struct geometry {
    int32_t n_heads, n_kv_heads, dim, block_tokens, window;
    float softcap;
    bool sinks;
    enum dtype dtype;
    int32_t dim_v; // 0: dim; else a value is the first dim_v numbers of its key, as in MLA
    bool steep;    // later keys are longer: scores rise by hundreds
    int32_t chunk; // keys per chunk of chunked attention; 0: none
};

/* A layer's indexer; top_k 0: it has none. block > 0: each of its heads picks blocks of keys for a
 * KV head. pool > 0: layer 3 holds what the keys of groups of so many positions are made from. */
struct indexer {
    int32_t heads, dim, top_k;
    int32_t block, n_local;
    int32_t pool;
};

/* How K and V are stored, and the layer's own scales if it has any. */
struct storage {
    enum kv_format format;
    float k_scale, v_scale;
};

static const struct storage plain = {KV_PLAIN, 0.0f, 0.0f};
static const struct storage coded[] = {{KV_FP8, 0.0f, 0.0f},
                                       {KV_FP8, 0.011f, 0.25f},
                                       {KV_INT8_SYMMETRIC, 0.0f, 0.0f},
                                       {KV_INT8, 0.0f, 0.0f},
                                       {KV_INT4, 0.0f, 0.0f}};
enum { N_CODED = sizeof coded / sizeof coded[0] };

/* What the test keeps of each lane: all q, k and v by position. */
struct world {
    struct geometry g;
    struct indexer index;
    struct storage storage;
    struct op_rig rig;
    float *k[LANES], *v[LANES]; // [LEN, n_kv_heads, dim], as stored
    /* The indexer's keys, as stored, [LEN, index.dim]; and of the pass its queries and weights, and
     * what it has picked, [n_rows, sets, LEN + MAX_TREE_NODES]; NULL: it has picked nothing. */
    float *index_k[LANES], *index_q, *index_weights;
    bool *picked;
    struct weight *sinks;
    float *sink_values;
    float scale;
    struct op_pass pass;
    int32_t n_blocks; // the last three have no owner
    int32_t blocks[LANES][LEN + 1];
};

static inline int32_t value_dim(const struct geometry *g)
{
    return g->dim_v > 0 ? g->dim_v : g->dim;
}

/* Blocks in random order, all poisoned first; the last three belong to no lane. */
static inline void give_blocks(struct world *w)
{
    int32_t per_lane = LEN / w->g.block_tokens + 1, n = 0, n_blocks = w->n_blocks;
    int32_t *all = xcalloc(n_blocks, sizeof *all), *table = xcalloc(per_lane, sizeof *table);
    for (int32_t i = 0; i < n_blocks; i++) {
        all[i] = i;
    }
    CHECK_EQ(w->rig.ops->poison_blocks(w->rig.be, n_blocks, all), OK);
    for (int32_t i = n_blocks - 4; i > 0; i--) {
        int32_t j = op_int(0, i), t = all[i];
        all[i] = all[j];
        all[j] = t;
    }
    for (int32_t lane = 0; lane < LANES; lane++) {
        for (int32_t i = 0; i < per_lane; i++) {
            w->blocks[lane][i] = table[i] = all[n++];
        }
        CHECK_EQ(w->rig.ops->lane_blocks(w->rig.be, lane, 0, per_lane, table), OK);
    }
    free(all);
    free(table);
}

/* Layer 1 is used, so that offsets of a layer matter; layer 2 is its indexer, if it has one. */
static inline void open_sparse_world(struct world *w, const char *backend, const struct geometry *g,
                                     const struct storage *storage, const struct indexer *index)
{
    struct backend_limits limits = op_limits();
    struct err err;
    memset(w, 0, sizeof *w);
    w->g = *g;
    w->index = *index;
    w->storage = *storage;
    limits.block_tokens = g->block_tokens;
    limits.max_blocks_per_lane = LEN / g->block_tokens + 2;
    limits.n_blocks = w->n_blocks = LANES * (LEN / g->block_tokens + 1) + 3;
    w->rig = op_open(backend, g->dtype, &limits);
    const struct kv_layer layers[] = {
        {.n_heads = 1, .n_kv_heads = 1, .head_dim_k = 8, .head_dim_v = 8},
        {.n_heads = g->n_heads,
         .n_kv_heads = g->n_kv_heads,
         .head_dim_k = g->dim,
         .head_dim_v = value_dim(g),
         .v_in_k = g->dim_v > 0,
         .k_scale = storage->k_scale,
         .v_scale = storage->v_scale},
        {.n_heads = w->index.heads,
         .n_kv_heads = 1,
         .head_dim_k = w->index.dim,
         .head_dim_v = w->index.dim,
         .v_in_k = true,
         .index = true,
         .pick_block = w->index.block},
        {.n_heads = w->index.heads,
         .n_kv_heads = 1,
         .head_dim_k = 2 * w->index.dim,
         .head_dim_v = 2 * w->index.dim,
         .v_in_k = true,
         .index = true}};
    const int32_t n_index = w->index.pool > 0 ? 2 : 1;
    const struct kv_set_desc desc = {.n_layers = 2 + (w->index.top_k > 0 ? n_index : 0),
                                     .layers = layers,
                                     .dtype = g->dtype,
                                     .format = storage->format};
    CHECK_EQ(w->rig.ops->kv_open(w->rig.be, 0, &desc, &err), OK);
    for (int32_t i = 0; i < LANES; i++) {
        w->k[i] = xcalloc((size_t)LEN * g->n_kv_heads * g->dim, sizeof(float));
        w->v[i] = xcalloc((size_t)LEN * g->n_kv_heads * g->dim, sizeof(float));
        w->index_k[i] = xcalloc((size_t)LEN * w->index.dim + 1, sizeof(float));
    }
    w->scale = 1.0f / sqrtf((float)g->dim);
    w->sink_values = op_random(g->n_heads, 2.0f);
    if (g->sinks) {
        w->sinks = op_vector(&w->rig, w->sink_values, g->n_heads);
    } else {
        w->sinks = NULL;
    }
    w->rig.ops->step_begin(w->rig.be, 0);
    w->rig.in_step = true;
    give_blocks(w);
}

static inline void open_world(struct world *w, const char *backend, const struct geometry *g,
                              const struct storage *storage)
{
    open_sparse_world(w, backend, g, storage, &(struct indexer){.top_k = 0});
}

static inline void close_world(struct world *w)
{
    for (int32_t i = 0; i < LANES; i++) {
        free(w->k[i]);
        free(w->v[i]);
        free(w->index_k[i]);
    }
    free(w->index_q);
    free(w->index_weights);
    free(w->picked);
    free(w->sink_values);
    op_close(&w->rig);
}

static inline int32_t n_sets(const struct world *w)
{
    return w->index.block > 0 ? w->index.heads : 1;
}

/* Where the pass keeps whether a row has picked the key in a slot, in one of its sets. */
static inline bool *picked_in(const struct world *w, int32_t row, int32_t set, int32_t slot)
{
    const size_t at = (size_t)(row * n_sets(w) + set);
    return &w->picked[at * (LEN + MAX_TREE_NODES) + (size_t)slot];
}

static inline bool *picked_at(const struct world *w, int32_t row, int32_t slot)
{
    return picked_in(w, row, 0, slot);
}

/* The position of the key in a slot. */
static inline int32_t pos_of(const struct world *w, const struct pass_seq *s, int32_t slot)
{
    return s->tree && slot >= s->n_past ? w->pass.rows[s->first_row + slot - s->n_past].pos : slot;
}

/* The definition of which keys a row sees: causal or in both directions, the window, and the path
 * of a tree. */
static inline bool sees(const struct world *w, const struct pass_seq *s, int32_t row, int32_t key)
{
    const struct pass_row *rows = w->pass.rows;
    const bool both = w->pass.pass.bidirectional;
    int32_t pos = rows[row].pos, key_pos = key;
    if (key >= s->n_past) {
        int32_t i = key - s->n_past;
        if (s->tree) {
            uint64_t word = w->pass.mask[(size_t)row * TREE_MASK_WORDS + i / 64];
            if (!(word >> (i % 64) & 1)) {
                return false;
            }
            key_pos = rows[s->first_row + i].pos;
        } else if (i > row - s->first_row && !both) {
            return false;
        }
    }
    return (w->g.window == 0 ||
            (pos - w->g.window < key_pos && (!both || key_pos < pos + w->g.window))) &&
           (w->g.chunk == 0 || key_pos >= pos / w->g.chunk * w->g.chunk);
}

/* A matrix unit rounds its inputs to bf16: scaled queries, which are therefore rounded before the
 * comparison, and probabilities, which a tolerance covers. */
static inline bool rounds(const struct world *w)
{
    const struct cpu_backend *cpu = cpu_of(w->rig.be);
    return attn_unit(cpu, &cpu->kv_sets[0].layers[1]) != NULL;
}

/* Softmax in double precision, with the sink's term in the sum if there is one. */
static inline void naive_row(const struct world *w, const struct pass_seq *s, int32_t row,
                             int32_t head, const float *q, double *out)
{
    const struct geometry *g = &w->g;
    int32_t kv = head / (g->n_heads / g->n_kv_heads), n = s->n_past + s->n_rows;
    double *p = xcalloc(n, sizeof *p), max = -INFINITY, sum = 0.0, scaled[MAX_HEAD_DIM];
    for (int32_t d = 0; d < g->dim; d++) {
        const float rounded = bf16_to_f32(bf16_of(q[d] * w->scale));
        scaled[d] = rounds(w) ? (double)rounded : (double)q[d] * (double)w->scale;
    }
    for (int32_t key = 0; key < n; key++) {
        p[key] = -INFINITY;
        if (!sees(w, s, row, key) || (w->picked && !*picked_in(w, row, kv % n_sets(w), key))) {
            continue;
        }
        const float *k = w->k[s->lane] + ((size_t)key * g->n_kv_heads + kv) * g->dim;
        double dot = 0.0;
        for (int32_t d = 0; d < g->dim; d++) {
            dot += scaled[d] * (double)k[d];
        }
        if (g->softcap != 0.0f) {
            dot = (double)g->softcap * tanh(dot / (double)g->softcap);
        }
        p[key] = dot;
        max = greater(p[key], max);
    }
    for (int32_t key = 0; key < n; key++) {
        p[key] = exp(p[key] - max);
        sum += p[key];
    }
    sum += g->sinks ? exp((double)w->sink_values[head] - max) : 0.0;
    memset(out, 0, (size_t)value_dim(g) * sizeof *out);
    for (int32_t key = 0; key < n; key++) {
        const float *v = w->v[s->lane] + ((size_t)key * g->n_kv_heads + kv) * g->dim;
        const double share = p[key] / sum;
        for (int32_t d = 0; d < value_dim(g) && share > 0.0; d++) {
            out[d] += share * (double)v[d];
        }
    }
    free(p);
}

/* Returns a head's numbers as they are read after having been stored in the format. */
static inline void stored_head(const struct world *w, const float *x, int32_t dim, float scale,
                               float *out)
{
    const struct geometry *g = &w->g;
    uint8_t codes[MAX_HEAD_DIM];
    struct kv_scale s;
    const struct kv_plane p =
        kv_plane_make(w->storage.format, g->dtype, true, g->block_tokens, dim, scale, 0);
    if (w->storage.format != KV_PLAIN) {
        kv_encode_scalar(&p, x, dim, codes, &s);
    }
    for (int32_t d = 0; d < dim; d++) {
        if (w->storage.format == KV_PLAIN) {
            out[d] = op_rounded(g->dtype, x[d]);
        } else {
            out[d] = kv_decode(&p, s, codes[d]);
        }
    }
}

/* The same for attention's heads, which a matrix unit rounds. */
static inline void as_stored(const struct world *w, const float *x, float scale, float *out)
{
    stored_head(w, x, w->g.dim, scale, out);
    for (int32_t d = 0; d < w->g.dim && rounds(w); d++) {
        out[d] = op_rounded(DT_BF16, out[d]);
    }
}

/* New rows' q, k and v in the pass's order; the world remembers k and v as stored. */
static inline float *make_qkv(struct world *w)
{
    const struct geometry *g = &w->g;
    size_t width = (size_t)(g->n_heads + 2 * g->n_kv_heads) * g->dim, kv = g->n_kv_heads * g->dim;
    float *qkv = op_random((size_t)w->pass.pass.n_rows * width, 1.0f);
    for (int32_t r = 0; r < w->pass.pass.n_rows; r++) {
        const struct pass_row *p = &w->pass.rows[r];
        float *k = qkv + r * width + (size_t)g->n_heads * g->dim;
        for (size_t i = 0; i < kv; i++) {
            k[i] *= g->steep ? (float)p->slot_pos : 1.0f;
        }
        for (size_t i = 0; i < kv; i += g->dim) {
            size_t at = (size_t)p->slot_pos * kv + i;
            const float *v = g->dim_v > 0 ? k + i : k + kv + i;
            as_stored(w, k + i, w->storage.k_scale, w->k[p->lane] + at);
            as_stored(w, v, g->dim_v > 0 ? w->storage.k_scale : w->storage.v_scale,
                      w->v[p->lane] + at);
        }
    }
    return qkv;
}

/* What mla_store does before attention: writes the new rows' keys to their pages. */
static inline void store_keys(struct world *w, struct tensor qkv)
{
    const struct geometry *g = &w->g;
    struct cpu_backend *cpu = (struct cpu_backend *)w->rig.be;
    const struct kv_pages *pages = cpu_kv_layer(cpu, 1);
    for (int32_t r = 0; r < w->pass.pass.n_rows; r++) {
        struct kv_slot slot =
            cpu_kv_slot(cpu, pages, w->pass.rows[r].lane, w->pass.rows[r].slot_pos);
        for (int32_t h = 0; h < g->n_kv_heads; h++) {
            float *key = tensor_row(&qkv, r) + (g->n_heads + h) * g->dim;
            cpu_kv_store_joined(cpu, pages, slot, h, key);
        }
    }
}

/* The indexer's part of a pass: `whole` numbers have exact scores, many of them equal. The keys go
 * to their pages as index_store would write them. */
static inline void make_index(struct world *w, bool whole)
{
    const struct cpu_backend *cpu = (struct cpu_backend *)w->rig.be;
    const struct kv_pages *pages = &cpu->kv_sets[0].layers[2];
    const size_t n = (size_t)w->pass.pass.n_rows, q = (size_t)w->index.heads * w->index.dim;
    float *k = op_random(n * (size_t)w->index.dim, 1.0f);
    free(w->index_q);
    free(w->index_weights);
    w->index_q = op_random(n * q, 1.0f);
    w->index_weights = op_random(n * (size_t)w->index.heads, 1.0f);
    for (size_t i = 0; i < n * q && whole; i++) {
        w->index_q[i] = rintf(w->index_q[i]);
    }
    for (size_t i = 0; i < n * (size_t)w->index.heads && whole; i++) {
        w->index_weights[i] = rintf(w->index_weights[i]);
    }
    for (size_t i = 0; i < n * (size_t)w->index.dim && whole; i++) {
        k[i] = rintf(0.6f * k[i]);
    }
    for (size_t r = 0; r < n; r++) {
        const struct pass_row *p = &w->pass.rows[r];
        const float *key = k + r * (size_t)w->index.dim;
        cpu_kv_store_key(cpu, pages, cpu_kv_slot(cpu, pages, p->lane, p->slot_pos), key);
        stored_head(w, key, w->index.dim, 0.0f,
                    w->index_k[p->lane] + (size_t)p->slot_pos * (size_t)w->index.dim);
    }
    free(k);
}

/* Whether the backend's picks of a row contain the key in a slot that the row sees. */
static inline bool has_picked(const struct world *w, const struct pass_seq *s, int32_t row,
                              int32_t set, int32_t slot)
{
    const struct index_room *room = &cpu_of(w->rig.be)->index;
    const int64_t at = (int64_t)row * n_sets(w) + set;
    const uint64_t *bits = room->bits + at * room->n_words;
    const int32_t bit = w->index.block > 0 ? pos_of(w, s, slot) / w->index.block : slot;
    return room->n_picked[at] == 0 || (bits[bit / 64] >> (bit % 64) & 1) != 0;
}

/* Picks within a pass, and keeps what has been picked. */
static inline void run_index(struct world *w, struct key_picks *picks)
{
    const int32_t n = w->pass.pass.n_rows, q = w->index.heads * w->index.dim;
    const struct index_pick_args a = {
        .q = op_tensor(&w->rig, w->index_q, n, q, q + 3),
        .weights = op_tensor(&w->rig, w->index_weights, n, w->index.heads, w->index.heads + 1),
        .n_rows = n,
        .layer = 2,
        .n_heads = w->index.heads,
        .head_dim = w->index.dim,
        .top_k = w->index.top_k,
        .block = w->index.block,
        .n_local = w->index.n_local,
        .picks = picks};
    CHECK_EQ(w->rig.ops->index_pick(w->rig.be, &a), OK);
    free(w->picked);
    w->picked = NULL;
    if (!picks->p.p) {
        return;
    }
    CHECK_EQ(picks->n_sets, n_sets(w));
    w->picked = xcalloc((size_t)(n * n_sets(w)) * (LEN + MAX_TREE_NODES), sizeof *w->picked);
    for (int32_t i = 0; i < w->pass.pass.n_seqs; i++) {
        const struct pass_seq *s = &w->pass.seqs[i];
        for (int32_t r = s->first_row; r < s->first_row + s->n_rows; r++) {
            for (int32_t j = 0; j < n_sets(w) * (s->n_past + s->n_rows); j++) {
                const int32_t set = j % n_sets(w), slot = j / n_sets(w);
                *picked_in(w, r, set, slot) = sees(w, s, r, slot) && has_picked(w, s, r, set, slot);
            }
        }
    }
}

/* Runs the pass. Returns the outputs [n_rows, n_heads * dim] and, on request, the queries. */
static inline float *run_pass(struct world *w, const float *qkv)
{
    const struct geometry *g = &w->g;
    int32_t n = w->pass.pass.n_rows, width = (g->n_heads + 2 * g->n_kv_heads) * g->dim;
    struct tensor t = op_tensor(&w->rig, qkv, n, width, width + 4);
    int32_t out_width = g->n_heads * value_dim(g);
    struct tensor out = op_tensor(&w->rig, NULL, n, out_width, out_width + 2);
    struct rope_store_args store = {.qkv = t,
                                    .n_rows = n,
                                    .layer = 1,
                                    .n_heads = g->n_heads,
                                    .n_kv_heads = g->n_kv_heads,
                                    .head_dim = g->dim};
    struct attention_args attend = {.q = t,
                                    .out = out,
                                    .n_rows = n,
                                    .layer = 1,
                                    .n_heads = g->n_heads,
                                    .n_kv_heads = g->n_kv_heads,
                                    .head_dim_k = g->dim,
                                    .head_dim_v = value_dim(g),
                                    .scale = w->scale,
                                    .window = g->window,
                                    .chunk = g->chunk,
                                    .softcap = g->softcap,
                                    .sinks = w->sinks};
    struct key_picks picks = {.top_k = 0};
    op_begin(&w->rig, &w->pass);
    if (w->index.top_k > 0) {
        run_index(w, &picks);
        attend.picks = &picks;
    }
    if (g->dim_v > 0) {
        store_keys(w, t);
    } else {
        CHECK_EQ(w->rig.ops->rope_store(w->rig.be, &store), OK);
    }
    CHECK_EQ(w->rig.ops->attention(w->rig.be, &attend), OK);
    op_end(&w->rig);
    return op_fetch(&w->rig, out, n, out_width);
}

/* Queries may be rounded to 16 bits for integer codes (cpu_vec_words.h). */
static inline bool rounds_queries(const struct world *w)
{
    enum kv_format f = w->storage.format;
    return (f == KV_INT8 || f == KV_INT8_SYMMETRIC || f == KV_INT4) && w->g.dtype != DT_F32;
}

/* Large scores amplify even the last bit of a float. */
static inline double tolerance(const struct world *w)
{
    if (rounds_queries(w)) {
        return rounds(w) || w->g.steep ? 1e-2 : 1e-4;
    }
    return rounds(w) || w->g.steep ? 4e-3 : 2e-5;
}

/* Compares every `every`-th row, since the reference is slow. */
static inline void check_pass(struct world *w, int32_t every)
{
    const struct geometry *g = &w->g;
    size_t width = (size_t)(g->n_heads + 2 * g->n_kv_heads) * g->dim;
    float *qkv = make_qkv(w), *out = run_pass(w, qkv);
    int32_t dim = value_dim(g);
    double *wanted = xcalloc(dim, sizeof *wanted), worst = 0.0;
    for (int32_t i = 0; i < w->pass.pass.n_seqs; i++) {
        const struct pass_seq *s = &w->pass.seqs[i];
        for (int32_t r = s->first_row; r < s->first_row + s->n_rows; r++) {
            for (int32_t h = 0; h < g->n_heads && (r % every == 0 || s->n_rows < 8); h++) {
                naive_row(w, s, r, h, qkv + r * width + (size_t)h * g->dim, wanted);
                double d = op_distance(out + ((size_t)r * g->n_heads + h) * dim, wanted, dim);
                worst = greater(worst, d);
            }
        }
    }
    if (!(worst < tolerance(w))) {
        CHECK_FAIL("heads %d/%d dim %d/%d block %d window %d cap %g type %d format %d: off by %g",
                   g->n_heads, g->n_kv_heads, g->dim, dim, g->block_tokens, g->window,
                   (double)g->softcap, g->dtype, w->storage.format, worst);
    }
    free(wanted);
    free(qkv);
    free(out);
    memset(&w->pass, 0, sizeof w->pass);
}

/* A tree of `n` nodes, each below a random earlier one. */
static inline void add_tree(struct world *w, int32_t lane, int32_t n_past, int32_t n)
{
    int32_t first = w->pass.pass.n_rows;
    op_add_seq(&w->pass, lane, n_past, n);
    w->pass.seqs[w->pass.pass.n_seqs - 1].tree = true;
    w->pass.pass.tree_mask = w->pass.mask;
    for (int32_t i = 0; i < n; i++) {
        uint64_t *mask = w->pass.mask + (size_t)(first + i) * TREE_MASK_WORDS;
        int32_t parent = i == 0 ? -1 : op_int(i > 6 ? i - 6 : 0, i - 1);
        if (parent >= 0) {
            memcpy(mask, w->pass.mask + (size_t)(first + parent) * TREE_MASK_WORDS,
                   TREE_MASK_WORDS * sizeof *mask);
            w->pass.rows[first + i].pos = w->pass.rows[first + parent].pos + 1;
        }
        mask[i / 64] |= (uint64_t)1 << (i % 64);
    }
}

#endif
