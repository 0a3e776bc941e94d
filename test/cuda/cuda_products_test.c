// SPDX-License-Identifier: Apache-2.0
/* Matrix products, and those joined with a norm or an activation, compared with the scalar backend.
 */
#include "engine/device/ops_default.h"
#include "test/cuda/cuda_pair.h"

#define COUNT(a) (int32_t)(sizeof(a) / sizeof((a)[0]))

/* Poison in the padding reveals writes outside of y, and poison in y reveals missing ones. */
static void linear_case(struct pair *p, int32_t n_rows, int32_t n_out, int32_t n_in, int32_t pad,
                        bool bias, bool accumulate, bool fp32_out)
{
    struct pair_tensor x = tensor_random(p, n_rows, n_in, n_in + pad, 1.0f);
    struct pair_tensor y = tensor_poisoned(p, n_rows, n_out + pad, fp32_out ? DT_F32 : p->dtype);
    struct pair_weight w =
        weight_make(p, WEIGHT_LINEAR, p->dtype, 1, n_out, n_in, bias, 1.0f / sqrtf((float)n_in));
    if (accumulate) {
        struct pair_tensor start = tensor_random(p, n_rows, n_out, n_out + pad, 1.0f);
        float *values = tensor_get(p, &start, CPU);
        tensor_put(p, &y, values);
        free(values);
    }
    struct linear_args a = {.n_rows = n_rows, .accumulate = accumulate};
    BOTH(p, linear, a, a.x = x.t[b]; a.y = y.t[b]; a.weight = w.w[b]);
    char what[96];
    snprintf(what, sizeof what, "linear %d x %d x %d dtype %d bias %d accumulate %d fp32 %d",
             n_rows, n_out, n_in, p->dtype, bias, accumulate, fp32_out);
    check_tensor(p, what, &y, n_out, pair_tolerance(p));
}

/* Numbers of rows around the limits of the kernels for few, some and many rows. */
static void linear_cases(bool deterministic)
{
    static const int32_t rows[] = {1, 2, 7, 16, 17, 33, 64, 130};
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[d], deterministic, NULL));
        for (int32_t i = 0; i < COUNT(rows); i++) {
            linear_case(&p, rows[i], 96, 64, 0, false, false, false);
            linear_case(&p, rows[i], 328, 512, 8, true, false, false);
            linear_case(&p, rows[i], 61, 37, 3, true, true, false);
            linear_case(&p, rows[i], 136, 256, 0, false, true, false);
            linear_case(&p, rows[i], 1000, 128, 0, false, false, true);
        }
        linear_case(&p, 300, 520, 1032, 0, true, false, false);
        pair_close(&p);
    }
}

TEST(linear_agrees)
{
    NEED_GPU();
    linear_cases(false);
}

TEST(linear_agrees_in_deterministic_mode)
{
    NEED_GPU();
    linear_cases(true);
}

/* With so many features all multiprocessors have a tile, and other kernels are chosen. */
TEST(products_of_many_rows_and_features_agree)
{
    NEED_GPU();
    static const int32_t rows[] = {1, 33, 50, 64};
    for (int32_t d = 1; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[d], false, NULL));
        for (int32_t i = 0; i < COUNT(rows); i++) {
            linear_case(&p, rows[i], 4096, 1096, 0, true, false, false);
            linear_case(&p, rows[i], 4000, 520, 8, false, true, true);
            linear_case(&p, rows[i], 6144, 320, 0, false, false, false);
            linear_case(&p, rows[i], 28672, 72, 0, i == 1, i == 2, false);
            linear_case(&p, rows[i], 29001, 136, 8, i == 2, false, i != 3);
        }
        pair_close(&p);
    }
}

/* A product that the backend may leave as sums over ranges of K, read by the norm after it. With a
 * bias, which reduce has to add, the product is complete. */
static void linear_norm_case(struct pair *p, int32_t n_rows, int32_t n_out, int32_t n_in,
                             enum norm_kind kind, bool bias)
{
    struct pair_tensor x = tensor_random(p, n_rows, n_in, n_in + 8, 1.0f);
    struct pair_tensor residual = tensor_random(p, n_rows, n_out, n_out, 1.0f);
    struct pair_tensor delta = tensor_poisoned(p, n_rows, n_out, p->dtype);
    struct pair_tensor out = tensor_poisoned(p, n_rows, n_out + 8, p->dtype);
    struct pair_weight w =
        weight_make(p, WEIGHT_LINEAR, p->dtype, 1, n_out, n_in, bias, 1.0f / sqrtf((float)n_in));
    struct pair_weight scale = vector_make(p, n_out, 1.0f);
    for (int b = FIRST; b <= GPU; b++) {
        struct product_sums sums = {.n = 0};
        struct linear_args a = {
            .weight = w.w[b], .x = x.t[b], .y = delta.t[b], .n_rows = n_rows, .partial = true};
        const struct reduce_args r = {
            .y = delta.t[b], .n_rows = n_rows, .width = n_out, .whole = true, .linear = w.w[b]};
        struct norm_args n = {.x = residual.t[b],
                              .delta = delta.t[b],
                              .out = out.t[b],
                              .weight = scale.w[b],
                              .n_rows = n_rows,
                              .width = n_out,
                              .kind = kind,
                              .eps = 1e-5f,
                              .delta_scale = 0.7f};
        a.sums = ops_norm_adds_sums(p->be[b], &n) ? &sums : NULL;
        CHECK_EQ(p->be[b]->ops->linear(p->be[b], &a), OK);
        CHECK(sums.n == 0 || !bias);
        n.delta_sums = sums;
        CHECK_EQ(sums.n > 0 ? p->be[b]->ops->norm(p->be[b], &n) : ops_reduce_norm(p->be[b], &r, &n),
                 OK);
    }
    char what[96];
    snprintf(what, sizeof what, "linear, reduce and norm %d x %d x %d dtype %d kind %d bias %d",
             n_rows, n_out, n_in, p->dtype, kind, bias);
    check_tensor(p, what, &residual, n_out, pair_tolerance(p));
    check_tensor(p, what, &out, n_out, 2 * pair_tolerance(p));
}

/* A product may leave partial sums that the norm adds up; both ways must agree. */
TEST(the_norm_after_a_product_reads_it_correctly)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[d], false, NULL));
        if (p.dtype != DT_F32) { // cut over K on a GPU with 132 multiprocessors
            linear_norm_case(&p, 64, 4096, 3904, NORM_RMS, false);
            linear_norm_case(&p, 37, 2048, 4104, NORM_LAYER, false);
            linear_norm_case(&p, 33, 2048, 4096, NORM_RMS, true);
            linear_norm_case(&p, 65, 4096, 2048, NORM_RMS, false);
        }
        linear_norm_case(&p, 50, 1000, 320, NORM_RMS, false);
        linear_norm_case(&p, 65, 512, 1024, NORM_RMS, false); // K is cut in two halves
        linear_norm_case(&p, 143, 1000, 1040, NORM_LAYER, false);
        linear_norm_case(&p, 256, 128, 480, NORM_RMS, true);
        linear_norm_case(&p, 100, 104, 64, NORM_RMS, true);
        pair_close(&p);
    }
}

/* A norm of one row and the only product that reads it: of a row with a delta, which is added to
 * it, or in place. */
static void norm_product_case(struct pair *p, int32_t n_out, int32_t n_in, bool with_delta)
{
    const struct pair_tensor x = tensor_random(p, 1, n_in, n_in + 8, 1.0f);
    const struct pair_tensor delta = tensor_random(p, 1, n_in, n_in, 1.0f);
    const struct pair_tensor h = tensor_poisoned(p, 1, n_in, p->dtype);
    const struct pair_tensor y = tensor_poisoned(p, 1, n_out, p->dtype);
    const struct pair_weight scale = vector_make(p, n_in, 1.0f);
    const struct pair_weight w =
        weight_make(p, WEIGHT_LINEAR, p->dtype, 1, n_out, n_in, false, 1.0f / sqrtf((float)n_in));
    for (int b = FIRST; b <= GPU; b++) {
        struct norm_args n = {.x = x.t[b],
                              .out = x.t[b],
                              .weight = scale.w[b],
                              .n_rows = 1,
                              .width = n_in,
                              .kind = NORM_RMS,
                              .eps = 1e-5f,
                              .weight_offset = 0.5f};
        if (with_delta) {
            n.out = h.t[b];
            n.delta = delta.t[b];
            n.delta_scale = 0.7f;
            n.x_scale = 0.9f;
        }
        const struct linear_args a = {.weight = w.w[b], .x = n.out, .y = y.t[b], .n_rows = 1};
        for (int32_t turn = 0; turn < (with_delta ? 3 : 1); turn++) {
            CHECK_EQ(ops_norm_linear(p->be[b], &n, &a, NULL, NULL), OK);
        }
    }
    char what[96];
    snprintf(what, sizeof what, "norm and linear %d x %d dtype %d delta %d", n_out, n_in, p->dtype,
             with_delta);
    check_tensor(p, what, &y, n_out, 2 * pair_tolerance(p));
    if (with_delta) {
        check_tensor(p, what, &x, n_in, pair_tolerance(p));
    }
}

/* The same for an MLP, whose first product computes its activation, too. */
static void norm_mlp_case(struct pair *p, int32_t width, int32_t n_in, bool with_delta)
{
    const struct pair_tensor x = tensor_random(p, 1, n_in, n_in, 1.0f);
    const struct pair_tensor delta = tensor_random(p, 1, n_in, n_in, 1.0f);
    const struct pair_tensor h = tensor_poisoned(p, 1, n_in, p->dtype);
    const struct pair_tensor between = tensor_poisoned(p, 1, 2 * width, p->dtype);
    const struct pair_tensor act = tensor_poisoned(p, 1, width, p->dtype);
    const struct pair_tensor y = tensor_poisoned(p, 1, n_in, p->dtype);
    const struct pair_weight scale = vector_make(p, n_in, 1.0f);
    const struct pair_weight up = weight_make(p, WEIGHT_LINEAR, p->dtype, 1, 2 * width, n_in, false,
                                              2.0f / sqrtf((float)n_in));
    const struct pair_weight down =
        weight_make(p, WEIGHT_LINEAR, p->dtype, 1, n_in, width, false, 1.0f / sqrtf((float)width));
    for (int b = FIRST; b <= GPU; b++) {
        struct norm_args n = {.x = x.t[b],
                              .out = h.t[b],
                              .weight = scale.w[b],
                              .n_rows = 1,
                              .width = n_in,
                              .kind = NORM_RMS,
                              .eps = 1e-5f,
                              .delta_scale = 0.7f};
        if (with_delta) {
            n.delta = delta.t[b];
        }
        const struct linear_args first = {
            .weight = up.w[b], .x = h.t[b], .y = between.t[b], .n_rows = 1};
        const struct activation_args a = {.x = between.t[b],
                                          .out = act.t[b],
                                          .n_rows = 1,
                                          .width = width,
                                          .kind = ACT_SILU,
                                          .gated = true,
                                          .shape = ACT_SHAPE_PUBLISHED};
        const struct linear_args last = {
            .weight = down.w[b], .x = act.t[b], .y = y.t[b], .n_rows = 1};
        CHECK_EQ(ops_norm_linear(p->be[b], &n, &first, &a, &last), OK);
    }
    char what[96];
    snprintf(what, sizeof what, "norm and MLP %d x %d dtype %d delta %d", width, n_in, p->dtype,
             with_delta);
    check_tensor(p, what, &act, width, 2 * pair_tolerance(p));
    check_tensor(p, what, &y, n_in, 2 * pair_tolerance(p));
    check_tensor(p, what, &x, n_in, pair_tolerance(p));
}

TEST(a_norm_and_its_mlp_agree)
{
    NEED_GPU();
    static const int32_t sizes[][2] = {{3072, 1024}, {8192, 2048}, {40, 520}, {3168, 512},
                                       {3200, 512},  {200, 4096},  {96, 4104}};
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[d], false, NULL));
        for (int32_t i = 0; i < COUNT(sizes); i++) {
            norm_mlp_case(&p, sizes[i][0], sizes[i][1], false);
            norm_mlp_case(&p, sizes[i][0], sizes[i][1], true);
        }
        pair_close(&p);
    }
}

TEST(a_norm_and_its_product_agree)
{
    NEED_GPU();
    static const int32_t sizes[][2] = {{1344, 768}, {5120, 520}, {40, 4096},
                                       {200, 4104}, {96, 264},   {6000, 1024}};
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[d], false, NULL));
        for (int32_t i = 0; i < COUNT(sizes); i++) {
            norm_product_case(&p, sizes[i][0], sizes[i][1], false);
            norm_product_case(&p, sizes[i][0], sizes[i][1], true);
        }
        pair_close(&p);
    }
}

/* If sums are not requested, the product is complete, for any op and for repeated reads. */
TEST(every_op_reads_a_product_correctly)
{
    NEED_GPU();
    struct pair p;
    REQUIRE(pair_open(&p, DT_BF16, false, NULL));
    const int32_t n_rows = 40, n_out = 4096, n_in = 4096;
    struct pair_tensor x = tensor_random(&p, n_rows, n_in, n_in, 1.0f);
    struct pair_tensor y = tensor_poisoned(&p, n_rows, n_out, p.dtype);
    struct pair_tensor act = tensor_poisoned(&p, n_rows, n_out, p.dtype);
    struct pair_tensor again = tensor_poisoned(&p, n_rows, n_out, p.dtype);
    struct pair_weight w = weight_make(&p, WEIGHT_LINEAR, p.dtype, 1, n_out, n_in, false, 0.02f);
    struct linear_args a = {.n_rows = n_rows};
    BOTH(&p, linear, a, a.x = x.t[b]; a.y = y.t[b]; a.weight = w.w[b]);
    struct activation_args c = {.n_rows = n_rows, .width = n_out, .kind = ACT_GELU};
    BOTH(&p, activation, c, c.x = y.t[b]; c.out = act.t[b]);
    BOTH(&p, linear, a, a.x = y.t[b]; a.y = again.t[b]; a.weight = w.w[b]);
    check_tensor(&p, "a product", &y, n_out, pair_tolerance(&p));
    check_tensor(&p, "its activation", &act, n_out, 2 * pair_tolerance(&p));
    check_tensor(&p, "a product of it", &again, n_out, 2 * pair_tolerance(&p));
    pair_close(&p);
}

/* The activation is computed from the unrounded product, so the fused op is at least as
 * near to the reference. */
static void linear_act_case(struct pair *p, int32_t n_rows, int32_t width, int32_t n_in,
                            enum activation kind, bool gated, bool bias)
{
    const int32_t n_out = gated ? 2 * width : width;
    struct pair_tensor x = tensor_random(p, n_rows, n_in, n_in, 1.0f);
    struct pair_tensor between = tensor_poisoned(p, n_rows, n_out, p->dtype);
    struct pair_tensor y = tensor_poisoned(p, n_rows, width + 8, p->dtype);
    struct pair_weight w =
        weight_make(p, WEIGHT_LINEAR, p->dtype, 1, n_out, n_in, bias, 2.0f / sqrtf((float)n_in));
    for (int b = FIRST; b <= GPU; b++) {
        const struct linear_args a = {
            .weight = w.w[b], .x = x.t[b], .y = between.t[b], .n_rows = n_rows};
        const struct activation_args act = {.x = between.t[b],
                                            .out = y.t[b],
                                            .n_rows = n_rows,
                                            .width = width,
                                            .kind = kind,
                                            .gated = gated,
                                            .shape = ACT_SHAPE_PUBLISHED};
        CHECK(ops_linear_act(p->be[b], &a, &act) == OK);
    }
    char what[96];
    snprintf(what, sizeof what, "linear and act %d x %d x %d dtype %d kind %d gated %d bias %d",
             n_rows, width, n_in, p->dtype, kind, gated, bias);
    check_tensor(p, what, &y, width, 2 * pair_tolerance(p));
}

/* All activations, gated and not, and odd numbers of rows. */
TEST(a_product_with_its_activation_agrees)
{
    NEED_GPU();
    static const int32_t rows[] = {1, 9, 17, 64, 70, 33, 128};
    static const enum activation kinds[] = {ACT_SILU, ACT_GELU_TANH, ACT_GELU, ACT_GPT_OSS,
                                            ACT_SILU_CLAMPED};
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[d], false, NULL));
        for (int32_t i = 0; i < COUNT(rows); i++) {
            for (int32_t k = 0; k < COUNT(kinds); k++) {
                linear_act_case(&p, rows[i], 200 + 56 * k, 136, kinds[k], true, k % 2 == 1);
            }
            linear_act_case(&p, rows[i], 3000, 264, ACT_SILU, true, false);
            linear_act_case(&p, rows[i], 1536 * (1 + i % 2), 1024, ACT_SILU, true, false);
            linear_act_case(&p, rows[i], 14336 - 8 * (i % 2), 72, ACT_SILU, true, i == 2);
            linear_act_case(&p, rows[i], 120, 64, ACT_GELU, false, true);
        }
        pair_close(&p);
    }
}

TEST(a_product_of_256_rows_with_its_activation_agrees)
{
    NEED_GPU();
    for (int32_t d = 1; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[d], false, NULL));
        /* Each block computes one band, in shapes that have their own kernel; the last band is
         * short. */
        linear_act_case(&p, 209, 6000, 136, ACT_SILU, true, false);
        linear_act_case(&p, 256, 5992, 264, ACT_SILU, true, false);
        linear_act_case(&p, 255, 14328, 128, ACT_SILU, true, false); // two bands
        linear_act_case(&p, 250, 6000, 136, ACT_SILU, true, true);   // that kernel adds no bias
        linear_act_case(&p, 256, 6000, 72, ACT_SILU, true, false);   // K is too short for it
        linear_act_case(&p, 200, 6000, 136, ACT_SILU, true, false);  // too few rows for it
        pair_close(&p);
    }
}

TEST(a_product_of_many_rows_with_its_activation_agrees)
{
    NEED_GPU();
    for (int32_t d = 1; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[d], false, NULL));
        /* Tiles of rows that fill an H200's multiprocessors, the last tile and band short. */
        linear_act_case(&p, 510, 3688, 136, ACT_SILU, true, false);
        linear_act_case(&p, 510, 7384, 136, ACT_SILU, true, false); // two items a cluster
        linear_act_case(&p, 2810, 664, 136, ACT_SILU, true, false); // two groups of tiles
        linear_act_case(&p, 384, 3696, 136, ACT_SILU, true, false); // half a tile more than fits
        pair_close(&p);
    }
}

/* A product per head: MLA's absorbed projections. */
TEST(linear_heads_agrees)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t n_rows = 1; n_rows < 40; n_rows += 13) {
            struct pair p;
            REQUIRE(pair_open(&p, pair_dtypes[d], false, NULL));
            const int32_t heads = 3, n_in = 32, n_out = 40, x_head = 48, y_head = 56;
            struct pair_tensor x = tensor_random(&p, n_rows, heads * x_head, heads * x_head, 1.0f);
            struct pair_tensor y = tensor_poisoned(&p, n_rows, heads * y_head, p.dtype);
            struct pair_weight w =
                weight_make(&p, WEIGHT_HEADS, p.dtype, heads, n_out, n_in, false, 0.2f);
            struct linear_heads_args a = {.n_rows = n_rows, .x_head = x_head, .y_head = y_head};
            BOTH(&p, linear_heads, a, a.x = x.t[b]; a.y = y.t[b]; a.weight = w.w[b]);
            float *cpu = tensor_get(&p, &y, CPU), *gpu = tensor_get(&p, &y, GPU);
            for (int32_t h = 0; h < heads; h++) {
                check_near("linear_heads", cpu + h * y_head, gpu + h * y_head, n_rows, n_out,
                           y.stride, pair_tolerance(&p));
                CHECK(isnan(gpu[h * y_head + n_out]));
            }
            free(cpu);
            free(gpu);
            pair_close(&p);
        }
    }
}

enum fixed_kind { FIXED_PLAIN, FIXED_NORM, FIXED_GATED, FIXED_LOGITS };

/* Products with a fixed order of sums. */
struct fixed_case {
    enum fixed_kind kind;
    int32_t n_out, n_in;
    bool bias;
};

/* Returns the product of the first n_rows rows, or the norm after it, which may read its sums. */
static float *fixed_rows(struct pair *p, const struct fixed_case *c, int32_t n_rows,
                         const struct pair_tensor *x, const struct pair_weight *w,
                         const struct pair_weight *scale)
{
    struct backend *be = p->be[GPU];
    const int32_t width = c->kind == FIXED_GATED ? c->n_out / 2 : c->n_out;
    const enum dtype dtype = c->kind == FIXED_LOGITS ? DT_F32 : p->dtype;
    struct pair_tensor y = tensor_poisoned(p, n_rows, c->n_out, dtype);
    struct pair_tensor out = tensor_poisoned(p, n_rows, width, dtype);
    struct product_sums sums = {.n = 0};
    struct linear_args a = {.n_rows = n_rows, .x = x->t[GPU], .y = y.t[GPU], .weight = w->w[GPU]};
    if (c->kind == FIXED_NORM) {
        p->seed = 7; // the same residual every time
        struct pair_tensor residual = tensor_random(p, n_rows, width, width, 1.0f);
        a.sums = &sums;
        a.partial = true;
        CHECK_EQ(be->ops->linear(be, &a), OK);
        const struct norm_args n = {.x = residual.t[GPU],
                                    .delta = y.t[GPU],
                                    .delta_sums = sums,
                                    .out = out.t[GPU],
                                    .weight = scale->w[GPU],
                                    .n_rows = n_rows,
                                    .width = width,
                                    .kind = NORM_RMS,
                                    .eps = 1e-5f};
        CHECK_EQ(be->ops->norm(be, &n), OK);
    } else if (c->kind == FIXED_GATED) {
        const struct activation_args act = {.x = y.t[GPU],
                                            .out = out.t[GPU],
                                            .n_rows = n_rows,
                                            .width = width,
                                            .kind = ACT_SILU,
                                            .gated = true};
        CHECK_EQ(be->ops->linear_act(be, &a, &act), OK);
    } else {
        CHECK_EQ(be->ops->linear(be, &a), OK);
    }
    const bool direct = c->kind == FIXED_PLAIN || c->kind == FIXED_LOGITS;
    return tensor_get(p, direct ? &y : &out, GPU);
}

/* The same row in passes of any size has the same bits. */
static void check_fixed(struct pair *p, const struct fixed_case *c)
{
    static const int32_t rows[] = {1, 2, 7, 16, 33, 64, 100, 129, 256, 512, 2048};
    const int32_t width = c->kind == FIXED_GATED ? c->n_out / 2 : c->n_out;
    const int32_t most = c->n_out > 4096 ? 512 : 2048; // the host converts every element
    struct pair_tensor x = tensor_random(p, most, c->n_in, c->n_in, 1.0f);
    struct pair_weight w = weight_make(p, WEIGHT_LINEAR, p->dtype, 1, c->n_out, c->n_in, c->bias,
                                       1.0f / sqrtf((float)c->n_in));
    struct pair_weight scale = vector_make(p, width, 1.0f);
    float *first = NULL;
    for (int32_t i = COUNT(rows) - 1; i >= 0; i--) {
        if (rows[i] > most) {
            continue;
        }
        float *got = fixed_rows(p, c, rows[i], &x, &w, &scale);
        if (!first) {
            first = got;
            CHECK(!isnan(first[(size_t)most * (size_t)width - 1]));
            continue;
        }
        const size_t n = (size_t)rows[i] * (size_t)width;
        for (size_t k = 0; k < n; k++) {
            if (memcmp(&first[k], &got[k], sizeof first[k]) != 0) {
                CHECK_FAIL("product %d of %d x %d dtype %d, %d rows: row %d feature %d is %.9g, "
                           "among %d %.9g",
                           (int)c->kind, c->n_out, c->n_in, p->dtype, rows[i],
                           (int)(k / (size_t)width), (int)(k % (size_t)width), (double)got[k], most,
                           (double)first[k]);
                break;
            }
        }
        free(got);
    }
    free(first);
}

/* Sizes that are cut into 4, 2 and 1 parts of K on 132 multiprocessors, and odd ones. */
TEST(a_row_of_a_product_does_not_depend_on_the_others_in_deterministic_mode)
{
    NEED_GPU();
    static const struct fixed_case cases[] = {
        {FIXED_PLAIN, 264, 1024, true},   {FIXED_LOGITS, 264, 1024, true},
        {FIXED_PLAIN, 4800, 1024, true},  {FIXED_PLAIN, 9000, 512, false},
        {FIXED_PLAIN, 15000, 264, false}, {FIXED_NORM, 1024, 2048, false},
        {FIXED_GATED, 1200, 512, false},  {FIXED_GATED, 15008, 264, false},
        {FIXED_PLAIN, 131, 1024, false},  {FIXED_PLAIN, 264, 67, true},
    };
    for (int32_t d = 1; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(cases); i++) { // the pair is reopened to free memory
            struct pair p;
            REQUIRE(pair_open(&p, pair_dtypes[d], true, NULL));
            check_fixed(&p, &cases[i]);
            pair_close(&p);
        }
    }
}

/* The kernels that only deterministic mode uses, and other kernels in cases in which only this mode
 * uses them. */
TEST(products_of_parts_agree)
{
    NEED_GPU();
    static const int32_t rows[] = {1, 17, 33, 66, 130, 300};
    for (int32_t d = 1; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[d], true, NULL));
        for (int32_t i = 0; i < COUNT(rows); i++) {
            linear_case(&p, rows[i], 1096, 1024, 8, i % 2 == 0, false, false);
            linear_case(&p, rows[i], 606, 520, 0, false, false, i % 2 == 0);
            linear_norm_case(&p, rows[i], 1000, 2048, NORM_RMS, false);
            linear_act_case(&p, rows[i], 600, 264, ACT_SILU, true, false);
        }
        pair_close(&p);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
