// SPDX-License-Identifier: Apache-2.0
/* The factor by which some models scale a query, given its position.
 * Thread: device code, one thread. */
#ifndef SLUICE_CUDA_KERNELS_DEVICE_GROWTH_CUH
#define SLUICE_CUDA_KERNELS_DEVICE_GROWTH_CUH

#include "engine/device/ops.h"

__device__ __forceinline__ float growth_at(const struct query_growth &g, int32_t pos)
{
    return g.beta == 0.0f ? 1.0f : 1.0f + g.beta * logf(1.0f + (float)((pos + g.offset) / g.every));
}

#endif
