// SPDX-License-Identifier: Apache-2.0
/* Reads any element of any stored format, one at a time. Faster readers are compared with this
 * definition; see codec.h. */
#include "engine/device/codec.h"

#include "engine/base/assert.h"
#include "engine/base/minmax.h"

/* ---- packings ----------------------------------------------------------------------------- */

/* Field of each of AWQ's eight successive outputs: its kernels unpack the even ones first. */
static const uint8_t awq_fields[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static const uint8_t back_fields[2] = {1, 0};

/* How codes are packed into units, and the order of the fields in a unit. */
static const struct {
    int32_t unit_bytes; // 0: each element is a unit
    bool down; // a unit holds successive rows of a column instead of successive columns of a row
    const uint8_t *fields; // NULL: in order
} packings[] = {
    [PACK_NONE] = {0, false, NULL},           [PACK_BYTES] = {1, false, NULL},
    [PACK_WORDS_ACROSS] = {4, false, NULL},   [PACK_WORDS_DOWN] = {4, true, NULL},
    [PACK_WORDS_AWQ] = {4, true, awq_fields}, [PACK_BYTES_BACK] = {1, false, back_fields},
    [PACK_BYTES_APART] = {1, true, NULL},
};

/* Units are little-endian, like the supported machines. */
static uint32_t load_unit(const void *data, int64_t at, int32_t n_bytes)
{
    uint32_t unit = 0;
    memcpy(&unit, (const char *)data + at * n_bytes, (size_t)n_bytes);
    return unit;
}

/* The unit that holds the element, then its bits. */
static uint32_t bits_at(const struct number_grid *g, int64_t row, int64_t col)
{
    int32_t bits = dtype_bits(g->dtype);
    if (g->packing == PACK_NONE) {
        return load_unit(g->data, row * g->row_stride + col * g->col_stride, bits / 8);
    }
    int32_t unit_bytes = packings[g->packing].unit_bytes, per_unit = unit_bytes * 8 / bits;
    int64_t *along = packings[g->packing].down ? &row : &col;
    const bool apart = g->packing == PACK_BYTES_APART; // rows of a unit do not follow one another
    int32_t field = (int32_t)(apart ? row / g->apart : *along % per_unit);
    *along = apart ? row % g->apart : *along / per_unit;
    if (packings[g->packing].fields) {
        field = packings[g->packing].fields[field];
    }
    uint32_t unit = load_unit(g->data, row * g->row_stride + col * g->col_stride, unit_bytes);
    return unit >> (field * bits) & (uint32_t)((1ull << bits) - 1);
}

float number_get(const struct number_grid *g, int64_t row, int64_t col)
{
    return dtype_value(g->dtype, bits_at(g, row, col));
}

/* ---- weights ------------------------------------------------------------------------------ */

float weight_codec_scale(const struct weight_codec *c, float block_scale)
{
    switch (c->tensor_scale_use) {
    case TENSOR_SCALE_TIMES: return block_scale * c->tensor_scale;
    case TENSOR_SCALE_DIVIDES: return block_scale / c->tensor_scale;
    default: return block_scale;
    }
}

/* The block's scale, before the whole-tensor scale is applied. */
static float block_scale_of(const struct weight_codec *c, int64_t block_row, int64_t block_col)
{
    const struct number_grid *g = &c->scales;
    const struct scale_codes *s = &c->scale_codes;
    if (!s->values) {
        return number_get(g, block_row, block_col);
    }
    const int64_t at = block_row * g->row_stride + block_col * g->col_stride;
    const float value = dtype_load(s->values, DT_F32, bits_at(g, block_row, block_col));
    return value * dtype_load(s->units, DT_F32, (size_t)(at / s->shared)) + s->offset;
}

static float scale_of(const struct weight_codec *c, int64_t block_row, int64_t block_col)
{
    return weight_codec_scale(c, block_scale_of(c, block_row, block_col));
}

/* A stored zero is added to the format's own zero. */
static float zero_of(const struct weight_codec *c, int64_t block_row, int64_t block_col)
{
    float zero = (float)c->zero;
    if (c->zeros.data) {
        return number_get(&c->zeros, block_row, block_col) + zero;
    }
    return zero;
}

/* GPTQ's g_idx assigns each input to a group; in other formats a block is a range of inputs. */
static int64_t block_col_of(const struct weight_codec *c, int64_t col)
{
    if (!c->groups) {
        return col / c->block_cols;
    }
    int32_t group;
    memcpy(&group, (const char *)c->groups + (size_t)col * sizeof group, sizeof group);
    return group;
}

/* The block that holds (row, col) of a tensor stored in blocks. */
static const unsigned char *block_at(const struct weight_codec *c, int64_t row, int64_t col)
{
    int64_t at = row * c->values.row_stride + col / c->blocks->n;
    return (const unsigned char *)c->values.data + at * c->blocks->n_bytes;
}

static struct block_scale block_scale_at(const struct weight_codec *c, int64_t row, int64_t col)
{
    int32_t part = (int32_t)(col % c->blocks->n / c->blocks->shared);
    return c->blocks->scale(block_at(c, row, col), part);
}

static uint32_t block_code_at(const struct weight_codec *c, int64_t row, int64_t col)
{
    uint8_t codes[MAX_BLOCK_NUMBERS];
    c->blocks->codes(block_at(c, row, col), codes);
    return codes[col % c->blocks->n];
}

/* Formats with an offset add it after scaling. */
static float block_value(const struct block_format *f, uint32_t code, struct block_scale s)
{
    float value = (dtype_value(f->code, code) - (float)f->zero) * block_scale_value(s);
    if (f->has_offset) {
        return value + block_offset_value(s);
    }
    return value;
}

static float codec_get(const struct weight_codec *c, int64_t row, int64_t col)
{
    if (c->blocks) {
        return block_value(c->blocks, block_code_at(c, row, col), block_scale_at(c, row, col));
    }
    float value = number_get(&c->values, row, col);
    if (!c->scales.data) {
        return value;
    }
    int64_t block_row = row / c->block_rows, block_col = block_col_of(c, col);
    return (value - zero_of(c, block_row, block_col)) * scale_of(c, block_row, block_col);
}

/* ---- parts -------------------------------------------------------------------------------- */

/* A plain matrix in memory, as used by tests and dummy weights. */
struct weight_part weight_part_plain(const void *data, enum dtype dtype, int64_t n_rows,
                                     int64_t n_cols, int64_t row_stride)
{
    struct weight_part p = {.n_rows = n_rows, .n_cols = n_cols, .row_step = 1, .col_step = 1};
    p.codec.format = dtype_number_name(dtype);
    p.codec.values.data = data;
    p.codec.values.dtype = dtype;
    p.codec.values.row_stride = row_stride;
    p.codec.values.col_stride = 1;
    return p;
}

struct weight_part weight_part_blocks(const void *data, const struct block_format *format,
                                      int64_t n_rows, int64_t n_cols)
{
    struct weight_part p =
        weight_part_plain(data, format->code, n_rows, n_cols, n_cols / format->n);
    p.codec.format = format->name;
    p.codec.blocks = format;
    p.codec.block_rows = 1;
    p.codec.block_cols = format->shared;
    p.codec.zero = format->zero;
    return p;
}

/* No data moves: the part's origin and extents change. A transposed part has its axes
 * exchanged. */
struct weight_part weight_part_slice(struct weight_part p, int64_t first_row, int64_t n_rows,
                                     int64_t first_col, int64_t n_cols)
{
    p.first_row += (p.transposed ? first_col : first_row) * p.row_step;
    p.first_col += (p.transposed ? first_row : first_col) * p.col_step;
    p.n_rows = n_rows;
    p.n_cols = n_cols;
    return p;
}

struct weight_part weight_part_every(struct weight_part p, int64_t first_row, int64_t step,
                                     int64_t n_rows)
{
    p = weight_part_slice(p, first_row, n_rows, 0, p.n_cols);
    *(p.transposed ? &p.col_step : &p.row_step) *= step;
    return p;
}

struct weight_part weight_part_transpose(struct weight_part p)
{
    int64_t n_rows = p.n_rows;
    p.n_rows = p.n_cols;
    p.n_cols = n_rows;
    p.transposed = !p.transposed;
    return p;
}

/* Row and column in the tensor of element (row, col) of a part. */
struct place {
    int64_t row, col;
};

static struct place place_of(const struct weight_part *p, int64_t row, int64_t col)
{
    int64_t down = p->transposed ? col : row, across = p->transposed ? row : col;
    struct place at = {p->first_row + down * p->row_step, p->first_col + across * p->col_step};
    if (p->runs.size > 0) {
        const int64_t run = at.col / p->runs.size, within = at.col % p->runs.size;
        const int64_t stored = run % p->runs.each * p->runs.groups + run / p->runs.each;
        at.col = stored * p->runs.size + within;
    }
    return at;
}

/* The number of columns from `col` on, at most n, that are adjacent in the tensor. */
static int64_t same_run(const struct weight_part *p, int64_t col, int64_t n)
{
    if (p->runs.size == 0) {
        return n;
    }
    const int64_t left = p->runs.size - (p->first_col + col) % p->runs.size;
    return lesser(left, n);
}

/* Without data (dummy weights) all values are 0. */
float weight_part_get(const struct weight_part *p, int64_t row, int64_t col)
{
    if (!p->codec.values.data) {
        return 0.0f;
    }
    struct place at = place_of(p, row, col);
    return codec_get(&p->codec, at.row, at.col);
}

uint32_t weight_part_code(const struct weight_part *p, int64_t row, int64_t col)
{
    struct place at = place_of(p, row, col);
    if (p->codec.blocks) {
        return block_code_at(&p->codec, at.row, at.col);
    }
    return bits_at(&p->codec.values, at.row, at.col);
}

struct block_scale weight_part_block_scale(const struct weight_part *p, int64_t row, int64_t col)
{
    struct place at = place_of(p, row, col);
    return block_scale_at(&p->codec, at.row, at.col);
}

float weight_part_zero(const struct weight_part *p, int64_t row, int64_t col)
{
    struct place at = place_of(p, row, col);
    return zero_of(&p->codec, at.row / p->codec.block_rows, block_col_of(&p->codec, at.col));
}

float weight_part_scale(const struct weight_part *p, int64_t row, int64_t col)
{
    struct place at = place_of(p, row, col);
    if (p->codec.blocks) {
        return block_scale_value(block_scale_at(&p->codec, at.row, at.col));
    }
    return block_scale_of(&p->codec, at.row / p->codec.block_rows, block_col_of(&p->codec, at.col));
}

bool weight_part_is_dummy(const struct weight_part *p)
{
    return !p->codec.values.data;
}

bool weight_part_is_plain(const struct weight_part *p)
{
    enum dtype t = p->codec.values.dtype;
    bool is_float = t == DT_F32 || t == DT_BF16 || t == DT_F16;
    return is_float && p->codec.values.packing == PACK_NONE && !p->codec.scales.data;
}

/* Distance, in elements, between adjacent columns of a part that lies in a plain tensor. */
static int64_t plain_step(const struct weight_part *p)
{
    const struct number_grid *g = &p->codec.values;
    if (p->transposed) {
        return g->row_stride * p->row_step;
    }
    return g->col_stride * p->col_step;
}

/* Index of the element in a plain tensor. */
static int64_t plain_at(const struct weight_part *p, int64_t row, int64_t col)
{
    struct place at = place_of(p, row, col);
    return at.row * p->codec.values.row_stride + at.col * p->codec.values.col_stride;
}

/* The address of a row that can be copied unchanged, or NULL. */
const void *weight_part_stored(const struct weight_part *p, enum dtype dtype, int64_t row)
{
    const struct number_grid *g = &p->codec.values;
    if (!g->data || g->dtype != dtype || !weight_part_is_plain(p) || plain_step(p) != 1 ||
        p->runs.size > 0) {
        return NULL;
    }
    return (const char *)g->data + (size_t)plain_at(p, row, 0) * dtype_bytes(dtype);
}

/* Reads rows of plain numbers, whose elements may be more than one apart. */
static void read_plain(const struct weight_part *p, int64_t row, int64_t first, int64_t n,
                       float *out)
{
    const struct number_grid *g = &p->codec.values;
    int64_t at = plain_at(p, row, first), step = plain_step(p);
    for (int64_t i = 0; i < n; i++) {
        out[i] = dtype_load(g->data, g->dtype, (size_t)(at + i * step));
    }
}

/* The number of columns from `col` on, at most n, that lie in the same block. */
static int64_t same_block(const struct weight_codec *c, int64_t col, int64_t n)
{
    if (!c->scales.data) {
        return n;
    }
    int64_t left = c->groups ? 1 : c->block_cols - col % c->block_cols;
    return lesser(left, n);
}

/* For a part that is not transposed and takes every column: reads scales and zeros block by
 * block. */
static void read_blocks(const struct weight_part *p, int64_t row, int64_t first, int64_t n,
                        float *out)
{
    const struct weight_codec *c = &p->codec;
    struct place at = place_of(p, row, first);
    for (int64_t i = 0, some; i < n; i += some) {
        int64_t col = at.col + i;
        float zero = 0.0f, scale = 1.0f;
        some = same_block(c, col, n - i);
        if (c->scales.data) {
            int64_t block_row = at.row / c->block_rows, block_col = block_col_of(c, col);
            zero = zero_of(c, block_row, block_col);
            scale = scale_of(c, block_row, block_col);
        }
        for (int64_t j = 0; j < some; j++) {
            out[i + j] = (number_get(&c->values, at.row, col + j) - zero) * scale;
        }
    }
}

static void block_codes(const struct weight_codec *c, int64_t row, int64_t col, int64_t n,
                        uint8_t *out)
{
    uint8_t codes[MAX_BLOCK_NUMBERS];
    for (int64_t i = 0, some; i < n; i += some) {
        int64_t within = (col + i) % c->blocks->n, left = c->blocks->n - within;
        some = lesser(left, n - i);
        if (some == c->blocks->n) {
            c->blocks->codes(block_at(c, row, col + i), out + i);
            continue;
        }
        c->blocks->codes(block_at(c, row, col + i), codes);
        memcpy(out + i, codes + within, (size_t)some);
    }
}

/* The value of each code of a format, less its zero. */
static void fill_values(const struct block_format *f, float values[256])
{
    uint32_t n = 1u << dtype_bits(f->code);
    for (uint32_t i = 0; i < n; i++) {
        values[i] = dtype_value(f->code, i) - (float)f->zero;
    }
}

/* Reads a row of a part in blocks that is not transposed and takes every column. */
static void read_in_blocks(const struct weight_part *p, int64_t row, int64_t first, int64_t n,
                           float *out)
{
    enum { SOME = 4 * MAX_BLOCK_NUMBERS };
    const struct weight_codec *c = &p->codec;
    struct place at = place_of(p, row, first);
    float values[256];
    uint8_t codes[SOME];
    fill_values(c->blocks, values);
    for (int64_t begin = 0; begin < n; begin += SOME) {
        int64_t some = lesser(n - begin, SOME);
        block_codes(c, at.row, at.col + begin, some, codes);
        for (int64_t i = 0, same; i < some; i += same) {
            int64_t col = at.col + begin + i, left = c->blocks->shared - col % c->blocks->shared;
            struct block_scale s = block_scale_at(c, at.row, col);
            float scale = block_scale_value(s), offset = block_offset_value(s);
            same = lesser(left, some - i);
            for (int64_t j = i; j < i + same; j++) {
                float value = values[codes[j]] * scale;
                if (c->blocks->has_offset) {
                    out[begin + j] = value + offset;
                } else {
                    out[begin + j] = value;
                }
            }
        }
    }
}

/* Block formats unpack all codes of a block at once. */
void weight_part_codes(const struct weight_part *p, int64_t row, int64_t first, int64_t n,
                       uint8_t *out)
{
    if (p->codec.blocks && !p->transposed && p->col_step == 1) {
        for (int64_t i = 0, some; i < n; i += some) {
            struct place at = place_of(p, row, first + i);
            some = same_run(p, first + i, n - i);
            block_codes(&p->codec, at.row, at.col, some, out + i);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] = (uint8_t)weight_part_code(p, row, first + i);
    }
}

/* Chooses the fastest reader that fits the part's layout; all give the same numbers. The columns
 * are adjacent in the tensor. */
static void read_run(const struct weight_part *p, int64_t row, int64_t first, int64_t n, float *out)
{
    if (!weight_part_is_dummy(p) && weight_part_is_plain(p)) {
        read_plain(p, row, first, n, out);
        return;
    }
    if (!weight_part_is_dummy(p) && !p->transposed && p->col_step == 1) {
        if (p->codec.blocks) {
            read_in_blocks(p, row, first, n, out);
            return;
        }
        read_blocks(p, row, first, n, out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] = weight_part_get(p, row, first + i);
    }
}

void weight_part_read(const struct weight_part *p, int64_t row, int64_t first, int64_t n,
                      float *out)
{
    for (int64_t i = 0, some; i < n; i += some) {
        some = same_run(p, first + i, n - i);
        read_run(p, row, first + i, some, out + i);
    }
}
