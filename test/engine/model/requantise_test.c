// SPDX-License-Identifier: Apache-2.0
/* Quantisation while loading: how far values move, which scales are chosen, and the layout of
 * codes. */
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/model/requantise.h"
#include "test/check.h"

enum { MAX_ROWS = 300, MAX_COLS = 400 };

static float w[MAX_ROWS * MAX_COLS];

/* Random values whose range grows from row to row (seven sizes), so scales differ. */
static void fill(int64_t rows, int64_t cols)
{
    uint32_t x = 12345;
    for (int64_t i = 0; i < rows * cols; i++) {
        x = x * 1664525u + 1013904223u;
        w[i] = ((float)(x >> 8) / (float)(1 << 24) - 0.5f) * (float)(1 + i / cols % 7);
    }
}

static struct weight_part quantised(struct requantise *q, int64_t rows, int64_t cols)
{
    struct weight_part p = weight_part_plain(w, DT_F32, rows, cols, cols);
    requantise_part(q, &p);
    return p;
}

static const struct {
    enum requantise_kind kind;
    bool blocks;
} kinds[] = {{REQUANTISE_FP8, false},
             {REQUANTISE_FP8, true},
             {REQUANTISE_INT4, false},
             {REQUANTISE_INT8, false}};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* The largest change of a value by rounding: half a step; for int4, whose scale may cut off the
 * largest positive value, a whole step. */
static float bound(enum requantise_kind kind, float value, float scale)
{
    if (kind == REQUANTISE_FP8) {
        const float x = fabsf(value) / scale, least = 0.015625f;
        return scale * (x < least ? least : exp2f(floorf(log2f(x)))) / 16.0f * 1.0001f;
    }
    if (kind == REQUANTISE_INT8) {
        return scale * 0.5001f;
    }
    return scale * (value / scale > 7 ? 0.55f : 0.5001f);
}

/* After decoding, every value of the matrix is within the bound. */
static void check_values(int kind, int64_t rows, int64_t cols)
{
    struct requantise q = {.kind = kinds[kind].kind, .blocks = kinds[kind].blocks};
    fill(rows, cols);
    const struct weight_part p = quantised(&q, rows, cols);
    CHECK(!weight_part_is_plain(&p) && p.n_rows == rows && p.n_cols == cols);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            const float v = w[r * cols + c], got = weight_part_get(&p, r, c);
            if (!(fabsf(v - got) <= bound(q.kind, v, weight_part_scale(&p, r, c)))) {
                CHECK_FAIL("kind %d, %dx%d at %d, %d: %g became %g", kind, (int)rows, (int)cols,
                           (int)r, (int)c, (double)v, (double)got);
            }
        }
    }
    requantise_deinit(&q);
}

/* Shapes below, at and above a block or group, also with a remainder. */
TEST(values_move_by_half_a_step_at_most)
{
    static const int64_t shapes[][2] = {{1, 1}, {3, 7}, {5, 32}, {129, 128}, {300, 129}, {2, 400}};
    for (int k = 0; k < N_KINDS; k++) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            check_values(k, shapes[i][0], shapes[i][1]);
        }
    }
}

/* The first row's largest value, -2.0, determines its scale: it becomes the type's largest number
 * (448, 127); int4's scale is 2 / 7.5 rounded to bf16. */
TEST(scales_come_from_the_largest_value)
{
    fill(4, 8);
    for (int c = 0; c < 8; c++) {
        w[c] = c == 5 ? -2.0f : 0.25f;
    }
    static const float want[N_KINDS] = {2.0f / 448, 0, 0.267578125f, 2.0f / 127};
    for (int k = 0; k < N_KINDS; k++) {
        struct requantise q = {.kind = kinds[k].kind, .blocks = kinds[k].blocks};
        const struct weight_part p = quantised(&q, 4, 8);
        float largest = 0.0f;
        for (int i = 0; i < 32; i++) {
            largest = greater(fabsf(w[i]), largest);
        }
        CHECK(weight_part_scale(&p, 0, 0) == (q.blocks ? largest / 448 : want[k]));
        requantise_deinit(&q);
    }
}

/* The number of inputs that share a scale. */
TEST(groups_have_128_inputs_or_32_or_all)
{
    static const struct {
        int64_t n_in, int4;
    } rows[] = {{256, 128}, {96, 32}, {704, 32}, {33, 33}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int k = 0; k < N_KINDS; k++) {
            const struct requantise q = {.kind = kinds[k].kind, .blocks = kinds[k].blocks};
            const int64_t otherwise = q.blocks ? 128 : rows[i].n_in;
            CHECK_EQ(requantise_group(&q, rows[i].n_in),
                     q.kind == REQUANTISE_INT4 ? rows[i].int4 : otherwise);
        }
    }
}

/* Kernels read these bytes: the layout is part of the format. */
TEST(int4_packs_two_codes_per_byte_low_nibble_first)
{
    static const float row[5] = {-7.5f, 7.0f, 0.0f, 1.0f, -1.0f}; // a scale of 1
    memcpy(w, row, sizeof row);
    memcpy(w + 5, row, sizeof row);
    struct requantise q = {.kind = REQUANTISE_INT4};
    const struct weight_part p = quantised(&q, 2, 5);
    static const uint8_t want[3] = {0xF0, 0x98, 0x07};
    CHECK(memcmp(p.codec.values.data, want, 3) == 0);
    CHECK(memcmp((const uint8_t *)p.codec.values.data + 3, want, 3) == 0);
    requantise_deinit(&q);
}

/* A scale of 0 would give NaN on division; rows of zeros must stay zero. */
TEST(zeros_stay_zeros_and_have_a_scale)
{
    for (int k = 0; k < N_KINDS; k++) {
        struct requantise q = {.kind = kinds[k].kind, .blocks = kinds[k].blocks};
        fill(3, 130);
        memset(w + 130, 0, 130 * sizeof *w);
        const struct weight_part p = quantised(&q, 3, 130);
        for (int c = 0; c < 130; c++) {
            CHECK(weight_part_get(&p, 1, c) == 0.0f);
        }
        CHECK(weight_part_scale(&p, 1, 0) > 0.0f);
        CHECK(q.blocks || weight_part_scale(&p, 1, 0) == 1.0f);
        requantise_deinit(&q);
    }
}

/* A part that is quantised already, or with REQUANTISE_NOT, keeps its data. */
TEST(quantised_weights_stay_unchanged)
{
    struct requantise q = {.kind = REQUANTISE_INT8}, none = {.kind = REQUANTISE_NOT};
    fill(4, 8);
    struct weight_part p = quantised(&q, 4, 8);
    const void *codes = p.codec.values.data;
    requantise_part(&q, &p);
    CHECK(p.codec.values.data == codes);
    p = quantised(&none, 4, 8);
    CHECK(weight_part_is_plain(&p) && p.codec.values.data == w);
    requantise_deinit(&q);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
