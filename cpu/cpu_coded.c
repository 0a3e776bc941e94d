// SPDX-License-Identifier: Apache-2.0
/* Weights that stay quantised. Codes are packed once, in the order that dequantised weights would
 * have. Right before each product that reads them they are dequantised, for some inputs of a tile
 * at a time. Products have the same bits as if the whole weight had been dequantised at load.
 * Dequantising at load is the fallback where codes cannot be kept: float32, reordered inputs,
 * scales of very few inputs, and parts of different formats. */
#include "cpu/cpu_coded.h"
#include "engine/base/minmax.h"

/* Number of inputs that are dequantised at a time, a multiple of K_UNIT. 64 outputs by 128 16-bit
 * inputs are 16 KiB, which leaves room in the L1 cache for rows. */
enum { DECODE_K = 128 };

struct block_scales {
    float scales[TILE], zeros[TILE], offsets[TILE];
};

struct block_place {
    int64_t matrix, tile, segment, block;
};

/* Loads the scales (or offsets) of a block's outputs. If they are steps, they are multiplied by
 * their units. */
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
        place.block = lesser(k / c->block, c->blocks - 1);
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

static float value_of(const struct coded *c, uint32_t code)
{
    switch (c->kind) {
    case CODE_2:
    case CODE_3:
    case CODE_4:
    case CODE_5: return c->values[code];
    case CODE_I8: return (float)(int8_t)code;
    case CODE_E4M3: return dtype_value(DT_E4M3, code);
    case CODE_6: break;
    }
    return (float)((int32_t)code - c->middle);
}

/* Dequantises a row as for products: the values are rounded to the dtype that products read. */
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
