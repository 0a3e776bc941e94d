// SPDX-License-Identifier: Apache-2.0
/* The last kernel of few.cu: the `down` product of all picks and of the shared expert. A warp reads
 * the rows of an output feature one after another through a ring of its own, which it fills before
 * the wait. Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_FEW_DOWN_CUH
#define SLUICE_CUDA_KERNELS_MOE_FEW_DOWN_CUH

#include "cuda/kernels/moe/few.cuh"

enum { LEAST_DOWN_WARPS = 5, MOST_DOWN_WARPS = 10 };
enum { STAGE_STEPS = 8, STAGE_BYTES = STAGE_STEPS * STEP * 2 };

/* A warp's place in the rows of the `down` weight that it reads: for each of its output features,
 * the feature's row of each pick, then of the shared expert, in steps of a warp's load. */
struct down_place {
    int32_t feature, slot, at;

    __device__ __forceinline__ int32_t width(const struct few_params &p) const
    {
        return slot < p.route.k ? p.ffn : p.shared_ffn;
    }
    /* True if that was the end of the slot. */
    __device__ __forceinline__ bool next(const struct few_params &p, int32_t step)
    {
        at += STEP;
        if (at < width(p)) {
            return false;
        }
        at = 0;
        if (++slot == p.route.k + (p.shared_ffn > 0)) {
            slot = 0;
            feature += step;
        }
        return true;
    }
};

/* Starts to load a stage of a warp's ring, where each lane reads what it has copied. */
template <typename T>
__device__ __forceinline__ void load_stage(const struct few_params &p, const struct pick *picks,
                                           struct down_place &from, int32_t step, T *stage)
{
    const int32_t lane = threadIdx.x & 31;
#pragma unroll 1
    for (int i = 0; i < STAGE_STEPS && from.feature < p.hidden; i++) {
        const bool routed = from.slot < p.route.k;
        const int32_t at = from.at + lane * RUN, width = from.width(p);
        const int64_t row = (routed ? (int64_t)picks[from.slot].id * p.hidden : 0) + from.feature;
        if (at < width) {
            cp_async_16(stage + i * STEP + lane * RUN,
                        (const T *)(routed ? p.down : p.shared_down) + row * width + at, true);
        }
        from.next(p, step);
    }
    cp_async_commit();
}

/* A warp's sums of the feature that it is at: of the present slot, and of the slots before it. */
struct down_sums {
    float slot, all;
};

/* Stores a feature's sum; the bias of each pick is weighted as well. */
template <typename T>
__device__ __forceinline__ void store_feature(const struct few_params &p, const struct pick *picks,
                                              int32_t row, int32_t feature, float sum)
{
    sum = warp_sum(sum);
    if ((threadIdx.x & 31) != 0) {
        return;
    }
    for (int32_t i = 0; p.down_bias && i < p.route.k; i++) {
        sum = fmaf(picks[i].weight, p.down_bias[(int64_t)picks[i].id * p.hidden + feature], sum);
    }
    ((T *)p.y)[row * p.y_stride + feature] = from_float<T>(sum);
}

template <typename T>
__device__ __forceinline__ void add_stage(const struct few_params &p, const struct pick *picks,
                                          struct down_place &at, int32_t step, const T *act,
                                          const T *stage, struct down_sums &sums)
{
    const int32_t lane = threadIdx.x & 31;
#pragma unroll 1
    for (int i = 0; i < STAGE_STEPS && at.feature < p.hidden; i++) {
        const int32_t e = at.at + lane * RUN, slot = at.slot, feature = at.feature;
        if (e < at.width(p)) {
            vec<T> a, w;
            a.load(act + slot * p.ffn + e);
            w.load(stage + i * STEP + lane * RUN);
            sums.slot = dot_run(a, w, sums.slot);
        }
        if (!at.next(p, step)) {
            continue;
        }
        sums.all = fmaf(picks[slot].weight, sums.slot, sums.all);
        sums.slot = 0.0f;
        if (at.slot == 0) {
            store_feature<T>(p, picks, blockIdx.y, feature, sums.all);
            sums.all = 0.0f;
        }
    }
}

/* Before the wait the first warp picks, from the scores of the kernel before last. */
template <int EACH>
__device__ __forceinline__ void pick_again(const struct few_params &p, int32_t row, float *shared,
                                           struct pick *picks)
{
    const int32_t lane = threadIdx.x & 31, k = p.route.k;
    if (threadIdx.x < 32) {
        const float *logits = p.logits + row * p.n_scores;
        const struct pick mine =
            pick_row<EACH>(logits, p.correction, p.expert_scale, p.route, shared);
        if (lane < k) {
            picks[lane] = mine;
        }
        if (lane == 0) {
            picks[k].weight = p.gate ? 1.0f / (1.0f + expf(-logits[p.n_scores - 1])) : 1.0f;
        }
    }
    __syncthreads();
}

/* The inputs of a block of `down`, in shared memory; first, what the picks need. */
__host__ __device__ static inline int32_t act_bytes(const struct few_params &p)
{
    const int32_t picks = pick_floats(p.route) * (int32_t)sizeof(float);
    const int32_t acts = p.n_acts * (int32_t)sizeof(uint16_t);
    return ((picks > acts ? picks : acts) + 15) / 16 * 16;
}

template <typename T>
__device__ __forceinline__ void copy_act(const struct few_params &p, int32_t row, T *to)
{
    const T *act = (const T *)p.act + (int64_t)row * p.n_acts;
#pragma unroll 4
    for (int32_t at = (int32_t)threadIdx.x * RUN; at < p.n_acts; at += (int32_t)blockDim.x * RUN) {
        vec<T> v;
        v.load(act + at);
        v.store(to + at);
    }
    __syncthreads();
}

/* A block per multiprocessor, beside those of `up`; a warp takes every n-th feature. */
template <typename T, int EACH, int STAGES>
__global__ void __launch_bounds__(32 * MOST_DOWN_WARPS, 4) few_down_kernel(struct few_params p)
{
    extern __shared__ __align__(16) float shared[]; // inputs, then the warps' rings
    __shared__ struct pick picks[MOE_MAX_K + 1];
    const int32_t warp = threadIdx.x >> 5, row = blockIdx.y;
    const int32_t step = gridDim.x * (blockDim.x >> 5);
    if (row >= n_real(p)) {
        pdl_wait();
        return;
    }
    pick_again<EACH>(p, row, shared, picks);
    T *act = (T *)shared;
    T *ring = (T *)((char *)shared + act_bytes(p)) + warp * STAGES * STAGE_STEPS * STEP;
    struct down_place at = {(int32_t)(warp * gridDim.x + blockIdx.x), 0, 0}, ahead = at;
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) {
        load_stage(p, picks, ahead, step, ring + i * STAGE_STEPS * STEP);
    }
    pdl_wait();
    pdl_trigger();
    copy_act(p, row, act);
    struct down_sums sums = {0.0f, 0.0f};
#pragma unroll 1
    for (int stage = 0; at.feature < p.hidden; stage = stage + 1 < STAGES ? stage + 1 : 0) {
        T *here = ring + stage * STAGE_STEPS * STEP;
        cp_async_wait<STAGES - 1>();
        add_stage(p, picks, at, step, act, here, sums);
        load_stage(p, picks, ahead, step, here);
    }
    cp_async_wait<0>();
}

#endif
