// SPDX-License-Identifier: Apache-2.0
/* Packs codes, scales and zeros in the order in which products read them. */
#include "cpu/cpu_coded.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <string.h>

static void put_number(enum dtype dtype, void *to, int64_t at, float x)
{
    switch (dtype) {
    case DT_I8: ((int8_t *)to)[at] = (int8_t)x; break;
    case DT_F16: ((uint16_t *)to)[at] = f16_of(x); break;
    case DT_BF16: ((uint16_t *)to)[at] = bf16_of(x); break;
    default: ((float *)to)[at] = x; break;
    }
}

/* Stores the scale of a block format: the steps, or the unit that they multiply. False if it is NaN
 * or infinite. */
static bool put_block_scale(const struct coded *c, const struct weight_part *p, int64_t row,
                            int64_t col, int64_t at)
{
    struct block_scale s = weight_part_block_scale(p, row, col);
    bool in_steps = c->scale_dtype == DT_I8;
    put_number(c->scale_dtype, c->scales, at, in_steps ? (float)s.steps : s.unit);
    if (c->offsets) {
        put_number(c->scale_dtype, c->offsets, at,
                   in_steps ? (float)s.offset_steps : s.offset_unit);
    }
    return isfinite(s.unit) && isfinite(s.offset_unit);
}

static void put_unit(const struct coded *c, const struct weight_part *p, int64_t row, int64_t col,
                     int64_t at)
{
    struct block_scale s = weight_part_block_scale(p, row, col);
    c->unit_scales[at] = f16_of(s.unit);
    if (c->unit_offsets) {
        c->unit_offsets[at] = f16_of(s.offset_unit);
    }
}

static bool put_scale(const struct coded *c, const struct weight_part *p, int64_t row, int64_t col,
                      int64_t at)
{
    if (p->codec.blocks) {
        return put_block_scale(c, p, row, col, at);
    }
    put_number(c->scale_dtype, c->scales, at, weight_part_scale(p, row, col));
    if (c->zeros) {
        c->zeros[at] = bf16_of(weight_part_zero(p, row, col) - middle_of(p->codec.values.dtype));
    }
    return true;
}

/* Stores the scales of one output. */
static bool put_scales(const struct weight *w, const struct coded *c, const struct weight_part *p,
                       int64_t row, int64_t matrix, int64_t tile, int64_t j)
{
    bool good = true;
    for (int64_t s = 0; s < w->k_segments; s++) {
        int64_t first = s * w->segment;
        for (int64_t i = 0; i < c->blocks; i++) {
            int64_t at = scale_at(w, c, c->blocks, matrix, tile, s, i) + j;
            good = put_scale(c, p, row, first + i * c->block, at) && good;
        }
        for (int64_t i = 0; i < c->units; i++) {
            int64_t at = scale_at(w, c, c->units, matrix, tile, s, i) + j;
            put_unit(c, p, row, first + i * c->unit, at);
        }
    }
    return good;
}

/* Stores one output's codes of n inputs, padded with zeros to a whole group. The groups are `step`
 * bytes apart (struct code_run). No byte is shared by two outputs. */
static inline void put_groups(const enum code_kind kind, uint8_t *to, int64_t step,
                              const uint8_t *codes, int64_t n)
{
    const int32_t group = code_group(kind), bits = kind == CODE_5 ? 1 : 2;
    for (int64_t k = 0; k < n; k += group, to += step, codes += group) {
        uint32_t high = 0;
        if (kind == CODE_I8 || kind == CODE_E4M3) {
            to[0] = codes[0];
            to[PANEL] = codes[1];
            continue;
        }
        for (int32_t i = 0; i < group; i += 2) {
            to[i / 2 * PANEL] = (uint8_t)((codes[i] & 15) | codes[i + 1] << 4);
            high |= (uint32_t)(codes[i] >> 4) << i * bits | (uint32_t)(codes[i + 1] >> 4)
                                                                << (i + 1) * bits;
        }
        if (kind != CODE_4) {
            to[group / 2 * PANEL] = (uint8_t)high;
        }
    }
}

/* The same for codes of two and three bits. */
static inline void put_narrow_groups(const enum code_kind kind, uint8_t *to, int64_t step,
                                     const uint8_t *codes, int64_t n)
{
    const int32_t group = code_group(kind);
    for (int64_t k = 0; k < n; k += group, to += step, codes += group) {
        uint32_t low = 0, high = 0;
        for (int32_t i = 0; i < group; i++) {
            low |= (uint32_t)(codes[i] & 3) << 2 * i;
            high |= (uint32_t)(codes[i] >> 2) << i;
        }
        to[0] = (uint8_t)low;
        if (kind == CODE_3) {
            to[PANEL] = (uint8_t)(low >> 8);
            to[2 * PANEL] = (uint8_t)high;
        }
    }
}

static void put_codes(enum code_kind kind, int32_t panels, uint8_t *to, const uint8_t *codes,
                      int64_t n)
{
    int64_t step = code_bytes(kind, (int64_t)code_group(kind) * PANEL) * panels;
    switch (kind) {
    case CODE_2: put_narrow_groups(CODE_2, to, step, codes, n); break;
    case CODE_3: put_narrow_groups(CODE_3, to, step, codes, n); break;
    case CODE_4: put_groups(CODE_4, to, step, codes, n); break;
    case CODE_5: put_groups(CODE_5, to, step, codes, n); break;
    case CODE_6: put_groups(CODE_6, to, step, codes, n); break;
    case CODE_I8:
    case CODE_E4M3: put_groups(CODE_I8, to, step, codes, n); break;
    }
}

/* True if an E4M3 code is NaN. */
static bool has_no_number(const uint8_t *codes, int64_t n)
{
    bool found = false;
    for (int64_t i = 0; i < n; i++) {
        found = found || (codes[i] & 0x7F) == 0x7F;
    }
    return found;
}

bool cpu_coded_pack_row(const struct weight *w, const struct weight_part *p, int64_t row,
                        int64_t matrix, int64_t tile, int64_t j)
{
    enum { SOME = 1024, LARGEST_GROUP = 8 };
    const struct coded *c = coded_of(w, tile);
    const bool turned = c->kind == CODE_I8 && p->codec.values.dtype == DT_U8;
    uint8_t codes[SOME + LARGEST_GROUP];
    bool good = put_scales(w, c, p, row, matrix, tile, j);
    whole_at(w, c, matrix, tile)[j] = p->codec.tensor_scale;
    for (int64_t s = 0; s < w->k_segments; s++) {
        for (int64_t first = 0; first < w->segment; first += SOME) {
            int64_t n = lesser(w->segment - first, SOME);
            weight_part_codes(p, row, s * w->segment + first, n, codes);
            for (int64_t k = 0; turned && k < n; k++) {
                codes[k] ^= 0x80;
            }
            good = good && (c->kind != CODE_E4M3 || !has_no_number(codes, n));
            memset(codes + n, 0, LARGEST_GROUP);
            put_codes(c->kind, w->panels, group_at(w, c, matrix, tile, s, first, j) + j % PANEL,
                      codes, n);
        }
    }
    return good;
}
