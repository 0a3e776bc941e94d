// SPDX-License-Identifier: Apache-2.0
/* The distribution ("law") that a draft was drawn from, and the acceptance test of drafts, as in
 * cpu/cpu_sample.c.
 * Thread: device code, one team at a time. */
#ifndef SLUICE_CUDA_KERNELS_SAMPLE_LAW_CUH
#define SLUICE_CUDA_KERNELS_SAMPLE_LAW_CUH

#include "cuda/kernels/sample/cut.cuh"

__device__ __forceinline__ unsigned long long mass_of_share(float share)
{
    return (unsigned long long)(share * 1099511627776.0f);
}

/* What a draft was drawn from: the scores of a row, which of them are kept, and the min_p
 * threshold. The share of an element that is not kept is 0. */
struct law {
    struct scores x; // has no list, so it includes all ids
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

__device__ __noinline__ void keep_law(const struct law &l, float *shares, unsigned long long *total,
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

/* The acceptance test of drafts, with p and q at each stage. Stage s + 1 is the distribution that
 * is left after draft s was refused. */
struct trial {
    const struct law *p;
    const float *q;
    int n; // number of drafts refused so far, which is the current stage
    double p_total[MAX_SIBLINGS + 1], q_total[MAX_SIBLINGS + 1];
    int refused[MAX_SIBLINGS];
};

__device__ __forceinline__ double q_mass(const struct trial &t, int stage, int id)
{
    for (int s = 0; s < stage; s++) {
        if (t.refused[s] == id) {
            return 0.0;
        }
    }
    return (double)mass_of_share(t.q[id]);
}

/* The excess of p over q after stage s, if the mass of p there is `p`. */
__device__ __forceinline__ double above(const struct trial &t, int s, double p, int id)
{
    return __dsub_rn(__ddiv_rn(p, t.p_total[s]), __ddiv_rn(q_mass(t, s, id), t.q_total[s]));
}

/* The mass of id at the current stage, given its share of p. */
__device__ __forceinline__ double p_mass(const struct trial &t, float share, int id)
{
    double m = (double)mass_of_share(share);
    for (int s = 0; s < t.n && m > 0.0; s++) {
        const double w = above(t, s, m, id);
        m = w > 0.0 ? (double)(unsigned long long)__dmul_rn(w, 4503599627370496.0) : 0.0;
    }
    return m;
}

/* Moves to the next stage. Returns false, and changes nothing, if p exceeds q nowhere. */
__device__ bool refuse(struct trial &t, int draft, struct shared_state *s)
{
    t.refused[t.n++] = draft;
    unsigned long long mine = 0;
    each(t.p->x, [&](int id, float v) {
        const float share = share_of(*t.p, id, v);
        mine += share > 0.0f ? (unsigned long long)p_mass(t, share, id) : 0;
    });
    const unsigned long long total = team_mass(mine, s);
    if (total == 0) {
        t.n--;
        return false;
    }
    t.p_total[t.n] = (double)total;
    t.q_total[t.n] = __dsub_rn(t.q_total[t.n - 1], q_mass(t, t.n - 1, draft));
    return true;
}

/* The arg-max of log p + noise, or of log(p - q) + noise. */
__device__ struct best draw_left(const struct trial &t, bool above_q, uint64_t seed, int position,
                                 struct shared_state *s)
{
    struct best b = {-INFINITY, INT32_MAX};
    each(t.p->x, [&](int id, float v) {
        const float share = share_of(*t.p, id, v);
        const double m = share > 0.0f ? p_mass(t, share, id) : 0.0;
        const float w = (float)(m > 0.0 && above_q ? above(t, t.n, m, id) : m);
        if (w < 1.17549435e-38f) {
            return;
        }
        const float noise = gumbel_noise(rng_bits(seed, position, RNG_RESIDUAL, (uint32_t)id));
        const float value = __fadd_rn(exact_log(w), noise);
        if (better(value, id, b)) {
            b.value = value;
            b.id = id;
        }
    });
    return team_best(b, s);
}

/* Finds the drafts that follow the draw's row and stores them in s->path. In a chain they are in
 * the history; in a tree they are the row's children. */
__device__ void find_drafts(const struct pass_view &pass, const struct pass_draw &d,
                            struct shared_state *s)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        const int index = d.tree_row >= 0 ? pass.row_seq[d.tree_row] : -1;
        s->n_path = 0;
        if (index < 0) {
            const int32_t *history = pass.history + (int64_t)d.lane * pass.history_stride;
            s->path[s->n_path++] = d.pos + 1 < pass.history_stride ? history[d.pos + 1] : -1;
        } else {
            const struct pass_seq seq = pass.seqs[index];
            const uint64_t *masks = pass.tree_mask + (int64_t)seq.first_row * TREE_MASK_WORDS;
            const int own = (d.tree_row - seq.first_row) * TREE_MASK_WORDS;
            for (int i = d.tree_row - seq.first_row + 1; i < seq.n_rows && s->n_path < MAX_SIBLINGS;
                 i++) {
                bool child = true;
                for (int w = 0; w < TREE_MASK_WORDS; w++) {
                    const uint64_t bit = w == i >> 6 ? 1ull << (i & 63) : 0;
                    child = child && (masks[i * TREE_MASK_WORDS + w] & ~bit) == masks[own + w];
                }
                if (child) {
                    s->path[s->n_path++] = pass.tokens[seq.first_row + i];
                }
            }
        }
    }
    __syncthreads();
}

/* Returns the accepted draft, or another token. */
__device__ __noinline__ int test_drafts(const struct pass_view &pass, const struct pass_draw &d,
                                        const struct law &p, const float *q,
                                        unsigned long long q_total, uint64_t seed,
                                        struct shared_state *s)
{
    struct trial t = {&p, q, 0};
    int last = -1;
    find_drafts(pass, d, s);
    unsigned long long mine = 0;
    each(p.x, [&](int id, float v) { mine += mass_of_share(share_of(p, id, v)); });
    t.p_total[0] = (double)team_mass(mine, s);
    t.q_total[0] = (double)q_total;
    for (int i = 0; i < s->n_path; i++) {
        const int draft = s->path[i];
        if (draft < 0 || draft >= p.x.n || draft == last || q_mass(t, t.n, draft) == 0.0) {
            continue;
        }
        if (last >= 0 && !refuse(t, last, s)) {
            last = -1;
            break;
        }
        const double u = rng_uniform(rng_bits(seed, d.pos + 1, RNG_ACCEPT, (uint32_t)i));
        const double m = p_mass(t, share_of(p, draft, score_at(p.x, draft)), draft);
        const double p_side = __dmul_rn(m, t.q_total[t.n]);
        const double q_side = __dmul_rn(__dmul_rn(u, q_mass(t, t.n, draft)), t.p_total[t.n]);
        if (p_side > q_side) {
            return draft;
        }
        last = draft;
    }
    struct best b = {-INFINITY, INT32_MAX};
    if (last >= 0) {
        b = draw_left(t, true, seed, d.pos + 1, s);
    }
    if (b.id == INT32_MAX) {
        b = draw_left(t, false, seed, d.pos + 1, s);
    }
    return b.id;
}

#endif
