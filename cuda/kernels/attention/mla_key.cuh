// SPDX-License-Identifier: Apache-2.0
/* A latent key of mla_few.cu, in the registers of a warp.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_MLA_KEY_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_MLA_KEY_CUH

#include "cuda/kernels/attention/sm90.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/rope.cuh"

enum { ROPE = 64 }; // elements of a key's positional part

#if HAVE_SM90A

/* The elements of a key that a lane has: 8 of every 256, and 2 of the positional part. */
template <typename T, int LORA> struct key_of {
    vec<T> latent[LORA / 256];
    uint32_t rope;

    __device__ __forceinline__ void load(const T *key)
    {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int v = 0; v < LORA / 256; v++) {
            latent[v].load(key + v * 256 + lane * 8);
        }
        rope = *(const uint32_t *)(key + LORA + lane * 2);
    }
    __device__ __forceinline__ void store(T *key) const
    {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int v = 0; v < LORA / 256; v++) {
            latent[v].store(key + v * 256 + lane * 8);
        }
        *(uint32_t *)(key + LORA + lane * 2) = rope;
    }
    /* Zeroes vectors with NaN or infinity, which pages must not hold. True if there were none. */
    __device__ __forceinline__ bool drop_broken()
    {
        bool all = true;
#pragma unroll
        for (int v = 0; v < LORA / 256; v++) {
            uint4 &x = *(uint4 *)latent[v].v;
            const bool ok = are_storable<T, false>(x);
            x = ok ? x : make_uint4(0, 0, 0, 0);
            all = all && ok;
        }
        return all;
    }
    /* Keeps the compiler from holding the elements as floats between their two uses. */
    __device__ __forceinline__ void forget_floats()
    {
#pragma unroll
        for (int v = 0; v < LORA / 256; v++) {
            uint4 &x = *(uint4 *)latent[v].v;
            asm volatile("" : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w));
        }
    }
};

#endif // HAVE_SM90A
#endif
