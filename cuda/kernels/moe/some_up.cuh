// SPDX-License-Identifier: Apache-2.0
/* The first kernel of some.cu: the `up` product with the activation. A unit is some gates and the
 * ups that belong to them; a block takes every n-th one. The shared expert's units come first, and
 * are loaded before the picks are known. Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_SOME_UP_CUH
#define SLUICE_CUDA_KERNELS_MOE_SOME_UP_CUH

#include "cuda/kernels/moe/some.cuh"

enum { UP_FEATURES = 4, UP_ROWS = 2 * UP_FEATURES, UP_TILE = UP_ROWS * MOST_ROWS, UP_DEPTH = 4 };

/* Elements between rows of x in shared memory: half a span is added against bank conflicts. */
__host__ __device__ static inline int32_t x_pitch(const struct few_params &p)
{
    return padded(p.hidden) + HALF_SPAN;
}

#if HAVE_SM90A

/* A feature of an expert of the list. */
struct up_place {
    int32_t expert, feature, width;

    __device__ __forceinline__ explicit up_place(const struct few_params &p)
        : expert(0), feature(0), width(p.shared_ffn)
    {
        move(p, (int32_t)blockIdx.x * UP_FEATURES);
    }
    __device__ __forceinline__ void move(const struct few_params &p, int32_t by)
    {
        for (feature += by; feature >= width; width = p.ffn) {
            feature -= width;
            expert++;
        }
    }
    __device__ __forceinline__ void next(const struct few_params &p)
    {
        move(p, (int32_t)gridDim.x * UP_FEATURES);
    }
    /* The first row of the gate's weights. */
    __device__ __forceinline__ int64_t row(const struct some_list &list) const
    {
        return (expert > 0 ? (int64_t)list.expert[expert] * 2 * width : 0) + feature;
    }
};

/* What the loading warp loads next. */
template <typename T> struct up_loader {
    const struct few_params &p;
    const struct some_plan &plan;
    const struct some_list &list;
    char *memory;
    struct some_barriers &bars;
    struct up_place place;
    struct ring_place ring;
    uint64_t policy;

    /* Loads a unit. If K is not divided, its gates are contiguous, and so are its ups. */
    __device__ __forceinline__ void unit()
    {
        const int32_t lane = threadIdx.x & 31, half = lane / UP_FEATURES;
        const T *from = (const T *)(place.expert > 0 ? p.gate_up : p.shared_gate_up) +
                        place.row(list) * p.hidden;
        const bool whole = plan.part >= p.hidden;
        const int64_t apart = (int64_t)place.width * p.hidden;
        from +=
            whole ? lane * apart : half * apart + (int64_t)(lane - half * UP_FEATURES) * p.hidden;
#pragma unroll 1
        for (int32_t at = 0; at < p.hidden; at += plan.part) {
            barrier_wait(bars.empty + ring.at, ring.parity ^ 1);
            const uint32_t row = (uint32_t)min(plan.part, p.hidden - at) * (uint32_t)sizeof(T);
            if (lane == 0) {
                barrier_expect(bars.full + ring.at, UP_ROWS * row);
            }
            __syncwarp();
            const uint32_t n = whole ? UP_FEATURES * row : row;
            if (lane < (whole ? 2 : UP_ROWS)) {
                bulk_load(memory + ring.at * plan.stage_bytes +
                              lane * (whole ? UP_FEATURES : 1) * plan.part * (int32_t)sizeof(T),
                          from + at, n, bars.full + ring.at, policy);
            }
            ring.next(plan.stages);
        }
        place.next(p);
    }
};

/* A computing warp's part of the products of n units with all rows. */
template <typename T>
__device__ __forceinline__ void
multiply_units(const struct few_params &p, const struct some_plan &plan, char *memory,
               struct some_barriers &bars, int32_t n, int32_t n_rows)
{
    const int32_t lane = threadIdx.x & 31, warp = (int32_t)threadIdx.x >> 5, row = lane / 4;
    const T *x = (const T *)(memory + plan.inputs) + min(row, max(n_rows - 1, 0)) * x_pitch(p);
    float *to = (float *)(memory + plan.sums) + warp * UP_TILE + row * MOST_ROWS + lane % 4 * 2;
    struct ring_place ring = {}, sums = {};
    const uint4 none = {};
    barrier_wait(&bars.inputs, 0);
#pragma unroll 1
    for (int32_t i = 0; i < n; i++) {
        float sum[4][4] = {};
#pragma unroll 1
        for (int32_t part = 0; part < p.hidden; part += plan.part) {
            const T *w = (const T *)(memory + ring.at * plan.stage_bytes) + row * plan.part;
            const T *in = x + part + lane % 4 * RUN;
            const int32_t width = min(plan.part, p.hidden - part);
            barrier_wait(bars.full + ring.at, ring.parity);
#pragma unroll 4
            for (int32_t at = warp * SPAN; at < width; at += WARPS * SPAN) {
                uint4 half[2];
                load_span(w, true, at, width, half);
                multiply<T>(half[0], none, *(const uint4 *)(in + at), sum[0], sum[1]);
                multiply<T>(half[1], none, *(const uint4 *)(in + at + HALF_SPAN), sum[2], sum[3]);
            }
            warp_arrive(bars.empty + ring.at);
            ring.next(plan.stages);
        }
        barrier_wait(bars.added + sums.at, sums.parity ^ 1);
        *(float2 *)(to + sums.at * (WARPS * UP_TILE)) =
            make_float2(sum[0][0] + sum[1][0] + (sum[2][0] + sum[3][0]),
                        sum[0][1] + sum[1][1] + (sum[2][1] + sum[3][1]));
        warp_arrive(bars.left + sums.at);
        sums.next(UP_DEPTH);
    }
}

/* Adds the warps' sums of n units, and stores the activations. Called by one warp, whose lanes have
 * a feature and a row each. */
template <typename T>
__device__ __forceinline__ void
store_units(const struct few_params &p, const struct some_plan &plan, const struct some_list &list,
            char *memory, struct some_barriers &bars, int32_t n)
{
    const int32_t lane = threadIdx.x & 31, feature = lane / MOST_ROWS, row = lane % MOST_ROWS;
    struct up_place place(p);
    struct ring_place at = {};
#pragma unroll 1
    for (int32_t i = 0; i < n; i++) {
        float bias[2] = {0.0f, 0.0f};
        const int32_t slot = list.slots[place.expert][row];
        if (p.up_bias && place.expert > 0) {
            const float *from = p.up_bias + place.row(list) + feature;
            bias[0] = from[0];
            bias[1] = from[place.width];
        }
        barrier_wait(bars.left + at.at, at.parity);
        const float *sums = (float *)(memory + plan.sums) + at.at * (WARPS * UP_TILE) + lane;
        const float gate = add_warps(sums, UP_TILE) + bias[0];
        const float up = add_warps(sums + UP_TILE / 2, UP_TILE) + bias[1];
        warp_arrive(bars.added + at.at);
        if (slot >= 0) {
            ((T *)p.act)[(int64_t)row * p.n_acts + slot * p.ffn + place.feature + feature] =
                from_float<T>(act_gated_of(plan.kind, gate, up, p.shape));
        }
        at.next(UP_DEPTH);
        place.next(p);
    }
}

/* Loads the rows of x. Called by one thread. */
template <typename T>
__device__ __forceinline__ void load_x(const struct few_params &p, int32_t n_rows, T *to,
                                       uint64_t *ready)
{
    const uint32_t n = (uint32_t)p.hidden * (uint32_t)sizeof(T);
    barrier_expect(ready, (uint32_t)n_rows * n);
#pragma unroll 1
    for (int32_t row = 0; row < n_rows; row++) {
        bulk_load(to + row * x_pitch(p), (const T *)p.x + row * p.x_stride, n, ready,
                  policy_evict_last());
    }
}

/* Prefetches n_bytes contiguous bytes (a multiple of 16) into the L2 cache. */
__device__ __forceinline__ void bulk_prefetch(const void *from, uint32_t n_bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(n_bytes) : "memory");
}

/* Prefetches the block's share of the first picks' weights into the L2 cache, since nothing can be
 * loaded until all picks are known. */
struct prefetch {
    const struct few_params &p;
    int32_t n; // picks of a row

    __device__ __forceinline__ void operator()(int j, int id) const
    {
        enum { MOST_BYTES = 8 << 20 }; // of all rows; more would only displace each other
        if (j < n && (threadIdx.x & 31) == 0) {
            const int64_t all = (int64_t)2 * p.ffn * p.hidden * (int64_t)sizeof(uint16_t);
            const int64_t most = MOST_BYTES / (p.route.n_rows * n);
            const uint32_t share = (uint32_t)((all < most ? all : most) / gridDim.x) / 128 * 128;
            if (share > 0) {
                bulk_prefetch((const char *)p.gate_up + id * all + (int64_t)blockIdx.x * share,
                              share);
            }
        }
    }
};

/* Before the wait, picks are made once from stale scores, only to load the code into the cache. */
template <typename T, int EACH>
__device__ __forceinline__ struct pick pick_up(const struct few_params &p, int32_t n_rows,
                                               const struct pick_room &room, T *x, uint64_t *ready)
{
    const int32_t row = (int32_t)threadIdx.x >> 5;
    struct pick mine = {0, 0.0f};
#pragma unroll 1
    for (int round = 0; round < 2; round++) {
        if (round == 1) {
            pdl_wait();
            pdl_trigger();
            if (threadIdx.x == 32 * LOADER) {
                load_x(p, n_rows, x, ready);
            }
        }
        if (row < n_rows) {
            mine = pick_scores<EACH>(p.logits + row * p.n_scores, p.correction, p.route,
                                     room.scores + row * pick_floats(p.route),
                                     prefetch{p, round == 0 ? 0 : max(4 / n_rows, 1)});
        }
    }
    if (row < n_rows) {
        room.enter(p, mine);
    }
    return mine;
}

/* Stores the picks, and the row that the norm was applied to. */
template <typename T>
__device__ __forceinline__ void store_picks(const struct few_params &p, int32_t n_rows,
                                            const struct pick &mine)
{
    const int32_t lane = threadIdx.x & 31, row = (int32_t)threadIdx.x >> 5, k = p.route.k;
    if (blockIdx.x == gridDim.x - 1 && row < n_rows) {
        const float weight = weight_of_pick(mine, p.expert_scale, p.route);
        if (lane < k) {
            p.ids[row * k + lane] = mine.id;
            p.weights[row * k + lane] = weight;
        }
    }
    if (blockIdx.x < n_rows) {
        store_added<T>(p, (int32_t)blockIdx.x, 32 * WARPS);
    }
}

/* What does not depend on the scores: zeros after the rows of x, and the shared expert's slots. */
template <typename T>
__device__ __forceinline__ void prepare_up(const struct few_params &p, int32_t n_rows, T *x,
                                           const struct pick_room &room,
                                           const struct some_list &list)
{
    room.clear(p);
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i < n_rows * SPAN; i += THREADS) {
        const int32_t at = p.hidden + i % SPAN;
        if (at < padded(p.hidden)) {
            x[i / SPAN * x_pitch(p) + at] = from_float<T>(0.0f);
        }
    }
    if (threadIdx.x < MOST_ROWS) {
        list.slots[0][threadIdx.x] = (int8_t)((int32_t)threadIdx.x < n_rows ? p.route.k : -1);
    }
}

#endif

template <typename T, int EACH>
__global__ void __launch_bounds__(THREADS, 2)
    some_up_kernel(const __grid_constant__ struct few_params p,
                   const __grid_constant__ struct some_plan plan)
{
#if HAVE_SM90A
    extern __shared__ __align__(128) char memory[];
    __shared__ struct some_barriers bars;
    const int32_t n_rows = n_real(p), warp = (int32_t)threadIdx.x >> 5;
    const struct some_list list(memory + plan.list, most_listed(p));
    const struct pick_room room(p, memory + (plan.stages - 1) * plan.stage_bytes);
    struct up_loader<T> load = {
        p, plan, list, memory, bars, up_place(p), {}, policy_evict_first()
    };
    T *x = (T *)(memory + plan.inputs);
    bars.make();
    prepare_up(p, n_rows, x, room, list);
    __syncthreads();
    int32_t unused = plan.stages - 1; // the picks still use the last stage
    const int32_t parts = (p.hidden + plan.part - 1) / plan.part;
    for (; warp == LOADER && load.place.expert == 0 && unused >= parts; unused -= parts) {
        load.unit();
    }
    const struct pick mine = pick_up<T, EACH>(p, n_rows, room, x, &bars.inputs);
    fence_async();
    __syncthreads();
    const int32_t last = list_experts<false>(p, room, list);
    __syncthreads();
    const int32_t blocks = (int32_t)gridDim.x;
    const int32_t all = (p.shared_ffn + last * p.ffn) / UP_FEATURES;
    const int32_t n = (all - (int32_t)blockIdx.x + blocks - 1) / blocks;
    if (warp == LOADER) {
        while (load.place.expert <= last) {
            load.unit();
        }
    } else if (warp == STORER) {
        store_units<T>(p, plan, list, memory, bars, n);
    } else {
        store_picks<T>(p, n_rows, mine);
        multiply_units<T>(p, plan, memory, bars, n, n_rows);
    }
#endif
}

#endif
