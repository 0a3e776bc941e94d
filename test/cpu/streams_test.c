// SPDX-License-Identifier: Apache-2.0
/* Several residual streams, and MLPs of which few gates are open, against their formulas in double
 * precision. */
#include "test/device/op_harness.h"

/* The row's coefficients. */
static void coefs_ref(const float *in, const float *router, const float *coefs, int32_t n,
                      int32_t n_out, int32_t width, double scale, double *out)
{
    double m[MAX_STREAMS] = {0};
    for (int32_t k = 0; k < n; k++) {
        for (int32_t i = 0; i < width; i++) {
            m[k] += (double)in[i] * (double)router[k * width + i];
        }
        m[k] = tanh(scale * m[k]);
    }
    for (int32_t i = 0; i < n_out; i++) {
        out[i] = 0.0;
        for (int32_t k = 0; k < n; k++) {
            out[i] += (double)coefs[i * n + k] * m[k];
        }
    }
}

/* Column `at` of a row: its streams in `s`, and x, become what they are after the op. */
static void column_ref(const struct streams_args *a, const double *c, double scale, double *s,
                       double *x)
{
    double old[MAX_STREAMS];
    memcpy(old, s, sizeof old);
    for (int32_t i = 0; i < a->n; i++) {
        if (a->after) {
            s[i] += (1.0 + c[i]) * (*x - old[a->active]);
        } else {
            for (int32_t j = 0; j < a->n; j++) {
                s[i] += c[i * a->n + j] * old[j];
            }
        }
    }
    *x = s[a->active] * scale;
}

static void try_streams(struct op_rig *rig, int32_t n, bool after, bool scaled)
{
    const int32_t width = op_int(1, 300), rows = op_int(1, 5), all = n * width;
    const int32_t n_coefs = after ? n : n * n;
    struct streams_args a = {.n_rows = rows,
                             .width = width,
                             .n = n,
                             .active = op_int(0, n - 1),
                             .router_scale = 1.0f / (float)width,
                             .after = after};
    float *streams = op_random((size_t)(rows * all), 1.0f),
          *x = op_random((size_t)(rows * width), 1.0f);
    float *in = op_random((size_t)(rows * width), 1.0f);
    float *router = op_random((size_t)all, sqrtf((float)width));
    float *coefs = op_random((size_t)(n_coefs * n), 0.5f), *scale = op_random((size_t)width, 1.0f);
    double *wanted = xcalloc((size_t)(rows * all), sizeof *wanted);
    double *wanted_x = xcalloc((size_t)(rows * width), sizeof *wanted_x);
    for (int32_t r = 0; r < rows; r++) {
        double c[MAX_STREAMS * MAX_STREAMS];
        coefs_ref(in + r * width, router, coefs, n, n_coefs, width, 1.0 / width, c);
        for (int32_t at = 0; at < width; at++) {
            double s[MAX_STREAMS] = {0}, now = (double)x[r * width + at];
            for (int32_t i = 0; i < n; i++) {
                s[i] = (double)streams[r * all + i * width + at];
            }
            column_ref(&a, c, after && scaled ? (double)scale[at] : 1.0, s, &now);
            for (int32_t i = 0; i < n; i++) {
                wanted[r * all + i * width + at] = s[i];
            }
            wanted_x[r * width + at] = now;
        }
    }
    a.streams = op_tensor(rig, streams, rows, all, all + 3);
    a.x = op_tensor(rig, x, rows, width, width + 1);
    a.in = op_tensor(rig, in, rows, width, width + 2);
    a.router = op_vector(rig, router, all);
    a.coefs = op_vector(rig, coefs, n_coefs * n);
    a.scale = after && scaled ? op_vector(rig, scale, width) : NULL;
    CHECK_EQ(rig->ops->streams(rig->be, &a), OK);
    float *out = op_fetch(rig, a.streams, rows, all), *out_x = op_fetch(rig, a.x, rows, width);
    CHECK(op_distance(out, wanted, (size_t)(rows * all)) < 2e-5);
    CHECK(op_distance(out_x, wanted_x, (size_t)(rows * width)) < 2e-5);
    void *const used[] = {streams, x, in, router, coefs, scale, wanted, wanted_x, out, out_x};
    for (size_t i = 0; i < sizeof used / sizeof used[0]; i++) {
        free(used[i]);
    }
}

OP_TEST(streams_follow_their_formulas)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    for (int32_t i = 0; i < 48; i++) {
        try_streams(&rig, 2 + i % 7, i % 2 == 1, i % 4 == 1);
    }
    op_close(&rig);
}

static double rms_ref(const float *x, int32_t n, double floor)
{
    double square = 0.0;
    for (int32_t i = 0; i < n; i++) {
        square += (double)x[i] * (double)x[i] / n;
    }
    return sqrt(square < floor ? floor : square);
}

/* Rows of any size, also those below the floor. */
OP_TEST(sizes_are_matched)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    for (int32_t i = 0; i < 24; i++) {
        const int32_t width = op_int(1, 200), rows = op_int(1, 5);
        const size_t n = (size_t)(rows * width);
        float *x = op_random(n, i % 3 ? 1.0f : 1e-3f), *like = op_random(n, 3.0f);
        double *wanted = xcalloc(n, sizeof *wanted);
        for (int32_t r = 0; r < rows; r++) {
            const double factor =
                rms_ref(like + r * width, width, 0.0) / rms_ref(x + r * width, width, 1e-5);
            for (int32_t c = 0; c < width; c++) {
                wanted[r * width + c] = (double)x[r * width + c] * factor;
            }
        }
        struct rms_match_args a = {.x = op_tensor(&rig, x, rows, width, width + 1),
                                   .like = op_tensor(&rig, like, rows, width, width + 2),
                                   .n_rows = rows,
                                   .width = width,
                                   .floor = 1e-5f};
        a.out = i % 2 ? a.x : op_tensor(&rig, NULL, rows, width, width);
        CHECK_EQ(rig.ops->rms_match(rig.be, &a), OK);
        float *out = op_fetch(&rig, a.out, rows, width);
        CHECK(op_distance(out, wanted, n) < 2e-5);
        free(out);
        free(wanted);
        free(x);
        free(like);
    }
    op_close(&rig);
}

/* Also for rows of equal elements, of which none stands out. */
OP_TEST(few_elements_stand_out)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    for (int32_t i = 0; i < 24; i++) {
        const int32_t width = op_int(1, 400), rows = op_int(1, 5);
        const size_t n = (size_t)(rows * width);
        const float deviations = (float)op_int(-2, 3) * 0.7f;
        float *x = op_random(n, 1.0f);
        double *wanted = xcalloc(n, sizeof *wanted);
        for (int32_t r = 0; r < rows; r++) {
            float *row = x + r * width;
            double mean = 0.0, square = 0.0;
            for (int32_t c = 0; c < width; c++) {
                row[c] = i % 6 ? row[c] + 2.0f : 2.0f;
                mean += (double)row[c] / width;
            }
            for (int32_t c = 0; c < width; c++) {
                square += ((double)row[c] - mean) * ((double)row[c] - mean) / width;
            }
            for (int32_t c = 0; c < width; c++) {
                wanted[r * width + c] =
                    fmax((double)row[c] - mean - (double)deviations * sqrt(square), 0.0);
            }
        }
        const struct cutoff_args a = {.x = op_tensor(&rig, x, rows, width, width + 1),
                                      .n_rows = rows,
                                      .width = width,
                                      .deviations = deviations};
        CHECK_EQ(rig.ops->cutoff(rig.be, &a), OK);
        float *out = op_fetch(&rig, a.x, rows, width);
        CHECK(op_distance(out, wanted, n) < 2e-5);
        free(out);
        free(wanted);
        free(x);
    }
    op_close(&rig);
}

/* A row with a number that is none ends as such. */
OP_TEST(what_is_no_number_stays_so)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    float x[2][40] = {{0}};
    x[1][7] = NAN;
    const struct cutoff_args a = {
        .x = op_tensor(&rig, x[0], 2, 40, 40), .n_rows = 2, .width = 40, .deviations = 1.0f};
    CHECK_EQ(rig.ops->cutoff(rig.be, &a), OK);
    float *out = op_fetch(&rig, a.x, 2, 40);
    for (int32_t i = 0; i < 40; i++) {
        CHECK(isfinite(out[i]) && isnan(out[40 + i]));
    }
    free(out);
    op_close(&rig);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
