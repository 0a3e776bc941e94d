// SPDX-License-Identifier: Apache-2.0
/* Exchange of words among four neighbouring lanes, so that accumulators of wgmma or mma can be
 * stored in 16 bytes per lane. Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_QUADS_CUH
#define SLUICE_CUDA_DEVICE_QUADS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* Transposes the 4 x 4 words of four neighbouring lanes: lane t then has word t of each of the
 * four. All lanes of the warp take part. */
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4])
{
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const bool upper = (threadIdx.x & step) != 0;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t &a = w[step == 1 ? 2 * k : k], &b = w[step == 1 ? 2 * k + 1 : k + 2];
            const uint32_t other = __shfl_xor_sync(0xffffffff, upper ? a : b, step);
            a = upper ? other : a;
            b = upper ? b : other;
        }
    }
}

#endif
