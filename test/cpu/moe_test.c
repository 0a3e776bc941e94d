// SPDX-License-Identifier: Apache-2.0
/* Routing to experts, and the weighted sums of their outputs. */
#include "test/device/op_harness.h"

/* ---- choice ------------------------------------------------------------------------------- */

/* ERNIE's correction is added for the choice of experts only, not for their weights. */
OP_TEST(a_correction_affects_only_the_choice)
{
    enum { EXPERTS = 5, K = 2 };
    static const float logits[EXPERTS] = {0.5f, 2.0f, -1.0f, 1.0f, 0.0f};
    float added[EXPERTS] = {0.0f, -0.9f, 0.7f, 0.0f, 0.4f};
    float eye[EXPERTS * EXPERTS] = {0}, weights[K];
    int32_t ids[K];
    double sum = 0.0;
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_F32, &limits);
    for (int32_t i = 0; i < EXPERTS; i++) {
        eye[i * (EXPERTS + 1)] = 1.0f; // identity: the logits are x
        sum += exp((double)logits[i]);
    }
    struct moe_route_args a = {
        .router = op_weight(&rig, WEIGHT_LINEAR, DT_F32, eye, 1, EXPERTS, EXPERTS, NULL, 1),
        .correction = op_vector(&rig, added, EXPERTS),
        .x = op_tensor(&rig, logits, 1, EXPERTS, EXPERTS),
        .n_rows = 1,
        .n_experts = EXPERTS,
        .k = K,
        .scoring = MOE_SOFTMAX_TOPK,
        .scale = 2.0f,
        .n_group = 1,
        .topk_group = 1};
    CHECK_EQ(rig.ops->alloc(rig.be, sizeof ids, &a.ids), OK);
    CHECK_EQ(rig.ops->alloc(rig.be, sizeof weights, &a.weights), OK);
    CHECK_EQ(rig.ops->moe_route(rig.be, &a), OK);
    rig.ops->read(rig.be, ids, a.ids, sizeof ids);
    rig.ops->read(rig.be, weights, a.weights, sizeof weights);
    CHECK_EQ(ids[0], 2);
    CHECK_EQ(ids[1], 4);
    CHECK_NEAR(weights[0], 2.0 * exp(-1.0) / sum, 1e-6);
    CHECK_NEAR(weights[1], 2.0 / sum, 1e-6);
    op_close(&rig);
}

/* ---- experts ------------------------------------------------------------------------------ */

/* One case: sizes and what varies between families. */
struct ffn {
    int32_t rows, experts, k, hidden, ffn, segments;
    enum dtype dtype;
    enum activation kind;
    bool bias, accumulate;
    struct act_shape shape;
    bool weigh_inputs;
};

/* The activation's definition; GPT-OSS clamps and adds one. */
static double swish(double g, double u, const struct ffn *f)
{
    if (f->kind == ACT_SILU) {
        return g / (1.0 + exp(-g)) * u;
    }
    g = fmin(g, (double)f->shape.limit);
    u = fmax(fmin(u, (double)f->shape.limit), -(double)f->shape.limit);
    return g / (1.0 + exp(-(double)f->shape.alpha * g)) * (u + 1.0);
}

/* out += weight * expert(x), in double, with the products' input roundings. */
static void expert_ref(const struct ffn *f, const float *x, const float *gu, const float *gu_bias,
                       const float *down, const float *down_bias, double weight, double *out)
{
    double *h = xcalloc(2 * (size_t)f->ffn, sizeof *h);
    for (int32_t i = 0; i < 2 * f->ffn; i++) {
        h[i] = gu_bias ? (double)gu_bias[i] : 0.0;
        for (int32_t k = 0; k < f->hidden; k++) {
            h[i] += (double)op_rounded(f->dtype, x[k]) * (double)gu[(size_t)i * f->hidden + k];
        }
        h[i] *= f->weigh_inputs ? weight : 1.0;
    }
    for (int32_t i = 0; i < f->ffn; i++) {
        h[i] = (double)op_rounded(f->dtype, (float)swish(h[i], h[f->ffn + i], f));
    }
    for (int32_t o = 0; o < f->hidden; o++) {
        double sum = down_bias ? (double)down_bias[o] : 0.0;
        for (int32_t i = 0; i < f->ffn; i++) {
            sum += h[i] * (double)down[(size_t)o * f->ffn + i];
        }
        out[o] += f->weigh_inputs ? sum : weight * sum;
    }
    free(h);
}

/* Each row alone has the same bits as in y, the result of `a`. */
static void check_alone(struct op_rig *rig, const struct ffn *f, const struct moe_ffn_args *a,
                        const float *y)
{
    for (int32_t r = 0; r < f->rows && !f->accumulate; r += 5) {
        struct moe_ffn_args one = *a;
        one.n_rows = 1;
        one.x.mem = dmem_at(a->x.mem, (size_t)r * a->x.stride * 4);
        one.y.mem = dmem_at(a->y.mem, (size_t)r * a->y.stride * 4);
        one.ids = dmem_at(a->ids, (size_t)r * f->k * 4);
        one.weights = dmem_at(a->weights, (size_t)r * f->k * 4);
        CHECK_EQ(rig->ops->moe_ffn(rig->be, &one), OK);
        float *alone = op_fetch(rig, one.y, 1, f->hidden);
        CHECK_MEM(alone, y + (size_t)r * f->hidden, (size_t)f->hidden * 4);
        free(alone);
    }
}

/* Partial sums have no bias: reduce adds it. */
static void check_partial(struct op_rig *rig, const struct ffn *f, const struct moe_ffn_args *a,
                          const double *wanted)
{
    if (f->bias && !f->accumulate) {
        struct moe_ffn_args part = *a;
        part.partial = true;
        CHECK_EQ(rig->ops->moe_ffn(rig->be, &part), OK);
        struct reduce_args reduce = {
            .y = a->y, .n_rows = f->rows, .width = f->hidden, .moe = &part};
        CHECK_EQ(rig->ops->reduce(rig->be, &reduce), OK);
        float *joined = op_fetch(rig, a->y, f->rows, f->hidden);
        CHECK(op_distance(joined, wanted, (size_t)f->rows * f->hidden) <
              (f->dtype == DT_F32 ? 2e-5 : 5e-3));
        free(joined);
    }
}

/* The reference sums experts in the order of their ids, in double precision. */
static void try_ffn(const char *backend, const struct ffn *f)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, f->dtype, &limits);
    size_t n_gu = (size_t)f->experts * 2 * f->ffn * f->hidden, n_x = (size_t)f->rows * f->hidden;
    float *gu = op_random(n_gu, 0.2f), *down = op_random(n_gu / 2, 0.2f);
    float *gu_bias = NULL, *down_bias = NULL;
    if (f->bias) {
        gu_bias = op_random((size_t)f->experts * 2 * f->ffn, 1.0f);
        down_bias = op_random((size_t)f->experts * f->hidden, 1.0f);
    }
    float *x = op_random(n_x, 1.0f), *before = op_random(n_x, 1.0f);
    int32_t *ids = xcalloc((size_t)f->rows * f->k, sizeof *ids);
    float *weights = op_random((size_t)f->rows * f->k, 1.0f);
    for (int32_t r = 0; r < f->rows; r++) {
        for (int32_t i = 0, first = op_int(0, f->experts - 1); i < f->k; i++) {
            ids[r * f->k + (r % 2 ? i : f->k - 1 - i)] = (first + i) % f->experts;
        }
    }
    struct moe_ffn_args a = {
        .gate_up = op_weight(&rig, WEIGHT_EXPERTS, f->dtype, gu, f->experts, 2 * f->ffn, f->hidden,
                             gu_bias, 1),
        .down = op_weight(&rig, WEIGHT_EXPERTS, f->dtype, down, f->experts, f->hidden, f->ffn,
                          down_bias, f->segments),
        .x = op_tensor(&rig, x, f->rows, f->hidden, f->hidden + 3),
        .y = op_tensor(&rig, f->accumulate ? before : NULL, f->rows, f->hidden, f->hidden + 1),
        .n_rows = f->rows,
        .n_experts = f->experts,
        .k = f->k,
        .ffn = f->ffn,
        .kind = f->kind,
        .shape = f->shape,
        .accumulate = f->accumulate,
        .weigh_inputs = f->weigh_inputs,
    };
    rig.ops->alloc(rig.be, 4 * (size_t)f->rows * f->k, &a.ids);
    rig.ops->alloc(rig.be, 4 * (size_t)f->rows * f->k, &a.weights);
    rig.ops->write(rig.be, a.ids, ids, 4 * (size_t)f->rows * f->k);
    rig.ops->write(rig.be, a.weights, weights, 4 * (size_t)f->rows * f->k);
    CHECK_EQ(rig.ops->moe_ffn(rig.be, &a), OK);
    float *y = op_fetch(&rig, a.y, f->rows, f->hidden);
    double *wanted = xcalloc(n_x, sizeof *wanted);
    for (int32_t r = 0; r < f->rows; r++) {
        for (int32_t i = 0; i < f->hidden && f->accumulate; i++) {
            wanted[r * f->hidden + i] = (double)before[r * f->hidden + i];
        }
        for (int32_t i = 0; i < f->k; i++) {
            size_t e = ids[r * f->k + i];
            expert_ref(f, x + (size_t)r * f->hidden, gu + e * 2 * f->ffn * f->hidden,
                       gu_bias ? gu_bias + e * 2 * f->ffn : NULL, down + e * f->ffn * f->hidden,
                       down_bias ? down_bias + e * f->hidden : NULL, (double)weights[r * f->k + i],
                       wanted + (size_t)r * f->hidden);
        }
    }
    /* A hidden value next to a rounding boundary of bf16 may round to either side. */
    CHECK(op_distance(y, wanted, n_x) < (f->dtype == DT_F32 ? 2e-5 : 5e-3));
    check_alone(&rig, f, &a, y);
    check_partial(&rig, f, &a, wanted);
    free(y);
    free(wanted);
    free(gu);
    free(down);
    free(gu_bias);
    free(down_bias);
    free(x);
    free(before);
    free(ids);
    free(weights);
    op_close(&rig);
}

/* Shapes of activations. */
#define NONE {.limit = 0.0f}
#define CLAMPED {.limit = 7.0f, .alpha = 1.702f}
#define STEEP {.limit = 0.8f, .alpha = 3.0f}

/* The order matters for the bits, which must not depend on the router's order. */
OP_TEST(experts_sum_in_order_of_their_ids)
{
    static const struct ffn cases[] = {
        {1, 4, 2, 32, 24, 1, DT_F32, ACT_SILU, false, false, NONE, false},
        {37, 8, 3, 40, 32, 4, DT_F32, ACT_GPT_OSS, true, false, CLAMPED, false},
        {9, 5, 5, 64, 48, 2, DT_BF16, ACT_SILU, false, true, NONE, false},
        {70, 16, 4, 50, 40, 8, DT_BF16, ACT_GPT_OSS, true, false, CLAMPED, false},
        {19, 8, 3, 40, 32, 4, DT_F32, ACT_GPT_OSS, true, false, STEEP, false},
        /* More than a chunk. */
        {1100, 4, 2, 16, 16, 1, DT_F32, ACT_SILU, false, false, NONE, false},
        {37, 8, 3, 40, 32, 4, DT_F32, ACT_SILU, false, false, NONE, true},
        {9, 5, 1, 64, 48, 2, DT_BF16, ACT_SILU, false, true, NONE, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        try_ffn(backend, &cases[i]);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
