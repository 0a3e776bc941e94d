// SPDX-License-Identifier: Apache-2.0
/* The sampler: a team of blocks per draw (a cluster if draws are few). For equal logits it draws
 * the same tokens as cpu/cpu_sample.c: the same roundings and the same exact functions. Top-k and
 * top-p that keep few ids sort a short list of the best scores (short.cuh). Otherwise their
 * thresholds are found by radix selection over the scores' bits (cut.cuh), with counts for top-k
 * and fixed-point masses for top-p, so that sums do not depend on thread order. The first digit is
 * counted over the whole row. The elements that remain are usually few, and are listed for the
 * following steps. After gemm/head.cu, a greedy draw reads the best logits
 * that it left, and not the row, which may not have been written. Bound by reading the row of
 * logits, once per pass over it.
 *
 * sample/team.cuh has teams and the best of a row; scores.cuh the scores; cut.cuh the ids that are
 * kept; law.cuh drafts. This file has log-probabilities, and the draw as a whole. */
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

/* For a row that is not sound: zeroes the draft's law and its further ids. */
__device__ void draw_nothing(const struct pass_draw &d, const struct pass_view &pass,
                             struct draw_result *out)
{
    if (d.kind == DRAW_DRAFT && d.law > 0) {
        float *shares = pass.laws + (int64_t)(d.law - 1) * pass.vocab;
        for (int i = team_thread(); i < pass.vocab; i += team_threads()) {
            shares[i] = 0.0f;
        }
    }
    if (team_thread() == 0) {
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

/* Returns the token, with the value that is_sound checks. */
__device__ struct best draw_token(const float *logits, const struct scratchpad &pad, int n,
                                  const struct pass_draw &d, const struct pass_view &pass,
                                  struct draw_result *out, struct shared_state *s)
{
    const struct lane_params &p = pass.params[d.lane];
    const float temperature = temperature_of(p, d);
    const float *row = logits;
    if (is_modified(p, d)) {
        const struct context c = make_context(pass, d, s);
        make_scores(logits, pad.scores(), pad.counts(), n, p, d, c,
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

/* True in one block, once all blocks have come here: it sees all results. A single team's results
 * are written by its first block. */
__device__ bool is_last(unsigned *arrived, struct shared_state *s)
{
    if ((int)gridDim.x == team_size()) {
        team_sync();
        return team_rank() == 0;
    }
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
    return s->found_bin;
}

/* The last block to finish writes the kept tokens to the histories. It does so at the end because
 * draws may read the histories until then. */
__device__ void keep_draws(const struct pass_view &pass, int n_draws,
                           const struct draw_result *results, unsigned *arrived,
                           struct shared_state *s)
{
    if (!is_last(arrived, s)) {
        return;
    }
    for (int i = threadIdx.x; i < n_draws; i += THREADS) {
        const struct pass_draw d = pass.draws[i];
        if (d.keep && d.kind != DRAW_SCORE && d.pos + 1 < pass.history_stride) {
            pass.history[(int64_t)d.lane * pass.history_stride + d.pos + 1] =
                ((const volatile struct draw_result *)results)[i].token;
            for (int k = 0; d.kind == DRAW_DRAFT && d.more_slot > 0 && k < d.more; k++) {
                pass.history[(int64_t)d.lane * pass.history_stride + d.more_slot + k] =
                    ((const volatile struct draw_result *)results)[i].top_ids[k];
            }
        }
    }
}

/* The block that has written a result sends it to the host. */
__device__ __forceinline__ void send_result(const struct pass_view &pass, int i,
                                            const struct draw_result *results)
{
    const int n_words = (int)(sizeof *results / sizeof(uint32_t)), k = (int)threadIdx.x;
    struct draw_result *to = ((const struct pass_head *)pass.counts)->results;
    if (k < n_words) {
        ((uint32_t *)(to + i))[k] = ((const volatile uint32_t *)(results + i))[k];
    }
}

/* A greedy draw from the best logits that the output head has left; value -infinity if there is
 * none, id HAS_NAN if the row has NaN. */
__device__ struct best best_of(const struct row_bests &bests, int row, struct shared_state *s)
{
    const struct best_pair *pairs = bests.pairs + (int64_t)row * bests.stride;
    struct best b = {-INFINITY, INT32_MAX};
    for (int i = team_thread(); i < bests.n_bands; i += team_threads()) {
        const struct best_pair pair = pairs[i];
        b = isnan(pair.value) ? nan_best() : b;
        if (better(pair.value, pair.id, b)) {
            b.value = pair.value;
            b.id = pair.id;
        }
    }
    return team_best(b, s);
}

/* One draw with its log-probabilities. A row that is not sound gives token 0 and nothing else. */
__device__ __noinline__ void draw(const float *row, const struct scratchpad &pad, int n,
                                  const struct pass_draw &d, const struct pass_view &pass,
                                  const struct row_bests &bests, struct draw_result *out,
                                  struct shared_state *s)
{
    const bool score = d.kind == DRAW_SCORE, logprobs = d.logprobs || score;
    bool broken = false;
    int token;
    if (score) {
        const int32_t *history = pass.history + (int64_t)d.lane * pass.history_stride;
        token = d.pos + 1 < pass.history_stride ? history[d.pos + 1] : 0;
    } else if (bests.n_bands > 0 && is_greedy(pass.params[d.lane], d)) {
        const struct best best = best_of(bests, d.out_row, s); // the row may not be written
        broken = !isfinite(best.value);
        token = best.id;
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
        draw_nothing(d, pass, out);
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

/* Brings the parameters of the team's first draw into caches before the wait: they were last read a
 * step ago, and no kernel of the pass writes them. */
__device__ __forceinline__ void fetch_params(const struct pass_view &pass, int team)
{
    if (team < pass.counts->n_draws) {
        const struct lane_params *p = &pass.params[pass.draws[team].lane];
        asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
        asm volatile("prefetch.global.L1 [%0];" ::"l"(&p->stop_ids));
    }
}

/* Copies what describes a draw to shared memory, since registers are scarce. */
__device__ __forceinline__ void copy_draw(const struct pass_draw &d, struct shared_state *s)
{
    if (threadIdx.x < sizeof d / sizeof(uint32_t)) {
        ((uint32_t *)&s->draw)[threadIdx.x] = ((const uint32_t *)&d)[threadIdx.x];
    }
    __syncthreads();
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
        fetch_params(pass, team);
        s.n_taken = 0;
    }
    pdl_wait();
    pdl_trigger();
    __syncthreads();
    const struct scratchpad pad = {scratch + team * scratch_stride, vocab};
    const int real = pass.counts->n_draws < n_draws ? pass.counts->n_draws : n_draws;
    for (int i = team; i < real; i += n_teams) {
        copy_draw(pass.draws[i], &s);
        draw(logits + s.draw.out_row * stride, pad, n, s.draw, pass, bests, results + i, &s);
        __syncthreads();
        if (team_rank() == 0) {
            send_result(pass, i, results);
        }
    }
    keep_draws(pass, real, results, arrived, &s);
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
    config.numAttrs = launch_sm() >= 90 ? 2 : 0;
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
