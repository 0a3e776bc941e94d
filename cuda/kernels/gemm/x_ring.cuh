// SPDX-License-Identifier: Apache-2.0
/* Rows of x in a ring of slots of shared memory that all warps of a block read (four*.cu).
 * Thread: device code. */
#ifndef SLUICE_CUDA_GEMM_X_RING_CUH
#define SLUICE_CUDA_GEMM_X_RING_CUH

#include "cuda/kernels/device/hopper.cuh"

#if HAVE_SM90A

struct x_ring {
    enum { MOST = 6 };
    uint64_t full[MOST], empty[MOST];
};

/* A position in a ring of slots. */
template <int SLOTS> struct x_place {
    int slot = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void next()
    {
        if (++slot == SLOTS) {
            slot = 0;
            parity ^= 1;
        }
    }
};

#endif // HAVE_SM90A
#endif
