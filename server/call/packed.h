// SPDX-License-Identifier: Apache-2.0
/* Encodes a vector as base64, in the number type and byte order that a request asks for.
 * Thread: any; no state. */
#ifndef SLUICE_SERVER_CALL_PACKED_H
#define SLUICE_SERVER_CALL_PACKED_H

#include "engine/base/buf.h"

#include <stdint.h>

/* vLLM's names; the index of a name is its value. */
#define PACKED_TYPES "float32|float16|bfloat16|fp8_e4m3|fp8_e5m2"
#define PACKED_ORDERS "native|little|big" // hosts are little-endian
enum { PACKED_BIG = 2 };

/* Writes a quoted string. Rounds to the nearest value; a number that is too large becomes the
 * largest one. */
void packed_put(struct buf *b, const float *v, size_t n, uint8_t type, uint8_t order);

/* The bytes themselves, with quotation marks. */
void packed_put_bytes(struct buf *b, const unsigned char *bytes, size_t n);

#endif
