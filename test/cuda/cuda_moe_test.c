// SPDX-License-Identifier: Apache-2.0
/* Mixtures of experts: routing and the experts' products, against the scalar backend. */
#include "engine/device/ops_default.h"
#include "test/cuda/cuda_pass.h"

#define COUNT(a) (int32_t)(sizeof(a) / sizeof((a)[0]))

/* A mixture; `picks` sets how unevenly rows choose their experts. */
struct moe_case {
    int32_t n_rows, n_experts, k, hidden, ffn;
    enum moe_scoring scoring;
    bool renormalise, bias, accumulate;
    int32_t n_group, topk_group;
    enum activation kind;
    enum { ROUTED, ONE_EXPERT, FEW_EXPERTS } picks;
};

/* The backends' scores may order two nearly equal experts differently. Picks are compared where the
 * order is clear; then both backends use the CPU's picks. */
static void route(struct pair *p, const struct moe_case *c, const struct pair_tensor *x,
                  struct dmem ids[2], struct dmem weights[2])
{
    const enum dtype held = c->bias ? DT_F32 : DT_BF16; // the kernels are faster if bf16 suffices
    struct pair_weight router =
        weight_make_of(p, held, WEIGHT_LINEAR, DT_F32, 1, c->n_experts, c->hidden, c->bias, 0.3f);
    struct pair_weight correction = vector_make(p, c->n_experts, 0.2f);
    struct pair_weight expert_scale = vector_make(p, c->n_experts, 1.0f);
    const size_t n = (size_t)c->n_rows * (size_t)c->k;
    struct moe_route_args a = {.n_rows = c->n_rows,
                               .n_experts = c->n_experts,
                               .k = c->k,
                               .scoring = c->scoring,
                               .renormalise = c->renormalise,
                               .scale = 1.5f,
                               .spread = MIXER_SPREAD,
                               .n_group = c->n_group,
                               .topk_group = c->topk_group};
    int32_t *id[2];
    float *weight[2];
    BOTH(p, moe_route, a, a.x = x->t[b]; a.router = router.w[b];
         a.correction = takes_correction(c->scoring) ? correction.w[b] : NULL;
         a.expert_scale = c->n_group > 1 ? expert_scale.w[b] : NULL; a.ids = ids[b];
         a.weights = weights[b]);
    for (int b = 0; b < 2; b++) {
        id[b] = xmalloc(n * sizeof(int32_t));
        weight[b] = xmalloc(n * sizeof(float));
        CHECK_EQ(p->be[b]->ops->read(p->be[b], id[b], ids[b], n * sizeof(int32_t)), OK);
        CHECK_EQ(p->be[b]->ops->read(p->be[b], weight[b], weights[b], n * sizeof(float)), OK);
    }
    int32_t n_differ = 0;
    for (size_t i = 0; i < n; i++) {
        n_differ += id[CPU][i] != id[GPU][i];
        if (id[CPU][i] == id[GPU][i]) {
            CHECK_NEAR(weight[CPU][i], weight[GPU][i], 2e-4);
        }
    }
    if (n_differ > (int32_t)(n / 100)) {
        CHECK_FAIL("%d of %zu picks differ (scoring %d)", n_differ, n, c->scoring);
    }
    for (size_t i = 0; i < n && c->picks != ROUTED; i++) { // some experts have no rows
        const int32_t row = (int32_t)i / c->k, j = (int32_t)i % c->k;
        if (c->picks == ONE_EXPERT) {
            id[CPU][i] = c->n_experts - 2;
        } else {
            id[CPU][i] = (row + j) % ((c->n_experts + 1) / 2) * 2;
        }
    }
    CHECK_EQ(p->be[CPU]->ops->write(p->be[CPU], ids[CPU], id[CPU], n * 4), OK);
    CHECK_EQ(p->be[GPU]->ops->write(p->be[GPU], ids[GPU], id[CPU], n * 4), OK);
    CHECK_EQ(p->be[GPU]->ops->write(p->be[GPU], weights[GPU], weight[CPU], n * 4), OK);
    for (int b = 0; b < 2; b++) {
        free(id[b]);
        free(weight[b]);
    }
}

/* The product on both backends with the picks of `route`; a partial one is completed by
 * reduce, which adds the experts' biases. */
static void moe_case_of(enum dtype dtype, const struct moe_case *c, bool partial,
                        struct act_shape shape, bool weigh_inputs, bool plain)
{
    struct pair p;
    REQUIRE(pair_open(&p, dtype, false, NULL));
    struct pair_weight up =
        weight_make(&p, WEIGHT_EXPERTS, dtype, c->n_experts, plain ? c->ffn : 2 * c->ffn, c->hidden,
                    c->bias, 1.0f / sqrtf((float)c->hidden));
    struct pair_weight down = weight_make(&p, WEIGHT_EXPERTS, dtype, c->n_experts, c->hidden,
                                          c->ffn, c->bias, 1.0f / sqrtf((float)c->ffn));
    const struct backend_limits limits = pair_limits();
    for (int b = 0; b < 2; b++) {
        struct err err;
        CHECK_EQ(p.be[b]->ops->setup(p.be[b], &limits, &err), OK);
    }
    struct pair_tensor x = tensor_random(&p, c->n_rows, c->hidden, c->hidden + 8, 1.0f);
    struct pair_tensor y = tensor_random(&p, c->n_rows, c->hidden, c->hidden + 8, 1.0f);
    struct dmem ids[2], weights[2];
    for (int b = 0; b < 2; b++) {
        const size_t n = (size_t)c->n_rows * (size_t)c->k * 4;
        CHECK_EQ(p.be[b]->ops->alloc(p.be[b], n, &ids[b]), OK);
        CHECK_EQ(p.be[b]->ops->alloc(p.be[b], n, &weights[b]), OK);
    }
    route(&p, c, &x, ids, weights);
    struct moe_ffn_args a = {.n_rows = c->n_rows,
                             .n_experts = c->n_experts,
                             .k = c->k,
                             .ffn = c->ffn,
                             .kind = c->kind,
                             .accumulate = c->accumulate,
                             .partial = partial,
                             .weigh_inputs = weigh_inputs,
                             .plain = plain,
                             .shape = shape};
    BOTH(&p, moe_ffn, a, a.gate_up = up.w[b]; a.down = down.w[b]; a.x = x.t[b]; a.y = y.t[b];
         a.ids = ids[b]; a.weights = weights[b]);
    char what[128];
    snprintf(what, sizeof what, "moe dtype %d rows %d experts %d k %d hidden %d ffn %d", dtype,
             c->n_rows, c->n_experts, c->k, c->hidden, c->ffn);
    if (!partial) {
        check_tensor(&p, what, &y, c->hidden, 1.5 * pair_tolerance(&p));
    } else { // either of the two ops adds the biases
        struct reduce_args r = {.n_rows = c->n_rows, .width = c->hidden};
        BOTH(&p, reduce, r, r.y = y.t[b]; a.down = down.w[b]; a.ids = ids[b];
             a.weights = weights[b]; r.moe = &a);
        check_tensor(&p, "reduce with the experts' biases", &y, c->hidden,
                     1.5 * pair_tolerance(&p));
    }
    pair_close(&p);
}

/* A case with each variation that its activation allows. */
static void moe_case(enum dtype dtype, const struct moe_case *c, bool partial)
{
    moe_case_of(dtype, c, partial, ACT_SHAPE_PUBLISHED, false, false);
    if (c->kind == ACT_GPT_OSS || c->kind == ACT_SILU_CLAMPED) {
        const struct act_shape clamps = {.limit = 0.8f,
                                         .alpha = 3.0f}; // values outside are clamped
        moe_case_of(dtype, c, partial, clamps, false, false);
    }
    if (!c->bias && !partial) {
        moe_case_of(dtype, c, partial, ACT_SHAPE_PUBLISHED, true, false);
    }
}

/* One matrix before the activation, without a gate. */
TEST(experts_without_a_gate_agree)
{
    NEED_GPU();
    static const struct moe_case cases[] = {
        {1, 8, 2, 64, 96, MOE_SIGMOID, true, false, false, 1, 1, ACT_RELU2, ROUTED},
        {33, 16, 4, 72, 40, MOE_SIGMOID, true, true, true, 1, 1, ACT_RELU2, ROUTED},
        {5, 5, 3, 50, 33, MOE_SIGMOID, true, true, false, 1, 1, ACT_SILU, ROUTED},
        {300, 4, 2, 256, 136, MOE_SOFTMAX_TOPK, true, false, true, 1, 1, ACT_RELU, ROUTED},
        {300, 8, 2, 128, 200, MOE_SIGMOID, true, false, false, 1, 1, ACT_GELU, FEW_EXPERTS},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(cases); i++) {
            moe_case_of(pair_dtypes[d], &cases[i], false, ACT_SHAPE_PUBLISHED, false, true);
        }
        moe_case_of(pair_dtypes[d], &cases[0], false, ACT_SHAPE_PUBLISHED, true, true);
        moe_case_of(pair_dtypes[d], &cases[1], true, ACT_SHAPE_PUBLISHED, false, true);
    }
}

/* Sizes that are not multiples of a tile, one row, and more rows than experts. */
TEST(experts_agree)
{
    NEED_GPU();
    static const struct moe_case cases[] = {
        {1, 8, 2, 64, 96, MOE_SOFTMAX_TOPK, true, false, false, 1, 1, ACT_SILU, ROUTED},
        {7, 8, 2, 64, 96, MOE_SOFTMAX_TOPK, false, false, true, 1, 1, ACT_SILU, ROUTED},
        {33, 16, 4, 72, 40, MOE_TOPK_SOFTMAX, false, true, false, 1, 1, ACT_GPT_OSS, ROUTED},
        {130, 32, 6, 128, 64, MOE_SIGMOID, true, false, true, 8, 4, ACT_SILU, ROUTED},
        {300, 4, 2, 256, 136, MOE_SOFTMAX_TOPK, true, false, false, 2, 1, ACT_GELU_TANH, ROUTED},
        {5, 5, 3, 50, 33, MOE_SOFTMAX_TOPK, true, true, false, 1, 1, ACT_SILU, ROUTED},
        {1, 64, 8, 512, 64, MOE_SOFTMAX_TOPK, true, false, false, 1, 1, ACT_SILU, ROUTED},
        {33, 16, 4, 72, 40, MOE_LOGITS, true, false, true, 1, 1, ACT_SILU, ROUTED},
        {300, 48, 6, 72, 40, MOE_LOGITS, false, false, true, 1, 1, ACT_SILU, ROUTED},
        {33, 16, 2, 72, 40, MOE_MIXER, false, false, true, 1, 1, ACT_SILU, ROUTED},
        {130, 48, 3, 72, 40, MOE_MIXER, true, false, true, 1, 1, ACT_SILU, ROUTED},
        {37, 16, 1, 128, 96, MOE_SIGMOID, false, false, true, 1, 1, ACT_SILU, ROUTED},
        {5, 5, 2, 50, 33, MOE_SIGMOID, false, false, false, 1, 1, ACT_SILU, ROUTED},
        {9, 16, 4, 72, 40, MOE_SIGMOID, true, false, false, 1, 1, ACT_SILU_CLAMPED, ROUTED},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(cases); i++) {
            moe_case(pair_dtypes[d], &cases[i], false);
        }
        moe_case(pair_dtypes[d], &cases[2], true);
    }
}

/* Enough rows of each expert for the wgmma products (on Hopper, in 16 bits). */
TEST(many_rows_agree)
{
    NEED_GPU();
    static const struct moe_case cases[] = {
        {64, 4, 2, 64, 64, MOE_SOFTMAX_TOPK, true, false, false, 1, 1, ACT_SILU, ROUTED},
        {517, 4, 2, 256, 136, MOE_SOFTMAX_TOPK, true, true, true, 1, 1, ACT_GELU_TANH, ROUTED},
        {300, 9, 4, 72, 40, MOE_TOPK_SOFTMAX, false, true, false, 1, 1, ACT_GPT_OSS, FEW_EXPERTS},
        {129, 4, 1, 392, 264, MOE_SOFTMAX_TOPK, false, false, false, 1, 1, ACT_GELU, ROUTED},
        {300, 9, 4, 72, 40, MOE_SIGMOID, true, false, false, 1, 1, ACT_SILU_CLAMPED, FEW_EXPERTS},
        {400, 16, 3, 136, 8, MOE_SIGMOID, true, true, true, 4, 2, ACT_RELU, ROUTED},
        {333, 8, 1, 8, 200, MOE_TOPK_SOFTMAX, false, false, false, 1, 1, ACT_SILU, ONE_EXPERT},
        {2500, 3, 1, 64, 128, MOE_TOPK_SOFTMAX, false, false, true, 1, 1, ACT_SILU, ONE_EXPERT},
        {450, 300, 32, 64, 16, MOE_SOFTMAX_TOPK, true, false, false, 1, 1, ACT_SILU, ROUTED},
        {1800, 300, 2, 64, 16, MOE_SIGMOID, true, false, false, 1, 1, ACT_SILU, ROUTED},
        {700, 600, 32, 64, 16, MOE_SOFTMAX_TOPK, true, false, true, 1, 1, ACT_SILU, ROUTED},
        {1100, 256, 8, 64, 16, MOE_SIGMOID, true, false, true, 8, 4, ACT_SILU, ROUTED},
        {9001, 5, 2, 64, 16, MOE_TOPK_SOFTMAX, true, false, true, 1, 1, ACT_SILU, FEW_EXPERTS},
        {450, 6, 3, 100, 64, MOE_SOFTMAX_TOPK, true, false, false, 1, 1, ACT_SILU, ROUTED},
        {450, 6, 3, 96, 60, MOE_SOFTMAX_TOPK, true, true, false, 1, 1, ACT_SILU, FEW_EXPERTS},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(cases); i++) {
            moe_case(pair_dtypes[d], &cases[i], false);
        }
        moe_case(pair_dtypes[d], &cases[2], true);
    }
}

/* ---- equal bits ---------------------------------------------------------------------------- */

/* Computes rows [first, first + n) alone, on the GPU. Returns their outputs; later rows stay as
 * they were. */
static void *rows_alone(struct pair *p, const struct moe_ffn_args *all, int32_t first, int32_t n)
{
    struct backend *be = p->be[GPU];
    const size_t element = dtype_bytes(p->dtype), picks = (size_t)(first * all->k) * 4;
    struct moe_ffn_args a = *all;
    a.n_rows = n;
    a.x.mem = dmem_at(all->x.mem, (size_t)first * (size_t)all->x.stride * element);
    a.y.mem = dmem_at(all->y.mem, (size_t)first * (size_t)all->y.stride * element);
    a.ids = dmem_at(all->ids, picks);
    a.weights = dmem_at(all->weights, picks);
    CHECK_EQ(be->ops->moe_ffn(be, &a), OK);
    const size_t n_bytes = (size_t)n * (size_t)all->y.stride * element;
    void *out = xmalloc(n_bytes);
    CHECK_EQ(be->ops->read(be, out, a.y.mem, n_bytes), OK);
    return out;
}

/* A layer on the GPU with random rows, picks and weights; its outputs are poisoned. */
static struct moe_ffn_args random_layer(struct pair *p, int32_t n_rows)
{
    enum { EXPERTS = 5, K = 2, HIDDEN = 200, FFN = 152 };
    const struct pair_weight up =
        weight_make(p, WEIGHT_EXPERTS, p->dtype, EXPERTS, 2 * FFN, HIDDEN, true, 0.07f);
    const struct pair_weight down =
        weight_make(p, WEIGHT_EXPERTS, p->dtype, EXPERTS, HIDDEN, FFN, true, 0.08f);
    struct err err;
    struct backend *be = p->be[GPU];
    p->limits = pair_limits();
    CHECK_EQ(be->ops->setup(be, &p->limits, &err), OK);
    const struct pair_tensor x = tensor_random(p, n_rows, HIDDEN, HIDDEN, 1.0f);
    const struct pair_tensor y = tensor_poisoned(p, n_rows, HIDDEN, p->dtype);
    struct moe_ffn_args a = {.gate_up = up.w[GPU],
                             .down = down.w[GPU],
                             .x = x.t[GPU],
                             .y = y.t[GPU],
                             .n_rows = n_rows,
                             .n_experts = EXPERTS,
                             .k = K,
                             .ffn = FFN,
                             .kind = ACT_SILU};
    const size_t n_bytes = (size_t)n_rows * K * 4;
    CHECK_EQ(be->ops->alloc(be, n_bytes, &a.ids), OK);
    CHECK_EQ(be->ops->alloc(be, n_bytes, &a.weights), OK);
    return a;
}

/* Uneven picks, so that some experts have many rows and others none. */
static void random_picks(struct pair *p, const struct moe_ffn_args *a, uint64_t seed)
{
    const int32_t n = a->n_rows * a->k;
    int32_t *ids = xmalloc((size_t)n * 4);
    float *weights = xmalloc((size_t)n * 4);
    for (int32_t i = 0; i < n; i++) { // the picks of a row must differ
        const int32_t r = (int32_t)(rng_bits(seed, i / a->k, RNG_TEST, 3) % 1000);
        ids[i] = (r + i % a->k * (1 + r / 10 % (a->n_experts - 1))) % a->n_experts;
        weights[i] = 0.1f + 0.001f * (float)(i * 37 % 400);
    }
    struct backend *be = p->be[GPU];
    CHECK_EQ(be->ops->write(be, a->ids, ids, (size_t)n * 4), OK);
    CHECK_EQ(be->ops->write(be, a->weights, weights, (size_t)n * 4), OK);
    free(ids);
    free(weights);
}

/* Each part [first, n) of `parts` alone has the bits that its rows have in the whole batch. */
static void check_bits(enum dtype dtype, bool deterministic, int32_t n_rows,
                       const int32_t (*parts)[2], int32_t n_parts)
{
    struct pair p;
    REQUIRE(pair_open(&p, dtype, deterministic, NULL));
    const struct moe_ffn_args a = random_layer(&p, n_rows);
    random_picks(&p, &a, 5);
    const size_t row_bytes = (size_t)a.y.stride * dtype_bytes(dtype);
    char *whole = rows_alone(&p, &a, 0, n_rows);
    for (int32_t i = 0; i < n_parts; i++) {
        char *part = rows_alone(&p, &a, parts[i][0], parts[i][1]);
        for (int32_t r = 0; r < parts[i][1]; r++) {
            if (memcmp(part + r * row_bytes, whole + (parts[i][0] + r) * row_bytes, row_bytes) !=
                0) {
                CHECK_FAIL("dtype %d: row %d of %d differs with %d other rows", dtype,
                           parts[i][0] + r, n_rows, parts[i][1] - 1);
                break;
            }
        }
        free(part);
    }
    free(whole);
    pair_close(&p);
}

/* For each range of sizes that one set of kernels computes, a row has the same bits. */
TEST(a_row_does_not_depend_on_its_batch)
{
    NEED_GPU();
    static const int32_t many[][2] = {{0, 700}, {0, 80}, {1, 97}, {333, 200}, {613, 87}};
    static const int32_t any[][2] = {{0, 1}, {5, 7}, {100, 16}, {44, 256}, {0, 700}};
    for (int32_t d = 1; d < COUNT(pair_dtypes); d++) {
        check_bits(pair_dtypes[d], false, 700, many, COUNT(many)); // the same kernels compute all
                                                                   // of these sizes
        check_bits(pair_dtypes[d], true, 700, any, COUNT(any));
    }
}

/* A pass whose rows all have draws, or which has more rows without draws. The experts' rows are
 * then the out rows, and the number of real rows in the bucket differs. */
static struct pass *asked_pass(struct test_pass *t, int32_t n_asked, int32_t n_others)
{
    const struct seq_spec spec = {0, n_asked + n_others, false};
    pass_of(t, &spec, 1, false, 1);
    t->pass.model = 3;
    t->pass.n_out = n_others > 0 ? n_asked : 0;
    for (int32_t i = 0; i < t->pass.n_out; i++) {
        t->out_rows[i] = n_others + i;
    }
    return &t->pass;
}

/* The third and later passes replay the second. Padding rows are not written. */
static void replay_case(int32_t n_first, int32_t n_others)
{
    enum { ROWS = 512, PASSES = 5 };
    struct pair p;
    REQUIRE(pair_open(&p, DT_BF16, false, NULL));
    struct backend *be = p.be[GPU];
    struct moe_ffn_args all = random_layer(&p, ROWS);
    const size_t row_bytes = (size_t)all.y.stride * dtype_bytes(p.dtype);
    char *nothing = xmalloc(ROWS * row_bytes), *out = xmalloc(ROWS * row_bytes);
    memset(nothing, 0xff, ROWS * row_bytes);
    int32_t n_issued = 0;
    for (int32_t i = 0; i < PASSES; i++) {
        random_picks(&p, &all, (uint64_t)i);
        CHECK_EQ(be->ops->write(be, all.y.mem, nothing, ROWS * row_bytes), OK);
        static struct test_pass t;
        const int32_t n = n_first + i * n_first / 64; // all in one bucket
        struct pass_shape shape;
        struct pass_results results[8];
        CHECK_EQ(be->ops->step_begin(be, 0), OK);
        CHECK_EQ(be->ops->pass_begin(be, asked_pass(&t, n, n_others), &shape), OK);
        struct moe_ffn_args a = all;
        a.n_rows = n_others > 0 ? shape.n_out : shape.n_rows;
        n_issued += shape.issue;
        REQUIRE(a.n_rows > n && a.n_rows <= ROWS && shape.n_out != shape.n_rows);
        if (shape.issue) {
            CHECK_EQ(be->ops->moe_ffn(be, &a), OK);
        }
        CHECK_EQ(be->ops->pass_end(be), OK);
        CHECK_EQ(be->ops->step_end(be), OK);
        CHECK_EQ(be->ops->step_wait(be, 0, results, 8), OK);
        CHECK_EQ(be->ops->read(be, out, all.y.mem, ROWS * row_bytes), OK);
        char *want = rows_alone(&p, &all, 0, n);
        if (memcmp(out, want, (size_t)n * row_bytes) != 0) {
            CHECK_FAIL("pass %d, %d other rows: rows differ from those outside of a pass", i,
                       n_others);
        }
        CHECK_EQ(memcmp(out + n * row_bytes, nothing, (size_t)(ROWS - n) * row_bytes), 0);
        free(want);
    }
    CHECK_EQ(n_issued, 2);
    free(nothing);
    free(out);
    pair_close(&p);
}

TEST(a_captured_pass_serves_every_routing)
{
    NEED_GPU();
    replay_case(257, 0);
}

TEST(a_captured_pass_serves_any_number_of_out_rows)
{
    NEED_GPU();
    replay_case(195, 100); // enough rows of an expert for moe_sm90.cu
    replay_case(57, 104);
}

/* Any number of a row's picks, from none to all, may be beyond the experts. */
TEST(experts_that_return_their_input_agree)
{
    NEED_GPU();
    static const int32_t widths[] = {1, 40, 513, 6144};
    for (int32_t i = 0; i < 36; i++) {
        struct pair p;
        const struct backend_limits limits = pair_limits();
        REQUIRE(pair_open(&p, pair_dtypes[i % 3], false, &limits));
        const int32_t n_rows = 1 + i % 9, width = widths[i / 3 % 4], k = 1 + i % 12, n_experts = 9;
        struct pair_tensor x = tensor_random(&p, n_rows, width, width + 8, 1.0f);
        struct pair_tensor y = tensor_random(&p, n_rows, width, width + i % 5, 1.0f);
        const size_t n = (size_t)n_rows * (size_t)k;
        int32_t *given = xmalloc(n * 4), *id[2];
        float *weight = xmalloc(n * 4);
        for (size_t j = 0; j < n; j++) {
            const int32_t row = (int32_t)j / k, at = (int32_t)j % k;
            given[j] = (row * 5 + at * (1 + row % 4)) % (n_experts + row % 3 * 9);
            given[j] = row % 5 == 4 ? n_experts + at : given[j];
            weight[j] = random_float(p.seed, (int64_t)j, 1.0f, DT_F32);
        }
        struct moe_identity_args a = {
            .n_rows = n_rows, .width = width, .n_experts = n_experts, .k = k};
        struct dmem ids[2], weights[2];
        for (int b = FIRST; b < 2; b++) {
            CHECK_EQ(p.be[b]->ops->alloc(p.be[b], n * 4, &ids[b]), OK);
            CHECK_EQ(p.be[b]->ops->alloc(p.be[b], n * 4, &weights[b]), OK);
            CHECK_EQ(p.be[b]->ops->write(p.be[b], ids[b], given, n * 4), OK);
            CHECK_EQ(p.be[b]->ops->write(p.be[b], weights[b], weight, n * 4), OK);
        }
        BOTH(&p, moe_identity, a, a.x = x.t[b]; a.y = y.t[b]; a.ids = ids[b];
             a.weights = weights[b]);
        check_tensor(&p, "experts that return their input", &y, width, pair_tolerance(&p));
        for (int b = 0; b < 2; b++) {
            id[b] = xcalloc(2 * n, 4);
        }
        for (int b = FIRST; b < 2; b++) {
            CHECK_EQ(p.be[b]->ops->read(p.be[b], id[b], ids[b], n * 4), OK);
            CHECK_EQ(p.be[b]->ops->read(p.be[b], id[b] + n, weights[b], n * 4), OK);
        }
        CHECK(!COMPARED || memcmp(id[CPU], id[GPU], 2 * n * 4) == 0);
        free(given);
        free(weight);
        free(id[CPU]);
        free(id[GPU]);
        pair_close(&p);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
