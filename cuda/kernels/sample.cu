/* The sampler: a team of blocks per draw (a cluster when draws are few), no sorting. It gives the tokens of cpu/cpu_sample.c for equal
 * logits: the same roundings, the same exact functions. Thresholds of top-k and top-p are found by
 * radix selection over the scores' bits: counts for top-k, fixed-point masses for top-p, so that
 * sums do not depend on the order of the threads. The first digit goes over the whole row; what can
 * still be kept then is usually short, and is listed for the steps that follow. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/kernels.h"
#include "engine/base/exact.h"

#include <cooperative_groups.h>

enum { THREADS = 1024, TEAMS = 264, MAX_TEAM = 8, BINS = 2048, LIST = 8192 };

/* One team's own scratch memory: a list of ids and scores, modified scores, and counts that are
 * zero between draws. */
static size_t team_bytes(int32_t vocab)
{
    return ((size_t)LIST * 8 + (size_t)vocab * 8 + 255) / 256 * 256;
}

/* Bytes of all teams' scratch; a counter follows. */
static size_t scratch_rows(const struct sample_scratch *s)
{
    return team_bytes(s->vocab) * (size_t)(s->max_draws < TEAMS ? s->max_draws : TEAMS);
}

/* ---- teams: the blocks of a cluster, or one block ------------------------------------------ */

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

/* All threads of the team; orders what they wrote, to global memory too. */
__device__ __forceinline__ void team_sync()
{
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#else
    __syncthreads();
#endif
}

/* `p`, in this block's shared memory, as it is in block `rank` of the team. */
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

extern "C" size_t sample_scratch_bytes(int32_t max_draws, int32_t vocab)
{
    const struct sample_scratch s = {NULL, max_draws, vocab};
    return scratch_rows(&s) + 256;
}

/* Larger floats have larger keys; both zeros have one; NaN and -infinity have 0: never kept. */
__device__ __forceinline__ uint32_t key_of(float x)
{
    if (!(x > -INFINITY)) {
        return 0;
    }
    const uint32_t u = __float_as_uint(x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

struct shared_state {
    float reduce[32];
    int reduce_id[32];
    union {
        uint32_t count[BINS];
        unsigned long long mass[BINS];
    } bins;
    uint32_t warp_count[32];
    unsigned long long merged[BINS]; // the bins of all blocks together
    unsigned long long warp_mass[32];
    unsigned long long part; // this block's part of a team's sum of masses
    double sum;        // this block's part of a team's sum,
    float best_value;  // and of a maximum
    int best_id, n_listed;
    uint32_t found_bin;
    unsigned long long found_above;
    int path[MAX_TREE_NODES];
    int n_path;
    int n_top;
    int top_ids[MAX_TOP_LOGPROBS];
    float top_values[MAX_TOP_LOGPROBS];
};

struct best {
    float value;
    int id;
};

__device__ __forceinline__ bool better(float value, int id, const struct best &b)
{
    return value > b.value || (value == b.value && id < b.id);
}

__device__ struct best team_best(struct best b, struct shared_state *s)
{
    for (int mask = 16; mask > 0; mask >>= 1) {
        const float value = __shfl_xor_sync(0xffffffffu, b.value, mask);
        const int id = __shfl_xor_sync(0xffffffffu, b.id, mask);
        if (better(value, id, b)) {
            b.value = value;
            b.id = id;
        }
    }
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (lane == 0) {
        s->reduce[warp] = b.value;
        s->reduce_id[warp] = b.id;
    }
    __syncthreads();
    b.value = s->reduce[lane];
    b.id = s->reduce_id[lane];
    for (int mask = 16; mask > 0; mask >>= 1) {
        const float value = __shfl_xor_sync(0xffffffffu, b.value, mask);
        const int id = __shfl_xor_sync(0xffffffffu, b.id, mask);
        if (better(value, id, b)) {
            b.value = value;
            b.id = id;
        }
    }
    if (threadIdx.x == 0) {
        s->best_value = b.value;
        s->best_id = b.id;
    }
    team_sync();
    for (int r = 0; r < team_size(); r++) {
        const float value = *team_at(&s->best_value, r);
        const int id = *team_at(&s->best_id, r);
        if (better(value, id, b)) {
            b.value = value;
            b.id = id;
        }
    }
    team_sync();
    return b;
}

/* The scores of a draw: a row, each divided by the temperature (1: not). Once a list is made, it
 * has all that can still be kept. */
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

/* Calls f(id, score) for this thread's share. */
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

/* Of the row as it is; id 0 and -infinity when nothing is above that. */
__device__ struct best team_argmax(const float *row, int n, struct shared_state *s)
{
    const struct scores plain = {row, n, 1.0f, NULL, NULL, -1};
    struct best b = {-INFINITY, INT32_MAX};
    each(plain, [&](int id, float x) {
        if (x > b.value || (x == b.value && id < b.id && x > -INFINITY)) {
            b.value = x;
            b.id = id;
        }
    });
    b = team_best(b, s);
    b.id = b.id == INT32_MAX ? 0 : b.id;
    return b;
}

/* What is kept: keys above `key`, and of those equal to it the ids up to `last_id`. */
struct cut {
    uint32_t key;
    int last_id;
};

__device__ __forceinline__ bool kept(const struct cut &c, uint32_t key, int id)
{
    return key != 0 && (key > c.key || (key == c.key && id <= c.last_id));
}

/* From the top bin down: the bin where the running sum first reaches `target`, and the sum above
 * it. All threads get both; false if the whole sum is less. */
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
    unsigned long long upto = mine; // inclusive scan from the top
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

/* The id of the r-th (from 1) element, in order of id, whose key is `key` and that is in `in`. */
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

/* The three digits of a key, from the top: 11, 11 and 10 bits. */
__device__ __forceinline__ int digit_shift(int pass)
{
    return pass == 0 ? 21 : pass == 1 ? 10 : 0;
}

/* exp(x - top) in units of 2^-40. */
__device__ __forceinline__ unsigned long long mass_of(float x, float top)
{
    return (unsigned long long)(exact_exp(x - top) * 1099511627776.0f);
}

/* The team's histogram of one digit, of what is kept and begins with the prefix: in s->merged. */
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
        for (int r = 0; r < team_size(); r++) {
            sum += *team_at(&bins[i], r);
        }
        s->merged[i] = sum;
    }
    team_sync();
}

/* Sum of the merged bins. */
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

/* Lists what has at least this key and is kept; no list if that is too much. */
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
        if (key >= least && kept(in, key, id)) {
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

/* Keeps the highest of what is kept already, the lower id first among equals, until their weights
 * reach `target`: weights are 1 (top-k) or masses (top-p, whose target is top_p of the total). */
template <bool BY_MASS>
__device__ struct cut cut_at(struct scores &x, unsigned long long target, float top_p, float top,
                             const struct cut &in, struct shared_state *s)
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
        if (!find_bin(target, s)) { // all together do not reach it
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
        const float v = __uint_as_float(prefix & 0x80000000u ? prefix & 0x7fffffffu : ~prefix);
        const unsigned long long one = BY_MASS ? mass_of(v, top) : 1;
        const unsigned long long r = (target + one - 1) / one;
        if (r * one < ties) {
            c.last_id = nth_tie(x, prefix, r, in, s);
            __syncthreads();
        }
    }
    return c;
}

/* arg-max of score + noise over what is kept and has at least min_p of the top's probability. */
__device__ struct best draw_noisy(const struct scores &x, float top, float min_p,
                                  const struct cut &c, uint64_t seed, int position,
                                  struct shared_state *s)
{
    struct best b = {-INFINITY, INT32_MAX};
    if (x.n_listed >= 0) {
        each(x, [&](int id, float v) {
            if (kept(c, key_of(v), id) && !(min_p > 0.0f && exact_exp(v - top) < min_p)) {
                const float value = __fadd_rn(
                    v, gumbel_noise(rng_bits(seed, position, RNG_SAMPLE, (uint32_t)id)));
                if (better(value, id, b)) {
                    b.value = value;
                    b.id = id;
                }
            }
        });
        return team_best(b, s);
    }
    for (int block = team_thread(); block * 4 < x.n; block += team_threads()) {
        bool any = false;
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int id = block * 4 + e;
            v[e] = id < x.n ? score_at(x, id) : -INFINITY;
            if (!kept(c, key_of(v[e]), id) || (min_p > 0.0f && exact_exp(v[e] - top) < min_p)) {
                v[e] = -INFINITY;
            }
            any = any || v[e] > -INFINITY;
        }
        if (!any) {
            continue;
        }
        const struct rng_block r =
            rng_philox(seed, (uint32_t)position, RNG_SAMPLE, (uint32_t)block, 0);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float value = __fadd_rn(v[e], gumbel_noise(r.v[e]));
            if (v[e] > -INFINITY && better(value, block * 4 + e, b)) {
                b.value = value;
                b.id = block * 4 + e;
            }
        }
    }
    return team_best(b, s);
}

/* ---- the context of a draw: history, and in a tree the row's ancestors ---------------------- */

struct context {
    const int32_t *history;
    const int32_t *tokens;
    const int *path;
    int n_history, n; // tokens from the history; in all
};

__device__ __forceinline__ int context_token(const struct context &c, int i)
{
    return i < c.n_history ? c.history[i] : c.tokens[c.path[i - c.n_history]];
}

__device__ struct context make_context(const struct pass_view &pass, const struct pass_draw &d,
                                       struct shared_state *s)
{
    struct context c;
    c.history = pass.history + (int64_t)d.lane * pass.history_stride;
    c.tokens = pass.tokens;
    c.path = s->path;
    c.n = c.n_history = d.pos + 1 < pass.history_stride ? d.pos + 1 : pass.history_stride;
    const int index = d.tree_row >= 0 ? pass.row_seq[d.tree_row] : -1;
    if (index >= 0) {
        const struct pass_seq seq = pass.seqs[index];
        if (threadIdx.x == 0) {
            const uint64_t *mask = pass.tree_mask + (int64_t)d.tree_row * TREE_MASK_WORDS;
            int n = 0;
            for (int i = 0; i < seq.n_rows && i < MAX_TREE_NODES; i++) {
                if (mask[i >> 6] >> (i & 63) & 1) {
                    s->path[n++] = seq.first_row + i;
                }
            }
            s->n_path = n;
        }
        __syncthreads();
        c.n_history = seq.n_past < pass.history_stride ? seq.n_past : pass.history_stride;
        c.n = c.n_history + s->n_path;
    }
    return c;
}

/* ---- step 1: the scores ------------------------------------------------------------------- */

__device__ __forceinline__ bool is_modified(const struct lane_params &p, const struct pass_draw &d)
{
    return p.n_bias > 0 || p.n_allowed > 0 || p.n_bad_words > 0 || p.repetition_penalty != 1.0f ||
           p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f ||
           (p.n_stop_ids > 0 && d.pos + 1 - d.n_prompt < p.min_tokens);
}

__device__ void add_bias(float *scores, int n, const struct lane_params &p)
{
    for (int j = team_thread(); j < p.n_bias; j += team_threads()) {
        const int token = p.bias[j].token;
        if (token < 0 || token >= n) {
            continue;
        }
        bool first = true;
        for (int i = 0; i < j; i++) {
            first = first && p.bias[i].token != token;
        }
        if (first) {
            float x = scores[token];
            for (int i = j; i < p.n_bias; i++) {
                x = p.bias[i].token == token ? __fadd_rn(x, p.bias[i].bias) : x;
            }
            scores[token] = x;
        }
    }
    team_sync();
}

/* Both walks leave `counts` as they found it: zero. */
__device__ void penalise(float *scores, int *counts, int n, const struct lane_params &p,
                         const struct pass_draw &d, const struct context &c)
{
    if (p.repetition_penalty != 1.0f) {
        for (int i = team_thread(); i < c.n; i += team_threads()) {
            const int token = context_token(c, i);
            if (token >= 0 && token < n) {
                counts[token] = 1;
            }
        }
        team_sync();
        for (int i = team_thread(); i < c.n; i += team_threads()) {
            const int token = context_token(c, i);
            if (token >= 0 && token < n && atomicExch(&counts[token], 0) != 0) {
                const float x = scores[token];
                scores[token] = x > 0.0f ? __fdiv_rn(x, p.repetition_penalty)
                                         : __fmul_rn(x, p.repetition_penalty);
            }
        }
        team_sync();
    }
    if (p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f) {
        for (int i = d.n_prompt + team_thread(); i < c.n; i += team_threads()) {
            const int token = context_token(c, i);
            if (token >= 0 && token < n) {
                atomicAdd(&counts[token], 1);
            }
        }
        team_sync();
        for (int i = d.n_prompt + team_thread(); i < c.n; i += team_threads()) {
            const int token = context_token(c, i);
            const int count = token >= 0 && token < n ? atomicExch(&counts[token], 0) : 0;
            if (count > 0) {
                const float x =
                    __fsub_rn(scores[token], __fmul_rn((float)count, p.frequency_penalty));
                scores[token] = __fsub_rn(x, p.presence_penalty);
            }
        }
        team_sync();
    }
}

__device__ void ban(float *scores, int n, const struct lane_params &p, const struct pass_draw &d,
                    const struct context &c, const uint32_t *allowed)
{
    if (p.n_allowed > 0) {
        for (int i = team_thread(); i < n; i += team_threads()) {
            if (!(allowed[i >> 5] >> (i & 31) & 1)) {
                scores[i] = -INFINITY;
            }
        }
    }
    if (d.pos + 1 - d.n_prompt < p.min_tokens) {
        for (int i = team_thread(); i < p.n_stop_ids; i += team_threads()) {
            if (p.stop_ids[i] >= 0 && p.stop_ids[i] < n) {
                scores[p.stop_ids[i]] = -INFINITY;
            }
        }
    }
    for (int w = team_thread(); w < p.n_bad_words; w += team_threads()) {
        int at = 0;
        for (int i = 0; i < w; i++) {
            at += p.bad_word_lengths[i];
        }
        const int length = p.bad_word_lengths[w];
        bool match = c.n >= length - 1;
        for (int i = 0; match && i < length - 1; i++) {
            match = context_token(c, c.n - (length - 1) + i) == p.bad_word_tokens[at + i];
        }
        const int last = p.bad_word_tokens[at + length - 1];
        if (match && last >= 0 && last < n) {
            scores[last] = -INFINITY;
        }
    }
    team_sync();
}

__device__ void make_scores(const float *logits, float *scores, int *counts, int n,
                            const struct lane_params &p, const struct pass_draw &d,
                            const struct context &c, const uint32_t *allowed,
                            struct shared_state *s)
{
    for (int with_bans = 1; with_bans >= 0; with_bans--) {
        for (int i = team_thread(); i < n; i += team_threads()) {
            scores[i] = logits[i];
        }
        team_sync();
        add_bias(scores, n, p);
        penalise(scores, counts, n, p, d, c);
        if (!with_bans) {
            return;
        }
        ban(scores, n, p, d, c, allowed);
        if (team_argmax(scores, n, s).value > -INFINITY) {
            return;
        }
    }
}

/* ---- log-probabilities --------------------------------------------------------------------- */

/* log of the sum of exp over the raw logits, summed in double: the number of threads does not show. */
__device__ float log_sum(const float *logits, int n, float top, struct shared_state *s)
{
    const struct scores raw = {logits, n, 1.0f, NULL, NULL, -1};
    double sum = 0.0;
    each(raw, [&](int, float x) { sum += x > -INFINITY ? (double)expf(x - top) : 0.0; });
    for (int mask = 16; mask > 0; mask >>= 1) {
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    }
    double *warps = (double *)s->warp_mass;
    if ((threadIdx.x & 31) == 0) {
        warps[threadIdx.x >> 5] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        s->sum = 0.0;
        for (int w = 0; w < THREADS / 32; w++) {
            s->sum += warps[w];
        }
    }
    team_sync();
    sum = 0.0;
    for (int r = 0; r < team_size(); r++) {
        sum += *team_at(&s->sum, r);
    }
    team_sync();
    return top + (float)log(sum);
}

/* The n_top most likely ids, in order: found by threshold, then ranked among themselves. */
__device__ void most_likely(const float *logits, int n, int n_top, float lse, int *list_ids,
                            float *list, struct draw_result *out, struct shared_state *s)
{
    n_top = n_top < n ? n_top : n;
    const struct cut all = {0, INT32_MAX};
    struct scores raw = {logits, n, 1.0f, list_ids, list, -1};
    const struct cut c = cut_at<false>(raw, (unsigned)n_top, 0.0f, 0.0f, all, s);
    if (threadIdx.x == 0) {
        s->n_top = 0;
    }
    team_sync();
    struct shared_state *first = team_at(s, 0);
    each(raw, [&](int id, float x) {
        if (kept(c, key_of(x), id)) {
            const int place = atomicAdd(&first->n_top, 1);
            if (place < MAX_TOP_LOGPROBS) {
                first->top_ids[place] = id;
                first->top_values[place] = x;
            }
        }
    });
    team_sync();
    if (team_rank() == 0) {
        n_top = s->n_top < n_top ? s->n_top : n_top;
        if ((int)threadIdx.x < n_top) {
            const float x = s->top_values[threadIdx.x];
            const int id = s->top_ids[threadIdx.x];
            int rank = 0;
            for (int i = 0; i < n_top; i++) {
                const struct best other = {x, id};
                rank += i != (int)threadIdx.x && better(s->top_values[i], s->top_ids[i], other);
            }
            out->top_ids[rank] = id;
            out->top_logprobs[rank] = x - lse;
        }
        if (threadIdx.x == 0) {
            out->n_top = n_top;
        }
    }
    team_sync();
}

/* ---- the law of a draft, and its judgement: as in cpu/cpu_sample.c -------------------------- */

/* The team's sum. */
__device__ unsigned long long team_mass(unsigned long long mine, struct shared_state *s)
{
    for (int mask = 16; mask > 0; mask >>= 1) {
        mine += __shfl_xor_sync(0xffffffffu, mine, mask);
    }
    if ((threadIdx.x & 31) == 0) {
        s->warp_mass[threadIdx.x >> 5] = mine;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        s->part = 0;
        for (int w = 0; w < THREADS / 32; w++) {
            s->part += s->warp_mass[w];
        }
    }
    team_sync();
    unsigned long long sum = 0;
    for (int r = 0; r < team_size(); r++) {
        sum += *team_at(&s->part, r);
    }
    team_sync();
    return sum;
}

__device__ __forceinline__ unsigned long long mass_of_share(float share)
{
    return (unsigned long long)(share * 1099511627776.0f);
}

/* What is kept of a row, and by what; a share is 0 where nothing is. */
struct law {
    struct scores x; // without a list: all ids
    struct cut c;
    float top, min_p;
};

__device__ __forceinline__ float share_of(const struct law &l, int id, float v)
{
    if (!kept(l.c, key_of(v), id)) {
        return 0.0f;
    }
    const float share = exact_exp(v - l.top);
    return l.min_p > 0.0f && share < l.min_p ? 0.0f : share;
}

__device__ void keep_law(const struct law &l, float *shares, unsigned long long *total,
                         struct shared_state *s)
{
    unsigned long long mine = 0;
    each(l.x, [&](int id, float v) {
        const float share = share_of(l, id, v);
        shares[id] = share;
        mine += mass_of_share(share);
    });
    mine = team_mass(mine, s);
    if (team_thread() == 0) {
        *total = mine;
    }
}

/* arg-max of log(p - q) + noise where p is above q; without q, of log p + noise. */
__device__ struct best draw_residual(const struct law &p, double p_total, const float *q,
                                     double q_total, uint64_t seed, int position,
                                     struct shared_state *s)
{
    struct best b = {-INFINITY, INT32_MAX};
    each(p.x, [&](int id, float v) {
        const float share = share_of(p, id, v);
        if (!(share > 0.0f)) {
            return;
        }
        double w = __ddiv_rn((double)mass_of_share(share), p_total);
        if (q != NULL) {
            w = __dsub_rn(w, __ddiv_rn((double)mass_of_share(q[id]), q_total));
        }
        if ((float)w < 1.17549435e-38f) {
            return;
        }
        const float noise = gumbel_noise(rng_bits(seed, position, RNG_RESIDUAL, (uint32_t)id));
        const float value = __fadd_rn(exact_log((float)w), noise);
        if (better(value, id, b)) {
            b.value = value;
            b.id = id;
        }
    });
    return team_best(b, s);
}

/* The draft if it is accepted, else another token. */
__device__ int judge_draft(const struct law &p, const float *q, unsigned long long q_total,
                           int draft, uint64_t seed, int position, struct shared_state *s)
{
    unsigned long long mine = 0;
    each(p.x, [&](int id, float v) { mine += mass_of_share(share_of(p, id, v)); });
    const double p_total = (double)team_mass(mine, s);
    if (draft >= 0 && draft < p.x.n) {
        const float share = share_of(p, draft, score_at(p.x, draft));
        const double u = rng_uniform(rng_bits(seed, position, RNG_ACCEPT, 0));
        const double p_side = __dmul_rn((double)mass_of_share(share), (double)q_total);
        const double q_side = __dmul_rn(__dmul_rn(u, (double)mass_of_share(q[draft])), p_total);
        if (p_side > q_side) {
            return draft;
        }
    }
    struct best b = draw_residual(p, p_total, q, (double)q_total, seed, position, s);
    if (b.id == INT32_MAX) {
        b = draw_residual(p, 1.0, NULL, 1.0, seed, position, s);
    }
    return b.id;
}

/* ---- one draw ------------------------------------------------------------------------------ */

/* A team's scratch memory. */
struct scratchpad {
    int *list_ids;
    float *list;
    float *scores;
    int *counts;
};

__device__ int draw_token(const float *logits, const struct scratchpad &pad, int n,
                          const struct pass_draw &d, const struct pass_view &pass,
                          struct shared_state *s)
{
    const struct lane_params &p = pass.params[d.lane];
    const float temperature = d.kind == DRAW_DRAFT && !d.noise ? 0.0f : p.temperature;
    const float *row = logits;
    if (is_modified(p, d)) {
        const struct context c = make_context(pass, d, s);
        make_scores(logits, pad.scores, pad.counts, n, p, d, c,
                    pass.allowed + (int64_t)d.lane * pass.allowed_stride, s);
        row = pad.scores;
    }
    struct cut c = {0, INT32_MAX};
    const bool needs_top =
        temperature == 0.0f || p.top_p < 1.0f || p.min_p > 0.0f || d.law > 0;
    const struct best best = needs_top ? team_argmax(row, n, s) : (struct best){0.0f, 0};
    if (temperature == 0.0f) {
        return best.id;
    }
    struct scores x = {row, n, temperature, pad.list_ids, pad.list, -1};
    const float top = __fdiv_rn(best.value, temperature);
    if (p.top_k > 0 && p.top_k < n) {
        c = cut_at<false>(x, (unsigned)p.top_k, 0.0f, top, c, s);
    }
    if (p.top_p < 1.0f) {
        c = cut_at<true>(x, 0, p.top_p, top, c, s);
    }
    const uint64_t seed = (uint64_t)p.seed_high << 32 | p.seed_low;
    if (d.law > 0) {
        const struct law law = {{row, n, temperature, NULL, NULL, -1}, c, top, p.min_p};
        float *shares = pass.laws + (int64_t)(d.law - 1) * pass.vocab;
        unsigned long long *total = pass.law_totals + (d.law - 1);
        if (d.kind == DRAW_DRAFT) {
            keep_law(law, shares, total, s);
        } else {
            const int32_t *history = pass.history + (int64_t)d.lane * pass.history_stride;
            const int draft = d.pos + 1 < pass.history_stride ? history[d.pos + 1] : -1;
            const int id = judge_draft(law, shares, *total, draft, seed, d.pos + 1, s);
            return id == INT32_MAX ? best.id : id;
        }
    }
    const struct best drawn = draw_noisy(x, top, p.min_p, c, seed, d.pos + 1, s);
    return drawn.id == INT32_MAX ? team_argmax(row, n, s).id : drawn.id;
}

/* The last block to finish writes what is kept to the histories: until then a draw may read them. */
__device__ void keep_draws(const struct pass_view &pass, int n_draws,
                           const struct draw_result *results, unsigned *arrived,
                           struct shared_state *s)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        s->found_bin = atomicAdd(arrived, 1u) + 1 == gridDim.x;
    }
    __syncthreads();
    if (!s->found_bin) {
        return;
    }
    __threadfence();
    for (int i = threadIdx.x; i < n_draws; i += THREADS) {
        const struct pass_draw d = pass.draws[i];
        if (d.keep && d.kind != DRAW_SCORE && d.pos + 1 < pass.history_stride) {
            pass.history[(int64_t)d.lane * pass.history_stride + d.pos + 1] =
                ((const volatile struct draw_result *)results)[i].token;
        }
    }
    if (threadIdx.x == 0) {
        *arrived = 0;
    }
}

__global__ void __launch_bounds__(THREADS)
    sample_kernel(const float *logits, int64_t stride, int n_draws, int n, struct pass_view pass,
                  char *scratch, size_t scratch_stride, int vocab, unsigned *arrived,
                  struct draw_result *results)
{
    __shared__ struct shared_state s;
    pdl_wait();
    pdl_trigger();
    const int team = blockIdx.x / team_size(), n_teams = gridDim.x / team_size();
    struct scratchpad pad;
    pad.list_ids = (int *)(scratch + team * scratch_stride);
    pad.list = (float *)(pad.list_ids + LIST);
    pad.scores = pad.list + LIST;
    pad.counts = (int *)(pad.scores + vocab);
    const int real = pass.counts->n_draws < n_draws ? pass.counts->n_draws : n_draws;
    for (int i = team; i < real; i += n_teams) {
        const struct pass_draw d = pass.draws[i];
        const float *row = logits + d.out_row * stride;
        struct draw_result *out = results + i;
        int token;
        if (d.kind == DRAW_SCORE) {
            const int32_t *history = pass.history + (int64_t)d.lane * pass.history_stride;
            token = d.pos + 1 < pass.history_stride ? history[d.pos + 1] : 0;
        } else {
            token = draw_token(row, pad, n, d, pass, &s);
        }
        float lse = 0.0f;
        if (d.logprobs || d.kind == DRAW_SCORE) {
            lse = log_sum(row, n, team_argmax(row, n, &s).value, &s);
        }
        if (team_thread() == 0) {
            out->token = token;
            out->logprob = d.logprobs || d.kind == DRAW_SCORE
                               ? (token >= 0 && token < n ? row[token] - lse : -INFINITY)
                               : 0.0f;
            out->n_top = 0;
        }
        if ((d.logprobs || d.kind == DRAW_SCORE) && d.top_n > 0) {
            most_likely(row, n, d.top_n, lse, pad.list_ids, pad.list, out, &s);
        }
        __syncthreads();
    }
    keep_draws(pass, real, results, arrived, &s);
}

extern "C" cudaError_t k_sample(cudaStream_t stream, const struct sample_args *a,
                                const struct pass_view *pass, const struct sample_scratch *scratch,
                                struct draw_result *results)
{
    if (a->n_draws <= 0) {
        return cudaSuccess;
    }
    const int n_teams = a->n_draws < TEAMS ? a->n_draws : TEAMS;
    int size = MAX_TEAM; // few draws share the device
    while (size > 1 && (n_teams * size > 132 || launch_sm() < 90)) {
        size /= 2;
    }
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (unsigned)size;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(n_teams * size));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = launch_sm() >= 90 ? 2 : 0;
    return cudaLaunchKernelEx(
        &config, sample_kernel, (const float *)a->logits.mem.p, (int64_t)a->logits.stride,
        (int)a->n_draws, (int)a->n_vocab_used, *pass, (char *)scratch->memory,
        team_bytes(scratch->vocab), (int)scratch->vocab,
        (unsigned *)((char *)scratch->memory + scratch_rows(scratch)), results);
}
