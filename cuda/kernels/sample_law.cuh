/* The law of a draft and its judgement, as in cpu/cpu_sample.c.
 * Thread: device code, a team at once. */
#ifndef SLUICE_CUDA_KERNELS_SAMPLE_LAW_CUH
#define SLUICE_CUDA_KERNELS_SAMPLE_LAW_CUH

#include "cuda/kernels/sample_cut.cuh"

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

#endif
