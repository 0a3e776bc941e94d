// SPDX-License-Identifier: Apache-2.0
/* The factors by which some models scale a query, or one of its heads, given its position.
 * Thread: device code, one thread. */
#ifndef SLUICE_CUDA_KERNELS_DEVICE_GROWTH_CUH
#define SLUICE_CUDA_KERNELS_DEVICE_GROWTH_CUH

#include "cuda/layout.h"
#include "engine/device/ops.h"

__device__ __forceinline__ float growth_at(const struct head_factors &g, int head, int32_t pos)
{
    return g.scale ? g.scale[head] * logf(1.0f + (float)pos) + g.bias[head] : 1.0f;
}

__device__ __forceinline__ float growth_at(const struct query_growth &g, int32_t pos)
{
    return g.beta == 0.0f ? 1.0f : 1.0f + g.beta * logf(1.0f + (float)((pos + g.offset) / g.every));
}

#endif
