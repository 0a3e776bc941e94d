/* Weights that stay quantised: their codes are packed once, in the order in which numbers would be,
 * and made into numbers for some inputs of a tile at a time, before each product that reads them.
 * Products are the same to the bit as if all of them had been made at load. That is done where codes
 * cannot be kept: for float32, an order of inputs, scales of very few inputs, and unlike parts. */
#include "cpu/cpu_internal.h"

#include <stdlib.h>
#include <string.h>

/* Inputs whose numbers are made at a time: 64 outputs by 128 inputs of 16 bits are 16 KiB, which
 * leave room in the nearest cache for rows. A multiple of K_UNIT. */
enum { DECODE_K = 128 };

/* Fewest inputs that may share a scale. */
enum { LEAST_BLOCK = 8 };

/* ---- whether a weight can stay as it is --------------------------------------------------- */

static bool kind_of(enum dtype dtype, enum code_kind *out)
{
    switch (dtype) {
    case DT_U2:
    case DT_U4:
    case DT_E2M1: *out = CODE_4; return true;
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

/* Inputs of the part's row that share a scale, wherever in a block it begins. */
static int64_t block_of(const struct weight_part *p)
{
    const struct weight_codec *c = &p->codec;
    int64_t block = p->transposed ? c->block_rows : c->block_cols;
    int64_t first = p->transposed ? p->first_row : p->first_col;
    int64_t step = p->transposed ? p->row_step : p->col_step;
    if (step != 1) {
        return 1;
    }
    return first / block == (first + p->n_cols - 1) / block ? p->n_cols : divisor(block, first);
}

/* Numbers of two bytes that hold a scale exactly; F32 if there are none. */
static enum dtype scale_dtype(const struct weight_codec *c)
{
    switch (c->scales.dtype) {
    case DT_F16: return DT_F16;
    case DT_BF16:
    case DT_E4M3:
    case DT_E8M0: return DT_BF16;
    default: return DT_F32;
    }
}

static bool are_alike(const struct weight_codec *a, const struct weight_codec *b)
{
    return a->values.dtype == b->values.dtype && scale_dtype(a) == scale_dtype(b) &&
           a->tensor_scale_use == b->tensor_scale_use &&
           (a->zeros.data != NULL) == (b->zeros.data != NULL) && a->zero == b->zero;
}

/* The zero that codes of eight bits have when they are packed: bit 7 is their sign then. */
static float middle_of(enum dtype dtype)
{
    return dtype == DT_U8 ? 128.0f : 0.0f;
}

/* Whether what all outputs have as their zero goes away with the packing. */
static bool zero_fits(const struct weight_codec *c, enum code_kind kind)
{
    if (kind == CODE_E4M3) {
        return !c->zeros.data && c->zero == 0;
    }
    return kind == CODE_4 || c->zeros.data || (float)c->zero == middle_of(c->values.dtype);
}

static bool fits(const struct weight_desc *d, const struct weight *w, struct coded *out)
{
    bool matrices = d->kind == WEIGHT_LINEAR || d->kind == WEIGHT_EXPERTS;
    if (!matrices || w->dtype == DT_F32) {
        return false;
    }
    const struct weight_codec *c = &d->parts[0].codec;
    *out = (struct coded){.block = w->k_segments > 1 ? w->segment : 0,
                          .scale_dtype = scale_dtype(c),
                          .zeroed = c->zeros.data != NULL,
                          .whole_use = c->tensor_scale_use};
    for (int32_t i = 0; i < d->n_parts; i++) {
        const struct weight_part *p = &d->parts[i];
        if (weight_part_is_dummy(p) || !p->codec.scales.data || p->codec.groups ||
            !are_alike(c, &p->codec) || !kind_of(p->codec.values.dtype, &out->kind) ||
            !zero_fits(&p->codec, out->kind)) {
            return false;
        }
        out->block = divisor(out->block, block_of(p));
    }
    return out->block >= LEAST_BLOCK && (out->block % 2 == 0 || out->block == w->segment);
}

/* ---- packing ------------------------------------------------------------------------------ */

/* Of a code of four bits: what is the same for all outputs is taken off here. */
static void fill_values(const struct weight_codec *c, struct coded *out)
{
    float zero = c->zeros.data ? 0.0f : (float)c->zero;
    for (uint32_t i = 0; i < 16; i++) {
        out->values[i] = dtype_value(c->values.dtype, i) - zero;
    }
}

enum status cpu_coded_open(struct cpu_backend *cpu, const struct weight_desc *d, struct weight *w)
{
    struct coded coded;
    if (!fits(d, w, &coded)) {
        return OK;
    }
    int64_t width = (int64_t)w->panels * PANEL;
    coded.blocks = (w->segment + coded.block - 1) / coded.block;
    if (coded.kind == CODE_4) {
        fill_values(&d->parts[0].codec, &coded);
    }
    size_t n_outputs = (size_t)(w->n_matrices * w->n_tiles * width), n;
    if (!mem_mul(n_outputs, (size_t)(w->k_segments * coded.blocks), &n) || n > SIZE_MAX / 4) {
        return ERR_NOMEM;
    }
    coded.scales = cpu_memory(cpu, n * dtype_bytes(coded.scale_dtype));
    coded.zeros = coded.zeroed ? cpu_memory(cpu, n * sizeof *coded.zeros) : NULL;
    coded.whole = cpu_memory(cpu, n_outputs * sizeof *coded.whole);
    if (!coded.scales || !coded.whole || (coded.zeroed && !coded.zeros)) {
        return ERR_NOMEM;
    }
    w->coded = xmalloc(sizeof coded);
    *w->coded = coded;
    return OK;
}

/* Scale of the tile's first output in block `block` of a segment. */
static int64_t scale_at(const struct weight *w, int64_t matrix, int64_t tile, int64_t segment,
                        int64_t block)
{
    int64_t at = ((matrix * w->n_tiles + tile) * w->k_segments + segment) * w->coded->blocks;
    return (at + block) * w->panels * PANEL;
}

static void put_scale(const struct coded *c, const struct weight_part *p, int64_t row, int64_t col,
                      int64_t at)
{
    float scale = weight_part_scale(p, row, col);
    switch (c->scale_dtype) {
    case DT_F16: ((uint16_t *)c->scales)[at] = f16_of(scale); break;
    case DT_BF16: ((uint16_t *)c->scales)[at] = bf16_of(scale); break;
    default: ((float *)c->scales)[at] = scale; break;
    }
    if (c->zeros) {
        c->zeros[at] = bf16_of(weight_part_zero(p, row, col) - middle_of(p->codec.values.dtype));
    }
}

/* The code of input k, which begins a pair or ends it, of one output. */
static void put_code(const struct coded *c, char *pair, int64_t k, int64_t output, uint32_t code)
{
    uint8_t *to = (uint8_t *)pair;
    if (c->kind == CODE_4) {
        to[output] = (uint8_t)(to[output] | code << k % 2 * 4);
    } else {
        to[k % 2 * PANEL + output] = (uint8_t)code;
    }
}

bool cpu_coded_pack_row(const struct weight *w, const struct weight_part *p, int64_t row,
                        int64_t matrix, int64_t tile, int64_t j)
{
    const struct coded *c = w->coded;
    char *to = w->packed + matrix * w->matrix_bytes + tile * w->tile_bytes;
    bool turned = c->kind == CODE_I8 && p->codec.values.dtype == DT_U8, good = true;
    c->whole[(matrix * w->n_tiles + tile) * w->panels * PANEL + j] = p->codec.tensor_scale;
    for (int64_t s = 0; s < w->k_segments; s++) {
        for (int64_t block = 0; block < c->blocks; block++) {
            int64_t col = s * w->segment + block * c->block;
            put_scale(c, p, row, col, scale_at(w, matrix, tile, s, block) + j);
        }
        for (int64_t k = 0; k < w->segment; k++) {
            uint32_t code = weight_part_code(p, row, s * w->segment + k);
            good = good && (c->kind != CODE_E4M3 || (code & 0x7F) != 0x7F);
            int64_t pair = (s * w->segment_padded + k) / 2 * w->panels + j / PANEL;
            put_code(c, to + code_bytes(c->kind, pair * PAIR_CODES), k, j % PANEL,
                     turned ? code ^ 0x80 : code);
        }
    }
    return good;
}

/* ---- products ----------------------------------------------------------------------------- */

/* Scales and zeros of a block's outputs. */
struct block_scales {
    float scales[TILE], zeros[TILE];
};

static void load_scales(const struct cpu_backend *cpu, const struct weight *w, int64_t at,
                        const float *whole, struct block_scales *out)
{
    const struct coded *c = w->coded;
    int64_t width = (int64_t)w->panels * PANEL;
    cpu->kernels->widen(c->scale_dtype, (char *)c->scales + at * dtype_bytes(c->scale_dtype),
                        out->scales, width);
    struct weight_codec codec = {.tensor_scale_use = c->whole_use};
    for (int64_t j = 0; j < width && c->whole_use != TENSOR_SCALE_NONE; j++) {
        codec.tensor_scale = whole[j];
        out->scales[j] = weight_codec_scale(&codec, out->scales[j]);
    }
    if (c->zeros) {
        cpu->kernels->widen(DT_BF16, c->zeros + at, out->zeros, width);
    }
}

/* Numbers of inputs [first, first + n) of a segment to `out`. */
static void decode(const struct cpu_backend *cpu, const struct gemm_tile *t, int64_t segment,
                   int64_t first, int64_t n, void *out)
{
    const struct weight *w = t->weight;
    const struct coded *c = w->coded;
    int64_t width = (int64_t)w->panels * PANEL;
    const char *codes = w->packed + t->matrix * w->matrix_bytes + t->tile * w->tile_bytes;
    const float *whole = c->whole + (t->matrix * w->n_tiles + t->tile) * width;
    struct block_scales s;
    struct code_run run = {.kind = c->kind,
                           .values = c->values,
                           .scales = s.scales,
                           .zeros = c->zeros ? s.zeros : NULL,
                           .panels = w->panels,
                           .tiled = w->tiled,
                           .out = out};
    for (int64_t k = first; k < first + n; k += run.k) {
        int64_t block = k / c->block < c->blocks ? k / c->block : c->blocks - 1;
        int64_t end = block == c->blocks - 1 ? w->segment_padded : (block + 1) * c->block;
        load_scales(cpu, w, scale_at(w, t->matrix, t->tile, segment, block), whole, &s);
        run.first = k - first;
        run.k = (end < first + n ? end : first + n) - k;
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
        int64_t n = w->segment_padded - k < DECODE_K ? w->segment_padded - k : DECODE_K;
        decode(cpu, t, segment, k, n, numbers);
        gemm(t->rows + (segment * w->segment_padded + k) * row_element, t->row_bytes / row_element,
             t->n_rows, numbers, w->panels, n, c, k == 0);
    }
}
