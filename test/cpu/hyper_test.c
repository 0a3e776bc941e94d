// SPDX-License-Identifier: Apache-2.0
/* Hyper-connections, compared with their formulas in double precision. */
#include "engine/base/minmax.h"
#include "test/device/op_harness.h"

enum { MAX_ROWS_OF_FN = MAX_HYPER * (2 + MAX_HYPER) };

/* One case, with its inputs, and the results in double precision. */
struct hyper_case {
    int32_t rows, width, n, n_fn;
    float *streams, *delta, *gates, *fn, *base, *scale, *norm;
    double *wanted, *x, *out, *left; // streams, x, out and gates afterwards
};

static double logistic(double z)
{
    return 1.0 / (1.0 + exp(-z));
}

static void add_ref(const struct hyper_args *a, const struct hyper_case *c, int32_t row)
{
    const int32_t all = c->n * c->width;
    const float *gates = c->gates + row * HYPER_GATES(c->n);
    for (int32_t k = 0; k < c->n; k++) {
        for (int32_t i = 0; i < c->width; i++) {
            double sum = a->begins ? 1.0 : (double)gates[k];
            sum *= (double)c->delta[row * c->width + i];
            for (int32_t j = 0; j < c->n && !a->begins; j++) {
                const double crossed = (double)gates[c->n + j * c->n + k], kept = j == k;
                sum += (a->n_sinkhorn > 0 ? crossed : kept) *
                       (double)c->streams[row * all + j * c->width + i];
            }
            c->wanted[row * all + k * c->width + i] = sum;
        }
    }
}

/* Divides the rows, or the columns, by their sums. */
static void divide(double *m, int32_t n, bool by_rows, double eps)
{
    for (int32_t i = 0; i < n; i++) {
        double sum = eps;
        for (int32_t j = 0; j < n; j++) {
            sum += by_rows ? m[i * n + j] : m[j * n + i];
        }
        for (int32_t j = 0; j < n; j++) {
            m[by_rows ? i * n + j : j * n + i] /= sum;
        }
    }
}

static void cross_ref(const struct hyper_args *a, const double *z, double *cross)
{
    for (int32_t i = 0; i < a->n * a->n; i++) {
        cross[i] = exp(z[i]);
    }
    divide(cross, a->n, true, 0.0);
    for (int32_t i = 0; i < a->n * a->n; i++) {
        cross[i] += (double)a->eps;
    }
    for (int32_t i = 0; i < 2 * a->n_sinkhorn - 1; i++) {
        divide(cross, a->n, i % 2 == 1, (double)a->eps);
    }
}

static void mix_ref(const struct hyper_args *a, const struct hyper_case *c, int32_t row)
{
    const int32_t n = c->n, all = n * c->width;
    const double *streams = c->wanted + row * all;
    double *left = c->left + row * HYPER_GATES(n), z[MAX_ROWS_OF_FN], square = 0.0;
    for (int32_t i = 0; i < all; i++) {
        square += streams[i] * streams[i] / all;
    }
    for (int32_t g = 0; g < c->n_fn; g++) {
        z[g] = 0.0;
        for (int32_t i = 0; i < all; i++) {
            z[g] += (double)c->fn[g * all + i] * streams[i] / sqrt(square + (double)a->norm_eps);
        }
        z[g] = z[g] * (double)c->scale[lesser(g / n, 2)] + (double)c->base[g];
    }
    for (int32_t k = 0; k < n && !a->ends; k++) {
        left[k] = (double)a->magnitude * logistic(z[n + k]) + (double)a->after_eps;
    }
    if (a->n_sinkhorn > 0 && !a->ends) {
        cross_ref(a, z + 2 * n, left + n);
    }
    square = 0.0;
    for (int32_t i = 0; i < c->width; i++) {
        double *x = &c->x[row * c->width + i];
        for (int32_t k = 0; k < n; k++) {
            *x += (logistic(z[k]) + (double)a->eps) * streams[k * c->width + i];
        }
        square += *x * *x / c->width;
    }
    for (int32_t i = 0; i < c->width; i++) {
        c->out[row * c->width + i] =
            c->x[row * c->width + i] * (double)c->norm[i] / sqrt(square + (double)a->norm_eps);
    }
}

static struct hyper_case case_of(const struct hyper_args *a)
{
    const int32_t n = a->n, all = n * a->width;
    const int32_t of_cross = a->n_sinkhorn > 0 ? n * n : 0;
    struct hyper_case c = {
        .rows = a->n_rows, .width = a->width, .n = n, .n_fn = a->ends ? n : 2 * n + of_cross};
    c.streams = op_random((size_t)(c.rows * all), 1.0f);
    c.delta = op_random((size_t)(c.rows * a->width), 1.0f);
    c.gates = op_random((size_t)(c.rows * HYPER_GATES(n)), 0.5f);
    c.fn = op_random((size_t)(c.n_fn * all), 0.3f);
    c.base = op_random((size_t)c.n_fn, 1.0f);
    c.scale = op_random(3, 1.0f);
    c.norm = op_random((size_t)a->width, 1.0f);
    c.wanted = xcalloc((size_t)(c.rows * all), sizeof *c.wanted);
    c.x = xcalloc((size_t)(c.rows * a->width), sizeof *c.x);
    c.out = xcalloc((size_t)(c.rows * a->width), sizeof *c.out);
    c.left = xcalloc((size_t)(c.rows * HYPER_GATES(n)), sizeof *c.left);
    return c;
}

static void free_case(struct hyper_case *c)
{
    void *const all[] = {c->streams, c->delta,  c->gates, c->fn,  c->base, c->scale,
                         c->norm,    c->wanted, c->x,     c->out, c->left};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
}

static void near(struct op_rig *rig, struct tensor t, int32_t rows, int32_t width,
                 const double *wanted)
{
    float *have = op_fetch(rig, t, rows, width);
    CHECK(op_distance(have, wanted, (size_t)(rows * width)) < 1e-5);
    free(have);
}

/* adds: a result is added first; mixes: the next sub-layer's input is made. */
static void try_hyper(struct op_rig *rig, struct hyper_args a, bool adds, bool mixes, bool keeps_x)
{
    struct hyper_case c = case_of(&a);
    const int32_t all = a.n * a.width, n_gates = HYPER_GATES(a.n);
    const int32_t n_left = a.n_sinkhorn > 0 ? n_gates : a.n; // gates of a row that are read
    for (int32_t i = 0; i < c.rows * all; i++) {
        c.wanted[i] = (double)c.streams[i];
    }
    for (int32_t row = 0; row < c.rows; row++) {
        if (adds) {
            add_ref(&a, &c, row);
        }
        if (mixes) {
            mix_ref(&a, &c, row);
        }
    }
    a.streams = op_tensor(rig, c.streams, c.rows, all, all + 3);
    a.gates = op_tensor(rig, c.gates, c.rows, n_gates, n_gates);
    if (adds) {
        a.delta = op_tensor(rig, c.delta, c.rows, a.width, a.width + 1);
    }
    if (mixes) {
        a.fn = op_vector(rig, c.fn, c.n_fn * all);
        a.base = op_vector(rig, c.base, c.n_fn);
        a.scale = op_vector(rig, c.scale, 3);
        a.norm = op_vector(rig, c.norm, a.width);
        a.out = a.ends ? a.out : op_tensor(rig, NULL, c.rows, a.width, a.width + 2);
    }
    if (mixes && (keeps_x || a.ends)) {
        a.x = op_tensor(rig, NULL, c.rows, a.width, a.width + 5);
    }
    CHECK_EQ(rig->ops->hyper(rig->be, &a), OK);
    near(rig, a.streams, c.rows, all, c.wanted);
    if (a.out.mem.p) {
        near(rig, a.out, c.rows, a.width, c.out);
    }
    if (a.x.mem.p) {
        near(rig, a.x, c.rows, a.width, c.x);
    }
    if (mixes && !a.ends) {
        struct tensor first = a.gates;
        float *left = op_fetch(rig, first, c.rows, n_gates);
        for (int32_t i = 0; i < c.rows * n_gates; i++) {
            if (i % n_gates < n_left) {
                CHECK_NEAR(left[i], c.left[i], 1e-5);
            }
        }
        free(left);
    }
    free_case(&c);
}

OP_TEST(hyper_connections_follow_their_formulas)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    for (int32_t i = 0; i < 96; i++) {
        const struct hyper_args a = {.n_rows = op_int(1, 5),
                                     .width = op_int(1, 90) * (i % 7 == 0 ? 7 : 1),
                                     .n = 1 + i % MAX_HYPER,
                                     .n_sinkhorn = i / 4 % 3 == 0 ? 0 : op_int(1, 20),
                                     .begins = i % 5 == 1,
                                     .ends = i % 6 == 5,
                                     .norm_eps = 1e-5f,
                                     .eps = i % 2 ? 1e-6f : 1e-2f,
                                     .magnitude = 1.5f,
                                     .after_eps = i % 3 ? 0.0f : 1e-2f};
        try_hyper(&rig, a, i % 4 != 3 || i % 5 == 1, i % 8 != 2, i % 3 == 0);
    }
    op_close(&rig);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
