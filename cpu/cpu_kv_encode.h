// SPDX-License-Identifier: Apache-2.0
/* Encodes one head (cpu_kv_codes.h) with plain loops that compilers vectorise. Included by
 * cpu_kv_codes.c and, for each instruction set, by cpu_kernels_vec.h. All give the same result,
 * because nothing is summed and every operation is rounded separately.
 * Thread: any. */
#ifndef SLUICE_CPU_KV_ENCODE_H
#define SLUICE_CPU_KV_ENCODE_H

#include "cpu/cpu_kv_codes.h"
#include "engine/base/minmax.h"

#include <math.h>

static inline uint32_t kv_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float kv_float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

struct kv_range {
    float low, high;
    bool broken; // an element is NaN
};

static inline struct kv_range kv_range_of(const float *x, int32_t n)
{
    float low = INFINITY, high = -INFINITY;
    uint32_t broken = 0;
    for (int32_t i = 0; i < n; i++) {
        low = lesser(x[i], low);
        high = greater(x[i], high);
        broken |= x[i] != x[i];
    }
    return (struct kv_range){low, high, broken != 0};
}

/* Rounds to E4M3, to at most 448: below 2^-6 to multiples of 2^-9, otherwise to three fraction
 * bits. */
static inline uint8_t e4m3_of(float x)
{
    uint32_t u = kv_float_bits(x), sign = u >> 24 & 0x80u, a = u & 0x7FFFFFFFu;
    a = lesser(a, 0x43E00000u);
    uint32_t normal = ((a + 0x7FFFFu + (a >> 20 & 1u)) >> 20) - (120u << 3);
    uint32_t small = kv_float_bits(kv_float_of(a) + 16384.0f) - 0x46800000u;
    return (uint8_t)(sign | (a < 0x3C800000u ? small : normal));
}

/* Rounds halves away from 0. */
static inline float round_away(float x)
{
    float t = truncf(x), rest = x - t;
    t = rest >= 0.5f ? t + 1.0f : t;
    return rest <= -0.5f ? t - 1.0f : t;
}

static inline float clamped(float x, float low, float high)
{
    x = greater(x, low); // NaN becomes `low`
    return lesser(x, high);
}

/* The scale and zero for a number of `levels` steps, rounded to the shared word if there is one. */
static inline struct kv_scale zeroed_scale(const struct kv_plane *p, struct kv_range r,
                                           float levels)
{
    float scale = (r.high - r.low) / levels, step = kv_zero_step(p->format);
    if (p->dtype != DT_F32) {
        float least = fabsf(r.low) / (step * (0.98f * (float)KV_ZERO_MOST));
        scale = greater(scale, least);
        uint32_t bits = kv_float_bits(scale), half = (KV_SCALE_BITS & ~KV_SCALE_BITS << 1) / 2;
        scale = kv_float_of((bits + half) & KV_SCALE_BITS);
    }
    scale = scale == 0.0f ? 1.0f : scale;
    float zero = -r.low / scale;
    if (p->dtype != DT_F32) {
        zero = clamped(rintf(zero / step), -(float)KV_ZERO_MOST, (float)KV_ZERO_MOST) * step;
    }
    return (struct kv_scale){scale, zero};
}

static inline struct kv_scale kv_scale_of(const struct kv_plane *p, const float *x, int32_t n)
{
    if (p->format == KV_FP8 && !p->has_scales) {
        return (struct kv_scale){p->scale, 0.0f};
    }
    struct kv_range r = kv_range_of(x, n);
    float most = greater(-r.low, r.high);
    struct kv_scale s = {0.0f, 0.0f};
    if (kv_format_has_zero(p->format)) {
        s = zeroed_scale(p, r, p->format == KV_INT8 ? 255.0f : 15.0f);
    } else {
        s.scale = most / (p->format == KV_FP8 ? 448.0f : 127.0f);
        s.scale = greater(s.scale, 1e-6f);
    }
    if (r.broken || s.scale - s.scale != 0.0f) {
        s = (struct kv_scale){NAN, 0.0f};
    }
    return s;
}

static inline void kv_encode(const struct kv_plane *p, const float *x, int32_t n, uint8_t *codes,
                             struct kv_scale *scale)
{
    const struct kv_scale s = *scale = kv_scale_of(p, x, n);
    switch (p->format) {
    case KV_FP8:
        for (int32_t i = 0; i < n; i++) {
            float v = x[i] / s.scale;
            codes[i] = v == v ? e4m3_of(v) : 0x7F;
        }
        break;
    case KV_INT8_SYMMETRIC:
        for (int32_t i = 0; i < n; i++) {
            codes[i] = (uint8_t)(int32_t)clamped(round_away(x[i] / s.scale), -128.0f, 127.0f);
        }
        break;
    default:
        for (int32_t i = 0; i < n; i++) {
            float v = clamped(x[i] / s.scale + s.zero + 0.5f, 0.0f,
                              p->format == KV_INT4 ? 15.0f : 255.0f);
            codes[i] = (uint8_t)(int32_t)v;
        }
        break;
    }
}

#endif
