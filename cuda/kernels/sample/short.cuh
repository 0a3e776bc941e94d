// SPDX-License-Identifier: Apache-2.0
/* Top-k and top-p where few ids are kept, which is the usual case: the highest scores are listed,
 * every block sorts the list, and the cut follows from running sums over the sorted scores. The
 * radix selection of cut.cuh takes twice as long, since it merges histograms of the whole team six
 * times. If the list becomes too long, or top-p keeps more than it holds, the cut is left to
 * cut.cuh.
 *
 * A logit goes into the list if it reaches a bound that at least n logits reach: each of B blocks
 * finds the (n / B)-th highest of its threads' own best logits, and the lowest of these is the
 * bound. As a thread looks at ids that are far apart, few threads have two of the highest logits,
 * so the list is hardly longer than n. It has all ids from some score on.
 * Thread: device code, one team at a time. */
#ifndef SLUICE_CUDA_KERNELS_SAMPLE_SHORT_CUH
#define SLUICE_CUDA_KERNELS_SAMPLE_SHORT_CUH

#include "cuda/kernels/sample/cut.cuh"

enum { SHORT = THREADS, FOR_TOP_P = 256 }; // most entries; how many are aimed at for top-p alone
enum { LOWEST_KEY = 0x00800000 };          // of the lowest finite float
enum { TIED_KEYS = 16 };                   // logits that are further apart do not have equal scores
static_assert(SHORT <= LIST, "room for the list");

/* A lower bound, within 2^-9 of it, of the n-th highest key of the block's threads; 0 if fewer
 * threads have a key. */
__device__ uint32_t reached_by(uint32_t key, int n)
{
    uint32_t found = 0;
#pragma unroll 1
    for (uint32_t bit = 1u << 31; bit >= 1u << 14; bit >>= 1) {
        found |= __syncthreads_count(key >= (found | bit)) >= n ? bit : 0;
    }
    return found;
}

/* A logit that at least n of the row's reach, given the highest of each thread. */
__device__ float reached_by_team(float own, int n, int vocab, struct shared_state *s)
{
    const int full = vocab / (4 * THREADS); // blocks whose threads all have logits
    const int n_blocks = min(max(full, 1), team_size());
    const uint32_t bound = reached_by(key_of(own), (n + n_blocks - 1) / n_blocks);
    if (threadIdx.x == 0) {
        s->bound = bound;
    }
    team_sync();
    const int lane = threadIdx.x & 31;
    uint32_t least = lane < n_blocks ? *team_at(&s->bound, lane) : UINT32_MAX;
    least = __reduce_min_sync(0xffffffffu, least);
    if (threadIdx.x == 0) {
        s->n_listed = 0;
    }
    team_sync();
    return least > LOWEST_KEY + TIED_KEYS ? float_of_key(least - TIED_KEYS) : -INFINITY;
}

/* Lists the ids whose logits are at least `least` and above -infinity, with their scores, and calls
 * f(logit) for each of the row's. Before the call, n_listed of the team's first block is 0. */
template <typename F>
__device__ __forceinline__ void list_from(struct scores &x, float least, struct shared_state *s,
                                          F f)
{
    enum { AT_ONCE = 2 };
    const int me = team_thread(), all = team_threads(), n4 = (x.n + 3) / 4;
    const bool aligned = (uintptr_t)x.row % 16 == 0;
    int *counter = team_at(&s->n_listed, 0);
    for (int i = me; i < n4; i += AT_ONCE * all) {
        float4 four[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            four[k] = four_scores(x, i + k * all, aligned);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const float v[4] = {four[k].x, four[k].y, four[k].z, four[k].w};
            f(v);
            if (!(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])) >= least)) {
                continue;
            }
#pragma unroll 1
            for (int e = 0; e < 4; e++) {
                const float logit = element_of(v, e);
                if (!(logit >= least && logit > -INFINITY)) {
                    continue;
                }
                const int place = atomicAdd(counter, 1);
                if (place < SHORT) {
                    x.list_ids[place] = 4 * (i + k * all) + e;
                    x.list[place] = x.temperature == 1.0f ? logit : __fdiv_rn(logit, x.temperature);
                }
            }
        }
    }
    team_sync();
    const int n = *counter;
    team_sync();
    x.n_listed = n <= SHORT ? n : -1;
}

/* The mass of four logits. Those that are far below the top have none: exp(-28.5) < 2^-41. */
__device__ __forceinline__ unsigned long long mass_of_four(const struct scores &x,
                                                           const float (&v)[4], float top)
{
    const float most = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])), far = top - 28.5f;
    const float inverse = __fdividef(1.0f, x.temperature);
    unsigned long long mass = 0;
    if (fmaf(most, inverse, fabsf(most * inverse) * 1e-5f) < far) {
        return 0;
    }
#pragma unroll 1
    for (int e = 0; e < 4; e++) {
        const float logit = element_of(v, e);
        if (logit > -INFINITY) {
            mass += mass_of(x.temperature == 1.0f ? logit : __fdiv_rn(logit, x.temperature), top);
        }
    }
    return mass;
}

/* Sorts one value of each of the first `size` threads, a power of two, in descending order. Called
 * by the whole block. */
__device__ unsigned long long sort_block(unsigned long long v, int size, struct shared_state *s)
{
    const int t = (int)threadIdx.x;
#pragma unroll 1
    for (int run = 2; run <= size; run *= 2) {
#pragma unroll 1
        for (int step = run / 2; step > 0; step /= 2) {
            unsigned long long other;
            if (step >= 32) {
                __syncthreads();
                s->merged[t] = v;
                __syncthreads();
                other = s->merged[t ^ step];
            } else {
                other = __shfl_xor_sync(0xffffffffu, v, step);
            }
            const bool takes_higher = ((t & run) == 0) == ((t & step) == 0);
            v = (v > other) == takes_higher ? v : other;
        }
    }
    return v;
}

/* The sum of `mine` over the block's threads up to this one. *total: over all. */
__device__ unsigned long long sum_up_to(unsigned long long mine, unsigned long long *total,
                                        struct shared_state *s)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int d = 1; d < 32; d <<= 1) {
        const unsigned long long other = __shfl_up_sync(0xffffffffu, mine, d);
        mine += lane >= d ? other : 0;
    }
    if (lane == 31) {
        s->warp_mass[warp] = mine;
    }
    __syncthreads();
    unsigned long long before = lane < warp ? s->warp_mass[lane] : 0, all = s->warp_mass[lane];
    for (int mask = 16; mask > 0; mask >>= 1) {
        before += __shfl_xor_sync(0xffffffffu, before, mask);
        all += __shfl_xor_sync(0xffffffffu, all, mask);
    }
    *total = all;
    return before + mine;
}

/* Finds the cut in the list. k: how many ids top-k keeps, 0: all; row_mass: the mass of the whole
 * row, for top-p without top-k. False: top-p keeps more than the list has. */
__device__ bool cut_list(const struct scores &x, int k, float top_p, unsigned long long row_mass,
                         float top, struct cut *c, struct shared_state *s)
{
    const int t = (int)threadIdx.x, n = x.n_listed;
    unsigned long long v = 0;
    if (t < n) {
        v = (unsigned long long)key_of(x.list[t]) << 32 | (uint32_t)~x.list_ids[t];
    }
    int size = 32;
    while (size < n) {
        size *= 2;
    }
    v = sort_block(v, size, s);
    const uint32_t key = (uint32_t)(v >> 32);
    const int n_kept = k > 0 && k < n ? k : n;
    bool is_last = k > 0 && k <= n && t == n_kept - 1, enough = true;
    if (top_p < 1.0f) {
        const unsigned long long mine = t < n_kept ? mass_of(float_of_key(key), top) : 0;
        unsigned long long total;
        const unsigned long long upto = sum_up_to(mine, &total, s);
        const double share = ceil((double)top_p * (double)(k > 0 ? total : row_mass));
        const unsigned long long target = share >= 1.0 ? (unsigned long long)share : 1;
        enough = total >= target;
        if (enough) {
            is_last = upto >= target && upto - mine < target;
        }
    }
    if (t == 0) {
        s->cut_key = 0;
        s->cut_id = INT32_MAX;
    }
    __syncthreads();
    if (is_last) {
        s->cut_key = key;
        s->cut_id = (int)~(uint32_t)v;
    }
    __syncthreads();
    *c = {s->cut_key, s->cut_id};
    return enough || k > 0;
}

/* Makes the list of x and the cut of top-k (k; 0: none) and top-p. own: the thread's highest logit.
 * False: nothing is changed. */
__device__ __noinline__ bool short_cut(struct scores &x, int k, float top_p, float own, float top,
                                       struct cut *c, struct shared_state *s)
{
    /* Beyond these bounds logits that are far apart may have equal scores. */
    if (k > SHORT / 2 || !isfinite(top) || !(x.temperature >= 1e-3f && x.temperature <= 1e3f)) {
        return false;
    }
    const float least = reached_by_team(own, k > 0 ? k : FOR_TOP_P, x.n, s);
    if (fabsf(least) < 1e-30f) {
        return false;
    }
    unsigned long long mass = 0;
    if (k > 0) {
        list_from(x, least, s, [](const float (&)[4]) {});
    } else {
        list_from(x, least, s, [&](const float (&v)[4]) { mass += mass_of_four(x, v, top); });
        mass = team_mass(mass, s);
    }
    if (x.n_listed >= 0 && cut_list(x, k, top_p, mass, top, c, s)) {
        return true;
    }
    x.n_listed = -1;
    return false;
}

#endif
