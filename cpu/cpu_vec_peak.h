// SPDX-License-Identifier: Apache-2.0
/* Measures peak rates: reads, and the instructions of products in registers. Included by
 * cpu_kernels_vec.h.
 * Thread: any. */
#ifndef SLUICE_CPU_VEC_PEAK_H
#define SLUICE_CPU_VEC_PEAK_H

#include "cpu/cpu_internal.h"
#include "cpu/cpu_vec.h"

/* How many bytes ahead to prefetch: the best of 0 to 16 KiB on the machines tried. */
enum { READ_AHEAD = 8192 };

static float read_all(const void *p, size_t n_bytes)
{
    const float *x = p;
    vi s[4];
    memset(s, 0, sizeof s);
    for (size_t i = 0; i < n_bytes / sizeof *x; i += 4 * VEC) {
        for (int j = 0; j < 4; j++) {
            __builtin_prefetch((const char *)(x + i + j * VEC) + READ_AHEAD);
            s[j] += (vi)vec_load(x + i + j * VEC);
        }
    }
    return vec_sum((vf)(s[0] ^ s[1] ^ s[2] ^ s[3]));
}

/* Enough chains to cover the latency at the full issue rate. */
enum { SPIN_CHAINS = VEC_BYTES == 64 ? 24 : 12 };

static float spin_fma(int64_t n)
{
    vf x[SPIN_CHAINS], a = vec_set(0.999f), b = vec_set(0.001f);
    for (int j = 0; j < SPIN_CHAINS; j++) {
        x[j] = vec_set((float)j);
    }
    for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 24
        for (int j = 0; j < SPIN_CHAINS; j++) {
            x[j] = vec_fma(x[j], a, b);
        }
    }
    for (int j = 1; j < SPIN_CHAINS; j++) {
        x[0] += x[j];
    }
    return vec_sum(x[0]);
}

#if defined(__AVX512BF16__)
static float spin_product(int64_t n)
{
    vf x[SPIN_CHAINS];
    __m512bh a = (__m512bh)_mm512_set1_epi32(0x3F803F80), b = (__m512bh)_mm512_set1_epi32(0);
    for (int j = 0; j < SPIN_CHAINS; j++) {
        x[j] = vec_set((float)j);
    }
    for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 24
        for (int j = 0; j < SPIN_CHAINS; j++) {
            x[j] = (vf)_mm512_dpbf16_ps((__m512)x[j], a, b);
        }
    }
    for (int j = 1; j < SPIN_CHAINS; j++) {
        x[0] += x[j];
    }
    return vec_sum(x[0]);
}
#endif

#endif
