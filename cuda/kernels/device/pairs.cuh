// SPDX-License-Identifier: Apache-2.0
/* Two adjacent 16-bit values in one register, and the gated activation that produces them.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_PAIRS_CUH
#define SLUICE_CUDA_DEVICE_PAIRS_CUH

#include "cuda/kernels/device/types.cuh"

template <typename T> __device__ __forceinline__ uint32_t pack_pair(float a, float b)
{
    alignas(4) const T v[2] = {from_float<T>(a), from_float<T>(b)};
    return *(const uint32_t *)v;
}

template <typename T> __device__ __forceinline__ float2 unpack_pair(uint32_t pair)
{
    T v[2];
    memcpy(v, &pair, sizeof v);
    return make_float2(to_float(v[0]), to_float(v[1]));
}

/* Accurate enough, because the result is rounded to 16 bits. Very negative gates give -0. */
__device__ __forceinline__ float silu_gated(float gate, float up)
{
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

#endif
