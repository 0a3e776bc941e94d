// SPDX-License-Identifier: Apache-2.0
/* The second kernel of few.cu: the `up` product of a row's picks and of its shared expert, with the
 * activation. A block per multiprocessor makes the picks; its warps then take feature after
 * feature, each with a ring of its own (cp.async), so that the next feature's weights are in flight
 * while it multiplies. A lane reads only what it has copied itself, so the ring needs no barrier.
 * The shared expert's features come first: their weights are known before the picks are.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_FEW_UP_CUH
#define SLUICE_CUDA_KERNELS_MOE_FEW_UP_CUH

#include "cuda/kernels/moe/few.cuh"

enum { LEAST_UP_WARPS = 8, MOST_UP_WARPS = 13, UP_STAGES = 4 };
enum { LEAST_UP_BYTES = 116 << 10 }; // so that no two blocks share a multiprocessor
enum { UP_STAGE = 4 * STEP, UP_STAGE_BYTES = UP_STAGE * 2 }; // elements of two rows, or of one

/* The features of a block: a range of the shared expert's, then one of the picks'. So each block
 * has work before the picks are known, and its warps read weights that are close together. */
struct up_share {
    int32_t shared, n_shared, routed, n; // first feature and number of each kind; n: of both kinds

    __device__ __forceinline__ explicit up_share(const struct few_params &p)
    {
        const int32_t block = (int32_t)blockIdx.x, blocks = (int32_t)gridDim.x;
        const int32_t n_routed = p.route.k * p.ffn;
        shared = p.shared_ffn * block / blocks;
        n_shared = p.shared_ffn * (block + 1) / blocks - shared;
        routed = n_routed * block / blocks;
        n = n_shared + n_routed * (block + 1) / blocks - routed;
    }
};

/* A feature of a pick or of the shared expert: its rows of the weights, `apart` elements apart. */
template <typename T> struct up_rows {
    const T *w;
    int64_t apart;
    int32_t bias; // of the first row; -1: none
    int32_t act;  // where the result goes
};

template <typename T, int ROWS>
__device__ __forceinline__ struct up_rows<T> up_rows_of(const struct few_params &p,
                                                        const struct up_share &share,
                                                        const int32_t *picks, int32_t i)
{
    const bool routed = i >= share.n_shared;
    const int32_t f = routed ? share.routed + i - share.n_shared : share.shared + i;
    const int32_t slot = routed ? f / p.ffn : 0;
    const int32_t j = f - slot * p.ffn, width = routed ? p.ffn : p.shared_ffn;
    const int64_t first = (routed ? (int64_t)picks[slot] * ROWS * width : 0) + j;
    const T *w = (const T *)(routed ? p.gate_up : p.shared_gate_up);
    return {w + first * p.hidden, (int64_t)width * p.hidden,
            routed && p.up_bias ? (int32_t)first : -1, routed ? f : p.route.k * p.ffn + f};
}

/* What a warp loads next: a stage of a feature's rows, from element `at` on. */
template <typename T, int ROWS> struct up_ring {
    enum { STEPS = UP_STAGE / STEP / ROWS };
    int32_t item, at, slot;
    const T *w;
    int64_t apart;

    __device__ __forceinline__ void next(const struct few_params &p, const struct up_share &share,
                                         const int32_t *picks, T *ring)
    {
        if (item < share.n) {
            if (at == 0) {
                const struct up_rows<T> f = up_rows_of<T, ROWS>(p, share, picks, item);
                w = f.w;
                apart = f.apart;
            }
            const int32_t mine = (threadIdx.x & 31) * RUN;
            T *to = ring + slot * UP_STAGE + mine;
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                const int32_t e = at + i * STEP + mine;
#pragma unroll
                for (int r = 0; r < ROWS && e < p.hidden; r++) {
                    cp_async_16((uint32_t)__cvta_generic_to_shared(to + (i * ROWS + r) * STEP),
                                w + r * apart + e);
                }
            }
            at += STEPS * STEP;
            if (at >= p.hidden) {
                at = 0;
                item += (int32_t)blockDim.x >> 5;
            }
        }
        cp_async_commit();
        slot = slot + 1 == UP_STAGES ? 0 : slot + 1;
    }
};

/* Called by all warps but the first: copies the row's x to shared memory, and after it the shared
 * expert's own input, if there is one. One block also stores the sum that the norm was applied to.
 */
template <typename T>
__device__ __forceinline__ void copy_row(const struct few_params &p, int32_t row, T *to)
{
    const T *x = (const T *)p.x + row * p.x_stride;
    const bool stores = blockIdx.x == gridDim.x - 1 && row < n_real(p) && p.norm.delta;
    for (int32_t at = ((int32_t)threadIdx.x - 32) * RUN; at >= 0 && at < p.hidden;
         at += ((int32_t)blockDim.x - 32) * RUN) {
        vec<T> v, own;
        v.load(x + at);
        if (p.own_x) {
            own.load((const T *)p.own_x + at);
            own.store(to + p.hidden + at);
        }
        v.store(to + at);
        if (stores) {
            added<T>(p.norm, row, at).store((T *)p.norm.x + row * p.norm.x_stride + at);
        }
    }
}

/* After the wait, the block's first warp makes the row's picks, while the others copy its x. The
 * picks are also made once before the wait, from stale scores, only to load the code into the
 * cache. The first block of a row stores the picks. */
template <typename T, int EACH>
__device__ __forceinline__ void pick_experts(const struct few_params &p, int32_t row, float *shared,
                                             int32_t *picks, T *x)
{
    const int32_t lane = threadIdx.x & 31, k = p.route.k;
    struct pick mine = {0, 0.0f};
#pragma unroll 1
    for (int round = 0; round < 2; round++) {
        if (round == 1) {
            pdl_wait();
            pdl_trigger();
        }
        if (threadIdx.x < 32) {
            mine = pick_row<EACH>(p.logits + row * p.n_scores, p.correction, p.expert_scale,
                                  p.route, shared);
        }
    }
    if (threadIdx.x < 32 && lane < k) {
        picks[lane] = mine.id;
        if (blockIdx.x == 0 && row < n_real(p)) {
            p.ids[row * k + lane] = mine.id;
            p.weights[row * k + lane] = mine.weight;
        }
    }
    copy_row(p, row, x);
    __syncthreads();
}

/* A block's shared memory: the inputs and what the picks need, then the rings. */
__host__ __device__ static inline int32_t up_inputs(const struct few_params &p)
{
    return p.own_x ? 2 * p.hidden : p.hidden;
}

__host__ __device__ static inline int32_t up_rings_at(const struct few_params &p)
{
    const int32_t picks = pick_floats(p.route) * (int32_t)sizeof(float);
    return up_inputs(p) * (int32_t)sizeof(uint16_t) + (picks + 15) / 16 * 16;
}

static inline int32_t up_bytes(const struct few_params &p, int32_t warps)
{
    const int32_t needed = up_rings_at(p) + warps * UP_STAGES * UP_STAGE_BYTES;
    return needed > LEAST_UP_BYTES ? needed : (int32_t)LEAST_UP_BYTES;
}

/* The products of x with a feature's rows, the first stage of which is next in the ring. */
template <typename T, int ROWS>
__device__ __forceinline__ void
dot_feature(const struct few_params &p, const struct up_share &share, const int32_t *picks,
            const T *x, T *ring, struct up_ring<T, ROWS> &load, int32_t &slot, float (&sum)[2])
{
    typedef up_ring<T, ROWS> loader;
    const int32_t mine = (threadIdx.x & 31) * RUN;
#pragma unroll 1
    for (int32_t at = mine; at < p.hidden + mine; at += loader::STEPS * STEP) {
        load.next(p, share, picks, ring);
        wait_copies<UP_STAGES - 1>();
        const T *from = ring + slot * UP_STAGE + mine;
#pragma unroll
        for (int i = 0; i < loader::STEPS; i++) {
            if (at + i * STEP < p.hidden) {
                vec<T> v, w;
                v.load(x + at + i * STEP);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    w.load(from + (i * ROWS + r) * STEP);
                    sum[r] = dot_run(v, w, sum[r]);
                }
            }
        }
        slot = slot + 1 == UP_STAGES ? 0 : slot + 1;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        sum[r] = warp_sum(sum[r]);
    }
}

/* Stores a feature's activation, by one lane. */
template <typename T, int KIND, int ROWS>
__device__ __forceinline__ void store_act(const struct few_params &p, int32_t row,
                                          const struct up_rows<T> &of, float (&sum)[2])
{
    if (of.bias >= 0) {
        sum[0] += p.up_bias[of.bias];
        sum[1] += ROWS == 2 ? p.up_bias[of.bias + p.ffn] : 0.0f;
    }
    const float act =
        ROWS == 2 ? act_gated<KIND>(sum[0], sum[1], p.shape) : act_plain<KIND>(sum[0]);
    ((T *)p.act)[(int64_t)row * p.n_acts + of.act] = from_float<T>(act);
}

/* A block per multiprocessor; a warp takes every n-th feature of its block. */
template <typename T, int KIND, int EACH, bool GATED>
__global__ void __launch_bounds__(32 * MOST_UP_WARPS, 2) few_up_kernel(struct few_params p)
{
    constexpr int ROWS = GATED ? 2 : 1;
    extern __shared__ __align__(16) float shared[];
    __shared__ int32_t picks[MOE_MAX_K];
    const int32_t warp = (int32_t)threadIdx.x >> 5, row = blockIdx.y;
    const struct up_share share(p);
    T *x = (T *)shared, *rings = (T *)((char *)shared + up_rings_at(p));
    T *ring = rings + warp * UP_STAGES * UP_STAGE;
    struct up_ring<T, ROWS> load = {warp, 0, 0, NULL, 0};
    int32_t loaded = 0, slot = 0;
#pragma unroll 1
    for (; loaded < UP_STAGES - 1 && load.item < share.n_shared; loaded++) {
        load.next(p, share, picks, ring);
    }
    pick_experts<T, EACH>(p, row, (float *)(x + up_inputs(p)), picks, x);
    if (row >= n_real(p)) {
        cp_async_wait<0>();
        return;
    }
#pragma unroll 1
    for (; loaded < UP_STAGES - 1; loaded++) {
        load.next(p, share, picks, ring);
    }
#pragma unroll 1
    for (int32_t i = warp; i < share.n; i += (int32_t)blockDim.x >> 5) {
        float sum[2] = {0.0f, 0.0f};
        const T *in = p.own_x && i < share.n_shared ? x + p.hidden : x;
        dot_feature<T, ROWS>(p, share, picks, in, ring, load, slot, sum);
        if ((threadIdx.x & 31) == 0) {
            store_act<T, KIND, ROWS>(p, row, up_rows_of<T, ROWS>(p, share, picks, i), sum);
        }
    }
}

#endif
