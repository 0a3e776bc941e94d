// SPDX-License-Identifier: Apache-2.0
/* Operations on single rows: sums, norms, activations, rotations. Included by cpu_kernels_vec.h.
 * Thread: any. */
#ifndef SLUICE_CPU_VEC_ROWS_H
#define SLUICE_CPU_VEC_ROWS_H

#include "cpu/cpu_internal.h"
#include "cpu/cpu_vec.h"
#include "engine/base/minmax.h"

#include <math.h>

/* The tail uses fmaf, so that every element is rounded in the same way. */
static void add_scaled(float *x, const float *d, float scale, int64_t n)
{
    vf s = vec_set(scale);
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec_store(x + i, vec_fma(s, vec_load(d + i), vec_load(x + i)));
    }
    for (; i < n; i++) {
        x[i] = fmaf(scale, d[i], x[i]);
    }
}

/* The sum of a[i] b[i]: four chains of vectors, then the tail. */
static float dot(const float *a, const float *b, int64_t n)
{
    vf s0 = vec_set(0.0f), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = 0;
    for (; i + 4 * VEC <= n; i += 4 * VEC) {
        s0 = vec_fma(vec_load(a + i), vec_load(b + i), s0);
        s1 = vec_fma(vec_load(a + i + VEC), vec_load(b + i + VEC), s1);
        s2 = vec_fma(vec_load(a + i + 2 * VEC), vec_load(b + i + 2 * VEC), s2);
        s3 = vec_fma(vec_load(a + i + 3 * VEC), vec_load(b + i + 3 * VEC), s3);
    }
    for (; i + VEC <= n; i += VEC) {
        s0 = vec_fma(vec_load(a + i), vec_load(b + i), s0);
    }
    float sum = vec_sum((s0 + s1) + (s2 + s3));
    for (; i < n; i++) {
        sum = fmaf(a[i], b[i], sum);
    }
    return sum;
}

/* NaN is never the maximum. */
static float max_of(const float *x, int64_t n)
{
    enum { CHAINS = 4 };
    vf m[CHAINS];
    int64_t i = 0;
    for (int c = 0; c < CHAINS; c++) {
        m[c] = vec_set(-INFINITY);
    }
    for (; i + CHAINS * VEC <= n; i += CHAINS * VEC) {
        for (int c = 0; c < CHAINS; c++) {
            vf v = vec_load(x + i + c * VEC);
            m[c] = vec_select(v > m[c], v, m[c]);
        }
    }
    for (; i + VEC <= n; i += VEC) {
        vf v = vec_load(x + i);
        m[0] = vec_select(v > m[0], v, m[0]);
    }
    for (int c = 1; c < CHAINS; c++) {
        m[0] = vec_select(m[c] > m[0], m[c], m[0]);
    }
    float best = vec_highest(m[0]);
    for (; i < n; i++) {
        best = greater(x[i], best);
    }
    return best;
}

/* The vector width fixes the order of additions. */
static float mean_of(const float *x, int64_t n)
{
    vf s = vec_set(0.0f);
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        s += vec_load(x + i);
    }
    float sum = vec_sum(s);
    for (; i < n; i++) {
        sum += x[i];
    }
    return sum / (float)n;
}

static float square_about(const float *x, float mean, int64_t n)
{
    vf s = vec_set(0.0f), m = vec_set(mean);
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vf d = vec_load(x + i) - m;
        s = vec_fma(d, d, s);
    }
    float sum = vec_sum(s);
    for (; i < n; i++) {
        sum = fmaf(x[i] - mean, x[i] - mean, sum);
    }
    return sum;
}

/* A layer norm needs the mean first, so it reads the row twice. */
static void norm(enum norm_kind kind, const float *x, const float *weight, float offset,
                 const float *bias, float eps, int64_t n, float *out)
{
    float mean = kind == NORM_LAYER ? mean_of(x, n) : 0.0f;
    float square = kind == NORM_LAYER ? square_about(x, mean, n) : dot(x, x, n);
    float r = 1.0f / sqrtf(square / (float)n + eps);
    vf one = vec_set(1.0f), zero = vec_set(0.0f), o = vec_set(offset);
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vf w = (weight ? vec_load(weight + i) : one) + o;
        vf y = (vec_load(x + i) - vec_set(mean)) * vec_set(r);
        vec_store(out + i, vec_fma(y, w, bias ? vec_load(bias + i) : zero));
    }
    for (; i < n; i++) {
        float w = (weight ? weight[i] : 1.0f) + offset;
        out[i] = fmaf((x[i] - mean) * r, w, bias ? bias[i] : 0.0f);
    }
}

/* x times the share of the normal distribution below x, computed as x / 2 * erfc(-x / sqrt 2). For
 * |x|, erfc is e^-z^2 * t * P(t) with t = 1 / (1 + 0.4 z). P is fitted for the smallest relative
 * error (6e-9 before rounding) up to z = 9.4, beyond which the result is 0. The rounding error of
 * z^2 is compensated. */
VEC_INLINE vf gelu(vf x)
{
    const vf one = vec_set(1.0f);
    vf z = vec_max(x, -x) * vec_set(0.70710678f);
    vf t = one / vec_fma(z, vec_set(0.4f), one);
    vf p = vec_set(-0.03080226667225361f);
    p = vec_fma(p, t, vec_set(0.2046084702014923f));
    p = vec_fma(p, t, vec_set(-0.5144133567810059f));
    p = vec_fma(p, t, vec_set(0.5683826804161072f));
    p = vec_fma(p, t, vec_set(-0.30192190408706665f));
    p = vec_fma(p, t, vec_set(0.28157076239585876f));
    p = vec_fma(p, t, vec_set(0.12636177241802216f));
    p = vec_fma(p, t, vec_set(0.2156379222869873f));
    p = vec_fma(p, t, vec_set(0.2248644381761551f));
    p = vec_fma(p, t, vec_set(0.22571147978305817f));
    vf square = z * z, lost = vec_fma(z, z, -square);
    vf half = vec_set(0.5f) * x * (p * t * vec_exp(-square) * (one - lost));
    return vec_select(x < vec_set(0.0f), half, x - half);
}

/* x * sigmoid(z) */
VEC_INLINE vf swish(vf x, vf z)
{
    return vec_quotient(x, vec_set(1.0f) + vec_exp(vec_set(0.0f) - z));
}

/* e^x - 1 - x for x <= 0. Close to 0, where the difference would cancel, it is the sum of its
 * series. */
VEC_INLINE vf exp_above_line(vf x)
{
    vf p = vec_set(1.0f / 40320.0f);
    p = vec_fma(p, x, vec_set(1.0f / 5040.0f));
    p = vec_fma(p, x, vec_set(1.0f / 720.0f));
    p = vec_fma(p, x, vec_set(1.0f / 120.0f));
    p = vec_fma(p, x, vec_set(1.0f / 24.0f));
    p = vec_fma(p, x, vec_set(1.0f / 6.0f));
    p = vec_fma(p, x, vec_set(0.5f));
    vf far = vec_exp(x) - vec_set(1.0f) - x;
    return vec_select(x > vec_set(-0.5f), p * x * x, far);
}

VEC_INLINE vf xielu(struct act_shape shape, vf x)
{
    const vf zero = vec_set(0.0f), line = vec_set(shape.slope) * x;
    vf up = vec_fma(vec_set(shape.rise) * x, x, line);
    vf down = vec_fma(vec_set(shape.fall), exp_above_line(vec_min(x, zero)), line);
    return vec_select(x > zero, up, down);
}

/* Uses the sigmoid, so that large inputs do not overflow. */
VEC_INLINE vf activated(enum activation kind, struct act_shape shape, vf g, vf u)
{
    switch (kind) {
    case ACT_SILU: return swish(g, g) * u;
    case ACT_GELU_TANH: { // 1 + tanh(z) = 2 sigmoid(2 z)
        vf z = vec_fma(g * g, vec_set(0.044715f), vec_set(1.0f)) * g * vec_set(1.59576912f);
        return swish(g, z) * u;
    }
    case ACT_RELU: return vec_max(g, vec_set(0.0f)) * u;
    case ACT_RELU2: return vec_max(g, vec_set(0.0f)) * g * u;
    case ACT_SILU_CLAMPED:
        u = vec_max(vec_min(u, vec_set(shape.limit)), vec_set(-shape.limit));
        return vec_min(swish(g, g), vec_set(shape.alpha)) * u;
    case ACT_GPT_OSS:
        g = vec_min(g, vec_set(shape.limit));
        u = vec_max(vec_min(u, vec_set(shape.limit)), vec_set(-shape.limit));
        return swish(g, g * vec_set(shape.alpha)) * (u + vec_set(1.0f));
    case ACT_GELU: return gelu(g) * u;
    case ACT_XIELU: return xielu(shape, g);
    }
    return g;
}

/* Processes whole vectors, and then a padded tail. */
static void activate(enum activation kind, struct act_shape shape, const float *gate,
                     const float *up, float *out, int64_t n)
{
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vf u = up ? vec_load(up + i) : vec_set(1.0f);
        vec_store(out + i, activated(kind, shape, vec_load(gate + i), u));
    }
    // The tail uses the same arithmetic, so that results do not depend on where it begins.
    if (i < n) {
        size_t bytes = (size_t)(n - i) * sizeof *out;
        float g[VEC] = {0.0f}, u[VEC] = {0.0f}, tail[VEC];
        memcpy(g, gate + i, bytes);
        if (up) {
            memcpy(u, up + i, bytes);
        }
        vec_store(tail, activated(kind, shape, vec_load(g), up ? vec_load(u) : vec_set(1.0f)));
        memcpy(out + i, tail, bytes);
    }
}

/* Interleaved pairs are rotated one at a time, halves by vectors. */
static void rotate(float *x, const float *cos, const float *sin, int32_t n, bool interleaved)
{
    int32_t i = 0;
    for (; !interleaved && i + VEC <= n; i += VEC) {
        vf a = vec_load(x + i), b = vec_load(x + n + i);
        vf c = vec_load(cos + i), s = vec_load(sin + i);
        vec_store(x + i, a * c - b * s);
        vec_store(x + n + i, b * c + a * s);
    }
    int32_t step = interleaved ? 2 : 1, other = interleaved ? 1 : n;
    for (; i < n; i++) {
        float a = x[i * step], b = x[i * step + other];
        x[i * step] = a * cos[i] - b * sin[i];
        x[i * step + other] = b * cos[i] + a * sin[i];
    }
}

static void scale_by(float *x, float scale, int64_t n)
{
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec_store(x + i, vec_load(x + i) * vec_set(scale));
    }
    for (; i < n; i++) {
        x[i] *= scale;
    }
}

#endif
