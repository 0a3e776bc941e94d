/* SHA-256, for vectors that name a long list by its digest.
 *
 * Thread: any. */
#ifndef SLUICE_TEST_GRAMMAR_SHA256_H
#define SLUICE_TEST_GRAMMAR_SHA256_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline uint32_t sha256_rotate(uint32_t v, int n)
{
    return v >> n | v << (32 - n);
}

/* The first 32 bits of the fraction of a root of the i-th prime, in integers: floor(root * 2^32)
 * mod 2^32. */
static inline uint32_t sha256_root(uint32_t prime, int degree)
{
    uint64_t lo = 0, hi = (uint64_t)1 << 36; // root < 16
    while (hi - lo > 1) {
        uint64_t mid = lo + (hi - lo) / 2;
        __extension__ unsigned __int128 power = mid;
        for (int i = 1; i < degree; i++) {
            power *= mid;
        }
        if (power >> (32 * degree) >= prime) {
            hi = mid;
        } else {
            lo = mid;
        }
    }
    return (uint32_t)lo;
}

static inline void sha256_block(uint32_t h[8], const uint32_t k[64], const uint8_t *block)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (sha256_rotate(a, 7) ^ sha256_rotate(a, 18) ^ a >> 3) +
               (sha256_rotate(b, 17) ^ sha256_rotate(b, 19) ^ b >> 10);
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = sha256_rotate(s[4], 6) ^ sha256_rotate(s[4], 11) ^ sha256_rotate(s[4], 25);
        uint32_t t1 = s[7] + s1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
        uint32_t s0 = sha256_rotate(s[0], 2) ^ sha256_rotate(s[0], 13) ^ sha256_rotate(s[0], 22);
        uint32_t t2 = s0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) {
        h[i] += s[i];
    }
}

/* 64 hexadecimal digits and a NUL. */
static inline void sha256_hex(const char *text, size_t n, char out[65])
{
    uint32_t h[8], k[64];
    uint32_t n_primes = 0;
    for (uint32_t p = 2; n_primes < 64; p++) {
        uint32_t d = 2;
        while (d * d <= p && p % d != 0) {
            d++;
        }
        if (d * d > p) {
            if (n_primes < 8) {
                h[n_primes] = sha256_root(p, 2);
            }
            k[n_primes++] = sha256_root(p, 3);
        }
    }
    size_t padded = (n + 9 + 63) / 64 * 64;
    uint8_t *data = calloc(padded, 1);
    memcpy(data, text, n);
    data[n] = 0x80;
    for (int i = 0; i < 8; i++) {
        data[padded - 1 - (size_t)i] = (uint8_t)((uint64_t)n * 8 >> (8 * i));
    }
    for (size_t i = 0; i < padded; i += 64) {
        sha256_block(h, k, data + i);
    }
    free(data);
    for (int i = 0; i < 8; i++) {
        snprintf(out + 8 * i, 9, "%08x", h[i]);
    }
}

#endif
