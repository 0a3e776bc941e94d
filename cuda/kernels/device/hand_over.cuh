// SPDX-License-Identifier: Apache-2.0
/* A thread that fills stages tells the computing warps what is in them.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_HAND_OVER_CUH
#define SLUICE_CUDA_DEVICE_HAND_OVER_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

/* The value passes through atomic words. The stage's barriers already order these accesses, as they
 * do for the boxes, but racecheck does not understand mbarriers and would report a race. */
template <typename V>
__device__ __forceinline__ void hand_over(uint32_t (&words)[sizeof(V) / 4], const V &value)
{
    constexpr int N = sizeof(V) / 4;
    static_assert(sizeof(V) == N * 4 && N <= 32, "a lane each");
    uint32_t v[N];
    memcpy(v, &value, sizeof v);
#pragma unroll
    for (int i = 0; i < N; i++) {
        atomicExch(&words[i], v[i]);
    }
}

/* When it returns, all lanes of the warp have read. */
template <typename V>
__device__ __forceinline__ V take_over(uint32_t (&words)[sizeof(V) / 4], int lane)
{
    constexpr int N = sizeof(V) / 4;
    const uint32_t mine = lane < N ? atomicOr(&words[lane], 0) : 0;
    uint32_t v[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] = __shfl_sync(0xffffffffu, mine, i);
    }
    V value;
    memcpy(&value, v, sizeof value);
    return value;
}

#endif
