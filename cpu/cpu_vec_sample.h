// SPDX-License-Identifier: Apache-2.0
/* Arg-max with or without noise, and sums of exponentials. Included by cpu_kernels_vec.h.
 * Thread: any. */
#ifndef SLUICE_CPU_VEC_SAMPLE_H
#define SLUICE_CPU_VEC_SAMPLE_H

#include "cpu/cpu_vec_rows.h"
#include "engine/base/exact.h"

enum { ARGMAX_RUN = 16 * VEC }; // number of elements that are scanned together

/* Finds the maximum first, then the first place where it occurs, one run at a time. */
static struct argmax argmax(const float *x, int32_t n)
{
    float best = max_of(x, n);
    int32_t i = 0;
    while (i + ARGMAX_RUN <= n && max_of(x + i, ARGMAX_RUN) != best) {
        i += ARGMAX_RUN;
    }
    for (; i < n; i++) {
        if (x[i] == best) {
            return (struct argmax){best, i};
        }
    }
    return (struct argmax){-INFINITY, n > 0 ? 0 : -1}; // all elements are NaN
}

enum { NOISE_RUN = 4 * VEC }; // number of ids for VEC blocks of the generator

/* rng_philox for VEC consecutive blocks. */
VEC_INLINE void philox(uint64_t seed, int32_t position, uint32_t block, vu out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    vu x0 = (vu){0} + (uint32_t)position, x1 = (vu){0} + (uint32_t)RNG_SAMPLE, x2, x3 = {0};
    for (int i = 0; i < VEC; i++) {
        x2[i] = block + (uint32_t)i;
    }
    for (int round = 0; round < 10; round++) {
        vu high0, low0, high1, low1;
        vec_mul_wide(x0, 0xD2511F53u, &high0, &low0);
        vec_mul_wide(x2, 0xCD9E8D57u, &high1, &low1);
        x0 = high1 ^ x1 ^ k0;
        x2 = high0 ^ x3 ^ k1;
        x1 = low1;
        x3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

/* (float)x, rounded once, because both halves are exact. */
VEC_INLINE vf float_of(vu x)
{
    vf high = __builtin_convertvector((vi)(x >> 16), vf);
    vf low = __builtin_convertvector((vi)(x & 0xFFFFu), vf);
    return vec_fma(high, vec_set(65536.0f), low);
}

/* exact_log_parts, exact_log and gumbel_noise of engine/base/exact.h, with the same bits. */
VEC_INLINE vf log_parts(vf f, vf e)
{
    vf p = vec_set(-0.07634496688842773f);
    p = vec_fma(p, f, vec_set(0.1276157647371292f));
    p = vec_fma(p, f, vec_set(-0.13160182535648346f));
    p = vec_fma(p, f, vec_set(0.14201757311820984f));
    p = vec_fma(p, f, vec_set(-0.16623356938362122f));
    p = vec_fma(p, f, vec_set(0.20001226663589478f));
    p = vec_fma(p, f, vec_set(-0.2500081956386566f));
    p = vec_fma(p, f, vec_set(0.3333333134651184f));
    vf square = f * f;
    vf tail = vec_fma(p, f, vec_set(-0.5f));
    vf y = vec_fma(e, vec_set(-2.12194440e-4f), vec_set(0.0f));
    y = vec_fma(tail, square, y);
    y = y + f;
    return vec_fma(e, vec_set(0.693359375f), y);
}

VEC_INLINE void split(vf x, vf *f, vf *e)
{
    vi exponent = ((vi)x - 0x3F3504F3) >> 23;
    *f = (vf)((vi)x - (vi)((vu)exponent << 23)) - vec_set(1.0f);
    *e = __builtin_convertvector(exponent, vf);
}

VEC_INLINE vf noise_of(vu bits)
{
    vu rest = ~bits;
    vf unit = vec_set(2.3283064365386963e-10f), half = vec_set(0.5f), f, e;
    vf u = (float_of(bits) + half) * unit, t = (float_of(rest) + half) * unit;
    split(u, &f, &e);
    vi near_one = (vi)(rest < 0x4AFB0CCCu);
    f = vec_select(near_one, -t, f);
    e = vec_select(near_one, vec_set(0.0f), e);
    vf w = -log_parts(f, e);
    split(w, &f, &e);
    return -log_parts(f, e);
}

/* The noise of NOISE_RUN ids, from `first` on, which is a multiple of 4. */
static void noise_run(uint64_t seed, int32_t position, int32_t first, float *noise)
{
    vu bits[4];
    float by_block[4][VEC];
    philox(seed, position, (uint32_t)first >> 2, bits);
    for (int i = 0; i < 4; i++) {
        vec_store(by_block[i], noise_of(bits[i]));
    }
    for (int i = 0; i < VEC; i++) {
        for (int j = 0; j < 4; j++) {
            noise[4 * i + j] = by_block[j][i];
        }
    }
}

/* Runs that consist of banned tokens need no noise. Ids are looked at only in runs that beat the
 * best one so far. */
static struct argmax argmax_gumbel(const float *x, int32_t n, uint64_t seed, int32_t position)
{
    struct argmax best = {-INFINITY, -1};
    float noise[NOISE_RUN];
    for (int32_t first = 0; first < n; first += NOISE_RUN) {
        int32_t end = n - first < NOISE_RUN ? n - first : NOISE_RUN;
        if (!(max_of(x + first, end) > -INFINITY)) {
            continue;
        }
        noise_run(seed, position, first, noise);
        for (int32_t i = 0; i < end; i++) {
            noise[i] = x[first + i] + noise[i];
        }
        if (best.id >= 0 && !(max_of(noise, end) > best.value)) {
            continue;
        }
        for (int32_t i = 0; i < end; i++) {
            if (x[first + i] > -INFINITY && (noise[i] > best.value || best.id < 0)) {
                best = (struct argmax){noise[i], first + i};
            }
        }
    }
    return best;
}

/* exact_exp with the same bits. The products that this code leaves to the compiler are exact, so
 * fusing them is harmless. */
static void exp_exact(const float *x, int32_t n, float max, float *out)
{
    int32_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vf y = vec_load(x + i) - vec_set(max);
        vf e = vec_exp(y);
        vec_store(out + i, vec_select(y > vec_set(-87.0f), e, vec_set(0.0f)));
    }
    for (; i < n; i++) {
        out[i] = exact_exp(x[i] - max);
    }
}

/* Short sums are added in fp32, their total in fp64. */
static double exp_total(const float *x, int32_t n, float max)
{
    double total = 0.0;
    vf m = vec_set(max);
    int32_t i = 0;
    while (i + VEC <= n) {
        vf s = vec_set(0.0f);
        for (int32_t end = i + 16 * VEC; i + VEC <= n && i < end; i += VEC) {
            vf v = vec_load(x + i);
            s += vec_select(v > vec_set(-INFINITY), vec_exp(v - m), vec_set(0.0f));
        }
        total += (double)vec_sum(s);
    }
    for (; i < n; i++) {
        total += x[i] > -INFINITY ? (double)expf(x[i] - max) : 0.0;
    }
    return total;
}

#endif
