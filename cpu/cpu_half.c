// SPDX-License-Identifier: Apache-2.0
/* Conversion between f16 and fp32, rounding to nearest even. */
#include "cpu/cpu_internal.h"

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 0x1F, mantissa = h & 0x3FF;
    union {
        uint32_t u;
        float f;
    } v;
    if (exponent == 0) { // zero or subnormal: an integer times 2^-24
        v.f = (float)mantissa * 5.9604644775390625e-8f;
        v.u |= sign;
    } else {
        v.u = sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | mantissa << 13;
    }
    return v.f;
}

uint16_t f16_of(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {x};
    uint16_t sign = (uint16_t)(v.u >> 16 & 0x8000);
    uint32_t a = v.u & 0x7FFFFFFF;
    if (a > 0x7F800000) {
        return (uint16_t)(sign | 0x7E00);
    }
    if (a >= 0x477FF000) { // would round to 65536 or more, so it becomes infinity
        return (uint16_t)(sign | 0x7C00);
    }
    if (a < 0x38800000) { // subnormal: adding 0.5 leaves the integer in the low bits
        union {
            uint32_t u;
            float f;
        } m = {a};
        m.f += 0.5f;
        return (uint16_t)(sign | (m.u - 0x3F000000));
    }
    return (uint16_t)(sign | ((a + 0xFFF + (a >> 13 & 1) - 0x38000000) >> 13));
}
