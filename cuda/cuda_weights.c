// SPDX-License-Identifier: Apache-2.0
/* Opens a weight: checks it, chooses its layout on the device, and makes dummy values. */
#include "cuda/cuda_weights.h"
#include "cuda/adapter.h"
#include "cuda/coded_pack.h"
#include "cuda/cuda_upload.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

/* The parts must add up to the rows and columns of the description. */
static enum status check_parts(const struct weight_desc *d, struct err *err)
{
    if (d->n_out <= 0 || d->n_in <= 0 || d->n_experts <= 0 || d->n_parts <= 0 ||
        d->n_out > INT32_MAX || d->n_in > INT32_MAX) {
        return err_set(err, ERR_INVALID, "weight %s: a size is not positive", d->name);
    }
    int64_t rows = 0;
    for (int32_t i = 0; i < d->n_parts; i++) {
        const struct weight_part *p = &d->parts[i];
        if (p->n_cols != d->n_in || p->n_rows <= 0) {
            return err_set(err, ERR_INVALID,
                           "weight %s: a part is %lld x %lld, but the weight is %lld wide", d->name,
                           (long long)p->n_rows, (long long)p->n_cols, (long long)d->n_in);
        }
        rows += p->n_rows;
    }
    if (rows != d->n_out * d->n_experts) {
        return err_set(err, ERR_INVALID, "weight %s: the parts have %lld rows, not %lld", d->name,
                       (long long)rows, (long long)d->n_out * d->n_experts);
    }
    return OK;
}

/* Fills the memory from the file, or with random numbers made on the device. */
static enum status fill(struct cuda *be, void *to, enum dtype dtype, const struct weight_part *part,
                        uint64_t seed, float scale)
{
    if (!weight_part_is_dummy(part)) {
        return cuda_upload_part(be, to, dtype, part);
    }
    CUDA_TRY(be, k_fill_normal(be->stream, to, dtype, part->n_rows * part->n_cols, seed, scale));
    return OK;
}

/* The bias is in one or more parts, whose lengths must add up to that of the bias. */
static enum status open_bias(struct cuda *be, const struct weight_desc *d, struct weight *w,
                             struct err *err)
{
    const int64_t n = w->n_out * w->n_experts;
    TRY(cuda_alloc(be, (size_t)n * sizeof(float), (void **)&w->bias));
    int64_t at = 0;
    for (int32_t i = 0; at < n; i++) {
        const struct weight_part *p = &d->bias[i];
        const int64_t length = p->n_rows * p->n_cols;
        if (length <= 0 || length > n - at) {
            return err_set(err, ERR_INVALID, "weight %s: its bias has the wrong length", d->name);
        }
        TRY(fill(be, w->bias + at, DT_F32, p, d->dummy_seed + 0x9e37 + (uint64_t)i,
                 d->dummy_scale));
        at += length;
    }
    if (w->kind == WEIGHT_LINEAR && w->dtype != DT_F32) {
        TRY(cuda_alloc(be, (size_t)n * dtype_bytes(w->dtype), &w->bias_act));
        CUDA_TRY(be, k_convert(be->stream, w->bias_act, w->dtype, w->bias, DT_F32, n));
    }
    return OK;
}

/* The message contains the size, because memory is usually what is missing. */
static enum status open_data(struct cuda *be, const struct weight_desc *d, struct weight *w,
                             struct err *err)
{
    size_t n = 0;
    if (!mem_mul((size_t)w->n_out * (size_t)w->n_experts, (size_t)w->n_in, &n) ||
        !mem_mul(n, dtype_bytes(w->dtype), &n)) {
        return err_set(err, ERR_NOMEM, "weight %s is too large", d->name);
    }
    const enum status st = cuda_alloc(be, n, &w->data);
    if (st != OK) {
        return err_set(err, st, "weight %s: no %zu MiB of device memory are left", d->name,
                       n >> 20);
    }
    char *to = w->data;
    for (int32_t i = 0; i < d->n_parts; i++) {
        const struct weight_part *p = &d->parts[i];
        TRY(fill(be, to, w->dtype, p, d->dummy_seed ^ (uint64_t)i * 0x9e3779b97f4a7c15ULL,
                 d->dummy_scale));
        to += (size_t)(p->n_rows * p->n_cols) * dtype_bytes(w->dtype);
    }
    return OK;
}

/* ---- quantised weights ----------------------------------------------------------------------- */

/* Makes separate allocations for codes, scales and zeros. Scales per row or per block of 128 are
 * also made available to cuBLASLt. */
static enum status upload_coded(struct cuda *be, const struct coded_source *s,
                                struct coded_matrix *m)
{
    const int64_t n = (int64_t)m->n_tiles * m->n_experts;
    const size_t tiles = coded_tiles_bytes(m);
    const size_t scales = (size_t)m->record_bytes * (size_t)m->n_records;
    const size_t zeros = scales / dtype_bytes(m->scale);
    void *memory[3] = {NULL, NULL, NULL};
    TRY(cuda_alloc(be, (size_t)n * tiles, &memory[0]));
    TRY(cuda_alloc(be, (size_t)n * scales, &memory[1]));
    TRY(cuda_upload_units(be, memory[0], tiles, n, coded_fill_tiles, s));
    TRY(cuda_upload_units(be, memory[1], scales, n, coded_fill_scales, s));
    if (s->has_zeros) {
        TRY(cuda_alloc(be, (size_t)n * zeros, &memory[2]));
        TRY(cuda_upload_units(be, memory[2], zeros, n, coded_fill_zeros, s));
    }
    m->tiles = memory[0];
    m->scales = memory[1];
    m->zeros = memory[2];
    // There is one scale per row.
    if (m->code == CODED_E4M3 && m->n_records == 1 && m->record_shift > 0) {
        m->product_scales = memory[1];
    }
    size_t n_blocks = 0;
    float *blocks = coded_product_scales(s, &m->product_blocks, &n_blocks);
    if (blocks) {
        void *to = NULL;
        enum status st = cuda_alloc(be, n_blocks * sizeof *blocks, &to);
        st = st == OK ? cuda_write(&be->base, (struct dmem){to}, blocks, n_blocks * sizeof *blocks)
                      : st;
        m->product_scales = to;
        free(blocks);
        return st;
    }
    return OK;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* True if all parts have the same rule. Otherwise rows are not rounded, because all parts of a
 * matrix read the same rows. */
static bool is_one_rule(const struct weight_desc *d)
{
    const struct input_rule *rule = &d->parts[0].inputs;
    for (int32_t i = 1; i < d->n_parts; i++) {
        const struct input_rule *other = &d->parts[i].inputs;
        if (other->numbers != rule->numbers || other->group != rule->group ||
            other->from_row != rule->from_row || other->power_of_two != rule->power_of_two ||
            other->limit != rule->limit) {
            return false;
        }
    }
    return true;
}

/* The largest stored scale of n parts. */
static float largest_scale(const struct weight_part *parts, int32_t n)
{
    float scale = 0.0f;
    for (int32_t i = 0; i < n; i++) {
        scale = greater(parts[i].inputs.scale, scale);
    }
    return scale;
}

/* An expert that was never reached during calibration has no scale and gets the largest of all. */
static enum status open_input_scales(struct cuda *be, const struct weight_desc *d, struct weight *w)
{
    const int32_t n = d->n_experts, per_expert = d->n_parts / n;
    const float largest = largest_scale(d->parts, d->n_parts);
    float *scales = xmalloc((size_t)n * sizeof *scales);
    for (int32_t e = 0; e < n; e++) {
        const float scale = largest_scale(d->parts + (size_t)e * (size_t)per_expert, per_expert);
        scales[e] = scale > 0.0f ? scale : largest;
    }
    enum status st = cuda_alloc(be, (size_t)n * sizeof *scales, (void **)&w->input_scales);
    if (st == OK) {
        st = cuda_write(&be->base, (struct dmem){w->input_scales}, scales,
                        (size_t)n * sizeof *scales);
    }
    free(scales);
    return st;
}

/* How x is rounded to E4M3 before the product: with one scale per row, one per 128 inputs, or a
 * stored one. A matrix takes the largest stored scale of its parts. */
static enum status read_inputs(struct cuda *be, const struct weight_desc *d, struct weight *w)
{
    struct input_rule rule = d->parts[0].inputs;
    const bool is_matrix =
        d->kind == WEIGHT_LINEAR || (d->kind == WEIGHT_EXPERTS && d->n_parts % d->n_experts == 0);
    if (!is_matrix || d->dtype == DT_F32 || rule.numbers != INPUT_E4M3 || d->n_in % 8 != 0 ||
        (rule.group != 0 && rule.group != 128) ||
        (rule.group > 0 && d->parts[0].first_col % rule.group != 0) || !is_one_rule(d)) {
        return OK;
    }
    rule.scale = rule.from_row ? 0.0f : largest_scale(d->parts, d->n_parts);
    w->inputs = rule;
    if (d->kind == WEIGHT_EXPERTS) {
        return rule.from_row ? OK : open_input_scales(be, d, w);
    }
    be->max_rounded_in = greater(d->n_in, be->max_rounded_in);
    return OK;
}

/* Sets *taken to false if the weight must be stored in floating point. */
static enum status open_coded(struct cuda *be, const struct weight_desc *d, struct weight *w,
                              bool *taken, struct err *err)
{
    struct coded_source s;
    *taken = coded_source_init(&s, d);
    if (!*taken) {
        return OK;
    }
    struct coded_matrix m = s.matrix;
    w->has_blocks = coded_has_blocks(&s);
    enum status st = upload_coded(be, &s, &m);
    if (st != OK) {
        st = err_set(err, st, "weight %s: %zu MiB of device memory could not be filled", d->name,
                     coded_tiles_bytes(&m) * (size_t)m.n_tiles * (size_t)m.n_experts >> 20);
    } else if (atomic_load(&s.has_nan)) {
        st = err_set(err, ERR_FORMAT, "weight %s: one of its FP8 numbers is NaN", d->name);
    }
    coded_source_deinit(&s);
    w->coded = m;
    const size_t n = (size_t)m.n_out * (size_t)m.n_in * sizeof(uint16_t);
    if (w->kind == WEIGHT_LINEAR && n > be->max_expanded_bytes) {
        be->max_expanded_bytes = n;
    }
    return st;
}

/* Matrices of up to ADAPTER_MAX_RANKS outputs may be the first of their pair. */
static void note_adapters(struct cuda *be, const struct weight *w)
{
    if (be->n_adapters == 0 || w->n_experts < be->n_adapters) {
        be->n_adapters = w->n_experts;
    }
    if (w->n_out <= ADAPTER_MAX_RANKS) {
        const int32_t n = adapter_sums((int32_t)w->n_in, (int32_t)w->n_out);
        be->max_adapter_sums = greater(n, be->max_adapter_sums);
    }
}

/* Vectors are stored in fp32. Quantised matrices stay quantised if there is a kernel for them; all
 * others are converted to the model's dtype. */
enum status cuda_weight_open(struct backend *base, const struct weight_desc *desc,
                             struct weight **out, struct err *err)
{
    struct cuda *be = cuda_of(base);
    *out = NULL;
    TRY(cuda_enter(be));
    TRY(check_parts(desc, err));
    const bool is_vector = desc->kind == WEIGHT_VECTOR;
    if (desc->dtype != DT_F32 && desc->dtype != DT_BF16 && desc->dtype != DT_F16) {
        return err_set(err, ERR_UNSUPPORTED, "weight %s: an unknown dtype", desc->name);
    }
    struct weight *w = xcalloc(1, sizeof *w);
    w->kind = desc->kind;
    w->dtype = is_vector ? DT_F32 : desc->dtype;
    w->n_out = desc->n_out;
    w->n_in = desc->n_in;
    w->n_experts = desc->n_experts;
    w->next = be->weights; // close frees it, even if opening fails half-way
    be->weights = w;
    bool is_coded = false;
    TRY(read_inputs(be, desc, w));
    TRY(open_coded(be, desc, w, &is_coded, err));
    if (!is_coded) {
        TRY(open_data(be, desc, w, err));
    }
    if (desc->bias) {
        TRY(open_bias(be, desc, w, err));
    }
    if (w->kind == WEIGHT_EXPERTS && w->n_out + w->n_in > be->max_expert_width) {
        be->max_expert_width = w->n_out + w->n_in;
    }
    if (w->kind == WEIGHT_ADAPTER) {
        note_adapters(be, w);
    }
    *out = w;
    return OK;
}

size_t cuda_weight_bytes(const struct weight *w)
{
    const struct coded_matrix *m = weight_coded(w);
    if (!m) {
        const size_t n_matrices = w->n_experts > 0 ? (size_t)w->n_experts : 1;
        return n_matrices * (size_t)(w->n_out * w->n_in) * dtype_bytes(w->dtype);
    }
    const size_t scales = (size_t)m->record_bytes * (size_t)m->n_records;
    const size_t zeros = m->zeros ? scales / dtype_bytes(m->scale) : 0;
    return (size_t)m->n_tiles * (size_t)m->n_experts * (coded_tiles_bytes(m) + scales + zeros);
}

/* Converted here, since the buffers of uploads are gone once the model is loaded. */
enum status cuda_weight_adapter_set(struct backend *base, const struct weight *w, int32_t index,
                                    const float *values)
{
    const int64_t n = w->n_out * w->n_in;
    const size_t n_bytes = (size_t)n * dtype_bytes(w->dtype);
    if (w->kind != WEIGHT_ADAPTER || !w->data || index < 0 || index >= w->n_experts) {
        return ERR_INVALID;
    }
    void *numbers = xmalloc(n_bytes);
    for (int64_t i = 0; i < n; i++) {
        cuda_store_number(numbers, w->dtype, i, values[i]);
    }
    const struct dmem to = {(char *)w->data + (size_t)index * n_bytes};
    const enum status st = cuda_write(base, to, numbers, n_bytes);
    free(numbers);
    return st;
}

/* Computes the angles of all positions on the device. */
enum status cuda_rope_open(struct backend *base, const struct rope_desc *desc,
                           struct rope_table **out)
{
    struct cuda *be = cuda_of(base);
    *out = NULL;
    TRY(cuda_enter(be));
    if (desc->n_pairs < 0 || desc->max_pos <= 0) {
        return ERR_INVALID;
    }
    struct rope_table *r = xcalloc(1, sizeof *r);
    r->view.n_pairs = desc->n_pairs;
    r->view.max_pos = desc->max_pos;
    r->view.interleaved = desc->interleaved;
    r->next = be->ropes;
    be->ropes = r;
    if (desc->n_pairs > 0) {
        void *inv_freq = NULL, *table = NULL;
        const size_t n = (size_t)desc->n_pairs * (size_t)desc->max_pos;
        TRY(cuda_alloc(be, (size_t)desc->n_pairs * sizeof(float), &inv_freq));
        TRY(cuda_alloc(be, n * 2 * sizeof(float), &table));
        CUDA_TRY(be,
                 cudaMemcpyAsync(inv_freq, desc->inv_freq, (size_t)desc->n_pairs * sizeof(float),
                                 cudaMemcpyHostToDevice, be->stream));
        CUDA_TRY(be, k_rope_table(be->stream, table, inv_freq, &r->view, desc->attention_factor));
        r->view.cos_sin = table;
    }
    *out = r;
    return OK;
}
