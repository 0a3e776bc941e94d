// SPDX-License-Identifier: Apache-2.0
/* The sampler's teams: one block, or the blocks of a cluster, that work on one row of scores; their
 * shared state; and the best of a row.
 * Thread: device code, one team at a time. */
#ifndef SLUICE_CUDA_KERNELS_SAMPLE_TEAM_CUH
#define SLUICE_CUDA_KERNELS_SAMPLE_TEAM_CUH

#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/kernels.h"
#include "engine/base/exact.h"

#include <cooperative_groups.h>

enum { THREADS = 1024, TEAMS = 132, MAX_TEAM = 8, BINS = 2048, LIST = 8192 };

__device__ __forceinline__ int team_size()
{
#if __CUDA_ARCH__ >= 900
    return (int)cooperative_groups::this_cluster().num_blocks();
#else
    return 1;
#endif
}

__device__ __forceinline__ int team_rank()
{
#if __CUDA_ARCH__ >= 900
    return (int)cooperative_groups::this_cluster().block_rank();
#else
    return 0;
#endif
}

/* A barrier for all threads of the team; it also orders their writes to global memory. */
__device__ __forceinline__ void team_sync()
{
#if __CUDA_ARCH__ >= 900
    if (team_size() > 1) {
        cooperative_groups::this_cluster().sync();
        return;
    }
#endif
    __syncthreads();
}

/* The address, in block `rank` of the team, of `p` in this block's shared memory. */
template <typename T> __device__ __forceinline__ T *team_at(T *p, int rank)
{
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(p, rank);
#else
    return p;
#endif
}

__device__ __forceinline__ int team_thread()
{
    return team_rank() * THREADS + threadIdx.x;
}

__device__ __forceinline__ int team_threads()
{
    return team_size() * THREADS;
}

/* Larger floats have larger keys. Both zeros have the same key. NaN and -infinity have key 0 and
 * are never kept. */
__device__ __forceinline__ uint32_t key_of(float x)
{
    if (!(x > -INFINITY)) {
        return 0;
    }
    const uint32_t u = __float_as_uint(x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The float whose key is `key`, which is not 0. */
__device__ __forceinline__ float float_of_key(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* The words of a result before its lists, and of parameters before theirs. */
enum {
    RESULT_WORDS = offsetof(struct draw_result, top_ids) / sizeof(uint32_t),
    BROKEN_WORD = offsetof(struct draw_result, broken) / sizeof(uint32_t),
    PARAM_WORDS = offsetof(struct lane_params, stop_ids) / sizeof(uint32_t),
};

struct shared_state {
    struct pass_draw draw;
    float reduce[32];
    int reduce_id[32];
    union {
        uint32_t count[BINS];
        unsigned long long mass[BINS];
    } bins;
    uint32_t warp_count[32];
    unsigned long long merged[BINS]; // sums of the bins of all blocks
    unsigned long long warp_mass[32];
    double sum;       // this block's share of a sum
    float best_value; // this block's share of a maximum
    int best_id, n_listed;
    uint32_t found_bin;
    unsigned long long found_above;
    int path[MAX_TREE_NODES];
    int n_path;
    int taken[MAX_SIBLINGS]; // ids that must not be drawn again
    int n_taken;
    uint32_t most_key; // key of the best element found so far in a draw
    uint32_t bound;    // what enough of the block's threads reach
    uint32_t cut_key;
    int cut_id;
    int n_top;
    int top_ids[MAX_TOP_LOGPROBS];
    float top_values[MAX_TOP_LOGPROBS];
    uint32_t params[PARAM_WORDS]; // of the draw's lane
    int n_draws;                  // of the pass
    bool keeps_later;
    uint32_t *sent; // where the draw's result goes
    int32_t *kept;  // where the token of a greedy draw goes; NULL: nowhere
    /* Of best.cuh: each warp's best; the barrier that counts them, and the parity of its phase. */
    uint64_t most[MAX_TEAM * THREADS / 32];
    uint64_t most_full;
    uint32_t most_parity;
};

struct best {
    float value;
    int id; // HAS_NAN: the row contains NaN, which wins over everything else
};

enum { HAS_NAN = -1 };

__device__ __forceinline__ struct best nan_best()
{
    return {INFINITY, HAS_NAN};
}

__device__ __forceinline__ bool better(float value, int id, const struct best &b)
{
    return value > b.value || (value == b.value && id < b.id);
}

/* The best of a warp's. */
__device__ __forceinline__ struct best warp_best(struct best b)
{
    for (int mask = 16; mask > 0; mask >>= 1) {
        const float value = __shfl_xor_sync(0xffffffffu, b.value, mask);
        const int id = __shfl_xor_sync(0xffffffffu, b.id, mask);
        if (better(value, id, b)) {
            b.value = value;
            b.id = id;
        }
    }
    return b;
}

/* The best of the block's. */
__device__ struct best block_best(struct best b, struct shared_state *s)
{
    b = warp_best(b);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (lane == 0) {
        s->reduce[warp] = b.value;
        s->reduce_id[warp] = b.id;
    }
    __syncthreads();
    b = warp_best({s->reduce[lane], s->reduce_id[lane]});
    __syncthreads();
    return b;
}

__device__ struct best team_best(struct best b, struct shared_state *s)
{
    b = block_best(b, s);
    if (threadIdx.x == 0) {
        s->best_value = b.value;
        s->best_id = b.id;
    }
    team_sync();
    const int lane = threadIdx.x & 31, rank = lane < team_size() ? lane : 0;
    b = warp_best({*team_at(&s->best_value, rank), *team_at(&s->best_id, rank)});
    team_sync();
    return b;
}

/* The sum of `mine` over the team. */
__device__ unsigned long long team_mass(unsigned long long mine, struct shared_state *s)
{
    for (int mask = 16; mask > 0; mask >>= 1) {
        mine += __shfl_xor_sync(0xffffffffu, mine, mask);
    }
    const int lane = threadIdx.x & 31;
    if (lane == 0) {
        s->warp_mass[threadIdx.x >> 5] = mine;
    }
    team_sync();
    unsigned long long sum = 0;
    for (int r = 0; r < team_size(); r++) {
        sum += *team_at(&s->warp_mass[lane], r);
    }
    for (int mask = 16; mask > 0; mask >>= 1) {
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    }
    team_sync();
    return sum;
}

/* The scores of a draw: a row, still to be divided by the temperature (1: unchanged). If there
 * is a list, it contains everything that can still be kept. */
struct scores {
    const float *row;
    int n;
    float temperature;
    int *list_ids;
    float *list;
    int n_listed; // -1: no list
};

__device__ __forceinline__ float score_at(const struct scores &x, int id)
{
    return x.temperature == 1.0f ? x.row[id] : __fdiv_rn(x.row[id], x.temperature);
}

/* Calls f(id, score) for this thread's share of the scores. */
template <typename F> __device__ __forceinline__ void each(const struct scores &x, F f)
{
    const bool divide = x.temperature != 1.0f;
    const float t = x.temperature;
    const int me = team_thread(), all = team_threads();
    if (x.n_listed >= 0) {
        for (int i = me; i < x.n_listed; i += all) {
            f(x.list_ids[i], x.list[i]);
        }
        return;
    }
    if ((uintptr_t)x.row % 16 == 0) {
        const int n4 = x.n / 4;
#pragma unroll 2
        for (int i = me; i < n4; i += all) {
            const float4 v = ((const float4 *)x.row)[i];
            f(4 * i, divide ? __fdiv_rn(v.x, t) : v.x);
            f(4 * i + 1, divide ? __fdiv_rn(v.y, t) : v.y);
            f(4 * i + 2, divide ? __fdiv_rn(v.z, t) : v.z);
            f(4 * i + 3, divide ? __fdiv_rn(v.w, t) : v.w);
        }
        if (me < x.n - 4 * n4) {
            f(4 * n4 + me, score_at(x, 4 * n4 + me));
        }
    } else {
        for (int i = me; i < x.n; i += all) {
            f(i, score_at(x, i));
        }
    }
}

__device__ __forceinline__ bool is_taken(int id, const struct shared_state *s)
{
    bool found = false;
    for (int i = 0; i < s->n_taken; i++) {
        found = found || s->taken[i] == id;
    }
    return found;
}

/* Called by all threads of the team. */
__device__ void take(int id, struct shared_state *s)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        s->taken[s->n_taken++] = id;
    }
    __syncthreads();
}

/* The arg-max of the row without the ids that were taken. id INT32_MAX: nothing is above
 * -infinity. */
__device__ struct best team_argmax_left(const float *row, int n, struct shared_state *s)
{
    const struct scores plain = {row, n, 1.0f, NULL, NULL, -1};
    struct best b = {-INFINITY, INT32_MAX};
    each(plain, [&](int id, float x) {
        if (x > -INFINITY && better(x, id, b) && !is_taken(id, s)) {
            b.value = x;
            b.id = id;
        }
    });
    return team_best(b, s);
}

/* This thread's arg-max over its share of a row, with several loads in flight. A thread's ids
 * ascend, so the first of equal values stays. The value is NaN if the share has one. */
__device__ __forceinline__ struct best best_of_share(const float *row, int n)
{
    enum { AT_ONCE = 4 };
    struct best b = {-INFINITY, INT32_MAX};
    auto look = [&](int id, float x) {
        b.id = x > b.value ? id : b.id;
        b.value = max_or_nan(b.value, x);
    };
    const int me = team_thread(), all = team_threads();
    int done = 0;
    if ((uintptr_t)row % 16 == 0) {
        const float4 *row4 = (const float4 *)row;
        const int n4 = n / 4;
        for (int i = me; i < n4; i += AT_ONCE * all) {
            float4 v[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const float none = -INFINITY;
                v[k] = i + k * all < n4 ? row4[i + k * all] : make_float4(none, none, none, none);
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const int id = 4 * (i + k * all);
                look(id, v[k].x);
                look(id + 1, v[k].y);
                look(id + 2, v[k].z);
                look(id + 3, v[k].w);
            }
        }
        done = 4 * n4;
    }
    for (int i = done + me; i < n; i += all) {
        look(i, row[i]);
    }
    return b;
}

/* The same, with NaN as nan_best. It is a function of its own because it needs more registers than
 * its callers leave. */
__device__ __noinline__ struct best thread_best(const float *row, int n)
{
    const struct best b = best_of_share(row, n);
    return isnan(b.value) ? nan_best() : b;
}

/* The arg-max of the row, given each thread's own. id 0, value -infinity: nothing is above that. id
 * HAS_NAN: it has NaN. */
__device__ struct best team_argmax_of(const struct best &own, struct shared_state *s)
{
    struct best b = team_best(own, s);
    b.id = b.id == INT32_MAX ? 0 : b.id;
    return b;
}

__device__ struct best team_argmax(const float *row, int n, struct shared_state *s)
{
    return team_argmax_of(thread_best(row, n), s);
}

#endif
