// SPDX-License-Identifier: Apache-2.0
/* The arg-max of a greedy draw: of a raw row, or of the bests of its bands that the output head has
 * left. Bound by latency, so between the wait and the result there are one round of loads, a
 * reduction over each warp, and one hop from all warps of the team to one, without a barrier of
 * threads.
 * Thread: device code, one team at a time. */
#ifndef SLUICE_CUDA_KERNELS_SAMPLE_BEST_CUH
#define SLUICE_CUDA_KERNELS_SAMPLE_BEST_CUH

#include "cuda/kernels/device/hopper.cuh"
#include "cuda/kernels/sample/team.cuh"

enum { KEY_OF_INFINITY = 0xff800000u, KEY_OF_NAN = 0xffffffffu };

/* The greater, the better: a larger value, NaN above all, or of equal values the smaller id. */
__device__ __forceinline__ uint64_t rank_of(float value, int id)
{
    const uint32_t key = isnan(value) ? (uint32_t)KEY_OF_NAN : key_of(value);
    return (uint64_t)key << 32 | ~(uint32_t)id;
}

__device__ __forceinline__ uint64_t warp_most(uint64_t rank)
{
    const uint32_t key = (uint32_t)(rank >> 32), most = __reduce_max_sync(0xffffffffu, key);
    const uint32_t id = key == most ? (uint32_t)rank : 0;
    return (uint64_t)most << 32 | __reduce_max_sync(0xffffffffu, id);
}

/* What a greedy draw reads: the bests of bands, or else the row. */
struct best_source {
    const float *row;
    const struct best_pair *pairs;
    int n, n_pairs;
};

__device__ __forceinline__ uint64_t thread_most(const struct best_source &from)
{
    if (from.n_pairs == 0) {
        const struct best b = best_of_share(from.row, from.n);
        return rank_of(b.value, b.id);
    }
    uint64_t most = 0;
    for (int i = team_thread(); i < from.n_pairs; i += team_threads()) {
        const int2 pair = ((const int2 *)from.pairs)[i];
        const uint64_t rank = rank_of(__int_as_float(pair.x), pair.y);
        most = rank > most ? rank : most;
    }
    return most;
}

/* The first thing that all threads call. */
__device__ __forceinline__ void open_most(struct shared_state *s)
{
    if (threadIdx.x == 0) {
#if HAVE_SM90A
        barrier_init(&s->most_full, 1);
        barrier_init_done();
#endif
        s->most_parity = 0;
    }
    __syncwarp();
#if HAVE_SM90A
    cluster_begun();
#endif
}

/* Called once, after open_most and a barrier of the block: the team's blocks are ready. */
__device__ __forceinline__ void await_most()
{
#if HAVE_SM90A
    cluster_wait();
#endif
}

/* True in the warp that gets the team's best. */
__device__ __forceinline__ bool gets_most()
{
    return team_thread() < 32;
}

/* Sends the best of each warp to that warp, which returns the best of all. Others do not wait; a
 * barrier of the team must come before its next call. */
__device__ __forceinline__ uint64_t team_most(uint64_t rank, struct shared_state *s)
{
    enum { N_WARPS = THREADS / 32 };
    rank = warp_most(rank);
    const int lane = threadIdx.x & 31;
    uint64_t *to = &s->most[team_thread() / 32];
#if HAVE_SM90A
    if (team_thread() == 0) {
        barrier_expect(&s->most_full, (uint32_t)(team_size() * N_WARPS * sizeof *to));
    }
    if (lane == 0) {
        store_in(address_in(to, 0), address_in(&s->most_full, 0), __uint_as_float((uint32_t)rank),
                 __uint_as_float((uint32_t)(rank >> 32)));
    }
    if (!gets_most()) {
        return 0;
    }
    barrier_wait(&s->most_full, s->most_parity);
#else
    if (lane == 0) {
        *team_at(to, 0) = rank;
    }
    team_sync();
    if (!gets_most()) {
        return 0;
    }
#endif
    rank = 0;
#pragma unroll
    for (int i = 0; i < MAX_TEAM; i++) {
        const uint64_t other = i < team_size() ? s->most[i * N_WARPS + lane] : 0;
        rank = other > rank ? other : rank;
    }
    rank = warp_most(rank);
    if (lane == 0) {
        s->most_parity ^= 1;
    }
    return rank;
}

#endif
