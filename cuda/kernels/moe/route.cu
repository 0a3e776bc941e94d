// SPDX-License-Identifier: Apache-2.0
/* The router of a mixture of experts: each row's scores, and its picks. A warp computes the scores
 * of a few rows and experts, and another kernel picks, one warp per row. Bound by reading the
 * router's weight for few rows, by latency in the pick.
 * Thread: the rank's owner. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/types.cuh"
#include "cuda/kernels/kernels.h"

/* Four elements of a row from i on; zeros past its end. */
template <bool VECTORS, typename T>
__device__ __forceinline__ void load_4(const T *row, int i, int n, float (&out)[4])
{
    if constexpr (!VECTORS) {
        for (int e = 0; e < 4; e++) {
            out[e] = i + e < n ? to_float(row[i + e]) : 0.0f;
        }
    } else if constexpr (sizeof(T) == 2) {
        alignas(8) T v[4];
        *(uint2 *)v = *(const uint2 *)(row + i);
        for (int e = 0; e < 4; e++) {
            out[e] = to_float(v[e]);
        }
    } else {
        const float4 v = *(const float4 *)(row + i);
        out[0] = v.x;
        out[1] = v.y;
        out[2] = v.z;
        out[3] = v.w;
    }
}

/* A warp computes the scores of R rows for E experts. Lane l sums elements 4 l .. 4 l + 3 of every
 * 128, then a butterfly joins the lanes: the same bits for every R and E. */
template <typename T, typename W, int R, int E, bool VECTORS>
__global__ void route_scores_kernel(const T *x, int64_t x_stride, const W *router,
                                    const float *bias, float *logits, int32_t n_rows,
                                    int32_t n_experts, int32_t hidden)
{
    pdl_wait();
    pdl_trigger();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int r0 = blockIdx.x * R, e0 = (blockIdx.y * (blockDim.x >> 5) + warp) * E;
    if (e0 >= n_experts) {
        return;
    }
    float sum[R][E] = {};
#pragma unroll(R *E == 1 ? 8 : 1)
    for (int i = lane * 4; i < hidden; i += 128) {
        float xs[R][4], ws[4];
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int row = r0 + r < n_rows ? r0 + r : n_rows - 1;
            load_4<VECTORS>(x + row * x_stride, i, hidden, xs[r]);
        }
#pragma unroll
        for (int e = 0; e < E; e++) {
            const int expert = e0 + e < n_experts ? e0 + e : n_experts - 1;
            load_4<VECTORS>(router + (int64_t)expert * hidden, i, hidden, ws);
#pragma unroll
            for (int r = 0; r < R; r++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    sum[r][e] = fmaf(xs[r][j], ws[j], sum[r][e]);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int e = 0; e < E; e++) {
            const float s = warp_sum(sum[r][e]);
            if (lane == 0 && r0 + r < n_rows && e0 + e < n_experts) {
                logits[(int64_t)(r0 + r) * n_experts + e0 + e] = s + (bias ? bias[e0 + e] : 0.0f);
            }
        }
    }
}

/* The warp's arg-max of `score` over [0, n); ties go to the lowest index; -1 if all are
 * -infinity. */
__device__ __forceinline__ int warp_argmax(const float *score, int n)
{
    const int lane = threadIdx.x & 31;
    float best = -INFINITY;
    int index = -1;
    for (int i = lane; i < n; i += 32) {
        if (score[i] > best) {
            best = score[i];
            index = i;
        }
    }
    for (int mask = 16; mask > 0; mask >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, best, mask);
        const int other_index = __shfl_xor_sync(0xffffffffu, index, mask);
        if (other_index >= 0 &&
            (index < 0 || other > best || (other == best && other_index < index))) {
            best = other;
            index = other_index;
        }
    }
    return index;
}

struct route_params {
    int32_t n_rows, n_experts, k;
    enum moe_scoring scoring;
    bool renormalise;
    float scale;
    int32_t n_group, topk_group;
};

/* Excludes the expert groups that are not among the best. */
__device__ void keep_groups(float *choice, const struct route_params &p, float *group)
{
    const int lane = threadIdx.x & 31, size = p.n_experts / p.n_group;
    for (int g = lane; g < p.n_group; g += 32) {
        float first = -INFINITY, second = -INFINITY;
        for (int i = 0; i < size; i++) {
            const float c = choice[g * size + i];
            if (c > first) {
                second = first;
                first = c;
            } else if (c > second) {
                second = c;
            }
        }
        group[g] = p.scoring == MOE_SIGMOID && size > 1 ? first + second : first;
    }
    __syncwarp();
    uint64_t kept = 0;
    for (int i = 0; i < p.topk_group; i++) {
        const int g = warp_argmax(group, p.n_group);
        if (g < 0) {
            break;
        }
        kept |= 1ull << g;
        __syncwarp();
        if (lane == 0) {
            group[g] = -INFINITY;
        }
        __syncwarp();
    }
    for (int i = lane; i < p.n_experts; i += 32) {
        if (!(kept >> (i / size) & 1)) {
            choice[i] = -INFINITY;
        }
    }
    __syncwarp();
}

/* One warp per row. `score` holds the weights of the picks, `choice` the values they are ranked
 * by. */
__global__ void route_pick_kernel(const float *logits, const float *correction,
                                  const float *expert_scale, int32_t *ids, float *weights,
                                  struct route_params p)
{
    extern __shared__ float scores[]; // [warps][2 n_experts + n_group]
    pdl_wait();
    pdl_trigger();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int row = blockIdx.x * (blockDim.x >> 5) + warp;
    if (row >= p.n_rows) {
        return;
    }
    float *score = scores + warp * (2 * p.n_experts + p.n_group), *choice = score + p.n_experts;
    const float *in = logits + (int64_t)row * p.n_experts;
    float top = -INFINITY, sum = 0.0f;
    for (int i = lane; i < p.n_experts; i += 32) {
        top = fmaxf(top, in[i]);
    }
    top = warp_max(top);
    for (int i = lane; i < p.n_experts; i += 32) {
        score[i] = p.scoring == MOE_SOFTMAX_TOPK ? expf(in[i] - top)
                   : p.scoring == MOE_SIGMOID    ? 1.0f / (1.0f + expf(-in[i]))
                                                 : in[i];
        sum += score[i];
    }
    sum = warp_sum(sum);
    for (int i = lane; i < p.n_experts; i += 32) {
        score[i] = p.scoring == MOE_SOFTMAX_TOPK ? score[i] / sum : score[i];
        choice[i] = correction ? score[i] + correction[i] : score[i];
    }
    __syncwarp();
    if (p.n_group > 1) {
        keep_groups(choice, p, choice + p.n_experts);
    }
    float mine = 0.0f; // lane j holds pick j
    int my_id = 0;
    float total = 0.0f, best = 0.0f;
    for (int j = 0; j < p.k; j++) {
        int id = warp_argmax(choice, p.n_experts);
        id = id < 0 ? 0 : id; // all scores are NaN
        __syncwarp();
        if (lane == 0) {
            choice[id] = -INFINITY;
        }
        float w = score[id];
        if (p.scoring == MOE_TOPK_SOFTMAX) {
            best = j == 0 ? w : best;
            w = expf(w - best);
        }
        total += w;
        if (lane == j) {
            mine = w;
            my_id = id;
        }
        __syncwarp();
    }
    if (lane < p.k) {
        if (p.scoring == MOE_TOPK_SOFTMAX) {
            mine /= total;
        } else if (p.renormalise) {
            mine /= p.scoring == MOE_SIGMOID ? total + 1e-20f : total;
        }
        ids[(int64_t)row * p.k + lane] = my_id;
        mine *= expert_scale ? p.scale * expert_scale[my_id] : p.scale;
        weights[(int64_t)row * p.k + lane] = mine;
    }
}

template <typename T, typename W, int R, int E, bool VECTORS>
static cudaError_t route_scores_as(cudaStream_t stream, const struct moe_route_args *a,
                                   const void *router, const float *bias, int32_t hidden,
                                   float *logits)
{
    const int warps = 8;
    return launch(route_scores_kernel<T, W, R, E, VECTORS>,
                  dim3((a->n_rows + R - 1) / R, (a->n_experts + warps * E - 1) / (warps * E)),
                  dim3(32 * warps), 0, stream, (const T *)a->x.mem.p, (int64_t)a->x.stride,
                  (const W *)router, bias, logits, a->n_rows, a->n_experts, hidden);
}

template <typename T, typename W>
static cudaError_t route_scores(cudaStream_t stream, const struct moe_route_args *a,
                                const void *router, const float *bias, int32_t hidden,
                                float *logits)
{
    const bool vectors = hidden % 4 == 0 && a->x.stride % 4 == 0 && (uintptr_t)a->x.mem.p % 16 == 0;
    if (!vectors) {
        return route_scores_as<T, W, 1, 1, false>(stream, a, router, bias, hidden, logits);
    }
    return a->n_rows <= 32
               ? route_scores_as<T, W, 1, 1, true>(stream, a, router, bias, hidden, logits)
               : route_scores_as<T, W, 8, 4, true>(stream, a, router, bias, hidden, logits);
}

extern "C" cudaError_t k_moe_route(cudaStream_t stream, const struct moe_route_args *a,
                                   const void *router, enum dtype router_dtype, const float *bias,
                                   const float *correction, const float *expert_scale,
                                   int32_t hidden, float *logits)
{
    if (a->k > MOE_MAX_K || a->k > a->n_experts || a->n_experts > MOE_MAX_EXPERTS ||
        a->n_group > 64) {
        return cudaErrorInvalidValue;
    }
    cudaError_t e = cudaErrorInvalidValue;
    BY_DTYPE(
        a->x.dtype, T,
        BY_DTYPE(router_dtype, W, e = route_scores<T, W>(stream, a, router, bias, hidden, logits)));
    if (e != cudaSuccess) {
        return e;
    }
    const struct route_params p = {a->n_rows,      a->n_experts, a->k,       a->scoring,
                                   a->renormalise, a->scale,     a->n_group, a->topk_group};
    const int warps = 4;
    const size_t smem =
        warps * (2 * a->n_experts + (a->n_group > 1 ? a->n_group : 0)) * sizeof(float);
    struct route_params q = p;
    q.n_group = a->n_group > 1 ? a->n_group : 0;
    return launch(route_pick_kernel, dim3((a->n_rows + warps - 1) / warps), dim3(32 * warps), smem,
                  stream, (const float *)logits, correction, expert_scale, (int32_t *)a->ids.p,
                  (float *)a->weights.p, q);
}
