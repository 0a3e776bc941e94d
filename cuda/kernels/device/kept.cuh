// SPDX-License-Identifier: Apache-2.0
/* Keeps a value in a register. Otherwise the compiler recomputes a loop's invariant values in every
 * iteration.
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
