// SPDX-License-Identifier: Apache-2.0
/* Packs quantised parts of a checkpoint into the layout of coded.h. */
#include "cuda/coded_pack.h"

#include "cuda/cuda_upload.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- which weights stay quantised ------------------------------------------------------------ */

/* The number types that stay quantised: all others are dequantised at load. */
static const struct coded_format {
    enum dtype values; // in the checkpoint
    enum dtype scale;  // on the device; DT_E8M0: every scale must be exactly a power of two
    bool zeros;        // there may be zero points
    /* Inputs that share a scale: `group` times a power of two, or the whole row; or, with
     * one_group, `group` alone. */
    int32_t group;
    bool one_group;
    float dummy_size; // dummy weights: the size of their codes
    uint8_t nan;      // the code that is not a number, without its sign; 0: there is none
} formats[] = {
    [CODED_E4M3] = {DT_E4M3, DT_F32, false, 64, false, 1.0f, 0x7f},
    [CODED_U4] = {DT_U4, DT_F32, true, 32, false, 4.0f, 0},
    [CODED_E2M1] = {DT_E2M1, DT_E8M0, false, 32, true, 4.0f, 0},
};

static const struct coded_format *find_format(enum dtype values)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (formats[i].group && formats[i].values == values) {
            return &formats[i];
        }
    }
    return NULL;
}

/* The number of inputs that share a scale. 0: all inputs of a row do. -1: the part's window cuts
 * through groups, or the groups do not consist of consecutive inputs. */
static int64_t group_of(const struct weight_part *p)
{
    const struct weight_codec *c = &p->codec;
    if (c->groups) {
        return -1;
    }
    if (p->first_col / c->block_cols == (p->first_col + p->n_cols - 1) / c->block_cols) {
        return 0;
    }
    if (p->first_col % c->block_cols == 0) {
        return c->block_cols;
    }
    return -1;
}

/* True for formats that the kernels read. Others are dequantised at load. */
static bool is_code(const struct weight_part *p)
{
    const struct weight_codec *c = &p->codec;
    bool has_scales;
    if (weight_part_is_dummy(p)) {
        has_scales = c->block_cols > 0;
    } else {
        has_scales = c->scales.data != NULL;
    }
    if (!has_scales || p->transposed || p->col_step != 1 || p->runs.size > 0) {
        return false;
    }
    const struct coded_format *f = find_format(c->values.dtype);
    return f && (f->zeros || (!c->zeros.data && c->zero == 0));
}

static bool is_power(int64_t n)
{
    return (n & (n - 1)) == 0;
}

static bool is_group(const struct coded_format *f, int64_t group)
{
    if (f->one_group) {
        return group == f->group;
    }
    return group == 0 || (group % f->group == 0 && is_power(group / f->group));
}

/* True if the device's scales can hold the weight's exactly. */
static bool holds_scales(const struct coded_format *f, const struct weight_desc *d)
{
    if (f->scale != DT_E8M0) {
        return true;
    }
    for (int32_t i = 0; i < d->n_parts; i++) {
        const struct weight_codec *c = &d->parts[i].codec;
        if (c->scales.dtype != DT_E8M0 || c->tensor_scale_use != TENSOR_SCALE_NONE) {
            return false;
        }
    }
    return true;
}

/* True if all parts of the weight have the same layout. */
static bool are_alike(const struct weight_desc *d, int64_t group)
{
    const struct weight_codec *first = &d->parts[0].codec;
    for (int32_t i = 0; i < d->n_parts; i++) {
        const struct weight_codec *c = &d->parts[i].codec;
        if (!is_code(&d->parts[i]) || c->values.dtype != first->values.dtype ||
            group_of(&d->parts[i]) != group ||
            (!first->zeros.data && !c->zeros.data && c->zero != first->zero)) {
            return false;
        }
    }
    return true;
}

static bool has_zeros(const struct weight_desc *d)
{
    for (int32_t i = 0; i < d->n_parts; i++) {
        if (d->parts[i].codec.zeros.data) {
            return true;
        }
    }
    return false;
}

/* Computes where each part begins, so that the part of a row can be found by binary search. */
static void find_rows(struct coded_source *s, const struct coded_format *f,
                      const struct weight_desc *d)
{
    s->parts = d->parts;
    s->dummy_seed = d->dummy_seed;
    s->dummy_scale = d->dummy_scale / f->dummy_size;
    s->n_parts = d->n_parts;
    s->first_rows = xmalloc(((size_t)d->n_parts + 1) * sizeof *s->first_rows);
    s->first_rows[0] = 0;
    for (int32_t i = 0; i < d->n_parts; i++) {
        s->first_rows[i + 1] = s->first_rows[i] + d->parts[i].n_rows;
    }
}

/* Returns false if this weight must be dequantised at load. */
bool coded_source_init(struct coded_source *s, const struct weight_desc *d)
{
    enum { MAX_IN = 1 << 18 }; // a tile row must fit into an upload buffer
    memset(s, 0, sizeof *s);
    const bool is_matrix =
        d->kind == WEIGHT_LINEAR || (d->kind == WEIGHT_EXPERTS && d->n_out % (2 * CODED_ROWS) == 0);
    if (!is_matrix || d->dtype == DT_F32 || d->n_in % 8 != 0 || d->n_in > MAX_IN ||
        !is_code(&d->parts[0])) {
        return false;
    }
    const struct coded_format *f = find_format(d->parts[0].codec.values.dtype);
    const int64_t group = group_of(&d->parts[0]);
    if (group < 0 || !is_group(f, group) || !are_alike(d, group) || !holds_scales(f, d)) {
        return false;
    }
    struct coded_matrix *m = &s->matrix;
    const enum coded_code code = (enum coded_code)(f - formats);
    const bool is_8 = coded_bits(code) == 8;
    const int32_t chunk = coded_chunk(code);
    *m = (struct coded_matrix){.code = code,
                               .scale = f->scale,
                               .zero = d->parts[0].codec.zero,
                               .n_out = (int32_t)d->n_out,
                               .n_in = (int32_t)d->n_in,
                               .n_experts = d->n_experts};
    m->n_tiles = (m->n_out + CODED_ROWS - 1) / CODED_ROWS;
    m->n_chunks = (m->n_in + chunk - 1) / chunk;
    if (group > 0 && group < chunk) {
        m->record_groups = (int32_t)(chunk / group);
    } else {
        m->record_groups = 1;
    }
    m->record_shift = 0;
    if (is_8 && group == 0) {
        m->record_shift = 30; // one record for the whole row
    }
    while (is_8 && group > (int64_t)chunk << m->record_shift) {
        m->record_shift++;
    }
    m->record_bytes = CODED_ROWS * m->record_groups * (int32_t)dtype_bytes(m->scale);
    m->n_records = ((m->n_chunks - 1) >> m->record_shift) + 1;
    find_rows(s, f, d);
    s->has_zeros = has_zeros(d);
    return true;
}

void coded_source_deinit(struct coded_source *s)
{
    free(s->first_rows);
    s->first_rows = NULL;
}

/* ---- packing --------------------------------------------------------------------------------- */

/* One row of the weight, which consists of all parts stacked. */
struct source_row {
    const struct weight_part *part; // NULL: padding of the last tile
    int64_t row;
};

/* Rows beyond the matrix are padding. */
static struct source_row row_of(const struct coded_source *s, int64_t tile, int32_t r)
{
    const struct coded_matrix *m = &s->matrix;
    const int64_t in_expert = tile % m->n_tiles * CODED_ROWS + r;
    if (in_expert >= m->n_out) {
        return (struct source_row){NULL, 0};
    }
    const int64_t row = tile / m->n_tiles * m->n_out + in_expert;
    int32_t low = 0, high = s->n_parts; // binary search: the part is in [low, high)
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        *(s->first_rows[middle] <= row ? &low : &high) = middle;
    }
    return (struct source_row){&s->parts[low], row - s->first_rows[low]};
}

static void put_bytes(const struct weight_part *p, int64_t row, uint8_t *to)
{
    for (int64_t k = 0; k < p->n_cols; k++) {
        to[k] = (uint8_t)weight_part_code(p, row, k);
    }
}

/* The order within a tile is that of the kernel's registers, so that a thread gets its codes with
 * one load. */
static void put_nibbles(const struct weight_part *p, int64_t row, int32_t r, uint8_t *to)
{
    uint8_t *mine = to + r / 8 * 512 + r % 8 * 64;
    for (int64_t k = 0; k < p->n_cols; k++) {
        const int64_t nibble = k % 32 / 8 + k % 2 * 4;
        mine[k / 128 * CODED_TILE_BYTES + k % 8 / 2 * 16 + k % 128 / 32 * 4 + nibble / 2] |=
            (uint8_t)(weight_part_code(p, row, k) << (nibble % 2 * 4));
    }
}

/* Dummy weights: arbitrary codes. 8-bit codes are less than 2 in magnitude. */
static void put_dummies(uint8_t *to, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i += sizeof seed) {
        seed = hash_mix(seed + i);
        const uint64_t codes = seed & 0xbfbfbfbfbfbfbfbfULL;
        memcpy(to + i, &codes, sizeof codes);
    }
}

/* Looks for NaN codes: a single one would turn every sum that it is part of into NaN. */
static bool has_nan(uint8_t nan, const uint8_t *codes, size_t n)
{
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        found |= (codes[i] & 0x7f) == nan;
    }
    return found;
}

/* Packs one tile of rows. Several threads call this for different tiles. */
void coded_fill_tiles(const void *source, int64_t tile, char *to)
{
    const struct coded_source *s = source;
    const size_t n = coded_tiles_bytes(&s->matrix);
    const bool is_8 = coded_bits(s->matrix.code) == 8;
    const uint8_t nan = formats[s->matrix.code].nan;
    if (weight_part_is_dummy(s->parts)) {
        put_dummies((uint8_t *)to, n, s->dummy_seed + (uint64_t)tile * n);
        return;
    }
    memset(to, 0, n);
    for (int32_t r = 0; r < CODED_ROWS; r++) {
        const struct source_row row = row_of(s, tile, r);
        if (row.part && is_8) {
            put_bytes(row.part, row.row, (uint8_t *)to + r * coded_row_bytes(&s->matrix));
        } else if (row.part) {
            put_nibbles(row.part, row.row, r, (uint8_t *)to);
        }
    }
    if (nan && has_nan(nan, (const uint8_t *)to, n)) {
        atomic_store(&((struct coded_source *)(uintptr_t)source)->has_nan, true);
    }
}

static int64_t group_inputs(const struct coded_matrix *m)
{
    return ((int64_t)coded_chunk(m->code) << m->record_shift) / m->record_groups;
}

/* The code of an E8M0 scale is the exponent of the float. Code 0 is 2^-127, which is subnormal in
 * fp32. */
static void put_scale(const struct coded_matrix *m, const struct weight_part *p, float scale,
                      char *to)
{
    const float f = weight_codec_scale(&p->codec, scale);
    if (m->scale == DT_E8M0) {
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        *to = (char)(bits >> 23 & 255);
        return;
    }
    cuda_store_number(to, m->scale, 0, f);
}

/* Packs the scales of a tile, in records that are loaded together with the tile's codes. */
void coded_fill_scales(const void *source, int64_t tile, char *to)
{
    const struct coded_source *s = source;
    const struct coded_matrix *m = &s->matrix;
    const size_t size = dtype_bytes(m->scale);
    const int64_t inputs = group_inputs(m), n_groups = (m->n_in + inputs - 1) / inputs;
    memset(to, 0, (size_t)m->record_bytes * (size_t)m->n_records);
    for (int32_t r = 0; r < CODED_ROWS; r++) {
        const struct source_row row = row_of(s, tile, r);
        for (int64_t g = 0; row.part && g < n_groups; g++) {
            const int64_t record = g / m->record_groups, in_record = g % m->record_groups;
            const int64_t at = (record * CODED_ROWS + r) * m->record_groups + in_record;
            float scale;
            if (weight_part_is_dummy(row.part)) {
                scale = s->dummy_scale;
            } else {
                scale = weight_part_scale(row.part, row.row, g * inputs);
            }
            put_scale(m, row.part, scale, to + (size_t)at * size);
        }
    }
}

/* ---- scales for cuBLASLt ------------------------------------------------------------------------
 */

enum { PRODUCT_BLOCK = 128 };

bool coded_has_blocks(const struct coded_source *s)
{
    if (s->matrix.code != CODED_E4M3 || group_inputs(&s->matrix) != PRODUCT_BLOCK) {
        return false;
    }
    for (int32_t i = 0; i < s->n_parts; i++) {
        const struct weight_part *p = &s->parts[i];
        const bool is_last = i + 1 == s->n_parts;
        if (p->codec.block_rows != PRODUCT_BLOCK || p->codec.block_cols != PRODUCT_BLOCK ||
            p->row_step != 1 || p->first_row % PRODUCT_BLOCK != 0 ||
            (p->n_rows % PRODUCT_BLOCK != 0 && !is_last)) {
            return false;
        }
    }
    return true;
}

/* The scales in the layout that cuBLASLt's scaled product reads; NULL if it cannot apply them. */
float *coded_product_scales(const struct coded_source *s, int32_t *n_blocks, size_t *n)
{
    enum { ALIGN = 4 }; // cuBLASLt requires this alignment for the rows of block scales
    const struct coded_matrix *m = &s->matrix;
    if (m->n_experts != 1 || !coded_has_blocks(s)) {
        return NULL;
    }
    const int32_t across = (m->n_in + PRODUCT_BLOCK - 1) / PRODUCT_BLOCK;
    const int32_t down = (m->n_out + PRODUCT_BLOCK - 1) / PRODUCT_BLOCK;
    *n_blocks = (across + ALIGN - 1) / ALIGN * ALIGN;
    *n = (size_t)down * (size_t)*n_blocks;
    float *scales = xcalloc(*n, sizeof *scales);
    for (int32_t r = 0; r < down; r++) {
        const struct source_row row = row_of(s, (int64_t)r * PRODUCT_BLOCK / CODED_ROWS, 0);
        for (int32_t c = 0; c < across; c++) {
            float scale;
            if (weight_part_is_dummy(row.part)) {
                scale = s->dummy_scale;
            } else {
                scale = weight_part_scale(row.part, row.row, (int64_t)c * PRODUCT_BLOCK);
            }
            scales[(size_t)r * (size_t)*n_blocks + (size_t)c] =
                weight_codec_scale(&row.part->codec, scale);
        }
    }
    return scales;
}

/* Like coded_fill_scales, for zero points. */
void coded_fill_zeros(const void *source, int64_t tile, char *to)
{
    const struct coded_source *s = source;
    const struct coded_matrix *m = &s->matrix;
    const int64_t inputs = group_inputs(m), n_groups = (m->n_in + inputs - 1) / inputs;
    memset(to, 0, (size_t)m->n_records * CODED_ROWS * (size_t)m->record_groups);
    for (int32_t r = 0; r < CODED_ROWS; r++) {
        const struct source_row row = row_of(s, tile, r);
        for (int64_t g = 0; row.part && g < n_groups; g++) {
            const int64_t record = g / m->record_groups, in_record = g % m->record_groups;
            to[(record * CODED_ROWS + r) * m->record_groups + in_record] =
                (char)(int32_t)weight_part_zero(row.part, row.row, g * inputs);
        }
    }
}
