// SPDX-License-Identifier: Apache-2.0
/* SHA-256 in hex, as in the stored checksums. Thread: any. */
#ifndef SLUICE_TEST_SHA256_H
#define SLUICE_TEST_SHA256_H

#include "engine/base/sha256.h"

#include <stdio.h>

static inline void sha256_end_hex(struct sha256 *s, char hex[2 * SHA256_BYTES + 1])
{
    unsigned char sum[SHA256_BYTES];
    sha256_end(s, sum);
    for (int i = 0; i < SHA256_BYTES; i++) {
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    }
}

#endif
