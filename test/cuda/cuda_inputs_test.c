// SPDX-License-Identifier: Apache-2.0
/* Products whose inputs are rounded by the rule of a quantised weight, and the ops that leave such
 * codes, compared with the scalar backend. */
#include "test/cuda/cuda_coded.h"

/* ---- inputs that are rounded ----------------------------------------------------------------- */

/* The E4M3 number nearest to x; a tie goes to the even code. */
static float nearest_e4m3(float x)
{
    uint8_t codes[256];
    struct number_grid g = {.data = codes, .dtype = DT_E4M3, .row_stride = 1, .col_stride = 1};
    float best = 0.0f;
    for (int32_t i = 0; i < 256; i++) {
        codes[i] = (uint8_t)i;
    }
    for (int32_t i = 0; i < 256; i++) {
        const float v = number_get(&g, 0, i), off = fabsf(v - x), least = fabsf(best - x);
        if (!isnan(v) && (off < least || (off == least && i % 2 == 0))) {
            best = v;
        }
    }
    return best;
}

/* The reference for rounded inputs, as slow and plain as possible. */
static void round_some(float *x, int32_t n, const struct input_rule *rule)
{
    float largest = 0.0f;
    for (int32_t i = 0; i < n; i++) {
        largest = greater(fabsf(x[i]), largest);
    }
    if (rule->limit > 0.0f) {
        largest = lesser(rule->limit, largest);
    }
    float scale = rule->from_row ? largest / 448.0f : rule->scale;
    if (rule->power_of_two) {
        scale = exp2f(ceilf(log2f(scale)));
    }
    for (int32_t i = 0; i < n; i++) {
        x[i] = nearest_e4m3(x[i] / scale) * scale;
    }
}

/* Rounds x on the CPU only: the rule belongs to a quantised weight, and the CPU's weight is
 * fp32. */
static void round_reference(struct pair *p, struct pair_tensor *x, int32_t n_in,
                            const struct input_rule *rule)
{
    if (!COMPARED) {
        return;
    }
    float *values = tensor_get(p, x, CPU);
    const int32_t group = rule->group > 0 ? rule->group : n_in;
    for (int32_t r = 0; r < x->n_rows; r++) {
        for (int32_t k = 0; k < n_in; k += group) {
            const int32_t n = lesser(n_in - k, group);
            round_some(values + (size_t)r * (size_t)x->stride + k, n, rule);
        }
    }
    const size_t n = (size_t)x->n_rows * (size_t)x->stride;
    CHECK_EQ(p->be[CPU]->ops->write(p->be[CPU], x->t[CPU].mem, values, n * sizeof *values), OK);
    free(values);
}

struct inputs_case {
    int32_t format; // index of `formats`
    struct input_rule rule;
};

/* Products of codes by codes: inputs are rounded first, by the format's rule. */
static void inputs_case(const struct inputs_case *c, enum dtype dtype, bool deterministic)
{
    enum { N_IN = 1088, STRIDE = N_IN + 16 };
    static const int32_t rows[] = {1, 2, 6, 9, 16, 17, 33, 70, 130, 300};
    struct pair p;
    REQUIRE(pair_open(&p, dtype, deterministic, NULL));
    struct weight_part parts[2] = {make_tensor(&formats[c->format], 256, N_IN),
                                   make_tensor(&formats[c->format], 112, N_IN)};
    for (int32_t i = 0; i < 2; i++) {
        parts[i].inputs = c->rule;
        parts[i].inputs.numbers = INPUT_E4M3;
        parts[i].inputs.n_inputs = N_IN;
    }
    struct pair_weight w = open_parts(&p, WEIGHT_LINEAR, parts, 2, 1, true);
    const struct backend_limits limits = pair_limits();
    for (int b = 0; b < 2; b++) {
        struct err err;
        CHECK_EQ(p.be[b]->ops->setup(p.be[b], &limits, &err), OK);
    }
    for (int32_t r = 0; r < COUNT(rows); r++) {
        const enum dtype y_dtype = r % 2 ? DT_F32 : dtype;
        struct pair_tensor x = tensor_random(&p, rows[r], N_IN, STRIDE, 1.0f);
        struct pair_tensor y = tensor_poisoned(&p, rows[r], 368 + 16, y_dtype);
        round_reference(&p, &x, N_IN, &c->rule);
        struct linear_args a = {.n_rows = rows[r]};
        BOTH(&p, linear, a, a.x = x.t[b]; a.y = y.t[b]; a.weight = w.w[b]);
        char what[128];
        snprintf(what, sizeof what, "%s: %d rounded rows, dtype %d to %d", formats[c->format].name,
                 rows[r], dtype, y_dtype);
        check_tensor(&p, what, &y, 368, y_dtype == DT_F32 ? 5e-3 : pair_tolerance(&p) + 2e-3);
    }
    free_tensor(&parts[0]);
    free_tensor(&parts[1]);
    pair_close(&p);
}

/* Stored scales, scales per row, and scales per group of 128. */
TEST(products_with_rounded_inputs_agree)
{
    NEED_GPU();
    static const struct inputs_case cases[] = {
        {0, {.from_row = true}},
        {0, {.scale = 0.01f}},
        {1, {.from_row = true}},
        {1, {.from_row = true, .power_of_two = true}},
        {2, {.from_row = true, .group = 128}},
        {2, {.from_row = true, .group = 128, .power_of_two = true}},
        {3, {.from_row = true}},
    };
    for (int32_t i = 0; i < COUNT(cases); i++) {
        inputs_case(&cases[i], DT_BF16, false);
        inputs_case(&cases[i], DT_F16, i % 2 == 0);
    }
}

/* ---- ops that leave codes -------------------------------------------------------------------- */

enum { MANY_ROWS = 1100 }; // rows; with so many, each block of a norm has several
static const int32_t fused_rows[] = {1, 2, 6, 16, 40, 130, 300, MANY_ROWS};

/* Weights [n_out, N_IN] of a format with rounded inputs. */
static struct pair_weight open_rounded(struct pair *p, const struct inputs_case *c, int32_t n_out,
                                       int32_t n_in)
{
    struct weight_part part = make_tensor(&formats[c->format], n_out, n_in);
    part.inputs = c->rule;
    part.inputs.numbers = INPUT_E4M3;
    part.inputs.n_inputs = n_in;
    struct pair_weight w = open_parts(p, WEIGHT_LINEAR, &part, 1, 1, false);
    free_tensor(&part);
    return w;
}

/* Ops that need lanes or buffers of a pass. */
static void set_up_pair(struct pair *p)
{
    struct backend_limits limits = pair_limits();
    limits.max_rows = MANY_ROWS;
    for (int b = 0; b < 2; b++) {
        struct err err;
        CHECK_EQ(p->be[b]->ops->setup(p->be[b], &limits, &err), OK);
    }
}

/* Norms and activations that round their output for the next product. */
static const struct inputs_case fused_cases[] = {
    {1, {.from_row = true}},
    {1, {.scale = 0.01f}},
    {2, {.from_row = true, .group = 128}},
    {6, {.from_row = true}}, // has no product of codes, so the ops run separately
};

/* A norm and the product after it have the bits of two separate ops. */
TEST(norms_leave_the_codes_that_rounding_makes)
{
    NEED_GPU();
    enum { N_IN = 1088, N_OUT = 384 };
    for (int32_t i = 0; i < COUNT(fused_cases); i++) {
        struct pair p;
        REQUIRE(pair_open(&p, i % 2 ? DT_F16 : DT_BF16, false, NULL));
        struct pair_weight w = open_rounded(&p, &fused_cases[i], N_OUT, N_IN);
        set_up_pair(&p);
        const struct backend_ops *ops = p.be[GPU]->ops;
        for (int32_t r = 0; r < COUNT(fused_rows); r++) {
            const int32_t n = fused_rows[r];
            struct pair_tensor x = tensor_random(&p, n, N_IN, N_IN, 3.0f);
            struct pair_tensor h = tensor_poisoned(&p, n, N_IN, p.dtype);
            struct pair_tensor y = tensor_poisoned(&p, n, N_OUT, DT_F32);
            const struct norm_args norm = {
                .x = x.t[GPU], .out = h.t[GPU], .n_rows = n, .width = N_IN, .eps = 1e-5f};
            const struct linear_args a = {
                .weight = w.w[GPU], .x = h.t[GPU], .y = y.t[GPU], .n_rows = n};
            CHECK_EQ(ops->norm_linear(p.be[GPU], &norm, &a, NULL, NULL), OK);
            float *fused = tensor_get(&p, &y, GPU);
            CHECK_EQ(ops->norm(p.be[GPU], &norm), OK);
            CHECK_EQ(ops->linear(p.be[GPU], &a), OK);
            float *apart = tensor_get(&p, &y, GPU);
            CHECK(memcmp(fused, apart, (size_t)n * N_OUT * sizeof *apart) == 0);
            free(fused);
            free(apart);
        }
        pair_close(&p);
    }
}

/* The ops of an MLP in one call equal separate ops, except for the last bit of the activation's
 * exponentials: its output is codes, or is numbers that are then rounded. */
static void mlp_case(struct pair *p, const struct pair_weight *up, const struct pair_weight *down,
                     int32_t n_rows, int32_t n_in, int32_t ffn, int32_t n_out, enum activation kind,
                     const char *name)
{
    const struct backend_ops *ops = p->be[GPU]->ops;
    struct pair_tensor x = tensor_random(p, n_rows, n_in, n_in, 1.0f);
    struct pair_tensor mid = tensor_poisoned(p, n_rows, 2 * ffn, p->dtype);
    struct pair_tensor h = tensor_poisoned(p, n_rows, ffn, p->dtype);
    struct pair_tensor y = tensor_poisoned(p, n_rows, n_out, DT_F32);
    const struct linear_args a = {
        .weight = up->w[GPU], .x = x.t[GPU], .y = mid.t[GPU], .n_rows = n_rows};
    const struct activation_args act = {.x = mid.t[GPU],
                                        .out = h.t[GPU],
                                        .n_rows = n_rows,
                                        .width = ffn,
                                        .kind = kind,
                                        .gated = true};
    const struct linear_args b = {
        .weight = down->w[GPU], .x = h.t[GPU], .y = y.t[GPU], .n_rows = n_rows};
    CHECK_EQ(ops->mlp(p->be[GPU], &a, &act, &b), OK);
    float *fused = tensor_get(p, &y, GPU);
    CHECK_EQ(ops->linear(p->be[GPU], &a), OK);
    CHECK_EQ(ops->activation(p->be[GPU], &act), OK);
    CHECK_EQ(ops->linear(p->be[GPU], &b), OK);
    float *apart = tensor_get(p, &y, GPU);
    char what[96];
    snprintf(what, sizeof what, "%s: an mlp of %d rows, %d wide", name, n_rows, ffn);
    check_near(what, apart, fused, n_rows, n_out, n_out, 4e-3);
    free(fused);
    free(apart);
}

TEST(activations_leave_the_codes_that_rounding_makes)
{
    NEED_GPU();
    enum { N_IN = 256, N_OUT = 272 };
    static const int32_t widths[] = {1088, 1152}; // the second in whole blocks of 128
    for (int32_t i = 0; i < COUNT(fused_cases) * COUNT(widths); i++) {
        const struct inputs_case *c = &fused_cases[i / COUNT(widths)];
        const int32_t ffn = widths[i % COUNT(widths)];
        struct pair p;
        REQUIRE(pair_open(&p, ffn == widths[0] && i / COUNT(widths) % 2 ? DT_F16 : DT_BF16, false,
                          NULL));
        struct pair_weight up = open_rounded(&p, c, 2 * ffn, N_IN);
        struct pair_weight down = open_rounded(&p, c, N_OUT, ffn);
        set_up_pair(&p);
        for (int32_t r = 0; r < 2 * COUNT(fused_rows); r++) {
            mlp_case(&p, &up, &down, fused_rows[r / 2], N_IN, ffn, N_OUT,
                     r % 2 ? ACT_GELU_TANH : ACT_SILU, formats[c->format].name);
        }
        pair_close(&p);
    }
}

/* ---- experts --------------------------------------------------------------------------------- */

struct experts_case {
    struct inputs_case inputs;
    int32_t n_rows, n_experts, k, hidden, ffn;
    enum activation kind;
    bool weigh_inputs;
};

/* One tensor per expert. A 16-bit weight lets the CPU round inputs itself, an fp32 one does not.
 * Stored scales differ by expert, and one has none. */
static struct pair_weight open_experts_of(struct pair *p, const struct experts_case *c,
                                          int32_t n_out, int32_t n_in)
{
    struct weight_part *parts = xmalloc((size_t)c->n_experts * sizeof *parts);
    for (int32_t e = 0; e < c->n_experts; e++) {
        parts[e] = make_tensor(&formats[c->inputs.format], n_out, n_in);
        parts[e].inputs = c->inputs.rule;
        parts[e].inputs.numbers = INPUT_E4M3;
        parts[e].inputs.n_inputs = n_in;
        parts[e].inputs.scale *= (float)(e % 3);
    }
    struct pair_weight w =
        open_parts_as(p, WEIGHT_EXPERTS, parts, c->n_experts, c->n_experts, false,
                      c->ffn % 8 == 0 ? p->dtype : DT_F32); // a GPU does not round odd widths
    for (int32_t e = 0; e < c->n_experts; e++) {
        free_tensor(&parts[e]);
    }
    free(parts);
    return w;
}

/* Half of the rows crowd on a few experts, so that some have more than a tile of rows. */
static void make_picks(struct pair *p, const struct experts_case *c, struct dmem ids[2],
                       struct dmem weights[2])
{
    const size_t n = (size_t)c->n_rows * (size_t)c->k;
    int32_t *id = xmalloc(n * sizeof *id);
    float *weight = xmalloc(n * sizeof *weight);
    for (size_t i = 0; i < n; i++) {
        const int32_t row = (int32_t)i / c->k, j = (int32_t)i % c->k;
        const int32_t first = row % 2 ? row / 2 % 3 : row * 3;
        id[i] = (first + j) % c->n_experts;
        weight[i] = 0.25f + (float)(random_bits() & 255) / 512.0f;
    }
    for (int b = 0; b < 2; b++) {
        CHECK_EQ(p->be[b]->ops->alloc(p->be[b], n * 4, &ids[b]), OK);
        CHECK_EQ(p->be[b]->ops->alloc(p->be[b], n * 4, &weights[b]), OK);
        CHECK_EQ(p->be[b]->ops->write(p->be[b], ids[b], id, n * 4), OK);
        CHECK_EQ(p->be[b]->ops->write(p->be[b], weights[b], weight, n * 4), OK);
    }
    free(id);
    free(weight);
}

/* The first rows alone have the bits that they have among all. */
static void check_first_rows(struct pair *p, const struct moe_ffn_args *all,
                             const struct pair_tensor *y, int32_t n)
{
    struct moe_ffn_args a = *all;
    float *before = tensor_get(p, y, GPU);
    a.n_rows = n;
    CHECK_EQ(p->be[GPU]->ops->moe_ffn(p->be[GPU], &a), OK);
    float *alone = tensor_get(p, y, GPU);
    if (memcmp(before, alone, (size_t)n * (size_t)y->stride * sizeof *alone) != 0) {
        CHECK_FAIL("%d of %d rows have other bits alone", n, all->n_rows);
    }
    free(before);
    free(alone);
}

/* Where an activation is near the middle between two codes, the backends may choose different
 * ones, because on the GPU it has 16 bits before. */
static void experts_case(const struct experts_case *c, enum dtype dtype, bool deterministic,
                         int32_t n_alone)
{
    struct pair p;
    REQUIRE(pair_open(&p, dtype, deterministic, NULL));
    struct pair_weight up = open_experts_of(&p, c, 2 * c->ffn, c->hidden);
    struct pair_weight down = open_experts_of(&p, c, c->hidden, c->ffn);
    const struct backend_limits limits = pair_limits();
    struct dmem ids[2], weights[2];
    for (int b = 0; b < 2; b++) {
        struct err err;
        CHECK_EQ(p.be[b]->ops->setup(p.be[b], &limits, &err), OK);
    }
    make_picks(&p, c, ids, weights);
    struct pair_tensor x = tensor_random(&p, c->n_rows, c->hidden, c->hidden + 8, 0.1f);
    struct pair_tensor y = tensor_poisoned(&p, c->n_rows, c->hidden + 8, dtype);
    struct moe_ffn_args a = {.n_rows = c->n_rows,
                             .n_experts = c->n_experts,
                             .k = c->k,
                             .ffn = c->ffn,
                             .kind = c->kind,
                             .weigh_inputs = c->weigh_inputs,
                             .shape = ACT_SHAPE_PUBLISHED};
    BOTH(&p, moe_ffn, a, a.gate_up = up.w[b]; a.down = down.w[b]; a.x = x.t[b]; a.y = y.t[b];
         a.ids = ids[b]; a.weights = weights[b]);
    char what[128];
    snprintf(what, sizeof what, "%d rows of %d experts of %s, %d x %d, dtype %d", c->n_rows,
             c->n_experts, formats[c->inputs.format].name, c->hidden, c->ffn, dtype);
    check_tensor(&p, what, &y, c->hidden, dtype == DT_BF16 ? 0.025 : 0.012);
    if (n_alone > 0) {
        check_first_rows(&p, &a, &y, n_alone);
    }
    pair_close(&p);
}

/* Codes by codes, from one row on: tiles of one and of two warpgroups, and half a band of outputs.
 * Inputs that are dequantised again: odd widths, every rule, weighted inputs, fixed order. The last
 * case has an activation whose width is no multiple of 8, which no kernel rounds. */
TEST(experts_with_rounded_inputs_agree)
{
    NEED_GPU();
    static const struct inputs_case blocks = {2, {.from_row = true, .group = 128}};
    static const struct inputs_case powers = {
        2, {.from_row = true, .group = 128, .power_of_two = true}};
    static const struct inputs_case rows = {1, {.from_row = true}}, stored = {0, {.scale = 0.01f}};
    static const struct inputs_case plain = {4, {.from_row = true}}; // stored in 16 bits
    const struct experts_case cases[] = {
        {blocks, 1, 4, 2, 256, 384, ACT_SILU, false},
        {blocks, 9, 128, 8, 256, 384, ACT_SILU, false},
        {blocks, 64, 128, 8, 256, 384, ACT_SILU, false},
        {powers, 420, 32, 2, 384, 1152, ACT_SILU, false},
        {blocks, 60, 32, 2, 384, 1152, ACT_SILU, true},
        {blocks, 150, 3, 2, 256, 160, ACT_SILU, false},
        {powers, 33, 5, 2, 136, 160, ACT_GELU_TANH, false},
        {rows, 40, 5, 3, 136, 160, ACT_SILU, false},
        {rows, 300, 3, 2, 256, 160, ACT_GPT_OSS, true},
        {stored, 1, 3, 2, 256, 160, ACT_SILU, false},
        {stored, 300, 4, 2, 136, 96, ACT_SILU, false},
        {plain, 20, 4, 2, 136, 52, ACT_SILU, false},
    };
    for (int32_t i = 0; i < COUNT(cases); i++) {
        experts_case(&cases[i], DT_BF16, i % 2, 0);
        experts_case(&cases[i], DT_F16, false, 0);
    }
}

TEST(rows_of_rounded_experts_do_not_depend_on_others)
{
    NEED_GPU();
    static const struct inputs_case blocks = {2, {.from_row = true, .group = 128}};
    static const struct inputs_case stored = {0, {.scale = 0.01f}};
    const struct experts_case many = {blocks, 200, 32, 2, 384, 1152, ACT_SILU, false};
    const struct experts_case other = {stored, 300, 4, 2, 136, 96, ACT_SILU, false};
    experts_case(&many, DT_BF16, false, 40); // codes by codes
    experts_case(&many, DT_F16, false, 133);
    experts_case(&many, DT_BF16, true, 1);
    experts_case(&other, DT_F16, true, 7);
}

/* A limit clips the larger inputs of products, of ops that leave codes, and of experts. */
TEST(scales_of_inputs_can_be_limited)
{
    NEED_GPU();
    enum { N_IN = 256, FFN = 1088, N_OUT = 272 };
    static const struct inputs_case clipped = {1, {.from_row = true, .limit = 0.5f}};
    static const struct inputs_case more = {1, {.from_row = true, .limit = 0.05f}};
    const struct experts_case experts = {more, 40, 5, 3, 136, 160, ACT_SILU, false};
    for (int32_t d = 1; d < COUNT(pair_dtypes); d++) {
        inputs_case(&clipped, pair_dtypes[d], false);
        experts_case(&experts, pair_dtypes[d], d % 2, 0);
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[d], false, NULL));
        struct pair_weight up = open_rounded(&p, &clipped, 2 * FFN, N_IN);
        struct pair_weight down = open_rounded(&p, &clipped, N_OUT, FFN);
        set_up_pair(&p);
        for (int32_t r = 0; r < COUNT(fused_rows); r++) {
            mlp_case(&p, &up, &down, fused_rows[r], N_IN, FFN, N_OUT, ACT_SILU, "limited scales");
        }
        pair_close(&p);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
