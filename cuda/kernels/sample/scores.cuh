// SPDX-License-Identifier: Apache-2.0
/* Computes a draw's scores from the raw logits: bias, penalties over its history, and bans.
 * Thread: device code, one team at a time. */
#ifndef SLUICE_CUDA_KERNELS_SAMPLE_SCORES_CUH
#define SLUICE_CUDA_KERNELS_SAMPLE_SCORES_CUH

#include "cuda/kernels/device/greedy.cuh"
#include "cuda/kernels/sample/team.cuh"

/* ---- the context of a draw: the history and, in a tree, the row's ancestors
 * -------------------- */

struct context {
    const int32_t *history;
    const int32_t *tokens;
    const int *path;
    int n_history, n; // number of tokens from the history; number of tokens in total
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

/* Both passes over the context leave `counts` as they found it: zeroed. */
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
                    const struct context &c, const uint32_t *allowed, bool stop_ids)
{
    if (p.n_allowed > 0) {
        for (int i = team_thread(); i < n; i += team_threads()) {
            if (!(allowed[i >> 5] >> (i & 31) & 1)) {
                scores[i] = -INFINITY;
            }
        }
    }
    if (stop_ids && d.pos + 1 - d.n_prompt < p.min_tokens) {
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

/* Masks the ids that the draw's mask excludes. Unlike a ban, the mask is never dropped. */
__device__ void keep_masked(float *scores, int n, const uint32_t *mask)
{
    if (mask) {
        for (int i = team_thread(); i < n; i += team_threads()) {
            if (!(mask[i >> 5] >> (i & 31) & 1)) {
                scores[i] = -INFINITY;
            }
        }
        team_sync();
    }
}

/* Copies the row, with -infinity for ids that the mask excludes. The logits of these are not
 * read. */
__device__ void copy_masked(const float *logits, float *scores, int n, const uint32_t *mask)
{
    for (int i = team_thread(); i < n; i += team_threads()) {
        scores[i] = !mask || (mask[i >> 5] >> (i & 31) & 1) ? logits[i] : -INFINITY;
    }
    team_sync();
}

/* If a mask is the only change to the logits, a single pass over the row computes the scores. */
__device__ __noinline__ void make_scores(const float *logits, float *scores, int *counts, int n,
                                         const struct lane_params &p, const struct pass_draw &d,
                                         const struct context &c, const uint32_t *allowed,
                                         const uint32_t *mask, struct shared_state *s)
{
    const bool changes = has_changes(p), banning = has_bans(p, d);
    for (int bans = 2; bans >= 0; bans--) { // all bans; all except those of min_tokens; none
        copy_masked(logits, scores, n, changes ? NULL : mask);
        if (changes) {
            add_bias(scores, n, p);
            penalise(scores, counts, n, p, d, c);
            keep_masked(scores, n, mask); // last, because bias and penalties require finite scores
        }
        if (bans == 0 || !banning) {
            return;
        }
        ban(scores, n, p, d, c, allowed, bans == 2);
        if (team_argmax_left(scores, n, s).value > -INFINITY) {
            return;
        }
    }
}

#endif
