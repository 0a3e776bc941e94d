/* The sampler: a block per draw, no sorting. It gives the tokens of cpu/cpu_sample.c for equal
 * logits: the same roundings, the same exact functions. Thresholds of top-k and top-p are found by
 * radix selection over the scores' bits: counts for top-k, fixed-point masses for top-p, so that
 * sums do not depend on the order of the threads. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/kernels.h"
#include "engine/base/exact.h"

enum { THREADS = 1024, BLOCKS = 264, BINS = 2048 };

/* One block's own scratch memory: modified scores, and counts that are zero between draws. */
static size_t block_bytes(int32_t vocab)
{
    return ((size_t)vocab * 8 + 255) / 256 * 256;
}

/* Bytes of all blocks' scratch; a counter follows. */
static size_t scratch_rows(const struct sample_scratch *s)
{
    return block_bytes(s->vocab) * (size_t)(s->max_draws < BLOCKS ? s->max_draws : BLOCKS);
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
    unsigned long long warp_mass[32];
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

__device__ struct best block_best(struct best b, struct shared_state *s)
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
    __syncthreads();
    return b;
}

/* The scores of a draw: a row, each divided by the temperature (1: not). */
struct scores {
    const float *row;
    int n;
    float temperature;
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
    if ((uintptr_t)x.row % 16 == 0) {
        const int n4 = x.n / 4;
#pragma unroll 2
        for (int i = threadIdx.x; i < n4; i += THREADS) {
            const float4 v = ((const float4 *)x.row)[i];
            f(4 * i, divide ? __fdiv_rn(v.x, t) : v.x);
            f(4 * i + 1, divide ? __fdiv_rn(v.y, t) : v.y);
            f(4 * i + 2, divide ? __fdiv_rn(v.z, t) : v.z);
            f(4 * i + 3, divide ? __fdiv_rn(v.w, t) : v.w);
        }
        if ((int)threadIdx.x < x.n - 4 * n4) {
            f(4 * n4 + threadIdx.x, score_at(x, 4 * n4 + threadIdx.x));
        }
    } else {
        for (int i = threadIdx.x; i < x.n; i += THREADS) {
            f(i, score_at(x, i));
        }
    }
}

/* Of the row as it is; id 0 and -infinity when nothing is above that. */
__device__ struct best block_argmax(const float *row, int n, struct shared_state *s)
{
    const struct scores plain = {row, n, 1.0f};
    struct best b = {-INFINITY, INT32_MAX};
    each(plain, [&](int id, float x) {
        if (x > b.value || (x == b.value && id < b.id && x > -INFINITY)) {
            b.value = x;
            b.id = id;
        }
    });
    b = block_best(b, s);
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
 * it. M is the bins' type. All threads get both; false if the whole sum is less. */
template <typename M>
__device__ bool find_bin(const M *bins, unsigned long long target, struct shared_state *s)
{
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

/* One digit's histogram of what is kept and begins with the prefix. */
template <bool BY_MASS, typename M>
__device__ void count_digit(M *bins, const struct scores &x, float top, uint32_t prefix,
                            uint32_t mask, int pass, const struct cut &in)
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
    __syncthreads();
}

/* Keeps the highest of what is kept already, the lower id first among equals, until their weights
 * reach `target`: weights are 1 (top-k) or masses (top-p; top_p > 0 sets the target from the
 * total). */
template <bool BY_MASS>
__device__ struct cut cut_at(const struct scores &x, unsigned long long target, float top_p,
                             float top, const struct cut &in, struct shared_state *s)
{
    uint32_t prefix = 0, mask = 0;
    unsigned long long ties = 0;
    for (int pass = 0; pass < 3; pass++) {
        const int shift = digit_shift(pass);
        bool found;
        if constexpr (BY_MASS) {
            count_digit<true>(s->bins.mass, x, top, prefix, mask, pass, in);
            if (pass == 0) {
                unsigned long long total = 0;
                for (int i = 0; i < BINS; i++) {
                    total += s->bins.mass[i];
                }
                const double t = ceil((double)top_p * (double)total);
                target = t >= 1.0 ? (unsigned long long)t : 1;
            }
            found = find_bin(s->bins.mass, target, s);
        } else {
            count_digit<false>(s->bins.count, x, top, prefix, mask, pass, in);
            found = find_bin(s->bins.count, target, s);
        }
        if (!found) { // all together do not reach it
            return in;
        }
        const uint32_t bin = s->found_bin;
        target -= s->found_above;
        ties = BY_MASS ? s->bins.mass[bin] : s->bins.count[bin];
        prefix |= bin << shift;
        mask |= (pass == 2 ? 1023u : 2047u) << shift;
        __syncthreads();
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
    for (int block = threadIdx.x; block * 4 < x.n; block += THREADS) {
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
    return block_best(b, s);
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
    for (int j = threadIdx.x; j < p.n_bias; j += THREADS) {
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
    __syncthreads();
}

/* Both walks leave `counts` as they found it: zero. */
__device__ void penalise(float *scores, int *counts, int n, const struct lane_params &p,
                         const struct pass_draw &d, const struct context &c)
{
    if (p.repetition_penalty != 1.0f) {
        for (int i = threadIdx.x; i < c.n; i += THREADS) {
            const int token = context_token(c, i);
            if (token >= 0 && token < n) {
                counts[token] = 1;
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < c.n; i += THREADS) {
            const int token = context_token(c, i);
            if (token >= 0 && token < n && atomicExch(&counts[token], 0) != 0) {
                const float x = scores[token];
                scores[token] = x > 0.0f ? __fdiv_rn(x, p.repetition_penalty)
                                         : __fmul_rn(x, p.repetition_penalty);
            }
        }
        __syncthreads();
    }
    if (p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f) {
        for (int i = d.n_prompt + threadIdx.x; i < c.n; i += THREADS) {
            const int token = context_token(c, i);
            if (token >= 0 && token < n) {
                atomicAdd(&counts[token], 1);
            }
        }
        __syncthreads();
        for (int i = d.n_prompt + threadIdx.x; i < c.n; i += THREADS) {
            const int token = context_token(c, i);
            const int count = token >= 0 && token < n ? atomicExch(&counts[token], 0) : 0;
            if (count > 0) {
                const float x =
                    __fsub_rn(scores[token], __fmul_rn((float)count, p.frequency_penalty));
                scores[token] = __fsub_rn(x, p.presence_penalty);
            }
        }
        __syncthreads();
    }
}

__device__ void ban(float *scores, int n, const struct lane_params &p, const struct pass_draw &d,
                    const struct context &c, const uint32_t *allowed)
{
    if (p.n_allowed > 0) {
        for (int i = threadIdx.x; i < n; i += THREADS) {
            if (!(allowed[i >> 5] >> (i & 31) & 1)) {
                scores[i] = -INFINITY;
            }
        }
    }
    if (d.pos + 1 - d.n_prompt < p.min_tokens) {
        for (int i = threadIdx.x; i < p.n_stop_ids; i += THREADS) {
            if (p.stop_ids[i] >= 0 && p.stop_ids[i] < n) {
                scores[p.stop_ids[i]] = -INFINITY;
            }
        }
    }
    for (int w = threadIdx.x; w < p.n_bad_words; w += THREADS) {
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
    __syncthreads();
}

__device__ void make_scores(const float *logits, float *scores, int *counts, int n,
                            const struct lane_params &p, const struct pass_draw &d,
                            const struct context &c, const uint32_t *allowed,
                            struct shared_state *s)
{
    for (int with_bans = 1; with_bans >= 0; with_bans--) {
        for (int i = threadIdx.x; i < n; i += THREADS) {
            scores[i] = logits[i];
        }
        __syncthreads();
        add_bias(scores, n, p);
        penalise(scores, counts, n, p, d, c);
        if (!with_bans) {
            return;
        }
        ban(scores, n, p, d, c, allowed);
        int any = 0;
        const struct scores all = {scores, n, 1.0f};
        each(all, [&](int, float x) { any |= x > -INFINITY; });
        if (__syncthreads_or(any)) {
            return;
        }
    }
}

/* ---- log-probabilities --------------------------------------------------------------------- */

/* log of the sum of exp over the raw logits. */
__device__ float log_sum(const float *logits, int n, float top, struct shared_state *s)
{
    const struct scores raw = {logits, n, 1.0f};
    float sum = 0.0f;
    each(raw, [&](int, float x) { sum += x > -INFINITY ? expf(x - top) : 0.0f; });
    return top + logf(block_sum(sum, s->reduce));
}

/* The n_top most likely ids, in order: found by threshold, then ranked among themselves. */
__device__ void most_likely(const float *logits, int n, int n_top, float lse,
                            struct draw_result *out, struct shared_state *s)
{
    n_top = n_top < n ? n_top : n;
    const struct cut all = {0, INT32_MAX};
    const struct scores raw = {logits, n, 1.0f};
    const struct cut c = cut_at<false>(raw, (unsigned)n_top, 0.0f, 0.0f, all, s);
    if (threadIdx.x == 0) {
        s->n_top = 0;
    }
    __syncthreads();
    each(raw, [&](int id, float x) {
        if (kept(c, key_of(x), id)) {
            const int place = atomicAdd(&s->n_top, 1);
            if (place < MAX_TOP_LOGPROBS) {
                s->top_ids[place] = id;
                s->top_values[place] = x;
            }
        }
    });
    __syncthreads();
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
    __syncthreads();
}

/* ---- one draw ------------------------------------------------------------------------------ */

__device__ int draw_token(const float *logits, float *scratch, int *counts, int n,
                          const struct pass_draw &d, const struct pass_view &pass,
                          struct shared_state *s)
{
    const struct lane_params &p = pass.params[d.lane];
    const float temperature = d.kind == DRAW_DRAFT && !d.noise ? 0.0f : p.temperature;
    const float *row = logits;
    if (is_modified(p, d)) {
        const struct context c = make_context(pass, d, s);
        make_scores(logits, scratch, counts, n, p, d, c,
                    pass.allowed + (int64_t)d.lane * pass.allowed_stride, s);
        row = scratch;
    }
    struct cut c = {0, INT32_MAX};
    const bool needs_top = temperature == 0.0f || p.top_p < 1.0f || p.min_p > 0.0f;
    const struct best best = needs_top ? block_argmax(row, n, s) : (struct best){0.0f, 0};
    if (temperature == 0.0f) {
        return best.id;
    }
    const struct scores x = {row, n, temperature};
    const float top = __fdiv_rn(best.value, temperature);
    if (p.top_k > 0 && p.top_k < n) {
        c = cut_at<false>(x, (unsigned)p.top_k, 0.0f, top, c, s);
    }
    if (p.top_p < 1.0f) {
        c = cut_at<true>(x, 0, p.top_p, top, c, s);
    }
    const uint64_t seed = (uint64_t)p.seed_high << 32 | p.seed_low;
    const struct best drawn = draw_noisy(x, top, p.min_p, c, seed, d.pos + 1, s);
    return drawn.id == INT32_MAX ? block_argmax(row, n, s).id : drawn.id;
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
    float *scores = (float *)(scratch + blockIdx.x * scratch_stride);
    int *counts = (int *)(scores + vocab);
    const int real = pass.counts->n_draws < n_draws ? pass.counts->n_draws : n_draws;
    for (int i = blockIdx.x; i < real; i += gridDim.x) {
        const struct pass_draw d = pass.draws[i];
        const float *row = logits + d.out_row * stride;
        struct draw_result *out = results + i;
        int token;
        if (d.kind == DRAW_SCORE) {
            const int32_t *history = pass.history + (int64_t)d.lane * pass.history_stride;
            token = d.pos + 1 < pass.history_stride ? history[d.pos + 1] : 0;
        } else {
            token = draw_token(row, scores, counts, n, d, pass, &s);
        }
        float lse = 0.0f;
        if (d.logprobs || d.kind == DRAW_SCORE) {
            lse = log_sum(row, n, block_argmax(row, n, &s).value, &s);
        }
        if (threadIdx.x == 0) {
            out->token = token;
            out->logprob = d.logprobs || d.kind == DRAW_SCORE
                               ? (token >= 0 && token < n ? row[token] - lse : -INFINITY)
                               : 0.0f;
            out->n_top = 0;
        }
        if ((d.logprobs || d.kind == DRAW_SCORE) && d.top_n > 0) {
            most_likely(row, n, d.top_n, lse, out, &s);
        }
        __syncthreads();
    }
    keep_draws(pass, real, results, arrived, &s);
}

extern "C" cudaError_t k_sample(cudaStream_t stream, const struct sample_args *a,
                                const struct pass_view *pass, const struct sample_scratch *scratch,
                                struct draw_result *results)
{
    const int blocks = a->n_draws < BLOCKS ? a->n_draws : BLOCKS;
    return launch(sample_kernel, dim3(blocks), dim3(THREADS), 0, stream,
                  (const float *)a->logits.mem.p, (int64_t)a->logits.stride, a->n_draws,
                  a->n_vocab_used, *pass, (char *)scratch->memory, block_bytes(scratch->vocab),
                  scratch->vocab,
                  (unsigned *)((char *)scratch->memory + scratch_rows(scratch)), results);
}
