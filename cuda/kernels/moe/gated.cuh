// SPDX-License-Identifier: Apache-2.0
/* The roundings and the activation of 16-bit experts that moe/sm90.cu supports. moe.cu and
 * few_fixed.cu use the same ones, so that a row's bits do not depend on the number of rows.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_GATED_CUH
#define SLUICE_CUDA_KERNELS_MOE_GATED_CUH

#include "cuda/kernels/device/activation.cuh"
#include "cuda/kernels/device/pairs.cuh"

/* act_gated with fast exponentials and division, since the result is rounded to 16 bits. */
template <int KIND>
__device__ __forceinline__ float gated(float g, float u, const struct act_shape &s)
{
    if (KIND == ACT_SILU) {
        return silu_gated(g, u);
    }
    if (KIND == ACT_GELU_TANH) { // 1 + tanh(z) = 2 / (1 + exp(-2 z))
        return __fdividef(g, 1.0f + __expf(-1.5957691216057308f * (g + 0.044715f * g * g * g))) * u;
    }
    if (KIND == ACT_SILU_CLAMPED) {
        return fminf(silu_gated(g, 1.0f), s.alpha) * fminf(fmaxf(u, -s.limit), s.limit);
    }
    if (KIND == ACT_GPT_OSS) {
        g = fminf(g, s.limit);
        u = fminf(fmaxf(u, -s.limit), s.limit);
        return __fdividef(g, 1.0f + __expf(-s.alpha * g)) * (u + 1.0f);
    }
    return act_gated<KIND>(g, u, s);
}

/* A sum as sm90.cu keeps it, in 16 bits. */
template <typename T> __device__ __forceinline__ float rounded(float v)
{
    return to_float(from_float<T>(v));
}

/* An output of the down product as sm90.cu stores it. bias: NULL if there is none. */
template <typename T> __device__ __forceinline__ float rounded_out(float v, const float *bias)
{
    return bias ? rounded<T>(rounded<T>(v) + *bias) : rounded<T>(v);
}

#endif
