// SPDX-License-Identifier: Apache-2.0
/* What every kernel that ends in a norm shares, so that a norm fused with something has the bits of
 * one that stands alone. Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_NORM_CUH
#define SLUICE_CUDA_DEVICE_NORM_CUH

#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/types.cuh"

/* The last product and the addition are one fused operation wherever this is compiled. */
__device__ __forceinline__ float normed(float x, float weight, float bias, float mean, float scale)
{
    return fmaf((x - mean) * scale, weight, bias);
}

/* A value's share of the first sum: of the values for a layer norm, of their squares otherwise.
 * Written out, because a compiler may or may not fuse `sum += layer ? f : f * f`. */
__device__ __forceinline__ float moment_add(float sum, float f, bool layer)
{
    return layer ? sum + f : fmaf(f, f, sum);
}

struct row_moments {
    float mean, scale;
};

/* Of a row that the block holds, NV vectors a thread. sum: this thread's, of its values for a layer
 * norm (which takes the mean off), else of their squares. All threads of the block call it. */
template <typename T, int NV>
__device__ __forceinline__ struct row_moments
row_moments_of(const vec<T> *v, float sum, bool layer, int32_t width, float eps, float *shared)
{
    constexpr int N = vec<T>::N;
    float mean = 0.0f, square = block_sum(sum, shared) / (float)width;
    if (layer) {
        mean = square;
        sum = 0.0f;
#pragma unroll
        for (int j = 0; j < NV; j++) {
            if ((j * blockDim.x + threadIdx.x) * N < width) {
#pragma unroll
                for (int e = 0; e < N; e++) {
                    const float f = to_float(v[j].v[e]) - mean;
                    sum = fmaf(f, f, sum);
                }
            }
        }
        square = block_sum(sum, shared) / (float)width;
    }
    return {mean, 1.0f / sqrtf(square + eps)};
}

#endif
