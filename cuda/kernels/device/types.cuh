// SPDX-License-Identifier: Apache-2.0
/* The element types of activations and weights: conversion to and from float, 16-byte vectors, and
 * the switch from a run-time dtype to a template's type.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_TYPES_CUH
#define SLUICE_CUDA_DEVICE_TYPES_CUH

#include "engine/device/backend.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16_t;
typedef __half f16_t;

__device__ __forceinline__ float to_float(float x)
{
    return x;
}
__device__ __forceinline__ float to_float(bf16_t x)
{
    return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(f16_t x)
{
    return __half2float(x);
}

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ bf16_t from_float<bf16_t>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ f16_t from_float<f16_t>(float x)
{
    return __float2half_rn(x);
}

/* 16 bytes of T. */
template <typename T> struct alignas(16) vec {
    static constexpr int N = 16 / (int)sizeof(T);
    T v[N];

    __device__ __forceinline__ void load(const T *p)
    {
        *reinterpret_cast<uint4 *>(v) = *reinterpret_cast<const uint4 *>(p);
    }
    __device__ __forceinline__ void store(T *p) const
    {
        *reinterpret_cast<uint4 *>(p) = *reinterpret_cast<const uint4 *>(v);
    }
};

/* True if rows of `width` elements, of which the first begins at p and which are `stride` elements
 * apart, can be read 16 bytes at a time. */
static inline bool vec_ok(const void *p, int64_t stride, int64_t width, size_t element_bytes)
{
    return ((uintptr_t)p | (size_t)stride * element_bytes | (size_t)width * element_bytes) % 16 ==
           0;
}

/* Runs the body with T as the type of dtype `dt`. Other dtypes give cudaErrorInvalidValue. */
#define BY_DTYPE(dt, T, ...)                                                                       \
    switch (dt) {                                                                                  \
    case DT_F32: {                                                                                 \
        using T = float;                                                                           \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    case DT_BF16: {                                                                                \
        using T = bf16_t;                                                                          \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    case DT_F16: {                                                                                 \
        using T = f16_t;                                                                           \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    default: return cudaErrorInvalidValue;                                                         \
    }

#endif
