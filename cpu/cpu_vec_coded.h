// SPDX-License-Identifier: Apache-2.0
/* Dequantises weights to the operand of a product (struct code_run). Included by cpu_kernels_vec.h.
 * Thread: any. */
#ifndef SLUICE_CPU_VEC_CODED_H
#define SLUICE_CPU_VEC_CODED_H

#include "cpu/cpu_internal.h"
#include "cpu/cpu_vec.h"

/* How far ahead of their use codes are prefetched, in bytes. */
enum { CODES_AHEAD = 2048 };

/* VEC bytes as integers, unsigned or signed. The code that gcc generates from plain C is five times
 * slower. */
VEC_INLINE vi vec_widen_bytes(const char *p)
{
#if defined(__AVX512F__)
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
#elif defined(__AVX2__)
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
#else
    vi out;
    for (int i = 0; i < VEC; i++) {
        out[i] = (uint8_t)p[i];
    }
    return out;
#endif
}

VEC_INLINE vf vec_from_i8(const char *p)
{
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
#else
    vf out;
    for (int i = 0; i < VEC; i++) {
        out[i] = (float)(int8_t)p[i];
    }
    return out;
#endif
}

/* Converts whole vectors, then the remaining bytes. */
static void widen_bytes(const char *from, float *to, int64_t n)
{
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec_store(to + i, vec_from_i8(from + i));
    }
    for (; i < n; i++) {
        to[i] = (float)(int8_t)from[i];
    }
}

VEC_INLINE vf vec_from_int(vi x)
{
    return __builtin_convertvector(x, vf);
}

/* Converts E4M3 by way of f16: shifted down by 7, its bits are an f16 with 2^-8 of the value, and
 * denormals cost nothing. The missing factor goes into the scale; multiplying by a power of two is
 * exact. */
#define E4M3_OF_F16 256.0f

VEC_INLINE void pair_from_e4m3(const char *pair, int j, vf *even, vf *odd)
{
#if defined(__AVX512F__)
    (void)j; // one vector is a whole panel
    __m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)pair));
    __m512i sign = _mm512_slli_epi16(_mm512_and_si512(x, _mm512_set1_epi16(0x80)), 8);
    __m512i rest = _mm512_slli_epi16(_mm512_and_si512(x, _mm512_set1_epi16(0x7F)), 7);
    x = _mm512_or_si512(sign, rest);
    *even = (vf)_mm512_cvtph_ps(_mm512_castsi512_si256(x));
    *odd = (vf)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1));
#else
    uint16_t half[2][VEC];
    for (int i = 0; i < 2 * VEC; i++) {
        uint16_t x = (uint8_t)pair[i / VEC * PANEL + j * VEC + i % VEC];
        half[i / VEC][i % VEC] = (uint16_t)((x & 0x80) << 8 | (x & 0x7F) << 7);
    }
    *even = vec_from_f16(half[0]);
    *odd = vec_from_f16(half[1]);
#endif
}

/* A table of sixteen values, indexed by the low four bits of each lane. */
struct code_table {
#if defined(__AVX512F__)
    vf all;
#elif defined(__AVX2__)
    vf low, high;
#else
    const float *values;
#endif
};

VEC_INLINE struct code_table load_table(const float *values)
{
#if defined(__AVX512F__)
    return (struct code_table){vec_load(values)};
#elif defined(__AVX2__)
    return (struct code_table){vec_load(values), vec_load(values + 8)};
#else
    return (struct code_table){values};
#endif
}

VEC_INLINE vf vec_look_up(const struct code_table *t, vi at)
{
#if defined(__AVX512F__)
    return (vf)_mm512_permutexvar_ps((__m512i)at, (__m512)t->all);
#elif defined(__AVX2__)
    __m256 low = _mm256_permutevar8x32_ps((__m256)t->low, (__m256i)at);
    __m256 high = _mm256_permutevar8x32_ps((__m256)t->high, (__m256i)at);
    return (vf)_mm256_blendv_ps(low, high, (__m256)(at << 28));
#else
    vf out;
    for (int i = 0; i < VEC; i++) {
        out[i] = t->values[at[i] & 15];
    }
    return out;
#endif
}

/* How the codes of a run are mapped to values, before their scales. Five-bit codes use two tables
 * of half the size; from six-bit codes `middle` is subtracted. */
struct code_sense {
    struct code_table table, upper;
    vf middle;
};

/* The bits of b in `mask`, and all others of a. */
VEC_INLINE vi join_bits(vi a, vi b, int mask)
{
#if defined(__AVX512F__)
    enum { B_WHERE_C = 0xD8 }; // c ? b : a
    return (vi)_mm512_ternarylogic_epi32((__m512i)a, (__m512i)b, _mm512_set1_epi32(mask),
                                         B_WHERE_C);
#else
    return (a & ~mask) | (b & mask);
#endif
}

/* Looks up five bits of each lane. */
VEC_INLINE vf vec_look_up_5(const struct code_sense *sense, vi at)
{
#if defined(__AVX512F__)
    return (vf)_mm512_permutex2var_ps((__m512)sense->table.all, (__m512i)at,
                                      (__m512)sense->upper.all);
#else
    const vi is_upper = (at & 16) == 16;
    const vi low = (vi)vec_look_up(&sense->table, at), high = (vi)vec_look_up(&sense->upper, at);
    return (vf)((high & is_upper) | (low & ~is_upper));
#endif
}

/* The code of input i of a group: its low bits, and its high bits, which are in the group's extra
 * bytes. The bits above them are undefined. */
VEC_INLINE vi join_code(vi low, vi high, const int i, const enum code_kind kind)
{
    const int at = kind == CODE_6 ? 2 * i : i, to = kind == CODE_3 ? 2 : 4;
    return join_bits(low, at < to ? high << (to - at) : high >> (at - to),
                     (kind == CODE_6 ? 3 : 1) << to);
}

/* Codes of two bits, with a third one in `high`. */
VEC_INLINE void narrow_values(const struct code_sense *sense, const char *group, vi high, int p,
                              int j, vf *even, vf *odd, const enum code_kind kind)
{
    vi first = vec_widen_bytes(group + p / 2 * PANEL + j * VEC) >> p % 2 * 4;
    vi second = first >> 2;
    if (kind == CODE_3) {
        first = join_code(first, high, 2 * p, kind);
        second = join_code(second, high, 2 * p + 1, kind);
    }
    *even = vec_look_up(&sense->table, first);
    *odd = vec_look_up(&sense->table, second);
}

/* Vector number j of the inputs of pair p of a group. `high` has the group's extra bytes. */
VEC_INLINE void code_values(const struct code_sense *sense, const char *group, vi high, int p,
                            int j, vf *even, vf *odd, const enum code_kind kind)
{
    const char *pair = group + p * (kind == CODE_I8 || kind == CODE_E4M3 ? 2 * PANEL : PANEL);
    if (kind == CODE_2 || kind == CODE_3) {
        narrow_values(sense, group, high, p, j, even, odd, kind);
        return;
    }
    if (kind == CODE_I8) {
        *even = vec_from_i8(pair + j * VEC);
        *odd = vec_from_i8(pair + PANEL + j * VEC);
        return;
    }
    if (kind == CODE_E4M3) {
        pair_from_e4m3(pair, j, even, odd);
        return;
    }
    const vi both = vec_widen_bytes(pair + j * VEC);
    if (kind == CODE_4) {
        *even = vec_look_up(&sense->table, both);
        *odd = vec_look_up(&sense->table, both >> 4);
        return;
    }
    const vi first = join_code(both, high, 2 * p, kind);
    const vi second = join_code(both >> 4, high, 2 * p + 1, kind);
    if (kind == CODE_5) {
        *even = vec_look_up_5(sense, first);
        *odd = vec_look_up_5(sense, second);
    } else {
        *even = vec_from_int(first & 63) - sense->middle;
        *odd = vec_from_int(second & 63) - sense->middle;
    }
}

/* Rounds to bf16 and interleaves even and odd elements. */
VEC_INLINE void store_pairs(uint16_t *to, vf even, vf odd)
{
#if defined(__AVX512BF16__)
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_loadu_si512(order), both));
#else
    vi low = (vi)((vu)vec_round_bf16(even) >> 16), high = (vi)vec_round_bf16(odd);
    vi both = low | high;
    memcpy(to, &both, sizeof both);
#endif
}

/* Whether a zero or an offset is applied to values in addition to their scale. */
enum code_shift { SHIFT_NONE, SHIFT_ZERO, SHIFT_OFFSET };

VEC_INLINE vf scaled(vf value, vf scale, vf shift, const enum code_shift how)
{
    if (how == SHIFT_OFFSET) {
        return vec_fma(value, scale, shift); // the product is exact
    }
    return (how == SHIFT_ZERO ? value - shift : value) * scale;
}

VEC_INLINE void store_values(const struct code_run *r, int64_t pair, int32_t panel, int j, vf even,
                             vf odd, const bool to_f16)
{
    if (to_f16) {
        const int64_t width = (int64_t)r->panels * PANEL;
        uint16_t *to = (uint16_t *)r->out + (r->first + 2 * pair) * width + panel * PANEL + j * VEC;
        vec_to_f16(to, even);
        vec_to_f16(to + width, odd);
    } else {
        int64_t place = pair_at(r, r->first / 2 + pair, panel) * PAIR_CODES;
        store_pairs((uint16_t *)r->out + place + 2 * j * VEC, even, odd);
    }
}

VEC_INLINE void decode_groups(const struct code_run *r, const bool to_f16,
                              const enum code_shift how, const enum code_kind kind)
{
    const int n_pairs = code_group(kind) / 2;
    const int64_t group_bytes = code_bytes(kind, (int64_t)code_group(kind) * PANEL);
    const int64_t step = group_bytes * r->panels, last = group_bytes - PANEL;
    const float *shifts = how == SHIFT_ZERO ? r->zeros : r->offsets;
    struct code_sense sense = {.middle = vec_set((float)r->middle)};
    if (kind <= CODE_5) {
        sense.table = load_table(r->values);
        sense.upper = load_table(r->values + 16);
    }
    for (int32_t panel = 0; panel < r->panels; panel++) {
        const char *codes = r->codes + panel * group_bytes;
        for (int j = 0; j < PANEL / VEC; j++) {
            const int32_t at = panel * PANEL + j * VEC;
            const vf scale = vec_load(r->scales + at) * (kind == CODE_E4M3 ? E4M3_OF_F16 : 1.0f);
            const vf shift = shifts ? vec_load(shifts + at) : vec_set(0.0f);
            for (int64_t group = 0; group < r->k / 2 / n_pairs; group++) {
                const char *from = codes + group * step;
                __builtin_prefetch(from + CODES_AHEAD);
                const vi high = n_pairs > 1 ? vec_widen_bytes(from + last + j * VEC) : (vi){0};
                for (int p = 0; p < n_pairs; p++) {
                    vf even, odd;
                    code_values(&sense, from, high, p, j, &even, &odd, kind);
                    store_values(r, group * n_pairs + p, panel, j, scaled(even, scale, shift, how),
                                 scaled(odd, scale, shift, how), to_f16);
                }
            }
        }
    }
}

VEC_INLINE void decode_kind(const struct code_run *r, const bool to_f16, const enum code_kind kind)
{
    const bool may_have_zeros = kind == CODE_2 || kind == CODE_4 || kind == CODE_I8;
    if (may_have_zeros && r->zeros) {
        decode_groups(r, to_f16, SHIFT_ZERO, kind);
    } else if (kind != CODE_E4M3 && r->offsets) {
        decode_groups(r, to_f16, SHIFT_OFFSET, kind);
    } else {
        decode_groups(r, to_f16, SHIFT_NONE, kind);
    }
}

VEC_INLINE void decode(const struct code_run *r, const bool to_f16)
{
    switch (r->kind) {
    case CODE_2: decode_kind(r, to_f16, CODE_2); break;
    case CODE_3: decode_kind(r, to_f16, CODE_3); break;
    case CODE_4: decode_kind(r, to_f16, CODE_4); break;
    case CODE_I8: decode_kind(r, to_f16, CODE_I8); break;
    case CODE_E4M3: decode_kind(r, to_f16, CODE_E4M3); break;
    case CODE_5: decode_kind(r, to_f16, CODE_5); break;
    case CODE_6: decode_kind(r, to_f16, CODE_6); break;
    }
}

static void decode_bf16(const struct code_run *r)
{
    decode(r, false);
}

static void decode_f16(const struct code_run *r)
{
    decode(r, true);
}

#endif
