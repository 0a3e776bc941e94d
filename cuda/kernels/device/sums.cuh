// SPDX-License-Identifier: Apache-2.0
/* Reads a product that was left as partial sums over ranges of K (struct sum_parts). The value is
 * their sum, added in order and rounded to T as if it had been stored.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_SUMS_CUH
#define SLUICE_CUDA_DEVICE_SUMS_CUH

#include "cuda/gemm.h"
#include "cuda/kernels/device/types.cuh"

/* Loads the vector at a column of a row. Rows are dense. */
template <typename T>
__device__ __forceinline__ void load_sum(vec<T> *to, const struct sum_parts &s, int64_t row,
                                         int32_t column)
{
    constexpr int N = vec<T>::N;
    const float *from = s.first + row * s.width + column;
    float sum[N];
#pragma unroll
    for (int e = 0; e < N; e++) {
        sum[e] = s.bias ? s.bias[column + e] : 0.0f;
    }
#pragma unroll 4
    for (int32_t k = 0; k < s.n; k++) {
        float4 part[N / 4];
#pragma unroll
        for (int e = 0; e < N; e += 4) {
            part[e / 4] = *(const float4 *)(from + k * s.stride + e);
        }
#pragma unroll
        for (int e = 0; e < N; e++) {
            sum[e] += ((const float *)part)[e];
        }
    }
#pragma unroll
    for (int e = 0; e < N; e++) {
        to->v[e] = from_float<T>(sum[e]);
    }
}

#endif
