// SPDX-License-Identifier: Apache-2.0
/* The CUDA backend beside the CPU's scalar one: the same weights, the same inputs, both outputs.
 * Activations are fp32 on the CPU; on the GPU they have the pair's dtype, so inputs are drawn from
 * what that dtype can hold. Outputs are poisoned before an op, and so is the padding between rows.
 * Thread: the main thread. */
#ifndef SLUICE_TEST_CUDA_PAIR_H
#define SLUICE_TEST_CUDA_PAIR_H

#include "cpu/cpu.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/rng.h"
#include "engine/device/ops.h"
#include "test/check.h"

#ifdef SLUICE_CUDA
#include "cuda/cuda.h"
#else
static inline int32_t cuda_device_count(void)
{
    return 0;
}
static inline enum status cuda_open(const struct backend_options *o, struct backend **out,
                                    struct err *err)
{
    (void)o;
    (void)out;
    return err_set(err, ERR_UNSUPPORTED, "built without CUDA");
}
#endif

enum { CPU = 0, GPU = 1, TEST_MODEL = -1 }; // a negative model is never captured

#define NEED_GPU()                                                                                 \
    do {                                                                                           \
        if (cuda_device_count() == 0) {                                                            \
            SKIP("no CUDA device");                                                                \
        }                                                                                          \
    } while (0)

struct pair {
    struct backend *be[2];
    enum dtype dtype;
    uint64_t seed; // seed of the next random numbers
    struct backend_limits limits;
};

static const enum dtype pair_dtypes[] = {DT_F32, DT_BF16, DT_F16};

/* For MOE_MIXER: no logit is farther than this, so rounding does not make weights jump. */
#define MIXER_SPREAD 2.5f

static inline bool takes_correction(enum moe_scoring scoring)
{
    return scoring != MOE_TOPK_SOFTMAX && scoring != MOE_MIXER;
}

static inline float round_to(float x, enum dtype dtype)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if (dtype == DT_BF16) {
        u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    } else if (dtype == DT_F16) { // limits the exponent to moderate values
        u = (u + 0xfff + (u >> 13 & 1)) & 0xffffe000u;
    }
    memcpy(&x, &u, sizeof u);
    return x;
}

/* On the fake device nobody looks at the results. There any numbers will do, and the CPU has no
 * weights and computes nothing, which saves most of the time. Loops that compute begin with FIRST.
 */
#ifdef ANY_NUMBERS
enum { COMPARED = false, FIRST = GPU };
#else
enum { COMPARED = true, FIRST = CPU };
#endif

/* A normal number times scale, as `dtype` can hold it. */
static inline float random_float(uint64_t seed, int64_t i, float scale, enum dtype dtype)
{
    if (!COMPARED) {
        return ((seed + (uint64_t)i) % 2 != 0 ? 1.0f : -1.0f) * round_to(scale, dtype);
    }
    const struct rng_block b = rng_philox(seed, (uint32_t)i, (uint32_t)(i >> 32), RNG_TEST, 7);
    const double r = sqrt(-2.0 * log(rng_uniform(b.v[0])));
    float x = (float)(r * cos(6.283185307179586 * rng_uniform(b.v[1]))) * scale;
    if (fabsf(x) < 6.2e-5f) {
        x = 0.0f;
    } // no subnormal halves
    return round_to(x, dtype);
}

static inline struct backend_limits pair_limits(void)
{
    return (struct backend_limits){
        .max_rows = 512,
        .max_out_rows = 300,
        .max_lanes = 24,
        .max_len = 1024,
        .max_blocks_per_lane = 64,
        .n_blocks = 400,
        .block_tokens = 16,
        .vocab = 1003,
        .hidden = 96,
        .n_steps = 2,
        .max_passes = 4,
    };
}

static inline bool pair_open(struct pair *p, enum dtype dtype, bool deterministic,
                             const struct backend_limits *limits)
{
    memset(p, 0, sizeof *p);
    p->dtype = dtype;
    p->seed = 1;
    struct err err = {""};
    struct backend_options o = {
        .n_ranks = 1, .dtype = dtype, .deterministic = deterministic, .threads = 2};
    if (cpu_open_scalar(&o, &p->be[CPU], &err) != OK || cuda_open(&o, &p->be[GPU], &err) != OK) {
        printf("%s\n", err.text);
        return false;
    }
    if (limits) {
        p->limits = *limits;
        for (int b = 0; b < 2; b++) {
            if (p->be[b]->ops->setup(p->be[b], limits, &err) != OK) {
                printf("%s\n", err.text);
                return false;
            }
        }
    }
    return true;
}

static inline void pair_close(struct pair *p)
{
    for (int b = 0; b < 2; b++) {
        if (p->be[b]) {
            p->be[b]->ops->close(p->be[b]);
        }
    }
}

/* For floats that are a normal half, zero, infinity or NaN. */
static inline uint16_t half_bits(uint32_t u)
{
    const uint32_t sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
    if (rest >= 0x7f800000) {
        return (uint16_t)(sign | (rest > 0x7f800000 ? 0x7e00 : 0x7c00));
    }
    if (rest < 0x38800000) {
        return (uint16_t)sign; // too small for a normal number
    }
    return (uint16_t)(sign | ((rest >> 13) - (112 << 10)));
}

static inline float half_value(uint16_t h)
{
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    float magnitude;
    if (exponent == 31) {
        magnitude = mantissa ? NAN : INFINITY;
    } else if (exponent == 0) {
        magnitude = ldexpf((float)mantissa, -24);
    } else {
        magnitude = ldexpf((float)(mantissa | 1024), exponent - 25);
    }
    return h & 0x8000 ? -magnitude : magnitude;
}

/* ---- tensors ------------------------------------------------------------------------------ */

struct pair_tensor {
    struct tensor t[2];
    int32_t n_rows, stride;
    enum dtype dtype; // dtype on the GPU
};

static inline void tensor_put(struct pair *p, struct pair_tensor *t, const float *values)
{
    const size_t n = (size_t)t->n_rows * (size_t)t->stride;
    struct backend *gpu = p->be[GPU];
    if (!COMPARED) { // the bits may be those of other numbers
        CHECK_EQ(gpu->ops->write(gpu, t->t[GPU].mem, values, n * dtype_bytes(t->dtype)), OK);
        return;
    }
    CHECK_EQ(p->be[CPU]->ops->write(p->be[CPU], t->t[CPU].mem, values, n * sizeof(float)), OK);
    char *typed = xmalloc(n * 4 + 16);
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &values[i], sizeof u);
        if (t->dtype == DT_F32) {
            ((uint32_t *)typed)[i] = u;
        } else if (t->dtype == DT_BF16) {
            ((uint16_t *)typed)[i] = (uint16_t)(u >> 16);
        } else {
            ((uint16_t *)typed)[i] = half_bits(u);
        }
    }
    CHECK_EQ(gpu->ops->write(gpu, t->t[GPU].mem, typed, n * dtype_bytes(t->dtype)), OK);
    free(typed);
}

static inline float *tensor_get(struct pair *p, const struct pair_tensor *t, int b)
{
    const size_t n = (size_t)t->n_rows * (size_t)t->stride;
    if (!COMPARED && b == CPU) {
        return xcalloc(n + 4, sizeof(float));
    }
    float *out = xmalloc(n * sizeof(float) + 16);
    const enum dtype dtype = b == CPU ? DT_F32 : t->dtype;
    if (dtype == DT_F32 || !COMPARED) {
        CHECK_EQ(p->be[b]->ops->read(p->be[b], out, t->t[b].mem, n * dtype_bytes(dtype)), OK);
        return out;
    }
    uint16_t *typed = xmalloc(n * 2 + 16);
    CHECK_EQ(p->be[b]->ops->read(p->be[b], typed, t->t[b].mem, n * 2), OK);
    for (size_t i = 0; i < n; i++) {
        if (dtype == DT_BF16) {
            const uint32_t u = (uint32_t)typed[i] << 16;
            memcpy(&out[i], &u, 4);
        } else {
            out[i] = half_value(typed[i]);
        }
    }
    free(typed);
    return out;
}

static inline struct pair_tensor tensor_make(struct pair *p, int32_t n_rows, int32_t stride,
                                             enum dtype dtype)
{
    struct pair_tensor t = {.n_rows = n_rows, .stride = stride, .dtype = dtype};
    const size_t n = (size_t)n_rows * (size_t)stride;
    for (int b = 0; b < 2; b++) {
        const enum dtype d = b == CPU ? DT_F32 : dtype;
        t.t[b] = (struct tensor){.dtype = d, .stride = stride};
        CHECK_EQ(p->be[b]->ops->alloc(p->be[b], n * dtype_bytes(d), &t.t[b].mem), OK);
    }
    return t;
}

/* Random where a row has `width` elements, NaN in the padding after it. */
static inline struct pair_tensor tensor_random(struct pair *p, int32_t n_rows, int32_t width,
                                               int32_t stride, float scale)
{
    struct pair_tensor t = tensor_make(p, n_rows, stride, p->dtype);
    const size_t n = (size_t)n_rows * (size_t)stride;
    float *values = xcalloc(n + 4, sizeof(float));
    const uint64_t seed = p->seed++;
    for (size_t i = 0; COMPARED && i < n; i++) {
        if ((int32_t)(i % (size_t)stride) < width) {
            values[i] = random_float(seed, (int64_t)i, scale, p->dtype);
        } else {
            values[i] = NAN;
        }
    }
    tensor_put(p, &t, values);
    free(values);
    return t;
}

static inline struct pair_tensor tensor_poisoned(struct pair *p, int32_t n_rows, int32_t stride,
                                                 enum dtype dtype)
{
    struct pair_tensor t = tensor_make(p, n_rows, stride, dtype);
    const size_t n = (size_t)n_rows * (size_t)stride;
    float *values = xcalloc(n + 4, sizeof(float));
    for (size_t i = 0; COMPARED && i < n; i++) {
        values[i] = NAN;
    }
    tensor_put(p, &t, values);
    free(values);
    return t;
}

/* The error of rounding to the pair's dtype, relative to the norm of all elements. */
static inline double pair_tolerance(const struct pair *p)
{
    if (p->dtype == DT_F32) {
        return 2e-5;
    }
    return p->dtype == DT_BF16 ? 8e-3 : 1.5e-3;
}

/* Checks ||gpu - cpu|| / ||cpu||, and that no element is off by more than 12 times the tolerance,
 * relative to the largest element. */
static inline void check_near(const char *what, const float *cpu, const float *gpu, int32_t n_rows,
                              int32_t width, int32_t stride, double tolerance)
{
    if (!COMPARED) {
        return;
    }
    double error = 0, norm = 0, worst = 0, largest = 0;
    for (int32_t r = 0; r < n_rows; r++) {
        for (int32_t c = 0; c < width; c++) {
            const double a = cpu[(size_t)r * (size_t)stride + (size_t)c];
            const double d = gpu[(size_t)r * (size_t)stride + (size_t)c] - a;
            error += d * d;
            norm += a * a;
            if (!(fabs(d) <= worst)) {
                worst = fabs(d);
            }
            largest = greater(fabs(a), largest);
        }
    }
    if (!(sqrt(error) <= tolerance * sqrt(norm) + 1e-12) ||
        !(worst <= 12 * tolerance * largest + 1e-9)) {
        CHECK_FAIL("%s: relative error %.3g (allowed %.3g), worst element off by %.3g of %.3g",
                   what, sqrt(error / (norm + 1e-30)), tolerance, worst, largest);
    }
}

/* Compares the first `width` elements of each row. */
static inline void check_rows(struct pair *p, const char *what, const struct pair_tensor *t,
                              int32_t width, double tolerance)
{
    float *cpu = tensor_get(p, t, CPU), *gpu = tensor_get(p, t, GPU);
    check_near(what, cpu, gpu, t->n_rows, width, t->stride, tolerance);
    free(cpu);
    free(gpu);
}

/* Does the same, and checks that the padding after them has not changed. */
static inline void check_tensor(struct pair *p, const char *what, const struct pair_tensor *t,
                                int32_t width, double tolerance)
{
    float *cpu = tensor_get(p, t, CPU), *gpu = tensor_get(p, t, GPU);
    check_near(what, cpu, gpu, t->n_rows, width, t->stride, tolerance);
    for (int32_t r = 0; r < t->n_rows; r++) {
        for (int32_t c = width; c < t->stride; c++) {
            if (!isnan(gpu[(size_t)r * (size_t)t->stride + (size_t)c])) {
                CHECK_FAIL("%s: the padding of row %d was written at %d", what, r, c);
                r = t->n_rows;
                break;
            }
        }
    }
    free(cpu);
    free(gpu);
}

/* ---- weights ------------------------------------------------------------------------------ */

struct pair_weight {
    struct weight *w[2];
};

/* held: the dtype that all values fit; dtype: the one that the backend keeps them in. */
static inline struct pair_weight weight_make_of(struct pair *p, enum dtype held,
                                                enum weight_kind kind, enum dtype dtype,
                                                int32_t n_experts, int32_t n_out, int32_t n_in,
                                                bool bias, float scale)
{
    const size_t n = (size_t)n_experts * (size_t)n_out * (size_t)n_in;
    const size_t n_bias = (size_t)n_experts * (size_t)n_out;
    float *data = xcalloc(n + n_bias, sizeof(float));
    const uint64_t seed = p->seed++;
    for (size_t i = 0; COMPARED && i < n + n_bias; i++) {
        data[i] = random_float(seed, (int64_t)i, i < n ? scale : 1.0f, i < n ? held : dtype);
    }
    struct weight_part *bias_parts = xmalloc((size_t)n_experts * sizeof *bias_parts);
    for (int32_t i = 0; i < n_experts; i++) {
        bias_parts[i] =
            weight_part_plain(data + n + (size_t)i * (size_t)n_out, DT_F32, 1, n_out, n_out);
    }
    struct weight_part *parts = xmalloc((size_t)n_experts * sizeof *parts);
    for (int32_t i = 0; i < n_experts; i++) {
        parts[i] = weight_part_plain(data + (size_t)i * (size_t)n_out * (size_t)n_in, DT_F32, n_out,
                                     n_in, n_in);
    }
    const struct weight_desc desc = {
        .name = "test",
        .kind = kind,
        .dtype = dtype,
        .n_out = n_out,
        .n_in = n_in,
        .n_experts = n_experts,
        .n_parts = n_experts,
        .parts = parts,
        .bias = bias ? bias_parts : NULL,
        .k_segments = 1,
    };
    struct pair_weight w = {{NULL, NULL}};
    for (int b = FIRST; b <= GPU; b++) {
        struct err err = {""};
        const enum status st = p->be[b]->ops->weight_open(p->be[b], &desc, &w.w[b], &err);
        if (st != OK) {
            CHECK_FAIL("weight_open: %s", err.text);
        }
    }
    free(data);
    free(bias_parts);
    free(parts);
    return w;
}

static inline struct pair_weight weight_make(struct pair *p, enum weight_kind kind,
                                             enum dtype dtype, int32_t n_experts, int32_t n_out,
                                             int32_t n_in, bool bias, float scale)
{
    const enum dtype held = kind == WEIGHT_VECTOR ? DT_F32 : dtype;
    return weight_make_of(p, held, kind, dtype, n_experts, n_out, n_in, bias, scale);
}

static inline struct pair_weight vector_make(struct pair *p, int32_t n, float scale)
{
    return weight_make(p, WEIGHT_VECTOR, DT_F32, 1, 1, n, false, scale);
}

/* A vector of these values on backend b. */
static inline struct weight *vector_of(struct pair *p, int b, const float *values, int32_t n)
{
    const struct weight_part part = weight_part_plain(values, DT_F32, 1, n, n);
    const struct weight_desc desc = {.name = "test",
                                     .kind = WEIGHT_VECTOR,
                                     .dtype = DT_F32,
                                     .n_out = 1,
                                     .n_in = n,
                                     .n_experts = 1,
                                     .n_parts = 1,
                                     .parts = &part,
                                     .k_segments = 1};
    struct weight *w = NULL;
    struct err err = {""};
    CHECK_EQ(p->be[b]->ops->weight_open(p->be[b], &desc, &w, &err), OK);
    return w;
}

/* Calls `op` on both backends (on the GPU alone if nothing is compared) with args; the last
 * parameter is code that sets them to backend b's tensors. */
#define BOTH(p, op, args, ...)                                                                     \
    for (int b = FIRST; b <= GPU; b++) {                                                           \
        __VA_ARGS__;                                                                               \
        CHECK_EQ((p)->be[b]->ops->op((p)->be[b], &(args)), OK);                                    \
    }

#endif
