// SPDX-License-Identifier: Apache-2.0
/* Shared by the kernels that rotate heads and store them: rope.cu and rope_mla.cu.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_ROPE_CUH
#define SLUICE_CUDA_KERNELS_ROPE_CUH

#include "cuda/kernels/device/growth.cuh"
#include "cuda/kernels/device/kv_codes.cuh"
#include "cuda/kernels/device/types.cuh"

#include <type_traits>

enum { ROPE_WARPS = 4, ROPE_MAX_HEAD = 576 };

/* Where the row's K and V are stored: the page, and the token in it. */
__device__ __forceinline__ void slot_of(const struct pass_view &pass, const struct pass_row &row,
                                        int32_t block_tokens, int64_t *page, int32_t *token)
{
    const int32_t block = row.slot_pos / block_tokens;
    *page = block < pass.blocks_stride ? pass.blocks[(int64_t)row.lane * pass.blocks_stride + block]
                                       : pass.n_blocks;
    *token = row.slot_pos % block_tokens;
}

/* NaN and infinity are never stored as values: a tile of rows multiplies a value also by the 0 of
 * rows that do not see its key, and 0 times NaN is NaN. Zeros are stored instead, with a key of
 * NaN, so that only the rows that see this key become NaN (cpu/cpu_kv.c). So code that stores a
 * part of a key first checks the same part of its value.
 *
 * The scale of codes must be finite, too, so the values to be quantised are limited. */
static constexpr float KV_CODES_LIMIT = 0x1p126f;

/* True if a page can hold the value. C: the type of the page's elements; unused for codes. */
template <typename C> __device__ __forceinline__ bool is_storable(float value, bool codes)
{
    return codes ? fabsf(value) < KV_CODES_LIMIT : fabsf(to_float(from_float<C>(value))) < INFINITY;
}

/* The same for eight values of a 16-bit type, which pages hold as they are, or as codes. Adding to
 * the exponents sets the sign bits if one is too large. */
template <typename T, bool CODES> __device__ __forceinline__ bool are_storable(const uint4 &v)
{
    constexpr bool IS_BF16 = std::is_same<T, bf16_t>::value;
    constexpr uint32_t BOTH = 0x00010001u, LOWEST = IS_BF16 ? 0x80 : 0x400;
    constexpr uint32_t EXPONENTS = (0x8000 - LOWEST) * BOTH;
    // Numbers from 2^126 on are too large for codes of bf16; otherwise only infinity and NaN are.
    constexpr uint32_t ADD = (IS_BF16 && CODES ? 3 : 1) * LOWEST * BOTH;
    const uint32_t any = ((v.x & EXPONENTS) + ADD) | ((v.y & EXPONENTS) + ADD) |
                         ((v.z & EXPONENTS) + ADD) | ((v.w & EXPONENTS) + ADD);
    return (any & (0x8000 * BOTH)) == 0;
}

template <typename T, bool CODES>
__device__ __forceinline__ bool are_storable(const vec<T> &a, const vec<T> &b)
{
    return are_storable<T, CODES>(*(const uint4 *)a.v) &&
           are_storable<T, CODES>(*(const uint4 *)b.v);
}

/* Rotates a pair of elements, and adds the squares of a pair to a sum. The operations are spelled
 * out, so that every kernel that uses them gives the same bits. */
__device__ __forceinline__ void turn(float &a, float &b, float cos, float sin)
{
    const float x = a;
    a = __fmaf_rn(x, cos, -__fmul_rn(b, sin));
    b = __fmaf_rn(b, cos, __fmul_rn(x, sin));
}

__device__ __forceinline__ float add_squares(float sum, float a, float b)
{
    return __fadd_rn(sum, __fmaf_rn(a, a, __fmul_rn(b, b)));
}

/* The cosine and sine by which element i of a head is turned, if it is. */
__device__ __forceinline__ float2 angle_of(int i, const struct rope_view &rope,
                                           const float *cos_sin)
{
    if (i >= 2 * rope.n_pairs) {
        return make_float2(1.0f, 0.0f);
    }
    int pair = i >> 1;
    if (!rope.interleaved) {
        pair = i < rope.n_pairs ? i : i - rope.n_pairs;
    }
    return make_float2(cos_sin[2 * pair], cos_sin[2 * pair + 1]);
}

/* Rotates element i of a head whose elements are in `head`, shared by the warp, by its angle. */
__device__ __forceinline__ float rotated(const float *head, int i, const struct rope_view &rope,
                                         float2 angle)
{
    if (i >= 2 * rope.n_pairs) {
        return head[i];
    }
    const int apart = rope.interleaved ? 1 : rope.n_pairs; // the elements of a pair
    const bool second = rope.interleaved ? i & 1 : i >= rope.n_pairs;
    const float *pair = head + (second ? i - apart : i);
    float a = pair[0], b = pair[apart];
    turn(a, b, angle.x, angle.y);
    return second ? b : a;
}

__device__ __forceinline__ float rotated(const float *head, int i, const struct rope_view &rope,
                                         const float *cos_sin)
{
    return rotated(head, i, rope, angle_of(i, rope, cos_sin));
}

#endif
