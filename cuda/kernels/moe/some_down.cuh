// SPDX-License-Identifier: Apache-2.0
/* The second kernel of some.cu: the `down` product. A block has a range of output features, each
 * the weighted sum over all experts of the list. It divides them into groups of a stage's features,
 * and takes one expert after another for each group. Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_SOME_DOWN_CUH
#define SLUICE_CUDA_KERNELS_MOE_SOME_DOWN_CUH

#include "cuda/kernels/moe/some.cuh"

enum { MOST_FEATURES = 16, DOWN_TILE = MOST_FEATURES * MOST_ROWS, DOWN_DEPTH = 2 };

#if HAVE_SM90A

/* The output features of a block, in groups of plan.features. */
struct feature_range {
    int32_t begin, end;

    __device__ __forceinline__ feature_range(const struct few_params &p, int32_t n_rows)
    {
        const int64_t block = blockIdx.x, blocks = gridDim.x;
        begin = (int32_t)(p.hidden * block / blocks);
        end = n_rows > 0 ? (int32_t)(p.hidden * (block + 1) / blocks) : begin;
    }
};

__device__ __forceinline__ int32_t width_of(const struct few_params &p, int32_t expert)
{
    return expert > 0 ? p.ffn : p.shared_ffn;
}

/* Loads all weights of the block's features. Called by one warp. If an expert's K is not divided,
 * its rows are contiguous. */
template <typename T>
__device__ __forceinline__ void
load_features(const struct few_params &p, const struct some_plan &plan,
              const struct some_list &list, int32_t last, const struct feature_range &range,
              char *memory, struct some_barriers &bars)
{
    const int32_t lane = threadIdx.x & 31, begin = p.shared_ffn > 0 ? 0 : 1;
    const uint64_t policy = policy_evict_first();
    struct ring_place ring = {};
#pragma unroll 1
    for (int32_t first = range.begin; first < range.end; first += plan.features) {
        const int32_t n = min(plan.features, range.end - first);
#pragma unroll 1
        for (int32_t expert = begin; expert <= last; expert++) {
            const int32_t width = width_of(p, expert), id = list.expert[expert];
            const bool whole = width <= plan.part;
            const T *from = expert > 0
                                ? (const T *)p.down + ((int64_t)id * p.hidden + first) * width
                                : (const T *)p.shared_down + (int64_t)first * width;
            from += (int64_t)lane * width;
#pragma unroll 1
            for (int32_t at = 0; at < width; at += plan.part) {
                barrier_wait(bars.empty + ring.at, ring.parity ^ 1);
                const uint32_t row = (uint32_t)min(plan.part, width - at) * (uint32_t)sizeof(T);
                if (lane == 0) {
                    barrier_expect(bars.full + ring.at, (uint32_t)n * row);
                }
                __syncwarp();
                if (lane < (whole ? 1 : n)) {
                    bulk_load(
                        memory + ring.at * plan.stage_bytes + lane * plan.part * (int32_t)sizeof(T),
                        from + at, whole ? (uint32_t)n * row : row, bars.full + ring.at, policy);
                }
                ring.next(plan.stages);
            }
        }
    }
}

/* An expert, for a lane: the inputs of its row, NULL if the row did not pick the expert; and for
 * the rows of its sums whether they did, and the weights. */
template <typename T> struct down_expert {
    const T *in;
    bool picked[2];
    float2 weight;

    __device__ __forceinline__ down_expert(const struct few_params &p, const struct some_list &list,
                                           int32_t expert, const T *act)
    {
        const int32_t lane = threadIdx.x & 31, row = lane / 4, slot = list.slots[expert][row];
        in = slot < 0 ? NULL : act + row * p.n_acts + slot * p.ffn + lane % 4 * RUN;
        for (int i = 0; i < 2; i++) {
            picked[i] = list.slots[expert][lane % 4 * 2 + i] >= 0;
        }
        weight = *(const float2 *)(list.weights[expert] + lane % 4 * 2);
    }
};

/* Adds a warp's part of an expert's products, whose K is divided as in the ring. n: features. */
template <typename T>
__device__ __forceinline__ void
multiply_expert(const struct down_expert<T> &e, const struct some_plan &plan, int32_t width,
                int32_t n, const char *memory, struct some_barriers &bars, struct ring_place &ring,
                float (&total)[4])
{
    const int32_t lane = threadIdx.x & 31, warp = (int32_t)threadIdx.x >> 5, row = lane / 4;
    const int32_t pitch = min(width, plan.part);
    float sum[4][4] = {};
#pragma unroll 1
    for (int32_t part = 0; part < width; part += plan.part) {
        const T *w = (const T *)(memory + ring.at * plan.stage_bytes) + row * pitch;
        const int32_t here = min(plan.part, width - part);
        barrier_wait(bars.full + ring.at, ring.parity);
#pragma unroll 2
        for (int32_t at = warp * SPAN; at < here; at += WARPS * SPAN) {
            uint4 low[2], high[2];
            load_span(w, row < n, at, here, low);
            load_span(w + 8 * pitch, row + 8 < n, at, here, high);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int32_t k = at + i * HALF_SPAN;
                const uint4 x =
                    load_or_zero(e.in + part + k, e.in != NULL && k + lane % 4 * RUN < here);
                multiply<T>(low[i], high[i], x, sum[2 * i], sum[2 * i + 1]);
            }
        }
        warp_arrive(bars.empty + ring.at);
        ring.next(plan.stages);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float v = sum[0][i] + sum[1][i] + (sum[2][i] + sum[3][i]);
        total[i] =
            e.picked[i % 2] ? fmaf(i % 2 == 0 ? e.weight.x : e.weight.y, v, total[i]) : total[i];
    }
}

/* A computing warp's part of all of the block's products. */
template <typename T>
__device__ __forceinline__ void
multiply_features(const struct few_params &p, const struct some_plan &plan,
                  const struct some_list &list, int32_t last, const struct feature_range &range,
                  char *memory, struct some_barriers &bars)
{
    const int32_t lane = threadIdx.x & 31, warp = (int32_t)threadIdx.x >> 5;
    const int32_t begin = p.shared_ffn > 0 ? 0 : 1;
    const T *act = (const T *)(memory + plan.inputs);
    float *to =
        (float *)(memory + plan.sums) + warp * DOWN_TILE + lane / 4 * MOST_ROWS + lane % 4 * 2;
    struct ring_place ring = {}, sums = {};
    barrier_wait(&bars.inputs, 0);
#pragma unroll 1
    for (int32_t first = range.begin; first < range.end; first += plan.features) {
        const int32_t n = min(plan.features, range.end - first);
        float total[4] = {};
#pragma unroll 1
        for (int32_t expert = begin; expert <= last; expert++) {
            const struct down_expert<T> e(p, list, expert, act);
            multiply_expert(e, plan, width_of(p, expert), n, memory, bars, ring, total);
        }
        barrier_wait(bars.added + sums.at, sums.parity ^ 1);
        float *here = to + sums.at * (WARPS * DOWN_TILE);
        *(float2 *)here = make_float2(total[0], total[1]);
        *(float2 *)(here + DOWN_TILE / 2) = make_float2(total[2], total[3]);
        warp_arrive(bars.left + sums.at);
        sums.next(DOWN_DEPTH);
    }
}

/* The weighted biases of an output. */
__device__ __forceinline__ float bias_of(const struct few_params &p, const struct some_list &list,
                                         int32_t last, int32_t feature, int32_t row)
{
    float sum = 0.0f;
#pragma unroll 4
    for (int32_t expert = 1; expert <= last; expert++) {
        if (list.slots[expert][row] >= 0) {
            sum = fmaf(list.weights[expert][row],
                       p.down_bias[(int64_t)list.expert[expert] * p.hidden + feature], sum);
        }
    }
    return sum;
}

/* Adds the warps' sums, and stores the outputs. Called by one warp: a lane has a feature and every
 * second row. */
template <typename T>
__device__ __forceinline__ void
store_features(const struct few_params &p, const struct some_plan &plan,
               const struct some_list &list, int32_t last, int32_t n_rows,
               const struct feature_range &range, char *memory, struct some_barriers &bars)
{
    const int32_t lane = threadIdx.x & 31;
    struct ring_place at = {};
#pragma unroll 1
    for (int32_t first = range.begin; first < range.end; first += plan.features) {
        const int32_t feature = lane % MOST_FEATURES, begin = lane / MOST_FEATURES;
        const int32_t n = min(plan.features, range.end - first);
        float bias[MOST_ROWS / 2] = {};
#pragma unroll
        for (int i = 0; i < MOST_ROWS / 2; i++) {
            if (p.down_bias && feature < n && begin + 2 * i < n_rows) {
                bias[i] = bias_of(p, list, last, first + feature, begin + 2 * i);
            }
        }
        barrier_wait(bars.left + at.at, at.parity);
        const float *sums = (float *)(memory + plan.sums) + at.at * (WARPS * DOWN_TILE);
#pragma unroll
        for (int i = 0; i < MOST_ROWS / 2; i++) {
            const int32_t row = begin + 2 * i;
            const float sum = add_warps(sums + feature * MOST_ROWS + row, DOWN_TILE) + bias[i];
            if (feature < n && row < n_rows) {
                ((T *)p.y)[row * p.y_stride + first + feature] = from_float<T>(sum);
            }
        }
        warp_arrive(bars.added + at.at);
        at.next(DOWN_DEPTH);
    }
}

/* Makes the picks, a warp for each row. */
template <int EACH>
__device__ __forceinline__ void pick_down(const struct few_params &p, int32_t n_rows,
                                          const struct pick_room &room,
                                          const struct some_list &list)
{
    const int32_t lane = threadIdx.x & 31, row = (int32_t)threadIdx.x >> 5;
    if (row < n_rows) {
        const float *logits = p.logits + row * p.n_scores;
        const struct pick mine = pick_row<EACH>(logits, p.correction, p.expert_scale, p.route,
                                                room.scores + row * pick_floats(p.route));
        room.enter(p, mine);
        if (lane < p.route.k) {
            room.weights[row * p.route.k + lane] = mine.weight;
        }
        if (lane == 0) {
            list.weights[0][row] = p.gate ? 1.0f / (1.0f + expf(-logits[p.n_scores - 1])) : 1.0f;
        }
    }
    if (row < MOST_ROWS && lane == 0) {
        list.slots[0][row] = (int8_t)(row < n_rows ? p.route.k : -1);
    }
}

#endif

/* The scores are complete before the wait, because `up` triggers only after its own wait. */
template <typename T, int EACH>
__global__ void __launch_bounds__(THREADS, 2)
    some_down_kernel(const __grid_constant__ struct few_params p,
                     const __grid_constant__ struct some_plan plan)
{
#if HAVE_SM90A
    extern __shared__ __align__(128) char memory[];
    __shared__ struct some_barriers bars;
    const int32_t n_rows = n_real(p), warp = (int32_t)threadIdx.x >> 5;
    const struct some_list list(memory + plan.list, most_listed(p));
    const struct pick_room room(p, memory);
    const struct feature_range range(p, n_rows);
    bars.make();
    room.clear(p);
    __syncthreads();
    pick_down<EACH>(p, n_rows, room, list);
    fence_async();
    __syncthreads();
    const int32_t last = list_experts<true>(p, room, list);
    __syncthreads();
    if (warp == LOADER) {
        load_features<T>(p, plan, list, last, range, memory, bars);
        return;
    }
    pdl_wait();
    pdl_trigger();
    if (threadIdx.x == 32 * STORER) {
        const uint32_t n = (uint32_t)(n_rows * p.n_acts) * (uint32_t)sizeof(T);
        barrier_expect(&bars.inputs, n);
        if (n > 0) {
            bulk_load(memory + plan.inputs, p.act, n, &bars.inputs, policy_evict_last());
        }
    }
    if (warp == STORER) {
        store_features<T>(p, plan, list, last, n_rows, range, memory, bars);
    } else {
        multiply_features<T>(p, plan, list, last, range, memory, bars);
    }
#endif
}

#endif
