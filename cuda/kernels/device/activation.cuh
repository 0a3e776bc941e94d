// SPDX-License-Identifier: Apache-2.0
/* The activations of engine/device/ops.h. Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_ACTIVATION_CUH
#define SLUICE_CUDA_DEVICE_ACTIVATION_CUH

#include "engine/device/ops.h"

template <int KIND> __device__ __forceinline__ float act_plain(float x)
{
    if (KIND == ACT_SILU) {
        return x / (1.0f + expf(-x));
    }
    if (KIND == ACT_GELU_TANH) {
        return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    }
    if (KIND == ACT_GELU) {
        return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    }
    const float positive = fmaxf(x, 0.0f);
    return KIND == ACT_RELU2 ? positive * positive : positive;
}

template <int KIND>
__device__ __forceinline__ float act_gated(float gate, float up, const struct act_shape &s)
{
    if (KIND == ACT_GPT_OSS) {
        const float g = fminf(gate, s.limit), u = fminf(fmaxf(up, -s.limit), s.limit);
        return g / (1.0f + expf(-s.alpha * g)) * (u + 1.0f);
    }
    if (KIND == ACT_SILU_CLAMPED) {
        return fminf(act_plain<ACT_SILU>(gate), s.alpha) * fminf(fmaxf(up, -s.limit), s.limit);
    }
    return act_plain<KIND>(gate) * up;
}

/* Without a gate. */
template <int KIND> __device__ __forceinline__ float act_alone(float x, const struct act_shape &s)
{
    if (KIND != ACT_XIELU) {
        return act_plain<KIND>(x);
    }
    if (x > 0.0f) {
        return (s.rise * x + s.slope) * x;
    }
    return s.fall * (expm1f(x) - x) + s.slope * x;
}

/* The same, selected at run time. */
__device__ __forceinline__ float act_gated_of(int32_t kind, float gate, float up,
                                              const struct act_shape &s)
{
    switch (kind) {
    case ACT_SILU: return act_gated<ACT_SILU>(gate, up, s);
    case ACT_GELU_TANH: return act_gated<ACT_GELU_TANH>(gate, up, s);
    case ACT_GELU: return act_gated<ACT_GELU>(gate, up, s);
    case ACT_GPT_OSS: return act_gated<ACT_GPT_OSS>(gate, up, s);
    case ACT_RELU2: return act_gated<ACT_RELU2>(gate, up, s);
    case ACT_SILU_CLAMPED: return act_gated<ACT_SILU_CLAMPED>(gate, up, s);
    default: return act_gated<ACT_RELU>(gate, up, s);
    }
}

/* Runs the body with KIND as the compile-time kind, one of those that experts may have. */
#define BY_ACTIVATION(kind, KIND, ...)                                                             \
    switch (kind) {                                                                                \
    case ACT_SILU: {                                                                               \
        constexpr int KIND = ACT_SILU;                                                             \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    case ACT_GELU_TANH: {                                                                          \
        constexpr int KIND = ACT_GELU_TANH;                                                        \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    case ACT_GELU: {                                                                               \
        constexpr int KIND = ACT_GELU;                                                             \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    case ACT_RELU: {                                                                               \
        constexpr int KIND = ACT_RELU;                                                             \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    case ACT_RELU2: {                                                                              \
        constexpr int KIND = ACT_RELU2;                                                            \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    case ACT_SILU_CLAMPED: {                                                                       \
        constexpr int KIND = ACT_SILU_CLAMPED;                                                     \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    case ACT_GPT_OSS: {                                                                            \
        constexpr int KIND = ACT_GPT_OSS;                                                          \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }                                                                                              \
    default: return cudaErrorInvalidValue;                                                         \
    }

#endif
