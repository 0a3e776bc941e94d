// SPDX-License-Identifier: Apache-2.0
/* Experts whose scales are in one tensor for all experts of a layer, and whose values may be, too:
 * FP8, and NVFP4 as modelopt stores it. */
#include "engine/model/formats_private.h"

static enum status bad_scales(const struct module *m, const struct checkpoint_tensor *t,
                              const char *why)
{
    return err_set(m->err, ERR_UNSUPPORTED, "%s: tensor %s of the format %s %s", t->file, t->name,
                   format_title(m), why);
}

/* The part of a tensor of all experts that belongs to one matrix. A row of the matrix has n units
 * along the inputs; in a turned tensor, units are rows and outputs are columns. */
static struct number_grid stacked_grid(const struct module *m, const struct checkpoint_tensor *t,
                                       enum dtype dtype, enum packing packing, int64_t n)
{
    const struct expert_place *at = &m->place;
    struct number_grid g = {t->data, dtype, packing, 0, 0, 0};
    int64_t first = at->expert * at->n_rows * n;
    if (at->turned) {
        first += at->first_row;
        g.row_stride = at->row_step;
        g.col_stride = at->n_rows;
    } else {
        first += at->first_row * n;
        g.row_stride = at->row_step * n;
        g.col_stride = 1;
    }
    g.data = t->data + first; // all such tensors have elements of a byte
    return g;
}

/* Checks the shape of a tensor with n units along the inputs of each output. */
static enum status need_stack(const struct module *m, const struct checkpoint_tensor *t, int64_t n)
{
    const struct expert_place *at = &m->place;
    const int64_t rows[3] = {at->n_experts, at->n_rows, n};
    const int64_t columns[3] = {at->n_experts, n, at->n_rows};
    return format_need_dims(m, t, 3, at->turned ? columns : rows);
}

static void point_at(struct number_grid *g, const struct checkpoint_tensor *t, int64_t first)
{
    g->data = t->data + (size_t)first * dtype_bytes(t->dtype);
}

/* One scale for all experts, for each expert, for each of an expert's matrices in the tensor, or
 * for each output. Whether outputs are rows or columns, such scales are in the same order. */
static enum status read_scales_of_outputs(const struct module *m, const struct checkpoint_tensor *t,
                                          struct weight_codec *out)
{
    const struct expert_place *at = &m->place;
    const size_t n_experts = (size_t)at->n_experts, n = count_of(t);
    const int64_t n_matrices = at->n_rows / m->n_out;
    out->scales = rows_of(t, t->dtype, PACK_NONE, 1);
    out->block_rows = m->n_out;
    out->block_cols = m->n_in;
    int64_t first = 0, last = 0;
    if (n == n_experts) {
        first = last = at->expert;
    } else if (n == n_experts * (size_t)at->n_rows && (t->n_dims == 2 || t->n_dims == 3)) {
        out->block_rows = 1;
        out->scales.row_stride = at->row_step;
        first = at->expert * at->n_rows + at->first_row;
        last = first + (m->n_out - 1) * at->row_step;
    } else if (n == n_experts * (size_t)n_matrices && at->row_step == 1) {
        first = last = at->expert * n_matrices + at->first_row / m->n_out;
    } else if (n != 1) {
        return format_need_dims(m, t, 2, (int64_t[]){at->n_experts, at->n_rows});
    }
    point_at(&out->scales, t, first);
    return format_check_scales(m, t, t->dtype, (size_t)first, (size_t)(last - first + 1));
}

/* A scale for each block. transformers lays out blocks of gate and up separately where it stacks
 * matrices that were separate, and over both where the tensor was quantised as a whole. These
 * differ unless a matrix consists of whole blocks; the sizes may not tell which of them it is. */
static enum status read_scales_of_blocks(const struct module *m, const struct checkpoint_tensor *t,
                                         struct weight_codec *out)
{
    const struct quant_scheme *s = m->scheme;
    const struct expert_place *at = &m->place;
    const int64_t rows = cut_up(m->n_out, s->block_rows), cols = cut_up(m->n_in, s->block_cols);
    const int64_t n_matrices = at->n_rows / m->n_out, all_rows = n_matrices * rows;
    const int64_t by_rows[3] = {at->n_experts, all_rows, cols};
    const int64_t by_columns[3] = {at->n_experts, cols, all_rows};
    TRY(format_need_dims(m, t, 3, at->turned ? by_columns : by_rows));
    if (at->row_step != 1) {
        return bad_scales(m, t, "has blocks of alternating gate and up rows");
    }
    if (at->turned && s->block_rows != s->block_cols) {
        return bad_scales(m, t, "has blocks of a transposed tensor that are not square");
    }
    if (m->n_out % s->block_rows != 0 && n_matrices > 1 &&
        all_rows == cut_up(at->n_rows, s->block_rows)) {
        return bad_scales(m, t, "does not say whether gate and up have blocks of their own");
    }
    const int64_t row = at->first_row / m->n_out * rows, expert = at->expert * all_rows * cols;
    out->block_rows = s->block_rows;
    out->block_cols = s->block_cols;
    out->scales = (struct number_grid){NULL, t->dtype, PACK_NONE, cols, 1, 0};
    int64_t first = expert + row * cols;
    if (at->turned) {
        out->scales.row_stride = 1;
        out->scales.col_stride = all_rows;
        first = expert + row;
    }
    point_at(&out->scales, t, first);
    return format_check_scales(m, t, t->dtype, (size_t)expert, (size_t)(all_rows * cols));
}

/* An expert's FP8 matrix whose scales are in a tensor of all experts. Its values may be in another
 * one, or in its own. */
enum status format_read_stacked(const struct module *m, const struct checkpoint_tensor *scales,
                                struct weight_codec *out)
{
    struct module own = *m;
    const struct checkpoint_tensor *values = module_tensor(m, ".weight");
    TRY(format_need_scales(m, scales));
    if (values) {
        own.place.turned = false;
        TRY(format_need_dims(m, values, 2, (int64_t[]){m->n_out, m->n_in}));
        out->values = rows_of(values, DT_E4M3, PACK_NONE, m->n_in);
    } else {
        values = format_stack_tensor(m, "", "");
        if (!values) {
            return format_need_tensor(m, ".weight", &values);
        }
        TRY(need_stack(m, values, m->n_in));
        out->values = stacked_grid(m, values, DT_E4M3, PACK_NONE, m->n_in);
    }
    TRY(format_need_dtype(m, values, DT_E4M3));
    return m->scheme->block_rows > 0 ? read_scales_of_blocks(&own, scales, out)
                                     : read_scales_of_outputs(&own, scales, out);
}

/* The scale of a whole tensor, or of each expert's part of it. */
static enum status read_whole_scale(const struct module *m, struct weight_codec *out)
{
    const struct expert_place *at = &m->place;
    const struct checkpoint_tensor *t = format_stack_tensor(m, "_weight_scale_2", "_scale_2");
    if (!t) {
        return err_set(m->err, ERR_FORMAT,
                       "%s: there is no tensor %s_weight_scale_2, which the format %s requires",
                       checkpoint_where(m->checkpoint), at->stack, format_title(m));
    }
    TRY(format_need_float(m, t));
    const size_t n = count_of(t), i = n == (size_t)at->n_experts ? (size_t)at->expert : 0;
    if (n != 1 && n != (size_t)at->n_experts) {
        return format_need_dims(m, t, 1, &at->n_experts);
    }
    TRY(format_check_scales(m, t, t->dtype, i, 1));
    out->tensor_scale_use = TENSOR_SCALE_TIMES;
    out->tensor_scale = dtype_load(t->data, t->dtype, i);
    return OK;
}

enum status format_read_stacked_nvfp4(const struct module *m,
                                      const struct checkpoint_tensor *scales,
                                      struct weight_codec *out)
{
    enum { GROUP = 16 };
    const struct checkpoint_tensor *values = format_stack_tensor(m, "", "");
    if (!values) {
        return format_need_tensor(m, ".weight", &values);
    }
    TRY(format_need_dtype(m, values, DT_U8));
    TRY(format_need_dtype(m, scales, DT_E4M3));
    TRY(need_stack(m, values, cut_up(m->n_in, 2)));
    TRY(need_stack(m, scales, cut_up(m->n_in, GROUP)));
    TRY(format_check_scales(m, scales, DT_E4M3, 0, count_of(scales)));
    out->values = stacked_grid(m, values, DT_E2M1, PACK_BYTES, cut_up(m->n_in, 2));
    out->scales = stacked_grid(m, scales, DT_E4M3, PACK_NONE, cut_up(m->n_in, GROUP));
    out->block_rows = 1;
    out->block_cols = GROUP;
    return read_whole_scale(m, out);
}
