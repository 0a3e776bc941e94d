/* Mixtures of experts: routing and the experts' products, against the scalar backend. */
#include "test/op/cuda_pass.h"

#define COUNT(a) (int32_t)(sizeof(a) / sizeof((a)[0]))

struct moe_case {
    int32_t n_rows, n_experts, k, hidden, ffn;
    enum moe_scoring scoring;
    bool renormalise, bias, accumulate;
    int32_t n_group, topk_group;
    enum activation kind;
};

/* Both backends' own scores may order two nearly equal experts differently; the picks are compared
 * where the choice is clear, and the CPU's picks are what both then work with. */
static void route(struct pair *p, const struct moe_case *c, const struct pair_tensor *x,
                  struct dmem ids[2], struct dmem weights[2])
{
    struct pair_weight router =
        weight_make(p, WEIGHT_LINEAR, DT_F32, 1, c->n_experts, c->hidden, c->bias, 0.3f);
    struct pair_weight correction = vector_make(p, c->n_experts, 0.2f);
    const size_t n = (size_t)c->n_rows * (size_t)c->k;
    struct moe_route_args a = {.n_rows = c->n_rows, .n_experts = c->n_experts, .k = c->k,
                               .scoring = c->scoring, .renormalise = c->renormalise,
                               .scale = 1.5f, .n_group = c->n_group, .topk_group = c->topk_group};
    int32_t *id[2];
    float *weight[2];
    BOTH(p, moe_route, a, a.x = x->t[b]; a.router = router.w[b];
         a.correction = c->scoring == MOE_SIGMOID ? correction.w[b] : NULL; a.ids = ids[b];
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
    CHECK_EQ(p->be[GPU]->ops->write(p->be[GPU], ids[GPU], id[CPU], n * 4), OK);
    CHECK_EQ(p->be[GPU]->ops->write(p->be[GPU], weights[GPU], weight[CPU], n * 4), OK);
    for (int b = 0; b < 2; b++) {
        free(id[b]);
        free(weight[b]);
    }
}

static void moe_case(enum dtype dtype, const struct moe_case *c, bool partial)
{
    struct pair p;
    REQUIRE(pair_open(&p, dtype, false, NULL));
    struct pair_weight up = weight_make(&p, WEIGHT_EXPERTS, dtype, c->n_experts, 2 * c->ffn,
                                        c->hidden, c->bias, 1.0f / sqrtf((float)c->hidden));
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
    struct moe_ffn_args a = {.n_rows = c->n_rows, .n_experts = c->n_experts, .k = c->k,
                             .ffn = c->ffn, .kind = c->kind, .accumulate = c->accumulate,
                             .partial = partial};
    BOTH(&p, moe_ffn, a, a.gate_up = up.w[b]; a.down = down.w[b]; a.x = x.t[b]; a.y = y.t[b];
         a.ids = ids[b]; a.weights = weights[b]);
    char what[128];
    snprintf(what, sizeof what, "moe dtype %d rows %d experts %d k %d hidden %d ffn %d", dtype,
             c->n_rows, c->n_experts, c->k, c->hidden, c->ffn);
    check_tensor(&p, what, &y, c->hidden, 1.5 * pair_tolerance(&p));
    if (partial) {
        struct reduce_args r = {.n_rows = c->n_rows, .width = c->hidden};
        BOTH(&p, reduce, r, r.y = y.t[b]; a.down = down.w[b]; a.ids = ids[b];
             a.weights = weights[b]; r.moe = &a);
        check_tensor(&p, "reduce with the experts' biases", &y, c->hidden,
                     1.5 * pair_tolerance(&p));
    }
    pair_close(&p);
}

TEST(experts_agree)
{
    NEED_GPU();
    static const struct moe_case cases[] = {
        {1, 8, 2, 64, 96, MOE_SOFTMAX_TOPK, true, false, false, 1, 1, ACT_SILU},
        {7, 8, 2, 64, 96, MOE_SOFTMAX_TOPK, false, false, true, 1, 1, ACT_SILU},
        {33, 16, 4, 72, 40, MOE_TOPK_SOFTMAX, false, true, false, 1, 1, ACT_GPT_OSS},
        {130, 32, 6, 128, 64, MOE_SIGMOID, true, false, true, 8, 4, ACT_SILU},
        {300, 4, 2, 256, 136, MOE_SOFTMAX_TOPK, true, false, false, 2, 1, ACT_GELU_TANH},
        {5, 5, 3, 50, 33, MOE_SOFTMAX_TOPK, true, true, false, 1, 1, ACT_SILU},
        {1, 64, 8, 512, 64, MOE_SOFTMAX_TOPK, true, false, false, 1, 1, ACT_SILU},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(cases); i++) {
            moe_case(pair_dtypes[d], &cases[i], false);
        }
        moe_case(pair_dtypes[d], &cases[2], true);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
