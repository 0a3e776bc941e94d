// SPDX-License-Identifier: Apache-2.0
/* Rounds rows to E4M3 as struct round_args specifies, eight adjacent elements per thread: in a
 * separate kernel (gemm/inputs.cu), or fused into the kernel that produces the row.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_ROUNDING_CUH
#define SLUICE_CUDA_DEVICE_ROUNDING_CUH

#include "cuda/gemm.h"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/types.cuh"

#include <cuda_fp8.h>
#include <type_traits>

enum { ROUND_PIECE = 8, ROUND_GROUP = 128 };

__device__ __forceinline__ float round_scale(const struct round_args &a, float largest)
{
    const float most = 448.0f, least_of_groups = 1e-10f;
    float scale = __fdiv_rn(a.limit > 0.0f ? fminf(largest, a.limit) : largest, most);
    scale = a.group > 0 ? fmaxf(scale, least_of_groups) : scale;
    if (a.power_of_two && scale > 0.0f) { // round up to the next power of two
        const uint32_t bits = __float_as_uint(scale);
        scale = __uint_as_float((bits + 0x7fffffu) & 0x7f800000u);
    }
    return scale;
}

/* Pairs of 16-bit values, so that the values need not be kept as floats, too. */
template <typename T> __device__ __forceinline__ float round_largest(const vec<T> &v)
{
    using pair = std::conditional_t<std::is_same<T, bf16_t>::value, __nv_bfloat162, __half2>;
    const pair *pairs = (const pair *)v.v;
    pair largest = __habs2(pairs[0]);
#pragma unroll
    for (int i = 1; i < ROUND_PIECE / 2; i++) {
        largest = __hmax2(largest, __habs2(pairs[i]));
    }
    return fmaxf(fmaxf(to_float(largest.x), to_float(largest.y)), 0.0f); // 0 if all are NaN
}

/* The maximum over the group of 128 values that the half warp holds. All its threads must call
 * it. */
__device__ __forceinline__ float round_group_largest(float largest)
{
    const unsigned half = 0xffffu << (threadIdx.x & 16);
#pragma unroll
    for (int mask = 8; mask > 0; mask >>= 1) {
        largest = fmaxf(largest, __shfl_xor_sync(half, largest, mask));
    }
    return largest;
}

/* The factor that turns values into codes. A scale of 0 means that all values are 0. */
__device__ __forceinline__ float round_factor(float scale)
{
    return scale > 0.0f ? fminf(__frcp_rn(scale), 3.0e38f) : 0.0f;
}

/* Rounds two adjacent values; the first goes to the low byte. */
__device__ __forceinline__ __nv_fp8x2_storage_t round_pair(float a, float b, float factor)
{
    return __nv_cvt_float2_to_fp8x2(make_float2(a * factor, b * factor), __NV_SATFINITE, __NV_E4M3);
}

template <typename T>
__device__ __forceinline__ void round_codes(const vec<T> &v, float scale,
                                            __nv_fp8x2_storage_t (&codes)[ROUND_PIECE / 2])
{
    const float factor = round_factor(scale);
#pragma unroll
    for (int i = 0; i < ROUND_PIECE / 2; i++) {
        codes[i] = round_pair(to_float(v.v[2 * i]), to_float(v.v[2 * i + 1]), factor);
    }
}

template <typename T>
__device__ __forceinline__ void round_put(const struct round_args &a, int row, int k,
                                          const vec<T> &v, float scale)
{
    alignas(8) __nv_fp8x2_storage_t codes[ROUND_PIECE / 2];
    round_codes(v, scale, codes);
    *(uint2 *)(a.codes + row * a.code_stride + k) = *(const uint2 *)codes;
}

/* Writes the codes and scales of a row that the block holds. If groups have scales, the block may
 * hold only the part of the row from element `begin` on (a multiple of 128). A thread has pieces j
 * at begin + (j * blockDim.x + threadIdx.x) * 8, and blockDim.x is a multiple of the warp size.
 * `shared`: see block_max. */
template <typename T, int NV>
__device__ __forceinline__ void round_row(const struct round_args &a, int row, int begin,
                                          const vec<T> (&v)[NV], float *shared)
{
    const int stride = blockDim.x * ROUND_PIECE, first = begin + threadIdx.x * ROUND_PIECE;
    if (a.group > 0) {
#pragma unroll
        for (int j = 0; j < NV; j++) {
            const int k = j * stride + first;
            const float largest = k < a.n_in ? round_largest(v[j]) : 0.0f;
            const float scale = round_scale(a, round_group_largest(largest));
            if (k < a.n_in) {
                round_put(a, row, k, v[j], scale);
                if ((threadIdx.x & 15) == 0) {
                    a.scales[(int64_t)(k / ROUND_GROUP) * a.n_rows + row] = scale;
                }
            }
        }
        return;
    }
    float scale = a.scale;
    if (scale == 0.0f) {
        float largest = 0.0f;
#pragma unroll
        for (int j = 0; j < NV; j++) {
            if (j * stride + first < a.n_in) {
                largest = fmaxf(largest, round_largest(v[j]));
            }
        }
        scale = round_scale(a, block_max(largest, shared));
    }
#pragma unroll
    for (int j = 0; j < NV; j++) {
        if (j * stride + first < a.n_in) {
            round_put(a, row, j * stride + first, v[j], scale);
        }
    }
    if (threadIdx.x == 0) {
        a.scales[row] = scale;
    }
}

#endif
