// SPDX-License-Identifier: Apache-2.0
/* A vector as bytes in base64, in the type and the order that a request wants.
 * Thread: any; no state. */
#ifndef SLUICE_SERVER_CALL_PACKED_H
#define SLUICE_SERVER_CALL_PACKED_H

#include "engine/base/buf.h"

#include <stdint.h>

/* vLLM's names; a value's place is its number. */
#define PACKED_TYPES "float32|float16|bfloat16|fp8_e4m3|fp8_e5m2"
#define PACKED_ORDERS "native|little|big" // hosts are little-endian
enum { PACKED_BIG = 2 };

/* In quotation marks. Rounds to the nearest value; what is too large becomes the largest. */
void packed_put(struct buf *b, const float *v, size_t n, uint8_t type, uint8_t order);

#endif
