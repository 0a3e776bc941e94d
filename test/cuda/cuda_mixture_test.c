// SPDX-License-Identifier: Apache-2.0
/* All of a mixture in one op, as models have it, against separate ops of the scalar backend. */
#include "test/cuda/cuda_mixture.h"

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
    {2, 8, 2, 264, 40, 64, false, false, MOE_SIGMOID, 1, 1, ACT_SILU_CLAMPED, false, false, false},
    {16, 32, 6, 128, 64, 128, false, false, MOE_SIGMOID, 8, 4, ACT_SILU, false, false, false},
    {1, 16, 2, 264, 40, 0, false, false, MOE_MIXER, 1, 1, ACT_SILU, false, false, false},
    {16, 48, 2, 128, 64, 0, false, false, MOE_MIXER, 1, 1, ACT_SILU, false, false, false},
    {2, 48, 6, 264, 40, 64, false, false, MOE_LOGITS, 1, 1, ACT_SILU, false, false, false},
    {16, 48, 6, 128, 64, 128, false, false, MOE_LOGITS, 1, 1, ACT_SILU, false, false, false},
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

/* Two to eight rows have kernels of their own. The cases have parts of weight rows that end early,
 * more features than blocks and fewer, and up to the maximum number of experts. With many rows the
 * sum over a row's picks applies the gate of the shared expert, and a kernel of its own computes
 * that expert beside the router. */
static const struct mixture_case several_rows[] = {
    {2, 16, 4, 256, 128, 64, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {4, 24, 8, 1032, 520, 264, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {8, 12, 3, 2056, 72, 1032, true, true, MOE_SIGMOID, 1, 1, ACT_GELU, false, false, false},
    {5, 512, 10, 136, 8, 0, false, true, MOE_SIGMOID, 1, 1, ACT_GELU_TANH, false, false, false},
    {3, 8, 2, 264, 40, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false, false, false},
    {7, 32, 6, 128, 64, 128, false, false, MOE_SIGMOID, 8, 4, ACT_SILU, false, false, false},
    {150, 4, 2, 328, 72, 40, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {300, 24, 4, 512, 72, 128, true, true, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {129, 40, 6, 256, 64, 192, false, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, false},
    {600, 8, 2, 256, 64, 64, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {200, 40, 4, 2048, 64, 128, true, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, false},
    {70, 4, 2, 2056, 64, 72, true, true, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, false},
    {4, 8, 4, 4616, 40, 72, false, true, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, true},
    {2, 9, 2, 264, 40, 0, false, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, true, false},
    {6, 4, 2, 328, 2120, 3080, true, true, MOE_SIGMOID, 1, 1, ACT_SILU, false, false, false},
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
    {1, 4, 3, 2880, 144, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false, false, true},
    {1, 8, 2, 32, 16, 0, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false, false},
    {1, 40, 3, 160, 48, 0, true, true, MOE_SIGMOID, 8, 4, ACT_SILU, false, false, true},
    {1, 4, 3, 288, 1440, 0, false, true, MOE_SIGMOID, 1, 1, ACT_GELU_TANH, false, false, true},
    {1, 256, 10, 160, 48, 0, false, true, MOE_SIGMOID, 1, 1, ACT_GELU_TANH, false, false, false},
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

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
