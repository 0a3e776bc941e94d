// SPDX-License-Identifier: Apache-2.0
/* Element types as stored, and what their bits mean. Thread: any. Compiles as C11 and C++17. */
#ifndef SLUICE_ENGINE_DEVICE_DTYPE_H
#define SLUICE_ENGINE_DEVICE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* E4M3 has no infinity and reaches 448. E8M0 is a power of two, 2^(b - 127). E2M1 is a sign and one
 * of 0, 0.5, 1, 1.5, 2, 3, 4, 6. NL4 is one of sixteen integers, denser near 0. NF4 and FP4 are
 * bitsandbytes' tables of sixteen fractions from -1 to 1. IQ1 (3 bits) is one of -1, 0, 1 plus or
 * minus an eighth; IQ2 (3 bits) and the IQ3s are a sign and one of three and of eight numbers.
 * Types of less than 8 bits are always packed, several to a byte or word, or stored in blocks. */
enum dtype {
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_I32,
    DT_U8,
    DT_I8,
    DT_I64,
    DT_E4M3,
    DT_E8M0,
    DT_U4,
    DT_U2,
    DT_E2M1,
    DT_U5,
    DT_U6,
    DT_NL4,
    DT_NF4,
    DT_FP4,
    DT_U3,
    DT_IQ1,
    DT_IQ2,
    DT_IQ3_XXS,
    DT_IQ3_S,
};

/* "bfloat16", "float16" or "float32", as in checkpoints and options; false for other names. */
bool dtype_find(const char *name, enum dtype *out);

/* Bytes of one element; 0 for types smaller than a byte. */
static inline size_t dtype_bytes(enum dtype t)
{
    switch (t) {
    case DT_F32:
    case DT_I32: return 4;
    case DT_I64: return 8;
    case DT_BF16:
    case DT_F16: return 2;
    case DT_U4:
    case DT_U2:
    case DT_U3:
    case DT_E2M1:
    case DT_U5:
    case DT_U6:
    case DT_NL4:
    case DT_NF4:
    case DT_FP4:
    case DT_IQ1:
    case DT_IQ2:
    case DT_IQ3_XXS:
    case DT_IQ3_S: return 0;
    default: return 1;
    }
}

/* Element i of an array of dtype F32, BF16 or F16, as float. The array need not be aligned:
 * checkpoint headers may have odd lengths. */
static inline float dtype_load(const void *data, enum dtype t, size_t i)
{
    union {
        uint32_t u;
        float f;
    } bits;
    if (t == DT_F32) {
        memcpy(&bits.f, (const char *)data + i * sizeof bits.f, sizeof bits.f);
        return bits.f;
    }
    uint16_t half;
    memcpy(&half, (const char *)data + i * sizeof half, sizeof half);
    uint32_t v = half;
    if (t == DT_BF16) {
        bits.u = v << 16;
        return bits.f;
    }
    uint32_t sign = (v & 0x8000u) << 16, exponent = v >> 10 & 31u, fraction = v & 0x3FFu;
    if (exponent == 31u) {
        bits.u = sign | 0x7F800000u | fraction << 13;
    } else if (exponent != 0) {
        bits.u = sign | (exponent + 112u) << 23 | fraction << 13;
    } else {
        bits.f = (float)fraction * (1.0f / 16777216.0f); // subnormal: fraction * 2^-24
        bits.u |= sign;
    }
    return bits.f;
}

/* Bits of one element, and its value; not for I64, nor for I32 beyond 2^24. */
int32_t dtype_bits(enum dtype t);
float dtype_value(enum dtype t, uint32_t bits);
const char *dtype_number_name(enum dtype t); // for messages; not the name in config.json

#ifdef __cplusplus
}
#endif
#endif
