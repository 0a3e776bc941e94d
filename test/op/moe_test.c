/* Routing by the families' rules, and the experts' sums. */
#include "engine/base/json.h"
#include "test/op/op_harness.h"

/* ---- routing ------------------------------------------------------------------------------ */

static void route(struct op_rig *rig, struct moe_route_args *a, const float *logits,
                  int32_t *ids, float *weights)
{
    /* The router is the identity, so that x is the logits. */
    float *eye = xcalloc((size_t)a->n_experts * a->n_experts, sizeof *eye);
    for (int32_t i = 0; i < a->n_experts; i++) {
        eye[i * (a->n_experts + 1)] = 1.0f;
    }
    a->router = op_weight(rig, WEIGHT_LINEAR, DT_F32, eye, 1, a->n_experts, a->n_experts, NULL, 1);
    a->x = op_tensor(rig, logits, 1, a->n_experts, a->n_experts);
    a->n_rows = 1;
    CHECK_EQ(rig->ops->alloc(rig->be, 4 * 64, &a->ids), OK);
    CHECK_EQ(rig->ops->alloc(rig->be, 4 * 64, &a->weights), OK);
    CHECK_EQ(rig->ops->moe_route(rig->be, a), OK);
    rig->ops->read(rig->be, ids, a->ids, 4 * (size_t)a->k);
    rig->ops->read(rig->be, weights, a->weights, 4 * (size_t)a->k);
    free(eye);
}

static int32_t numbers(const struct json *array, float *out, int32_t max)
{
    int32_t n = 0;
    for (const struct json *v = json_first(array); v && n < max; v = json_next(v)) {
        out[n++] = (float)json_number(v, 0.0);
    }
    return n;
}

static bool set_rule(struct moe_route_args *a, const char *rule, const struct json *config)
{
    a->scale = (float)json_get_number(config, "routed_scaling_factor", 1.0);
    a->renormalise = json_get_bool(config, "norm_topk_prob", false);
    a->k = (int32_t)json_get_int(config, "num_experts_per_tok", 1);
    a->n_group = (int32_t)json_get_int(config, "n_group", 1);
    a->topk_group = (int32_t)json_get_int(config, "topk_group", 1);
    if (strcmp(rule, "topk_softmax") == 0) {
        a->scoring = MOE_TOPK_SOFTMAX;
    } else if (strstr(rule, "noaux") || strstr(rule, "sigmoid")) {
        a->scoring = MOE_SIGMOID;
    } else if (strcmp(rule, "softmax_topk") == 0 || strstr(rule, "greedy")) {
        a->scoring = MOE_SOFTMAX_TOPK;
    } else {
        return false;
    }
    return true;
}

OP_TEST(routing_follows_each_familys_rule)
{
    const char *shared = check_shared();
    char path[4200];
    struct json *root = NULL;
    struct err err;
    if (!shared) {
        SKIP("no shared data");
    }
    snprintf(path, sizeof path, "%s/data/routing_cases.json", shared);
    REQUIRE(json_parse_file(path, 1 << 24, &root, &err) == OK);
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    int32_t n_run = 0;
    for (const struct json *c = json_first(json_get(root, "cases")); c; c = json_next(c)) {
        struct moe_route_args a = {0};
        float logits[512], bias[512], wanted_ids[64], wanted[64], weights[64];
        int32_t ids[64];
        if (!set_rule(&a, json_get_string(c, "rule"), json_get(c, "config"))) {
            continue; // a rule that no family of ours has
        }
        a.n_experts = numbers(json_get(c, "router_logits"), logits, 512);
        int32_t n_bias = numbers(json_get(c, "e_score_correction_bias"), bias, 512);
        a.correction = n_bias == a.n_experts ? op_vector(&rig, bias, n_bias) : NULL;
        route(&rig, &a, logits, ids, weights);
        int32_t n = numbers(json_get(c, "indices"), wanted_ids, 64);
        CHECK_EQ(n, a.k);
        CHECK_EQ(numbers(json_get(c, "weights"), wanted, 64), a.k);
        for (int32_t i = 0; i < n; i++) {
            int32_t at = 0;
            while (at < a.k && ids[at] != (int32_t)wanted_ids[i]) {
                at++;
            }
            if (at == a.k) {
                CHECK_FAIL("case %d: expert %d is not chosen", n_run, (int32_t)wanted_ids[i]);
            } else {
                CHECK_NEAR(weights[at], wanted[i], 1e-5);
            }
        }
        n_run++;
    }
    CHECK(n_run > 10);
    json_free(root);
    op_close(&rig);
}

OP_TEST(equal_scores_go_to_the_lowest_ids)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    float logits[8] = {1, 3, 2, 3, 2, 3, 0, 2}, weights[8];
    int32_t ids[8];
    struct moe_route_args a = {.n_experts = 8, .k = 4, .scale = 1.0f, .n_group = 1};
    route(&rig, &a, logits, ids, weights);
    CHECK_EQ(ids[0], 1);
    CHECK_EQ(ids[1], 3);
    CHECK_EQ(ids[2], 5);
    CHECK_EQ(ids[3], 2);
    op_close(&rig);
}

/* ---- experts ------------------------------------------------------------------------------ */

struct ffn {
    int32_t rows, experts, k, hidden, ffn, segments;
    enum dtype dtype;
    enum activation kind;
    bool bias, accumulate;
};

static double swish(double g, double u, enum activation kind)
{
    if (kind == ACT_SILU) {
        return g / (1.0 + exp(-g)) * u;
    }
    g = fmin(g, 7.0);
    u = fmax(fmin(u, 7.0), -7.0);
    return g / (1.0 + exp(-1.702 * g)) * (u + 1.0);
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
    }
    for (int32_t i = 0; i < f->ffn; i++) {
        h[i] = (double)op_rounded(f->dtype, (float)swish(h[i], h[f->ffn + i], f->kind));
    }
    for (int32_t o = 0; o < f->hidden; o++) {
        double sum = down_bias ? (double)down_bias[o] : 0.0;
        for (int32_t i = 0; i < f->ffn; i++) {
            sum += h[i] * (double)down[(size_t)o * f->ffn + i];
        }
        out[o] += weight * sum;
    }
    free(h);
}

static void try_ffn(const char *backend, const struct ffn *f)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, f->dtype, &limits);
    size_t n_gu = (size_t)f->experts * 2 * f->ffn * f->hidden, n_x = (size_t)f->rows * f->hidden;
    float *gu = op_random(n_gu, 0.2f), *down = op_random(n_gu / 2, 0.2f);
    float *gu_bias = f->bias ? op_random((size_t)f->experts * 2 * f->ffn, 1.0f) : NULL;
    float *down_bias = f->bias ? op_random((size_t)f->experts * f->hidden, 1.0f) : NULL;
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
        .accumulate = f->accumulate,
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
                       down_bias ? down_bias + e * f->hidden : NULL,
                       (double)weights[r * f->k + i], wanted + (size_t)r * f->hidden);
        }
    }
    /* A hidden value next to a rounding boundary may round the other way in bf16. */
    CHECK(op_distance(y, wanted, n_x) < (f->dtype == DT_F32 ? 2e-5 : 5e-3));

    /* Each row alone has the same bits. */
    for (int32_t r = 0; r < f->rows && !f->accumulate; r += 5) {
        struct moe_ffn_args one = a;
        one.n_rows = 1;
        one.x.mem = dmem_at(a.x.mem, (size_t)r * a.x.stride * 4);
        one.y.mem = dmem_at(a.y.mem, (size_t)r * a.y.stride * 4);
        one.ids = dmem_at(a.ids, (size_t)r * f->k * 4);
        one.weights = dmem_at(a.weights, (size_t)r * f->k * 4);
        CHECK_EQ(rig.ops->moe_ffn(rig.be, &one), OK);
        float *alone = op_fetch(&rig, one.y, 1, f->hidden);
        CHECK_MEM(alone, y + (size_t)r * f->hidden, (size_t)f->hidden * 4);
        free(alone);
    }
    /* Partial sums leave the bias to reduce. */
    if (f->bias && !f->accumulate) {
        a.partial = true;
        CHECK_EQ(rig.ops->moe_ffn(rig.be, &a), OK);
        struct reduce_args reduce = {.y = a.y, .n_rows = f->rows, .width = f->hidden, .moe = &a};
        CHECK_EQ(rig.ops->reduce(rig.be, &reduce), OK);
        float *joined = op_fetch(&rig, a.y, f->rows, f->hidden);
        CHECK(op_distance(joined, wanted, n_x) < (f->dtype == DT_F32 ? 2e-5 : 5e-3));
        free(joined);
    }
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

OP_TEST(experts_sum_in_order_of_their_ids)
{
    static const struct ffn cases[] = {
        {1, 4, 2, 32, 24, 1, DT_F32, ACT_SILU, false, false},
        {37, 8, 3, 40, 32, 4, DT_F32, ACT_GPT_OSS, true, false},
        {9, 5, 5, 64, 48, 2, DT_BF16, ACT_SILU, false, true},
        {70, 16, 4, 50, 40, 8, DT_BF16, ACT_GPT_OSS, true, false},
        {1100, 4, 2, 16, 16, 1, DT_F32, ACT_SILU, false, false}, // more than a chunk
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        try_ffn(backend, &cases[i]);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
