// SPDX-License-Identifier: Apache-2.0
/* Shared by every kernel that ends with a norm, so that a fused norm gives the same bits as a
 * separate one.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_NORM_CUH
#define SLUICE_CUDA_DEVICE_NORM_CUH

#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/types.cuh"

/* The last multiplication and the addition are one fused operation in every kernel. */
__device__ __forceinline__ float normed(float x, float weight, float bias, float mean, float scale)
{
    return fmaf((x - mean) * scale, weight, bias);
}

/* Adds a value to the row's first sum: the value itself for a layer norm, otherwise its square.
 * Both cases are written out, because a compiler may or may not fuse `sum += layer ? f : f * f`. */
__device__ __forceinline__ float moment_add(float sum, float f, bool layer)
{
    return layer ? sum + f : fmaf(f, f, sum);
}

struct row_moments {
    float mean, scale;
};

/* Normalises a row that the block holds, NV vectors per thread. sum: for a layer norm (which
 * subtracts the mean) this thread's sum of its values, otherwise of their squares. Called by all
 * threads of the block. */
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
