// SPDX-License-Identifier: Apache-2.0
/* Modules quantised by bitsandbytes: 4 bits (NF4 or FP4) with a scale for each block of a matrix,
 * which may be quantised in turn, and 8 bits with a scale for each output (LLM.int8). */
#include "engine/base/json.h"
#include "engine/model/formats_private.h"

#include <math.h>
#include <stdio.h>

/* ---- 4 bits ------------------------------------------------------------------------------- */

/* The library stores the numbers that describe a module as the JSON text of a tensor. */
enum { MAX_STATE_BYTES = 4096 };

struct state {
    enum dtype numbers;
    int64_t block, nested_block;
    float offset;
    bool nested;
};

static enum status bad_state(const struct module *m, const struct checkpoint_tensor *t,
                             const char *key)
{
    return err_set(m->err, ERR_FORMAT, "%s: tensor %s has no valid %s", t->file, t->name, key);
}

static enum status read_shape(const struct module *m, const struct checkpoint_tensor *t,
                              const struct json *shape)
{
    int64_t rows = 0, cols = 0;
    if (!json_is(shape, JSON_ARRAY) || json_count(shape) != 2 ||
        !json_int64(json_first(shape), &rows) || !json_int64(json_next(json_first(shape)), &cols)) {
        return bad_state(m, t, "shape");
    }
    if (rows != m->n_out || cols != m->n_in) {
        return err_set(m->err, ERR_FORMAT,
                       "%s: tensor %s says shape [%lld, %lld], but config.json requires "
                       "[%lld, %lld]",
                       t->file, t->name, (long long)rows, (long long)cols, (long long)m->n_out,
                       (long long)m->n_in);
    }
    return OK;
}

static enum status read_members(const struct module *m, const struct checkpoint_tensor *t,
                                const struct json *j, struct state *out)
{
    TRY(read_shape(m, t, json_get(j, "shape")));
    if (!json_int64(json_get(j, "blocksize"), &out->block) || out->block < 2 ||
        out->block % 2 != 0 || out->block > 1 << 20) {
        return bad_state(m, t, "blocksize");
    }
    if (!out->nested) {
        return OK;
    }
    if (!json_int64(json_get(j, "nested_blocksize"), &out->nested_block) || out->nested_block < 1 ||
        out->nested_block > 1 << 20) {
        return bad_state(m, t, "nested_blocksize");
    }
    out->offset = (float)json_get_number(j, "nested_offset", NAN);
    return isfinite(out->offset) ? OK : bad_state(m, t, "nested_offset");
}

static enum status read_state(const struct module *m, struct state *out)
{
    static const struct {
        const char *suffix;
        enum dtype numbers;
    } kinds[] = {{".weight.quant_state.bitsandbytes__nf4", DT_NF4},
                 {".weight.quant_state.bitsandbytes__fp4", DT_FP4}};
    const struct checkpoint_tensor *t = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && !t; i++) {
        t = module_tensor(m, kinds[i].suffix);
        out->numbers = kinds[i].numbers;
    }
    if (!t) {
        return format_need_tensor(m, kinds[0].suffix, &t);
    }
    TRY(format_need_dtype(m, t, DT_U8));
    struct json *j = NULL;
    struct err err = {""};
    if (t->n_bytes > MAX_STATE_BYTES ||
        json_parse((const char *)t->data, t->n_bytes, NULL, &j, &err) != OK) {
        return err_set(m->err, ERR_FORMAT, "%s: tensor %s is not the text that %s writes", t->file,
                       t->name, format_title(m));
    }
    out->nested = module_tensor(m, ".weight.nested_absmax") != NULL;
    const enum status st = read_members(m, t, j, out);
    json_free(j);
    return st;
}

/* n f32 numbers, all finite. Scales may be 0, because a block of zeros has such a scale. */
static enum status need_numbers(const struct module *m, const char *suffix, int64_t n,
                                const struct checkpoint_tensor **out)
{
    TRY(format_need_tensor(m, suffix, out));
    TRY(format_need_dtype(m, *out, DT_F32));
    TRY(format_need_dims(m, *out, 1, &n));
    for (int64_t i = 0; i < n; i++) {
        const float x = dtype_load((*out)->data, DT_F32, (size_t)i);
        if (!isfinite(x)) {
            return err_set(m->err, ERR_FORMAT, "%s: tensor %s: the number at %lld is %g",
                           (*out)->file, (*out)->name, (long long)i, (double)x);
        }
    }
    return OK;
}

/* The library's own kernels do not read the stored table either. */
static enum status check_table(const struct module *m, enum dtype numbers)
{
    const float tolerance = 1e-4f;
    const struct checkpoint_tensor *t;
    TRY(need_numbers(m, ".weight.quant_map", 16, &t));
    for (uint32_t i = 0; i < 16; i++) {
        const float x = dtype_load(t->data, DT_F32, i);
        if (fabsf(x - dtype_value(numbers, i)) > tolerance) {
            return err_set(m->err, ERR_UNSUPPORTED, "%s: tensor %s has %g at %u, and not %g",
                           t->file, t->name, (double)x, i, (double)dtype_value(numbers, i));
        }
    }
    return OK;
}

/* Scales that are 8-bit codes have a table and scales of their own. */
static enum status read_nested(const struct module *m, const struct state *s, int64_t n,
                               struct weight_codec *out)
{
    const struct checkpoint_tensor *scales, *values, *units;
    TRY(format_need_tensor(m, ".weight.absmax", &scales));
    TRY(format_need_dtype(m, scales, DT_U8));
    TRY(format_need_dims(m, scales, 1, &n));
    TRY(need_numbers(m, ".weight.nested_quant_map", 256, &values));
    TRY(need_numbers(m, ".weight.nested_absmax", cut_up(n, s->nested_block), &units));
    out->scales.data = scales->data;
    out->scales.dtype = DT_U8;
    out->scale_codes = (struct scale_codes){values->data, units->data, s->nested_block, s->offset};
    return OK;
}

/* Blocks are counted through the whole matrix. If they ended inside a row, scales would not form a
 * grid. */
enum status format_read_bnb4(const struct module *m, struct weight_codec *out)
{
    const struct checkpoint_tensor *values, *scales;
    struct state s;
    TRY(read_state(m, &s));
    if (m->n_in % s.block != 0) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s: blocks of %lld numbers that run over the end of a row of %lld are not "
                       "supported",
                       m->name, (long long)s.block, (long long)m->n_in);
    }
    TRY(check_table(m, s.numbers));
    TRY(format_need_tensor(m, ".weight", &values));
    TRY(format_need_dtype(m, values, DT_U8));
    TRY(format_need_dims(m, values, 2, (int64_t[]){m->n_out * (m->n_in / 2), 1}));
    const int64_t across = m->n_in / s.block, n = m->n_out * across;
    out->values = rows_of(values, s.numbers, PACK_BYTES_BACK, m->n_in / 2);
    out->scales = (struct number_grid){NULL, DT_F32, PACK_NONE, across, 1, 0};
    out->block_rows = 1;
    out->block_cols = s.block;
    if (s.nested) {
        return read_nested(m, &s, n, out);
    }
    TRY(need_numbers(m, ".weight.absmax", n, &scales));
    out->scales.data = scales->data;
    return OK;
}

/* ---- 8 bits ------------------------------------------------------------------------------- */

/* A scale is the largest number of an output, which is stored as 127. Layouts other than by rows
 * are those of old GPUs. */
enum status format_read_bnb8(const struct module *m, struct weight_codec *out)
{
    const struct checkpoint_tensor *values, *scales;
    const struct checkpoint_tensor *layout = module_tensor(m, ".weight_format");
    TRY(format_need_tensor(m, ".weight", &values));
    TRY(format_need_dtype(m, values, DT_I8));
    TRY(format_need_dims(m, values, 2, (int64_t[]){m->n_out, m->n_in}));
    if (layout && (layout->n_bytes != 1 || layout->data[0] != 0)) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s: tensor %s says that the weights are not stored by rows", layout->file,
                       layout->name);
    }
    TRY(need_numbers(m, ".SCB", m->n_out, &scales));
    out->values = rows_of(values, DT_I8, PACK_NONE, m->n_in);
    out->scales = rows_of(scales, DT_F32, PACK_NONE, 1);
    out->block_rows = 1;
    out->block_cols = m->n_in;
    out->tensor_scale_use = TENSOR_SCALE_DIVIDES;
    out->tensor_scale = 127.0f;
    return OK;
}
