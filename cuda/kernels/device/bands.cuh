// SPDX-License-Identifier: Apache-2.0
/* How the blocks of a product iterate over bands of its weight, with operands in a ring of stages:
 * the order, and the side that loads. For Hopper.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_BANDS_CUH
#define SLUICE_CUDA_DEVICE_BANDS_CUH

#include "cuda/kernels/device/hopper.cuh"

#if HAVE_SM90A

template <int STAGES> struct band_ring {
    uint64_t full_w[STAGES], full_x[STAGES], empty[STAGES];
};

/* The order in which a cluster works, and the position in the ring: if there are n clusters, each
 * takes every n-th band, and in each band the boxes along K. */
template <int CLUSTER, int STAGES> struct band_walk {
    int32_t band = (int32_t)blockIdx.x / CLUSTER, box = 0;
    int slot = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void next_band()
    {
        band += (int32_t)gridDim.x / CLUSTER;
        box = 0;
    }
    __device__ __forceinline__ void next_box()
    {
        box++;
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* The loop of a loading thread: calls load(walk) for every box once its stage is free. */
template <int CLUSTER, int STAGES, typename F>
__device__ __forceinline__ void load_bands(band_ring<STAGES> *ring, int32_t n_bands,
                                           int32_t n_boxes, F load)
{
    int fresh = STAGES; // number of stages not used yet, for which there is no need to wait
    band_walk<CLUSTER, STAGES> at;
#pragma unroll 1
    for (; at.band < n_bands; at.next_band()) {
#pragma unroll 1
        for (; at.box < n_boxes; at.next_box()) {
            if (fresh > 0) {
                fresh--;
            } else {
                barrier_wait(&ring->empty[at.slot], at.parity ^ 1);
            }
            load(at);
        }
    }
}

#endif // HAVE_SM90A

#endif
