// SPDX-License-Identifier: Apache-2.0
/* Weights that stay quantised, compared with the scalar backend in fp32, which uses the numbers
 * that weight_part_read gives for them. */
#include "engine/base/minmax.h"
#include "test/cuda/cuda_pair.h"

#include <math.h>

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
    const bool is_four = m && m->code != DT_E4M3 && m->n_in % 64 == 0;
    if (!m) {
        return 0;
    }
    if (is_four && cuda_of(p->be[GPU])->sm == 90) {
        return 256;
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

#define COUNT(a) (int32_t)(sizeof(a) / sizeof((a)[0]))

/* A format as files have it. */
struct format {
    const char *name;
    enum dtype values, scales;
    bool zeros;
    int32_t zero;
    enum tensor_scale tensor_scale;
    int32_t block_rows, block_cols; // 0: all
    bool has_order;                 // of inputs
    bool stays;                     // quantised on the device
};

/* One per way in which codes, scales and zeros are laid out; the last field says whether
 * it stays quantised on the device. */
static const struct format formats[] = {
    {"fp8", DT_E4M3, DT_F32, false, 0, TENSOR_SCALE_NONE, 0, 0, false, true},
    {"fp8 of channels", DT_E4M3, DT_BF16, false, 0, TENSOR_SCALE_NONE, 1, 0, false, true},
    {"fp8 in blocks", DT_E4M3, DT_F32, false, 0, TENSOR_SCALE_NONE, 128, 128, false, true},
    {"fp8 in small blocks", DT_E4M3, DT_BF16, false, 0, TENSOR_SCALE_NONE, 40, 64, false, true},
    {"fp8 in odd blocks", DT_E4M3, DT_F32, false, 0, TENSOR_SCALE_NONE, 48, 48, false, false},
    {"int4 by 128", DT_U4, DT_F16, false, 8, TENSOR_SCALE_NONE, 1, 128, false, true},
    {"int4 by 64 with zeros", DT_U4, DT_BF16, true, 1, TENSOR_SCALE_NONE, 1, 64, false, true},
    {"int4 by 32 with zeros", DT_U4, DT_F16, true, 0, TENSOR_SCALE_NONE, 1, 32, false, true},
    {"int4 by 32", DT_U4, DT_F32, false, 8, TENSOR_SCALE_NONE, 1, 32, false, true},
    {"int4 by 256", DT_U4, DT_BF16, false, 8, TENSOR_SCALE_NONE, 1, 256, false, true},
    {"int4 of channels", DT_U4, DT_BF16, false, 8, TENSOR_SCALE_NONE, 1, 0, false, true},
    {"int4 with an order", DT_U4, DT_F16, true, 1, TENSOR_SCALE_NONE, 1, 128, true, false},
    {"mxfp4", DT_E2M1, DT_E8M0, false, 0, TENSOR_SCALE_NONE, 1, 32, false, true},
    {"nvfp4", DT_E2M1, DT_E4M3, false, 0, TENSOR_SCALE_DIVIDES, 1, 16, false, false},
    {"int8", DT_U8, DT_BF16, false, 128, TENSOR_SCALE_NONE, 1, 0, false, false},
};

static uint64_t next_bits;

static uint32_t random_bits(void)
{
    const uint64_t i = next_bits++;
    return rng_philox(3, (uint32_t)i, (uint32_t)(i >> 32), RNG_TEST, 11).v[0];
}

static uint8_t *random_bytes(size_t n)
{
    uint8_t *bytes = xmalloc(n);
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)random_bits();
    }
    return bytes;
}

/* Scales of about 0.02; powers of two of other sizes, too. */
static void *random_scales(enum dtype dtype, size_t n)
{
    uint8_t *bytes = random_bytes(n * 4);
    for (size_t i = 0; i < n; i++) {
        const float f = 0.01f + 0.02f * (float)(bytes[4 * i] & 15) / 16.0f;
        const float kept = round_to(f, dtype == DT_F32 ? DT_F32 : dtype);
        uint32_t u;
        memcpy(&u, &kept, sizeof u);
        switch (dtype) {
        case DT_E8M0: bytes[i] = (uint8_t)(118 + random_bits() % 6); break;
        case DT_E4M3: bytes[i] = (uint8_t)(0x20 + random_bits() % 0x50); break;
        case DT_BF16: ((uint16_t *)(void *)bytes)[i] = (uint16_t)(u >> 16); break;
        case DT_F16: ((uint16_t *)(void *)bytes)[i] = half_bits(u); break;
        default: ((float *)(void *)bytes)[i] = f; break;
        }
    }
    return bytes;
}

/* Groups in random order, as GPTQ's act-order gives them. */
static void *random_order(int32_t n_in, int32_t group)
{
    int32_t *order = xmalloc((size_t)n_in * sizeof *order);
    for (int32_t i = 0; i < n_in; i++) {
        order[i] = (int32_t)(random_bits() % (uint32_t)((n_in + group - 1) / group));
    }
    return order;
}

/* A tensor of n_out x n_in in memory of its own. */
static struct weight_part make_tensor(const struct format *f, int32_t n_out, int32_t n_in)
{
    struct weight_part p = weight_part_plain(NULL, f->values, n_out, n_in, 0);
    struct weight_codec *c = &p.codec;
    const int32_t per_byte = 8 / dtype_bits(f->values);
    const int64_t row_bytes = (n_in + per_byte - 1) / per_byte;
    uint8_t *values = random_bytes((size_t)(row_bytes * n_out));
    for (int64_t i = 0; f->values == DT_E4M3 && i < row_bytes * n_out; i++) {
        if ((values[i] & 0x7F) == 0x7F) {
            values[i] = 0;
        }
    }
    const enum packing packing = per_byte > 1 ? PACK_BYTES : PACK_NONE;
    c->values = (struct number_grid){values, f->values, packing, row_bytes, 1};
    c->block_rows = f->block_rows ? f->block_rows : n_out;
    c->block_cols = f->block_cols ? f->block_cols : n_in;
    const int64_t rows = (n_out + c->block_rows - 1) / c->block_rows;
    const int64_t cols = (n_in + c->block_cols - 1) / c->block_cols;
    c->scales = (struct number_grid){random_scales(f->scales, (size_t)(rows * cols)), f->scales,
                                     PACK_NONE, cols, 1};
    if (f->zeros) {
        c->zeros =
            (struct number_grid){random_bytes((size_t)(rows * cols)), f->values, packing, cols, 1};
    }
    if (f->has_order) {
        c->groups = random_order(n_in, (int32_t)c->block_cols);
    } else {
        c->groups = NULL;
    }
    c->zero = f->zero;
    c->tensor_scale_use = f->tensor_scale;
    c->tensor_scale = 37.5f;
    return p;
}

/* The tests own what the parts point to. */
static void free_tensor(struct weight_part *p)
{
    free((void *)(uintptr_t)p->codec.values.data);
    free((void *)(uintptr_t)p->codec.scales.data);
    free((void *)(uintptr_t)p->codec.zeros.data);
    free((void *)(uintptr_t)p->codec.groups);
}

/* On the CPU the weight is decoded to fp32. */
static struct pair_weight open_parts(struct pair *p, enum weight_kind kind,
                                     const struct weight_part *parts, int32_t n, int32_t n_experts,
                                     bool bias)
{
    struct weight_desc d = {.name = "test",
                            .kind = kind,
                            .n_in = parts[0].n_cols,
                            .n_experts = n_experts,
                            .n_parts = n,
                            .parts = parts,
                            .k_segments = 1};
    for (int32_t i = 0; i < n; i++) {
        d.n_out += parts[i].n_rows;
    }
    d.n_out /= n_experts;
    const int64_t n_bias = d.n_out * n_experts;
    float *biases = xmalloc((size_t)n_bias * sizeof *biases);
    struct weight_part *bias_parts = xmalloc((size_t)n_experts * sizeof *bias_parts);
    for (int64_t i = 0; i < n_bias; i++) {
        biases[i] = round_to((float)(random_bits() & 255) / 256.0f, DT_BF16);
    }
    for (int32_t e = 0; e < n_experts; e++) {
        bias_parts[e] = weight_part_plain(biases + e * d.n_out, DT_F32, 1, d.n_out, d.n_out);
    }
    d.bias = bias ? bias_parts : NULL;
    struct pair_weight w = {{NULL, NULL}};
    for (int b = 0; b < 2; b++) {
        struct err err = {""};
        d.dtype = b == CPU ? DT_F32 : p->dtype;
        if (p->be[b]->ops->weight_open(p->be[b], &d, &w.w[b], &err) != OK) {
            CHECK_FAIL("weight_open: %s", err.text);
        }
    }
    free(biases);
    free(bias_parts);
    return w;
}

/* With few rows codes are not rounded, so that fp32 results have only the error of sums. With more
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

/* Compared with fp32 products of the decoded numbers; poison in the padding. */
static void product_case(struct pair *p, const char *name, const struct pair_weight *w,
                         int32_t n_rows, bool accumulate, enum dtype y_dtype)
{
    const int32_t n_out = width_of(w->w[GPU], false), n_in = width_of(w->w[GPU], true);
    struct pair_tensor x = tensor_random(p, n_rows, n_in, n_in + 8, 1.0f);
    struct pair_tensor y = tensor_poisoned(p, n_rows, n_out + 5, y_dtype);
    if (accumulate) {
        struct pair_tensor start = tensor_random(p, n_rows, n_out, n_out + 5, 1.0f);
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

/* Two tensors, one cut, the other in every second row, stacked. */
struct shape {
    int32_t n_out, n_in, first_row, n_rows, first_col, n_cols;
};

static const struct shape shapes[] = {
    {300, 1000, 0, 300, 0, 1000},  {176, 520, 3, 77, 256, 264},  {40, 24, 0, 40, 0, 24},
    {272, 4096, 16, 256, 0, 4096}, {300, 1088, 0, 300, 0, 1088},
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

/* With float32 activations weights are decoded at load. */
TEST(quantised_weights_are_numbers_in_float32)
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
    enum { ROWS = 130, N_OUT = 300, N_IN = 1000 };
    static const int32_t some[] = {1, 8, 9, 16, 32, 33, 64, 100};
    for (int32_t i = 0; i < COUNT(formats); i++) {
        struct pair p;
        REQUIRE(pair_open(&p, DT_BF16, true, NULL));
        struct weight_part whole = make_tensor(&formats[i], N_OUT, N_IN);
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
                CHECK_FAIL("%s: %d rows have other bits", formats[i].name, some[s]);
            }
            free(few);
        }
        free(all);
        free_tensor(&whole);
        pair_close(&p);
    }
}

/* The gate's and the other half's weights are two tensors that become one. */
TEST(gated_products_agree)
{
    NEED_GPU();
    enum { FFN = 208, N_IN = 648 };
    static const int32_t rows[] = {1, 9, 40, 90};
    for (int32_t i = 0; i < COUNT(formats); i++) {
        struct pair p;
        REQUIRE(pair_open(&p, i % 2 ? DT_BF16 : DT_F16, false, NULL));
        struct weight_part parts[2] = {make_tensor(&formats[i], FFN, N_IN),
                                       make_tensor(&formats[i], FFN, N_IN)};
        struct pair_weight w = open_parts(&p, WEIGHT_LINEAR, parts, 2, 1, i % 3 == 0);
        const struct backend_limits limits = pair_limits();
        for (int b = 0; b < 2; b++) {
            struct err err;
            CHECK_EQ(p.be[b]->ops->setup(p.be[b], &limits, &err), OK);
        }
        for (int32_t r = 0; r < COUNT(rows); r++) {
            struct pair_tensor x = tensor_random(&p, rows[r], N_IN, N_IN, 0.3f);
            struct pair_tensor y = tensor_poisoned(&p, rows[r], 2 * FFN, p.dtype);
            struct pair_tensor out = tensor_poisoned(&p, rows[r], FFN + 3, p.dtype);
            struct linear_args a = {.n_rows = rows[r]};
            struct activation_args act = {
                .n_rows = rows[r], .width = FFN, .kind = ACT_SILU, .gated = true};
            for (int b = 0; b < 2; b++) {
                a.weight = w.w[b], a.x = x.t[b], a.y = act.x = y.t[b], act.out = out.t[b];
                if (b == GPU) {
                    CHECK_EQ(p.be[b]->ops->linear_act(p.be[b], &a, &act), OK);
                } else {
                    CHECK_EQ(p.be[b]->ops->linear(p.be[b], &a), OK);
                    CHECK_EQ(p.be[b]->ops->activation(p.be[b], &act), OK);
                }
            }
            check_tensor(&p, formats[i].name, &out, FFN, 2 * pair_tolerance(&p));
        }
        free_tensor(&parts[0]);
        free_tensor(&parts[1]);
        pair_close(&p);
    }
}

/* ---- inputs that are rounded ----------------------------------------------------------------- */

/* The E4M3 number nearest to x, of two as near the one with the even code. */
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
    int32_t format; // of formats
    struct input_rule rule;
};

/* Products of codes by codes: inputs are rounded first, by the format's rule. */
static void inputs_case(const struct inputs_case *c, enum dtype dtype, bool deterministic)
{
    enum { N_IN = 1088, STRIDE = N_IN + 16 };
    static const int32_t rows[] = {1, 9, 16, 17, 33, 70, 130, 300};
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

/* Scales that are stored, per row and per group of 128. */
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

static const int32_t fused_rows[] = {1, 16, 40, 130, 300};

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
    const struct backend_limits limits = pair_limits();
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

/* An activation that leaves codes equals one that leaves numbers, except for the last bit of its
 * exponentials. */
TEST(activations_leave_the_codes_that_rounding_makes)
{
    NEED_GPU();
    enum { N_IN = 256, FFN = 1088, N_OUT = 272 };
    for (int32_t i = 0; i < COUNT(fused_cases); i++) {
        struct pair p;
        REQUIRE(pair_open(&p, i % 2 ? DT_F16 : DT_BF16, false, NULL));
        struct pair_weight up = open_rounded(&p, &fused_cases[i], 2 * FFN, N_IN);
        struct pair_weight down = open_rounded(&p, &fused_cases[i], N_OUT, FFN);
        set_up_pair(&p);
        const struct backend_ops *ops = p.be[GPU]->ops;
        for (int32_t r = 0; r < 2 * COUNT(fused_rows); r++) {
            const int32_t n = fused_rows[r / 2];
            struct pair_tensor x = tensor_random(&p, n, N_IN, N_IN, 1.0f);
            struct pair_tensor mid = tensor_poisoned(&p, n, 2 * FFN, p.dtype);
            struct pair_tensor h = tensor_poisoned(&p, n, FFN, p.dtype);
            struct pair_tensor y = tensor_poisoned(&p, n, N_OUT, DT_F32);
            const struct linear_args a = {
                .weight = up.w[GPU], .x = x.t[GPU], .y = mid.t[GPU], .n_rows = n};
            const struct activation_args act = {.x = mid.t[GPU],
                                                .out = h.t[GPU],
                                                .n_rows = n,
                                                .width = FFN,
                                                .kind = r % 2 ? ACT_GELU_TANH : ACT_SILU,
                                                .gated = true};
            const struct linear_args b = {
                .weight = down.w[GPU], .x = h.t[GPU], .y = y.t[GPU], .n_rows = n};
            CHECK_EQ(ops->mlp(p.be[GPU], &a, &act, &b), OK);
            float *fused = tensor_get(&p, &y, GPU);
            CHECK_EQ(ops->linear(p.be[GPU], &a), OK);
            CHECK_EQ(ops->activation(p.be[GPU], &act), OK);
            CHECK_EQ(ops->linear(p.be[GPU], &b), OK);
            float *apart = tensor_get(&p, &y, GPU);
            char what[96];
            snprintf(what, sizeof what, "%s: an mlp of %d rows",
                     formats[fused_cases[i].format].name, n);
            check_near(what, apart, fused, n, N_OUT, N_OUT, 4e-3);
            free(fused);
            free(apart);
        }
        pair_close(&p);
    }
}

/* ---- experts --------------------------------------------------------------------------------- */

/* One tensor per expert, opened as one weight. */
static struct pair_weight open_experts(struct pair *p, const struct format *f, int32_t n_experts,
                                       int32_t n_out, int32_t n_in, bool bias)
{
    struct weight_part *parts = xmalloc((size_t)n_experts * sizeof *parts);
    for (int32_t e = 0; e < n_experts; e++) {
        parts[e] = make_tensor(f, n_out, n_in);
    }
    struct pair_weight w = open_parts(p, WEIGHT_EXPERTS, parts, n_experts, n_experts, bias);
    for (int32_t e = 0; e < n_experts; e++) {
        free_tensor(&parts[e]);
    }
    free(parts);
    return w;
}

/* Formats of both products may differ. */
struct experts_case {
    int32_t up, down; // formats
    int32_t n_rows, n_experts, k, hidden, ffn;
    enum activation kind;
};

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
    const size_t n = (size_t)(c->n_rows * c->k);
    int32_t *id = xmalloc(n * sizeof *id);
    float *weight = xmalloc(n * sizeof *weight);
    for (size_t i = 0; i < n; i++) { // some experts have no rows
        const int32_t row = (int32_t)i / c->k, j = (int32_t)i % c->k;
        id[i] = (row * 3 + j) % (c->n_experts - 1);
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
    struct pair_tensor y = tensor_poisoned(&p, c->n_rows, c->hidden + 8, dtype);
    struct moe_ffn_args a = {.n_rows = c->n_rows,
                             .n_experts = c->n_experts,
                             .k = c->k,
                             .ffn = c->ffn,
                             .kind = c->kind,
                             .weigh_inputs = weigh_inputs,
                             .shape = ACT_SHAPE_PUBLISHED};
    BOTH(&p, moe_ffn, a, a.gate_up = up.w[b]; a.down = down.w[b]; a.x = x.t[b]; a.y = y.t[b];
         a.ids = ids[b]; a.weights = weights[b]);
    char what[128];
    snprintf(what, sizeof what, "%d rows of experts of %s and %s, dtype %d", c->n_rows,
             formats[c->up].name, formats[c->down].name, dtype);
    check_tensor(&p, what, &y, c->hidden, 1.5 * pair_tolerance(&p));
    free(id);
    free(weight);
    pair_close(&p);
}

/* Formats that models with experts are published in. */
TEST(quantised_experts_agree)
{
    NEED_GPU();
    static const struct experts_case cases[] = {
        {12, 12, 3, 6, 2, 96, 64, ACT_GPT_OSS},    {12, 12, 200, 5, 3, 352, 96, ACT_GPT_OSS},
        {2, 2, 1, 4, 2, 256, 384, ACT_SILU},       {2, 2, 400, 5, 2, 160, 192, ACT_SILU},
        {5, 5, 33, 4, 3, 256, 128, ACT_GELU_TANH}, {6, 6, 300, 4, 2, 64, 192, ACT_SILU},
        {5, 13, 20, 4, 2, 128, 128, ACT_SILU},     {13, 0, 260, 3, 2, 128, 128, ACT_SILU},
        {14, 14, 20, 4, 2, 128, 128, ACT_SILU},
    };
    for (int32_t i = 0; i < COUNT(cases); i++) {
        experts_case(&cases[i], i % 2 ? DT_F16 : DT_BF16, false);
        experts_case(&cases[i], i % 2 ? DT_F16 : DT_BF16, true);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
