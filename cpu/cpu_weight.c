// SPDX-License-Identifier: Apache-2.0
/* Weights are checked, and then packed once into tiles that are read sequentially (cpu_kernels.h).
 * K is divided into equal segments, each padded to whole steps of the product's kernel. */
#include "cpu/cpu_internal.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading the parts -------------------------------------------------------------------- */

/* 64 well-mixed bits from a counter (splitmix64's finaliser). */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Approximately normal: the sum of four uniform values, scaled to unit variance. */
static void dummy_row(uint64_t seed, float scale, int64_t row, float *out, int64_t n)
{
    // Four bytes have standard deviation sqrt(4 * (256^2 - 1) / 12)
    const float unit = scale / 147.8f;
    for (int64_t i = 0; i < n; i += 2) {
        uint64_t bits = mix(seed ^ mix((uint64_t)row << 32 ^ (uint64_t)i));
        for (int64_t j = i; j < i + 2 && j < n; j++, bits >>= 32) {
            uint32_t b = (uint32_t)bits;
            uint32_t sum = (b & 255) + (b >> 8 & 255) + (b >> 16 & 255) + (b >> 24);
            out[j] = ((float)sum - 510.0f) * unit;
        }
    }
}

/* Row `row` of the part, as fp32. `global_row` is the seed of dummy values. */
static void part_row(const struct weight_part *p, const struct weight_desc *desc, int64_t row,
                     int64_t global_row, float *out)
{
    if (weight_part_is_dummy(p)) {
        dummy_row(desc->dummy_seed, desc->dummy_scale, global_row, out, p->n_cols);
        return;
    }
    weight_part_read(p, row, 0, p->n_cols, out);
}

/* ---- checks ------------------------------------------------------------------------------- */

/* Sizes and parts must match before anything is allocated. */
static enum status check_desc(const struct weight_desc *d, struct err *err)
{
    int32_t n = d->n_experts > 0 ? d->n_experts : 1;
    if (d->n_out < 1 || d->n_in < 1 || d->n_out > INT32_MAX || d->n_in > INT32_MAX) {
        return err_set(err, ERR_INVALID, "%s: a size is not positive", d->name);
    }
    if (d->dtype != DT_F32 && d->dtype != DT_BF16 && d->dtype != DT_F16) {
        return err_set(err, ERR_UNSUPPORTED, "%s: this type of weight is not supported", d->name);
    }
    int64_t rows = 0;
    for (int32_t i = 0; i < d->n_parts; i++) {
        const struct weight_part *p = &d->parts[i];
        if (p->n_cols != d->n_in || p->n_rows < 0) {
            return err_set(err, ERR_INVALID, "%s: a part is %lld wide instead of %lld", d->name,
                           (long long)p->n_cols, (long long)d->n_in);
        }
        rows += p->n_rows;
    }
    if (rows != d->n_out * n) {
        return err_set(err, ERR_INVALID, "%s: the parts have %lld rows instead of %lld", d->name,
                       (long long)rows, (long long)d->n_out * n);
    }
    int32_t segments = d->k_segments > 0 ? d->k_segments : 1;
    if ((segments & (segments - 1)) != 0 || d->n_in % segments != 0 || segments > 1024) {
        return err_set(err, ERR_INVALID, "%s: %lld inputs do not make %d equal segments", d->name,
                       (long long)d->n_in, segments);
    }
    return OK;
}

/* ---- packing ------------------------------------------------------------------------------ */

/* One job of the thread pool. Its items are tiles. */
struct pack_job {
    const struct cpu_backend *cpu;
    const struct weight_desc *desc;
    struct weight *w;
    const int64_t *part_first;                  // [n_parts]: global row at which each part starts
    _Atomic(const struct weight_part *) broken; // a part that has a value that is NaN or infinite
};

/* Finds the part by its first row; the parts are sorted by first row. */
static const struct weight_part *find_part(const struct pack_job *job, int64_t row, int64_t *local)
{
    int32_t low = 0, high = job->desc->n_parts - 1;
    while (low < high) {
        int32_t mid = low + (high - low + 1) / 2;
        if (job->part_first[mid] <= row) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    *local = row - job->part_first[low];
    return &job->desc->parts[low];
}

static uint32_t stored_bits(enum dtype dtype, float x)
{
    return dtype == DT_BF16 ? bf16_of(x) : f16_of(x);
}

/* The padding between segments stays zero. */
static void pack_row(const struct weight *w, int64_t tile_row, const float *row, char *tile)
{
    for (int32_t s = 0; s < w->k_segments; s++) {
        for (int64_t k = 0; k < w->segment; k++) {
            int64_t at = packed_at(w, s * w->segment_padded + k, tile_row);
            float x = row[s * w->segment + k];
            if (w->dtype == DT_F32) {
                ((float *)tile)[at] = x;
            } else {
                ((uint16_t *)tile)[at] = (uint16_t)stored_bits(w->dtype, x);
            }
        }
    }
}

/* Transposes: an element of `size` bytes of each row goes to the columns of the tile. Only a few
 * rows are processed at a time, so that the cache lines being written stay in the L1 cache until
 * they are full. */
static inline void turn(const char *const *rows, int32_t n_rows, int64_t width, int64_t n, char *to,
                        const size_t size)
{
    enum { AT_A_TIME = 16 };
    for (int64_t first = 0; first < n; first += AT_A_TIME) {
        int64_t end = lesser(first + AT_A_TIME, n);
        for (int32_t j = 0; j < n_rows; j++) {
            for (int64_t u = first; u < end; u++) {
                memcpy(to + (size_t)(u * width + j) * size, rows[j] + (size_t)u * size, size);
            }
        }
    }
}

/* The same for bf16, in pairs of inputs. If the number of inputs is odd, the last one is half a
 * pair. */
static void turn_pairs(const struct weight *w, const char *const *rows, int32_t n_rows, char *to)
{
    const int64_t n = w->segment, step = w->tiled ? PAIR_BYTES : w->panels * PAIR_BYTES;
    const int64_t panel = w->tiled ? PANEL_BYTES : PAIR_BYTES;
    for (int64_t k = 0; k < n; k += K_UNIT, to += w->panels * PANEL_BYTES) {
        int64_t n_bytes = lesser(n - k, K_UNIT) * 2;
        for (int32_t j = 0; j < n_rows; j++) {
            const char *from = rows[j] + k * 2;
            char *column = to + j / PANEL * panel + j % PANEL * 4;
            int64_t i = 0;
            for (; i + 4 <= n_bytes; i += 4, column += step) {
                memcpy(column, from + i, 4);
            }
            memcpy(column, from + i, (size_t)(n_bytes - i));
        }
    }
}

/* Packs a tile whose rows are stored in the packed dtype, without converting them. Returns false if
 * they are not. */
static bool pack_stored(const struct pack_job *job, int64_t matrix, int64_t tile, char *to)
{
    const struct weight *w = job->w;
    const char *rows[TILE];
    int64_t width = (int64_t)w->panels * PANEL, first = tile * width, local;
    int32_t n_rows = (int32_t)lesser(w->n_out - first, width);
    size_t size = dtype_bytes(w->dtype);
    for (int32_t j = 0; j < n_rows; j++) {
        const struct weight_part *p = find_part(job, matrix * w->n_out + first + j, &local);
        rows[j] = weight_part_stored(p, w->dtype, local);
        if (!rows[j]) {
            return false;
        }
    }
    for (int32_t s = 0; s < w->k_segments; s++) {
        char *at = to + (size_t)(s * w->segment_padded * width) * size;
        switch (w->dtype) {
        case DT_BF16: turn_pairs(w, rows, n_rows, at); break;
        case DT_F16: turn(rows, n_rows, width, w->segment, at, 2); break;
        default: turn(rows, n_rows, width, w->segment, at, 4); break;
        }
        for (int32_t j = 0; j < n_rows; j++) {
            rows[j] += (size_t)w->segment * size;
        }
    }
    return true;
}

/* NaN is allowed in plain weights. In quantised weights it means that the file is broken. */
static bool has_nan(const float *row, int64_t n)
{
    bool found = false;
    for (int64_t i = 0; i < n; i++) {
        found = found || isnan(row[i]);
    }
    return found;
}

/* Copies a tile if it is stored in the packed dtype; otherwise converts it by way of fp32. */
static void pack_tile(void *arg, int32_t item, int32_t thread)
{
    struct pack_job *job = arg;
    struct weight *w = job->w;
    int64_t matrix = item / w->n_tiles, tile = item % w->n_tiles;
    char *to = w->packed + matrix * w->matrix_bytes + tile * w->tile_bytes;
    if (!w->coded && pack_stored(job, matrix, tile, to)) {
        return;
    }
    float *row = (float *)job->cpu->scratch[thread].p;
    for (int64_t j = 0; j < w->panels * PANEL; j++) {
        int64_t out = tile * w->panels * PANEL + j, local;
        if (out >= w->n_out) {
            break; // the rest stays zero
        }
        int64_t global = matrix * w->n_out + out;
        const struct weight_part *part = find_part(job, global, &local);
        if (w->coded) {
            if (!cpu_coded_pack_row(w, part, local, matrix, tile, j)) {
                job->broken = part;
            }
            continue;
        }
        part_row(part, job->desc, local, global, row);
        if (!weight_part_is_plain(part) && has_nan(row, w->n_in)) {
            job->broken = part;
        }
        pack_row(w, j, row, to);
    }
}

/* Tiles are narrow where wide tiles would leave threads without work. */
static int32_t choose_panels(const struct cpu_backend *cpu, int64_t n_out)
{
    int32_t panels = MAX_PANELS;
    int64_t wanted = 2 * (int64_t)pool_n_threads(cpu->pool);
    while (panels > 1 && n_out / (panels * PANEL) < wanted) {
        panels /= 2;
    }
    return pool_n_threads(cpu->pool) > 1 ? panels : MAX_PANELS;
}

/* Determines the layout, allocates the memory, then packs all tiles in parallel. */
static enum status pack(struct cpu_backend *cpu, const struct weight_desc *desc, struct weight *w,
                        struct err *err)
{
    w->k_segments = desc->k_segments > 0 ? desc->k_segments : 1;
    w->segment = desc->n_in / w->k_segments;
    w->segment_padded = round_up(w->segment, desc->dtype == DT_BF16 ? K_UNIT : 1);
    w->panels = choose_panels(cpu, desc->n_out);
    w->tiled = desc->dtype == DT_BF16 && cpu->kernels->tiled;
    w->n_tiles = (desc->n_out + w->panels * PANEL - 1) / (w->panels * PANEL);
    TRY(cpu_coded_open(cpu, desc, w));
    int64_t n = w->segment_padded * w->k_segments * w->panels * PANEL;
    w->tile_bytes = w->coded ? 0 : (size_t)n * dtype_bytes(w->dtype); // codes vary in size
    if ((!w->coded && !mem_mul(w->tile_bytes, (size_t)w->n_tiles, &w->matrix_bytes)) ||
        !mem_mul(w->matrix_bytes, (size_t)w->n_matrices, &w->packed_bytes) ||
        w->n_tiles * w->n_matrices >= 1 << 20) {
        return ERR_NOMEM;
    }
    w->packed = cpu_memory(cpu, w->packed_bytes);
    if (!w->packed) {
        return ERR_NOMEM;
    }
    size_t row_bytes = (size_t)cpu_row_bytes(cpu, w);
    TRY(cpu_need_scratch(cpu, (size_t)desc->n_in * sizeof(float)));
    TRY(cpu_need_scratch(cpu, cpu_gemm_scratch(w, PACK_ROWS) + row_bytes * 64));
    TRY(cpu_need_scratch(cpu, cpu_blocks_scratch(cpu, w)));
    if ((int64_t)row_bytes > cpu->max_k_bytes) {
        cpu->max_k_bytes = (int64_t)row_bytes;
        TRY(cpu_need_rows(cpu));
    }
    if (w->kind == WEIGHT_EXPERTS) {
        cpu->max_moe_k = greater((int64_t)row_bytes, cpu->max_moe_k);
        cpu->max_moe_n = greater(w->n_out, cpu->max_moe_n);
        if (w->k_segments > cpu->max_moe_segments) {
            cpu->max_moe_segments = w->k_segments;
        }
        TRY(cpu_need_moe(cpu));
        // Memory for the levels of the tree of sums.
        TRY(cpu_need_scratch(cpu, (size_t)w->n_out * sizeof(float) * 12));
    }
    int64_t *first = xcalloc((size_t)desc->n_parts, sizeof *first);
    for (int32_t i = 1; i < desc->n_parts; i++) {
        first[i] = first[i - 1] + desc->parts[i - 1].n_rows;
    }
    struct pack_job job = {.cpu = cpu, .desc = desc, .w = w, .part_first = first};
    pool_run(cpu->pool, (int32_t)(w->n_tiles * w->n_matrices), pack_tile, &job);
    free(first);
    const struct weight_part *broken = job.broken;
    if (broken) {
        const char *name = broken->codec.name ? broken->codec.name : desc->name;
        return err_set(err, ERR_FORMAT, "tensor %s of the format %s: a weight is not a number",
                       name, or_empty(broken->codec.format));
    }
    return OK;
}

/* Concatenates the parts of the bias, each of which is a row or a column; n_out values in total. */
static enum status read_bias(struct cpu_backend *cpu, const struct weight_desc *desc,
                             struct weight *w, struct err *err)
{
    int64_t wanted = w->n_out * w->n_matrices, n = 0;
    w->bias = cpu_memory(cpu, (size_t)wanted * sizeof *w->bias);
    if (!w->bias) {
        return ERR_NOMEM;
    }
    for (int32_t i = 0; n < wanted; i++) {
        const struct weight_part *p = &desc->bias[i];
        int64_t count = p->n_rows * p->n_cols;
        if (p->n_rows < 1 || p->n_cols < 1 || count > wanted - n) {
            return err_set(err, ERR_INVALID, "%s: the bias does not have %lld numbers", desc->name,
                           (long long)wanted);
        }
        for (int64_t r = 0; r < p->n_rows; r++) {
            part_row(p, desc, r, -1 - n - r, w->bias + n + r * p->n_cols);
        }
        n += count;
    }
    return OK;
}

/* Vectors and adapters are kept in fp32, row by row. Adapters are rounded to their dtype first. */
static enum status read_plain(struct cpu_backend *cpu, const struct weight_desc *desc,
                              struct weight *w)
{
    int64_t n = 0;
    w->vector = cpu_memory(cpu, cpu_weight_bytes(w));
    if (!w->vector) {
        return ERR_NOMEM;
    }
    for (int32_t i = 0; i < desc->n_parts; i++) {
        for (int64_t r = 0; r < desc->parts[i].n_rows; r++, n++) {
            part_row(&desc->parts[i], desc, r, n, w->vector + n * desc->n_in);
        }
    }
    if (w->kind == WEIGHT_ADAPTER) {
        cpu_adapter_round(w->dtype, w->vector, n * desc->n_in);
        return cpu_need_adapter(cpu, greater(w->n_in, w->n_out));
    }
    return OK;
}

/* Weights are kept in a list and freed with the backend. */
enum status cpu_weight_open(struct backend *be, const struct weight_desc *desc, struct weight **out,
                            struct err *err)
{
    struct cpu_backend *cpu = cpu_of(be);
    *out = NULL;
    TRY(check_desc(desc, err));
    struct weight *w = xcalloc(1, sizeof *w);
    *w = (struct weight){
        .next = cpu->weights,
        .kind = desc->kind,
        .dtype = desc->dtype,
        .n_out = desc->n_out,
        .n_in = desc->n_in,
        .n_matrices = desc->n_experts > 0 ? desc->n_experts : 1,
    };
    cpu->weights = w;
    enum status st = OK;
    if (desc->kind == WEIGHT_VECTOR || desc->kind == WEIGHT_ADAPTER) {
        st = read_plain(cpu, desc, w);
    } else {
        st = cpu_inputs_open(cpu, desc, w);
        if (st == OK) {
            st = pack(cpu, desc, w, err);
        }
    }
    if (st == OK && desc->bias) {
        st = read_bias(cpu, desc, w, err);
    }
    if (st == ERR_NOMEM) {
        return err_set(err, st, "%s: not enough memory", desc->name);
    }
    *out = st == OK ? w : NULL;
    return st;
}

size_t cpu_weight_bytes(const struct weight *w)
{
    if (w->kind == WEIGHT_VECTOR || w->kind == WEIGHT_ADAPTER) {
        return (size_t)(w->n_matrices * w->n_out * w->n_in) * sizeof *w->vector;
    }
    return w->packed_bytes;
}

void cpu_weights_close(struct cpu_backend *cpu)
{
    while (cpu->weights) {
        struct weight *w = cpu->weights;
        cpu->weights = w->next;
        free(w->coded);
        free(w);
    }
}

/* Reads a row of an embedding, which is the inverse of packing. */
void cpu_weight_row(const struct cpu_backend *cpu, const struct weight *w, int64_t row, float *out)
{
    if (w->coded) {
        cpu_coded_row(cpu, w, row, out);
        return;
    }
    int64_t width = (int64_t)w->panels * PANEL;
    const char *tile = w->packed + row / width * w->tile_bytes;
    for (int32_t s = 0; s < w->k_segments; s++) {
        for (int64_t k = 0; k < w->segment; k++) {
            int64_t at = packed_at(w, s * w->segment_padded + k, row % width);
            float *to = &out[s * w->segment + k];
            switch (w->dtype) {
            case DT_BF16: *to = bf16_to_f32(((const uint16_t *)tile)[at]); break;
            case DT_F16: *to = f16_to_f32(((const uint16_t *)tile)[at]); break;
            default: *to = ((const float *)tile)[at]; break;
            }
        }
    }
}
