// SPDX-License-Identifier: Apache-2.0
/* The codes of K and V in pages (struct kv_codes in cuda/layout.h): their layout, their meaning,
 * and how a head is quantised. Every operation is the same as in cpu/cpu_kv_codes.h, so the results
 * have the same bits.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_KV_CODES_CUH
#define SLUICE_CUDA_DEVICE_KV_CODES_CUH

#include "cuda/kernels/device/types.cuh"
#include "cuda/layout.h"

struct kv_scale {
    float scale, zero;
};

/* One token of a head: the record that contains it, and its index in the record. */
struct kv_place {
    char *record;
    int32_t token;
};

__device__ __forceinline__ struct kv_place kv_place_of(const struct kv_view &kv, int64_t page,
                                                       int32_t kv_head, int32_t token)
{
    const int32_t per = kv.codes.tokens, record = token / per;
    return {(char *)kv.base + page * kv.page_stride + (int64_t)kv_head * kv.head_stride +
                (int64_t)record * kv.codes.record_bytes,
            token - record * per};
}

/* The address of byte `byte` of the token's row of K or V. Aligned runs of up to 16 bytes are
 * contiguous. */
__device__ __forceinline__ char *kv_byte(const struct kv_codes &c, const struct kv_place &at,
                                         bool is_v, int32_t byte)
{
    const int32_t b = at.token * (is_v ? c.v_row : c.k_row) + byte;
    return at.record + (is_v ? c.v_offset : 0) + (c.tokens == 16 ? b ^ (b >> 3 & 0x70) : b);
}

__device__ __forceinline__ char *kv_word(const struct kv_codes &c, const struct kv_place &at,
                                         bool is_v)
{
    return at.record + c.words_offset + (at.token + (is_v ? c.tokens : 0)) * c.word_bytes;
}

/* ---- words --------------------------------------------------------------------------------- */

static constexpr uint32_t KV_SCALE_MASK = 0xffffc000u;
static constexpr int KV_ZERO_SHIFT = 18; // 32 minus the number of bits of the zero
static constexpr float KV_ZERO_LARGEST = 8191.0f;

__device__ __forceinline__ bool kv_has_zero(enum kv_format f)
{
    return f == KV_INT8 || f == KV_INT4;
}

__device__ __forceinline__ float kv_zero_step(enum kv_format f)
{
    return f == KV_INT4 ? 1.0f / 64.0f : 1.0f / 16.0f;
}

/* Decodes the scale word of a 16-bit model. */
__device__ __forceinline__ struct kv_scale kv_scale_of_word(enum kv_format f, uint32_t word)
{
    if (kv_has_zero(f)) {
        const int32_t zero = (int32_t)(word << KV_ZERO_SHIFT) >> KV_ZERO_SHIFT;
        return {__uint_as_float(word & KV_SCALE_MASK), (float)zero * kv_zero_step(f)};
    }
    return {__uint_as_float(word), f == KV_INT8_SYMMETRIC ? 128.0f : 0.0f};
}

__device__ __forceinline__ struct kv_scale kv_scale_get(const struct kv_codes &c,
                                                        const struct kv_place &at, bool is_v)
{
    if (c.word_bytes == 0) {
        return {is_v ? c.v_scale : c.k_scale, 0.0f};
    }
    const uint32_t *word = (const uint32_t *)kv_word(c, at, is_v);
    if (c.word_bytes == 8) {
        return {__uint_as_float(word[0]), __uint_as_float(word[1])};
    }
    return kv_scale_of_word(c.format, word[0]);
}

__device__ __forceinline__ void kv_scale_put(const struct kv_codes &c, const struct kv_place &at,
                                             bool is_v, struct kv_scale s)
{
    if (c.word_bytes == 0) {
        return;
    }
    uint32_t *word = (uint32_t *)kv_word(c, at, is_v);
    uint32_t first = __float_as_uint(s.scale);
    if (c.word_bytes == 8) {
        word[1] = __float_as_uint(s.zero);
    } else if (kv_has_zero(c.format)) {
        const int32_t zero = (int32_t)(s.zero / kv_zero_step(c.format));
        first = (first & KV_SCALE_MASK) | ((uint32_t)zero & ~KV_SCALE_MASK);
    }
    word[0] = first;
}

/* ---- reading ------------------------------------------------------------------------------- */

__device__ __forceinline__ float kv_e4m3(uint32_t code)
{
    const uint32_t sign = (code & 0x80u) << 24, rest = code & 0x7fu;
    if (rest == 0x7fu) {
        return __uint_as_float(sign | 0x7fc00000u);
    }
    const float size =
        rest < 8 ? (float)rest * (1.0f / 512.0f) : __uint_as_float((rest << 20) + (120u << 23));
    return __uint_as_float(__float_as_uint(size) | sign);
}

/* The value of a code; `byte` is the byte that contains element d. */
__device__ __forceinline__ float kv_number(enum kv_format f, struct kv_scale s, uint32_t byte,
                                           int32_t d)
{
    if (f == KV_FP8) {
        return kv_e4m3(byte) * s.scale;
    }
    const uint32_t code = f == KV_INT4 ? byte >> (d & 1) * 4 & 15u : byte;
    return ((float)code - s.zero) * s.scale;
}

__device__ __forceinline__ float kv_get(const struct kv_codes &c, const struct kv_place &at,
                                        bool is_v, struct kv_scale s, int32_t d)
{
    return kv_number(c.format, s,
                     *(const uint8_t *)kv_byte(c, at, is_v, c.format == KV_INT4 ? d >> 1 : d), d);
}

/* ---- storing ------------------------------------------------------------------------------- */

struct kv_range {
    float low, high;
    bool broken; // a value is NaN or infinite
};

static constexpr struct kv_range KV_NO_RANGE = {3.4028235e38f, -3.4028235e38f, false};

__device__ __forceinline__ void kv_range_add(struct kv_range &r, float x)
{
    r.low = fminf(r.low, x);
    r.high = fmaxf(r.high, x);
    r.broken |= x - x != 0.0f;
}

/* Combines the ranges of `n` lanes (a power of two); all of them get the result. */
__device__ __forceinline__ struct kv_range kv_range_of_lanes(struct kv_range r, unsigned lanes,
                                                             int n)
{
    for (int mask = n >> 1; mask > 0; mask >>= 1) {
        r.low = fminf(r.low, __shfl_xor_sync(lanes, r.low, mask));
        r.high = fmaxf(r.high, __shfl_xor_sync(lanes, r.high, mask));
        r.broken |= __shfl_xor_sync(lanes, (int)r.broken, mask) != 0;
    }
    return r;
}

__device__ __forceinline__ struct kv_scale kv_zeroed_scale(const struct kv_codes &c,
                                                           const struct kv_range &r)
{
    const float levels = c.format == KV_INT4 ? 15.0f : 255.0f, step = kv_zero_step(c.format);
    const bool shared = c.word_bytes == 4; // the scale and the zero share a word
    float scale = (r.high - r.low) / levels;
    if (shared) {
        scale = fmaxf(scale, fabsf(r.low) / (step * (0.98f * KV_ZERO_LARGEST)));
        scale = __uint_as_float((__float_as_uint(scale) + 0x2000u) & KV_SCALE_MASK);
    }
    scale = scale == 0.0f ? 1.0f : scale;
    float zero = -r.low / scale;
    if (shared) {
        zero = fminf(fmaxf(rintf(zero / step), -KV_ZERO_LARGEST), KV_ZERO_LARGEST) * step;
    }
    return {scale, zero};
}

__device__ __forceinline__ struct kv_scale kv_scale_of(const struct kv_codes &c, bool is_v,
                                                       const struct kv_range &r)
{
    if (c.word_bytes == 0) {
        return {is_v ? c.v_scale : c.k_scale, 0.0f};
    }
    struct kv_scale s;
    if (kv_has_zero(c.format)) {
        s = kv_zeroed_scale(c, r);
    } else {
        const float most = fmaxf(-r.low, r.high);
        s.scale = fmaxf(most / (c.format == KV_FP8 ? 448.0f : 127.0f), 1e-6f);
        s.zero = 0.0f;
    }
    if (r.broken || s.scale - s.scale != 0.0f) {
        s = {__uint_as_float(0x7fc00000u), 0.0f};
    }
    return s;
}

__device__ __forceinline__ uint32_t kv_e4m3_of(float x)
{
    const uint32_t u = __float_as_uint(x), sign = u >> 24 & 0x80u;
    const uint32_t a = min(u & 0x7fffffffu, 0x43e00000u);
    const uint32_t normal = ((a + 0x7ffffu + (a >> 20 & 1u)) >> 20) - (120u << 3);
    const uint32_t small = __float_as_uint(__fadd_rn(__uint_as_float(a), 16384.0f)) - 0x46800000u;
    if (x != x) {
        return 0x7fu;
    }
    return sign | (a < 0x3c800000u ? small : normal);
}

/* The code of a value, given its scale and zero. */
__device__ __forceinline__ uint32_t kv_code_of(enum kv_format f, struct kv_scale s, float x)
{
    const float v = __fdiv_rn(x, s.scale);
    if (f == KV_FP8) {
        return kv_e4m3_of(v);
    }
    if (f == KV_INT8_SYMMETRIC) {
        return (uint32_t)(int32_t)fminf(fmaxf(roundf(v), -128.0f), 127.0f) + 128u;
    }
    const float q = __fadd_rn(__fadd_rn(v, s.zero), 0.5f);
    return (uint32_t)fminf(fmaxf(q, 0.0f), f == KV_INT4 ? 15.0f : 255.0f);
}

/* Packs four values into a word of codes, or eight values if codes have 4 bits. */
__device__ __forceinline__ uint32_t kv_codes_of(enum kv_format f, struct kv_scale s, const float *x)
{
    uint32_t word = 0;
    if (f == KV_INT4) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            word |= kv_code_of(f, s, x[i]) << (4 * i);
        }
        return word;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        word |= kv_code_of(f, s, x[i]) << (8 * i);
    }
    return word;
}

/* Stores a head of n elements; all lanes of a warp take part. The elements are in memory that the
 * warp shares, padded with zeros to a multiple of 32. */
__device__ __forceinline__ void kv_store_head(const struct kv_codes &c, const struct kv_place &at,
                                              bool is_v, const float *x, int n)
{
    const int lane = threadIdx.x & 31, per_chunk = c.format == KV_INT4 ? 32 : 16;
    struct kv_range r = KV_NO_RANGE;
    for (int i = lane; i < n; i += 32) {
        kv_range_add(r, x[i]);
    }
    const struct kv_scale s = kv_scale_of(c, is_v, kv_range_of_lanes(r, 0xffffffffu, 32));
    if (lane == 0) {
        kv_scale_put(c, at, is_v, s);
    }
    for (int chunk = lane; chunk * per_chunk < n; chunk += 32) {
        uint4 out;
        const float *from = x + chunk * per_chunk;
        out.x = kv_codes_of(c.format, s, from);
        out.y = kv_codes_of(c.format, s, from + per_chunk / 4);
        out.z = kv_codes_of(c.format, s, from + per_chunk / 2);
        out.w = kv_codes_of(c.format, s, from + per_chunk / 4 * 3);
        *reinterpret_cast<uint4 *>(kv_byte(c, at, is_v, chunk * 16)) = out;
    }
}

/* Part e of a token's data, for copies. The parts are numbered head after head: first the codes of
 * K and V, 16 bytes per part, then the scale words, 4 bytes per part. */
struct kv_part {
    char *at;
    int32_t n_bytes;
};

__device__ __forceinline__ int32_t kv_parts_of_head(const struct kv_view &kv)
{
    const struct kv_codes &c = kv.codes;
    return (c.k_row + (c.v_offset != 0 ? c.v_row : 0)) / 16 +
           (c.v_offset != 0 ? 2 : 1) * c.word_bytes / 4;
}

__device__ __forceinline__ struct kv_part kv_part_at(const struct kv_view &kv, int64_t page,
                                                     int32_t token, int32_t e)
{
    const struct kv_codes &c = kv.codes;
    const int32_t per_head = kv_parts_of_head(kv), n_k = c.k_row / 16;
    const int32_t n_v = c.v_offset != 0 ? c.v_row / 16 : 0;
    const struct kv_place at = kv_place_of(kv, page, e / per_head, token);
    int32_t i = e % per_head;
    if (i < n_k + n_v) {
        return {kv_byte(c, at, i >= n_k, (i < n_k ? i : i - n_k) * 16), 16};
    }
    i -= n_k + n_v;
    const bool is_v = i >= c.word_bytes / 4;
    return {kv_word(c, at, is_v) + (is_v ? i - c.word_bytes / 4 : i) * 4, 4};
}

__device__ __forceinline__ void kv_copy_part(const struct kv_part &to, const struct kv_part &from)
{
    if (to.n_bytes == 16) {
        *(uint4 *)to.at = *(const uint4 *)from.at;
    } else {
        *(uint32_t *)to.at = *(const uint32_t *)from.at;
    }
}

#endif
