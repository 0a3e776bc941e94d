// SPDX-License-Identifier: Apache-2.0
/* Rows of x in a ring of slots of shared memory that all warps of a block read (four*.cu).
 * Thread: device code. */
#ifndef SLUICE_CUDA_GEMM_X_RING_CUH
#define SLUICE_CUDA_GEMM_X_RING_CUH

#include "cuda/kernels/device/hopper.cuh"
#include "cuda/kernels/gemm/items.cuh"

#if HAVE_SM90A

struct x_ring {
    enum { MOST = 6 };
    uint64_t full[MOST], empty[MOST];
};

/* A position in the ring of x. */
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

/* A warp's way through the slots of x of an item. The block's first thread fills them: it refills a
 * slot when all warps have released it and its own warp has also released the next S::X_LAG
 * slots. */
template <typename S> struct x_walk {
    const CUtensorMap *map;
    char *xs;
    struct x_ring *ring;
    x_place<S::X_SLOTS> at;
    int32_t slot, n_slots; // position among the item's slots, and their number
    int32_t row, plane;    // where the item's x begins

    __device__ __forceinline__ x_walk(const CUtensorMap *map, char *xs, struct x_ring *ring)
        : map(map), xs(xs), ring(ring), slot(0), n_slots(0), row(0), plane(0)
    {
    }

    __device__ __forceinline__ void load(int to, int32_t which) const
    {
        barrier_expect(&ring->full[to], S::X_SLOT); // loads past the end of K give zero
        tensor_load_3d(xs + to * S::X_SLOT, map, &ring->full[to], 0, row,
                       plane + which * S::X_BOXES, policy_evict_last());
    }

    /* Called when all warps have released the slots of the previous item. */
    __device__ __forceinline__ void begin(const struct item &it)
    {
        slot = 0;
        n_slots = (it.end_chunk - it.first_chunk + S::X_CHUNKS - 1) / S::X_CHUNKS;
        row = it.row_tile * S::ROWS;
        plane = it.first_chunk * (S::X_BOXES / S::X_CHUNKS);
        if (threadIdx.x == 0) {
            int to = at.slot;
#pragma unroll 1
            for (int32_t i = 0; i < min(S::X_SLOTS, n_slots); i++) {
                load(to, i);
                to = to + 1 == S::X_SLOTS ? 0 : to + 1;
            }
        }
        __syncwarp();
        wait();
    }

    __device__ __forceinline__ void wait() const
    {
        barrier_wait(&ring->full[at.slot], at.parity);
    }

    __device__ __forceinline__ void leave()
    {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) {
            barrier_arrive(&ring->empty[at.slot]);
        }
        const int32_t left = slot - S::X_LAG;
        if (threadIdx.x == 0 && left >= 0 && left + S::X_SLOTS < n_slots) {
            const bool wraps = at.slot < S::X_LAG;
            const int to = at.slot - S::X_LAG + (wraps ? S::X_SLOTS : 0);
            barrier_wait(&ring->empty[to], at.parity ^ (wraps ? 1 : 0));
            load(to, left + S::X_SLOTS);
        }
        __syncwarp();
        at.next();
        slot++;
    }

    /* Advances to the slot of a chunk. A warp's last call has chunk n_slots * S::X_CHUNKS, which
     * is past the last one, because every warp must release every slot. */
    __device__ __forceinline__ const char *go_to(int32_t chunk)
    {
#pragma unroll 1
        while (chunk >= (slot + 1) * S::X_CHUNKS) {
            leave();
            if (slot == n_slots) {
                break;
            }
            wait();
        }
        return xs + at.slot * S::X_SLOT + (chunk - slot * S::X_CHUNKS) * S::CHUNK_X;
    }
};

#endif // HAVE_SM90A
#endif
