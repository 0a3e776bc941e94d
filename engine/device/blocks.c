// SPDX-License-Identifier: Apache-2.0
#include "engine/device/blocks.h"
#include "engine/base/optional.h"

#include <stdio.h>

static float half_at(const unsigned char *p)
{
    return dtype_load(p, DT_F16, 0);
}

/* Two 4-bit codes per byte: the low nibbles are the first half of the codes. */
static void put_nibbles(const unsigned char *bytes, int32_t n_bytes, uint8_t *out)
{
    for (int32_t i = 0; i < n_bytes; i++) {
        out[i] = bytes[i] & 15;
        out[n_bytes + i] = bytes[i] >> 4;
    }
}

static void put_fifth_bits(const unsigned char *bytes, uint8_t *out)
{
    for (int32_t i = 0; i < 32; i++) {
        out[i] = (uint8_t)(out[i] | (bytes[i / 8] >> i % 8 & 1) << 4);
    }
}

/* ---- 32 numbers with one scale ------------------------------------------------------------ */

static struct block_scale scale_alone(const unsigned char *block, int32_t part)
{
    (void)part;
    return (struct block_scale){half_at(block), 0.0f, 1, 1};
}

static struct block_scale scale_and_least(const unsigned char *block, int32_t part)
{
    (void)part;
    return (struct block_scale){half_at(block), half_at(block + 2), 1, 1};
}

static struct block_scale scale_power(const unsigned char *block, int32_t part)
{
    (void)part;
    return (struct block_scale){dtype_value(DT_E8M0, block[0]), 0.0f, 1, 1};
}

static void codes_q4_0(const unsigned char *block, uint8_t *out)
{
    put_nibbles(block + 2, 16, out);
}

static void codes_q4_1(const unsigned char *block, uint8_t *out)
{
    put_nibbles(block + 4, 16, out);
}

static void codes_q5_0(const unsigned char *block, uint8_t *out)
{
    put_nibbles(block + 6, 16, out);
    put_fifth_bits(block + 2, out);
}

static void codes_q5_1(const unsigned char *block, uint8_t *out)
{
    put_nibbles(block + 8, 16, out);
    put_fifth_bits(block + 4, out);
}

static void codes_q8_0(const unsigned char *block, uint8_t *out)
{
    memcpy(out, block + 2, 32);
}

static void codes_mxfp4(const unsigned char *block, uint8_t *out)
{
    put_nibbles(block + 1, 16, out);
}

/* ---- 256 numbers with two levels of scales ------------------------------------------------ */

/* Eight pairs of six bits: the scale, and the minimum to subtract. The first four pairs are in the
 * low bits of bytes 0 to 7; of the others, the low four bits are in bytes 8 to 11, and the high two
 * bits in the top bits of bytes 0 to 7. */
static struct block_scale scale_of_eight(const unsigned char *block, int32_t part)
{
    const unsigned char *steps = block + 4;
    int32_t scale, least;
    if (part < 4) {
        scale = steps[part] & 63;
        least = steps[part + 4] & 63;
    } else {
        scale = (steps[part + 4] & 15) | steps[part - 4] >> 6 << 4;
        least = steps[part + 4] >> 4 | steps[part] >> 6 << 4;
    }
    return (struct block_scale){half_at(block), -half_at(block + 2), scale, least};
}

/* 64 elements at a time: 32 from low nibbles and 32 from high ones. */
static void codes_q4_k(const unsigned char *block, uint8_t *out)
{
    for (int32_t i = 0; i < 4; i++) {
        put_nibbles(block + 16 + 32 * i, 32, out + 64 * i);
    }
}

/* The same, with a fifth bit per code; the fifth bits of each 32 elements are one bit plane of 32
 * bytes. */
static void codes_q5_k(const unsigned char *block, uint8_t *out)
{
    const unsigned char *high = block + 16;
    for (int32_t i = 0; i < 4; i++) {
        put_nibbles(block + 48 + 32 * i, 32, out + 64 * i);
    }
    for (int32_t i = 0; i < 256; i++) {
        out[i] = (uint8_t)(out[i] | (high[i % 32] >> i / 32 & 1) << 4);
    }
}

/* 128 elements at a time: 64 bytes of nibbles, low ones before high ones, and 32 bytes with the two
 * bits above them, two bits for each 32 elements. */
static void codes_q6_k(const unsigned char *block, uint8_t *out)
{
    for (int32_t half = 0; half < 2; half++, out += 128) {
        const unsigned char *high = block + 128 + 32 * half;
        put_nibbles(block + 64 * half, 64, out);
        for (int32_t i = 0; i < 128; i++) {
            out[i] = (uint8_t)(out[i] | (high[i % 32] >> i / 32 * 2 & 3) << 4);
        }
    }
}

static struct block_scale scale_q6_k(const unsigned char *block, int32_t part)
{
    return (struct block_scale){half_at(block + 208), 0.0f, (int8_t)block[192 + part], 1};
}

/* 128 elements at a time: 32 bytes with two bits for each 32 elements. */
static void put_two_bits(const unsigned char *bytes, uint8_t *out)
{
    for (int32_t i = 0; i < 256; i++) {
        out[i] = bytes[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
    }
}

static void codes_q2_k(const unsigned char *block, uint8_t *out)
{
    put_two_bits(block + 16, out);
}

static struct block_scale scale_q2_k(const unsigned char *block, int32_t part)
{
    return (struct block_scale){half_at(block + 80), -half_at(block + 82), block[part] & 15,
                                block[part] >> 4};
}

/* A third bit per code, in bit planes as in Q5_K. */
static void codes_q3_k(const unsigned char *block, uint8_t *out)
{
    put_two_bits(block + 32, out);
    for (int32_t i = 0; i < 256; i++) {
        out[i] = (uint8_t)(out[i] | (block[i % 32] >> i / 32 & 1) << 2);
    }
}

/* Sixteen times six bits: the low four in the nibbles of eight bytes, low nibbles first, and the
 * high two in the next four bytes. */
static struct block_scale scale_q3_k(const unsigned char *block, int32_t part)
{
    const unsigned char *steps = block + 96;
    int32_t low = steps[part % 8] >> part / 8 * 4 & 15;
    int32_t high = steps[8 + part % 4] >> part / 4 * 2 & 3;
    return (struct block_scale){half_at(block + 108), 0.0f, (low | high << 4) - 32, 1};
}

static void codes_iq4_xs(const unsigned char *block, uint8_t *out)
{
    for (int32_t i = 0; i < 8; i++) {
        put_nibbles(block + 8 + 16 * i, 16, out + 32 * i);
    }
}

/* Eight times six bits: the high two in one 16-bit word, the low four in nibbles. */
static struct block_scale scale_iq4_xs(const unsigned char *block, int32_t part)
{
    int32_t low = block[4 + part / 2] >> part % 2 * 4 & 15;
    int32_t high = (block[2] | block[3] << 8) >> part * 2 & 3;
    return (struct block_scale){half_at(block), 0.0f, (low | high << 4) - 32, 1};
}

/* ---- the table ---------------------------------------------------------------------------- */

/* Columns: name, type of a code, elements and bytes per block, elements per scale, zero,
 * has_offset, has_steps, and the type of units. */
static const struct block_format formats[] = {
    {"Q4_0", DT_U4, 32, 18, 32, 8, false, false, DT_F16, codes_q4_0, scale_alone},
    {"Q4_1", DT_U4, 32, 20, 32, 0, true, false, DT_F16, codes_q4_1, scale_and_least},
    {"Q5_0", DT_U5, 32, 22, 32, 16, false, false, DT_F16, codes_q5_0, scale_alone},
    {"Q5_1", DT_U5, 32, 24, 32, 0, true, false, DT_F16, codes_q5_1, scale_and_least},
    {"Q8_0", DT_I8, 32, 34, 32, 0, false, false, DT_F16, codes_q8_0, scale_alone},
    {"Q2_K", DT_U2, 256, 84, 16, 0, true, true, DT_F16, codes_q2_k, scale_q2_k},
    {"Q3_K", DT_U3, 256, 110, 16, 4, false, true, DT_F16, codes_q3_k, scale_q3_k},
    {"Q4_K", DT_U4, 256, 144, 32, 0, true, true, DT_F16, codes_q4_k, scale_of_eight},
    {"Q5_K", DT_U5, 256, 176, 32, 0, true, true, DT_F16, codes_q5_k, scale_of_eight},
    {"Q6_K", DT_U6, 256, 210, 16, 32, false, true, DT_F16, codes_q6_k, scale_q6_k},
    {"IQ4_NL", DT_NL4, 32, 18, 32, 0, false, false, DT_F16, codes_q4_0, scale_alone},
    {"IQ4_XS", DT_NL4, 256, 136, 32, 0, false, true, DT_F16, codes_iq4_xs, scale_iq4_xs},
    {"MXFP4", DT_E2M1, 32, 17, 32, 0, false, false, DT_E8M0, codes_mxfp4, scale_power},
};

enum { N_FORMATS = sizeof formats / sizeof formats[0] };

const struct block_format *block_format_find(const char *name)
{
    for (size_t i = 0; i < N_FORMATS; i++) {
        if (strcmp(formats[i].name, name) == 0) {
            return &formats[i];
        }
    }
    return NULL;
}

void block_format_list(char *out, size_t n_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < N_FORMATS && n < n_bytes; i++) {
        n += (size_t)snprintf(out + n, n_bytes - n, "%s%s", text_if(i > 0, ", "), formats[i].name);
    }
}
