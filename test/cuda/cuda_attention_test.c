// SPDX-License-Identifier: Apache-2.0
/* Rope, the store into pages, attention and the ops that move pages, compared with the scalar
 * backend: keys and values enter both caches through the same ops. */
#include "test/cuda/cuda_layers.h"

static const struct stored plain_numbers = {.format = KV_PLAIN};

/* Ten sequences in one pass: prompts, decoding rows and trees, with pasts around the edges
 * of blocks and tiles. */
static void attention_case(enum dtype dtype, const struct shape *s, struct stored stored)
{
    static const struct seq_spec specs[] = {
        {0, 40, false}, {100, 1, false}, {0, 1, false},  {77, 16, false}, {33, 20, true},
        {5, 9, true},   {63, 65, false}, {64, 1, false}, {15, 3, false},  {90, 70, true},
    };
    static struct test_pass t;
    struct setup u = {0};
    REQUIRE(open_setup_of(&u, dtype, false, s, stored));
    struct pair *p = &u.p;
    step_begin(p);
    store_past(&u, &t, specs, COUNT(specs));
    pass_of(&t, specs, COUNT(specs), false, 12);
    pass_begin(p, &t);
    struct pair_tensor qkv = store_rows(&u, t.pass.n_rows);
    char what[160];
    snprintf(what, sizeof what,
             "dtype %d heads %d/%d of %d pairs %d norm %d window %d blocks of %d, format %d of %g",
             dtype, s->n_heads, s->n_kv_heads, s->head_dim, s->n_pairs, s->qk_norm, s->window,
             s->block_tokens, stored.format, (double)stored.k_scale);
    check_rows(p, what, &qkv, s->n_heads * s->head_dim, pair_tolerance(p)); // rotated queries
    attend(&u, &qkv, what);
    pass_end(p);
    step_end(p, NULL);
    pair_close(p);
}

/* Each shape tests a different path: widths of heads, groups, windows, soft caps, sinks,
 * interleaved rotation. */
TEST(attention_agrees)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {4, 2, 64, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {7, 1, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {3, 3, 80, 20, true, QK_NORM_NONE, NORM_RMS, 32, 0.0f, false, 16, false, 0, false, 0},
        {4, 4, 16, 8, false, QK_NORM_WIDTH, NORM_RMS, 0, 20.0f, false, 16, false, 0, false, 0},
        {8, 2, 96, 48, true, QK_NORM_HEAD, NORM_LAYER, 48, 0.0f, true, 16, false, 0, false, 0},
        {2, 1, 256, 64, false, QK_NORM_NONE, NORM_RMS, 0, 30.0f, true, 16, false, 0, false, 0},
        {12, 2, 64, 0, false, QK_NORM_NONE, NORM_RMS, 7, 0.0f, false, 16, false, 0, false, 0},
        {8, 2, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, true, 0, false, 0},
        {8, 2, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, true, 30, false, 0},
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 20, false, 0},
        {4, 2, 80, 40, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, true, 0, false, 0},
        {4, 2, 96, 20, true, QK_NORM_HEAD, NORM_LAYER, 0, 0.0f, false, 16, true, 20, false, 0},
        /* Each size of heads that families have, with the norm of values and chunks. */
        {4, 2, 72, 36, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 0, true, 0},
        {4, 1, 112, 56, false, QK_NORM_NONE, NORM_RMS, 40, 0.0f, false, 16, false, 0, false, 0},
        {4, 4, 192, 96, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 32},
        {8, 4, 256, 128, false, QK_NORM_HEAD, NORM_RMS, 24, 0.0f, false, 16, false, 0, true, 0},
        {8, 1, 512, 256, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 0, true, 0},
        {16, 2, 512, 256, false, QK_NORM_HEAD, NORM_RMS, 0, 30.0f, false, 16, false, 0, true, 0},
        {5, 1, 128, 64, true, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, true, 0, false, 32},
        {8, 2, 64, 32, false, QK_NORM_NONE, NORM_RMS, 50, 0.0f, true, 16, false, 0, false, 48},
        {6, 2, 128, 0, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 30, false, 0},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(shapes); i++) {
            attention_case(pair_dtypes[d], &shapes[i], plain_numbers);
            struct shape s = shapes[i];
            s.block_tokens = 64;
            attention_case(pair_dtypes[d], &s, plain_numbers);
        }
    }
}

/* Rows that see each other, in passes of few and of many rows, with windows in both directions. */
static void encoder_case(enum dtype dtype, bool deterministic, const struct shape *s,
                         struct stored stored)
{
    static const struct seq_spec specs[][4] = {
        {{0, 256, false}, {0, 1, false}, {0, 15, false}, {0, 240, false}},
        {{0, 9, false}, {0, 1, false}, {0, 2, false}, {0, 5, false}},
        {{0, 1, false}, {0, 1, false}, {0, 1, false}, {0, 1, false}}};
    for (int32_t i = 0; i < COUNT(specs); i++) {
        static struct test_pass t;
        struct setup u = {0};
        REQUIRE(open_setup_of(&u, dtype, deterministic, s, stored));
        step_begin(&u.p);
        give_poison(&u.p, COUNT(specs[i]));
        pass_of(&t, specs[i], COUNT(specs[i]), false, 12);
        t.pass.bidirectional = true;
        pass_begin(&u.p, &t);
        char what[120];
        snprintf(what, sizeof what, "an encoder: dtype %d heads %d/%d of %d window %d, format %d",
                 dtype, s->n_heads, s->n_kv_heads, s->head_dim, s->window, stored.format);
        store_and_attend(&u, t.pass.n_rows, what);
        pass_end(&u.p);
        step_end(&u.p, NULL);
        pair_close(&u.p);
    }
}

TEST(rows_of_encoders_see_each_other)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {12, 12, 32, 0, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {12, 12, 64, 0, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {12, 12, 64, 32, false, QK_NORM_NONE, NORM_RMS, 65, 0.0f, false, 16, false, 0, false, 0},
        {3, 1, 256, 128, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {3, 1, 256, 128, false, QK_NORM_HEAD, NORM_RMS, 29, 0.0f, false, 16, false, 0, false, 0},
        {4, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 3, 0.0f, false, 64, false, 0, false, 0},
        {3, 3, 80, 20, false, QK_NORM_NONE, NORM_RMS, 32, 30.0f, false, 16, false, 0, false, 0},
        {4, 4, 24, 12, false, QK_NORM_NONE, NORM_RMS, 9, 0.0f, false, 16, false, 0, false, 0},
        {5, 5, 20, 0, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
    };
    for (int32_t i = 0; i < COUNT(shapes); i++) {
        for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
            encoder_case(pair_dtypes[d], false, &shapes[i], plain_numbers);
            encoder_case(pair_dtypes[d], true, &shapes[i], plain_numbers);
        }
        for (int32_t k = 0; k < COUNT(stored_codes); k++) {
            encoder_case(DT_BF16, false, &shapes[i], stored_codes[k]);
        }
    }
}

/* Quantised caches: both backends encode by the same rule, so they read the same numbers. */
TEST(attention_to_codes_agrees)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {4, 2, 64, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {7, 1, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 32, false, 0, false, 0},
        {3, 3, 80, 20, true, QK_NORM_NONE, NORM_RMS, 32, 0.0f, false, 16, false, 0, false, 0},
        {8, 2, 96, 48, true, QK_NORM_HEAD, NORM_LAYER, 48, 0.0f, true, 64, false, 0, false, 0},
        {4, 1, 112, 56, false, QK_NORM_NONE, NORM_RMS, 40, 0.0f, false, 16, false, 0, false, 0},
        {4, 4, 192, 96, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 32},
        {2, 1, 256, 64, false, QK_NORM_NONE, NORM_RMS, 0, 30.0f, true, 32, false, 0, false, 0},
        {8, 4, 256, 128, false, QK_NORM_HEAD, NORM_RMS, 24, 0.0f, false, 16, false, 0, true, 0},
        {4, 4, 16, 8, false, QK_NORM_HEAD, NORM_RMS, 0, 20.0f, false, 16, false, 0, false, 0},
        {4, 2, 72, 36, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, true, 16, false, 0, true, 0},
        {5, 5, 36, 8, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {4, 2, 64, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 24, false, 0, false, 0},
        {8, 1, 512, 256, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 0, true, 0},
        {40, 1, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, true, 30, false, 0},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(shapes) * COUNT(stored_codes); i++) {
            attention_case(pair_dtypes[d], &shapes[i / COUNT(stored_codes)],
                           stored_codes[i % COUNT(stored_codes)]);
        }
    }
}

/* Queries, keys and values directly from a product, which the backend may leave as partial sums. */
TEST(the_rope_after_a_product_reads_it_correctly)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {32, 8, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {32, 8, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {32, 8, 128, 64, true, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {32, 8, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, true, 9, false, 0},
    };
    static struct test_pass t;
    for (int32_t i = 0; i < COUNT(shapes); i++) {
        struct setup u = {0};
        REQUIRE(open_setup(&u, i == 1 ? DT_F16 : DT_BF16, false, &shapes[i]));
        struct pair *p = &u.p;
        const struct seq_spec specs[] = {{0, 30, false}, {0, 17, false}};
        step_begin(p);
        give_blocks(p, 2, 8);
        pass_of(&t, specs, 2, false, 41);
        pass_begin(p, &t);
        const int32_t n = t.pass.n_rows, n_in = 2048;
        struct pair_tensor x = tensor_random(p, n, n_in, n_in, 1.0f);
        struct pair_tensor qkv = tensor_poisoned(p, n, u.width, p->dtype);
        struct pair_weight w = weight_make(p, WEIGHT_LINEAR, p->dtype, 1, u.width, n_in, i == 0,
                                           1.0f / sqrtf((float)n_in));
        for (int32_t layer = 0; layer < 2; layer++) {
            struct rope_store_args a;
            struct linear_args l = {.n_rows = n};
            for (int b = FIRST; b <= GPU; b++) {
                a = rope_args(&u, layer, n, b);
                a.qkv = l.y = qkv.t[b];
                l.x = x.t[b];
                l.weight = w.w[b];
                if (ops_rope_store_adds_sums(p->be[b], &a)) {
                    l.sums = &a.sums;
                } else {
                    l.sums = NULL;
                }
                CHECK(b == CPU || l.sums || shapes[i].interleaved);
                CHECK_EQ(p->be[b]->ops->linear(p->be[b], &l), OK);
                CHECK_EQ(p->be[b]->ops->rope_store(p->be[b], &a), OK);
            }
        }
        check_rows(p, "queries of a product", &qkv, 32 * 128, 2 * pair_tolerance(p));
        attend(&u, &qkv, "attention over keys of a product");
        pass_end(p);
        step_end(p, NULL);
        pair_close(p);
    }
}

/* Absorbed queries against one latent key for all heads, whose first part is also the
 * value. */
static void mla_case(enum dtype dtype, struct stored stored)
{
    struct pair p;
    const struct backend_limits limits = pair_limits();
    REQUIRE(pair_open(&p, dtype, false, &limits));
    const int32_t heads = 4, lora = 64, rope_dim = 16, q_head = lora + rope_dim;
    float inv_freq[8];
    for (int32_t i = 0; i < 8; i++) {
        inv_freq[i] = powf(10000.0f, -(float)i / 8.0f);
    }
    const struct rope_desc rope_desc = {8, inv_freq, 1.0f, true, 1024};
    const struct kv_layer layer = {.n_heads = heads,
                                   .n_kv_heads = 1,
                                   .head_dim_k = q_head,
                                   .head_dim_v = lora,
                                   .v_in_k = true,
                                   .k_scale = stored.k_scale,
                                   .v_scale = stored.v_scale};
    const struct kv_set_desc set = {
        .n_layers = 1, .layers = &layer, .dtype = p.dtype, .format = stored.format};
    struct rope_table *rope[2];
    for (int b = 0; b < 2; b++) {
        struct err err;
        CHECK_EQ(p.be[b]->ops->rope_open(p.be[b], &rope_desc, &rope[b]), OK);
        CHECK_EQ(p.be[b]->ops->kv_open(p.be[b], 0, &set, &err), OK);
    }
    struct pair_weight norm = vector_make(&p, lora, 1.0f);
    static struct test_pass t;
    const struct seq_spec specs[] = {{0, 30, false}, {50, 1, false}, {20, 12, true}};
    step_begin(&p);
    give_blocks(&p, 3, 8);
    for (int past = 1; past >= 0; past--) {
        pass_of(&t, specs, 3, past, 21);
        pass_begin(&p, &t);
        const int32_t n = t.pass.n_rows;
        struct pair_tensor q = tensor_random(&p, n, heads * q_head, heads * q_head, 1.0f);
        struct pair_tensor raw = tensor_random(&p, n, heads * 40, heads * 40, 1.0f);
        struct pair_tensor kv = tensor_random(&p, n, q_head, q_head + 8, 1.0f);
        struct mla_store_args a = {.n_rows = n,
                                   .n_heads = heads,
                                   .q_head = 40,
                                   .q_rope_offset = 24,
                                   .rope_dim = rope_dim,
                                   .q_out_head = q_head,
                                   .q_out_offset = lora,
                                   .kv_lora = lora,
                                   .eps = 1e-6f,
                                   .growth = {past ? 0.0f : 0.2f, 11, 0}};
        BOTH(&p, mla_store, a, a.q = raw.t[b]; a.q_out = q.t[b]; a.kv = kv.t[b]; a.rope = rope[b];
             a.kv_norm = norm.w[b]);
        check_tensor(&p, "mla queries", &q, heads * q_head, pair_tolerance(&p));
        check_rows(&p, "their part that is not rotated", &raw, heads * 40, pair_tolerance(&p));
        struct pair_tensor out = tensor_poisoned(&p, n, heads * lora, p.dtype);
        struct attention_args at = {.n_rows = n,
                                    .n_heads = heads,
                                    .n_kv_heads = 1,
                                    .head_dim_k = q_head,
                                    .head_dim_v = lora,
                                    .scale = 0.1f};
        BOTH(&p, attention, at, at.q = q.t[b]; at.out = out.t[b]);
        check_tensor(&p, "mla attention", &out, heads * lora, stored_tolerance(&p, stored.format));
        pass_end(&p);
    }
    step_end(&p, NULL);
    pair_close(&p);
}

/* MLA with plain and quantised caches. */
TEST(mla_agrees)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        mla_case(pair_dtypes[d], plain_numbers);
        for (int32_t i = 0; i < COUNT(stored_codes); i++) {
            mla_case(pair_dtypes[d], stored_codes[i]);
        }
    }
}

/* The GPU's outputs of a pass whose rows of layer 1 are `qkv`, which is not modified. The caller
 * frees them. */
static float *outputs_of(struct setup *u, const struct test_pass *t, const float *qkv)
{
    struct pair *p = &u->p;
    struct pair_tensor x = tensor_make(p, t->pass.n_rows, u->width, p->dtype);
    struct pair_tensor out =
        tensor_poisoned(p, t->pass.n_rows, u->s.n_heads * u->s.head_dim, p->dtype);
    tensor_put(p, &x, qkv);
    step_begin(p);
    pass_begin(p, t);
    struct rope_store_args store = {.n_rows = x.n_rows,
                                    .layer = 1,
                                    .n_heads = u->s.n_heads,
                                    .n_kv_heads = u->s.n_kv_heads,
                                    .head_dim = u->s.head_dim};
    BOTH(p, rope_store, store, store.qkv = x.t[b];
         store.rope = u->s.n_pairs > 0 ? u->rope[b] : NULL);
    struct attention_args a = {.n_rows = x.n_rows,
                               .layer = 1,
                               .n_heads = u->s.n_heads,
                               .n_kv_heads = u->s.n_kv_heads,
                               .head_dim_k = u->s.head_dim,
                               .head_dim_v = u->s.head_dim,
                               .window = u->s.window,
                               .chunk = u->s.chunk,
                               .softcap = u->s.softcap,
                               .scale = 0.2f};
    BOTH(p, attention, a, a.q = x.t[b]; a.out = out.t[b];
         a.sinks = u->s.sinks ? u->sinks.w[b] : NULL);
    pass_end(p);
    step_end(p, NULL);
    return tensor_get(p, &out, GPU);
}

/* Compares each row of a tree with a plain run over its ancestors, bit by bit. */
static void path_case(enum dtype dtype, const struct shape *s, struct stored stored)
{
    static const struct seq_spec specs[] = {{60, 25, true}, {505, 19, true}};
    static struct test_pass t, chain, past;
    struct setup u = {0};
    REQUIRE(open_setup_of(&u, dtype, true, s, stored));
    struct pair *p = &u.p;
    const int32_t width = u.width, out_width = s->n_heads * s->head_dim;
    step_begin(p);
    give_blocks(p, COUNT(specs), 600 / s->block_tokens);
    for (int32_t lane = 0; lane < 2; lane++) {
        const struct seq_spec one[] = {{lane == 0 ? specs[0].n_past : 0, 0, false},
                                       {lane == 1 ? specs[1].n_past : 0, 0, false}};
        pass_of(&past, one, 2, true, 11);
        pass_begin(p, &past);
        store_rows(&u, past.pass.n_rows);
        pass_end(p);
    }
    step_end(p, NULL);
    pass_of(&t, specs, 2, false, 12);
    float *qkv = xmalloc((size_t)t.pass.n_rows * (size_t)width * sizeof *qkv);
    for (int64_t i = 0; i < (int64_t)t.pass.n_rows * width; i++) {
        qkv[i] = random_float(99, i, 1.0f, dtype);
    }
    float *have = outputs_of(&u, &t, qkv);
    int32_t n_out_of_place = 0;
    for (int32_t lane = 0; lane < 2; lane++) {
        const struct pass_seq seq = t.seqs[lane];
        for (int32_t r = 0; r < seq.n_rows; r += 1 + r % 3) {
            const uint64_t mask = t.tree_mask[(seq.first_row + r) * TREE_MASK_WORDS];
            float *rows = xmalloc((size_t)seq.n_rows * (size_t)width * sizeof *rows);
            int32_t n = 0;
            for (int32_t i = 0; i <= r; i++) {
                if (mask >> i & 1) {
                    memcpy(rows + (size_t)n++ * (size_t)width,
                           qkv + (size_t)(seq.first_row + i) * (size_t)width,
                           (size_t)width * sizeof *rows);
                }
            }
            n_out_of_place += n <= r;
            const struct seq_spec plain[] = {{seq.n_past, lane == 0 ? n : 0, false},
                                             {seq.n_past, lane == 1 ? n : 0, false}};
            pass_of(&chain, plain, 2, false, 12);
            float *want = outputs_of(&u, &chain, rows);
            if (memcmp(have + (size_t)(seq.first_row + r) * (size_t)out_width,
                       want + (size_t)(n - 1) * (size_t)out_width,
                       (size_t)out_width * sizeof *want) != 0) {
                CHECK_FAIL(
                    "dtype %d, head of %d, window %d, blocks of %d, format %d: row %d of the tree "
                    "of lane %d",
                    dtype, s->head_dim, s->window, s->block_tokens, stored.format, r, lane);
            }
            free(want);
            free(rows);
        }
    }
    CHECK(n_out_of_place > 10);
    free(have);
    free(qkv);
    pair_close(p);
}

/* With --deterministic a row of a tree must have the bits that it would have without the
 * tree. */
TEST(deterministic_trees_have_the_bits_of_plain_runs)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {4, 2, 64, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 32, false, 0, false, 0},
        {3, 3, 80, 20, true, QK_NORM_NONE, NORM_RMS, 32, 0.0f, false, 16, false, 0, false, 0},
        {4, 4, 16, 8, false, QK_NORM_NONE, NORM_RMS, 0, 20.0f, true, 64, false, 0, false, 0},
        {12, 2, 64, 0, false, QK_NORM_NONE, NORM_RMS, 7, 0.0f, false, 16, false, 0, false, 0},
        {4, 2, 64, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 7},
        {2, 1, 512, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(shapes); i++) {
            path_case(pair_dtypes[d], &shapes[i], plain_numbers);
            path_case(pair_dtypes[d], &shapes[i], stored_codes[(d + i) % COUNT(stored_codes)]);
        }
    }
}

/* A layer that stores nothing rotates its queries and reads what another layer has stored. */
TEST(a_layer_reads_what_another_stored)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {8, 2, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 0, true, 0},
        {4, 1, 80, 40, false, QK_NORM_HEAD, NORM_RMS, 20, 0.0f, false, 16, false, 0, true, 0},
    };
    static const struct seq_spec specs[] = {{0, 40, false}, {100, 1, false}, {33, 20, true}};
    static const struct seq_spec few[] = {{40, 1, false}, {101, 1, false}, {53, 1, false}};
    static struct test_pass t;
    for (int32_t i = 0; i < 2 * COUNT(shapes) * COUNT(pair_dtypes); i++) {
        const bool is_few = i % 2;
        const struct shape *s = &shapes[i / 2 % COUNT(shapes)];
        struct setup u = {0};
        REQUIRE(open_setup(&u, pair_dtypes[i / 2 / COUNT(shapes)], false, s));
        struct pair *p = &u.p;
        const int32_t width = s->n_heads * s->head_dim;
        step_begin(p);
        store_past(&u, &t, is_few ? few : specs, COUNT(specs));
        pass_of(&t, is_few ? few : specs, COUNT(specs), false, 12);
        pass_begin(p, &t);
        const int32_t n = t.pass.n_rows;
        store_rows(&u, n);
        struct pair_tensor q = tensor_random(p, n, width, width + 8, 1.0f);
        struct pair_tensor out = tensor_poisoned(p, n, width + 8, p->dtype);
        for (int b = FIRST; b <= GPU; b++) {
            struct rope_store_args r = rope_args(&u, 1, n, b);
            struct attention_args a = attention_args(&u, n, b);
            r.n_kv_heads = 0;
            r.qkv = a.q = q.t[b];
            a.out = out.t[b];
            CHECK(!ops_rope_store_adds_sums(p->be[b], &r) || b == GPU);
            CHECK_EQ(ops_rope_attention(p->be[b], &r, &a, NULL), OK);
        }
        check_tensor(p, "queries alone", &q, width, pair_tolerance(p));
        check_tensor(p, "keys of another layer", &out, width, 2 * pair_tolerance(p));
        pass_end(p);
        step_end(p, NULL);
        pair_close(p);
    }
}

/* Reads copied blocks and moved slots through attention, since pages are private to a backend. */
static void copy_case(enum dtype dtype, struct stored stored, int32_t window)
{
    const struct shape s = {.n_heads = 4,
                            .n_kv_heads = 2,
                            .head_dim = 64,
                            .n_pairs = 32,
                            .block_tokens = 16,
                            .window = window};
    static struct test_pass t;
    struct setup u = {0};
    REQUIRE(open_setup_of(&u, dtype, false, &s, stored));
    struct pair *p = &u.p;
    const struct seq_spec specs[] = {{60, 1, false}, {40, 1, false}};
    step_begin(p);
    give_blocks(p, 2, 8);
    pass_of(&t, specs, 2, true, 31);
    pass_begin(p, &t);
    store_rows(&u, t.pass.n_rows);
    pass_end(p);
    /* Slots close up as after a tree; then lane 1's table points at copies of lane 0's
     * pages. */
    const struct slot_move moves[] = {
        {0, 50, 47}, {0, 52, 48}, {0, 55, 50}, {1, 33, 30}, {1, 34, 33}};
    const struct block_copy copies[] = {{300, 301}, {301, 302}};
    const int32_t fresh[] = {300, 301, 302, 303};
    for (int b = 0; b < 2; b++) {
        struct backend *be = p->be[b];
        CHECK_EQ(be->ops->move_slots(be, COUNT(moves), moves, 0), OK);
        CHECK_EQ(be->ops->lane_blocks(be, 1, 0, 4, fresh), OK);
        if (window > 0) {
            CHECK_EQ(be->ops->lane_pages(be, 1, 0, 4, fresh), OK);
        }
    }
    const struct seq_spec again[] = {{0, 0, false}, {16, 0, false}};
    pass_of(&t, again, 2, true, 33); // lane 1 rewrites block 300
    pass_begin(p, &t);
    store_rows(&u, t.pass.n_rows);
    pass_end(p);
    for (int b = 0; b < 2; b++) {
        struct backend *be = p->be[b];
        CHECK_EQ(be->ops->copy_blocks(be, 1, copies), OK);
        CHECK_EQ(be->ops->copy_blocks(be, 1, copies + 1), OK);
        for (int32_t i = 0; i < 2 && window > 0; i++) {
            CHECK_EQ(be->ops->copy_pages(be, 1, copies + i), OK);
        }
    }
    const struct seq_spec last[] = {{59, 1, false}, {47, 1, false}};
    pass_of(&t, last, 2, false, 34);
    pass_begin(p, &t);
    struct pair_tensor qkv = store_rows(&u, 2);
    attend(&u, &qkv, "after copies and moves");
    pass_end(p);
    step_end(p, NULL);
    pair_close(p);
}

/* Copies move codes together with their scales. */
TEST(copied_blocks_and_moved_slots_read_the_same)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        copy_case(pair_dtypes[d], plain_numbers, 0);
        copy_case(pair_dtypes[d], plain_numbers, 37);
        for (int32_t i = 0; i < COUNT(stored_codes); i++) {
            copy_case(pair_dtypes[d], stored_codes[i], i % 2 ? 0 : 37);
        }
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
