// SPDX-License-Identifier: Apache-2.0
/* Layers of attention for the op tests: rope, the store into pages and attention over a pass's
 * rows, on both backends. Thread: the main thread. */
#ifndef SLUICE_TEST_CUDA_LAYERS_H
#define SLUICE_TEST_CUDA_LAYERS_H

#include "engine/base/minmax.h"
#include "engine/device/ops_default.h"
#include "test/cuda/cuda_pass.h"

#define COUNT(a) (int32_t)(sizeof(a) / sizeof((a)[0]))

/* A layer of attention; numbers in the tests' tables are in this order. */
struct shape {
    int32_t n_heads, n_kv_heads, head_dim;
    int32_t n_pairs;
    bool interleaved;
    enum qk_norm qk_norm;
    enum norm_kind norm_kind;
    int32_t window;
    float softcap;
    bool sinks;
    int32_t block_tokens;
    bool norm_after;
    int32_t grows_every; // positions after which queries grow; 0: they do not
    bool v_norm;
    int32_t chunk; // keys per chunk of chunked attention; 0: none
};

/* One layer on both backends. */
struct setup {
    struct pair p;
    struct shape s;
    struct rope_table *rope[2];
    struct pair_weight q_norm, k_norm, sinks;
    int32_t width;
    double tolerance; // relative error of attention's outputs
};

/* How the pages hold keys and values. */
struct stored {
    enum kv_format format;
    float k_scale, v_scale; // scales for KV_FP8; 0: each head of each token has its own
};

static const struct stored stored_codes[] = {{KV_FP8, 0.03f, 0.02f},
                                             {KV_FP8, 0.0f, 0.0f},
                                             {KV_INT8_SYMMETRIC, 0.0f, 0.0f},
                                             {KV_INT8, 0.0f, 0.0f},
                                             {KV_INT4, 0.0f, 0.0f}};

/* The error of rounding on both backends: a number between two codes may become either. */
static inline double stored_tolerance(const struct pair *p, enum kv_format format)
{
    static const double codes_of[] = {
        [KV_FP8] = 5e-4, [KV_INT8_SYMMETRIC] = 5e-4, [KV_INT8] = 5e-4, [KV_INT4] = 2e-3};
    const double codes = codes_of[format];
    const double exact = 2 * pair_tolerance(p);
    return greater(codes, exact);
}

enum { WINDOW_PAGES = 411 }; // another number than that of the blocks

/* Opens two layers on backends that are already open; layer 1 is used, so that offsets of layers
 * matter. It has pages of its own if it has a window. */
static inline bool open_layers(struct setup *u, const struct shape *s, struct stored stored)
{
    struct pair *p = &u->p;
    u->s = *s;
    u->tolerance = stored_tolerance(p, stored.format);
    int32_t n_norm;
    if (s->qk_norm == QK_NORM_WIDTH || (s->qk_norm == QK_NORM_HEAD && s->norm_kind == NORM_LAYER)) {
        n_norm = s->head_dim * s->n_heads;
    } else {
        n_norm = s->head_dim;
    }
    int32_t k_norm = n_norm;
    if (n_norm != s->head_dim) {
        k_norm = s->head_dim * s->n_kv_heads;
    }
    u->q_norm = vector_make(p, n_norm, 1.0f);
    u->k_norm = vector_make(p, k_norm, 1.0f);
    u->sinks = vector_make(p, s->n_heads, 1.0f);
    u->width = (s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
    float inv_freq[256];
    for (int32_t i = 0; i < s->n_pairs; i++) {
        inv_freq[i] = powf(10000.0f, -(float)i / (float)s->n_pairs);
    }
    const struct rope_desc rope = {s->n_pairs, inv_freq, 1.1f, s->interleaved, 1100};
    const struct kv_layer layer = {.n_heads = s->n_heads,
                                   .n_kv_heads = s->n_kv_heads,
                                   .head_dim_k = s->head_dim,
                                   .head_dim_v = s->head_dim,
                                   .k_scale = stored.k_scale,
                                   .v_scale = stored.v_scale};
    struct kv_layer layers[] = {layer, layer};
    layers[1].windowed = p->limits.n_window_pages > 0;
    const struct kv_set_desc set = {
        .n_layers = 2, .layers = layers, .dtype = p->dtype, .format = stored.format};
    for (int b = 0; b < 2; b++) {
        struct err err = {""};
        if (p->be[b]->ops->rope_open(p->be[b], &rope, &u->rope[b]) != OK ||
            p->be[b]->ops->kv_open(p->be[b], 0, &set, &err) != OK) {
            printf("%s\n", err.text);
            return false;
        }
    }
    return true;
}

static inline bool open_setup_of(struct setup *u, enum dtype dtype, bool deterministic,
                                 const struct shape *s, struct stored stored)
{
    struct backend_limits limits = pair_limits();
    limits.block_tokens = s->block_tokens;
    limits.n_window_pages = s->window > 0 || s->chunk > 0 ? WINDOW_PAGES : 0;
    limits.max_tree_nodes = deterministic ? 64 : 0;
    return pair_open(&u->p, dtype, deterministic, &limits) && open_layers(u, s, stored);
}

static inline bool open_setup(struct setup *u, enum dtype dtype, bool deterministic,
                              const struct shape *s)
{
    return open_setup_of(u, dtype, deterministic, s, (struct stored){.format = KV_PLAIN});
}

static inline struct rope_store_args rope_args(const struct setup *u, int32_t layer, int32_t n_rows,
                                               int b)
{
    return (struct rope_store_args){
        .n_rows = n_rows,
        .layer = layer,
        .n_heads = u->s.n_heads,
        .n_kv_heads = u->s.n_kv_heads,
        .head_dim = u->s.head_dim,
        .qk_norm = u->s.qk_norm,
        .qk_norm_kind = u->s.norm_kind,
        .norm_after_rope = u->s.norm_after,
        .growth = {u->s.grows_every ? 0.3f : 0.0f, u->s.grows_every, 1},
        .v_norm = u->s.v_norm,
        .eps = 1e-6f,
        .rope = u->s.n_pairs > 0 ? u->rope[b] : NULL,
        .q_norm = u->q_norm.w[b],
        .k_norm = u->k_norm.w[b],
    };
}

/* Stores rows of random keys and values for both layers; returns the last qkv. */
static inline struct pair_tensor store_rows(struct setup *u, int32_t n_rows)
{
    struct pair *p = &u->p;
    struct pair_tensor qkv = {0};
    for (int32_t layer = 0; layer < 2; layer++) {
        qkv = tensor_random(p, n_rows, u->width, u->width + 8, 1.0f);
        struct rope_store_args a;
        BOTH(p, rope_store, a, a = rope_args(u, layer, n_rows, b); a.qkv = qkv.t[b]);
    }
    return qkv;
}

static inline struct attention_args attention_args(const struct setup *u, int32_t n_rows, int b)
{
    return (struct attention_args){
        .n_rows = n_rows,
        .layer = 1,
        .n_heads = u->s.n_heads,
        .n_kv_heads = u->s.n_kv_heads,
        .head_dim_k = u->s.head_dim,
        .head_dim_v = u->s.head_dim,
        .scale = 1.0f / sqrtf((float)u->s.head_dim),
        .window = u->s.window,
        .chunk = u->s.chunk,
        .softcap = u->s.softcap,
        .sinks = u->s.sinks ? u->sinks.w[b] : NULL,
    };
}

/* Runs attention on both and compares the outputs; poison shows rows that were not
 * written. */
static inline void attend(struct setup *u, const struct pair_tensor *qkv, const char *what)
{
    struct pair *p = &u->p;
    const int32_t out_width = u->s.n_heads * u->s.head_dim;
    struct pair_tensor out = tensor_poisoned(p, qkv->n_rows, out_width + 8, p->dtype);
    struct attention_args a;
    BOTH(p, attention, a, a = attention_args(u, qkv->n_rows, b); a.q = qkv->t[b]; a.out = out.t[b]);
    check_tensor(p, what, &out, out_width, u->tolerance);
}

/* Stores and attends over random rows of layer 1, in one op if the backend has it. */
static inline void store_and_attend(struct setup *u, int32_t n_rows, const char *what)
{
    struct pair *p = &u->p;
    const int32_t out_width = u->s.n_heads * u->s.head_dim;
    struct pair_tensor qkv = tensor_random(p, n_rows, u->width, u->width + 8, 1.0f);
    struct pair_tensor out = tensor_poisoned(p, n_rows, out_width + 8, p->dtype);
    for (int b = FIRST; b <= GPU; b++) {
        struct rope_store_args r = rope_args(u, 1, n_rows, b);
        struct attention_args a = attention_args(u, n_rows, b);
        r.qkv = a.q = qkv.t[b];
        a.out = out.t[b];
        CHECK_EQ(ops_rope_attention(p->be[b], &r, &a, NULL), OK);
    }
    check_tensor(p, what, &out, out_width, u->tolerance);
}

/* Gives the sequences blocks full of NaN. */
static inline void give_poison(struct pair *p, int32_t n_lanes)
{
    give_blocks(p, n_lanes, 16);
    for (int b = FIRST; b <= GPU; b++) {
        int32_t all[400];
        for (int32_t i = 0; i < 400; i++) {
            all[i] = i;
        }
        CHECK_EQ(p->be[b]->ops->poison_blocks(p->be[b], 400, all), OK);
        if (p->limits.n_window_pages > 0) {
            CHECK_EQ(p->be[b]->ops->poison_pages(p->be[b], 400, all), OK);
        }
    }
}

/* The same, and then stores the keys and values of their past. */
static inline void store_past(struct setup *u, struct test_pass *t, const struct seq_spec *specs,
                              int32_t n_specs)
{
    struct pair *p = &u->p;
    give_poison(p, n_specs);
    pass_of(t, specs, n_specs, true, 11);
    pass_begin(p, t);
    store_rows(u, t->pass.n_rows);
    pass_end(p);
}

#endif
