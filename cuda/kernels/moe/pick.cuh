// SPDX-License-Identifier: Apache-2.0
/* Makes a row's picks (its experts and their weights), with one warp. Thread: device code. */
#ifndef SLUICE_CUDA_MOE_PICK_CUH
#define SLUICE_CUDA_MOE_PICK_CUH

#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/types.cuh"
#include "engine/device/ops.h"

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

struct route_params {
    int32_t n_rows, n_experts, k;
    enum moe_scoring scoring;
    bool renormalise;
    float scale, spread;
    int32_t n_group, topk_group; // n_group 0: no groups
};

static inline struct route_params route_params_of(const struct moe_route_args *a)
{
    return {a->n_rows,      a->n_experts, a->k,      a->scoring,
            a->renormalise, a->scale,     a->spread, a->n_group > 1 ? a->n_group : 0,
            a->topk_group};
}

/* Floats of shared memory that a warp needs. */
__host__ __device__ static inline int32_t pick_floats(const struct route_params &p)
{
    return 2 * p.n_experts + p.n_group;
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

/* Excludes the expert groups that are not among the best. */
__device__ static void keep_groups(float *choice, const struct route_params &p, float *group)
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

/* Maps floats to integers in the same order; 0 for -infinity and NaN, which are never picked. */
__device__ __forceinline__ uint32_t ordered(float x)
{
    const uint32_t bits = __float_as_uint(x + 0.0f); // makes -0 the same as 0
    if (!(x > -INFINITY)) {
        return 0;
    }
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Returns the expert with the warp's highest key (in a tie the lowest expert) and sets its key to
 * 0; returns expert 0 if all keys are 0. Lane l has the keys of experts l, l + 32, ... */
template <int EACH> __device__ __forceinline__ int take_best(uint32_t (&key)[EACH])
{
    const int lane = threadIdx.x & 31;
    uint32_t high = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        high = max(high, key[i]);
    }
    high = __reduce_max_sync(0xffffffffu, high);
    if (high == 0) {
        return 0;
    }
    uint32_t id = UINT32_MAX;
#pragma unroll
    for (int i = EACH - 1; i >= 0; i--) {
        id = key[i] == high ? (uint32_t)(lane + 32 * i) : id;
    }
    id = __reduce_min_sync(0xffffffffu, id);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        key[i] = id == (uint32_t)(lane + 32 * i) ? 0u : key[i];
    }
    return (int)id;
}

__device__ __forceinline__ float fast_sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

struct pick {
    int32_t id;
    float weight;
};

struct no_pick {
    __device__ __forceinline__ void operator()(int, int) const
    {
    }
};

/* The weight of MOE_MIXER's pick of this lane. `score` has the logits of all experts; those of the
 * picks are lost. */
__device__ static float mixed_weight(int mine, float *score, const struct route_params &p)
{
    const int lane = threadIdx.x & 31;
    float weight = 0.0f;
    for (int j = 0; j < p.k; j++) {
        const int id = __shfl_sync(0xffffffffu, mine, j);
        const float best = score[id];
        float sum = 0.0f;
        for (int e = lane; e < p.n_experts; e += 32) {
            const float t = score[e];
            const bool is_far = (best - t) / fmaxf(fabsf(t), best) > p.spread;
            sum += t == -INFINITY || is_far ? 0.0f : expf(t - best);
        }
        sum = warp_sum(sum);
        weight = lane == j ? 1.0f / sum : weight;
        if (lane == 0) {
            score[id] = -INFINITY;
        }
        __syncwarp();
    }
    return weight;
}

/* Returns, in lane j, pick number j of the row whose scores are `in`, with its score instead of its
 * weight (MOE_MIXER: with its weight). picked(j, id) is called as soon as that pick is known. At
 * most 32 * EACH experts. Lane l has the scores of experts l, l + 32, ... The warp's shared memory
 * holds all of them, and, if there are groups, the values by which they are ranked.
 */
template <int EACH, typename F = struct no_pick>
__device__ __forceinline__ struct pick pick_scores(const float *in, const float *correction,
                                                   const struct route_params &p, float *shared,
                                                   const F &picked = F())
{
    const int lane = threadIdx.x & 31, n = p.n_experts;
    float *score = shared, v[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v[i] = lane + 32 * i < n ? in[lane + 32 * i] : -INFINITY;
    }
    if (p.scoring == MOE_SOFTMAX_TOPK) {
        float top = v[0], sum = 0.0f;
#pragma unroll
        for (int i = 1; i < EACH; i++) {
            top = fmaxf(top, v[i]);
        }
        top = warp_max(top);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            v[i] = __expf(v[i] - top);
            sum += v[i];
        }
        sum = 1.0f / warp_sum(sum);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            v[i] *= sum;
        }
    } else if (p.scoring == MOE_SIGMOID) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            v[i] = fast_sigmoid(v[i]);
        }
    }
    uint32_t key[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int e = lane + 32 * i;
        key[i] = 0;
        if (e < n) {
            score[e] = v[i];
            v[i] = correction ? v[i] + correction[e] : v[i];
            key[i] = ordered(v[i]);
        }
    }
    if (p.n_group > 0) {
        float *choice = score + n;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (lane + 32 * i < n) {
                choice[lane + 32 * i] = v[i];
            }
        }
        __syncwarp();
        keep_groups(choice, p, choice + n);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            key[i] = lane + 32 * i < n ? ordered(choice[lane + 32 * i]) : 0u;
        }
    }
    __syncwarp();
    struct pick mine = {0, 0.0f};
#pragma unroll 1
    for (int j = 0; j < p.k; j++) {
        const int id = take_best<EACH>(key);
        mine.id = lane == j ? id : mine.id;
        picked(j, id);
    }
    mine.weight = p.scoring == MOE_MIXER ? mixed_weight(mine.id, score, p) : score[mine.id];
    return mine;
}

/* The weight of this lane's pick, whose score is given. */
__device__ __forceinline__ float weight_of_pick(const struct pick &mine, const float *expert_scale,
                                                const struct route_params &p)
{
    float w = mine.weight;
    if (p.scoring == MOE_TOPK_SOFTMAX) {
        w = expf(w - __shfl_sync(0xffffffffu, w, 0));
    } else if (p.scoring == MOE_LOGITS) {
        w = fast_sigmoid(w);
    }
    const float total = warp_sum((int)(threadIdx.x & 31) < p.k ? w : 0.0f);
    if (p.scoring == MOE_TOPK_SOFTMAX) {
        w /= total;
    } else if (p.renormalise && p.scoring != MOE_MIXER) {
        w /= p.scoring == MOE_SIGMOID ? total + 1e-20f : total;
    }
    return w * (expert_scale ? p.scale * expert_scale[mine.id] : p.scale);
}

/* Returns, in lane j, pick number j, as above, with its weight. */
template <int EACH>
__device__ __forceinline__ struct pick pick_row(const float *in, const float *correction,
                                                const float *expert_scale,
                                                const struct route_params &p, float *shared)
{
    struct pick mine = pick_scores<EACH>(in, correction, p, shared);
    mine.weight = weight_of_pick(mine, expert_scale, p);
    return mine;
}

#endif
