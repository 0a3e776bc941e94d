// SPDX-License-Identifier: Apache-2.0
/* Two floats rounded to 16 bits in one instruction. Where the rounded values are also used as
 * floats, the compiler would convert them one by one, on a pipe that is much slower.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_ROUND_PAIR_CUH
#define SLUICE_CUDA_DEVICE_ROUND_PAIR_CUH

#include "cuda/kernels/device/types.cuh"

__device__ __forceinline__ uint32_t round_pair(float a, float b, bf16_t)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
    return pair;
}

__device__ __forceinline__ uint32_t round_pair(float a, float b, f16_t)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
    return pair;
}

#endif
