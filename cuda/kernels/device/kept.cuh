// SPDX-License-Identifier: Apache-2.0
/* Keeps a value in a register. Otherwise the compiler computes values that do not change again in
 * every step of a loop.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_KEPT_CUH
#define SLUICE_CUDA_DEVICE_KEPT_CUH

template <typename V> __device__ __forceinline__ V kept(V v)
{
    asm volatile("" : "+r"(v));
    return v;
}

template <typename V> __device__ __forceinline__ V *kept(V *v)
{
    asm volatile("" : "+l"(v));
    return v;
}

#endif
