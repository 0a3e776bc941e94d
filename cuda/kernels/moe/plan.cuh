// SPDX-License-Identifier: Apache-2.0
/* The work list of moe.cu's grouped products, made on the device by a block per expert.
 * Thread: device code, all threads of a block. */
#ifndef SLUICE_CUDA_KERNELS_MOE_PLAN_CUH
#define SLUICE_CUDA_KERNELS_MOE_PLAN_CUH

#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/moe/pick.cuh"

struct plan_params {
    int32_t n_rows, n_experts, k, tile;
};

/* Adds up the picks and the tiles of the experts before `me`. The first thread gets the sums. */
__device__ __forceinline__ int2 sum_before(const int32_t *histogram, int me, int32_t tile)
{
    __shared__ int2 of_warp[32];
    int picks = 0, tiles = 0;
    for (int e = threadIdx.x; e < me; e += blockDim.x) {
        picks += histogram[e];
        tiles += (histogram[e] + tile - 1) / tile;
    }
    int2 sum = {__reduce_add_sync(0xffffffffu, picks), __reduce_add_sync(0xffffffffu, tiles)};
    if ((threadIdx.x & 31) == 0) {
        of_warp[threadIdx.x >> 5] = sum;
    }
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < (int)(blockDim.x >> 5); w++) {
        sum.x += of_warp[w].x;
        sum.y += of_warp[w].y;
    }
    return sum;
}

/* Writes the block's part of the list for the picks of n_rows rows. */
__device__ __forceinline__ void plan_expert(const int32_t *ids, const struct plan_params &p,
                                            const struct moe_scratch &s, int32_t n_rows)
{
    __shared__ int32_t histogram[MOE_MAX_EXPERTS], warp_count[32], base;
    const int me = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int32_t n = n_rows * p.k;
    for (int i = threadIdx.x; i < p.n_experts; i += blockDim.x) {
        histogram[i] = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const int32_t id = ids[i];
        if (id >= 0 && id < p.n_experts) {
            atomicAdd(&histogram[id], 1);
        }
    }
    __syncthreads();
    const int2 sum = sum_before(histogram, me, p.tile);
    if (threadIdx.x == 0) {
        const int32_t first = base = sum.x;
        int32_t tile = sum.y;
        s.first[me] = first;
        for (int i = 0; i < histogram[me]; i += p.tile) {
            s.tile_expert[tile] = me;
            s.tile_first[tile++] = first + i;
        }
        if (me == p.n_experts - 1) {
            s.first[me + 1] = first + histogram[me];
            *s.n_tiles = tile;
        }
    }
    __syncthreads();
    for (int i0 = 0; i0 < n; i0 += blockDim.x) {
        const int i = i0 + threadIdx.x;
        const bool is_mine = i < n && ids[i] == me;
        const unsigned votes = __ballot_sync(0xffffffffu, is_mine);
        if (lane == 0) {
            warp_count[warp] = __popc(votes);
        }
        __syncthreads();
        int before = 0, all = 0;
        for (int w = 0; w < (int)(blockDim.x >> 5); w++) {
            before += w < warp ? warp_count[w] : 0;
            all += warp_count[w];
        }
        if (is_mine) {
            s.sorted[base + before + __popc(votes & ((1u << lane) - 1))] = i;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            base += all;
        }
        __syncthreads();
    }
}

/* The number of rows to list: padding rows of the pass are not routed. */
__device__ __forceinline__ int32_t rows_to_plan(const struct plan_params &p, const int32_t *real,
                                                int32_t row_offset)
{
    return real ? min(p.n_rows, max(*real - row_offset, 0)) : p.n_rows;
}

__global__ void moe_plan_kernel(const int32_t *ids, struct plan_params p, struct moe_scratch s,
                                const int32_t *real, int32_t row_offset)
{
    pdl_wait();
    pdl_trigger();
    plan_expert(ids, p, s, rows_to_plan(p, real, row_offset));
}

/* Like moe_plan_kernel, for a few rows, but from the router's scores: each block makes all picks
 * itself, a warp for each row, which takes less time than a launch. The first block stores them. */
template <int EACH>
__global__ void moe_pick_plan_kernel(const float *logits, const float *correction,
                                     const float *expert_scale, struct route_params route,
                                     int32_t *ids, float *weights, struct plan_params p,
                                     struct moe_scratch s, const int32_t *real)
{
    extern __shared__ float scores[]; // [warps][pick_floats]
    __shared__ int32_t picks[MOE_PLAN_ROWS * MOE_MAX_K];
    pdl_wait();
    pdl_trigger();
    const int lane = threadIdx.x & 31, row = threadIdx.x >> 5, k = route.k;
    if (row < route.n_rows) {
        const struct pick mine =
            pick_row<EACH>(logits + row * route.n_experts, correction, expert_scale, route,
                           scores + row * pick_floats(route));
        if (lane < k) {
            picks[row * k + lane] = mine.id;
        }
        if (lane < k && blockIdx.x == 0) {
            ids[row * k + lane] = mine.id;
            weights[row * k + lane] = mine.weight;
        }
    }
    __syncthreads();
    plan_expert(picks, p, s, rows_to_plan(p, real, 0));
}

#endif
