// SPDX-License-Identifier: Apache-2.0
/* Loads elements of pages, plain or codes (cpu_kv_codes.h), as vectors. Included by
 * cpu_kernels_vec.h.
 * Thread: any. */
#ifndef SLUICE_CPU_VEC_KV_H
#define SLUICE_CPU_VEC_KV_H

#include "cpu/cpu_internal.h"
#include "cpu/cpu_kv_encode.h"
#include "cpu/cpu_vec.h"
#include "engine/base/minmax.h"

/* The formats for which the loops below are compiled. STORED_I8, STORED_U8 and STORED_U4 have their
 * elements in pairs. */
enum stored { STORED_F32, STORED_BF16, STORED_F16, STORED_E4M3, STORED_I8, STORED_U8, STORED_U4 };

/* The format of a plane. Inside kernels it is a constant, so that each format has a loop without
 * branches. */
VEC_INLINE enum stored stored_of(const struct kv_plane *p)
{
    switch (p->format) {
    case KV_FP8: return STORED_E4M3;
    case KV_INT8_SYMMETRIC: return STORED_I8;
    case KV_INT8: return STORED_U8;
    case KV_INT4: return STORED_U4;
    default: break;
    }
    if (p->dtype == DT_F32) {
        return STORED_F32;
    }
    return p->dtype == DT_BF16 ? STORED_BF16 : STORED_F16;
}

/* Calls f(..., kind) with the kind as a constant. */
#define WITH_STORED(kind, f, ...)                                                                  \
    do {                                                                                           \
        switch (kind) {                                                                            \
        case STORED_F32: f(__VA_ARGS__, STORED_F32); break;                                        \
        case STORED_BF16: f(__VA_ARGS__, STORED_BF16); break;                                      \
        case STORED_F16: f(__VA_ARGS__, STORED_F16); break;                                        \
        case STORED_E4M3: f(__VA_ARGS__, STORED_E4M3); break;                                      \
        case STORED_I8: f(__VA_ARGS__, STORED_I8); break;                                          \
        case STORED_U8: f(__VA_ARGS__, STORED_U8); break;                                          \
        case STORED_U4: f(__VA_ARGS__, STORED_U4); break;                                          \
        }                                                                                          \
    } while (0)

/* The same for the kinds whose elements are in pairs. */
#define WITH_PAIRS(kind, f, ...)                                                                   \
    do {                                                                                           \
        switch (kind) {                                                                            \
        case STORED_I8: f(__VA_ARGS__, STORED_I8); break;                                          \
        case STORED_U8: f(__VA_ARGS__, STORED_U8); break;                                          \
        default: f(__VA_ARGS__, STORED_U4); break;                                                 \
        }                                                                                          \
    } while (0)

VEC_INLINE bool in_pairs(const enum stored kind)
{
    return kind == STORED_I8 || kind == STORED_U8 || kind == STORED_U4;
}

VEC_INLINE bool has_zeros(const enum stored kind)
{
    return kind == STORED_U8 || kind == STORED_U4;
}

/* The factor that a loaded value needs in addition to its scale. */
VEC_INLINE float code_unit(const enum stored kind)
{
    return kind == STORED_E4M3 ? 256.0f : 1.0f;
}

VEC_INLINE vf vec_of_ints(vi x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps((__m512i)x);
#elif defined(__AVX2__)
    return (vf)_mm256_cvtepi32_ps((__m256i)x);
#else
    return (vf)vcvtq_f32_s32((int32x4_t)x);
#endif
}

VEC_INLINE vi vec_from_bytes(const uint8_t *p)
{
#if defined(__AVX512F__)
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
#elif defined(__AVX2__)
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
#else
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return (vi)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
#endif
}

/* 2 VEC bytes as 16-bit words, two per lane, the first of them in the low half. */
VEC_INLINE vi vec_words(const uint8_t *p, const bool has_sign)
{
#if defined(__AVX512F__)
    __m256i x = _mm256_loadu_si256((const void *)p);
    return (vi)(has_sign ? _mm512_cvtepi8_epi16(x) : _mm512_cvtepu8_epi16(x));
#elif defined(__AVX2__)
    __m128i x = _mm_loadu_si128((const void *)p);
    return (vi)(has_sign ? _mm256_cvtepi8_epi16(x) : _mm256_cvtepu8_epi16(x));
#else
    uint8x8_t x = vld1_u8(p);
    return has_sign ? (vi)vmovl_s8(vreinterpret_s8_u8(x)) : (vi)vmovl_u8(x);
#endif
}

/* Converts E4M3 by way of f16: shifted down by 7, its bits are an f16 with 2^-8 of the value; NaN
 * needs one more bit. */
VEC_INLINE vf vec_from_e4m3(const uint8_t *p)
{
#if defined(__AVX512F__)
    __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p));
    __m256i most = _mm256_set1_epi16(0x3F80), half = _mm256_slli_epi16(x, 7);
    __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(half, most), most);
    half = _mm256_and_si256(half, _mm256_set1_epi16((short)0xBF80));
    half = _mm256_mask_blend_epi16(nan, half, _mm256_set1_epi16(0x7F80));
    return (vf)_mm512_cvtph_ps(half);
#elif defined(__AVX2__)
    __m128i x = _mm_cvtepi8_epi16(_mm_loadl_epi64((const void *)p));
    __m128i most = _mm_set1_epi16(0x3F80), half = _mm_slli_epi16(x, 7);
    __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(half, most), most);
    half = _mm_and_si128(half, _mm_set1_epi16((short)0xBF80));
    half = _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7F80)));
    return (vf)_mm256_cvtph_ps(half);
#else
    uint32_t four;
    memcpy(&four, p, sizeof four);
    uint16x4_t x = vreinterpret_u16_s16(vget_low_s16(vmovl_s8(vcreate_s8(four))));
    uint16x4_t half = vshl_n_u16(x, 7), most = vdup_n_u16(0x3F80);
    uint16x4_t nan = vceq_u16(vand_u16(half, most), most);
    half = vand_u16(half, vdup_n_u16(0xBF80));
    half = vorr_u16(half, vand_u16(nan, vdup_n_u16(0x7F80)));
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(half));
#endif
}

/* Loads elements that are not in pairs. */
VEC_INLINE vf load_stored(const char *p, const enum stored kind)
{
    switch (kind) {
    case STORED_F32: return vec_load((const float *)(const void *)p);
    case STORED_BF16: return vec_from_bf16((const uint16_t *)(const void *)p);
    case STORED_F16: return vec_from_f16((const uint16_t *)(const void *)p);
    default: return vec_from_e4m3((const uint8_t *)p);
    }
}

/* Splits words into their halves, each of which has one code. */
VEC_INLINE void split_words(vi words, vf *even, vf *odd, const enum stored kind)
{
    *even = vec_of_ints(kind == STORED_I8 ? words << 16 >> 16 : words & 0xFFFF);
    *odd = vec_of_ints(words >> 16);
}

/* The scales and zeros of VEC tokens, from `token` on. */
VEC_INLINE void load_scales(const struct kv_plane *p, const char *head, int32_t token, vf *scale,
                            vf *zero, const enum stored kind)
{
    const float *at = (const float *)(const void *)(head + p->scales_at) + token;
    *scale = vec_set(p->scale);
    *zero = vec_set(0.0f);
    if (!p->has_scales) {
        return;
    }
    vf word = vec_load(at);
    *scale = word;
    if (has_zeros(kind) && p->dtype == DT_F32) {
        *zero = vec_load(at + p->tokens);
    } else if (has_zeros(kind)) {
        const int32_t rest = 32 - KV_ZERO_BITS;
        *scale = (vf)((vi)word & (int32_t)KV_SCALE_BITS);
        *zero = vec_of_ints((vi)word << rest >> rest) * vec_set(kv_zero_step(p->format));
    }
}

/* ---- prefetches ------------------------------------------------------------------------------ */

/* How many tokens ahead keys and values are prefetched, and the maximum number of bytes prefetched
 * per page. */
enum { PREFETCH_KEYS = 64, PREFETCH_VALUES = 64, PREFETCH_PAGE_BYTES = 4096 };

/* Prefetches the plane of a page. Pages are scattered, and too small for the hardware to notice
 * that they are read in order. Only the start of a large page is prefetched, because the hardware
 * then prefetches the rest. */
VEC_INLINE void prefetch_page(const struct kv_plane *p, const char *head)
{
    const size_t n_bytes = lesser(p->n_bytes, PREFETCH_PAGE_BYTES);
    for (size_t i = 0; i < n_bytes; i += 64) {
        __builtin_prefetch(head + p->at + i);
    }
}

/* Prefetches those pages of a run that start with one of the tokens [from, to). */
VEC_INLINE void prefetch_tokens(const struct page_run *run, int32_t from, int32_t to)
{
    const int32_t tokens = run->plane->tokens;
    int32_t end = (to + tokens - 1) / tokens;
    end = lesser(end, run->n_pages);
    for (int32_t page = (from + tokens - 1) / tokens; page < end; page++) {
        prefetch_page(run->plane, run->pages[page]);
    }
}

/* The rest of the next page of a page_ahead. A sum keeps this in registers while it runs. */
struct lines_ahead {
    const char *at, *end;
};

enum { LINE_BYTES = 64 };

/* valid: any address that may be prefetched if there is no next page. */
VEC_INLINE struct lines_ahead page_lines(const struct page_ahead *a, const char *valid)
{
    if (!a || a->page >= a->n_pages) {
        return (struct lines_ahead){valid, valid};
    }
    const char *page = a->pages[a->page];
    return (struct lines_ahead){page + a->at, page + a->n_bytes};
}

/* A burst of prefetches would occupy all line buffers, and the sums would wait. So this is called
 * in each step of a sum, with a number of cache lines that spreads the next pages over the whole
 * time of this chunk. */
VEC_INLINE void prefetch_lines(struct page_ahead *a, struct lines_ahead *l, const int n_lines)
{
    for (int i = 0; i < n_lines; i++) {
        __builtin_prefetch(l->at + i * LINE_BYTES, 0, 2);
    }
    l->at += n_lines * LINE_BYTES;
    if (__builtin_expect(l->at >= l->end, 0)) {
        if (a && a->page < a->n_pages) {
            a->page++;
            a->at = 0;
        }
        *l = page_lines(a, l->end);
    }
}

/* Ends a sum that began with page_lines. */
VEC_INLINE void leave_lines(struct page_ahead *a, const struct lines_ahead *l)
{
    if (a && a->page < a->n_pages) {
        a->at = (size_t)(l->at - a->pages[a->page]);
    }
}

/* ---- elements ------------------------------------------------------------------------------ */

/* The bytes of a token's next dim of K, or of the next two if they are in pairs. */
VEC_INLINE int64_t key_bytes(const enum stored kind)
{
    switch (kind) {
    case STORED_F32: return 4;
    case STORED_E4M3:
    case STORED_U4: return 1;
    default: return 2;
    }
}

/* Where the keys of a run's vector number `vec` of tokens start. Pages hold whole vectors. */
VEC_INLINE const char *keys_of(const struct page_run *k, int32_t vec, const enum stored kind)
{
    const int32_t per_page = k->plane->tokens / VEC;
    return k->pages[vec / per_page] + k->plane->at + vec % per_page * VEC * key_bytes(kind);
}

/* Loads one dim of VEC tokens at p, or two if they are in pairs, without their scales. */
VEC_INLINE void load_keys(const char *p, vf *even, vf *odd, const enum stored kind)
{
    const uint8_t *codes = (const uint8_t *)p;
    if (kind == STORED_U4) {
        vi both = vec_from_bytes(codes);
        *even = vec_of_ints(both & 15);
        *odd = vec_of_ints(both >> 4);
    } else if (in_pairs(kind)) {
        split_words(vec_words(codes, kind == STORED_I8), even, odd, kind);
    } else {
        *even = load_stored(p, kind);
    }
}

/* Values are rounded to bf16 to nearest, ties to even, on all instruction sets. */
VEC_INLINE void put_unpacked(void *out, int64_t at, vf x, bool bf16)
{
    if (!bf16) {
        vec_store((float *)out + at, x);
        return;
    }
    uint16_t *to = (uint16_t *)out + at;
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((void *)to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#elif defined(__AVX512F__)
    _mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16((__m512i)((vu)vec_round_bf16(x) >> 16)));
#else
    vi bits = (vi)((vu)vec_round_bf16(x) >> 16);
    for (int i = 0; i < VEC; i++) {
        to[i] = (uint16_t)bits[i];
    }
#endif
}

/* K is stored by dimension: a vector has one dimension of VEC tokens. */
VEC_INLINE void unpack_keys(const struct kv_plane *p, const char *head, int32_t token, int32_t n,
                            int32_t width, bool bf16, void *out, const enum stored kind)
{
    for (int32_t t = 0; t < n; t += VEC) {
        vf scale, zero, even, odd;
        load_scales(p, head, token + t, &scale, &zero, kind);
        scale = kind < STORED_E4M3 ? vec_set(1.0f) : scale * vec_set(code_unit(kind));
        const char *from = head + p->at + (token + t) * key_bytes(kind);
        for (int32_t d = 0; d < width; d += in_pairs(kind) ? 2 : 1) {
            load_keys(from, &even, &odd, kind);
            from += p->tokens * key_bytes(kind);
            put_unpacked(out, (int64_t)d * n + t, (even - zero) * scale, bf16);
            if (in_pairs(kind) && d + 1 < width) {
                put_unpacked(out, (int64_t)(d + 1) * n + t, (odd - zero) * scale, bf16);
            }
        }
    }
}

/* A row of V has one token, or two if they are in pairs. value_row: bytes of a row; value_at: where
 * element d is in it. */
VEC_INLINE int64_t value_row(const struct kv_plane *p, const enum stored kind)
{
    if (kind == STORED_U4) {
        return round_up(p->width, 32);
    }
    return p->width * key_bytes(kind);
}

VEC_INLINE int64_t value_at(int32_t d, const enum stored kind)
{
    if (kind == STORED_U4) {
        return (d / 32 * 16 + d % 16) * 2;
    }
    return d * key_bytes(kind);
}

/* Loads a row's elements from `d` on, without their scale. */
VEC_INLINE void load_values(const char *row, int32_t d, vf *even, vf *odd, const enum stored kind)
{
    const char *from = row + value_at(d, kind);
    if (kind == STORED_U4) {
        vi words = vec_words((const uint8_t *)from, false);
        split_words(words >> d / 16 % 2 * 4 & 0x000F000F, even, odd, kind);
    } else if (in_pairs(kind)) {
        split_words(vec_words((const uint8_t *)from, kind == STORED_I8), even, odd, kind);
    } else {
        *even = load_stored(from, kind);
    }
}

VEC_INLINE const char *row_of(const struct kv_plane *p, const char *head, int32_t token,
                              const enum stored kind)
{
    return head + p->at + (in_pairs(kind) ? token / 2 : token) * value_row(p, kind);
}

VEC_INLINE void unpack_token(void *out, int64_t at, vf x, struct kv_scale s, bool bf16,
                             const enum stored kind)
{
    put_unpacked(out, at, (x - vec_set(s.zero)) * vec_set(s.scale * code_unit(kind)), bf16);
}

VEC_INLINE struct kv_scale scale_of(const struct kv_plane *p, const char *head, int32_t token,
                                    const enum stored kind)
{
    return kind < STORED_E4M3 ? (struct kv_scale){1.0f, 0.0f} : kv_scale_get(p, head, token);
}

/* V is stored by token. A byte of 4-bit codes has codes of two tokens, so odd tokens begin in the
 * middle of a byte. */
VEC_INLINE void unpack_values(const struct kv_plane *p, const char *head, int32_t token, int32_t n,
                              int32_t width, bool bf16, void *out, const enum stored kind)
{
    const bool pairs = in_pairs(kind);
    for (int32_t t = pairs ? -(token % 2) : 0; t < n; t += pairs ? 2 : 1) {
        const char *row = row_of(p, head, token + t, kind);
        const bool first = t >= 0, second = pairs && t + 1 < n;
        struct kv_scale a = {0}, b = {0};
        a = first ? scale_of(p, head, token + t, kind) : a;
        b = second ? scale_of(p, head, token + t + 1, kind) : b;
        for (int32_t d = 0; d < width; d += VEC) {
            vf even, odd;
            load_values(row, d, &even, &odd, kind);
            if (first) {
                unpack_token(out, (int64_t)t * width + d, even, a, bf16, kind);
            }
            if (second) {
                unpack_token(out, (int64_t)(t + 1) * width + d, odd, b, bf16, kind);
            }
        }
    }
}

VEC_INLINE void unpack_kind(const struct kv_plane *p, const char *head, int32_t token, int32_t n,
                            int32_t width, bool bf16, void *out, const enum stored kind)
{
    if (p->by_dim) {
        unpack_keys(p, head, token, n, width, bf16, out, kind);
    } else {
        unpack_values(p, head, token, n, width, bf16, out, kind);
    }
}

#endif
