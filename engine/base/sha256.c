// SPDX-License-Identifier: Apache-2.0
#include "engine/base/sha256.h"
#include "engine/base/minmax.h"

#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turn(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static uint32_t load_big(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void store_big(unsigned char *p, uint32_t x)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (unsigned char)(x >> (24 - 8 * i));
    }
}

/* FIPS 180-4, section 6.2.2. */
static void mix_block(uint32_t h[8], const unsigned char *block)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) {
        w[i] = load_big(block + 4 * i);
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] +
               (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t choice = (e & v[5]) ^ (~e & v[6]),
                 majority = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);
        uint32_t t = v[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + choice + rounds[i] + w[i];
        uint32_t u = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + majority;
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t;
        v[0] = t + u;
    }
    for (int i = 0; i < 8; i++) {
        h[i] += v[i];
    }
}

void sha256_begin(struct sha256 *s)
{
    /* The same for the square roots of the first 8 primes. */
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    *s = (struct sha256){.n_bytes = 0};
    memcpy(s->h, first, sizeof first);
}

/* Whole blocks are read in place; only what is left over is copied. */
void sha256_add(struct sha256 *s, const void *bytes, size_t n_bytes)
{
    const unsigned char *p = bytes; // may be NULL if n_bytes is 0
    size_t filled = s->n_bytes % SHA256_BLOCK_BYTES;
    s->n_bytes += n_bytes;
    if (filled > 0 && n_bytes > 0) {
        size_t room = SHA256_BLOCK_BYTES - filled, n = lesser(n_bytes, room);
        memcpy(s->block + filled, p, n);
        p += n;
        n_bytes -= n;
        if (filled + n < SHA256_BLOCK_BYTES) {
            return;
        }
        mix_block(s->h, s->block);
    }
    for (; n_bytes >= SHA256_BLOCK_BYTES; p += SHA256_BLOCK_BYTES) {
        mix_block(s->h, p);
        n_bytes -= SHA256_BLOCK_BYTES;
    }
    if (n_bytes > 0) {
        memcpy(s->block, p, n_bytes);
    }
}

/* A 1 bit, zeros, and the length in bits fill the last block. */
void sha256_end(struct sha256 *s, unsigned char out[SHA256_BYTES])
{
    static const unsigned char padding[SHA256_BLOCK_BYTES] = {0x80};
    unsigned char length[8];
    uint64_t n_bits = s->n_bytes * 8;
    size_t filled = s->n_bytes % SHA256_BLOCK_BYTES;
    store_big(length, (uint32_t)(n_bits >> 32));
    store_big(length + 4, (uint32_t)n_bits);
    sha256_add(s, padding, (filled < 56 ? 56 : 120) - filled);
    sha256_add(s, length, sizeof length);
    for (int i = 0; i < 8; i++) {
        store_big(out + 4 * i, s->h[i]);
    }
}

/* Hashes the key's two pads once, so that a message costs no extra blocks for them. */
void hmac_sha256_key(struct hmac_sha256 *m, const void *key, size_t n_bytes)
{
    unsigned char block[SHA256_BLOCK_BYTES] = {0};
    sha256_begin(&m->inner);
    sha256_begin(&m->outer);
    if (n_bytes > sizeof block) {
        struct sha256 s;
        sha256_begin(&s);
        sha256_add(&s, key, n_bytes);
        sha256_end(&s, block);
    } else if (n_bytes > 0) {
        memcpy(block, key, n_bytes);
    }
    for (size_t i = 0; i < sizeof block; i++) {
        block[i] ^= 0x36;
    }
    sha256_add(&m->inner, block, sizeof block);
    for (size_t i = 0; i < sizeof block; i++) {
        block[i] ^= 0x36 ^ 0x5c;
    }
    sha256_add(&m->outer, block, sizeof block);
}

void hmac_sha256_add(struct hmac_sha256 *m, const void *bytes, size_t n_bytes)
{
    sha256_add(&m->inner, bytes, n_bytes);
}

void hmac_sha256_end(struct hmac_sha256 *m, unsigned char out[SHA256_BYTES])
{
    sha256_end(&m->inner, out);
    sha256_add(&m->outer, out, SHA256_BYTES);
    sha256_end(&m->outer, out);
}

/* The time does not depend on where the two differ, since one of them may be an attacker's
 * guess. */
bool sha256_equal(const unsigned char a[SHA256_BYTES], const unsigned char b[SHA256_BYTES])
{
    unsigned char differ = 0;
    for (int i = 0; i < SHA256_BYTES; i++) {
        differ |= (unsigned char)(a[i] ^ b[i]);
    }
    return differ == 0;
}
