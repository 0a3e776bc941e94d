// SPDX-License-Identifier: Apache-2.0
/* FP8 experts whose scales are in one tensor for all experts of a layer, and whose values may be,
 * too. */
#include "engine/model/formats_private.h"

/* Scales of one of the matrices that are stacked in `t`: a single one for all experts, one per
 * expert, one per output, or one per block. Gate and up, which may share the tensor, have blocks of
 * their own. */
static enum status read_stacked_scales(const struct module *m, const struct checkpoint_tensor *t,
                                       struct weight_codec *out)
{
    const struct quant_scheme *s = m->scheme;
    const struct expert_place *at = &m->place;
    const bool cut = s->block_rows > 0;
    const size_t n = count_of(t), n_experts = (size_t)at->n_experts;
    TRY(format_need_float(m, t));
    out->block_rows = cut ? s->block_rows : m->n_out;
    out->block_cols = cut ? s->block_cols : m->n_in;
    if (!cut && n == n_experts * (size_t)at->n_rows) {
        out->block_rows = 1;
    }
    const int64_t rows = cut_up(m->n_out, out->block_rows);
    const int64_t cols = cut_up(m->n_in, out->block_cols);
    const int64_t grid[3] = {at->n_experts, at->n_rows / m->n_out * rows, cols};
    int64_t first = (at->expert * grid[1] + at->first_row / m->n_out * rows) * cols;
    if (rows * cols == 1 && (n == 1 || n == n_experts)) {
        first = n == 1 ? 0 : at->expert;
    } else if (cols > 1 || !has_dims(t, 2, grid)) {
        TRY(format_need_dims(m, t, 3, grid));
    }
    TRY(format_check_scales(m, t, t->dtype, (size_t)first, (size_t)(rows * cols)));
    out->scales = rows_of(t, t->dtype, PACK_NONE, cols);
    out->scales.data = t->data + (size_t)first * dtype_bytes(t->dtype);
    return OK;
}

/* One of the experts whose scales are in one tensor; its values may be in another one. */
enum status format_read_stacked(const struct module *m, const struct checkpoint_tensor *scales,
                                struct weight_codec *out)
{
    const struct expert_place *at = &m->place;
    const struct checkpoint_tensor *values = module_tensor(m, ".weight");
    size_t first = 0;
    if (values) {
        TRY(format_need_dims(m, values, 2, (int64_t[]){m->n_out, m->n_in}));
    } else {
        values = format_stack_tensor(m, "", "");
        if (!values) {
            return format_need_tensor(m, ".weight", &values);
        }
        TRY(format_need_dims(m, values, 3, (int64_t[]){at->n_experts, at->n_rows, m->n_in}));
        first = (size_t)(at->expert * at->n_rows + at->first_row) * (size_t)m->n_in;
    }
    TRY(format_need_dtype(m, values, DT_E4M3));
    out->values = rows_of(values, DT_E4M3, PACK_NONE, m->n_in);
    out->values.data = values->data + first;
    return read_stacked_scales(m, scales, out);
}
