// SPDX-License-Identifier: Apache-2.0
/* The norm of a new row's heads, four lanes to a head, with the same bits as rope.cu.
 * Thread: device code, all lanes of a warp. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_FEW_NORM_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_FEW_NORM_CUH

#include "cuda/kernels/kernels.h"
#include "cuda/kernels/rope.cuh"

template <typename T> __device__ __forceinline__ float2 unpack(uint32_t v);
template <> __device__ __forceinline__ float2 unpack<bf16_t>(uint32_t v)
{
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
template <> __device__ __forceinline__ float2 unpack<f16_t>(uint32_t v)
{
    return __half22float2(*reinterpret_cast<const __half2 *>(&v));
}

/* The scale of the norm of this lane's head. Squares are added in the order of rope.cu, where a
 * thread has one vector and the vector with which it is rotated. */
template <typename T, int DIM>
__device__ __forceinline__ float few_norm_scale(const uint32_t (&q)[DIM / 32][4], float eps)
{
    constexpr int J = DIM / 32;
    float part[J / 2];
#pragma unroll
    for (int j = 0; j < J / 2; j++) {
        part[j] = 0.0f;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float2 a = unpack<T>(q[j][e]), b = unpack<T>(q[j + J / 2][e]);
            part[j] = add_squares(part[j], a.x, b.x);
            part[j] = add_squares(part[j], a.y, b.y);
        }
        part[j] = __fadd_rn(part[j], __shfl_xor_sync(0xffffffffu, part[j], 2));
        part[j] = __fadd_rn(part[j], __shfl_xor_sync(0xffffffffu, part[j], 1));
    }
    const float all = J == 4 ? __fadd_rn(part[0], part[J / 2 - 1]) : part[0];
    return 1.0f / sqrtf(all / (float)DIM + eps);
}

#endif
