// SPDX-License-Identifier: Apache-2.0
/* Weights that stay quantised, compared with the scalar backend in fp32, which uses the numbers
 * that weight_part_read gives for them. */
#include "test/cuda/cuda_coded.h"

#ifdef SLUICE_CUDA
#include "cuda/cuda_weights.h"

static bool stays_quantised(const struct weight *w)
{
    return weight_coded(w) != NULL;
}

static int32_t width_of(const struct weight *w, bool in)
{
    return (int32_t)(in ? w->n_in : w->n_out);
}

/* The largest number of rows for which codes are multiplied without being rounded. */
static int32_t exact_rows(const struct pair *p, const struct weight *w)
{
    const struct coded_matrix *m = weight_coded(w);
    const bool is_four = m && coded_bits(m->code) == 4 && m->n_in % 64 == 0;
    if (!m) {
        return 0;
    }
    if (is_four && cuda_of(p->be[GPU])->sm == 90) {
        return m->code == CODED_U4 && m->record_groups == 1 ? 64 : 32;
    }
    return 64;
}
#else
static int32_t exact_rows(const struct pair *p, const struct weight *w)
{
    (void)p, (void)w;
    return 0;
}

static bool stays_quantised(const struct weight *w)
{
    (void)w;
    return false;
}

static int32_t width_of(const struct weight *w, bool in)
{
    (void)w, (void)in;
    return 0;
}
#endif

/* With few rows codes are not rounded, so fp32 results have only the error of the sums. With more
 * rows, and for plain weights, each weight is rounded once. */
static double tolerance_of(const struct pair *p, const struct weight *w, int32_t n_rows,
                           enum dtype y)
{
    if (y != DT_F32) {
        return pair_tolerance(p);
    }
    const bool is_exact = n_rows <= exact_rows(p, w);
    if (is_exact) {
        return 2e-6;
    }
    return p->dtype == DT_BF16 ? 3e-3 : 4e-4;
}

/* Compared with fp32 products of the decoded numbers; poison in the padding. If n_out is a multiple
 * of 8, so is the stride, and y can be stored eight features at a time. */
static void product_case(struct pair *p, const char *name, const struct pair_weight *w,
                         int32_t n_rows, bool accumulate, enum dtype y_dtype)
{
    const int32_t n_out = width_of(w->w[GPU], false), n_in = width_of(w->w[GPU], true);
    const int32_t stride = n_out + (n_out % 8 == 0 ? 8 : 5);
    struct pair_tensor x = tensor_random(p, n_rows, n_in, n_in + 8, 1.0f);
    struct pair_tensor y = tensor_poisoned(p, n_rows, stride, y_dtype);
    if (accumulate) {
        struct pair_tensor start = tensor_random(p, n_rows, n_out, stride, 1.0f);
        float *values = tensor_get(p, &start, CPU);
        tensor_put(p, &y, values);
        free(values);
    }
    struct linear_args a = {.n_rows = n_rows, .accumulate = accumulate};
    BOTH(p, linear, a, a.x = x.t[b]; a.y = y.t[b]; a.weight = w->w[b]);
    char what[128];
    snprintf(what, sizeof what, "%s: %d rows of %d x %d, dtype %d to %d%s", name, n_rows, n_out,
             n_in, p->dtype, y_dtype, accumulate ? ", added" : "");
    check_tensor(p, what, &y, n_out, tolerance_of(p, w->w[GPU], n_rows, y_dtype));
}

/* The weight is two stacked tensors: one that is cut as the shape says, and one of which every
 * second row is used. In the last shapes the outputs are not a multiple of 16. */
struct shape {
    int32_t n_out, n_in, first_row, n_rows, first_col, n_cols;
};

static const struct shape shapes[] = {
    {300, 1000, 0, 300, 0, 1000},  {176, 520, 3, 77, 256, 264},  {40, 24, 0, 40, 0, 24},
    {272, 4096, 16, 256, 0, 4096}, {300, 1088, 0, 300, 0, 1088}, {48, 384, 0, 48, 0, 384},
};

/* Shapes whose parts begin in the middle of a scale's block are among them. */
static void try_format(const struct format *f, enum dtype dtype, bool deterministic)
{
    static const int32_t rows[] = {1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 130, 300};
    struct pair p;
    REQUIRE(pair_open(&p, dtype, deterministic, NULL));
    struct pair_weight w[COUNT(shapes)];
    for (int32_t s = 0; s < COUNT(shapes); s++) {
        const struct shape *c = &shapes[s];
        struct weight_part whole[2], parts[2];
        for (int32_t i = 0; i < 2; i++) {
            whole[i] = make_tensor(f, c->n_out, c->n_in);
            parts[i] =
                weight_part_slice(whole[i], c->first_row, c->n_rows, c->first_col, c->n_cols);
        }
        parts[1] = weight_part_every(parts[1], 1, 2, c->n_rows / 2);
        w[s] = open_parts(&p, WEIGHT_LINEAR, parts, 2, 1, s % 2 == 0);
        if (c->n_in > 100 && stays_quantised(w[s].w[GPU]) != f->stays) {
            CHECK_FAIL("%s, %d inputs: quantised or not", f->name, c->n_cols);
        }
        free_tensor(&whole[0]);
        free_tensor(&whole[1]);
    }
    const struct backend_limits limits = pair_limits();
    for (int b = 0; b < 2; b++) {
        struct err err;
        CHECK_EQ(p.be[b]->ops->setup(p.be[b], &limits, &err), OK);
    }
    for (int32_t s = 0; s < COUNT(shapes); s++) {
        for (int32_t r = 0; r < COUNT(rows) - (s == 3 ? 4 : 0); r++) {
            product_case(&p, f->name, &w[s], rows[r], false, r % 4 ? DT_F32 : dtype);
            if (r % 4 && rows[r] <= 17) { // few rows have a kernel of their own if y has 16 bits
                product_case(&p, f->name, &w[s], rows[r], false, dtype);
            }
        }
        product_case(&p, f->name, &w[s], 5, true, DT_F32);
        product_case(&p, f->name, &w[s], 70, true, dtype);
    }
    pair_close(&p);
}

/* bf16 and fp16 activations have different paths for decoding. */
TEST(products_with_quantised_weights_agree)
{
    NEED_GPU();
    for (int32_t i = 0; i < COUNT(formats); i++) {
        try_format(&formats[i], DT_BF16, false);
        try_format(&formats[i], DT_F16, false);
    }
}

TEST(quantised_weights_are_decoded_in_float32)
{
    NEED_GPU();
    struct pair p;
    REQUIRE(pair_open(&p, DT_F32, false, NULL));
    for (int32_t i = 0; i < COUNT(formats); i++) {
        struct weight_part whole = make_tensor(&formats[i], 120, 264);
        struct pair_weight w = open_parts(&p, WEIGHT_LINEAR, &whole, 1, 1, true);
        CHECK(!stays_quantised(w.w[GPU]));
        struct pair_tensor x = tensor_random(&p, 9, 264, 264, 1.0f);
        struct pair_tensor y = tensor_poisoned(&p, 9, 120, DT_F32);
        struct linear_args a = {.n_rows = 9};
        BOTH(&p, linear, a, a.x = x.t[b]; a.y = y.t[b]; a.weight = w.w[b]);
        check_tensor(&p, formats[i].name, &y, 120, 2e-5);
        free_tensor(&whole);
    }
    pair_close(&p);
}

/* Deterministic mode: a row's bits do not depend on the other rows. */
TEST(rows_of_quantised_products_do_not_depend_on_others)
{
    NEED_GPU();
    enum { ROWS = 2048, N_OUT = 300, N_IN = 520 };
    static const int32_t some[] = {1, 2, 7, 16, 33, 64, 100, 129, 256, 512};
    for (int32_t i = 0; i < 2 * COUNT(formats); i++) {
        struct pair p;
        REQUIRE(pair_open(&p, i < COUNT(formats) ? DT_BF16 : DT_F16, true, NULL));
        const struct format *f = &formats[i % COUNT(formats)];
        struct weight_part whole = make_tensor(f, N_OUT, N_IN);
        struct pair_weight w = open_parts(&p, WEIGHT_LINEAR, &whole, 1, 1, false);
        struct pair_tensor x = tensor_random(&p, ROWS, N_IN, N_IN, 1.0f);
        struct pair_tensor y = tensor_poisoned(&p, ROWS, N_OUT, DT_F32);
        struct linear_args a = {.weight = w.w[GPU], .x = x.t[GPU], .y = y.t[GPU], .n_rows = ROWS};
        CHECK_EQ(p.be[GPU]->ops->linear(p.be[GPU], &a), OK);
        float *all = tensor_get(&p, &y, GPU);
        for (int32_t s = 0; s < COUNT(some); s++) {
            a.n_rows = some[s];
            CHECK_EQ(p.be[GPU]->ops->linear(p.be[GPU], &a), OK);
            float *few = tensor_get(&p, &y, GPU);
            if (memcmp(few, all, (size_t)some[s] * N_OUT * sizeof *few) != 0) {
                CHECK_FAIL("%s: %d rows have different bits", f->name, some[s]);
            }
            free(few);
        }
        free(all);
        free_tensor(&whole);
        pair_close(&p);
    }
}

/* The weights of the gate and of the other half are two tensors that become one. */
static void gated_case(const struct format *f, enum dtype dtype, int32_t n_in, bool bias)
{
    enum { FFN = 208 };
    static const int32_t rows[] = {1, 5, 8, 9, 16, 40, 90};
    struct pair p;
    REQUIRE(pair_open(&p, dtype, false, NULL));
    struct weight_part parts[2] = {make_tensor(f, FFN, n_in), make_tensor(f, FFN, n_in)};
    struct pair_weight w = open_parts(&p, WEIGHT_LINEAR, parts, 2, 1, bias);
    const struct backend_limits limits = pair_limits();
    for (int b = 0; b < 2; b++) {
        struct err err;
        CHECK_EQ(p.be[b]->ops->setup(p.be[b], &limits, &err), OK);
    }
    for (int32_t r = 0; r < COUNT(rows); r++) {
        struct pair_tensor x = tensor_random(&p, rows[r], n_in, n_in, 0.3f);
        struct pair_tensor y = tensor_poisoned(&p, rows[r], 2 * FFN, p.dtype);
        struct pair_tensor out = tensor_poisoned(&p, rows[r], FFN + 3, p.dtype);
        struct linear_args a = {.n_rows = rows[r]};
        struct activation_args act = {
            .n_rows = rows[r], .width = FFN, .kind = ACT_SILU, .gated = true};
        for (int b = FIRST; b <= GPU; b++) {
            a.weight = w.w[b], a.x = x.t[b], a.y = act.x = y.t[b], act.out = out.t[b];
            if (b == GPU) {
                CHECK_EQ(p.be[b]->ops->linear_act(p.be[b], &a, &act), OK);
            } else {
                CHECK_EQ(p.be[b]->ops->linear(p.be[b], &a), OK);
                CHECK_EQ(p.be[b]->ops->activation(p.be[b], &act), OK);
            }
        }
        check_tensor(&p, f->name, &out, FFN, 2 * pair_tolerance(&p));
    }
    free_tensor(&parts[0]);
    free_tensor(&parts[1]);
    pair_close(&p);
}

TEST(gated_products_agree)
{
    NEED_GPU();
    for (int32_t i = 0; i < COUNT(formats); i++) {
        gated_case(&formats[i], i % 2 ? DT_BF16 : DT_F16, 648, i % 3 == 0);
        gated_case(&formats[i], DT_BF16, 704, i % 2 == 0); // read 64 inputs at a time
        gated_case(&formats[i], DT_F16, 704, i % 2 != 0);
    }
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Formats of both products may differ. */
struct experts_case {
    int32_t up, down; // indices of `formats`
    int32_t n_rows, n_experts, k, hidden, ffn;
    enum activation kind;
    enum { EVEN, STEEP } picks; // STEEP: experts have from one row to most of the rows
    bool partial, accumulate;
};

/* Deterministic mode: a row's bits do not depend on the other rows. */
TEST(rows_of_quantised_experts_do_not_depend_on_others)
{
    NEED_GPU();
    enum { ROWS = 2048, EXPERTS = 5, K = 2, HIDDEN = 256, FFN = 128 };
    static const int32_t some[] = {1, 2, 7, 16, 33, 64, 129, 256, 512};
    for (int32_t i = 0; i < COUNT(formats); i++) {
        struct pair p;
        REQUIRE(pair_open(&p, i % 2 ? DT_BF16 : DT_F16, true, NULL));
        struct pair_weight up = open_experts(&p, &formats[i], EXPERTS, 2 * FFN, HIDDEN, true);
        struct pair_weight down = open_experts(&p, &formats[i], EXPERTS, HIDDEN, FFN, true);
        struct backend_limits limits = pair_limits();
        limits.max_rows = ROWS;
        struct backend *be = p.be[GPU];
        struct err err;
        CHECK_EQ(be->ops->setup(be, &limits, &err), OK);
        struct pair_tensor x = tensor_random(&p, ROWS, HIDDEN, HIDDEN, 0.3f);
        struct pair_tensor y = tensor_poisoned(&p, ROWS, HIDDEN, p.dtype);
        struct moe_ffn_args a = {.gate_up = up.w[GPU],
                                 .down = down.w[GPU],
                                 .x = x.t[GPU],
                                 .y = y.t[GPU],
                                 .n_experts = EXPERTS,
                                 .k = K,
                                 .ffn = FFN,
                                 .kind = ACT_SILU,
                                 .shape = ACT_SHAPE_PUBLISHED};
        int32_t ids[ROWS * K];
        float weights[ROWS * K];
        for (int32_t k = 0; k < ROWS * K; k++) {
            ids[k] = (k / K * 3 + k % K * (1 + k / 16 % (EXPERTS - 1))) % EXPERTS;
            weights[k] = 0.25f + (float)(random_bits() & 255) / 512.0f;
        }
        CHECK_EQ(be->ops->alloc(be, sizeof ids, &a.ids), OK);
        CHECK_EQ(be->ops->alloc(be, sizeof weights, &a.weights), OK);
        CHECK_EQ(be->ops->write(be, a.ids, ids, sizeof ids), OK);
        CHECK_EQ(be->ops->write(be, a.weights, weights, sizeof weights), OK);
        a.n_rows = ROWS;
        CHECK_EQ(be->ops->moe_ffn(be, &a), OK);
        float *all = tensor_get(&p, &y, GPU);
        for (int32_t s = 0; s < COUNT(some); s++) {
            a.n_rows = some[s];
            CHECK_EQ(be->ops->moe_ffn(be, &a), OK);
            float *few = tensor_get(&p, &y, GPU);
            if (memcmp(few, all, (size_t)some[s] * HIDDEN * sizeof *few) != 0) {
                CHECK_FAIL("experts of %s: %d rows have different bits", formats[i].name, some[s]);
            }
            free(few);
        }
        free(all);
        pair_close(&p);
    }
}

/* Pick j of a row. The last expert has no rows. Steep ones: the first expert has about half of the
 * rows, the next one half of the rest. */
static int32_t pick_of(const struct experts_case *c, int32_t row, int32_t j)
{
    const int32_t n = c->n_experts - 1;
    int32_t first = row * 3;
    if (c->picks == STEEP) {
        first = 0;
        while (first < n - 1 && (row >> first & 1)) {
            first++;
        }
    }
    return (first + j) % n;
}

/* A partial product is completed by reduce, which adds the biases. */
static void check_experts(struct pair *p, const struct experts_case *c, struct moe_ffn_args a,
                          const struct pair_weight *down, const struct pair_tensor *y,
                          const struct dmem ids[2], const struct dmem weights[2])
{
    if (c->partial) {
        struct reduce_args r = {.n_rows = c->n_rows, .width = c->hidden};
        BOTH(p, reduce, r, r.y = y->t[b]; a.down = down->w[b]; a.ids = ids[b];
             a.weights = weights[b]; r.moe = &a);
    }
    char what[128];
    snprintf(what, sizeof what, "%d rows of experts of %s and %s, dtype %d", c->n_rows,
             formats[c->up].name, formats[c->down].name, p->dtype);
    check_tensor(p, what, y, c->hidden, 1.5 * pair_tolerance(p));
}

/* The same picks for both backends, as in cuda_moe_test.c. */
static void experts_case(const struct experts_case *c, enum dtype dtype, bool weigh_inputs)
{
    struct pair p;
    REQUIRE(pair_open(&p, dtype, false, NULL));
    struct pair_weight up =
        open_experts(&p, &formats[c->up], c->n_experts, 2 * c->ffn, c->hidden, !weigh_inputs);
    struct pair_weight down =
        open_experts(&p, &formats[c->down], c->n_experts, c->hidden, c->ffn, true);
    const struct backend_limits limits = pair_limits();
    struct dmem ids[2], weights[2];
    const size_t n = (size_t)c->n_rows * (size_t)c->k;
    int32_t *id = xmalloc(n * sizeof *id);
    float *weight = xmalloc(n * sizeof *weight);
    for (size_t i = 0; i < n; i++) { // some experts have no rows
        const int32_t row = (int32_t)i / c->k, j = (int32_t)i % c->k;
        id[i] = pick_of(c, row, j);
        weight[i] = 0.25f + (float)(random_bits() & 255) / 512.0f;
    }
    for (int b = 0; b < 2; b++) {
        struct err err;
        CHECK_EQ(p.be[b]->ops->setup(p.be[b], &limits, &err), OK);
        CHECK_EQ(p.be[b]->ops->alloc(p.be[b], n * 4, &ids[b]), OK);
        CHECK_EQ(p.be[b]->ops->alloc(p.be[b], n * 4, &weights[b]), OK);
        CHECK_EQ(p.be[b]->ops->write(p.be[b], ids[b], id, n * 4), OK);
        CHECK_EQ(p.be[b]->ops->write(p.be[b], weights[b], weight, n * 4), OK);
    }
    struct pair_tensor x = tensor_random(&p, c->n_rows, c->hidden, c->hidden + 8, 0.3f);
    struct pair_tensor y = c->accumulate
                               ? tensor_random(&p, c->n_rows, c->hidden, c->hidden + 8, 1.0f)
                               : tensor_poisoned(&p, c->n_rows, c->hidden + 8, dtype);
    struct moe_ffn_args a = {.n_rows = c->n_rows,
                             .n_experts = c->n_experts,
                             .k = c->k,
                             .ffn = c->ffn,
                             .kind = c->kind,
                             .accumulate = c->accumulate,
                             .partial = c->partial,
                             .weigh_inputs = weigh_inputs,
                             .shape = ACT_SHAPE_PUBLISHED};
    BOTH(&p, moe_ffn, a, a.gate_up = up.w[b]; a.down = down.w[b]; a.x = x.t[b]; a.y = y.t[b];
         a.ids = ids[b]; a.weights = weights[b]);
    check_experts(&p, c, a, &down, &y, ids, weights);
    free(id);
    free(weight);
    pair_close(&p);
}

/* Formats that models with experts are published in. */
TEST(quantised_experts_agree)
{
    NEED_GPU();
    static const struct experts_case cases[] = {
        {12, 12, 3, 6, 2, 96, 64, ACT_GPT_OSS, EVEN, false, false},
        {12, 12, 200, 5, 3, 352, 96, ACT_GPT_OSS, EVEN, false, false},
        {2, 2, 1, 4, 2, 256, 384, ACT_SILU, EVEN, false, false},
        {2, 2, 3, 4, 2, 256, 384, ACT_SILU_CLAMPED, EVEN, false, false},
        {5, 5, 200, 5, 3, 384, 128, ACT_SILU_CLAMPED, EVEN, false, false},
        {2, 2, 400, 5, 2, 160, 192, ACT_SILU, EVEN, false, false},
        {5, 5, 33, 4, 3, 256, 128, ACT_GELU_TANH, EVEN, false, false},
        {6, 6, 300, 4, 2, 64, 192, ACT_SILU, EVEN, false, false},
        {5, 13, 20, 4, 2, 128, 128, ACT_SILU, EVEN, false, false},
        {13, 0, 260, 3, 2, 128, 128, ACT_SILU, EVEN, false, false},
        {14, 14, 20, 4, 2, 128, 128, ACT_SILU, EVEN, false, false},
    };
    for (int32_t i = 0; i < COUNT(cases); i++) {
        experts_case(&cases[i], i % 2 ? DT_F16 : DT_BF16, false);
        experts_case(&cases[i], i % 2 ? DT_F16 : DT_BF16, true);
    }
}

/* 4-bit experts with enough rows for the wgmma products: tiles of every number of columns, one or
 * several per expert, bands that end early, K of half a chunk, more bands than multiprocessors. */
TEST(many_rows_of_four_bit_experts_agree)
{
    NEED_GPU();
    static const struct experts_case cases[] = {
        {12, 12, 300, 9, 2, 352, 96, ACT_GPT_OSS, STEEP, false, false},
        {12, 12, 1000, 11, 2, 64, 608, ACT_GPT_OSS, STEEP, true, false},
        {12, 12, 230, 6, 2, 2880, 160, ACT_GPT_OSS, STEEP, false, true},
        {12, 12, 24, 5, 4, 544, 2880, ACT_GPT_OSS, EVEN, false, false},
        {5, 5, 300, 7, 2, 640, 384, ACT_SILU, STEEP, false, true},
        {6, 6, 401, 8, 2, 192, 320, ACT_GELU_TANH, STEEP, true, true},
        {7, 8, 333, 7, 1, 160, 224, ACT_SILU, STEEP, false, false},
        {9, 10, 290, 6, 2, 512, 768, ACT_GELU, STEEP, false, false},
        {12, 7, 130, 5, 3, 96, 128, ACT_RELU2, STEEP, false, false},
        {5, 12, 300, 60, 4, 128, 1280, ACT_RELU, EVEN, false, false},
    };
    for (int32_t i = 0; i < COUNT(cases); i++) {
        for (int32_t weigh = 0; weigh < 2; weigh++) {
            if (!weigh || !cases[i].partial) {
                experts_case(&cases[i], DT_BF16, weigh);
                experts_case(&cases[i], DT_F16, weigh);
            }
        }
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
