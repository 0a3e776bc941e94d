// SPDX-License-Identifier: Apache-2.0
/* Weights that stay quantised. Codes are packed once, in the order that dequantised weights would
 * have, and dequantised for some inputs of a tile at a time right before each product that reads
 * them. Products have the same bits as if the whole weight had been dequantised at load, which is
 * the fallback where codes cannot be kept: float32, reordered inputs, scales of very few inputs,
 * and parts of different formats. */
#include "cpu/cpu_internal.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Inputs that are dequantised at a time: 64 outputs by 128 16-bit inputs are 16 KiB, which leaves
 * space in the L1 cache for rows. A multiple of K_UNIT. */
enum { DECODE_K = 128 };

/* The fewest inputs that may share a scale, and the most formats that the parts of a matrix may
 * have. */
enum { LEAST_BLOCK = 8, MAX_PIECES = 4 };

/* ---- whether a weight can stay as it is --------------------------------------------------- */

static bool kind_of(enum dtype dtype, enum code_kind *out)
{
    switch (dtype) {
    case DT_U2:
    case DT_U4:
    case DT_NL4:
    case DT_E2M1: *out = CODE_4; return true;
    case DT_U5: *out = CODE_5; return true;
    case DT_U6: *out = CODE_6; return true;
    case DT_U8:
    case DT_I8: *out = CODE_I8; return true;
    case DT_E4M3: *out = CODE_E4M3; return true;
    default: return false;
    }
}

static int64_t divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Inputs of the part's row that share a scale, if scales cover blocks of `block` inputs, wherever
 * in a block the row starts. */
static int64_t shared_inputs(const struct weight_part *p, int64_t block)
{
    int64_t first = p->transposed ? p->first_row : p->first_col;
    int64_t step = p->transposed ? p->row_step : p->col_step;
    if (step != 1) {
        return 1;
    }
    return first / block == (first + p->n_cols - 1) / block ? p->n_cols : divisor(block, first);
}

static int64_t block_of(const struct weight_part *p)
{
    return shared_inputs(p, p->transposed ? p->codec.block_rows : p->codec.block_cols);
}

static bool has_steps(const struct weight_codec *c)
{
    return c->blocks && c->blocks->has_steps;
}

/* The smallest dtype that holds the scales exactly: two bytes, or steps of a unit; otherwise
 * F32. */
static enum dtype scale_dtype(const struct weight_codec *c)
{
    if (has_steps(c)) {
        return DT_I8;
    }
    switch (c->blocks ? c->blocks->unit : c->scales.dtype) {
    case DT_F16: return DT_F16;
    case DT_BF16:
    case DT_E4M3:
    case DT_E8M0: return DT_BF16;
    default: return DT_F32;
    }
}

static bool has_offset(const struct weight_codec *c)
{
    return c->blocks && c->blocks->has_offset;
}

static bool are_alike(const struct weight_codec *a, const struct weight_codec *b)
{
    return a->values.dtype == b->values.dtype && scale_dtype(a) == scale_dtype(b) &&
           a->tensor_scale_use == b->tensor_scale_use && has_offset(a) == has_offset(b) &&
           (a->zeros.data != NULL) == (b->zeros.data != NULL) && a->zero == b->zero;
}

/* The zero that packed 8-bit codes have, since bit 7 is then their sign. */
static float middle_of(enum dtype dtype)
{
    return dtype == DT_U8 ? 128.0f : 0.0f;
}

/* True if a zero shared by all outputs can be absorbed by the packing. */
static bool zero_fits(const struct weight_codec *c, enum code_kind kind)
{
    if (kind == CODE_E4M3) {
        return !c->zeros.data && c->zero == 0;
    }
    return kind != CODE_I8 || c->zeros.data || (float)c->zero == middle_of(c->values.dtype);
}

static bool part_fits(const struct weight_part *p, enum code_kind *kind)
{
    const struct weight_codec *c = &p->codec;
    return !weight_part_is_dummy(p) && (c->scales.data || c->blocks) && !c->groups &&
           kind_of(c->values.dtype, kind) && zero_fits(c, *kind);
}

/* True if blocks and units coincide with the borders of parts, of each other, and of groups of
 * codes. */
static bool sizes_fit(const struct coded *c, const struct weight *w)
{
    int32_t group = code_group(c->kind);
    if (c->unit > 0 && c->unit < w->segment && c->unit % c->block != 0) {
        return false;
    }
    return c->block >= LEAST_BLOCK &&
           (c->block % group == 0 || (c->block == w->segment && group == 2));
}

/* The description of a single part. */
static struct coded begin_piece(const struct weight *w, const struct weight_part *p,
                                enum code_kind kind)
{
    const struct weight_codec *c = &p->codec;
    return (struct coded){.kind = kind,
                          .block = w->k_segments > 1 ? w->segment : 0,
                          .unit = w->k_segments > 1 ? w->segment : 0,
                          .scale_dtype = scale_dtype(c),
                          .zeroed = c->zeros.data != NULL,
                          .has_offset = has_offset(c),
                          .whole_use = c->tensor_scale_use,
                          .middle = c->zero};
}

static void take_part(struct coded *piece, const struct weight_part *p)
{
    piece->block = divisor(piece->block, block_of(p));
    if (has_steps(&p->codec)) {
        piece->unit = divisor(piece->unit, shared_inputs(p, p->codec.blocks->n));
    } else {
        piece->unit = 0;
    }
}

/* Consecutive parts of one matrix with the same format form a piece. A piece must begin on a tile
 * border. */
struct pieces {
    struct coded v[MAX_PIECES];
    const struct weight_codec *codec[MAX_PIECES]; // of each piece's first part
    int32_t n;
};

static bool add_part(struct pieces *pieces, const struct weight *w, const struct weight_part *p,
                     int64_t row)
{
    int64_t width = (int64_t)w->panels * PANEL;
    enum code_kind kind = CODE_4;
    if (!part_fits(p, &kind)) {
        return false;
    }
    if (pieces->n == 0 || !are_alike(pieces->codec[pieces->n - 1], &p->codec)) {
        if (pieces->n == MAX_PIECES || row % width != 0) {
            return false;
        }
        struct coded *piece = &pieces->v[pieces->n];
        *piece = begin_piece(w, p, kind);
        piece->first_tile = row / width;
        pieces->codec[pieces->n++] = &p->codec;
    }
    take_part(&pieces->v[pieces->n - 1], p);
    return true;
}

/* All matrices must consist of the same pieces as the first; its blocks then fit all of them. */
static bool add_matrix(struct pieces *all, const struct pieces *one)
{
    if (all->n == 0) {
        *all = *one;
        return true;
    }
    bool same = all->n == one->n;
    for (int32_t i = 0; same && i < one->n; i++) {
        struct coded *a = &all->v[i];
        const struct coded *b = &one->v[i];
        same = are_alike(all->codec[i], one->codec[i]) && a->first_tile == b->first_tile;
        a->block = divisor(a->block, b->block);
        a->unit = divisor(a->unit, b->unit);
    }
    return same;
}

static bool fits(const struct weight_desc *d, const struct weight *w, struct pieces *out)
{
    bool matrices = d->kind == WEIGHT_LINEAR || d->kind == WEIGHT_EXPERTS ||
                    (d->kind == WEIGHT_EMBED && d->parts[0].codec.blocks);
    struct pieces one = {.n = 0};
    int64_t row = 0;
    bool good = matrices && w->dtype != DT_F32;
    *out = one;
    for (int32_t i = 0; i < d->n_parts && good; i++) {
        good = add_part(&one, w, &d->parts[i], row);
        row += d->parts[i].n_rows;
        if (good && row >= w->n_out) {
            good = row == w->n_out && add_matrix(out, &one);
            one.n = 0;
            row = 0;
        }
    }
    for (int32_t i = 0; i < out->n && good; i++) {
        good = sizes_fit(&out->v[i], w);
    }
    return good && row == 0 && out->n > 0;
}

/* ---- packing ------------------------------------------------------------------------------ */

/* The value table of codes of up to five bits, less the zero that all outputs share. */
static void fill_values(const struct weight_codec *c, struct coded *out)
{
    float zero = c->zeros.data ? 0.0f : (float)c->zero;
    for (uint32_t i = 0; i < 1u << dtype_bits(c->values.dtype); i++) {
        out->values[i] = dtype_value(c->values.dtype, i) - zero;
    }
}

/* Allocates one element of one dtype per block of `n` outputs, if wanted. */
static bool take_memory(struct cpu_backend *cpu, bool wanted, size_t n, enum dtype dtype, void *out)
{
    void *p = wanted ? cpu_memory(cpu, n * dtype_bytes(dtype)) : NULL;
    memcpy(out, &p, sizeof p);
    return p || !wanted;
}

/* Allocates the scales and everything else that accompanies codes. */
static enum status open_piece(struct cpu_backend *cpu, const struct weight *w, struct coded *c)
{
    int64_t width = (int64_t)w->panels * PANEL;
    c->blocks = (w->segment + c->block - 1) / c->block;
    c->units = c->unit > 0 ? (w->segment + c->unit - 1) / c->unit : 0;
    size_t n_outputs = (size_t)(w->n_matrices * c->n_tiles * width), n;
    size_t n_units = n_outputs * (size_t)(w->k_segments * c->units);
    if (!mem_mul(n_outputs, (size_t)(w->k_segments * c->blocks), &n) || n > SIZE_MAX / 4) {
        return ERR_NOMEM;
    }
    bool good =
        take_memory(cpu, true, n, c->scale_dtype, &c->scales) &&
        take_memory(cpu, c->zeroed, n, DT_BF16, &c->zeros) &&
        take_memory(cpu, c->has_offset, n, c->scale_dtype, &c->offsets) &&
        take_memory(cpu, c->units > 0, n_units, DT_F16, &c->unit_scales) &&
        take_memory(cpu, c->units > 0 && c->has_offset, n_units, DT_F16, &c->unit_offsets) &&
        take_memory(cpu, true, n_outputs, DT_F32, &c->whole);
    return good ? OK : ERR_NOMEM;
}

/* Lays out each piece's codes in a matrix. False if a segment is not a whole number of groups of
 * every piece. */
static bool place_pieces(struct weight *w, struct pieces *p)
{
    int64_t width = (int64_t)w->panels * PANEL, at = 0;
    for (int32_t i = 0; i < p->n; i++) {
        int64_t group = code_group(p->v[i].kind);
        w->segment_padded = (w->segment_padded + group - 1) / group * group;
    }
    for (int32_t i = 0; i < p->n; i++) {
        struct coded *c = &p->v[i];
        int64_t end = i + 1 < p->n ? p->v[i + 1].first_tile : w->n_tiles;
        c->n_tiles = end - c->first_tile;
        c->at = at;
        c->tile_bytes = code_bytes(c->kind, w->segment_padded * w->k_segments * width);
        if (c->tile_bytes > (INT64_MAX - at) / c->n_tiles) {
            return false;
        }
        at += c->n_tiles * c->tile_bytes;
    }
    w->matrix_bytes = (size_t)at;
    return true;
}

enum status cpu_coded_open(struct cpu_backend *cpu, const struct weight_desc *d, struct weight *w)
{
    struct pieces pieces;
    if (!fits(d, w, &pieces)) {
        return OK;
    }
    if (!place_pieces(w, &pieces)) {
        return ERR_NOMEM;
    }
    for (int32_t i = 0; i < pieces.n; i++) {
        struct coded *c = &pieces.v[i];
        if (c->kind == CODE_4 || c->kind == CODE_5) {
            fill_values(pieces.codec[i], c);
        }
        TRY(open_piece(cpu, w, c));
    }
    w->n_coded = pieces.n;
    w->coded = xcalloc((size_t)pieces.n, sizeof *w->coded);
    memcpy(w->coded, pieces.v, (size_t)pieces.n * sizeof *w->coded);
    return OK;
}

static const struct coded *coded_of(const struct weight *w, int64_t tile)
{
    int32_t i = w->n_coded - 1;
    while (w->coded[i].first_tile > tile) {
        i--;
    }
    return &w->coded[i];
}

/* The codes of a tile. */
static char *tile_at(const struct weight *w, const struct coded *c, int64_t matrix, int64_t tile)
{
    return w->packed + matrix * (int64_t)w->matrix_bytes + c->at +
           (tile - c->first_tile) * c->tile_bytes;
}

/* Index of the scale of the tile's first output, given n blocks (or units) per segment. */
static int64_t scale_at(const struct weight *w, const struct coded *c, int64_t n, int64_t matrix,
                        int64_t tile, int64_t segment, int64_t i)
{
    int64_t at = matrix * c->n_tiles + tile - c->first_tile;
    return ((at * w->k_segments + segment) * n + i) * w->panels * PANEL;
}

/* The whole-tensor scale of the tile's first output. */
static float *whole_at(const struct weight *w, const struct coded *c, int64_t matrix, int64_t tile)
{
    return c->whole + (matrix * c->n_tiles + tile - c->first_tile) * w->panels * PANEL;
}

static void put_number(enum dtype dtype, void *to, int64_t at, float x)
{
    switch (dtype) {
    case DT_I8: ((int8_t *)to)[at] = (int8_t)x; break;
    case DT_F16: ((uint16_t *)to)[at] = f16_of(x); break;
    case DT_BF16: ((uint16_t *)to)[at] = bf16_of(x); break;
    default: ((float *)to)[at] = x; break;
    }
}

/* Stores a block format's scale: the steps, or the unit that they multiply. False if it is NaN or
 * infinite. */
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

/* The group that holds input k of a segment, in the panel of output j. */
static uint8_t *group_at(const struct weight *w, const struct coded *c, int64_t matrix,
                         int64_t tile, int64_t segment, int64_t k, int64_t j)
{
    int32_t n = code_group(c->kind);
    int64_t group = (segment * w->segment_padded + k) / n * w->panels + j / PANEL;
    return (uint8_t *)tile_at(w, c, matrix, tile) + code_bytes(c->kind, group * n * PANEL);
}

/* Stores one output's codes of n inputs, zero-padded to a whole group, into groups `step` bytes
 * apart (struct code_run). Outputs share no byte. */
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

static void put_codes(enum code_kind kind, int32_t panels, uint8_t *to, const uint8_t *codes,
                      int64_t n)
{
    int64_t step = code_bytes(kind, (int64_t)code_group(kind) * PANEL) * panels;
    switch (kind) {
    case CODE_4: put_groups(CODE_4, to, step, codes, n); break;
    case CODE_5: put_groups(CODE_5, to, step, codes, n); break;
    case CODE_6: put_groups(CODE_6, to, step, codes, n); break;
    default: put_groups(CODE_I8, to, step, codes, n); break;
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

/* ---- products ----------------------------------------------------------------------------- */

/* Scales, zeros and offsets of a block's outputs. */
struct block_scales {
    float scales[TILE], zeros[TILE], offsets[TILE];
};

/* A block of a tile. */
struct block_place {
    int64_t matrix, tile, segment, block;
};

/* Loads scales (or offsets) of a block's outputs, multiplied by their units if they are steps. */
static void load_numbers(const struct cpu_backend *cpu, const struct weight *w,
                         const struct coded *c, const struct block_place *b, const char *stored,
                         const uint16_t *units, float *out)
{
    int64_t width = (int64_t)w->panels * PANEL;
    int64_t at = scale_at(w, c, c->blocks, b->matrix, b->tile, b->segment, b->block);
    cpu->kernels->widen(c->scale_dtype, stored + at * (int64_t)dtype_bytes(c->scale_dtype), out,
                        width);
    if (units) {
        float unit[TILE];
        int64_t i = b->block * c->block / c->unit;
        at = scale_at(w, c, c->units, b->matrix, b->tile, b->segment, i);
        cpu->kernels->widen(DT_F16, units + at, unit, width);
        for (int64_t j = 0; j < width; j++) {
            out[j] *= unit[j];
        }
    }
}

static void load_scales(const struct cpu_backend *cpu, const struct weight *w,
                        const struct coded *c, const struct block_place *b,
                        struct block_scales *out)
{
    int64_t width = (int64_t)w->panels * PANEL;
    const float *whole = whole_at(w, c, b->matrix, b->tile);
    load_numbers(cpu, w, c, b, c->scales, c->unit_scales, out->scales);
    struct weight_codec codec = {.tensor_scale_use = c->whole_use};
    for (int64_t j = 0; j < width && c->whole_use != TENSOR_SCALE_NONE; j++) {
        codec.tensor_scale = whole[j];
        out->scales[j] = weight_codec_scale(&codec, out->scales[j]);
    }
    if (c->offsets) {
        load_numbers(cpu, w, c, b, c->offsets, c->unit_offsets, out->offsets);
    }
    if (c->zeros) {
        int64_t at = scale_at(w, c, c->blocks, b->matrix, b->tile, b->segment, b->block);
        cpu->kernels->widen(DT_BF16, c->zeros + at, out->zeros, width);
    }
}

static struct code_run run_of(const struct weight *w, const struct coded *c,
                              const struct block_scales *s, void *out)
{
    return (struct code_run){.kind = c->kind,
                             .values = c->values,
                             .middle = c->middle,
                             .scales = s->scales,
                             .zeros = c->zeros ? s->zeros : NULL,
                             .offsets = c->offsets ? s->offsets : NULL,
                             .panels = w->panels,
                             .tiled = w->tiled,
                             .out = out};
}

/* Dequantises inputs [first, first + n) of a segment to `out`. */
static void decode(const struct cpu_backend *cpu, const struct gemm_tile *t, int64_t segment,
                   int64_t first, int64_t n, void *out)
{
    const struct weight *w = t->weight;
    const struct coded *c = coded_of(w, t->tile);
    int64_t width = (int64_t)w->panels * PANEL;
    const char *codes = tile_at(w, c, t->matrix, t->tile);
    struct block_scales s;
    struct block_place place = {t->matrix, t->tile, segment, 0};
    struct code_run run = run_of(w, c, &s, out);
    for (int64_t k = first; k < first + n; k += run.k) {
        place.block = k / c->block < c->blocks ? k / c->block : c->blocks - 1;
        int64_t end;
        if (place.block == c->blocks - 1) {
            end = w->segment_padded;
        } else {
            end = (place.block + 1) * c->block;
        }
        load_scales(cpu, w, c, &place, &s);
        run.first = k - first;
        run.k = lesser(end, first + n) - k;
        run.codes = codes + code_bytes(c->kind, (segment * w->segment_padded + k) * width);
        if (w->dtype == DT_BF16) {
            cpu->kernels->decode_bf16(&run);
        } else {
            cpu->kernels->decode_f16(&run);
        }
    }
}

void cpu_coded_sums(const struct cpu_backend *cpu, const struct gemm_tile *t, int32_t segment,
                    gemm_fn *gemm, int64_t row_element, float *c)
{
    const struct weight *w = t->weight;
    _Alignas(64) uint16_t numbers[DECODE_K * TILE];
    for (int64_t k = 0; k < w->segment_padded; k += DECODE_K) {
        int64_t n = lesser(w->segment_padded - k, DECODE_K);
        decode(cpu, t, segment, k, n, numbers);
        gemm(t->rows + (segment * w->segment_padded + k) * row_element, t->row_bytes / row_element,
             t->n_rows, numbers, w->panels, n, c, k == 0);
    }
}

/* ---- one row ------------------------------------------------------------------------------ */

static float value_of(const struct coded *c, uint32_t code)
{
    switch (c->kind) {
    case CODE_4:
    case CODE_5: return c->values[code];
    case CODE_I8: return (float)(int8_t)code;
    case CODE_E4M3: return dtype_value(DT_E4M3, code);
    default: return (float)((int32_t)code - c->middle);
    }
}

/* The row as the products see it, rounded to the dtype they read. */
void cpu_coded_row(const struct cpu_backend *cpu, const struct weight *w, int64_t row, float *out)
{
    int64_t width = (int64_t)w->panels * PANEL, tile = row / width, j = row % width;
    const struct coded *c = coded_of(w, tile);
    const int32_t group = code_group(c->kind);
    struct block_scales s;
    for (int64_t segment = 0; segment < w->k_segments; segment++) {
        for (int64_t k = 0; k < w->segment; k++) {
            if (k % c->block == 0) {
                struct block_place place = {0, tile, segment, k / c->block};
                load_scales(cpu, w, c, &place, &s);
            }
            uint32_t code = code_at(c->kind, group_at(w, c, 0, tile, segment, k, j),
                                    (int32_t)(k % group), (int32_t)(j % PANEL));
            float x = value_of(c, code);
            x = (c->zeros ? x - s.zeros[j] : x) * s.scales[j];
            if (c->offsets) {
                x = x + s.offsets[j];
            }
            if (w->dtype == DT_BF16) {
                out[segment * w->segment + k] = bf16_to_f32(bf16_of(x));
            } else {
                out[segment * w->segment + k] = f16_to_f32(f16_of(x));
            }
        }
    }
}
