// SPDX-License-Identifier: Apache-2.0
/* Shared by the op tests: a backend opened by name, its memory filled by the host, passes of
 * made-up sequences, and numbers from a seed. Each test compares its op with a naive reference in
 * double precision. OP_BACKEND selects what is tested: "scalar", "cpu" (the best for this machine)
 * or an instruction set below that; by default all are.
 * Thread: the test's. */
#ifndef SLUICE_TEST_OP_HARNESS_H
#define SLUICE_TEST_OP_HARNESS_H

#include "cpu/cpu_internal.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/device/ops.h"
#include "test/check.h"
#include "test/cpu/amx_emulated.h"

/* ---- random numbers ----------------------------------------------------------------------- */

static uint64_t op_seed = 1;
static uint32_t op_counter;

/* rng_bits(op_seed, 0, RNG_TEST, op_counter++). One block gives four numbers, because tests draw
 * millions. */
static inline uint32_t op_bits(void)
{
    static struct rng_block block;
    static uint64_t seed;
    static uint32_t place = UINT32_MAX; // number of the block in `block`
    if (place != op_counter >> 2 || seed != op_seed) {
        place = op_counter >> 2;
        seed = op_seed;
        block = rng_philox(seed, 0, RNG_TEST, place, 0);
    }
    return block.v[op_counter++ & 3];
}

static inline int32_t op_int(int32_t low, int32_t high)
{
    return low + (int32_t)(op_bits() % (uint32_t)(high - low + 1));
}

static inline float op_uniform(void)
{
    return (float)rng_uniform(op_bits());
}

/* Approximately normal. */
static inline float op_normal(void)
{
    return (op_uniform() + op_uniform() + op_uniform() + op_uniform() - 2.0f) * 1.7320508f;
}

/* ---- types -------------------------------------------------------------------------------- */

static inline float op_bf16(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {x};
    v.u = (v.u + 0x7FFF + (v.u >> 16 & 1)) & 0xFFFF0000u;
    return v.f;
}

/* The compiler's own half precision, so that ours is compared with something else. */
__extension__ typedef _Float16 op_half;

static inline float op_f16(float x)
{
    return (float)(op_half)x;
}

/* x after being stored in `t`. */
static inline float op_rounded(enum dtype t, float x)
{
    switch (t) {
    case DT_BF16: return op_bf16(x);
    case DT_F16: return op_f16(x);
    default: return x;
    }
}

static inline void *op_stored(enum dtype t, const float *x, size_t n)
{
    void *p = xcalloc(n + 1, dtype_bytes(t));
    for (size_t i = 0; i < n; i++) {
        union {
            float f;
            uint32_t u;
        } v = {x[i]};
        op_half h = (op_half)x[i];
        switch (t) {
        case DT_BF16:
            ((uint16_t *)p)[i] = (uint16_t)((v.u + 0x7FFF + (v.u >> 16 & 1)) >> 16);
            break;
        case DT_F16: memcpy((uint16_t *)p + i, &h, 2); break;
        default: ((float *)p)[i] = x[i]; break;
        }
    }
    return p;
}

/* ---- a backend ---------------------------------------------------------------------------- */

struct op_rig {
    struct backend *be;
    const struct backend_ops *ops;
    enum dtype dtype;
    bool in_step;
};

/* The kernels of that name; NULL when this machine lacks them. */
static inline const struct cpu_kernels *op_kernels(const char *name)
{
    if (strcmp(name, "scalar") == 0) {
        return &cpu_kernels_scalar;
    }
#if defined(__x86_64__)
    if (strcmp(name, "avx2") == 0) {
        if (__builtin_cpu_supports("avx2")) {
            return &cpu_kernels_avx2;
        }
        return NULL;
    }
    if (strcmp(name, "avx512") == 0) {
        if (__builtin_cpu_supports("avx512dq")) {
            return &cpu_kernels_avx512;
        }
        return NULL;
    }
    if (strcmp(name, "avx512bf16") == 0) { // with AMX, "cpu" means the AMX kernels
        if (__builtin_cpu_supports("avx512bf16")) {
            return &cpu_kernels_avx512bf16;
        }
        return NULL;
    }
    if (strcmp(name, "amx-emulated") == 0) {
        return op_amx_emulated();
    }
#endif
    if (strcmp(name, "cpu") == 0) {
        return cpu_kernels_best();
    }
    return NULL;
}

static inline struct backend_limits op_limits(void)
{
    return (struct backend_limits){
        .max_rows = 2112,
        .max_out_rows = 2112,
        .max_lanes = 8,
        .max_len = 4096,
        .max_blocks_per_lane = 256,
        .n_blocks = 600,
        .block_tokens = 16,
        .vocab = 5003,
        .hidden = 256,
        .n_steps = 2,
        .max_passes = 4,
    };
}

static inline struct op_rig op_open(const char *name, enum dtype dtype,
                                    const struct backend_limits *limits)
{
    struct op_rig r = {.dtype = dtype};
    struct err err = {""};
    struct backend_options o = {.n_ranks = 1, .dtype = dtype, .threads = 2};
    enum status st = cpu_open_with(&o, op_kernels(name), &r.be, &err);
    if (st == OK) {
        r.ops = r.be->ops;
        st = r.ops->setup(r.be, limits, &err);
    }
    if (st == OK) {
        st = backend_check(r.be, &err);
    }
    if (st != OK) {
        printf("cannot open the backend: %s\n", err.text);
        exit(1);
    }
    return r;
}

static inline void op_close(struct op_rig *r)
{
    r->ops->close(r->be);
    r->be = NULL;
}

/* Calls fn for each backend under test. */
static inline void op_each(void (*fn)(const char *name))
{
    const char *only = getenv("OP_BACKEND");
    static const char *const names[] = {"scalar",     "avx2",         "avx512",
                                        "avx512bf16", "amx-emulated", "cpu"};
    const size_t n = sizeof names / sizeof names[0];
    for (size_t i = 0; i < n; i++) {
        const struct cpu_kernels *k = op_kernels(names[i]);
        bool again = k && i < n - 1 && k == op_kernels("cpu"); // these kernels are tested last, as
                                                               // "cpu"
        if (only ? strcmp(only, names[i]) == 0 && k : k && !again) {
            op_counter = 0;
            fn(names[i]);
        }
    }
}

#define OP_TEST(name)                                                                              \
    static void name##_on(const char *backend);                                                    \
    TEST(name)                                                                                     \
    {                                                                                              \
        op_each(name##_on);                                                                        \
    }                                                                                              \
    static void name##_on(const char *backend)

/* A device matrix; columns beyond `width` are NaN and must stay so. */
static inline struct tensor op_tensor(struct op_rig *r, const float *x, int32_t rows, int32_t width,
                                      int32_t stride)
{
    struct tensor t = {.dtype = DT_F32, .stride = stride};
    size_t n = (size_t)rows * stride;
    float *host = xcalloc(n, sizeof *host);
    for (size_t i = 0; i < n; i++) {
        int32_t col = (int32_t)(i % stride);
        if (x && col < width) {
            host[i] = x[(i / stride) * width + col];
        } else {
            host[i] = NAN;
        }
    }
    if (r->ops->alloc(r->be, n * sizeof *host, &t.mem) != OK) {
        printf("out of device memory\n");
        exit(1);
    }
    r->ops->write(r->be, t.mem, host, n * sizeof *host);
    free(host);
    return t;
}

/* Returns the matrix without its padding, after checking that the padding is still NaN. The caller
 * frees the result. */
static inline float *op_fetch(struct op_rig *r, struct tensor t, int32_t rows, int32_t width)
{
    size_t n = (size_t)rows * t.stride;
    float *host = xcalloc(n + 1, sizeof *host),
          *out = xcalloc((size_t)rows * width + 1, sizeof *out);
    r->ops->read(r->be, host, t.mem, n * sizeof *host);
    for (int32_t i = 0; i < rows; i++) {
        memcpy(out + (size_t)i * width, host + (size_t)i * t.stride, (size_t)width * sizeof *out);
        for (int32_t c = width; c < t.stride; c++) {
            CHECK(isnan(host[(size_t)i * t.stride + c]));
        }
    }
    free(host);
    return out;
}

static inline float *op_random(size_t n, float scale)
{
    float *x = xcalloc(n + 1, sizeof *x);
    for (size_t i = 0; i < n; i++) {
        x[i] = op_normal() * scale;
    }
    return x;
}

/* Opens a weight from floats. `values` are rounded to its type, too. */
static inline struct weight *op_weight(struct op_rig *r, enum weight_kind kind, enum dtype dtype,
                                       float *values, int32_t n_matrices, int32_t n_out,
                                       int32_t n_in, const float *bias, int32_t k_segments)
{
    size_t n = (size_t)n_matrices * n_out * n_in;
    void *data = op_stored(dtype, values, n);
    for (size_t i = 0; i < n; i++) {
        values[i] = op_rounded(dtype, values[i]);
    }
    struct weight_part *parts = xcalloc(n_matrices, sizeof *parts);
    struct weight_part *biases = xcalloc(n_matrices, sizeof *biases);
    for (int32_t i = 0; i < n_matrices; i++) {
        const char *from = (char *)data + (size_t)i * n_out * n_in * dtype_bytes(dtype);
        parts[i] = weight_part_plain(from, dtype, n_out, n_in, n_in);
        biases[i] =
            weight_part_plain(bias + (bias ? (size_t)i * n_out : 0), DT_F32, 1, n_out, n_out);
    }
    struct weight_desc d = {.name = "test",
                            .kind = kind,
                            .dtype = dtype,
                            .n_out = n_out,
                            .n_in = n_in,
                            .n_experts = n_matrices,
                            .n_parts = n_matrices,
                            .parts = parts,
                            .bias = bias ? biases : NULL,
                            .k_segments = k_segments};
    struct weight *w = NULL;
    struct err err = {""};
    if (r->ops->weight_open(r->be, &d, &w, &err) != OK) {
        printf("weight: %s\n", err.text);
        exit(1);
    }
    free(parts);
    free(biases);
    free(data);
    return w;
}

static inline struct weight *op_vector(struct op_rig *r, float *values, int32_t n)
{
    if (values) {
        return op_weight(r, WEIGHT_VECTOR, DT_F32, values, 1, 1, n, NULL, 1);
    }
    return NULL;
}

/* ---- passes ------------------------------------------------------------------------------- */

/* One pass over some sequences, as flat arrays. */
struct op_pass {
    struct pass pass;
    struct pass_row rows[2112];
    struct pass_seq seqs[64];
    uint64_t mask[2112 * TREE_MASK_WORDS];
};

static inline void op_add_seq(struct op_pass *p, int32_t lane, int32_t n_past, int32_t n_rows)
{
    p->seqs[p->pass.n_seqs++] =
        (struct pass_seq){lane, p->pass.n_rows, n_rows, n_past, false, 0, 0};
    for (int32_t i = 0; i < n_rows; i++) {
        p->rows[p->pass.n_rows++] = (struct pass_row){lane, 1, n_past + i, n_past + i};
    }
    p->pass.rows = p->rows;
    p->pass.seqs = p->seqs;
}

static inline void op_begin(struct op_rig *r, struct op_pass *p)
{
    struct pass_shape shape;
    if (!r->in_step) {
        CHECK_EQ(r->ops->step_begin(r->be, 0), OK);
        r->in_step = true;
    }
    CHECK_EQ(r->ops->pass_begin(r->be, &p->pass, &shape), OK);
    CHECK(shape.issue);
}

static inline void op_end(struct op_rig *r)
{
    CHECK_EQ(r->ops->pass_end(r->be), OK);
    CHECK_EQ(r->ops->step_end(r->be), OK);
    r->in_step = false;
}

/* The largest |a - b| / (1 + |b|). */
static inline double op_distance(const float *a, const double *b, size_t n)
{
    double worst = 0.0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]) / (1.0 + fabs(b[i]));
        if (!(d <= worst)) {
            worst = isnan(d) ? INFINITY : d;
        }
    }
    return worst;
}

#endif
