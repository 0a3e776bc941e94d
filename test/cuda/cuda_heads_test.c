// SPDX-License-Identifier: Apache-2.0
/* Attention of decoding rows followed by a product that reads its output as FP8 codes: as one op it
 * has the bits of separate ops. */
#include "test/cuda/cuda_coded.h"
#include "test/cuda/cuda_layers.h"

enum { PAST = 11, MOST_SEQS = 40 };

/* One new row of n sequences with a short past. */
static void one_row_each(struct setup *u, struct test_pass *t, int32_t n)
{
    struct seq_spec specs[MOST_SEQS];
    for (int32_t i = 0; i < n; i++) {
        specs[i] = (struct seq_spec){1 + i % PAST, 1, false};
    }
    give_blocks(&u->p, n, 2);
    pass_of(t, specs, n, true, 11);
    pass_begin(&u->p, t);
    store_rows(u, t->pass.n_rows);
    pass_end(&u->p);
    pass_of(t, specs, n, false, 12);
}

static void heads_case(enum dtype dtype, const struct shape *s, int32_t format,
                       const struct input_rule *rule, int32_t n)
{
    enum { N_OUT = 256 };
    static struct test_pass t;
    struct setup u = {0};
    struct pair *p = &u.p;
    REQUIRE(pair_open(p, dtype, false, NULL));
    const int32_t width = s->n_heads * s->head_dim;
    struct weight_part part = make_tensor(&formats[format], N_OUT, width);
    part.inputs = *rule;
    part.inputs.numbers = INPUT_E4M3;
    part.inputs.n_inputs = width;
    struct pair_weight w = open_parts(p, WEIGHT_LINEAR, &part, 1, 1, false);
    free_tensor(&part);
    p->limits = pair_limits();
    p->limits.block_tokens = s->block_tokens;
    p->limits.max_lanes = MOST_SEQS;
    for (int b = 0; b < 2; b++) { // after the weight, for whose inputs it allocates
        struct err err;
        CHECK_EQ(p->be[b]->ops->setup(p->be[b], &p->limits, &err), OK);
    }
    REQUIRE(open_layers(&u, s, (struct stored){.format = KV_PLAIN}));
    step_begin(p);
    one_row_each(&u, &t, n);
    pass_begin(p, &t);
    struct pair_tensor qkv = tensor_random(p, n, u.width, u.width + 8, 1.0f);
    struct pair_tensor out = tensor_poisoned(p, n, width + 8, p->dtype);
    struct pair_tensor y = tensor_poisoned(p, n, N_OUT, DT_F32);
    struct rope_store_args r = rope_args(&u, 1, n, GPU);
    struct attention_args a = attention_args(&u, n, GPU);
    r.qkv = a.q = qkv.t[GPU];
    a.out = out.t[GPU];
    const struct linear_args l = {.weight = w.w[GPU], .x = out.t[GPU], .y = y.t[GPU], .n_rows = n};
    CHECK_EQ(ops_rope_attention(p->be[GPU], &r, &a, &l), OK);
    float *fused = tensor_get(p, &y, GPU);
    CHECK_EQ(ops_rope_attention(p->be[GPU], &r, &a, NULL), OK);
    CHECK_EQ(p->be[GPU]->ops->linear(p->be[GPU], &l), OK);
    float *apart = tensor_get(p, &y, GPU);
    bool finite = true;
    for (int32_t i = 0; i < n * N_OUT; i++) {
        finite &= isfinite(apart[i]);
    }
    CHECK(finite);
    CHECK(memcmp(fused, apart, (size_t)n * N_OUT * sizeof *apart) == 0);
    free(fused);
    free(apart);
    pass_end(p);
    step_end(p, NULL);
    pair_close(p);
}

TEST(attention_leaves_the_codes_that_rounding_makes)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {16, 4, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {28, 4, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 32, false, 0, false, 0},
        {12, 6, 64, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
    };
    static const struct {
        int32_t format;
        struct input_rule rule;
    } rules[] = {{2, {.from_row = true, .group = 128}},
                 {2, {.from_row = true, .group = 128, .power_of_two = true}},
                 {1, {.from_row = true}}};
    static const int32_t rows[] = {2, 7, 20, MOST_SEQS};
    for (int32_t i = 0; i < COUNT(shapes) * COUNT(rules); i++) {
        for (int32_t r = 0; r < COUNT(rows); r++) {
            heads_case((i + r) % 2 ? DT_F16 : DT_BF16, &shapes[i % COUNT(shapes)],
                       rules[i / COUNT(shapes)].format, &rules[i / COUNT(shapes)].rule, rows[r]);
        }
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
