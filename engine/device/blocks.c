// SPDX-License-Identifier: Apache-2.0
#include "engine/device/blocks.h"
#include "engine/device/grids.h"

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

/* ---- 256 numbers as points of a grid (grids.h) -------------------------------------------- */

static uint32_t word_at(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Eight codes: a digit of two bits with a sign above it. Bit i of `signs` is the sign of code i. */
static void put_signed_2(uint32_t point, uint32_t signs, uint8_t *out)
{
    for (int32_t i = 0; i < 8; i++) {
        out[i] = (uint8_t)((point >> 2 * i & 3) | (signs >> i & 1) << 2);
    }
}

/* The same with digits of three bits, from two points. */
static void put_signed_3(uint32_t low, uint32_t high, uint32_t signs, uint8_t *out)
{
    const uint32_t digits = low | high << 12;
    for (int32_t i = 0; i < 8; i++) {
        out[i] = (uint8_t)((digits >> 3 * i & 7) | (signs >> i & 1) << 3);
    }
}

/* Seven stored signs; the eighth makes the number of negative ones even. */
static uint32_t even_signs(uint32_t seven)
{
    seven &= 127;
    return seven | (0x6996u >> ((seven ^ seven >> 4) & 15) & 1) << 7;
}

/* Steps are odd: 2 s + 1. Codes of IQ2 and IQ3_XXS mean fractions, which makes the steps whole. */
static struct block_scale odd_steps(float unit, uint32_t s)
{
    return (struct block_scale){unit, 0.0f, 2 * (int32_t)s + 1, 1};
}

/* 32 elements at a time: four indices of a byte each, then a word with four times seven signs and
 * the scale. */
static void codes_iq2_xxs(const unsigned char *block, uint8_t *out)
{
    const uint16_t *grid = grid_points(GRID_IQ2_XXS);
    for (int32_t i = 0; i < 32; i++) {
        const unsigned char *part = block + 2 + i / 4 * 8;
        put_signed_2(grid[part[i % 4]], even_signs(word_at(part + 4) >> 7 * (i % 4)), out + 8 * i);
    }
}

static struct block_scale scale_iq2_xxs(const unsigned char *block, int32_t part)
{
    return odd_steps(half_at(block), block[2 + 8 * part + 7] >> 4);
}

/* 8 elements at a time: nine bits of index and seven signs. */
static void codes_iq2_xs(const unsigned char *block, uint8_t *out)
{
    const uint16_t *grid = grid_points(GRID_IQ2_XS);
    for (int32_t i = 0; i < 32; i++) {
        const uint32_t word = block[2 + 2 * i] | (uint32_t)block[3 + 2 * i] << 8;
        put_signed_2(grid[word & 511], even_signs(word >> 9), out + 8 * i);
    }
}

static struct block_scale scale_iq2_xs(const unsigned char *block, int32_t part)
{
    return odd_steps(half_at(block), block[66 + part / 2] >> part % 2 * 4 & 15);
}

/* Bytes of indices, bytes of signs, then two more bits of each index. */
static void codes_iq2_s(const unsigned char *block, uint8_t *out)
{
    const uint16_t *grid = grid_points(GRID_IQ2_S);
    for (int32_t i = 0; i < 32; i++) {
        const uint32_t high = block[66 + i / 4] >> i % 4 * 2 & 3;
        put_signed_2(grid[block[2 + i] | high << 8], block[34 + i], out + 8 * i);
    }
}

static struct block_scale scale_iq2_s(const unsigned char *block, int32_t part)
{
    return odd_steps(half_at(block), block[74 + part / 2] >> part % 2 * 4 & 15);
}

/* 64 bytes of indices, then for each 32 elements a word with signs and scale, as in IQ2_XXS. */
static void codes_iq3_xxs(const unsigned char *block, uint8_t *out)
{
    const uint16_t *grid = grid_points(GRID_IQ3_XXS);
    for (int32_t i = 0; i < 32; i++) {
        const uint32_t word = word_at(block + 66 + i / 4 * 4);
        put_signed_3(grid[block[2 + 2 * i]], grid[block[3 + 2 * i]],
                     even_signs(word >> 7 * (i % 4)), out + 8 * i);
    }
}

static struct block_scale scale_iq3_xxs(const unsigned char *block, int32_t part)
{
    return odd_steps(half_at(block), block[66 + 4 * part + 3] >> 4);
}

/* 64 bytes of indices, a ninth bit of each, then bytes of signs. */
static void codes_iq3_s(const unsigned char *block, uint8_t *out)
{
    const uint16_t *grid = grid_points(GRID_IQ3_S);
    for (int32_t i = 0; i < 32; i++) {
        const uint32_t high = block[66 + i / 4] >> i % 4 * 2;
        put_signed_3(grid[block[2 + 2 * i] | (high & 1) << 8],
                     grid[block[3 + 2 * i] | (high & 2) << 7], block[74 + i], out + 8 * i);
    }
}

static struct block_scale scale_iq3_s(const unsigned char *block, int32_t part)
{
    return odd_steps(half_at(block), block[106 + part / 2] >> part % 2 * 4 & 15);
}

/* Bytes of indices, then a word of 16 bits for each 32 elements: three more bits of each index, the
 * scale, and the sign of the eighth that is added to all digits. */
static void codes_iq1_s(const unsigned char *block, uint8_t *out)
{
    const uint16_t *grid = grid_points(GRID_IQ1);
    for (int32_t i = 0; i < 32; i++) {
        const unsigned char *part = block + 34 + i / 4 * 2;
        const uint32_t high = (part[0] | (uint32_t)part[1] << 8) >> i % 4 * 3 & 7;
        put_signed_2(grid[block[2 + i] | high << 8], part[1] >> 7 ? 255 : 0, out + 8 * i);
    }
}

static struct block_scale scale_iq1_s(const unsigned char *block, int32_t part)
{
    return odd_steps(half_at(block), block[35 + 2 * part] >> 4 & 7);
}

/* Bytes of indices, then nibbles with three more bits of each and the sign of its eighth. */
static void codes_iq1_m(const unsigned char *block, uint8_t *out)
{
    const uint16_t *grid = grid_points(GRID_IQ1);
    for (int32_t i = 0; i < 32; i++) {
        const uint32_t more = block[32 + i / 2] >> i % 2 * 4;
        put_signed_2(grid[block[i] | (more & 7) << 8], more & 8 ? 255 : 0, out + 8 * i);
    }
}

/* Four words of 16 bits: four scales of three bits each, and above them a nibble of the unit. */
static struct block_scale scale_iq1_m(const unsigned char *block, int32_t part)
{
    const unsigned char *words = block + 48, *own = words + part / 4 * 2;
    const unsigned char unit[2] = {(unsigned char)(words[1] >> 4 | (words[3] & 0xF0)),
                                   (unsigned char)(words[5] >> 4 | (words[7] & 0xF0))};
    return odd_steps(half_at(unit), (own[0] | (uint32_t)own[1] << 8) >> part % 4 * 3 & 7);
}

/* ---- 256 numbers of -1, 0 and 1 ----------------------------------------------------------- */

/* A byte is a fraction of 256, whose first digits to base 3 are the codes of elements n_bytes
 * apart. */
static void put_thirds(const unsigned char *bytes, int32_t n_bytes, int32_t n_digits, uint8_t *out)
{
    for (int32_t i = 0; i < n_bytes; i++) {
        uint32_t rest = bytes[i];
        for (int32_t j = 0; j < n_digits; j++) {
            out[j * n_bytes + i] = (uint8_t)(3 * rest >> 8);
            rest = 3 * rest & 255;
        }
    }
}

static void codes_tq1_0(const unsigned char *block, uint8_t *out)
{
    put_thirds(block, 32, 5, out);
    put_thirds(block + 32, 16, 5, out + 160);
    put_thirds(block + 48, 4, 4, out + 240);
}

static struct block_scale scale_tq1_0(const unsigned char *block, int32_t part)
{
    (void)part;
    return (struct block_scale){half_at(block + 52), 0.0f, 1, 1};
}

static void codes_tq2_0(const unsigned char *block, uint8_t *out)
{
    put_two_bits(block, out);
}

static struct block_scale scale_tq2_0(const unsigned char *block, int32_t part)
{
    (void)part;
    return (struct block_scale){half_at(block + 64), 0.0f, 1, 1};
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
    {"IQ1_S", DT_IQ1, 256, 50, 32, 0, false, true, DT_F16, codes_iq1_s, scale_iq1_s},
    {"IQ1_M", DT_IQ1, 256, 56, 16, 0, false, true, DT_F16, codes_iq1_m, scale_iq1_m},
    {"IQ2_XXS", DT_IQ2, 256, 66, 32, 0, false, true, DT_F16, codes_iq2_xxs, scale_iq2_xxs},
    {"IQ2_XS", DT_IQ2, 256, 74, 16, 0, false, true, DT_F16, codes_iq2_xs, scale_iq2_xs},
    {"IQ2_S", DT_IQ2, 256, 82, 16, 0, false, true, DT_F16, codes_iq2_s, scale_iq2_s},
    {"IQ3_XXS", DT_IQ3_XXS, 256, 98, 32, 0, false, true, DT_F16, codes_iq3_xxs, scale_iq3_xxs},
    {"IQ3_S", DT_IQ3_S, 256, 110, 32, 0, false, true, DT_F16, codes_iq3_s, scale_iq3_s},
    {"TQ1_0", DT_U2, 256, 54, 256, 1, false, false, DT_F16, codes_tq1_0, scale_tq1_0},
    {"TQ2_0", DT_U2, 256, 66, 256, 1, false, false, DT_F16, codes_tq2_0, scale_tq2_0},
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
