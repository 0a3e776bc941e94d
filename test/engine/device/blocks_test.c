// SPDX-License-Identifier: Apache-2.0
/* Block-quantised weights: the decoded numbers of each format have the sum of the `gguf` package's
 * numbers (test/gguf/blocks.json, made by scripts/golden/blocks.py), exactly. */
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/device/codec.h"
#include "test/check.h"
#include "test/sha256.h"

enum { N_NUMBERS = 1 << 18, N_COLS = 1024, N_BLOCK_FORMATS = 22 };

/* The blocks of scripts/golden/blocks.py, at an odd address. */
static unsigned char *make_blocks(const struct block_format *f, const struct json *exponents)
{
    const size_t n = (size_t)(N_NUMBERS / f->n * f->n_bytes);
    unsigned char *out = xmalloc(n + 1 + SHA256_BYTES);
    for (size_t i = 0; i * SHA256_BYTES < n; i++) {
        char text[32];
        struct sha256 sum;
        snprintf(text, sizeof text, "%s %zu", f->name, i);
        sha256_begin(&sum);
        sha256_add(&sum, text, strlen(text));
        sha256_end(&sum, out + 1 + i * SHA256_BYTES);
    }
    for (const struct json *at = json_first(exponents); at; at = json_next(at)) {
        for (size_t i = (size_t)json_number(at, 0.0); i < n; i += (size_t)f->n_bytes) {
            out[1 + i] &= 0xBF;
        }
    }
    return out;
}

/* SHA-256 of all numbers decoded to f32, row by row: equal bits, not only near values. */
static void sum_of(const struct weight_part *p, char hex[65])
{
    struct sha256 sum;
    sha256_begin(&sum);
    float *row = xmalloc((size_t)p->n_cols * sizeof *row);
    for (int64_t r = 0; r < p->n_rows; r++) {
        weight_part_read(p, r, 0, p->n_cols, row);
        for (int64_t c = 0; p->codec.blocks->code == DT_E2M1 && c < p->n_cols; c++) {
            row[c] += 0.0f; // the package's table has no negative zero
        }
        sha256_add(&sum, row, (size_t)p->n_cols * sizeof *row);
    }
    sha256_end_hex(&sum, hex);
    free(row);
}

/* A number as a backend composes it from its pieces. */
static float from_pieces(const struct weight_part *p, int64_t row, int64_t col)
{
    struct block_scale s = weight_part_block_scale(p, row, col);
    float value = dtype_value(p->codec.blocks->code, weight_part_code(p, row, col));
    value = (value - weight_part_zero(p, row, col)) * block_scale_value(s);
    if (p->codec.blocks->has_offset) {
        return value + block_offset_value(s);
    }
    return value;
}

/* The ways to read a part agree: one number, a row, a row from its second column on (which
 * begins inside a block), and scale, code and offset separately, as kernels do. */
static void check_pieces(const struct weight_part *p)
{
    float all[N_COLS], some[N_COLS];
    uint8_t codes[N_COLS];
    for (int64_t r = 0; r < p->n_rows; r++) {
        weight_part_read(p, r, 0, p->n_cols, all);
        weight_part_read(p, r, 1, p->n_cols - 1, some);
        weight_part_codes(p, r, 0, p->n_cols, codes);
        for (int64_t c = 0; c < p->n_cols; c++) {
            CHECK_NEAR(weight_part_get(p, r, c), all[c], 0.0);
            CHECK_NEAR(from_pieces(p, r, c), all[c], 0.0);
            CHECK_EQ(weight_part_code(p, r, c), codes[c]);
            CHECK(c == 0 || some[c - 1] == all[c]);
        }
    }
}

/* The whole matrix has the package's digest; a few rows, a window that begins and ends inside
 * blocks, and its transpose are checked against themselves and in one place against the whole. */
static void check_format(const struct json *j)
{
    const struct block_format *f = block_format_find(json_key(j));
    REQUIRE(f);
    unsigned char *data = make_blocks(f, json_get(j, "exponents"));
    struct weight_part whole = weight_part_blocks(data + 1, f, N_NUMBERS / N_COLS, N_COLS);
    char hex[65];
    sum_of(&whole, hex);
    if (strcmp(hex, json_get_string(j, "sha256_f32")) != 0) {
        CHECK_FAIL("%s: the sum is %s", f->name, hex);
    }
    struct weight_part some = weight_part_slice(whole, 0, 2, 0, N_COLS);
    struct weight_part cut = weight_part_slice(whole, 1, 1, 19, 300);
    struct weight_part turned = weight_part_transpose(cut);
    check_pieces(&some);
    check_pieces(&cut);
    check_pieces(&turned);
    CHECK_NEAR(weight_part_get(&turned, 7, 0), weight_part_get(&whole, 1, 26), 0.0);
    CHECK(!weight_part_is_plain(&whole) && !weight_part_is_dummy(&whole));
    CHECK(!weight_part_stored(&whole, DT_F32, 0));
    free(data);
}

/* The file has a row for each of the formats in engine/device/blocks.c. */
TEST(blocks_decode_as_in_the_gguf_package)
{
    struct json *rows;
    struct err err = {""};
    int32_t n = 0;
    if (json_parse_file("test/gguf/blocks.json", 1 << 20, &rows, &err) != OK) {
        CHECK_FAIL("%s", err.text);
        return;
    }
    for (const struct json *j = json_first(rows); j; j = json_next(j), n++) {
        check_format(j);
    }
    CHECK_EQ(n, N_BLOCK_FORMATS);
    json_free(rows);
}

TEST(formats_are_found_by_name)
{
    CHECK(block_format_find("Q4_0") && block_format_find("MXFP4"));
    CHECK(!block_format_find("Q8_1") && !block_format_find(""));
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
