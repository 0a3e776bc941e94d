// SPDX-License-Identifier: Apache-2.0
/* Hyper-connections, compared with the scalar backend; and a row's bits, which must not depend on
 * the other rows. */
#include "test/cuda/cuda_layers.h"

/* The memory and the weights of a case. */
struct hyper_bed {
    struct pair p;
    struct hyper_args a;
    int32_t n_fn;
    struct pair_tensor streams, delta, gates, x, out;
    struct pair_weight fn, base, scale, norm;
};

/* Gates that a sub-layer before might have left. */
static struct pair_tensor gates_random(struct pair *p, int32_t n_rows, int32_t width)
{
    struct pair_tensor t = tensor_make(p, n_rows, width, DT_F32);
    float *values = xcalloc((size_t)(n_rows * width) + 4, sizeof *values);
    for (int32_t i = 0; COMPARED && i < n_rows * width; i++) {
        values[i] = random_float(77, i, 0.5f, DT_F32);
    }
    tensor_put(p, &t, values);
    free(values);
    return t;
}

/* pad: elements between rows. Few of them are multiples of a vector. */
static bool bed_make(struct hyper_bed *h, enum dtype dtype, const struct hyper_args *a, int32_t pad)
{
    struct backend_limits limits = pair_limits();
    const int32_t all = a->n * a->width, n_gates = HYPER_GATES(a->n), rows = a->n_rows;
    const int32_t of_cross = a->n_sinkhorn > 0 ? a->n * a->n : 0;
    memset(h, 0, sizeof *h);
    limits.max_rows = greater(limits.max_rows, rows);
    if (!pair_open(&h->p, dtype, false, &limits)) {
        return false;
    }
    h->a = *a;
    h->n_fn = a->ends ? a->n : 2 * a->n + of_cross;
    h->streams = tensor_random(&h->p, rows, all, all + pad, 1.0f);
    h->delta = tensor_random(&h->p, rows, a->width, a->width + pad, 1.0f);
    h->gates = gates_random(&h->p, rows, n_gates);
    h->x = tensor_poisoned(&h->p, rows, a->width + pad, dtype);
    h->out = tensor_poisoned(&h->p, rows, a->width + pad, dtype);
    h->fn =
        weight_make(&h->p, WEIGHT_VECTOR, DT_F32, 1, h->n_fn, all, false, 1.3f / sqrtf((float)all));
    h->base = vector_make(&h->p, h->n_fn, 1.0f);
    h->scale = vector_make(&h->p, 3, 1.0f);
    h->norm = vector_make(&h->p, a->width, 1.0f);
    return true;
}

/* The args on one backend; without `mixes` only a result is added. */
static struct hyper_args args_on(const struct hyper_bed *h, int b, bool adds, bool mixes)
{
    struct hyper_args a = h->a;
    a.streams = h->streams.t[b];
    a.gates = h->gates.t[b];
    if (adds) {
        a.delta = h->delta.t[b];
    }
    if (mixes) {
        a.fn = h->fn.w[b];
        a.base = h->base.w[b];
        a.scale = h->scale.w[b];
        a.norm = h->norm.w[b];
        a.x = h->x.t[b];
        a.out = h->a.ends ? a.out : h->out.t[b];
    }
    return a;
}

static void try_case(enum dtype dtype, const struct hyper_args *a, int32_t pad, bool adds,
                     bool mixes)
{
    struct hyper_bed h;
    struct hyper_args on;
    REQUIRE(bed_make(&h, dtype, a, pad));
    const double tolerance = pair_tolerance(&h.p);
    const int32_t n_gates = a->n_sinkhorn > 0 ? HYPER_GATES(a->n) : a->n;
    BOTH(&h.p, hyper, on, on = args_on(&h, b, adds, mixes));
    check_tensor(&h.p, "streams", &h.streams, a->n * a->width, tolerance);
    if (mixes) {
        check_tensor(&h.p, "a mixture of streams", &h.x, a->width, tolerance);
    }
    if (mixes && !a->ends) {
        check_tensor(&h.p, "a normed mixture", &h.out, a->width, 1.5 * tolerance);
        check_rows(&h.p, "gates", &h.gates, n_gates, 2.0 * tolerance);
    }
    pair_close(&h.p);
}

/* One row, few, and more than a block of the kernel for many; odd widths; several slices. */
TEST(hyper_connections_agree)
{
    NEED_GPU();
    static const int32_t widths[] = {8, 37, 256, 300, 1024, 2816, 6144, 7168};
    static const int32_t rows[] = {1, 3, 64, 65, 130};
    for (int32_t i = 0; i < 120; i++) {
        const struct hyper_args a = {.n_rows = rows[i % COUNT(rows)],
                                     .width = widths[i % COUNT(widths)],
                                     .n = i < 24 ? MAX_HYPER : 1 + i % MAX_HYPER,
                                     .n_sinkhorn = i / 2 % 3 == 0 ? 20 - i % 20 : 0,
                                     .begins = i % 7 == 3,
                                     .ends = i % 6 == 5,
                                     .norm_eps = 1e-5f,
                                     .eps = i % 2 ? 1e-6f : 1e-2f,
                                     .magnitude = 1.5f,
                                     .after_eps = i % 3 ? 0.0f : 1e-2f};
        const bool adds = a.begins || i % 4 != 1;
        try_case(pair_dtypes[i % 3], &a, i % 5 == 0 ? 3 : 8, adds, i % 11 != 4);
    }
}

/* More rows than the sums of have room for: rows are processed in groups. */
TEST(many_rows_take_turns)
{
    NEED_GPU();
    const struct hyper_args a = {.n_rows = 33000,
                                 .width = 40,
                                 .n = 2,
                                 .n_sinkhorn = 3,
                                 .norm_eps = 1e-5f,
                                 .eps = 1e-6f,
                                 .magnitude = 2.0f};
    try_case(DT_BF16, &a, 8, true, true);
}

/* A row of a pass of few or many rows has the bits that it has alone. */
TEST(bits_of_a_row_are_its_own)
{
    NEED_GPU();
    const struct hyper_args all = {.n_rows = 70,
                                   .width = 2816,
                                   .n = MAX_HYPER,
                                   .n_sinkhorn = 20,
                                   .norm_eps = 1e-5f,
                                   .eps = 1e-6f,
                                   .magnitude = 2.0f};
    struct hyper_bed many, one;
    REQUIRE(bed_make(&many, DT_BF16, &all, 8));
    struct hyper_args a = args_on(&many, GPU, true, true);
    struct backend *be = many.p.be[GPU];
    float *before = tensor_get(&many.p, &many.streams, GPU);
    CHECK_EQ(be->ops->hyper(be, &a), OK);
    float *out = tensor_get(&many.p, &many.out, GPU), *x = tensor_get(&many.p, &many.x, GPU);
    for (int32_t row = 0; row < all.n_rows; row += 23) {
        struct hyper_args single = all;
        single.n_rows = 1;
        REQUIRE(bed_make(&one, DT_BF16, &single, 8));
        // tensors and weights of the same case; only the row is another
        const size_t streams = (size_t)many.streams.stride, width = (size_t)many.delta.stride;
        float *delta = tensor_get(&many.p, &many.delta, GPU);
        tensor_put(&one.p, &one.streams, before + (size_t)row * streams);
        tensor_put(&one.p, &one.delta, delta + (size_t)row * width);
        struct pair_tensor gates = gates_random(&one.p, all.n_rows, HYPER_GATES(all.n));
        struct hyper_args b = args_on(&one, GPU, true, true);
        b.gates = gates.t[GPU];
        b.gates.mem = dmem_at(b.gates.mem, (size_t)(row * HYPER_GATES(all.n)) * sizeof(float));
        b.n_rows = 1;
        CHECK_EQ(one.p.be[GPU]->ops->hyper(one.p.be[GPU], &b), OK);
        float *alone = tensor_get(&one.p, &one.out, GPU), *mixed = tensor_get(&one.p, &one.x, GPU);
        const size_t n = (size_t)all.width * sizeof *out;
        CHECK(!COMPARED || memcmp(alone, out + (size_t)row * width, n) == 0);
        CHECK(!COMPARED || memcmp(mixed, x + (size_t)row * width, n) == 0);
        free(alone);
        free(mixed);
        free(delta);
        pair_close(&one.p);
    }
    free(before);
    free(out);
    free(x);
    pair_close(&many.p);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
