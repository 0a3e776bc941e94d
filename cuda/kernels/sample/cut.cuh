// SPDX-License-Identifier: Apache-2.0
/* Top-k and top-p by radix selection over the scores' bits, and the draw from what is kept.
 * Thread: device code, one team at a time. */
#ifndef SLUICE_CUDA_KERNELS_SAMPLE_CUT_CUH
#define SLUICE_CUDA_KERNELS_SAMPLE_CUT_CUH

#include "cuda/kernels/sample/team.cuh"

/* The ids that are kept: those whose key is above `key`, and those whose key is equal to it, up to
 * `last_id`. */
struct cut {
    uint32_t key;
    int last_id;
};

__device__ __forceinline__ bool kept(const struct cut &c, uint32_t key, int id)
{
    return key != 0 && (key > c.key || (key == c.key && id <= c.last_id));
}

/* Scans down from the top bin. Finds the bin in which the running sum reaches `target`, and the sum
 * above that bin. All threads get both. False: the total is less than the target. */
__device__ bool find_bin(unsigned long long target, struct shared_state *s)
{
    const unsigned long long *bins = s->merged;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    constexpr int PER_THREAD = BINS / THREADS;
    const int top = BINS - 1 - (int)threadIdx.x * PER_THREAD;
    unsigned long long mine = 0;
    for (int i = 0; i < PER_THREAD; i++) {
        mine += bins[top - i];
    }
    unsigned long long upto = mine; // sum of the bins from the top down to this one
    for (int d = 1; d < 32; d <<= 1) {
        const unsigned long long other = __shfl_up_sync(0xffffffffu, upto, d);
        upto += lane >= d ? other : 0;
    }
    if (lane == 31) {
        s->warp_mass[warp] = upto;
    }
    if (threadIdx.x == 0) {
        s->found_bin = BINS;
        s->found_above = 0;
    }
    __syncthreads();
    unsigned long long above = upto - mine;
    for (int w = 0; w < warp; w++) {
        above += s->warp_mass[w];
    }
    if (above < target && above + mine >= target) {
        for (int i = 0; i < PER_THREAD; i++) {
            const unsigned long long bin = bins[top - i];
            if (above + bin >= target) {
                s->found_bin = (uint32_t)(top - i);
                s->found_above = above;
                break;
            }
            above += bin;
        }
    }
    __syncthreads();
    return s->found_bin < BINS;
}

/* The id of the r-th element (counted from 1), in id order, whose key is `key` and that `in`
 * keeps. */
__device__ int nth_tie(const struct scores &x, uint32_t key, unsigned long long r,
                       const struct cut &in, struct shared_state *s)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    unsigned long long seen = 0;
    if (threadIdx.x == 0) {
        s->found_bin = (uint32_t)INT32_MAX;
    }
    for (int base = 0; base < x.n && seen < r; base += THREADS) {
        const int i = base + threadIdx.x;
        const bool tie = i < x.n && key_of(score_at(x, i)) == key && kept(in, key, i);
        const unsigned votes = __ballot_sync(0xffffffffu, tie);
        if (lane == 0) {
            s->warp_count[warp] = __popc(votes);
        }
        __syncthreads();
        unsigned long long before = seen;
        for (int w = 0; w < THREADS / 32; w++) {
            before += w < warp ? s->warp_count[w] : 0;
            seen += s->warp_count[w];
        }
        if (tie && before + __popc(votes & ((1u << lane) - 1)) + 1 == r) {
            s->found_bin = (uint32_t)i;
        }
        __syncthreads();
    }
    return (int)s->found_bin;
}

/* A key has three digits, which have 11, 11 and 10 bits from the top. */
__device__ __forceinline__ int digit_shift(int pass)
{
    if (pass == 0) {
        return 21;
    }
    return pass == 1 ? 10 : 0;
}

/* exp(x - top) in units of 2^-40. */
__device__ __forceinline__ unsigned long long mass_of(float x, float top)
{
    return (unsigned long long)(exact_exp(x - top) * 1099511627776.0f);
}

/* Computes in s->merged the team's histogram of one digit, over the kept elements whose key starts
 * with the prefix. */
template <bool BY_MASS, typename M>
__device__ void count_digit(M *bins, const struct scores &x, float top, uint32_t prefix,
                            uint32_t mask, int pass, const struct cut &in, struct shared_state *s)
{
    const int shift = digit_shift(pass);
    const uint32_t digit = pass == 2 ? 1023 : 2047;
    for (int i = threadIdx.x; i < BINS; i += THREADS) {
        bins[i] = 0;
    }
    __syncthreads();
    each(x, [&](int id, float v) {
        const uint32_t key = key_of(v);
        if ((key & mask) == prefix && kept(in, key, id)) {
            const unsigned long long w = BY_MASS ? mass_of(v, top) : 1;
            if (w > 0) {
                atomicAdd(&bins[key >> shift & digit], (M)w);
            }
        }
    });
    team_sync();
    for (int i = threadIdx.x; i < BINS; i += THREADS) {
        unsigned long long sum = 0;
#pragma unroll
        for (int r = 0; r < MAX_TEAM; r++) { // all loads at once
            sum += r < team_size() ? *team_at(&bins[i], r) : 0;
        }
        s->merged[i] = sum;
    }
    team_sync();
}

/* The sum of the merged bins. */
__device__ unsigned long long total_mass(struct shared_state *s)
{
    unsigned long long sum = 0;
    for (int i = threadIdx.x; i < BINS; i += THREADS) {
        sum += s->merged[i];
    }
    for (int mask = 16; mask > 0; mask >>= 1) {
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    }
    if ((threadIdx.x & 31) == 0) {
        s->warp_mass[threadIdx.x >> 5] = sum;
    }
    __syncthreads();
    sum = 0;
    for (int w = 0; w < THREADS / 32; w++) {
        sum += s->warp_mass[w];
    }
    __syncthreads();
    return sum;
}

/* Lists the kept elements whose key is at least `least`, and NaN, so that the draw finds it. Makes
 * no list if there are too many. */
__device__ void make_list(struct scores &x, uint32_t least, const struct cut &in,
                          struct shared_state *s)
{
    if (threadIdx.x == 0) {
        s->n_listed = 0;
    }
    team_sync();
    int *counter = team_at(&s->n_listed, 0);
    each(x, [&](int id, float v) {
        const uint32_t key = key_of(v);
        if ((key >= least && kept(in, key, id)) || isnan(v)) {
            const int place = atomicAdd(counter, 1);
            if (place < LIST) {
                x.list_ids[place] = id;
                x.list[place] = v;
            }
        }
    });
    team_sync();
    const int n = *counter;
    team_sync();
    x.n_listed = n <= LIST ? n : -1;
}

/* Restricts `kept` to its highest elements (of equal ones those with lower ids) until their weights
 * reach `target`. A weight is 1 (top-k) or the mass (top-p, where the target is top_p of the
 * total). */
template <bool BY_MASS>
__device__ __noinline__ struct cut cut_at(struct scores &x, unsigned long long target, float top_p,
                                          float top, const struct cut &in, struct shared_state *s)
{
    uint32_t prefix = 0, mask = 0;
    unsigned long long ties = 0;
    for (int pass = 0; pass < 3; pass++) {
        const int shift = digit_shift(pass);
        if constexpr (BY_MASS) {
            count_digit<true>(s->bins.mass, x, top, prefix, mask, pass, in, s);
            if (pass == 0) {
                const double t = ceil((double)top_p * (double)total_mass(s));
                target = t >= 1.0 ? (unsigned long long)t : 1;
            }
        } else {
            count_digit<false>(s->bins.count, x, top, prefix, mask, pass, in, s);
        }
        if (!find_bin(target, s)) { // the total is less than the target
            return in;
        }
        const uint32_t bin = s->found_bin;
        target -= s->found_above;
        ties = s->merged[bin];
        prefix |= bin << shift;
        mask |= (pass == 2 ? 1023u : 2047u) << shift;
        __syncthreads();
        if (pass == 0 && x.n_listed < 0) {
            make_list(x, prefix, in, s);
        }
    }
    struct cut c = {prefix, prefix == in.key ? in.last_id : INT32_MAX};
    if (target < ties) {
        const unsigned long long one = BY_MASS ? mass_of(float_of_key(prefix), top) : 1;
        const unsigned long long r = (target + one - 1) / one;
        if (r * one < ties) {
            c.last_id = nth_tie(x, prefix, r, in, s);
            __syncthreads();
        }
    }
    return c;
}

/* An upper bound of gumbel_noise(bits), within 1 in 10,000 where the noise is large: -log(-log(1 -
 * t)) <= -log(t), with the device's approximate logarithm. */
__device__ __forceinline__ float noise_bound(uint32_t bits)
{
    return fmaf(__log2f((float)~bits + 0.5f), -0.69314718f, 32.0f * 0.69314718f + 1e-3f);
}

/* The greatest value that any warp of the block has reported so far, including this warp's. Called
 * by a whole warp; no value is NaN. */
__device__ __forceinline__ float most_so_far(float mine, struct shared_state *s)
{
    const uint32_t own = __reduce_max_sync(0xffffffffu, key_of(mine));
    uint32_t key = 0;
    if ((threadIdx.x & 31) == 0) {
        key = max(own, atomicMax(&s->most_key, own));
    }
    key = __shfl_sync(0xffffffffu, key, 0);
    return key == 0 ? -INFINITY : float_of_key(key);
}

/* The scores of ids 4 * block to 4 * block + 3; past the end they are -infinity. */
__device__ __forceinline__ float4 four_scores(const struct scores &x, int block, bool aligned)
{
    const int id = 4 * block;
    float4 v = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    if (aligned && id + 3 < x.n) {
        v = *(const float4 *)(x.row + id);
    } else {
        v.x = id < x.n ? x.row[id] : v.x;
        v.y = id + 1 < x.n ? x.row[id + 1] : v.y;
        v.z = id + 2 < x.n ? x.row[id + 2] : v.z;
        v.w = id + 3 < x.n ? x.row[id + 3] : v.w;
    }
    return v;
}

/* v[e], for an e known only at run time, without moving v from registers to memory. */
template <typename V> __device__ __forceinline__ V element_of(const V (&v)[4], int e)
{
    if (e < 2) {
        return e == 0 ? v[0] : v[1];
    }
    return e == 2 ? v[2] : v[3];
}

/* An upper bound of the score plus noise; NaN if there is no bound. */
__device__ __forceinline__ float noisy_bound(float logit, float inverse, uint32_t bits)
{
    const float score = logit * inverse;
    return fmaf(fabsf(score), 1e-6f, score) + noise_bound(bits);
}

/* The arg-max of score + noise over a row without a list; id HAS_NAN if the row has NaN. Candidates
 * that cannot exceed the best one that the block has found are skipped, because most of the cost of
 * a draw is divisions and logarithms. */
__device__ __noinline__ struct best best_noisy(const struct scores &x, float top, float min_p,
                                               const struct cut &c, uint64_t seed, int position,
                                               struct shared_state *s)
{
    struct best b = {-INFINITY, INT32_MAX};
    bool has_nan = false;
    float least = -INFINITY;
    const bool aligned = (uintptr_t)x.row % 16 == 0;
    // Infinite for temperature 0, so that nothing is skipped.
    const float inverse = 1.0f / x.temperature;
    const int step = team_threads();
    int block = team_thread();
    float4 next = four_scores(x, block, aligned);
    if (threadIdx.x == 0) {
        s->most_key = 0;
    }
    __syncthreads();
    for (int left = (x.n + 3) / 4 - (block & ~31); left > 0; left -= step, block += step) {
        const float v[4] = {next.x, next.y, next.z, next.w};
        next = four_scores(x, block + step, aligned);
        const struct rng_block r =
            rng_philox(seed, (uint32_t)position, RNG_SAMPLE, (uint32_t)block, 0);
        const float most = max_or_nan(max_or_nan(v[0], v[1]), max_or_nan(v[2], v[3]));
        const uint32_t bits = max(max(r.v[0], r.v[1]), max(r.v[2], r.v[3]));
        if (!(noisy_bound(most, inverse, bits) < least)) {
#pragma unroll 1
            for (int e = 0; e < 4; e++) {
                const float from = element_of(v, e);
                const uint32_t own = element_of(r.v, e);
                if (noisy_bound(from, inverse, own) < least) {
                    continue;
                }
                has_nan = has_nan || isnan(from);
                const float score = x.temperature == 1.0f ? from : __fdiv_rn(from, x.temperature);
                const float value = __fadd_rn(score, gumbel_noise(own));
                const int id = block * 4 + e;
                if (better(value, id, b) && kept(c, key_of(score), id) &&
                    !(min_p > 0.0f && exact_exp(score - top) < min_p) && !is_taken(id, s)) {
                    b.value = value;
                    b.id = id;
                }
            }
        }
        __syncwarp();
        least = most_so_far(b.value, s);
    }
    __syncthreads(); // before most_key is reused
    return has_nan ? nan_best() : b;
}

/* The arg-max of score + noise over the elements that are kept, have at least min_p times the
 * probability of the top one, and have not been taken; id HAS_NAN if there is NaN. */
__device__ __noinline__ struct best draw_noisy(const struct scores &x, float top, float min_p,
                                               const struct cut &c, uint64_t seed, int position,
                                               struct shared_state *s)
{
    if (x.n_listed >= 0) {
        struct best b = {-INFINITY, INT32_MAX};
        auto look = [&](int id, float v) {
            b = isnan(v) ? nan_best() : b;
            if (kept(c, key_of(v), id) && !(min_p > 0.0f && exact_exp(v - top) < min_p)) {
                const float value =
                    __fadd_rn(v, gumbel_noise(rng_bits(seed, position, RNG_SAMPLE, (uint32_t)id)));
                if (better(value, id, b) && !is_taken(id, s)) {
                    b.value = value;
                    b.id = id;
                }
            }
        };
        if (x.n_listed > THREADS) {
            each(x, look);
            return team_best(b, s);
        }
        if ((int)threadIdx.x < x.n_listed) { // every block looks at the whole list
            look(x.list_ids[threadIdx.x], x.list[threadIdx.x]);
        }
        return block_best(b, s);
    }
    return team_best(best_noisy(x, top, min_p, c, seed, position, s), s);
}

#endif
