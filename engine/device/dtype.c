// SPDX-License-Identifier: Apache-2.0
/* The types of numbers by enum dtype: their names, sizes and values. */
#include "engine/device/dtype.h"

#include "engine/base/assert.h"

bool dtype_find(const char *name, enum dtype *out)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } rows[] = {{"bfloat16", DT_BF16}, {"float16", DT_F16}, {"float32", DT_F32}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(name, rows[i].name) == 0) {
            *out = rows[i].dtype;
            return true;
        }
    }
    return false;
}

static float value_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float value_bf16(uint32_t bits)
{
    return value_f32(bits << 16);
}

static float value_f16(uint32_t bits)
{
    uint16_t half = (uint16_t)bits;
    return dtype_load(&half, DT_F16, 0);
}

static float value_signed(uint32_t bits)
{
    return (float)(int32_t)bits;
}

static float value_i8(uint32_t bits)
{
    return (float)(int8_t)bits;
}

static float value_unsigned(uint32_t bits)
{
    return (float)bits;
}

/* Four bits of exponent, three of fraction; no infinity, and one NaN of each sign. */
static float value_e4m3(uint32_t bits)
{
    uint32_t sign = (bits & 0x80u) << 24, exponent = bits >> 3 & 15u, fraction = bits & 7u;
    if ((bits & 0x7Fu) == 0x7Fu) {
        return value_f32(sign | 0x7FC00000u);
    }
    if (exponent == 0) { // subnormal: fraction * 2^-9
        float f = (float)fraction * (1.0f / 512.0f);
        return sign ? -f : f;
    }
    return value_f32(sign | (exponent + 120u) << 23 | fraction << 20);
}

/* An exponent alone: powers of two, and NaN. */
static float value_e8m0(uint32_t bits)
{
    if (bits == 255) {
        return value_f32(0x7FC00000u);
    }
    return value_f32(bits ? bits << 23 : 0x00400000u); // 2^-127 is subnormal
}

static float value_e2m1(uint32_t bits)
{
    static const float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    float f = values[bits & 7u];
    return bits & 8u ? -f : f;
}

static float value_nl4(uint32_t bits)
{
    static const float values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
    return values[bits & 15u];
}

/* The quantiles of a normal distribution, as bitsandbytes rounds them. */
static float value_nf4(uint32_t bits)
{
    static const float values[16] = {
        -1.0f,
        -0.6961928009986877f,
        -0.5250730514526367f,
        -0.39491748809814453f,
        -0.28444138169288635f,
        -0.18477343022823334f,
        -0.09105003625154495f,
        0.0f,
        0.07958029955625534f,
        0.16093020141124725f,
        0.24611230194568634f,
        0.33791524171829224f,
        0.44070982933044434f,
        0.5626170039176941f,
        0.7229568362236023f,
        1.0f,
    };
    return values[bits & 15u];
}

/* Also bitsandbytes': a sign and eight numbers, as shares of the largest one. Both zeros are
 * positive. */
static float value_fp4(uint32_t bits)
{
    static const float values[8] = {0.0f, 0.0625f, 8.0f, 12.0f, 4.0f, 6.0f, 2.0f, 3.0f};
    float f = values[bits & 7u] / 12.0f;
    return bits & 8u ? 0.0f - f : f;
}

/* The fourth digit does not occur. */
static float value_iq1(uint32_t bits)
{
    static const float values[4] = {-1.0f, 0.0f, 1.0f, 0.0f};
    return values[bits & 3u] + (bits & 4u ? -0.125f : 0.125f);
}

static float value_iq2(uint32_t bits)
{
    static const float values[4] = {1.0f, 3.125f, 5.375f, 0.0f};
    float f = values[bits & 3u];
    return bits & 4u ? -f : f;
}

static float value_iq3_s(uint32_t bits)
{
    float f = (float)(2 * (bits & 7u) + 1);
    return bits & 8u ? -f : f;
}

/* The largest is half a step farther out. */
static float value_iq3_xxs(uint32_t bits)
{
    float f = (bits & 7u) == 7u ? 15.5f : value_iq3_s(bits & 7u);
    return bits & 8u ? -f : f;
}

/* Types by enum dtype. */
static const struct {
    const char *name;
    int32_t bits;
    float (*value)(uint32_t bits);
} types[] = {
    [DT_F32] = {"f32", 32, value_f32},
    [DT_BF16] = {"bf16", 16, value_bf16},
    [DT_F16] = {"f16", 16, value_f16},
    [DT_I32] = {"int32", 32, value_signed},
    [DT_U8] = {"uint8", 8, value_unsigned},
    [DT_I8] = {"int8", 8, value_i8},
    [DT_I64] = {"int64", 64, NULL},
    [DT_E4M3] = {"e4m3", 8, value_e4m3},
    [DT_E8M0] = {"e8m0", 8, value_e8m0},
    [DT_U4] = {"uint4", 4, value_unsigned},
    [DT_U2] = {"uint2", 2, value_unsigned},
    [DT_U3] = {"uint3", 3, value_unsigned},
    [DT_E2M1] = {"e2m1", 4, value_e2m1},
    [DT_U5] = {"uint5", 5, value_unsigned},
    [DT_U6] = {"uint6", 6, value_unsigned},
    [DT_NL4] = {"nl4", 4, value_nl4},
    [DT_NF4] = {"nf4", 4, value_nf4},
    [DT_FP4] = {"fp4", 4, value_fp4},
    [DT_IQ1] = {"iq1", 3, value_iq1},
    [DT_IQ2] = {"iq2", 3, value_iq2},
    [DT_IQ3_XXS] = {"iq3_xxs", 4, value_iq3_xxs},
    [DT_IQ3_S] = {"iq3_s", 4, value_iq3_s},
};

int32_t dtype_bits(enum dtype t)
{
    return types[t].bits;
}

float dtype_value(enum dtype t, uint32_t bits)
{
    ASSERT(types[t].value);
    return types[t].value(bits);
}

const char *dtype_number_name(enum dtype t)
{
    return types[t].name;
}
