/* Products: values, odd shapes, padding, segments of K, and equal bits for any number of rows. */
#include "test/op/op_harness.h"

struct shape {
    int32_t rows, n_out, n_in, segments;
    enum dtype dtype;
    bool bias, accumulate;
};

static void naive(const struct shape *s, const float *x, const float *w, const float *bias,
                  const float *before, double *y)
{
    for (int32_t r = 0; r < s->rows; r++) {
        for (int32_t o = 0; o < s->n_out; o++) {
            double sum = bias ? (double)bias[o] : 0.0;
            for (int32_t k = 0; k < s->n_in; k++) {
                sum += (double)op_rounded(s->dtype, x[(size_t)r * s->n_in + k]) *
                       (double)w[(size_t)o * s->n_in + k];
            }
            y[(size_t)r * s->n_out + o] = sum + (before ? (double)before[(size_t)r * s->n_out + o] : 0.0);
        }
    }
}

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
}

/* The rows' bits are the same whatever number of rows is computed with them. */
static void check_invariance(const char *backend, enum dtype dtype, int32_t segments)
{
    enum { N_OUT = 150, N_IN = 1088 };
    static const int32_t counts[] = {1, 2, 7, 16, 256, 2048};
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, dtype, &limits);
    float *x = op_random((size_t)2048 * N_IN, 1.0f);
    float *w = op_random((size_t)N_OUT * N_IN, 0.05f);
    struct linear_args a = {
        .weight = op_weight(&rig, WEIGHT_LINEAR, dtype, w, 1, N_OUT, N_IN, NULL, segments),
        .x = op_tensor(&rig, x, 2048, N_IN, N_IN),
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
    /* Any one row alone. */
    for (int32_t row = 1; row < counts[last]; row = row * 3 + 1) {
        struct linear_args one = a;
        one.n_rows = 1;
        one.x.mem = dmem_at(a.x.mem, (size_t)row * N_IN * sizeof(float));
        CHECK_EQ(rig.ops->linear(rig.be, &one), OK);
        float *y = op_fetch(&rig, one.y, 1, N_OUT);
        CHECK_MEM(y, all + (size_t)row * N_OUT, N_OUT * sizeof *y);
        free(y);
    }
    free(all);
    free(x);
    free(w);
    op_close(&rig);
}

OP_TEST(a_row_has_the_same_bits_in_every_batch)
{
    check_invariance(backend, DT_F32, 1);
    check_invariance(backend, DT_BF16, 1);
    check_invariance(backend, DT_BF16, 8);
    check_invariance(backend, DT_F16, 2);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
