// SPDX-License-Identifier: Apache-2.0
/* Expected values were computed by hand from the documents of each format. */
#include "engine/device/codec.h"
#include "test/check.h"

#define CHECK_SAME(a, b) CHECK_NEAR(a, b, 0.0)

static float f32_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The ends of each small type: the largest and smallest normal number, subnormals,
 * negative zero and NaN. E4M3 has no infinities, E8M0 is a bare exponent with bias 127,
 * and E2M1 has eight magnitudes. */
TEST(small_numbers_have_their_values)
{
    CHECK_SAME(dtype_value(DT_E4M3, 0x7E), 448.0);
    CHECK_SAME(dtype_value(DT_E4M3, 0xFE), -448.0);
    CHECK_SAME(dtype_value(DT_E4M3, 0x38), 1.0);
    CHECK_SAME(dtype_value(DT_E4M3, 0xB9), -1.125);
    CHECK_SAME(dtype_value(DT_E4M3, 0x01), 1.0 / 512);
    CHECK_SAME(dtype_value(DT_E4M3, 0x87), -7.0 / 512);
    CHECK_SAME(dtype_value(DT_E4M3, 0x08), 1.0 / 64);
    CHECK(isnan(dtype_value(DT_E4M3, 0x7F)) && isnan(dtype_value(DT_E4M3, 0xFF)));
    CHECK(signbit(dtype_value(DT_E4M3, 0x80)));
    CHECK_SAME(dtype_value(DT_E8M0, 127), 1.0);
    CHECK_SAME(dtype_value(DT_E8M0, 254), ldexp(1.0, 127));
    CHECK_SAME(dtype_value(DT_E8M0, 0), ldexp(1.0, -127));
    CHECK(isnan(dtype_value(DT_E8M0, 255)));
    static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    for (uint32_t i = 0; i < 8; i++) {
        CHECK_SAME(dtype_value(DT_E2M1, i), e2m1[i]);
        CHECK_SAME(dtype_value(DT_E2M1, i | 8), -e2m1[i]);
    }
    static const double fp4[8] = {0, 1.0 / 192, 2.0 / 3, 1, 1.0 / 3, 0.5, 1.0 / 6, 0.25};
    for (uint32_t i = 0; i < 8; i++) {
        CHECK_SAME(dtype_value(DT_FP4, i), (float)fp4[i]);
        CHECK_SAME(dtype_value(DT_FP4, i | 8), (float)-fp4[i]);
        CHECK(dtype_value(DT_NF4, 2 * i) < dtype_value(DT_NF4, 2 * i + 1));
    }
    for (uint32_t i = 0; i < 3; i++) {
        static const double iq2[3] = {1.0, 3.125, 5.375};
        CHECK_SAME(dtype_value(DT_IQ1, i), i - 0.875);
        CHECK_SAME(dtype_value(DT_IQ1, i | 4), i - 1.125);
        CHECK_SAME(dtype_value(DT_IQ2, i), iq2[i]);
        CHECK_SAME(dtype_value(DT_IQ2, i | 4), -iq2[i]);
    }
    for (uint32_t i = 0; i < 8; i++) {
        CHECK_SAME(dtype_value(DT_IQ3_S, i), 2.0 * i + 1.0);
        CHECK_SAME(dtype_value(DT_IQ3_S, i | 8), -2.0 * i - 1.0);
        CHECK_SAME(dtype_value(DT_IQ3_XXS, i | 8), i == 7 ? -15.5 : -2.0 * i - 1.0);
    }
    CHECK_SAME(dtype_value(DT_U3, 7), 7.0);
    CHECK_SAME(dtype_value(DT_NF4, 0), -1.0);
    CHECK_SAME(dtype_value(DT_NF4, 7), 0.0);
    CHECK_SAME(dtype_value(DT_NF4, 15), 1.0);
    CHECK_SAME(dtype_value(DT_I8, 0x80), -128.0);
    CHECK_SAME(dtype_value(DT_U8, 0x80), 128.0);
    CHECK_SAME(dtype_value(DT_BF16, 0xC040), -3.0);
    CHECK_SAME(dtype_value(DT_F16, 0x3555), f32_of_bits(0x3EAAA000));
}

/* A 16 x 16 tensor of 4-bit numbers in each packing; (row, col) holds row * 5 + col * 3 mod 16. */
enum { N = 16 };

static uint32_t number_at(int64_t row, int64_t col)
{
    return (uint32_t)(row * 5 + col * 3) % 16;
}

/* Fields are filled from the low bits up, in bytes and in little-endian words. */
static void put_nibble(unsigned char *units, int32_t unit_bytes, int64_t unit, int32_t field,
                       uint32_t value)
{
    unsigned char *byte = units + unit * unit_bytes + field / 2;
    *byte = (unsigned char)(*byte | value << field % 2 * 4);
}

/* Writes the same numbers in one of the packings. AWQ stores the eight outputs of a
 * word in the order 0 2 4 6 1 3 5 7. */
static struct number_grid packed_grid(enum packing packing, unsigned char *units)
{
    static const int32_t awq[8] = {0, 2, 4, 6, 1, 3, 5, 7}; // output of each field
    struct number_grid g = {.data = units, .dtype = DT_U4, .packing = packing, .apart = N / 2};
    memset(units, 0, N * N / 2);
    for (int64_t row = 0; row < N; row++) {
        for (int64_t col = 0; col < N; col++) {
            if (packing == PACK_BYTES || packing == PACK_BYTES_BACK) {
                const int32_t field = (int32_t)(col % 2) ^ (packing == PACK_BYTES_BACK);
                put_nibble(units, 1, row * N / 2 + col / 2, field, number_at(row, col));
            } else if (packing == PACK_WORDS_ACROSS) { // words of a column one after the other
                put_nibble(units, 4, col / 8 * N + row, (int32_t)(col % 8), number_at(row, col));
            } else if (packing == PACK_BYTES_APART) {
                put_nibble(units, 1, row % (N / 2) * N + col, (int32_t)(row / (N / 2)),
                           number_at(row, col));
            } else if (packing == PACK_WORDS_DOWN) {
                put_nibble(units, 4, row / 8 * N + col, (int32_t)(row % 8), number_at(row, col));
            } else {
                int32_t field = (int32_t)(row % 8);
                put_nibble(units, 4, col * N / 8 + row / 8, field,
                           number_at(row / 8 * 8 + awq[field], col));
            }
        }
    }
    g.row_stride = g.col_stride = 1;
    switch (packing) {
    case PACK_BYTES:
    case PACK_BYTES_BACK: g.row_stride = N / 2; break;
    case PACK_BYTES_APART:
    case PACK_WORDS_DOWN: g.row_stride = N; break;
    case PACK_WORDS_ACROSS: g.col_stride = N; break;
    case PACK_WORDS_AWQ: g.col_stride = N / 8; break;
    default: break;
    }
    return g;
}

TEST(packed_numbers_are_found)
{
    static const enum packing all[] = {PACK_BYTES,      PACK_BYTES_BACK, PACK_WORDS_ACROSS,
                                       PACK_WORDS_DOWN, PACK_WORDS_AWQ,  PACK_BYTES_APART};
    unsigned char units[N * N / 2 + 1];
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct number_grid g = packed_grid(all[i], units + 1); // at an odd address
        for (int64_t row = 0; row < N; row++) {
            for (int64_t col = 0; col < N; col++) {
                CHECK_SAME(number_get(&g, row, col), (double)number_at(row, col));
            }
        }
    }
}

/* 4-bit numbers with zeros and scales for blocks of 3 x 5, cut off at the edges. */
enum { BLOCK_ROWS = 3, BLOCK_COLS = 5, GRID = 6 };

static unsigned char block_units[N * N / 2];
static float block_scales[GRID * GRID];
static unsigned char block_zeros[GRID * GRID];

static struct weight_part blocks(void)
{
    for (int32_t i = 0; i < GRID * GRID; i++) {
        block_scales[i] = 0.1f * (float)(i + 1);
        block_zeros[i] = (unsigned char)(i % 11);
    }
    struct weight_part p = weight_part_plain(NULL, DT_U4, N, N, 0);
    p.codec.values = packed_grid(PACK_BYTES, block_units);
    p.codec.scales = (struct number_grid){block_scales, DT_F32, PACK_NONE, GRID, 1, 0};
    p.codec.zeros = (struct number_grid){block_zeros, DT_U8, PACK_NONE, GRID, 1, 0};
    p.codec.zero = 1;
    p.codec.block_rows = BLOCK_ROWS;
    p.codec.block_cols = BLOCK_COLS;
    return p;
}

/* The same number from the definition: (code - zero - 1) * scale, where blocks count from
 * the whole matrix's first row and column. */
static float block_weight(int64_t row, int64_t col)
{
    int64_t block = row / BLOCK_ROWS * GRID + col / BLOCK_COLS;
    return ((float)number_at(row, col) - (float)(block_zeros[block] + 1)) * block_scales[block];
}

/* Rows are read the same from their first and from their second column. */
static void check_reads_as_it_gets(const struct weight_part *p)
{
    for (int64_t row = 0; row < p->n_rows; row++) {
        float all[64], some[64];
        weight_part_read(p, row, 0, p->n_cols, all);
        weight_part_read(p, row, 1, p->n_cols - 1, some);
        for (int64_t col = 0; col < p->n_cols; col++) {
            CHECK_SAME(all[col], weight_part_get(p, row, col));
            CHECK(col == 0 || some[col - 1] == all[col]);
        }
    }
}

/* Tensor parallelism cuts weights at columns that need not be multiples of the block size,
 * GPTQ stores them transposed, and interleaved heads take every third row: all of these
 * views compose and keep each number's own block. */
TEST(windows_are_cut_inside_of_blocks)
{
    struct weight_part whole = blocks();
    struct weight_part cut = weight_part_slice(whole, 4, 10, 7, 6);
    struct weight_part again = weight_part_slice(cut, 1, 3, 2, 4);
    struct weight_part turned = weight_part_transpose(again);
    struct weight_part turned_cut = weight_part_slice(turned, 1, 2, 1, 2);
    struct weight_part every = weight_part_every(cut, 1, 3, 3);
    struct weight_part turned_every = weight_part_every(turned, 1, 2, 2);
    for (int64_t r = 0; r < 3; r++) {
        for (int64_t c = 0; c < 4; c++) {
            CHECK_SAME(weight_part_get(&again, r, c), block_weight(5 + r, 9 + c));
            CHECK_SAME(weight_part_get(&turned, c, r), block_weight(5 + r, 9 + c));
        }
        CHECK_SAME(weight_part_get(&every, r, 5), block_weight(5 + 3 * r, 12));
    }
    CHECK_EQ(turned.n_rows, 4);
    CHECK_EQ(turned.n_cols, 3);
    CHECK_SAME(weight_part_get(&turned_cut, 1, 1), block_weight(7, 11));
    CHECK_SAME(weight_part_get(&turned_every, 1, 2), block_weight(7, 12));
    check_reads_as_it_gets(&whole);
    check_reads_as_it_gets(&cut);
    check_reads_as_it_gets(&turned);
    check_reads_as_it_gets(&turned_every);
}

/* Six runs of two columns, stored in another order, as GGUF files store the heads of delta nets. */
TEST(columns_may_be_stored_in_runs)
{
    enum { SIZE = 2, EACH = 3, GROUPS = 2 };
    struct weight_part p = weight_part_slice(blocks(), 0, N, 0, SIZE * EACH * GROUPS);
    p.runs = (struct column_runs){SIZE, EACH, GROUPS};
    struct weight_part cut = weight_part_slice(p, 3, 9, 3, 8);
    for (int64_t r = 0; r < 9; r++) {
        for (int64_t c = 0; c < 8; c++) {
            int64_t run = (3 + c) / SIZE, stored = run % EACH * GROUPS + run / EACH;
            CHECK_SAME(weight_part_get(&cut, r, c),
                       block_weight(3 + r, stored * SIZE + (3 + c) % SIZE));
        }
    }
    check_reads_as_it_gets(&p);
    check_reads_as_it_gets(&cut);
}

/* GPTQ's act-order: the group of an input column comes from a table (here unaligned),
 * which a window must index from its own first column. */
TEST(inputs_may_have_an_order)
{
    struct weight_part p = blocks();
    char odd[N * 4 + 1];
    for (int32_t col = 0; col < N; col++) {
        int32_t group = (col * 7 + 2) % 3;
        memcpy(odd + 1 + col * 4, &group, sizeof group);
    }
    p.codec.groups = odd + 1;
    struct weight_part cut = weight_part_slice(p, 2, 9, 3, 11);
    for (int64_t r = 0; r < 9; r++) {
        for (int64_t c = 0; c < 11; c++) {
            int64_t block = (2 + r) / BLOCK_ROWS * GRID + ((3 + c) * 7 + 2) % 3;
            float want = ((float)number_at(2 + r, 3 + c) - (float)(block_zeros[block] + 1)) *
                         block_scales[block];
            CHECK_SAME(weight_part_get(&cut, r, c), want);
        }
    }
    check_reads_as_it_gets(&cut);
}

/* bitsandbytes' nested scales: codes in the order in which they are stored, here a table and a
 * scale for every five of them. */
TEST(scales_may_be_quantised_themselves)
{
    enum { SHARED = 5, N_CODES = GRID * GRID };
    static unsigned char codes[N_CODES];
    char odd[(256 + N_CODES) * 4 + 1];
    for (int32_t i = 0; i < N_CODES; i++) {
        codes[i] = (unsigned char)(i * 37);
    }
    for (int32_t i = 0; i < 256 + N_CODES; i++) {
        const float x = i < 256 ? (float)(i - 128) / 127.0f : 0.3f * (float)(i - 255);
        memcpy(odd + 1 + i * 4, &x, sizeof x);
    }
    struct weight_part p = blocks();
    p.codec.scales = (struct number_grid){codes, DT_U8, PACK_NONE, GRID, 1, 0};
    p.codec.scale_codes = (struct scale_codes){odd + 1, odd + 1 + 256 * 4, SHARED, 1.5f};
    for (int64_t r = 0; r < N; r++) {
        for (int64_t c = 0; c < N; c++) {
            const int64_t at = r / BLOCK_ROWS * GRID + c / BLOCK_COLS;
            const float step = (float)(codes[at] - 128) / 127.0f;
            const float unit = 0.3f * (float)(at / SHARED + 1), scale = step * unit + 1.5f;
            const float zero = (float)(block_zeros[at] + 1);
            CHECK_SAME(weight_part_get(&p, r, c), ((float)number_at(r, c) - zero) * scale);
            CHECK_SAME(weight_part_scale(&p, r, c), scale);
        }
    }
    check_reads_as_it_gets(&p);
}

/* Two roundings: first the scales' product, then the weight's. */
TEST(a_tensor_has_a_scale_of_its_own)
{
    struct weight_part p = blocks();
    p.codec.zeros.data = NULL;
    p.codec.zero = 8;
    p.codec.tensor_scale = 2688.0f / 0.37f;
    p.codec.tensor_scale_use = TENSOR_SCALE_DIVIDES;
    float scale = block_scales[1] / p.codec.tensor_scale;
    CHECK_SAME(weight_part_get(&p, 1, 6), ((float)number_at(1, 6) - 8.0f) * scale);
    check_reads_as_it_gets(&p);
    p.codec.tensor_scale = 0.37f / 2688.0f;
    p.codec.tensor_scale_use = TENSOR_SCALE_TIMES;
    scale = block_scales[1] * p.codec.tensor_scale;
    CHECK_SAME(weight_part_get(&p, 1, 6), ((float)number_at(1, 6) - 8.0f) * scale);
    check_reads_as_it_gets(&p);
}

/* Only a plain part of the same type whose rows are contiguous may be copied without
 * decoding: weight_part_stored gives its address and NULL for everything else (other type,
 * transposed, blocks, dummy). */
TEST(a_plain_row_is_where_it_is_stored)
{
    uint16_t numbers[6 * 8];
    for (int32_t i = 0; i < 6 * 8; i++) {
        numbers[i] = (uint16_t)(0x3F80 + i);
    }
    struct weight_part p = weight_part_plain(numbers, DT_BF16, 6, 7, 8);
    struct weight_part cut = weight_part_slice(p, 2, 3, 1, 4);
    struct weight_part every = weight_part_every(p, 1, 2, 2);
    struct weight_part turned = weight_part_transpose(p);
    CHECK(weight_part_stored(&cut, DT_BF16, 1) == &numbers[3 * 8 + 1]);
    CHECK(weight_part_stored(&every, DT_BF16, 1) == &numbers[3 * 8]);
    CHECK(weight_part_stored(&cut, DT_F16, 1) == NULL);
    CHECK(weight_part_stored(&turned, DT_BF16, 1) == NULL);
    CHECK_SAME(weight_part_get(&turned, 6, 5), weight_part_get(&p, 5, 6));
    struct weight_part blocked = blocks(), dummy = weight_part_plain(NULL, DT_BF16, 6, 7, 7);
    CHECK(weight_part_stored(&blocked, DT_U4, 0) == NULL);
    CHECK(weight_part_stored(&dummy, DT_BF16, 0) == NULL);
    CHECK(weight_part_is_plain(&p) && !weight_part_is_plain(&blocked));
    CHECK(weight_part_is_dummy(&dummy) && !weight_part_is_dummy(&blocked));
    check_reads_as_it_gets(&cut);
    check_reads_as_it_gets(&turned);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
