// SPDX-License-Identifier: Apache-2.0
/* One tile of outputs for some rows, and the packing of rows. A row is summed over K in one
 * fixed order (cpu_kernels.h), segment by segment, so its bits do not depend on how a product is
 * split. */
#include "cpu/cpu_internal.h"
#include "engine/base/minmax.h"

#include <string.h>

/* K_BLOCK: number of inputs that are processed at a time if the rows pass over the weights more
 * than once. 64 outputs x 256 bf16 inputs are 32 KiB. With few rows, the L1 cache holds what is in
 * use and, except with dot-product instructions, what is being prefetched (cpu_kernels.h,
 * few_k). */
enum { K_BLOCK = 256 };

static int64_t k_block(const struct cpu_backend *cpu, const struct weight *w, int32_t n_rows)
{
    const struct cpu_kernels *k = cpu->kernels;
    if (n_rows <= k->pass_rows) {
        return w->segment_padded;
    }
    return n_rows <= FEW_ROWS ? k->few_k : K_BLOCK;
}

bool cpu_rows_are_bf16(const struct cpu_backend *cpu, const struct weight *w)
{
    return w->dtype == DT_BF16 && cpu->kernels->bf16_rows;
}

static int64_t element_bytes(const struct cpu_backend *cpu, const struct weight *w)
{
    return cpu_rows_are_bf16(cpu, w) ? 2 : 4;
}

/* The size is an odd number of cache lines, so that the same column of consecutive rows falls into
 * different sets of the cache. */
int64_t cpu_row_bytes(const struct cpu_backend *cpu, const struct weight *w)
{
    int64_t n = round_up(w->segment_padded * w->k_segments * element_bytes(cpu, w), 64);
    return n % 128 == 0 ? n + 64 : n;
}

static void round_some(const struct cpu_backend *cpu, const struct weight *w, const float *from,
                       int64_t n, char *to)
{
    switch (w->dtype) {
    case DT_BF16: cpu->kernels->round_bf16(from, to, n); break;
    case DT_F16: cpu->kernels->round_f16(from, (float *)to, n); break;
    default: memcpy(to, from, (size_t)n * sizeof *from); break;
    }
}

void cpu_pack_row(const struct cpu_backend *cpu, const struct weight *w, int32_t matrix,
                  const float *x, const struct input_range *ranges, char *out)
{
    enum { AT_A_TIME = 256 };
    int64_t size = element_bytes(cpu, w), pad = w->segment_padded - w->segment;
    struct input_group group = {.at = -1};
    for (int32_t s = 0; s < w->k_segments; s++, out += pad * size) {
        int64_t end = (s + 1) * w->segment, n = w->segment;
        for (int64_t k = end - n; k < end; k += n, out += n * size) {
            float rounded[AT_A_TIME];
            const float *from = x + k;
            if (w->inputs.numbers != INPUT_AS_IT_IS) {
                int64_t most = lesser(end - k, AT_A_TIME);
                n = cpu_round_inputs(w, matrix, x, ranges, k, most, rounded, &group);
                from = rounded;
            }
            round_some(cpu, w, from, n, out);
        }
        if (pad > 0) {
            memset(out, 0, (size_t)(pad * size));
        }
    }
}

int32_t cpu_tree_levels(const struct weight *w)
{
    int32_t levels = 1;
    for (int32_t n = w->k_segments; n > 1; n /= 2) {
        levels++;
    }
    return levels;
}

size_t cpu_gemm_scratch(const struct weight *w, int32_t n_rows)
{
    return (size_t)cpu_tree_levels(w) * (size_t)n_rows * TILE * sizeof(float);
}

static gemm_fn *gemm_of(const struct cpu_backend *cpu, const struct weight *w)
{
    switch (w->dtype) {
    case DT_BF16: return cpu->kernels->gemm_bf16;
    case DT_F16: return cpu->kernels->gemm_f16;
    default: return cpu->kernels->gemm_f32;
    }
}

static void segment_sums(const struct cpu_backend *cpu, const struct gemm_tile *t, int32_t s,
                         float *c)
{
    const struct weight *w = t->weight;
    gemm_fn *gemm = gemm_of(cpu, w);
    int64_t size = element_bytes(cpu, w), width = (int64_t)w->panels * PANEL;
    const char *tile =
        w->packed + (size_t)t->matrix * w->matrix_bytes + (size_t)t->tile * w->tile_bytes;
    int64_t block = k_block(cpu, w, t->n_rows);
    if (w->coded) {
        cpu_coded_sums(cpu, t, s, gemm, size, c);
        return;
    }
    for (int64_t k = 0; k < w->segment_padded; k += block) {
        int64_t n = lesser(w->segment_padded - k, block);
        int64_t at = s * w->segment_padded + k;
        gemm(t->rows + at * size, t->row_bytes / size, t->n_rows,
             tile + (size_t)(at * width) * dtype_bytes(w->dtype), w->panels, n, c, k == 0);
    }
}

/* Adds the bias to the sums c and stores them to y. Changes c. */
static void store(const struct cpu_backend *cpu, const struct gemm_tile *t, float *c, float *y)
{
    const struct cpu_kernels *k = cpu->kernels;
    const struct weight *w = t->weight;
    int64_t width = (int64_t)w->panels * PANEL, first = t->tile * width;
    int64_t n = lesser(w->n_out - first, width);
    const float *bias = t->bias ? t->bias + first : NULL;
    for (int32_t i = 0; i < t->n_rows; i++) {
        float *from = c + (int64_t)i * TILE, *to = y + i * t->y_stride + first;
        if (bias) {
            k->add_scaled(from, bias, 1.0f, n);
        }
        if (t->accumulate) {
            k->add_scaled(to, from, 1.0f, n);
        } else {
            memcpy(to, from, (size_t)n * sizeof *to);
        }
    }
}

/* Segments are joined as a balanced tree: after segment s (counted from 1), ctz(s) levels are
 * merged. c has one buffer per level that is open. */
void cpu_gemm_tile(const struct cpu_backend *cpu, const struct gemm_tile *t)
{
    int64_t n = (int64_t)t->n_rows * TILE;
    int32_t level = 0;
    for (int32_t s = 0; s < t->weight->k_segments; s++) {
        float *c = t->scratch + level * n;
        segment_sums(cpu, t, s, c);
        if (t->split_stride != 0) {
            store(cpu, t, c, t->y + s * t->split_stride);
            continue;
        }
        level++;
        for (int32_t bits = s + 1; bits % 2 == 0; bits /= 2, level--) {
            cpu->kernels->add_scaled(t->scratch + (level - 2) * n, t->scratch + (level - 1) * n,
                                     1.0f, n);
        }
    }
    if (t->split_stride == 0) {
        store(cpu, t, t->scratch, t->y);
    }
}
