// SPDX-License-Identifier: Apache-2.0
/* Counter-based random numbers: a value is a pure function of (seed, position, stream, index), so
 * that a draw never depends on other requests, preemption or speculation. Philox 4x32 with 10
 * rounds; the CUDA kernels use the same function and must give the same bits.
 * Thread: any. */
#ifndef SLUICE_BASE_RNG_H
#define SLUICE_BASE_RNG_H

#include <stdint.h>

enum rng_stream { RNG_SAMPLE = 0, RNG_ACCEPT = 1, RNG_RESIDUAL = 2, RNG_TEST = 3 };

struct rng_block {
    uint32_t v[4];
};

#ifdef __CUDACC__
#define RNG_FN static __host__ __device__ inline
#else
#define RNG_FN static inline
#endif

RNG_FN struct rng_block rng_philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2,
                                   uint32_t c3)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t x0 = c0, x1 = c1, x2 = c2, x3 = c3;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * x0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * x2;
        uint32_t y0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
        uint32_t y2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x1 = (uint32_t)p1;
        x3 = (uint32_t)p0;
        x0 = y0;
        x2 = y2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    struct rng_block b = {{x0, x1, x2, x3}};
    return b;
}

/* The 32 random bits for token id `index` at `position`: lane index % 4 of block index / 4. */
RNG_FN uint32_t rng_bits(uint64_t seed, int32_t position, uint32_t stream, uint32_t index)
{
    struct rng_block b = rng_philox(seed, (uint32_t)position, stream, index >> 2, 0);
    return b.v[index & 3];
}

/* Uniform in (0, 1), never 0 and never 1: (bits + 0.5) / 2^32 in double. */
RNG_FN double rng_uniform(uint32_t bits)
{
    return ((double)bits + 0.5) * (1.0 / 4294967296.0);
}

#endif
