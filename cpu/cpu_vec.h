// SPDX-License-Identifier: Apache-2.0
/* One vector of floats, as wide as the instruction set that the file is compiled for; the kernels
 * of cpu_kernels_vec.h are written with it. No function contracts or reorders operations
 * implicitly.
 * Thread: any. */
#ifndef SLUICE_CPU_VEC_H
#define SLUICE_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
enum { VEC = 16 };
#define VEC_BYTES 64
#elif defined(__AVX2__)
#include <immintrin.h>
enum { VEC = 8 };
#define VEC_BYTES 32
#elif defined(__ARM_NEON)
#include <arm_neon.h>
enum { VEC = 4 };
#define VEC_BYTES 16
#endif

/* BLOCK_ROWS x BLOCK_VECS sums advance together, as many as the registers can hold: AVX-512 has 32,
 * AVX2 16, NEON 32. */
#if defined(__AVX512F__)
enum { BLOCK_ROWS = 6, BLOCK_VECS = 4 };
#elif defined(__AVX2__)
enum { BLOCK_ROWS = 6, BLOCK_VECS = 2 };
#else
enum { BLOCK_ROWS = 4, BLOCK_VECS = 4 };
#endif

typedef float vf __attribute__((vector_size(VEC_BYTES)));
typedef int32_t vi __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t vu __attribute__((vector_size(VEC_BYTES)));
typedef uint64_t vl __attribute__((vector_size(VEC_BYTES)));
typedef float vf_anywhere __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));

#define VEC_INLINE static inline __attribute__((always_inline))

VEC_INLINE vf vec_load(const float *p)
{
    return *(const vf_anywhere *)p;
}

VEC_INLINE void vec_store(float *p, vf v)
{
    *(vf_anywhere *)p = v;
}

#if defined(__AVX512F__)

VEC_INLINE vf vec_set(float x)
{
    return (vf)_mm512_set1_ps(x);
}

/* a * b + c, rounded once */
VEC_INLINE vf vec_fma(vf a, vf b, vf c)
{
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

VEC_INLINE vf vec_max(vf a, vf b)
{
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}

VEC_INLINE vf vec_min(vf a, vf b)
{
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
}

VEC_INLINE vf vec_from_bf16(const uint16_t *p)
{
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16);
}

VEC_INLINE vf vec_from_f16(const uint16_t *p)
{
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

VEC_INLINE void vec_to_f16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}

#elif defined(__AVX2__)

VEC_INLINE vf vec_set(float x)
{
    return (vf)_mm256_set1_ps(x);
}

VEC_INLINE vf vec_fma(vf a, vf b, vf c)
{
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

VEC_INLINE vf vec_max(vf a, vf b)
{
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
}

VEC_INLINE vf vec_min(vf a, vf b)
{
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
}

VEC_INLINE vf vec_from_bf16(const uint16_t *p)
{
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16);
}

VEC_INLINE vf vec_from_f16(const uint16_t *p)
{
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}

VEC_INLINE void vec_to_f16(uint16_t *p, vf v)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}

#elif defined(__ARM_NEON)

VEC_INLINE vf vec_set(float x)
{
    return (vf)vdupq_n_f32(x);
}

VEC_INLINE vf vec_fma(vf a, vf b, vf c)
{
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

VEC_INLINE vf vec_max(vf a, vf b)
{
    return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
}

VEC_INLINE vf vec_min(vf a, vf b)
{
    return (vf)vminq_f32((float32x4_t)a, (float32x4_t)b);
}

VEC_INLINE vf vec_from_bf16(const uint16_t *p)
{
    return (vf)vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16);
}

VEC_INLINE vf vec_from_f16(const uint16_t *p)
{
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

VEC_INLINE void vec_to_f16(uint16_t *p, vf v)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
}

#endif

/* The 64-bit products of the even lanes, which are the low halves of the 64-bit lanes. */
VEC_INLINE vl vec_mul_even(vl a, vl b)
{
#if defined(__AVX512F__)
    return (vl)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (vl)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
    return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
#endif
}

/* The high and low halves of the products x * m, lane by lane. */
VEC_INLINE void vec_mul_wide(vu x, uint32_t m, vu *high, vu *low)
{
    vl mm = (vl){0} + (uint64_t)m;
    vl even = vec_mul_even((vl)x, mm), odd = vec_mul_even((vl)x >> 32, mm);
    *high = (vu)(even >> 32 | (odd & 0xFFFFFFFF00000000u));
    *low = (vu)((even & 0xFFFFFFFFu) | odd << 32);
}

/* For each lane: a if the mask is all ones, otherwise b. */
VEC_INLINE vf vec_select(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

/* The even or odd elements of the bf16 pairs of a packed weight: vector number i of the run at
 * p. */
VEC_INLINE vf vec_even(const uint16_t *p)
{
    vi bits;
    memcpy(&bits, p, sizeof bits);
    return (vf)(bits << 16);
}

VEC_INLINE vf vec_odd(const uint16_t *p)
{
    vi bits;
    memcpy(&bits, p, sizeof bits);
    return (vf)(bits & (int32_t)0xFFFF0000);
}

/* Rounds to bf16 precision, ties to even; NaN stays NaN. */
VEC_INLINE vf vec_round_bf16(vf x)
{
    vi bits = (vi)x;
    vi rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & (int32_t)0xFFFF0000;
    // NOLINTNEXTLINE(misc-redundant-expression): false for NaN
    return vec_select(x == x, (vf)rounded, (vf)((bits & (int32_t)0xFFFF0000) | 0x400000));
}

/* Adds halves to each other, so that the order does not depend on the compiler. */
VEC_INLINE float vec_sum(vf v)
{
    float x[VEC];
    vec_store(x, v);
    for (int n = VEC / 2; n > 0; n /= 2) {
        for (int i = 0; i < n; i++) {
            x[i] += x[i + n];
        }
    }
    return x[0];
}

VEC_INLINE float vec_highest(vf v)
{
    float x[VEC], m;
    vec_store(x, v);
    m = x[0];
    for (int i = 1; i < VEC; i++) {
        m = x[i] > m ? x[i] : m;
    }
    return m;
}

/* a / b for b >= 1, within 2 units in the last place. May be 0 if 1 / b is not a normal float. */
VEC_INLINE vf vec_quotient(vf a, vf b)
{
#if defined(__AVX512F__)
    __m512 r = _mm512_rcp14_ps((__m512)b), one = _mm512_set1_ps(1.0f);
    r = _mm512_fmadd_ps(_mm512_fnmadd_ps((__m512)b, r, one), r, r);
    return a * (vf)r;
#else
    return a / b;
#endif
}

/* e^x within 2 units in the last place; 0 below -87; x above 88 is treated as 88; NaN stays NaN. */
VEC_INLINE vf vec_exp(vf x)
{
    const vf magic = vec_set(12582912.0f);
#if defined(__AVX512F__)
    vf y = vec_min(vec_set(88.0f), x); // returns the second operand if either is NaN
#else
    vf y = vec_min(vec_max(x, vec_set(-87.0f)), vec_set(88.0f));
#endif
    vf shifted = vec_fma(y, vec_set(1.44269504f), magic);
    vf n = shifted - magic;
    vf r = vec_fma(n, vec_set(-0.693359375f), y);
    r = vec_fma(n, vec_set(2.12194440e-4f), r);
    vf p = vec_set(0.0013814467238262296f);
    p = vec_fma(p, r, vec_set(0.008368780836462975f));
    p = vec_fma(p, r, vec_set(0.04166839271783829f));
    p = vec_fma(p, r, vec_set(0.1666651964187622f));
    p = vec_fma(p, r, vec_set(0.4999999403953552f));
    p = vec_fma(p, r, vec_set(1.0f));
    p = vec_fma(p, r, vec_set(1.0f));
#if defined(__AVX512F__)
    __mmask16 large = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    return (vf)_mm512_maskz_scalef_ps(large, (__m512)p, (__m512)n);
#else
    vi exponent = (vi)shifted - 0x4B400000;
    p = p * (vf)((exponent + 127) << 23);
    p = vec_select(x < vec_set(-87.0f), vec_set(0.0f), p);
    // NOLINTNEXTLINE(misc-redundant-expression): false for NaN
    return vec_select(x == x, p, x);
#endif
}

#endif
