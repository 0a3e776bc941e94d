// SPDX-License-Identifier: Apache-2.0
// test/run: long
/* Products: values, odd shapes, padding, segments of K, and equal bits for any number of rows. */
#include "engine/device/ops_default.h"
#include "test/device/op_harness.h"

/* The shape of a product. K may be cut into segments, whose sums are rounded one after another. */
struct shape {
    int32_t rows, n_out, n_in, segments;
    enum dtype dtype;
    bool bias, accumulate;
};

/* The product in double precision, with inputs rounded to the format first. */
static void naive(const struct shape *s, const float *x, const float *w, const float *bias,
                  const float *before, double *y)
{
    double *in = xcalloc(s->n_in, sizeof *in);
    for (int32_t r = 0; r < s->rows; r++) {
        for (int32_t k = 0; k < s->n_in; k++) {
            in[k] = (double)op_rounded(s->dtype, x[(size_t)r * s->n_in + k]);
        }
        for (int32_t o = 0; o < s->n_out; o++) {
            double sum = bias ? (double)bias[o] : 0.0;
            for (int32_t k = 0; k < s->n_in; k++) {
                sum += in[k] * (double)w[(size_t)o * s->n_in + k];
            }
            y[(size_t)r * s->n_out + o] =
                sum + (before ? (double)before[(size_t)r * s->n_out + o] : 0.0);
        }
    }
    free(in);
}

/* y has padding, which must stay as it is. */
static void try_shape(const char *backend, const struct shape *s)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, s->dtype, &limits);
    size_t n_x = (size_t)s->rows * s->n_in, n_y = (size_t)s->rows * s->n_out;
    float *x = op_random(n_x, 1.0f), *before = op_random(n_y, 1.0f);
    float *w = op_random((size_t)s->n_out * s->n_in, 1.0f / sqrtf((float)s->n_in));
    float *bias = s->bias ? op_random(s->n_out, 1.0f) : NULL;
    struct weight *weight =
        op_weight(&rig, WEIGHT_LINEAR, s->dtype, w, 1, s->n_out, s->n_in, bias, s->segments);
    struct linear_args a = {
        .weight = weight,
        .x = op_tensor(&rig, x, s->rows, s->n_in, s->n_in + 3),
        .y = op_tensor(&rig, s->accumulate ? before : NULL, s->rows, s->n_out, s->n_out + 5),
        .n_rows = s->rows,
        .accumulate = s->accumulate,
    };
    CHECK_EQ(rig.ops->linear(rig.be, &a), OK);
    float *y = op_fetch(&rig, a.y, s->rows, s->n_out);
    double *wanted = xcalloc(n_y, sizeof *wanted);
    naive(s, x, w, bias, s->accumulate ? before : NULL, wanted);
    double d = op_distance(y, wanted, n_y);
    if (!(d < 2e-5)) {
        CHECK_FAIL("%s: %d x %d x %d, type %d, %d segments: off by %g", backend, s->rows, s->n_out,
                   s->n_in, s->dtype, s->segments, d);
    }
    free(x);
    free(before);
    free(w);
    free(bias);
    free(y);
    free(wanted);
    op_close(&rig);
}

/* Rows around the sizes of register tiles. */
OP_TEST(products_equal_a_naive_sum)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    static const int32_t rows[] = {1, 2, 3, 5, 7, 16, 33, 97};
    for (int32_t i = 0; i < 48; i++) {
        struct shape s = {.rows = rows[i % 8],
                          .n_out = op_int(1, 200),
                          .segments = 1 << op_int(0, 3),
                          .dtype = types[i % 3],
                          .bias = op_int(0, 1) == 1,
                          .accumulate = op_int(0, 2) == 0};
        s.n_in = s.segments * op_int(1, 70);
        try_shape(backend, &s);
    }
    try_shape(backend, &(struct shape){530, 70, 600, 2, DT_BF16, true, false});
    try_shape(backend, &(struct shape){530, 70, 600, 1, DT_F32, true, false});
    try_shape(backend, &(struct shape){130, 200, 4200, 4, DT_BF16, true, true});
    try_shape(backend, &(struct shape){200, 130, 2100, 1, DT_BF16, false, false});
}

/* A row's bits do not depend on the number of rows computed with it. */
static void check_invariance(const char *backend, enum dtype dtype, int32_t n_in, int32_t segments)
{
    enum { N_OUT = 150, MOST_IN = 4200 };
    static const int32_t counts[] = {1, 2, 7, 16, 256, 2048};
    static float *x; // the same numbers for all: drawing them takes longer than the products
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, dtype, &limits);
    x = x ? x : op_random((size_t)2048 * MOST_IN, 1.0f);
    float *w = op_random((size_t)N_OUT * n_in, 0.05f);
    struct linear_args a = {
        .weight = op_weight(&rig, WEIGHT_LINEAR, dtype, w, 1, N_OUT, n_in, NULL, segments),
        .x = op_tensor(&rig, x, 2048, n_in, n_in),
        .y = op_tensor(&rig, NULL, 2048, N_OUT, N_OUT),
    };
    float *all = NULL;
    int32_t last = strcmp(backend, "scalar") == 0 ? 4 : 5;
    for (int32_t i = last; i >= 0; i--) {
        a.n_rows = counts[i];
        CHECK_EQ(rig.ops->linear(rig.be, &a), OK);
        float *y = op_fetch(&rig, a.y, counts[i], N_OUT);
        if (!all) {
            all = y;
            continue;
        }
        CHECK_MEM(y, all, (size_t)counts[i] * N_OUT * sizeof *y);
        free(y);
    }
    /* Single rows alone. */
    for (int32_t row = 1; row < counts[last]; row = row * 3 + 1) {
        struct linear_args one = a;
        one.n_rows = 1;
        one.x.mem = dmem_at(a.x.mem, (size_t)row * n_in * sizeof(float));
        CHECK_EQ(rig.ops->linear(rig.be, &one), OK);
        float *y = op_fetch(&rig, one.y, 1, N_OUT);
        CHECK_MEM(y, all + (size_t)row * N_OUT, N_OUT * sizeof *y);
        free(y);
    }
    free(all);
    free(w);
    op_close(&rig);
}

/* Bits do not depend on which other rows are in the batch. The last shape needs more than
 * one round over K. */
OP_TEST(a_row_has_the_same_bits_in_every_batch)
{
    check_invariance(backend, DT_F32, 1088, 1);
    check_invariance(backend, DT_BF16, 1088, 1);
    check_invariance(backend, DT_BF16, 1088, 8);
    check_invariance(backend, DT_BF16, 4200, 1); // more than one round of blocks
    check_invariance(backend, DT_BF16, 4200, 2);
    check_invariance(backend, DT_F16, 1088, 2);
}

/* The activation has the same bits whether it is a separate op or fused. */
static void try_activation(const char *backend, int32_t rows, int32_t width, bool is_gated)
{
    enum { N_IN = 160 };
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    int32_t n_out = is_gated ? 2 * width : width;
    float *x = op_random((size_t)rows * N_IN, 1.0f), *w = op_random((size_t)n_out * N_IN, 0.1f);
    struct linear_args a = {
        .weight = op_weight(&rig, WEIGHT_LINEAR, DT_BF16, w, 1, n_out, N_IN, NULL, 2),
        .x = op_tensor(&rig, x, rows, N_IN, N_IN + 3),
        .y = op_tensor(&rig, NULL, rows, n_out, n_out + 1),
        .n_rows = rows,
    };
    struct activation_args act = {.x = a.y,
                                  .out = op_tensor(&rig, NULL, rows, width, width + 5),
                                  .n_rows = rows,
                                  .width = width,
                                  .kind = ACT_SILU,
                                  .gated = is_gated};
    CHECK_EQ(ops_linear_act(rig.be, &a, &act), OK);
    float *fused = op_fetch(&rig, act.out, rows, width);
    CHECK_EQ(rig.ops->linear(rig.be, &a), OK);
    CHECK_EQ(rig.ops->activation(rig.be, &act), OK);
    float *apart = op_fetch(&rig, act.out, rows, width);
    CHECK_MEM(fused, apart, (size_t)rows * width * sizeof *fused);
    free(fused);
    free(apart);
    free(x);
    free(w);
    op_close(&rig);
}

/* More rows than a band, or than two of them; the scalar table, which takes most of the time, and
 * whose bands are shorter, gets the largest number only at night. */
static int32_t most_rows(const char *backend, int32_t most)
{
    return check_nightly() || strcmp(backend, "scalar") != 0 ? most : 530;
}

/* Fusion must not change the rounding between the ops. */
OP_TEST(an_activation_has_the_same_bits_fused_with_its_product)
{
    const int32_t rows[] = {1, 127, 128, 211, most_rows(backend, 1100)};
    for (int32_t i = 0; i < 5; i++) {
        try_activation(backend, rows[i], 320, true);
        try_activation(backend, rows[i], 288, true);
        try_activation(backend, rows[i], 40, true);
        try_activation(backend, rows[i], 72, false);
    }
}

/* An MLP computed by one op must have the bits of three ops. */
static void try_mlp(const char *backend, int32_t rows, int32_t width, bool is_gated,
                    int32_t segments)
{
    enum { N_IN = 160, N_DOWN = 200 };
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    int32_t n_up = is_gated ? 2 * width : width;
    float *x = op_random((size_t)rows * N_IN, 1.0f), *w_up = op_random((size_t)n_up * N_IN, 0.1f);
    float *w_down = op_random((size_t)N_DOWN * width, 0.1f);
    struct linear_args up = {
        .weight = op_weight(&rig, WEIGHT_LINEAR, DT_BF16, w_up, 1, n_up, N_IN, NULL, 1),
        .x = op_tensor(&rig, x, rows, N_IN, N_IN + 3),
        .y = op_tensor(&rig, NULL, rows, n_up, n_up + 1),
        .n_rows = rows,
    };
    struct activation_args act = {.x = up.y,
                                  .out = op_tensor(&rig, NULL, rows, width, width + 5),
                                  .n_rows = rows,
                                  .width = width,
                                  .kind = ACT_SILU,
                                  .gated = is_gated};
    struct linear_args down = {
        .weight = op_weight(&rig, WEIGHT_LINEAR, DT_BF16, w_down, 1, N_DOWN, width, NULL, segments),
        .x = act.out,
        .y = op_tensor(&rig, NULL, rows, N_DOWN, N_DOWN + 1),
        .n_rows = rows,
    };
    CHECK_EQ(ops_mlp(rig.be, &up, &act, &down), OK);
    float *fused = op_fetch(&rig, down.y, rows, N_DOWN);
    CHECK_EQ(rig.ops->linear(rig.be, &up), OK);
    CHECK_EQ(rig.ops->activation(rig.be, &act), OK);
    CHECK_EQ(rig.ops->linear(rig.be, &down), OK);
    float *apart = op_fetch(&rig, down.y, rows, N_DOWN);
    CHECK_MEM(fused, apart, (size_t)rows * N_DOWN * sizeof *fused);
    free(fused);
    free(apart);
    free(x);
    free(w_up);
    free(w_down);
    op_close(&rig);
}

/* The fused MLP must have the bits of its product, activation and product. */
OP_TEST(an_mlp_has_the_same_bits_as_its_three_ops)
{
    const int32_t rows[] = {1, 127, 128, 211, most_rows(backend, 2200)};
    for (int32_t i = 0; i < 5; i++) {
        try_mlp(backend, rows[i], 320, true, 1);
        try_mlp(backend, rows[i], 320, true, 2);
        try_mlp(backend, rows[i], 320, true, 4); // segments that are padded
        try_mlp(backend, rows[i], 40, true, 1);
        try_mlp(backend, rows[i], 96, false, 1);
    }
    try_mlp(backend, 131, 4224, true, 1); // several parts of K
}

/* A norm and the product (or MLP) after it have the same bits as one op and as two, including the
 * residual that the norm updates. */
static void try_norm_linear(const char *backend, int32_t rows, bool is_mlp)
{
    enum { N_IN = 168, WIDTH = 320, N_UP = 2 * WIDTH, N_DOWN = 200 };
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    float *x = op_random((size_t)rows * N_IN, 1.0f), *delta = op_random((size_t)rows * N_IN, 1.0f);
    float *w_norm = op_random(N_IN, 1.0f), *w_up = op_random((size_t)N_UP * N_IN, 0.1f);
    float *w_down = op_random((size_t)N_DOWN * WIDTH, 0.1f), *y[2], *sum[2];
    struct tensor h = op_tensor(&rig, NULL, rows, N_IN, N_IN + 2);
    struct norm_args norm = {.delta = op_tensor(&rig, delta, rows, N_IN, N_IN + 4),
                             .out = h,
                             .weight = op_vector(&rig, w_norm, N_IN),
                             .n_rows = rows,
                             .width = N_IN,
                             .eps = 1e-5f,
                             .delta_scale = 0.5f};
    struct linear_args up = {
        .weight = op_weight(&rig, WEIGHT_LINEAR, DT_BF16, w_up, 1, N_UP, N_IN, NULL, 1),
        .x = h,
        .y = op_tensor(&rig, NULL, rows, N_UP, N_UP + 1),
        .n_rows = rows,
    };
    struct activation_args act = {.x = up.y,
                                  .out = op_tensor(&rig, NULL, rows, WIDTH, WIDTH),
                                  .n_rows = rows,
                                  .width = WIDTH,
                                  .kind = ACT_SILU,
                                  .gated = true};
    struct linear_args down = {
        .weight = op_weight(&rig, WEIGHT_LINEAR, DT_BF16, w_down, 1, N_DOWN, WIDTH, NULL, 1),
        .x = act.out,
        .y = op_tensor(&rig, NULL, rows, N_DOWN, N_DOWN),
        .n_rows = rows,
    };
    for (int fused = 0; fused < 2; fused++) {
        norm.x = op_tensor(&rig, x, rows, N_IN, N_IN + 1);
        if (fused) {
            CHECK_EQ(
                ops_norm_linear(rig.be, &norm, &up, is_mlp ? &act : NULL, is_mlp ? &down : NULL),
                OK);
        } else {
            CHECK_EQ(rig.ops->norm(rig.be, &norm), OK);
            CHECK_EQ(is_mlp ? ops_mlp(rig.be, &up, &act, &down) : rig.ops->linear(rig.be, &up), OK);
        }
        if (is_mlp) {
            y[fused] = op_fetch(&rig, down.y, rows, N_DOWN);
        } else {
            y[fused] = op_fetch(&rig, up.y, rows, N_UP);
        }
        sum[fused] = op_fetch(&rig, norm.x, rows, N_IN);
    }
    CHECK_MEM(y[0], y[1], (size_t)rows * (is_mlp ? N_DOWN : N_UP) * sizeof *y[0]);
    CHECK_MEM(sum[0], sum[1], (size_t)rows * N_IN * sizeof *sum[0]);
    for (int fused = 0; fused < 2; fused++) {
        free(y[fused]);
        free(sum[fused]);
    }
    free(x);
    free(delta);
    free(w_norm);
    free(w_up);
    free(w_down);
    op_close(&rig);
}

/* The norm is computed row by row before the product's packing, with the same rounding. */
OP_TEST(a_norm_joined_to_products_has_their_bits)
{
    const int32_t rows[] = {1, 127, 128, 211, most_rows(backend, 2100)};
    for (int32_t i = 0; i < 5; i++) {
        try_norm_linear(backend, rows[i], false);
        try_norm_linear(backend, rows[i], true);
    }
}

/* In a checkpoint whose header has an odd length, numbers are not aligned; they may also have
 * another type than the weight. */
static void check_stored_anywhere(const char *backend, enum dtype from)
{
    enum { N_OUT = 9, N_IN = 21 };
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_F32, &limits);
    float *x = op_random(N_IN, 1.0f), *w = op_random((size_t)N_OUT * N_IN, 0.5f);
    size_t n_bytes = (size_t)N_OUT * N_IN * dtype_bytes(from);
    char *odd = xmalloc(n_bytes + 1);
    void *stored = op_stored(from, w, (size_t)N_OUT * N_IN);
    memcpy(odd + 1, stored, n_bytes);
    struct weight_part part = weight_part_plain(odd + 1, from, N_OUT, N_IN, N_IN);
    struct weight_desc d = {.name = "odd",
                            .kind = WEIGHT_LINEAR,
                            .dtype = DT_F32,
                            .n_out = N_OUT,
                            .n_in = N_IN,
                            .n_experts = 1,
                            .n_parts = 1,
                            .parts = &part,
                            .k_segments = 1};
    struct weight *weight;
    struct err err;
    CHECK_EQ(rig.ops->weight_open(rig.be, &d, &weight, &err), OK);
    struct linear_args a = {.weight = weight,
                            .x = op_tensor(&rig, x, 1, N_IN, N_IN),
                            .y = op_tensor(&rig, NULL, 1, N_OUT, N_OUT),
                            .n_rows = 1};
    CHECK_EQ(rig.ops->linear(rig.be, &a), OK);
    float *y = op_fetch(&rig, a.y, 1, N_OUT);
    for (int32_t o = 0; o < N_OUT; o++) {
        double sum = 0.0;
        for (int32_t k = 0; k < N_IN; k++) {
            sum += (double)x[k] * (double)op_rounded(from, w[o * N_IN + k]);
        }
        CHECK_NEAR(y[o], sum, 1e-5);
    }
    free(x);
    free(w);
    free(odd);
    free(stored);
    free(y);
    op_close(&rig);
}

/* Tensors of a file are not aligned to their element's size. */
OP_TEST(tensors_of_a_file_need_no_alignment)
{
    check_stored_anywhere(backend, DT_F32);
    check_stored_anywhere(backend, DT_BF16);
    check_stored_anywhere(backend, DT_F16);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
