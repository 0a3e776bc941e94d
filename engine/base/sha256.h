// SPDX-License-Identifier: Apache-2.0
/* SHA-256 (FIPS 180-4), to tell whether a file is unchanged, and HMAC-SHA-256 (RFC 2104), to tell
 * whether a message comes from someone who knows a secret.
 * Thread: any; a state has one owner. */
#ifndef SLUICE_BASE_SHA256_H
#define SLUICE_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK_BYTES = 64 };

struct sha256 {
    uint32_t h[8];
    uint64_t n_bytes;
    unsigned char block[SHA256_BLOCK_BYTES]; // its first n_bytes % 64 bytes are pending
};

void sha256_begin(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *bytes, size_t n_bytes);
void sha256_end(struct sha256 *s, unsigned char out[SHA256_BYTES]);

/* A prepared key for any number of messages: start each with a copy of it. */
struct hmac_sha256 {
    struct sha256 inner, outer;
};
void hmac_sha256_key(struct hmac_sha256 *m, const void *key, size_t n_bytes);
void hmac_sha256_add(struct hmac_sha256 *m, const void *bytes, size_t n_bytes);
void hmac_sha256_end(struct hmac_sha256 *m, unsigned char out[SHA256_BYTES]);

/* Compares in constant time. */
bool sha256_equal(const unsigned char a[SHA256_BYTES], const unsigned char b[SHA256_BYTES]);

#endif
