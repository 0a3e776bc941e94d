// SPDX-License-Identifier: Apache-2.0
/* The sampler: a team of blocks per draw (a cluster if draws are few). For equal logits it draws
 * the same tokens as cpu/cpu_sample.c: the same roundings and the same exact functions. Top-k and
 * top-p that keep few ids sort a short list of the best scores (short.cuh). Otherwise their
 * thresholds are found by radix selection over the scores' bits (cut.cuh), with counts for top-k
 * and fixed-point masses for top-p, so that sums do not depend on thread order. The first digit is
 * counted over the whole row. The elements that remain are usually few, and are listed for the
 * following steps. A greedy draw has a way of its own (best.cuh); after gemm/head.cu, it reads the
 * best logits that were left, and not the row, which may not have been written. Bound by reading
 * the row of logits, once per pass over it; greedy draws by latency.
 *
 * sample/team.cuh has teams and the best of a row; scores.cuh the scores; cut.cuh the ids that are
 * kept; law.cuh drafts. This file has log-probabilities, and the draw as a whole. */
#include "cuda/kernels/sample/best.cuh"
#include "cuda/kernels/sample/law.cuh"
#include "cuda/kernels/sample/scores.cuh"
#include "cuda/kernels/sample/short.cuh"
#include "cuda/pass_head.h"

/* The scratch memory of a team: a list of ids and scores, the modified scores, and counts that are
 * zero between draws. */
static size_t team_bytes(int32_t vocab)
{
    return ((size_t)LIST * 8 + (size_t)vocab * 8 + 255) / 256 * 256;
}

/* The bytes of all teams' scratch memory, which a counter follows. */
static size_t scratch_rows(const struct sample_scratch *s)
{
    return team_bytes(s->vocab) * (size_t)(s->max_draws < TEAMS ? s->max_draws : TEAMS);
}

extern "C" size_t sample_scratch_bytes(int32_t max_draws, int32_t vocab)
{
    const struct sample_scratch s = {NULL, max_draws, vocab};
    return scratch_rows(&s) + 256;
}

/* ---- log-probabilities --------------------------------------------------------------------- */

/* The logarithm of the sum of exp over the raw logits, summed in double so that the number of
 * threads does not affect the result. */
__device__ __noinline__ float log_sum(const float *logits, int n, float top, struct shared_state *s)
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

/* Finds the n_top most likely ids in order: a threshold selects them, then they are ranked among
 * themselves. */
__device__ __noinline__ void most_likely(const float *logits, int n, int n_top, float lse,
                                         int *list_ids, float *list, struct draw_result *out,
                                         struct shared_state *s)
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

/* ---- one draw ------------------------------------------------------------------------------ */

/* A team's scratch memory. The pointers are made where they are needed, which saves registers. */
struct scratchpad {
    char *base;
    int vocab;

    __device__ __forceinline__ int *list_ids() const
    {
        return (int *)base;
    }
    __device__ __forceinline__ float *list() const
    {
        return (float *)base + LIST;
    }
    __device__ __forceinline__ float *scores() const
    {
        return (float *)base + 2 * LIST;
    }
    __device__ __forceinline__ int *counts() const
    {
        return (int *)base + 2 * LIST + vocab;
    }
};

/* True if the best of a row, drawn as `b`, is a number. If the score is infinite, which may be due
 * to the temperature alone, the logit decides. */
__device__ __forceinline__ bool is_sound(const struct best &b, const float *logits)
{
    return b.id != HAS_NAN && (isfinite(b.value) || isfinite(logits[b.id]));
}

/* For a row that is not sound: zeroes the draft's law and its further ids. Called by threads 0 to
 * n - 1, of which this is `me`. */
__device__ __noinline__ void draw_nothing(const struct pass_draw &d, const struct pass_view &pass,
                                          struct draw_result *out, int me, int n)
{
    if (d.kind == DRAW_DRAFT && d.law > 0) {
        float *shares = pass.laws + (int64_t)(d.law - 1) * pass.vocab;
        for (int i = me; i < pass.vocab; i += n) {
            shares[i] = 0.0f;
        }
    }
    if (me == 0) {
        if (d.kind == DRAW_DRAFT && d.law > 0) {
            pass.law_totals[d.law - 1] = 0;
        }
        for (int i = 0; d.kind == DRAW_DRAFT && i < d.more && i < MAX_SIBLINGS - 1; i++) {
            out->top_ids[i] = 0;
        }
    }
}

/* Draws further ids, each as if the earlier ones did not exist. If none is left, the id is
 * `token`. */
template <typename F>
__device__ void draw_more(const struct pass_draw &d, int token, struct draw_result *out,
                          struct shared_state *s, F draw)
{
    for (int i = 0; i < d.more && i < MAX_SIBLINGS - 1; i++) {
        take(i == 0 ? token : out->top_ids[i - 1], s);
        const int id = draw().id;
        if (team_thread() == 0) {
            out->top_ids[i] = id == INT32_MAX ? token : id;
        }
        team_sync();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        s->n_taken = 0;
    }
    __syncthreads();
}

__device__ const uint32_t *mask_of(const struct pass_view &pass, const struct pass_draw &d)
{
    if (d.mask == 0) {
        return NULL;
    }
    return pass.masks + (int64_t)pass.mask_slots[d.mask - 1] * pass.allowed_stride;
}

/* The parameters of the draw's lane, without their lists. */
__device__ __forceinline__ const struct lane_params &params_of(const struct shared_state *s)
{
    return *(const struct lane_params *)s->params;
}

/* Returns the token, with the value that is_sound checks. */
__device__ struct best draw_token(const float *logits, const struct scratchpad &pad, int n,
                                  const struct pass_draw &d, const struct pass_view &pass,
                                  struct draw_result *out, struct shared_state *s)
{
    const struct lane_params &p = params_of(s);
    const float temperature = temperature_of(p, d);
    const float *row = logits;
    if (is_modified(p, d)) {
        const struct context c = make_context(pass, d, s);
        make_scores(logits, pad.scores(), pad.counts(), n, pass.params[d.lane], d, c,
                    pass.allowed + (int64_t)d.lane * pass.allowed_stride, mask_of(pass, d), s);
        row = pad.scores();
    }
    struct cut c = {0, INT32_MAX};
    const bool needs_top = (temperature == 0.0f) | (p.top_k > 0) | (p.top_p < 1.0f) |
                           (p.min_p > 0.0f) | (d.law > 0); // all loads at once
    const struct best own = needs_top ? thread_best(row, n) : (struct best){0.0f, 0};
    const struct best best = needs_top ? team_argmax_of(own, s) : own;
    if (needs_top && !is_sound(best, logits)) {
        return best;
    }
    const bool more = d.kind == DRAW_DRAFT && d.more > 0;
    if (temperature == 0.0f) {
        if (more) {
            draw_more(d, best.id, out, s, [&] { return team_argmax_left(row, n, s); });
        }
        return best;
    }
    struct scores x = {row, n, temperature, pad.list_ids(), pad.list(), -1};
    const float top = __fdiv_rn(best.value, temperature);
    const int k = p.top_k > 0 && p.top_k < n ? p.top_k : 0;
    if ((k > 0 || p.top_p < 1.0f) && !short_cut(x, k, p.top_p, own.value, top, &c, s)) {
        c = k > 0 ? cut_at<false>(x, (unsigned)k, 0.0f, top, c, s) : c;
        c = p.top_p < 1.0f ? cut_at<true>(x, 0, p.top_p, top, c, s) : c;
    }
    const uint64_t seed = (uint64_t)p.seed_high << 32 | p.seed_low;
    if (d.law > 0) {
        const struct law law = {{row, n, temperature, NULL, NULL, -1}, c, top, p.min_p};
        float *shares = pass.laws + (int64_t)(d.law - 1) * pass.vocab;
        unsigned long long *total = pass.law_totals + (d.law - 1);
        if (d.kind == DRAW_DRAFT) {
            keep_law(law, shares, total, s);
        } else {
            const int id = test_drafts(pass, d, law, shares, *total, seed, s);
            return id == INT32_MAX ? best : (struct best){best.value, id};
        }
    }
    struct best drawn = draw_noisy(x, top, p.min_p, c, seed, d.pos + 1, s);
    if (drawn.id == INT32_MAX) { // nothing is kept: the best there is
        drawn = needs_top ? best : team_argmax_left(row, n, s);
        drawn.id = drawn.id == INT32_MAX ? 0 : drawn.id;
    }
    if (more && drawn.id != HAS_NAN) {
        draw_more(d, drawn.id, out, s,
                  [&] { return draw_noisy(x, top, p.min_p, c, seed, d.pos + 1, s); });
    }
    return drawn;
}

/* ---- results and histories ------------------------------------------------------------------ */

__device__ __forceinline__ bool is_kept(const struct pass_draw &d, const struct pass_view &pass)
{
    return d.keep && d.kind != DRAW_SCORE && d.pos + 1 < pass.history_stride;
}

__device__ __forceinline__ int32_t *kept_at(const struct pass_draw &d, const struct pass_view &pass)
{
    return pass.history + (int64_t)d.lane * pass.history_stride + d.pos + 1;
}

__device__ void keep_draw(const struct pass_draw &d, const struct pass_view &pass,
                          const volatile struct draw_result &result)
{
    if (is_kept(d, pass)) {
        int32_t *at = kept_at(d, pass);
        *at = result.token;
        for (int k = 0; d.kind == DRAW_DRAFT && d.more_slot > 0 && k < d.more; k++) {
            at[d.more_slot - (d.pos + 1) + k] = result.top_ids[k];
        }
    }
}

/* The last block to come here writes all kept tokens. */
__device__ __noinline__ void keep_draws(const struct pass_view &pass, int n_draws,
                                        const struct draw_result *results, unsigned *arrived,
                                        struct shared_state *s)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        s->found_bin = atomicAdd(arrived, 1u) + 1 == gridDim.x;
        if (s->found_bin) {
            *arrived = 0;
        }
    }
    __syncthreads();
    __threadfence();
    for (int i = threadIdx.x; s->found_bin && i < n_draws; i += THREADS) {
        keep_draw(pass.draws[i], pass, results[i]);
    }
}

/* The block that has written a result sends it to the host. */
__device__ __forceinline__ void send_result(const struct draw_result *result,
                                            const struct shared_state *s)
{
    const int n_words = (int)(sizeof *result / sizeof(uint32_t)), k = (int)threadIdx.x;
    if (k < n_words) {
        s->sent[k] = ((const volatile uint32_t *)result)[k];
    }
}

/* A greedy draw (s->draw). */
__device__ __forceinline__ void draw_greedy(const struct best_source &from,
                                            const struct pass_view &pass, struct draw_result *out,
                                            struct shared_state *s)
{
    const uint64_t most = team_most(thread_most(from), s);
    if (gets_most()) {
        const uint32_t key = (uint32_t)(most >> 32);
        const bool broken = key == 0 || key >= KEY_OF_INFINITY; // nothing, infinity or NaN
        const uint32_t token = broken ? 0 : ~(uint32_t)most;
        const int k = (int)threadIdx.x;
        if (k < RESULT_WORDS) { // the last one, n_top, is 0
            s->sent[k] = k == 0 ? token : k == BROKEN_WORD && broken;
        }
        if (k == 0 && s->kept) {
            *s->kept = (int32_t)token;
        }
        if (broken) {
            draw_nothing(s->draw, pass, out, k, 32);
        }
    }
}

/* One draw with its log-probabilities. A row that is not sound gives token 0 and nothing else. */
__device__ __noinline__ void draw(const float *row, const struct scratchpad &pad, int n,
                                  const struct pass_draw &d, const struct pass_view &pass,
                                  struct draw_result *out, struct shared_state *s)
{
    const bool score = d.kind == DRAW_SCORE, logprobs = d.logprobs || score;
    bool broken = false;
    int token;
    if (score) {
        const int32_t *history = pass.history + (int64_t)d.lane * pass.history_stride;
        token = d.pos + 1 < pass.history_stride ? history[d.pos + 1] : 0;
    } else {
        const struct best drawn = draw_token(row, pad, n, d, pass, out, s);
        broken = !is_sound(drawn, row);
        token = drawn.id;
    }
    float lse = 0.0f;
    if (logprobs && !broken) {
        const struct best top = team_argmax(row, n, s);
        broken = !isfinite(top.value);
        lse = broken ? 0.0f : log_sum(row, n, top.value, s);
    }
    if (broken) {
        draw_nothing(d, pass, out, team_thread(), team_threads());
        token = score ? token : 0;
    }
    if (team_thread() == 0) {
        const float logit = token >= 0 && token < n && logprobs ? row[token] : -INFINITY;
        out->token = token;
        out->log_total = lse;
        out->broken = broken;
        out->logprob = logprobs && !broken ? logit - lse : 0.0f;
        out->n_top = d.kind == DRAW_DRAFT ? d.more : 0;
    }
    if (logprobs && !broken && d.top_n > 0) {
        most_likely(row, n, d.top_n, lse, pad.list_ids(), pad.list(), out, s);
    }
}

/* Copies what describes a draw to shared memory, since registers are scarce, and because one warp
 * loads it sooner than all of them. No kernel of the pass writes any of it, so it is read before
 * the wait. Returns true if the draw is greedy. */
__device__ __forceinline__ bool open_draw(const struct pass_view &pass, int i,
                                          struct draw_result *results, struct shared_state *s)
{
    enum { WORDS = sizeof(struct pass_draw) / sizeof(uint32_t) };
    enum { LANE_WORD = offsetof(struct pass_draw, lane) / sizeof(uint32_t) };
    static_assert(WORDS <= 32 && PARAM_WORDS <= 32, "a word for each thread");
    if (threadIdx.x < 32) {
        const int k = (int)threadIdx.x;
        const struct pass_head *head = (const struct pass_head *)pass.counts;
        const uint32_t word = k < WORDS ? ((const uint32_t *)&pass.draws[i])[k] : 0;
        struct draw_result *sent = head->results;
        const int n_draws = head->counts.n_draws;
        const bool later = head->keeps_later;
        const int lane = (int)__shfl_sync(0xffffffffu, word, LANE_WORD);
        if (k < PARAM_WORDS) {
            s->params[k] = ((const uint32_t *)&pass.params[lane])[k];
        }
        if (k < WORDS) {
            ((uint32_t *)&s->draw)[k] = word;
        }
        __syncwarp();
        if (k == 0) {
            s->n_draws = n_draws;
            s->keeps_later = later;
            s->sent = (uint32_t *)(sent + i);
            int32_t *kept = later ? &results[i].token : kept_at(s->draw, pass);
            s->kept = is_kept(s->draw, pass) ? kept : NULL;
        }
    }
    __syncthreads();
    return is_greedy(params_of(s), s->draw);
}

__global__ void __launch_bounds__(THREADS)
    sample_kernel(const float *logits, int64_t stride, int n_draws, int n,
                  const __grid_constant__ struct pass_view pass, char *scratch,
                  size_t scratch_stride, int vocab, unsigned *arrived,
                  const __grid_constant__ struct row_bests bests, struct draw_result *results)
{
    __shared__ struct shared_state s;
    const int team = blockIdx.x / team_size(), n_teams = gridDim.x / team_size();
    if (threadIdx.x == 0) {
        s.n_taken = 0;
    }
    open_most(&s);
    for (int i = team; i < n_draws; i += n_teams) {
        if (i != team) {
            team_sync(); // the last draw is done
        }
        const bool greedy = open_draw(pass, i, results, &s);
        if (i >= s.n_draws) {
            break;
        }
        if (i == team) {
            await_most();
        }
        pdl_wait();
        pdl_trigger();
        if (greedy) {
            const struct best_source from = {logits + s.draw.out_row * stride,
                                             bests.pairs + (int64_t)s.draw.out_row * bests.stride,
                                             n, bests.n_bands};
            draw_greedy(from, pass, results + i, &s);
        } else {
            const struct scratchpad pad = {scratch + team * scratch_stride, vocab};
            draw(logits + s.draw.out_row * stride, pad, n, s.draw, pass, results + i, &s);
            __syncthreads();
            if (team_rank() == 0) {
                send_result(results + i, &s);
                if (threadIdx.x == 0 && !s.keeps_later) {
                    keep_draw(s.draw, pass, results[i]);
                }
            }
        }
    }
    pdl_wait();
    if (s.keeps_later) {
        keep_draws(pass, s.n_draws < n_draws ? s.n_draws : n_draws, results, arrived, &s);
    }
}

/* The launch of n_teams teams with `size` blocks each. */
static cudaLaunchConfig_t config_of(int n_teams, int size, cudaLaunchAttribute *attributes)
{
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (unsigned)size;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(n_teams * size));
    config.blockDim = dim3(THREADS);
    config.attrs = attributes;
    config.numAttrs = launch_sm() >= 90 ? 2 : 0; // a cluster of one block, too, uses its barriers
    return config;
}

/* The number of teams of `size` blocks that run at the same time. A cluster's multiprocessors are
 * neighbours, so clusters cannot use all of them. */
static int at_once(int size)
{
    cudaLaunchAttribute attributes[2] = {};
    const cudaLaunchConfig_t config = config_of(1, size, attributes);
    int n = 0;
    return cudaOccupancyMaxActiveClusters(&n, sample_kernel, &config) == cudaSuccess ? n : 0;
}

/* The largest size with which all teams run at the same time. The numbers are queried once, like
 * launch_sm. */
static int size_of(int n_teams)
{
    static_assert(MAX_TEAM == 8, "the sizes below");
    static const int eights = launch_sm() >= 90 ? at_once(8) : 0;
    static const int fours = launch_sm() >= 90 ? at_once(4) : 0;
    static const int twos = launch_sm() >= 90 ? at_once(2) : 0;
    if (n_teams <= eights) {
        return 8;
    }
    if (n_teams <= fours) {
        return 4;
    }
    return n_teams <= twos ? 2 : 1;
}

extern "C" cudaError_t k_sample(cudaStream_t stream, const struct sample_args *a,
                                const struct pass_view *pass, const struct sample_scratch *scratch,
                                const struct row_bests *bests, struct draw_result *results)
{
    if (a->n_draws <= 0) {
        return cudaSuccess;
    }
    const int n_teams = a->n_draws < TEAMS ? a->n_draws : TEAMS;
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = config_of(n_teams, size_of(n_teams), attributes);
    config.stream = stream;
    return cudaLaunchKernelEx(
        &config, sample_kernel, (const float *)a->logits.mem.p, (int64_t)a->logits.stride,
        (int)a->n_draws, (int)a->n_vocab_used, *pass, (char *)scratch->memory,
        team_bytes(scratch->vocab), (int)scratch->vocab,
        (unsigned *)((char *)scratch->memory + scratch_rows(scratch)), *bests, results);
}
