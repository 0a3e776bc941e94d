// SPDX-License-Identifier: Apache-2.0
/* Quantised weight formats of checkpoints: which tensors a module has, their shapes, and the
 * weight_codec that describes them. Nothing is converted; a codec only says where each number is
 * stored. */
#include "engine/model/formats_private.h"

#include "engine/base/optional.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- looking for tensors ------------------------------------------------------------------ */

/* Looks for a tensor under two names; one of them must exist. */
static enum status need_either(const struct module *m, const char *suffix, const char *other,
                               const struct checkpoint_tensor **out)
{
    *out = module_tensor(m, other);
    if (*out) {
        return OK;
    }
    return format_need_tensor(m, suffix, out);
}

static enum status bad_tensor(const struct module *m, const struct checkpoint_tensor *t,
                              const char *why)
{
    return err_set(m->err, ERR_FORMAT, "%s: tensor %s of the format %s %s", t->file, t->name,
                   format_title(m), why);
}

/* Like rows_of, for a tensor whose rows are inputs, or groups of inputs. */
static struct number_grid columns_of(const struct checkpoint_tensor *t, enum dtype dtype,
                                     enum packing packing, int64_t row_stride)
{
    return (struct number_grid){t->data, dtype, packing, 1, row_stride, 0};
}

/* ---- scales ------------------------------------------------------------------------------- */

static enum status check_scales(const struct module *m, const struct checkpoint_tensor *t,
                                enum dtype dtype)
{
    return format_check_scales(m, t, dtype, 0, count_of(t));
}

/* Accepts a scale per output and block of inputs, one per output, or a single one. */
static enum status read_scales(const struct module *m, const struct checkpoint_tensor *t,
                               struct weight_codec *out)
{
    const struct quant_scheme *s = m->scheme;
    TRY(format_need_scales(m, t));
    TRY(check_scales(m, t, t->dtype));
    bool cut = s->block_rows > 0 || s->group > 0;
    out->block_rows = s->block_rows > 0 ? s->block_rows : 1;
    out->block_cols = m->n_in;
    if (cut) {
        out->block_cols = s->block_rows > 0 ? s->block_cols : s->group;
    }
    int64_t grid[2] = {cut_up(m->n_out, out->block_rows), cut_up(m->n_in, out->block_cols)};
    out->scales = rows_of(t, t->dtype, PACK_NONE, grid[1]);
    if (!cut && count_of(t) == 1) {
        out->block_rows = m->n_out;
        return OK;
    }
    if (count_of(t) == 1 && grid[0] * grid[1] == 1) { // modelopt drops the dimensions of one block
        return OK;
    }
    if (!cut && has_dims(t, 1, &m->n_out)) {
        return OK;
    }
    // The shape that modelopt uses for blocks.
    if (has_dims(t, 4, (int64_t[]){grid[0], 1, grid[1], 1})) {
        return OK;
    }
    return format_need_dims(m, t, 2, grid);
}

static enum status read_tensor_scale(const struct module *m, const char *suffix,
                                     enum tensor_scale use, struct weight_codec *out)
{
    const struct checkpoint_tensor *t;
    TRY(format_need_tensor(m, suffix, &t));
    TRY(format_need_float(m, t));
    if (count_of(t) != 1) {
        return bad_tensor(m, t, "is not a single number");
    }
    TRY(check_scales(m, t, t->dtype));
    out->tensor_scale_use = use;
    out->tensor_scale = dtype_load(t->data, t->dtype, 0);
    return OK;
}

/* Reads the group of each input. If the groups are in the usual order, the map is dropped. */
static enum status read_groups(const struct module *m, const char *suffix, int64_t n_groups,
                               struct weight_codec *out)
{
    const struct checkpoint_tensor *t = module_tensor(m, suffix);
    if (!t && m->scheme->act_order && n_groups > 1) {
        return format_need_tensor(m, suffix, &t);
    }
    if (!t) {
        return OK;
    }
    TRY(format_need_dtype(m, t, DT_I32));
    TRY(format_need_dims(m, t, 1, &m->n_in));
    bool in_order = true, unset = true;
    for (int64_t i = 0; i < m->n_in; i++) {
        int32_t group;
        memcpy(&group, t->data + (size_t)i * sizeof group, sizeof group);
        unset = unset && group == -1;
        in_order = in_order && group == i / out->block_cols;
        if (!unset && (group < 0 || group >= n_groups)) {
            return err_set(m->err, ERR_FORMAT,
                           "%s: tensor %s: input %lld is in group %d, but there are %lld groups",
                           t->file, t->name, (long long)i, group, (long long)n_groups);
        }
    }
    out->groups = in_order || unset ? NULL : t->data;
    return OK;
}

/* ---- one integer or small float per element ----------------------------------------------- */

/* One value per byte. read_scales derives from the shape of the scales how many values share
 * one. */
static enum status read_whole(const struct module *m, enum dtype dtype, struct weight_codec *out)
{
    const struct checkpoint_tensor *values, *scales;
    TRY(format_need_tensor(m, ".weight", &values));
    TRY(format_need_dtype(m, values, dtype));
    TRY(format_need_dims(m, values, 2, (int64_t[]){m->n_out, m->n_in}));
    TRY(need_either(m, ".weight_scale", ".weight_scale_inv", &scales));
    out->values = rows_of(values, dtype, PACK_NONE, m->n_in);
    return read_scales(m, scales, out);
}

/* Despite its name, weight_scale_inv is a factor. */
static enum status read_fp8(const struct module *m, struct weight_codec *out)
{
    const struct checkpoint_tensor *scales = format_stack_tensor(m, "_scale_inv", "_weight_scale");
    if (!scales) {
        scales = format_stack_tensor(m, "_scale", "_scale");
    }
    return scales ? format_read_stacked(m, scales, out) : read_whole(m, DT_E4M3, out);
}

/* Zero points have the shape of the scales. Only asymmetric schemes require them in the file. */
static enum status read_int8(const struct module *m, struct weight_codec *out)
{
    TRY(read_whole(m, DT_I8, out));
    const struct checkpoint_tensor *zeros = module_tensor(m, ".weight_zero_point");
    if (!zeros) {
        if (m->scheme->asymmetric) {
            return format_need_tensor(m, ".weight_zero_point", &zeros);
        }
        return OK;
    }
    TRY(format_need_dtype(m, zeros, DT_I8));
    const struct checkpoint_tensor *scales = module_tensor(m, ".weight_scale");
    TRY(format_need_dims(m, zeros, scales->n_dims, scales->dims));
    out->zeros = out->scales;
    out->zeros.data = zeros->data;
    out->zeros.dtype = DT_I8;
    return OK;
}

/* ---- several elements per word ------------------------------------------------------------ */

static enum status packed_dtype(const struct module *m, enum dtype *out)
{
    switch (m->scheme->bits) {
    case 2: *out = DT_U2; return OK;
    case 4: *out = DT_U4; return OK;
    case 8: *out = DT_U8; return OK;
    default:
        return err_set(m->err, ERR_UNSUPPORTED, "%s: the format %s of %d bits is not supported",
                       m->name, format_title(m), m->scheme->bits);
    }
}

/* compressed-tensors: words run along the inputs, but zeros are packed along the outputs. */
static enum status read_packed(const struct module *m, struct weight_codec *out)
{
    const struct checkpoint_tensor *values, *scales, *shape, *zeros;
    enum dtype dtype = DT_U4;
    TRY(packed_dtype(m, &dtype));
    int64_t per_word = 32 / m->scheme->bits, words = cut_up(m->n_in, per_word);
    TRY(format_need_tensor(m, ".weight_packed", &values));
    TRY(format_need_dtype(m, values, DT_I32));
    TRY(format_need_dims(m, values, 2, (int64_t[]){m->n_out, words}));
    shape = module_tensor(m, ".weight_shape");
    if (shape) {
        int64_t dims[2];
        TRY(format_need_dtype(m, shape, DT_I64));
        TRY(format_need_dims(m, shape, 1, (int64_t[]){2}));
        memcpy(dims, shape->data, sizeof dims);
        if (dims[0] != m->n_out || dims[1] != m->n_in) {
            return bad_tensor(m, shape, "does not contain the shape that config.json requires");
        }
    }
    out->values = rows_of(values, dtype, PACK_WORDS_ACROSS, words);
    TRY(format_need_tensor(m, ".weight_scale", &scales));
    TRY(read_scales(m, scales, out));
    int64_t n_groups = cut_up(m->n_in, out->block_cols);
    TRY(read_groups(m, ".weight_g_idx", n_groups, out));
    out->zero = 1 << (m->scheme->bits - 1);
    zeros = module_tensor(m, ".weight_zero_point");
    if (!zeros) {
        if (m->scheme->asymmetric) {
            return format_need_tensor(m, ".weight_zero_point", &zeros);
        }
        return OK;
    }
    TRY(format_need_dtype(m, zeros, DT_I32));
    TRY(format_need_dims(m, zeros, 2, (int64_t[]){cut_up(m->n_out, per_word), n_groups}));
    out->zero = 0;
    out->zeros = rows_of(zeros, dtype, PACK_WORDS_DOWN, n_groups);
    return OK;
}

/* The part common to AWQ and GPTQ: scales and zeros are stored by group of inputs, then by
 * output. */
static enum status read_groupwise(const struct module *m, enum dtype dtype,
                                  enum packing zero_packing, struct weight_codec *out)
{
    const struct checkpoint_tensor *scales, *zeros;
    int64_t group = m->scheme->group > 0 ? m->scheme->group : m->n_in;
    int64_t n_groups = cut_up(m->n_in, group), per_word = 32 / m->scheme->bits;
    TRY(format_need_tensor(m, ".scales", &scales));
    TRY(format_need_float(m, scales));
    TRY(format_need_dims(m, scales, 2, (int64_t[]){n_groups, m->n_out}));
    TRY(check_scales(m, scales, scales->dtype));
    out->block_rows = 1;
    out->block_cols = group;
    out->scales = columns_of(scales, scales->dtype, PACK_NONE, m->n_out);
    TRY(format_need_tensor(m, ".qzeros", &zeros));
    TRY(format_need_dtype(m, zeros, DT_I32));
    int64_t words = cut_up(m->n_out, per_word);
    TRY(format_need_dims(m, zeros, 2, (int64_t[]){n_groups, words}));
    out->zero = m->scheme->zero_offset;
    out->zeros = columns_of(zeros, dtype, zero_packing, words);
    return OK;
}

/* AWQ packs eight outputs into a word, but not in the order of the outputs. */
static enum status read_awq(const struct module *m, struct weight_codec *out)
{
    const struct checkpoint_tensor *values;
    int64_t words = cut_up(m->n_out, 8);
    TRY(format_need_tensor(m, ".qweight", &values));
    TRY(format_need_dtype(m, values, DT_I32));
    TRY(format_need_dims(m, values, 2, (int64_t[]){m->n_in, words}));
    out->values = columns_of(values, DT_U4, PACK_WORDS_AWQ, words);
    return read_groupwise(m, DT_U4, PACK_WORDS_AWQ, out);
}

/* GPTQ packs inputs into words, so its matrices are stored transposed. g_idx may assign inputs to
 * groups in another order. */
static enum status read_gptq(const struct module *m, struct weight_codec *out)
{
    const struct checkpoint_tensor *values;
    enum dtype dtype = DT_U4;
    TRY(packed_dtype(m, &dtype));
    TRY(format_need_tensor(m, ".qweight", &values));
    TRY(format_need_dtype(m, values, DT_I32));
    int64_t words = cut_up(m->n_in, 32 / m->scheme->bits);
    TRY(format_need_dims(m, values, 2, (int64_t[]){words, m->n_out}));
    out->values = columns_of(values, dtype, PACK_WORDS_ACROSS, m->n_out);
    TRY(read_groupwise(m, dtype, PACK_WORDS_DOWN, out));
    return read_groups(m, ".g_idx", cut_up(m->n_in, out->block_cols), out);
}

/* ---- scales of groups of 16 or 32 inputs --------------------------------------------------- */

static enum status read_group_scales(const struct module *m, const struct checkpoint_tensor *scales,
                                     int64_t group, enum dtype scale_dtype,
                                     struct weight_codec *out)
{
    if (scale_dtype != DT_E8M0 || !is_dtype(scales, DT_U8)) { // both names of e8m0 are accepted
        TRY(format_need_dtype(m, scales, scale_dtype));
    }
    int64_t n_groups = cut_up(m->n_in, group);
    TRY(format_need_dims(m, scales, 2, (int64_t[]){m->n_out, n_groups}));
    TRY(check_scales(m, scales, scale_dtype));
    out->scales = rows_of(scales, scale_dtype, PACK_NONE, n_groups);
    out->block_rows = 1;
    out->block_cols = group;
    return OK;
}

static enum status read_mxfp8(const struct module *m, struct weight_codec *out)
{
    const struct checkpoint_tensor *values, *scales;
    TRY(format_need_tensor(m, ".weight", &values));
    TRY(format_need_dtype(m, values, DT_E4M3));
    TRY(format_need_dims(m, values, 2, (int64_t[]){m->n_out, m->n_in}));
    TRY(need_either(m, ".weight_scale", ".weight_scale_inv", &scales));
    out->values = rows_of(values, DT_E4M3, PACK_NONE, m->n_in);
    return read_group_scales(m, scales, 32, DT_E8M0, out);
}

/* Two values per byte. */
static enum status read_e2m1(const struct module *m, const char *suffix, int64_t group,
                             enum dtype scale_dtype, struct weight_codec *out)
{
    const struct checkpoint_tensor *values, *scales;
    TRY(format_need_tensor(m, suffix, &values));
    TRY(format_need_dtype(m, values, DT_U8));
    TRY(format_need_dims(m, values, 2, (int64_t[]){m->n_out, cut_up(m->n_in, 2)}));
    TRY(format_need_tensor(m, ".weight_scale", &scales));
    out->values = rows_of(values, DT_E2M1, PACK_BYTES, cut_up(m->n_in, 2));
    return read_group_scales(m, scales, group, scale_dtype, out);
}

static enum status read_mxfp4(const struct module *m, struct weight_codec *out)
{
    return read_e2m1(m, ".weight_packed", 32, DT_E8M0, out);
}

static enum status read_nvfp4(const struct module *m, struct weight_codec *out)
{
    TRY(read_e2m1(m, ".weight_packed", 16, DT_E4M3, out));
    return read_tensor_scale(m, ".weight_global_scale", TENSOR_SCALE_DIVIDES, out);
}

/* modelopt calls the tensor `weight` and stores the reciprocal of its scale. */
static enum status read_nvfp4_modelopt(const struct module *m, struct weight_codec *out)
{
    const struct checkpoint_tensor *scales = format_stack_tensor(m, "_weight_scale", "_scale");
    if (scales) {
        return format_read_stacked_nvfp4(m, scales, out);
    }
    TRY(read_e2m1(m, ".weight", 16, DT_E4M3, out));
    return read_tensor_scale(m, ".weight_scale_2", TENSOR_SCALE_TIMES, out);
}

/* GPT-OSS: all experts in one tensor, with an extra dimension for the blocks of 32 inputs. */
static enum status read_mxfp4_experts(const struct module *m, struct weight_codec *out)
{
    const struct checkpoint_tensor *values, *scales;
    int64_t blocks = cut_up(m->n_in, 32);
    if (m->n_in % 32 != 0) {
        return err_set(m->err, ERR_FORMAT, "%s: %lld inputs are not a multiple of 32", m->name,
                       (long long)m->n_in);
    }
    TRY(format_need_tensor(m, "_blocks", &values));
    TRY(format_need_dtype(m, values, DT_U8));
    TRY(format_need_dims(m, values, 4, (int64_t[]){m->n_experts, m->n_out, blocks, 16}));
    TRY(format_need_tensor(m, "_scales", &scales));
    TRY(format_need_dtype(m, scales, DT_U8));
    TRY(format_need_dims(m, scales, 3, (int64_t[]){m->n_experts, m->n_out, blocks}));
    TRY(check_scales(m, scales, DT_E8M0));
    out->values = rows_of(values, DT_E2M1, PACK_BYTES, m->n_in / 2);
    out->scales = rows_of(scales, DT_E8M0, PACK_NONE, blocks);
    out->block_rows = 1;
    out->block_cols = 32;
    return OK;
}

/* ---- three values -------------------------------------------------------------------------- */

/* BitNet: -1, 0 and 1 as 0, 1 and 2. The bytes of a row hold that row and those 1/4, 2/4 and 3/4 of
 * all rows after it. */
static enum status read_ternary(const struct module *m, struct weight_codec *out)
{
    static const float one = 1.0f;
    const struct checkpoint_tensor *values;
    const int64_t quarter = m->n_out / 4;
    if (m->n_out % 4 != 0) {
        return err_set(m->err, ERR_FORMAT, "%s: %lld outputs are not a multiple of 4", m->name,
                       (long long)m->n_out);
    }
    TRY(format_need_tensor(m, ".weight", &values));
    TRY(format_need_dtype(m, values, DT_U8));
    TRY(format_need_dims(m, values, 2, (int64_t[]){quarter, m->n_in}));
    out->values = rows_of(values, DT_U2, PACK_BYTES_APART, m->n_in);
    out->values.apart = quarter;
    out->scales = (struct number_grid){.data = &one, .dtype = DT_F32};
    out->block_rows = m->n_out;
    out->block_cols = m->n_in;
    out->zero = 1;
    return read_tensor_scale(m, ".weight_scale",
                             m->scheme->inverse_scale ? TENSOR_SCALE_DIVIDES : TENSOR_SCALE_TIMES,
                             out);
}

/* ---- inputs ------------------------------------------------------------------------------- */

/* Input scales come from calibration. An expert that no calibration token reached may have none. */
static enum status read_input_scale(const struct module *m, struct input_rule *rule)
{
    const struct checkpoint_tensor *t = module_tensor(m, ".input_global_scale");
    bool inverse = t != NULL;
    if (!t) {
        t = module_tensor(m, ".input_scale");
    }
    if (!t) {
        t = module_tensor(m, ".activation_scale");
    }
    if (!t) {
        t = format_stack_tensor(m, "_activation_scale", "_input_scale");
    }
    const struct checkpoint_tensor *zero = module_tensor(m, ".input_zero_point");
    bool needed = !rule->from_row || (rule->numbers == INPUT_E2M1 && !rule->power_of_two);
    if (rule->numbers == INPUT_AS_IT_IS || !needed) {
        return OK;
    }
    if (!t) {
        if (!strstr(m->name, ".experts.")) {
            return format_need_tensor(m, ".input_scale", &t);
        }
        return OK;
    }
    TRY(format_need_float(m, t));
    size_t at = 0;
    if (m->place.stack && count_of(t) == (size_t)m->place.n_experts) {
        at = (size_t)m->place.expert;
    } else if (count_of(t) != 1) {
        return bad_tensor(m, t, "is not a single number");
    }
    TRY(format_check_scales(m, t, t->dtype, at, 1));
    rule->scale = dtype_load(t->data, t->dtype, at);
    if (inverse) {
        rule->scale = 1.0f / rule->scale;
    }
    if (zero && rule->asymmetric) {
        TRY(format_need_dtype(m, zero, DT_I8));
        if (count_of(zero) == 1) {
            rule->zero = (float)(int8_t)zero->data[0];
        } else {
            rule->zero = 0.0f;
        }
    }
    return OK;
}

/* ---- the table ---------------------------------------------------------------------------- */

static const struct module_format formats[] = {
    {"fp8", ".weight", read_fp8, DT_E4M3, DT_F32},
    {"float-quantized", ".weight", read_fp8, DT_E4M3, DT_BF16},
    {"int-quantized", ".weight", read_int8, DT_I64, DT_F32},
    {"pack-quantized", ".weight_packed", read_packed, DT_U4, DT_BF16},
    {"awq", ".qweight", read_awq, DT_U4, DT_F16},
    {"gptq", ".qweight", read_gptq, DT_U4, DT_F16},
    {"nvfp4-pack-quantized", ".weight_packed", read_nvfp4, DT_I64, DT_F32},
    {"mxfp8-quantized", ".weight", read_mxfp8, DT_E4M3, DT_E8M0},
    {"mxfp4-pack-quantized", ".weight_packed", read_mxfp4, DT_E2M1, DT_E8M0},
    {"NVFP4", ".weight", read_nvfp4_modelopt, DT_I64, DT_F32},
    {"mxfp4", "_blocks", read_mxfp4_experts, DT_E2M1, DT_E8M0},
    {"bitnet", ".weight", read_ternary, DT_I64, DT_F32},
    {"bitsandbytes-4bit", ".weight", format_read_bnb4, DT_I64, DT_F32},
    {"bitsandbytes-8bit", ".weight", format_read_bnb8, DT_I64, DT_F32},
};

enum { N_FORMATS = sizeof formats / sizeof formats[0] };

const struct module_format *format_find(const char *name)
{
    for (size_t i = 0; i < N_FORMATS; i++) {
        if (strcmp(formats[i].name, name) == 0) {
            return &formats[i];
        }
    }
    return NULL;
}

/* Whether the module's values are stored in a quantised type. */
bool module_is_quantised(const struct module *m, const struct checkpoint_tensor **which)
{
    for (size_t i = 0; i < N_FORMATS; i++) {
        *which = module_tensor(m, formats[i].values);
        if (*which && !tensor_is_plain(*which)) {
            return true;
        }
    }
    *which = format_stack_tensor(m, "", "");
    return *which && !tensor_is_plain(*which);
}

enum status module_read(const struct module *m, const struct checkpoint_tensor *values,
                        struct weight_part *out)
{
    *out = weight_part_plain(NULL, DT_F32, m->n_experts * m->n_out, m->n_in, 0);
    out->codec.format = format_title(m);
    out->codec.name = values->name;
    out->inputs = m->scheme->inputs;
    out->inputs.n_inputs = m->n_in;
    TRY(read_input_scale(m, &out->inputs));
    return m->scheme->format->read(m, &out->codec);
}

/* Dummy int4 is symmetric. Formats with 8-bit values packed into words become plain, because no
 * backend keeps those. */
bool module_dummy(const struct module *m, struct weight_part *out)
{
    const struct quant_scheme *s = m->scheme;
    enum dtype number = s->format->number;
    if (number == DT_I64 || (number == DT_U4 && s->bits != 4)) {
        return false;
    }
    *out = weight_part_plain(NULL, number, m->n_experts * m->n_out, m->n_in, 0);
    struct weight_codec *c = &out->codec;
    c->format = format_title(m);
    c->scales.dtype = s->format->scale;
    c->zero = number == DT_U4 ? 8 : 0;
    c->block_rows = s->block_rows > 0 ? s->block_rows : 1;
    c->block_cols = s->group > 0 ? s->group : m->n_in;
    if (s->block_rows > 0) {
        c->block_cols = s->block_cols;
    }
    if (number == DT_E2M1) {
        c->block_cols = 32;
    }
    out->inputs = s->inputs;
    out->inputs.n_inputs = m->n_in;
    out->inputs.scale = 1.0f / 64.0f; // for formats that store input scales
    return true;
}
