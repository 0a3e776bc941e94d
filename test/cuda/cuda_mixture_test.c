// SPDX-License-Identifier: Apache-2.0
/* All of a mixture in one op, as models have it: the router, the experts and the shared expert,
 * against separate ops of the scalar backend. */
#include "engine/device/ops_default.h"
#include "test/cuda/cuda_coded.h"
#include "test/cuda/cuda_pass.h"

/* One mixture: its sizes, and what varies between models. */
struct mixture_case {
    int32_t n_rows, n_experts, k, hidden, ffn, shared;
    bool gate, bias;
    enum moe_scoring scoring;
    int32_t n_group, topk_group;
    enum activation kind;
    bool plain;      // without gates
    bool own_router; // the router does not read what the experts read
    bool norm;       // x is the norm of another tensor
};

/* The number of rows that a weight has per feature. */
static int32_t factors(const struct mixture_case *c)
{
    return c->plain ? 1 : 2;
}

/* The args of both backends. */
struct mixture {
    struct moe_route_args route[2];
    struct moe_ffn_args ffn[2];
    struct shared_expert_args shared[2];
    struct row_gate_args gate[2];
    struct norm_args norm[2];
    struct pair_tensor y, x, residual;
};

static struct pair_weight matrix(struct pair *p, int32_t n_out, int32_t n_in)
{
    return weight_make(p, WEIGHT_LINEAR, p->dtype, 1, n_out, n_in, false,
                       1.0f / sqrtf((float)n_in));
}

/* The shared experts have separate weights and may have a gate per row. */
static void add_shared(struct pair *p, const struct mixture_case *c, struct mixture *m,
                       const struct pair_tensor *x)
{
    const struct pair_weight up = matrix(p, factors(c) * c->shared, c->hidden);
    const struct pair_weight down = matrix(p, c->hidden, c->shared);
    const struct pair_weight gate = vector_make(p, c->hidden, 0.1f);
    const struct pair_tensor in = tensor_poisoned(p, c->n_rows, factors(c) * c->shared, p->dtype);
    const struct pair_tensor out = tensor_poisoned(p, c->n_rows, c->shared, p->dtype);
    for (int b = 0; b < 2; b++) {
        m->gate[b] = (struct row_gate_args){.x = x->t[b],
                                            .y = m->y.t[b],
                                            .weight = gate.w[b],
                                            .n_rows = c->n_rows,
                                            .x_width = c->hidden,
                                            .y_width = c->hidden};
        m->shared[b] = (struct shared_expert_args){
            .up = {.weight = up.w[b], .x = x->t[b], .y = in.t[b], .n_rows = c->n_rows},
            .act = {.x = in.t[b],
                    .out = out.t[b],
                    .n_rows = c->n_rows,
                    .width = c->shared,
                    .kind = c->kind,
                    .gated = !c->plain,
                    .shape = ACT_SHAPE_PUBLISHED},
            .down = {.weight = down.w[b],
                     .x = out.t[b],
                     .y = m->y.t[b],
                     .n_rows = c->n_rows,
                     .partial = true},
            .gate = c->gate ? &m->gate[b] : NULL};
    }
}

/* The norm that makes x, with the addition before it; the memory of y holds the delta. */
static void add_norm(struct pair *p, const struct mixture_case *c, struct mixture *m)
{
    const struct pair_weight weight = vector_make(p, c->hidden, 1.0f);
    const struct pair_tensor delta =
        tensor_random(p, c->n_rows, c->hidden, m->y.t[CPU].stride, 1.0f);
    m->residual = tensor_random(p, c->n_rows, c->hidden, c->hidden + 8, 1.0f);
    for (int b = 0; b < 2; b++) {
        m->norm[b] = (struct norm_args){.x = m->residual.t[b],
                                        .delta = c->n_rows == 3 ? delta.t[b] : m->y.t[b],
                                        .out = m->x.t[b],
                                        .weight = weight.w[b],
                                        .n_rows = c->n_rows,
                                        .width = c->hidden,
                                        .eps = 1e-5f,
                                        .weight_offset = 0.5f,
                                        .delta_scale = 0.7f};
    }
}

/* The weights of a product of all experts. */
static struct pair_weight experts(struct pair *p, const struct mixture_case *c,
                                  const struct format *format, int32_t n_out, int32_t n_in)
{
    return format ? open_experts(p, format, c->n_experts, n_out, n_in, c->bias)
                  : weight_make(p, WEIGHT_EXPERTS, p->dtype, c->n_experts, n_out, n_in, c->bias,
                                1.0f / sqrtf((float)n_in));
}

/* Everything that ops_moe needs, on both backends. format: of the experts' weights; NULL: they are
 * not quantised. */
static void make_mixture(struct pair *p, const struct mixture_case *c, const struct format *format,
                         struct mixture *m)
{
    const struct pair_weight up = experts(p, c, format, factors(c) * c->ffn, c->hidden);
    const struct pair_weight down = experts(p, c, format, c->hidden, c->ffn);
    const struct pair_weight router =
        weight_make(p, WEIGHT_LINEAR, DT_F32, 1, c->n_experts, c->hidden, c->bias, 0.3f);
    const struct pair_weight correction = vector_make(p, c->n_experts, 0.2f);
    const struct pair_weight scale = vector_make(p, c->n_experts, 1.0f);
    struct backend_limits limits = pair_limits();
    limits.max_rows = c->n_rows > limits.max_rows ? c->n_rows : limits.max_rows;
    const struct pair_tensor x = tensor_random(p, c->n_rows, c->hidden, c->hidden + 8, 1.0f);
    const struct pair_tensor own = tensor_random(p, c->n_rows, c->hidden, c->hidden + 16, 1.0f);
    m->y = c->norm ? tensor_random(p, c->n_rows, c->hidden, c->hidden, 1.0f)
                   : tensor_poisoned(p, c->n_rows, c->hidden, p->dtype);
    for (int b = 0; b < 2; b++) {
        struct err err;
        const size_t n = (size_t)c->n_rows * (size_t)c->k * 4;
        struct moe_route_args *r = &m->route[b];
        *r = (struct moe_route_args){.router = router.w[b],
                                     .x = c->own_router ? own.t[b] : x.t[b],
                                     .n_rows = c->n_rows,
                                     .n_experts = c->n_experts,
                                     .k = c->k,
                                     .scoring = c->scoring,
                                     .renormalise = true,
                                     .scale = 1.5f,
                                     .n_group = c->n_group,
                                     .topk_group = c->topk_group};
        r->correction = c->scoring != MOE_TOPK_SOFTMAX ? correction.w[b] : NULL;
        r->expert_scale = c->n_group > 1 ? scale.w[b] : NULL;
        CHECK_EQ(p->be[b]->ops->setup(p->be[b], &limits, &err), OK);
        CHECK_EQ(p->be[b]->ops->alloc(p->be[b], n, &r->ids), OK);
        CHECK_EQ(p->be[b]->ops->alloc(p->be[b], n, &r->weights), OK);
        m->ffn[b] = (struct moe_ffn_args){.gate_up = up.w[b],
                                          .down = down.w[b],
                                          .x = x.t[b],
                                          .y = m->y.t[b],
                                          .ids = r->ids,
                                          .weights = r->weights,
                                          .n_rows = c->n_rows,
                                          .n_experts = c->n_experts,
                                          .k = c->k,
                                          .ffn = c->ffn,
                                          .kind = c->kind,
                                          .accumulate = c->shared > 0,
                                          .plain = c->plain,
                                          .shape = ACT_SHAPE_PUBLISHED};
    }
    m->x = x;
    if (c->norm) {
        add_norm(p, c, m);
    }
    if (c->shared > 0) {
        add_shared(p, c, m, &x);
    }
}

/* The fused op against separate ops of the scalar backend. */
static void mixture_case_in(enum dtype dtype, const struct mixture_case *c,
                            const struct format *format, bool partial, bool deterministic)
{
    struct pair p;
    struct mixture m;
    REQUIRE(pair_open(&p, dtype, deterministic, NULL));
    make_mixture(&p, c, format, &m);
    REQUIRE(p.be[GPU]->ops->moe);
    for (int b = FIRST; b <= GPU; b++) {
        m.ffn[b].partial = partial;
        CHECK_EQ(ops_moe(p.be[b], c->norm ? &m.norm[b] : NULL, c->shared > 0 ? &m.shared[b] : NULL,
                         &m.route[b], &m.ffn[b]),
                 OK);
    }
    char what[160];
    snprintf(what, sizeof what,
             "mixture dtype %d%s%s rows %d experts %d k %d hidden %d ffn %d + %d", dtype,
             format ? " " : "", format ? format->name : "", c->n_rows, c->n_experts, c->k,
             c->hidden, c->ffn, c->shared);
    if (!partial) {
        check_tensor(&p, what, &m.y, c->hidden, 2.0 * pair_tolerance(&p));
    }
    if (c->norm) {
        check_tensor(&p, "x before a mixture", &m.residual, c->hidden, pair_tolerance(&p));
    }
    if (partial) { // reads the picks
        struct reduce_args r = {.n_rows = c->n_rows, .width = c->hidden};
        BOTH(&p, reduce, r, r.y = m.y.t[b]; r.moe = &m.ffn[b]);
        check_tensor(&p, "reduce with the picks of a mixture", &m.y, c->hidden,
                     2.0 * pair_tolerance(&p));
    }
    pair_close(&p);
}

static void mixture_case_of(enum dtype dtype, const struct mixture_case *c, bool partial)
{
    mixture_case_in(dtype, c, NULL, partial, false);
}

/* On the GPU, special kernels compute up to 16 rows in 16-bit dtypes. */
static const struct mixture_case mixtures[] = {
    {1, 16, 4, 256, 128, 64, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {3, 8, 2, 264, 40, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false, false, false},
    {4, 8, 8, 2312, 136, 264, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {16, 32, 6, 128, 64, 128, false, false, MOE_SIGMOID, 8, 4, ACT_SILU, false, false, false},
    {5, 300, 10, 136, 8, 72, false, true, MOE_SIGMOID, 1, 1, ACT_GELU_TANH, false, false, false},
    {17, 16, 4, 256, 128, 64, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {2, 5, 5, 50, 33, 0, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {2, 6, 3, 72, 33, 17, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {1, 4, 3, 5000, 72, 264, true, true, MOE_SIGMOID, 1, 1, ACT_GELU, false, false, false},
    {9, 4, 4, 4616, 72, 0, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_RELU2, false, false, false},
    {1, 8, 6, 2312, 72, 520, false, false, MOE_SIGMOID, 1, 1, ACT_RELU2, true, false, false},
    {4, 8, 2, 136, 72, 0, false, true, MOE_SIGMOID, 1, 1, ACT_RELU2, true, false, false},
    {2, 8, 2, 136, 72, 40, false, true, MOE_SIGMOID, 1, 1, ACT_GELU, true, false, false},
    {3, 12, 8, 328, 200, 0, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_GELU_TANH, false, true,
     false},
    {16, 6, 4, 264, 520, 264, false, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, false},
    {1, 8, 8, 136, 1544, 3080, false, false, MOE_TOPK_SOFTMAX, 1, 1, ACT_SILU, false, false, false},
    {1, 40, 4, 2048, 64, 64, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, true},
    {3, 8, 4, 4616, 40, 0, false, true, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, true},
    {16, 9, 2, 264, 40, 72, false, false, MOE_SIGMOID, 1, 1, ACT_RELU2, true, false, true},
    {17, 9, 2, 264, 40, 72, false, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, true},
};

/* An MLP beside the experts, with an input and a result of its own. Kernels for single rows compute
 * it with the experts if it is like them. */
static void mixture_beside_mlp(enum dtype dtype, const struct mixture_case *c)
{
    struct pair p;
    struct mixture m;
    REQUIRE(pair_open(&p, dtype, false, NULL));
    make_mixture(&p, c, NULL, &m);
    const struct pair_tensor x = tensor_random(&p, c->n_rows, c->hidden, c->hidden + 8, 1.0f);
    const struct pair_tensor y = tensor_poisoned(&p, c->n_rows, c->hidden, dtype);
    for (int b = FIRST; b <= GPU; b++) {
        m.ffn[b].accumulate = false;
        m.shared[b].up.x = x.t[b];
        m.shared[b].down.y = y.t[b];
        CHECK_EQ(ops_moe(p.be[b], NULL, &m.shared[b], &m.route[b], &m.ffn[b]), OK);
    }
    check_tensor(&p, "experts beside an MLP", &m.y, c->hidden, 2.0 * pair_tolerance(&p));
    check_tensor(&p, "an MLP beside experts", &y, c->hidden, 2.0 * pair_tolerance(&p));
    pair_close(&p);
}

TEST(mixtures_beside_an_mlp_agree)
{
    NEED_GPU();
    static const struct mixture_case cases[] = {
        {1, 16, 4, 256, 128, 520, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_GELU_TANH, false, true,
         false},
        {1, 8, 3, 2816, 704, 2112, false, true, MOE_SIGMOID, 1, 1, ACT_SILU, false, true, false},
        {1, 8, 6, 2312, 72, 40, false, false, MOE_SIGMOID, 1, 1, ACT_RELU2, true, false, false},
        {1, 5, 2, 50, 33, 17, false, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, false},
        {3, 8, 2, 264, 40, 72, false, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, true, false},
    };
    for (int32_t i = 0; i < COUNT(cases); i++) {
        mixture_beside_mlp(DT_BF16, &cases[i]);
        mixture_beside_mlp(DT_F16, &cases[i]);
    }
}

static void all_mixtures(enum dtype dtype)
{
    for (int32_t i = 0; i < COUNT(mixtures); i++) {
        mixture_case_of(dtype, &mixtures[i], false);
    }
    mixture_case_of(dtype, &mixtures[1], true);
}

TEST(mixtures_agree_in_float32)
{
    NEED_GPU();
    all_mixtures(DT_F32);
}

TEST(mixtures_agree_in_bfloat16)
{
    NEED_GPU();
    all_mixtures(DT_BF16);
}

TEST(mixtures_agree_in_float16)
{
    NEED_GPU();
    all_mixtures(DT_F16);
}

/* Two to eight rows have kernels of their own. The cases have pieces of weight rows that end early,
 * more features than warps and fewer, and up to the maximum number of experts. With many rows the
 * sum over a row's picks applies the gate of the shared expert. */
static const struct mixture_case several_rows[] = {
    {2, 16, 4, 256, 128, 64, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {4, 24, 8, 1032, 520, 264, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {8, 12, 3, 2056, 72, 1032, true, true, MOE_SIGMOID, 1, 1, ACT_GELU, false, false, false},
    {5, 512, 10, 136, 8, 0, false, true, MOE_SIGMOID, 1, 1, ACT_GELU_TANH, false, false, false},
    {3, 8, 2, 264, 40, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false, false, false},
    {7, 32, 6, 128, 64, 128, false, false, MOE_SIGMOID, 8, 4, ACT_SILU, false, false, false},
    {150, 4, 2, 328, 72, 40, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {70, 4, 2, 2056, 64, 72, true, true, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, false},
    {4, 8, 4, 4616, 40, 72, false, true, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, true},
    {2, 9, 2, 264, 40, 0, false, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, true, false},
};

TEST(mixtures_of_several_rows_agree)
{
    NEED_GPU();
    for (int32_t i = 0; i < COUNT(several_rows); i++) {
        mixture_case_of(DT_BF16, &several_rows[i], false);
        mixture_case_of(DT_F16, &several_rows[i], i % 2 == 1);
    }
}

TEST(deterministic_mixtures_agree)
{
    NEED_GPU();
    for (int32_t i = 0; i < COUNT(several_rows); i++) {
        mixture_case_in(DT_BF16, &several_rows[i], NULL, false, true);
        mixture_case_in(DT_F16, &several_rows[i], NULL, i % 2 == 1, true);
    }
}

/* Experts that stay quantised: up to 8 rows have kernels of their own. The cases have inputs that
 * end within an item, rows that share experts and rows that do not, fewer items than warps, groups
 * of experts, shared experts, and sizes and numbers that these kernels do not take. With hundreds
 * of experts there is no norm: if one of its results is rounded otherwise, a pick may change. */
static const struct mixture_case coded_mixtures[] = {
    {1, 6, 4, 2880, 144, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false, false, true},
    {1, 8, 2, 32, 16, 0, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {1, 40, 3, 160, 48, 0, true, true, MOE_SIGMOID, 8, 4, ACT_SILU, false, false, true},
    {1, 256, 10, 1056, 2880, 0, false, true, MOE_SIGMOID, 1, 1, ACT_GELU_TANH, false, false, false},
    {2, 5, 4, 96, 2880, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false, false, true},
    {3, 40, 8, 160, 48, 64, true, true, MOE_SIGMOID, 8, 4, ACT_SILU, false, false, true},
    {4, 5, 3, 1056, 208, 72, false, false, MOE_SIGMOID, 1, 1, ACT_GELU, false, true, false},
    {5, 256, 10, 160, 48, 0, false, true, MOE_SIGMOID, 1, 1, ACT_GELU_TANH, false, false, false},
    {6, 9, 3, 480, 240, 40, true, true, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, true},
    {7, 24, 8, 512, 256, 0, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, true},
    {8, 4, 2, 64, 1040, 0, false, true, MOE_SOFTMAX_TOPK, 1, 1, ACT_RELU, false, false, false},
    {8, 4, 4, 64, 2880, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false, false, true},
    {8, 300, 4, 96, 32, 40, true, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, false},
    {8, 4, 4, 64, 3600, 0, false, true, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, true},
    {9, 16, 4, 256, 128, 64, true, true, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, true},
    {16, 12, 3, 160, 96, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false, false, true},
};

static const struct format *format_named(const char *name)
{
    int32_t i = 0;
    while (strcmp(formats[i].name, name) != 0) {
        i++;
    }
    return &formats[i];
}

TEST(mixtures_of_quantised_experts_agree)
{
    NEED_GPU();
    static const char *const names[] = {
        "mxfp4",         "int4 by 128",    "int4 by 128 with zeros", "int4 by 64 with zeros",
        "fp8 in blocks", "fp8 of channels"};
    for (int32_t n = 0; n < COUNT(names); n++) {
        const struct format *f = format_named(names[n]);
        for (int32_t i = 0; i < COUNT(coded_mixtures); i++) {
            mixture_case_in(DT_BF16, &coded_mixtures[i], f, false, false);
            if (f->values !=
                DT_E4M3) { // random FP8 weights give results above fp16's largest number
                mixture_case_in(DT_F16, &coded_mixtures[i], f, false, false);
            }
        }
    }
}

/* The first rows alone have the same bits as among all rows, even if launches of different sizes
 * follow one another. */
static void rows_of_a_mixture_in(enum dtype dtype, bool deterministic, struct mixture_case c,
                                 const int32_t *rows, int32_t n_rows)
{
    struct pair p;
    struct mixture m;
    REQUIRE(pair_open(&p, dtype, deterministic, NULL));
    make_mixture(&p, &c, NULL, &m);
    struct backend *be = p.be[GPU];
    const size_t row = (size_t)m.y.t[GPU].stride * dtype_bytes(dtype);
    char *all = xmalloc(row * (size_t)c.n_rows), *some = xmalloc(row * (size_t)c.n_rows);
    const struct shared_expert_args *shared = c.shared > 0 ? &m.shared[GPU] : NULL;
    CHECK_EQ(ops_moe(be, NULL, shared, &m.route[GPU], &m.ffn[GPU]), OK);
    CHECK_EQ(be->ops->read(be, all, m.y.t[GPU].mem, row * (size_t)c.n_rows), OK);
    for (int32_t i = 0; i < n_rows; i++) {
        const int32_t n = rows[i];
        m.route[GPU].n_rows = m.ffn[GPU].n_rows = m.gate[GPU].n_rows = n;
        m.shared[GPU].up.n_rows = m.shared[GPU].down.n_rows = m.shared[GPU].act.n_rows = n;
        memset(some, 0xff, row * (size_t)n);
        CHECK_EQ(be->ops->write(be, m.y.t[GPU].mem, some, row * (size_t)n), OK);
        CHECK_EQ(ops_moe(be, NULL, shared, &m.route[GPU], &m.ffn[GPU]), OK);
        CHECK_EQ(be->ops->read(be, some, m.y.t[GPU].mem, row * (size_t)n), OK);
        if (memcmp(all, some, row * (size_t)n) != 0) {
            CHECK_FAIL("%d of %d rows have different bits alone", n, c.n_rows);
        }
    }
    free(all);
    free(some);
    pair_close(&p);
}

static void rows_of_a_mixture(bool deterministic, struct mixture_case c, const int32_t *rows,
                              int32_t n_rows)
{
    rows_of_a_mixture_in(DT_BF16, deterministic, c, rows, n_rows);
}

TEST(a_row_of_a_mixture_does_not_depend_on_the_others)
{
    NEED_GPU();
    struct mixture_case c = {16, 24, 4,        520,   72,    40,   true, false, MOE_SOFTMAX_TOPK,
                             1,  1,  ACT_SILU, false, false, false};
    static const int32_t few[] = {1, 16, 9, 1, 1, 16}, some[] = {8, 2, 4, 2, 3, 7};
    static const int32_t any[] = {1, 2, 7, 8, 9, 16, 1, 33, 5, 64, 129, 256, 512};
    rows_of_a_mixture(false, c, few, COUNT(few));
    c.n_rows = 8;
    rows_of_a_mixture(false, c, some, COUNT(some));
    c.n_rows = 512;
    rows_of_a_mixture(true, c, any, COUNT(any));
}

/* More picks than warps, inputs longer than a ring, more than 256 experts. */
TEST(few_rows_of_a_deterministic_mixture_have_the_bits_of_many)
{
    NEED_GPU();
    static const struct mixture_case cases[] = {
        {40, 24, 10, 1096, 200, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false, false,
         false},
        {40, 16, 8, 2048, 1032, 0, false, false, MOE_SIGMOID, 8, 4, ACT_SILU, false, false, false},
        {40, 300, 3, 264, 72, 40, false, false, MOE_SIGMOID, 1, 1, ACT_GELU_TANH, false, false,
         false},
    };
    static const int32_t rows[] = {1, 2, 3, 4, 1, 5, 40};
    for (int32_t i = 0; i < COUNT(cases); i++) {
        rows_of_a_mixture(true, cases[i], rows, COUNT(rows));
    }
}

/* What a norm and the mixture after it write: y, which holds the norm's delta before, the sum that
 * the norm is applied to, and the norm's result. */
enum { WRITTEN = 3, NORM_ROWS = 40 };

struct written {
    char *rows[WRITTEN];
};

static const struct tensor *written_tensor(const struct mixture *m, int i)
{
    const struct tensor *const t[WRITTEN] = {&m->y.t[GPU], &m->residual.t[GPU], &m->x.t[GPU]};
    return t[i];
}

static size_t written_bytes(const struct mixture *m, int i, int32_t n_rows)
{
    return (size_t)written_tensor(m, i)->stride * sizeof(uint16_t) * (size_t)n_rows;
}

static struct written read_written(struct pair *p, const struct mixture *m, int32_t n_rows)
{
    struct written w;
    for (int i = 0; i < WRITTEN; i++) {
        const size_t n = written_bytes(m, i, n_rows);
        w.rows[i] = xmalloc(n);
        CHECK_EQ(p->be[GPU]->ops->read(p->be[GPU], w.rows[i], written_tensor(m, i)->mem, n), OK);
    }
    return w;
}

static void free_written(struct written *w)
{
    for (int i = 0; i < WRITTEN; i++) {
        free(w->rows[i]);
    }
}

/* Computes the first n rows, starting from what `before` holds. */
static struct written rows_of_norm_and_mixture(struct pair *p, struct mixture *m,
                                               const struct written *before, int32_t n)
{
    struct backend *be = p->be[GPU];
    m->route[GPU].n_rows = m->ffn[GPU].n_rows = m->norm[GPU].n_rows = n;
    for (int i = 0; i < WRITTEN; i++) {
        CHECK_EQ(be->ops->write(be, written_tensor(m, i)->mem, before->rows[i],
                                written_bytes(m, i, NORM_ROWS)),
                 OK);
    }
    CHECK_EQ(ops_moe(be, &m->norm[GPU], NULL, &m->route[GPU], &m->ffn[GPU]), OK);
    return read_written(p, m, n);
}

/* Up to four rows of at most 4,096 elements are normalised by the kernel of the router's scores. */
TEST(few_rows_of_a_norm_and_a_deterministic_mixture_have_the_bits_of_many)
{
    NEED_GPU();
    static const struct mixture_case cases[] = {
        {NORM_ROWS, 24, 10, 1096, 200, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false,
         false, true},
        {NORM_ROWS, 128, 8, 2048, 72, 0, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false,
         false, true},
        {NORM_ROWS, 12, 4, 4096, 136, 0, false, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, false,
         true},
        {NORM_ROWS, 12, 4, 4104, 136, 0, false, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, false,
         true},
    };
    static const int32_t rows[] = {1, 2, 3, 4, 1, 5, NORM_ROWS};
    for (int32_t c = 0; c < COUNT(cases); c++) {
        struct pair p;
        struct mixture m;
        REQUIRE(pair_open(&p, DT_BF16, true, NULL));
        make_mixture(&p, &cases[c], NULL, &m);
        struct written before = read_written(&p, &m, NORM_ROWS);
        struct written all = rows_of_norm_and_mixture(&p, &m, &before, NORM_ROWS);
        for (int32_t r = 0; r < COUNT(rows); r++) {
            struct written some = rows_of_norm_and_mixture(&p, &m, &before, rows[r]);
            for (int i = 0; i < WRITTEN; i++) {
                if (memcmp(all.rows[i], some.rows[i], written_bytes(&m, i, rows[r])) != 0) {
                    CHECK_FAIL("case %d, tensor %d: %d of %d rows have different bits", c, i,
                               rows[r], NORM_ROWS);
                }
            }
            free_written(&some);
        }
        free_written(&all);
        free_written(&before);
        pair_close(&p);
    }
}

/* From 32 rows per expert on, the GPU uses another kernel. The cases have a shared expert with its
 * gate, biases, every activation, and sizes that are not multiples of the tiles of that kernel. */
TEST(any_number_of_rows_of_a_deterministic_mixture_has_the_same_bits)
{
    NEED_GPU();
    static const struct mixture_case cases[] = {
        {4096, 16, 4, 520, 264, 72, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false,
         false},
        {4096, 32, 4, 1096, 200, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false, false,
         false},
        {2048, 8, 2, 328, 72, 40, true, true, MOE_SIGMOID, 1, 1, ACT_GELU_TANH, false, false,
         false},
        {513, 8, 3, 264, 136, 0, false, false, MOE_SIGMOID, 1, 1, ACT_GELU, false, true, false},
        {513, 8, 3, 264, 136, 0, false, true, MOE_SIGMOID, 1, 1, ACT_RELU2, false, false, false},
    };
    static const int32_t rows[] = {1, 2, 7, 16, 33, 64, 129, 256, 512, 2048, 4096};
    for (int32_t i = 0; i < COUNT(cases); i++) {
        int32_t n = 0;
        while (n < COUNT(rows) && rows[n] <= cases[i].n_rows) {
            n++;
        }
        rows_of_a_mixture_in(DT_BF16, true, cases[i], rows, n);
        rows_of_a_mixture_in(DT_F16, true, cases[i], rows, n);
    }
}

/* Qwen3-30B-A3B's sizes with fewer experts, and its number of experts with smaller ones. */
TEST(any_number_of_rows_of_many_deterministic_experts_has_the_same_bits)
{
    NEED_GPU();
    static const struct mixture_case cases[] = {
        {4096, 16, 8, 2048, 768, 0, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false,
         false},
        {4096, 128, 8, 264, 72, 0, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false,
         false},
    };
    static const int32_t rows[] = {1, 2, 7, 16, 33, 64, 129, 256, 512, 2048, 4096};
    for (int32_t i = 0; i < COUNT(cases); i++) {
        rows_of_a_mixture(true, cases[i], rows, COUNT(rows));
    }
}

/* A pass of one sequence. */
static struct pass *pass_of_rows(struct test_pass *t, int32_t n)
{
    const struct seq_spec spec = {0, n, false};
    pass_of(t, &spec, 1, false, 1);
    t->pass.model = 3;
    t->pass.n_out = 0;
    return &t->pass;
}

/* A mixture of few rows in passes that are launched, captured and replayed. format: as for
 * make_mixture. */
static void replay_mixture(int32_t n, const struct format *format)
{
    enum { PASSES = 6, MOST = 16 };
    static const struct mixture_case plain = {
        MOST, 24, 4,        520,   72,    40,   true, false, MOE_SOFTMAX_TOPK,
        1,    1,  ACT_SILU, false, false, false};
    static const struct mixture_case coded = {
        MOST, 24, 4,        544,   80,    0,    false, true, MOE_SOFTMAX_TOPK,
        1,    1,  ACT_SILU, false, false, false};
    const struct mixture_case c = format ? coded : plain;
    const bool shared = c.shared > 0;
    struct pair p;
    struct mixture m;
    REQUIRE(pair_open(&p, DT_BF16, false, NULL));
    make_mixture(&p, &c, format, &m);
    struct backend *be = p.be[GPU];
    const size_t row = (size_t)m.y.t[GPU].stride * dtype_bytes(DT_BF16), all = row * MOST;
    char *before = xmalloc(all), *first = xmalloc(all), *out = xmalloc(all);
    CHECK_EQ(be->ops->read(be, before, m.y.t[GPU].mem, all), OK);
    for (int32_t i = 0; i < PASSES; i++) {
        static struct test_pass t;
        struct pass_shape shape;
        struct pass_results results[8];
        CHECK_EQ(be->ops->write(be, m.y.t[GPU].mem, before, all), OK);
        CHECK_EQ(be->ops->step_begin(be, 0), OK);
        CHECK_EQ(be->ops->pass_begin(be, pass_of_rows(&t, n), &shape), OK);
        REQUIRE(shape.n_rows >= n && shape.n_rows <= MOST);
        m.route[GPU].n_rows = m.ffn[GPU].n_rows = m.gate[GPU].n_rows = shape.n_rows;
        m.shared[GPU].up.n_rows = m.shared[GPU].down.n_rows = shape.n_rows;
        m.shared[GPU].act.n_rows = shape.n_rows;
        if (shape.issue) {
            CHECK_EQ(ops_moe(be, NULL, shared ? &m.shared[GPU] : NULL, &m.route[GPU], &m.ffn[GPU]),
                     OK);
        }
        CHECK_EQ(be->ops->pass_end(be), OK);
        CHECK_EQ(be->ops->step_end(be), OK);
        CHECK_EQ(be->ops->step_wait(be, 0, results, 8), OK);
        CHECK_EQ(be->ops->read(be, out, m.y.t[GPU].mem, all), OK);
        if (i == 0) {
            memcpy(first, out, all);
            CHECK(memcmp(out, before, row) != 0);
        }
        if (memcmp(out, first, all) != 0) {
            CHECK_FAIL("pass %d of %d rows has different bits than the first", i, n);
        }
        CHECK_EQ(memcmp(out + n * row, before + n * row, all - n * row), 0);
    }
    free(before);
    free(first);
    free(out);
    pair_close(&p);
}

TEST(a_captured_mixture_leaves_padding_rows_alone)
{
    NEED_GPU();
    static const int32_t rows[] = {1, 3, 5, 11};
    for (int32_t i = 0; i < COUNT(rows); i++) {
        replay_mixture(rows[i], NULL);
        replay_mixture(rows[i], format_named("mxfp4"));
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
