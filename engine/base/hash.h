// SPDX-License-Identifier: Apache-2.0
/* A keyed 64-bit hash for tables whose keys come from users (so that nobody can provoke
 * collisions), and a mixer for integers. A hash is never an identity: matches are always compared
 * in full.
 * Thread: any. */
#ifndef SLUICE_BASE_HASH_H
#define SLUICE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* A key drawn from the system once per process. */
uint64_t hash_process_key(void);

uint64_t hash_bytes(const void *bytes, size_t n_bytes, uint64_t key);

static inline uint64_t hash_mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ULL;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ULL;
    x ^= x >> 32;
    return x;
}

#endif
