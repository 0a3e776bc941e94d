// SPDX-License-Identifier: Apache-2.0
/* Decides whether a weight can stay quantised, and allocates the memory that it then needs. */
#include "cpu/cpu_coded.h"

#include <stdlib.h>
#include <string.h>

/* LEAST_BLOCK: the smallest number of inputs that may share a scale. MAX_PIECES: the maximum number
 * of formats that the parts of a matrix may have. */
enum { LEAST_BLOCK = 8, MAX_PIECES = 4 };

static bool kind_of(enum dtype dtype, enum code_kind *out)
{
    switch (dtype) {
    case DT_U2: *out = CODE_2; return true;
    case DT_U3:
    case DT_IQ1:
    case DT_IQ2: *out = CODE_3; return true;
    case DT_U4:
    case DT_NL4:
    case DT_NF4:
    case DT_FP4:
    case DT_IQ3_XXS:
    case DT_IQ3_S:
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

/* The number of inputs of the part's row that share a scale, if scales cover blocks of `block`
 * inputs and the row may start anywhere in a block. */
static int64_t shared_inputs(const struct weight_part *p, int64_t block)
{
    int64_t first = p->transposed ? p->first_row : p->first_col;
    int64_t step = p->transposed ? p->row_step : p->col_step;
    if (step != 1) {
        return 1;
    }
    if (p->runs.size > 0) {
        return divisor(divisor(block, p->runs.size), first);
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

/* The smallest dtype that holds the scales exactly: two bytes, or steps of a unit, or else F32. */
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

/* True if the packing can absorb a zero that all outputs share. */
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

/* True if units are divisible by blocks, and blocks by groups of codes. */
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

/* A piece is a run of consecutive parts of a matrix that have the same format. It must begin at a
 * tile boundary. */
struct pieces {
    struct coded v[MAX_PIECES];
    const struct weight_codec *codec[MAX_PIECES]; // codec of each piece's first part
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

/* All matrices must consist of the same pieces as the first one. The blocks of a piece then fit all
 * matrices. */
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

/* The table of the values of codes with up to five bits, less the zero that all outputs share.
 * Kernels need not clear the bits above shorter codes, as their values are repeated. */
static void fill_values(const struct weight_codec *c, struct coded *out)
{
    float zero = c->zeros.data ? 0.0f : (float)c->zero;
    const uint32_t mask = (1u << dtype_bits(c->values.dtype)) - 1;
    for (uint32_t i = 0; i < N_CODE_VALUES; i++) {
        out->values[i] = dtype_value(c->values.dtype, i & mask) - zero;
    }
}

/* Allocates n elements of this dtype, or sets *out to NULL if they are not wanted. False: out of
 * memory. */
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

/* Places each piece's codes in a matrix. False if a segment is not a whole number of groups in
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
        if (c->kind <= CODE_5) {
            fill_values(pieces.codec[i], c);
        }
        TRY(open_piece(cpu, w, c));
    }
    w->n_coded = pieces.n;
    w->coded = xcalloc((size_t)pieces.n, sizeof *w->coded);
    memcpy(w->coded, pieces.v, (size_t)pieces.n * sizeof *w->coded);
    return OK;
}
