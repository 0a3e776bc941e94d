// SPDX-License-Identifier: Apache-2.0
/* Routing to experts by the families' rules, against cases that transformers computed. */
#include "engine/base/json.h"
#include "test/device/op_harness.h"

static void route(struct op_rig *rig, struct moe_route_args *a, const float *logits, int32_t *ids,
                  float *weights)
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
        if (n_bias == a.n_experts) {
            a.correction = op_vector(&rig, bias, n_bias);
        } else {
            a.correction = NULL;
        }
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

OP_TEST(experts_scale_their_own_weights)
{
    enum { N = 6, K = 3 };
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    float scale[N] = {0.5f, -2.0f, 3.0f, 1.0f, 0.25f, 7.0f};
    float logits[N] = {0.3f, 1.1f, -0.4f, 0.9f, 2.0f, 0.1f}, plain[K], weights[K];
    int32_t ids[K], scaled[K];
    struct moe_route_args a = {
        .n_experts = N, .k = K, .scale = 1.5f, .n_group = 1, .renormalise = true};
    route(&rig, &a, logits, ids, plain);
    a.expert_scale = op_vector(&rig, scale, N);
    route(&rig, &a, logits, scaled, weights);
    for (int32_t i = 0; i < K; i++) {
        CHECK_EQ(scaled[i], ids[i]);
        CHECK_NEAR(weights[i], (double)plain[i] * (double)scale[ids[i]], 1e-6);
    }
    op_close(&rig);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
