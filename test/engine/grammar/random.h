// SPDX-License-Identifier: Apache-2.0
/* Random cases of the tests of masks: seeds, draws, and a count of what was compared.
 * Thread: the main thread. */
#ifndef SLUICE_TEST_GRAMMAR_RANDOM_H
#define SLUICE_TEST_GRAMMAR_RANDOM_H

#include "engine/base/rng.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 300 };

static uint32_t draws;
static uint64_t seed;
static int64_t n_triples; // triples of grammar, text and token that were compared

/* The test runs seeds first_seed() .. first_seed() + n_rounds(), of each kind of grammar. */
static inline uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *s = getenv(name);
    if (s) {
        return strtoull(s, NULL, 10);
    }
    return otherwise;
}

static inline uint64_t n_rounds(void)
{
    return from_environment("MASK_ROUNDS", ROUNDS);
}

static inline uint64_t first_seed(void)
{
    return from_environment("MASK_SEED", 1);
}

static inline void tell(const char *what, int64_t from)
{
    printf("%lld triples of %s, text and token\n", (long long)(n_triples - from), what);
}

static inline uint32_t draw(uint32_t below)
{
    draws++;
    return rng_bits(seed, 0, RNG_TEST, draws) % below;
}

#endif
