// SPDX-License-Identifier: Apache-2.0
/* Helpers of gemm/eight_many.cu: its items, the ring of stages and the loads that fill it.
 * Thread: device code. */
#ifndef SLUICE_CUDA_GEMM_EIGHT_MANY_CUH
#define SLUICE_CUDA_GEMM_EIGHT_MANY_CUH

#include "cuda/gemm.h"
#include "cuda/kernels/device/code_stores.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/rounding.cuh"
#include "cuda/kernels/device/wgmma.cuh"

enum {
    BOX = 128,  // inputs of a stage, a byte each
    HALF = 128, // features
    BAND = 2 * HALF,
    GROUP_ROWS = 64, // of a warpgroup
    HALF_BYTES = HALF * BOX,
    W_BYTES = BAND * BOX,
    MAX_STAGES = 5,
    MAX_RUNS = 8,
    PAIRS = HALF / 8 * 2, // pairs of results of a thread: [2 j + r] has features 8 j + 2 t, + 1 of
                          // row g + 8 r
};

struct many_params {
    void *y;
    const float *bias;
    struct product_scales scales;
    struct round_args codes; // if codes.codes is not NULL, the results are rounded to these codes
    bool is_f32;             // y holds fp32, otherwise bf16
    int32_t n_rows, n_out;   // size of y
    int32_t n_boxes, n_bands, n_runs, n_items;
    int64_t y_stride, part_stride;
};

struct many_item {
    int32_t band, run, box, end;
};

__host__ __device__ static inline struct many_item many_item_at(const struct many_params &p,
                                                                int32_t i)
{
    const int32_t run = i / p.n_bands;
    return {i % p.n_bands, run, run * p.n_boxes / p.n_runs, (run + 1) * p.n_boxes / p.n_runs};
}

/* GROUPS: computing warpgroups of a block. */
template <int GROUPS> struct many_shape {
    static constexpr int TILE_ROWS = GROUPS * GROUP_ROWS;
    static constexpr int X_BYTES = TILE_ROWS * BOX;
    static constexpr int BYTES = W_BYTES + X_BYTES; // of a stage
    static constexpr int STAGES = GROUPS == 1 ? 5 : 4;
    static constexpr int THREADS = (GROUPS + 1) * 128;
    static constexpr int SMEM = STAGES * BYTES + 1024;
};

#if HAVE_SM90A

struct many_ring {
    uint64_t full_w[MAX_STAGES], full_x[MAX_STAGES], empty[MAX_STAGES];
};

/* The row of the weight at which half of a band begins. */
template <bool GATED>
__device__ __forceinline__ int32_t half_start(const struct many_params &p, int32_t band,
                                              int32_t half)
{
    return GATED ? band * HALF + half * p.n_out : band * BAND + half * HALF;
}

/* A position: box after box of item after item. */
template <typename S> struct many_walk {
    const struct many_params &p;
    int32_t which;
    struct many_item item;
    int32_t box;
    int slot = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ explicit many_walk(const struct many_params &p)
        : p(p), which((int32_t)blockIdx.x), item(many_item_at(p, which)), box(item.box)
    {
    }
    __device__ __forceinline__ bool is_done() const
    {
        return which >= p.n_items;
    }
    __device__ __forceinline__ void next_item()
    {
        which += (int32_t)gridDim.x;
        item = many_item_at(p, which);
        box = item.box;
    }
    __device__ __forceinline__ void next_slot()
    {
        if (++slot == S::STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* A thread that loads either W or x. */
template <typename S, bool GATED> struct many_loader {
    const struct many_params &p;
    const CUtensorMap *map;
    char *stages;
    struct many_ring *ring;

    template <bool IS_X>
    __device__ __forceinline__ void load(const many_walk<S> &at, uint64_t policy) const
    {
        char *to = stages + at.slot * S::BYTES;
        const int32_t column = at.box * BOX;
        if (IS_X) {
            barrier_expect(&ring->full_x[at.slot], S::X_BYTES);
            tensor_load(to + W_BYTES, map, &ring->full_x[at.slot], column, 0, policy);
            return;
        }
        barrier_expect(&ring->full_w[at.slot], W_BYTES);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t feature = half_start<GATED>(p, at.item.band, half);
            tensor_load(to + half * HALF_BYTES, map, &ring->full_w[at.slot], column, feature,
                        policy);
        }
    }

    template <bool IS_X> __device__ __forceinline__ void run() const
    {
        const uint64_t policy = IS_X ? policy_evict_last() : policy_evict_first();
        int fresh = S::STAGES; // stages not used yet
        many_walk<S> at(p);
#pragma unroll 1
        for (; !at.is_done(); at.next_item()) {
#pragma unroll 1
            for (; at.box < at.item.end; at.box++, at.next_slot()) {
                if (fresh > 0) {
                    fresh--;
                } else {
                    barrier_wait(&ring->empty[at.slot], at.parity ^ 1);
                }
                load<IS_X>(at, policy);
            }
        }
    }
};

#endif // HAVE_SM90A

#endif
