// SPDX-License-Identifier: Apache-2.0
/* Sums and maxima over a warp and over a block, in a fixed order. Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_REDUCE_CUH
#define SLUICE_CUDA_DEVICE_REDUCE_CUH

/* The greater number; NaN if one of them is. As cheap as fmaxf. */
__device__ __forceinline__ float max_or_nan(float a, float b)
{
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}

__device__ __forceinline__ float warp_sum(float x)
{
    for (int mask = 16; mask > 0; mask >>= 1) {
        x += __shfl_xor_sync(0xffffffffu, x, mask);
    }
    return x;
}

__device__ __forceinline__ float warp_max(float x)
{
    for (int mask = 16; mask > 0; mask >>= 1) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
    }
    return x;
}

/* All threads of the block must call it. `shared` has room for 32 floats and can be reused
 * afterwards. */
__device__ __forceinline__ float block_sum(float x, float *shared)
{
    x = warp_sum(x);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = (blockDim.x + 31) >> 5;
    if (lane == 0) {
        shared[warp] = x;
    }
    __syncthreads();
    x = warp_sum(lane < n_warps ? shared[lane] : 0.0f);
    __syncthreads();
    return x;
}

__device__ __forceinline__ float block_max(float x, float *shared)
{
    x = warp_max(x);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = (blockDim.x + 31) >> 5;
    if (lane == 0) {
        shared[warp] = x;
    }
    __syncthreads();
    x = warp_max(lane < n_warps ? shared[lane] : -INFINITY);
    __syncthreads();
    return x;
}

#endif
