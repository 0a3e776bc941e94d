// SPDX-License-Identifier: Apache-2.0
#include "server/call/packed.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A floating-point format: sign, exponent, mantissa. */
static const struct layout {
    int n_bytes, n_mantissa, bias;
    uint32_t largest; // the code of the largest finite value
} layouts[] = {
    {4, 23, 127, 0x7F7FFFFF}, {2, 10, 15, 0x7BFF}, {2, 7, 127, 0x7F7F},
    {1, 3, 7, 0x7E},          {1, 2, 15, 0x7B},
};

/* Codes of one sign are in the order of their values, so a mantissa that is rounded up to the next
 * power of two carries into the exponent. */
static uint32_t code_of(const struct layout *l, float v)
{
    int exponent;
    if (!isfinite(v) || v == 0) {
        return 0;
    }
    double a = fabs((double)v);
    frexp(a, &exponent);
    exponent--;
    if (exponent < 1 - l->bias) {
        exponent = 1 - l->bias; // subnormal
    }
    double mantissa = rint(ldexp(a, l->n_mantissa - exponent));
    uint32_t code = ((uint32_t)(exponent + l->bias - 1) << l->n_mantissa) + (uint32_t)mantissa;
    if (code > l->largest) {
        code = l->largest;
    }
    return code | (signbit(v) ? 1u << (8 * l->n_bytes - 1) : 0);
}

void packed_put_bytes(struct buf *b, const unsigned char *p, size_t n_bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    buf_putc(b, '"');
    for (size_t i = 0; i < n_bytes; i += 3) {
        size_t left = n_bytes - i;
        uint32_t x = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) |
                     (left > 2 ? p[i + 2] : 0u);
        char out[4] = {digits[x >> 18], digits[x >> 12 & 63], left > 1 ? digits[x >> 6 & 63] : '=',
                       left > 2 ? digits[x & 63] : '='};
        buf_put(b, out, 4);
    }
    buf_putc(b, '"');
}

void packed_put(struct buf *b, const float *v, size_t n, uint8_t type, uint8_t order)
{
    const struct layout *l = &layouts[type];
    const int n_bytes = l->n_bytes;
    unsigned char *bytes = xcalloc(n, (size_t)n_bytes), *at = bytes;
    for (size_t i = 0; i < n; i++) {
        uint32_t code = code_of(l, v[i]);
        for (int k = 0; k < n_bytes; k++) {
            int which = order == PACKED_BIG ? n_bytes - 1 - k : k;
            *at++ = (unsigned char)(code >> 8 * which);
        }
    }
    packed_put_bytes(b, bytes, n * (size_t)n_bytes);
    free(bytes);
}
