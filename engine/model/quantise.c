// SPDX-License-Identifier: Apache-2.0
/* Writes a quantised copy of a model folder: shard by shard, with the config that other
 * programs expect. */
#include "engine/model/quantise.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/gguf/gguf.h"
#include "engine/model/checkpoint.h"
#include "engine/model/quant.h"
#include "engine/model/quantise_files.h"
#include "engine/model/wrappers.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER_BYTES = 100 << 20, MAX_OUTPUTS = 3, WORD_CODES = 8 };

#define BY_ROW(type, strategy, group)                                                              \
    "{\"num_bits\": 8, \"type\": \"" type "\", \"symmetric\": true, \"strategy\": \"" strategy     \
    "\", \"group_size\": " group ", \"dynamic\": true}"

static const struct quantise_form forms[] = {
    {"fp8", "float-quantized", REQUANTISE_FP8, false, "float", 8, "F8_E4M3",
     BY_ROW("float", "token", "null")},
    {"fp8-block", "float-quantized", REQUANTISE_FP8, true, "float", 8, "F8_E4M3",
     BY_ROW("float", "group", "128")},
    {"int4", "pack-quantized", REQUANTISE_INT4, false, "int", 4, "I32", "null"},
    {"int8", "int-quantized", REQUANTISE_INT8, false, "int", 8, "I8",
     BY_ROW("int", "token", "null")},
};

/* A tensor to write: a copy of `from`, or one of the tensors that `from` is quantised to. */
struct output {
    const struct checkpoint_tensor *from;
    const char *suffix; // after the module's name; NULL: a copy
    const char *dtype;
    int32_t n_dims;
    int64_t dims[CHECKPOINT_MAX_DIMS];
    size_t width, n_bytes, offset; // width: bytes per element
};

/* The whole job. The shard of each tensor is decided before any shard is written. */
struct job {
    const struct checkpoint_tensor *tensors;
    size_t n_tensors;
    const struct quantise_form *form;
    const char *out;
    int64_t shard_bytes;
    struct requantise q;
    size_t *shards; // shard of each tensor
    size_t n_shards;
    struct quantise_report *report;
    struct err *err;
};

/* ---- which tensors are quantised --------------------------------------------------------- */

static const char weight_end[] = ".weight";

/* The length of the module's name without ".weight"; 0: the name has another form. */
static int32_t base_bytes(const char *name)
{
    const size_t n = strlen(name), m = sizeof weight_end - 1;
    if (n > m && n < INT_MAX && strcmp(name + n - m, weight_end) == 0) {
        return (int32_t)(n - m);
    }
    return 0;
}

static bool is_plain_matrix(const struct checkpoint_tensor *t)
{
    const bool is_float = t->dtype_known && !t->blocks &&
                          (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16);
    return is_float && t->n_dims == 2 && t->dims[0] > 0 && t->dims[1] > 0 && base_bytes(t->name);
}

/* GPT-2's matrices. Those of other families with its layers' names have names of their own, except
 * StarCoder's. */
static bool is_gpt2(const char *name)
{
    const bool layers = strncmp(name, "h.", 2) == 0 || strncmp(name, "transformer.h.", 14) == 0;
    return layers && strstr(name, ".c_") != NULL;
}

/* The projections of attention, feed-forward parts and experts are quantised. Heads, embeddings,
 * routers and the weights of recurrent layers are small or sensitive, so they are copied; so are
 * unknown tensors, and GPT-2's matrices, which are transposed. */
static bool is_quantised(const struct checkpoint_tensor *t)
{
    static const char *const names[] = {"q_proj",
                                        "k_proj",
                                        "v_proj",
                                        "o_proj",
                                        "qkv_proj",
                                        "gate_proj",
                                        "up_proj",
                                        "down_proj",
                                        "gate_up_proj",
                                        "q_a_proj",
                                        "q_b_proj",
                                        "kv_a_proj_with_mqa",
                                        "wq_b",
                                        "wk",
                                        "w1",
                                        "w2",
                                        "w3",
                                        "dense",
                                        "query_key_value",
                                        "dense_h_to_4h",
                                        "dense_4h_to_h",
                                        "fc1",
                                        "fc2",
                                        "fc_in",
                                        "fc_out",
                                        "c_fc",
                                        "c_proj"};
    if (!is_plain_matrix(t) || wrapper_is_tower(t->name) || is_gpt2(t->name)) {
        return false;
    }
    const int32_t n_base = base_bytes(t->name);
    int32_t first = n_base;
    while (first > 0 && t->name[first - 1] != '.') {
        first--;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i]) == (size_t)(n_base - first) &&
            memcmp(names[i], t->name + first, (size_t)(n_base - first)) == 0) {
            return true;
        }
    }
    return false;
}

/* True for experts stacked in one tensor, which would have to be split. */
static bool is_stack(const struct checkpoint_tensor *t)
{
    return t->n_dims == 3 && t->dims[0] > 1 && t->dims[1] > 1 && t->dims[2] > 1 &&
           !wrapper_is_tower(t->name);
}

/* Everything is checked before anything is written, so that a failure leaves no partial folder
 * behind. */
static enum status check_tensors(const struct job *j)
{
    size_t n_quantised = 0;
    for (size_t i = 0; i < j->n_tensors; i++) {
        const struct checkpoint_tensor *t = &j->tensors[i];
        if (is_stack(t)) {
            return err_set(j->err, ERR_UNSUPPORTED,
                           "%.200s: tensor %.150s stacks matrices in "
                           "three dimensions, which cannot be quantised into a folder (only while "
                           "loading, by --quantization)",
                           t->file, t->name);
        }
        n_quantised += is_quantised(t);
    }
    if (n_quantised > 0) {
        return OK;
    }
    return err_set(j->err, ERR_UNSUPPORTED,
                   "no projection of attention or feed-forward was recognised by its name");
}

/* ---- the tensors that they become -------------------------------------------------------- */

static struct weight_part part_of(const struct checkpoint_tensor *t)
{
    return weight_part_plain(t->data, t->dtype, t->dims[0], t->dims[1], t->dims[1]);
}

/* The group size as written to config.json. */
static int64_t group_of(const struct job *j, int64_t n_in)
{
    const int64_t group = requantise_group(&j->q, n_in);
    const bool is_group = j->form->kind == REQUANTISE_INT4 && (group == 128 || group == 32);
    return is_group ? group : 0;
}

static void set_output(struct output *o, const char *suffix, const char *dtype, size_t width,
                       int64_t rows, int64_t cols)
{
    o->suffix = suffix;
    o->dtype = dtype;
    o->width = width;
    o->n_dims = cols > 0 ? 2 : 1;
    o->dims[0] = rows;
    o->dims[1] = cols;
    o->n_bytes = (size_t)rows * (size_t)(cols > 0 ? cols : 1) * width;
}

static size_t width_of(const struct checkpoint_tensor *t)
{
    size_t n = 1;
    for (int32_t i = 0; i < t->n_dims; i++) {
        n *= (size_t)t->dims[i];
    }
    return n > 0 ? t->n_bytes / n : 1;
}

/* The tensors that one tensor becomes. Tensors that are not quantised are copied unchanged. */
static int32_t outputs_of(const struct job *j, const struct checkpoint_tensor *t,
                          struct output out[MAX_OUTPUTS])
{
    for (int32_t i = 0; i < MAX_OUTPUTS; i++) {
        out[i] = (struct output){.from = t};
    }
    if (!is_quantised(t)) {
        out[0] = (struct output){.from = t,
                                 .dtype = t->dtype_name,
                                 .width = width_of(t),
                                 .n_dims = t->n_dims,
                                 .n_bytes = t->n_bytes};
        memcpy(out[0].dims, t->dims, sizeof out[0].dims);
        return 1;
    }
    const int64_t n_out = t->dims[0], n_in = t->dims[1];
    const int64_t group = requantise_group(&j->q, n_in), n_groups = (n_in + group - 1) / group;
    if (j->form->kind == REQUANTISE_INT4) {
        const int64_t words = (n_in + WORD_CODES - 1) / WORD_CODES;
        set_output(&out[0], ".weight_packed", j->form->dtype, 4, n_out, words);
        set_output(&out[1], ".weight_scale", "BF16", 2, n_out, n_groups);
        set_output(&out[2], ".weight_shape", "I64", 8, 2, 0);
        return 3;
    }
    int64_t scale_rows = n_out;
    if (j->form->blocks) {
        scale_rows = (n_out + group - 1) / group;
    }
    set_output(&out[0], weight_end, j->form->dtype, 1, n_out, n_in);
    set_output(&out[1], ".weight_scale", "F32", 4, scale_rows, n_groups);
    return 2;
}

/* ---- a file ------------------------------------------------------------------------------ */

static void put_name(struct buf *b, const struct output *o)
{
    struct buf name;
    buf_init(&name, MAX_HEADER_BYTES);
    buf_put(&name, o->from->name,
            o->suffix ? (size_t)base_bytes(o->from->name) : strlen(o->from->name));
    if (o->suffix) {
        buf_puts(&name, o->suffix);
    }
    buf_put_json(b, name.data, name.n_bytes);
    buf_deinit(&name);
}

static void put_entry(struct buf *b, const struct output *o)
{
    put_name(b, o);
    buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", o->dtype);
    for (int32_t i = 0; i < o->n_dims; i++) {
        if (i) {
            buf_puts(b, ",");
        }
        buf_put_int(b, o->dims[i]);
    }
    buf_printf(b, "],\"data_offsets\":[%zu,%zu]}", o->offset, o->offset + o->n_bytes);
}

static bool put_at(FILE *f, size_t at, const void *data, size_t n_bytes)
{
    return fseeko(f, (off_t)at, SEEK_SET) == 0 && fwrite(data, 1, n_bytes, f) == n_bytes;
}

/* A row of packed numbers ends at a whole storage word, so it is padded. */
static bool put_packed(FILE *f, size_t at, const struct weight_part *p, const struct output *o)
{
    const size_t from = (size_t)(p->n_cols + 1) / 2, to = (size_t)o->dims[1] * o->width;
    unsigned char *row = xcalloc(to, 1);
    bool good = fseeko(f, (off_t)at, SEEK_SET) == 0;
    for (int64_t r = 0; r < p->n_rows && good; r++) {
        memcpy(row, (const unsigned char *)p->codec.values.data + (size_t)r * from, from);
        good = fwrite(row, 1, to, f) == to;
    }
    free(row);
    return good;
}

/* The values that requantise.c computes fit into bf16 exactly. */
static bool put_bf16(FILE *f, size_t at, const float *v, size_t n)
{
    uint16_t *halves = xmalloc(n * sizeof *halves);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        halves[i] = (uint16_t)(bits >> 16);
    }
    const bool good = put_at(f, at, halves, n * sizeof *halves);
    free(halves);
    return good;
}

/* Infinity or NaN would make the scale of a whole group useless, so they are errors. */
static enum status check_numbers(const struct job *j, const struct checkpoint_tensor *t)
{
    const struct weight_part p = part_of(t);
    float *row = xmalloc((size_t)p.n_cols * sizeof *row);
    bool good = true;
    for (int64_t r = 0; r < p.n_rows && good; r++) {
        weight_part_read(&p, r, 0, p.n_cols, row);
        for (int64_t c = 0; c < p.n_cols; c++) {
            good = good && isfinite(row[c]);
        }
    }
    free(row);
    if (!good) {
        return err_set(j->err, ERR_FORMAT,
                       "%.200s: tensor %.200s has a value that is not "
                       "finite",
                       t->file, t->name);
    }
    return OK;
}

/* `start` is the offset of the file's data. */
static enum status put_tensor(struct job *j, FILE *f, size_t start, const struct output *o,
                              bool *good)
{
    const struct checkpoint_tensor *t = o->from;
    if (!o->suffix) {
        *good = put_at(f, start + o->offset, t->data, t->n_bytes);
        return OK;
    }
    TRY(check_numbers(j, t));
    struct weight_part p = part_of(t);
    requantise_part(&j->q, &p);
    const float *scales = p.codec.scales.data;
    if (j->form->kind == REQUANTISE_INT4) {
        *good = put_packed(f, start + o[0].offset, &p, &o[0]) &&
                put_bf16(f, start + o[1].offset, scales, o[1].n_bytes / o[1].width) &&
                put_at(f, start + o[2].offset, t->dims, o[2].n_bytes);
    } else {
        *good = put_at(f, start + o[0].offset, p.codec.values.data, o[0].n_bytes) &&
                put_at(f, start + o[1].offset, scales, o[1].n_bytes);
    }
    requantise_clear(&j->q);
    j->report->n_modules++;
    return OK;
}

/* Assigns offsets. Wider elements come first, so that all tensors are aligned to their element's
 * width. */
static size_t place(struct output *outputs, size_t n)
{
    size_t at = 0;
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t i = 0; i < n; i++) {
            if (outputs[i].width == width) {
                outputs[i].offset = at;
                at += outputs[i].n_bytes;
            }
        }
    }
    return at;
}

/* Writes the header in the order of the offsets, padded to 8 bytes so that the data is aligned. */
static size_t put_header(struct buf *b, const struct output *outputs, size_t n)
{
    buf_init(b, MAX_HEADER_BYTES);
    buf_puts(b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t i = 0; i < n; i++) {
            if (outputs[i].width == width) {
                buf_putc(b, ',');
                put_entry(b, &outputs[i]);
            }
        }
    }
    buf_putc(b, '}');
    while (b->n_bytes % 8 && !b->failed) {
        buf_putc(b, ' ');
    }
    return sizeof(uint64_t) + b->n_bytes;
}

/* The outputs of one tensor are adjacent and written together, because they come from one pass over
 * its numbers. */
static enum status write_outputs(struct job *j, const char *path, struct output *outputs, size_t n)
{
    struct buf header;
    const size_t n_data = place(outputs, n), start = put_header(&header, outputs, n);
    const uint64_t n_header = header.n_bytes;
    enum status st = OK;
    if (header.failed) {
        st = err_set(j->err, ERR_LIMIT, "%.300s: too many tensors", path);
    }
    FILE *f = st == OK ? fopen(path, "wb") : NULL;
    bool good = f && put_at(f, 0, &n_header, sizeof n_header) &&
                put_at(f, sizeof n_header, header.data, header.n_bytes);
    for (size_t i = 0; i < n && st == OK && good; i++) {
        if (i == 0 || outputs[i].from != outputs[i - 1].from) {
            st = put_tensor(j, f, start, &outputs[i], &good);
        }
    }
    good = f && fclose(f) == 0 && good;
    buf_deinit(&header);
    j->report->bytes_after += (int64_t)n_data;
    if (st == OK && !good) {
        st = err_set(j->err, ERR_IO, "%.300s: cannot be written: %s", path, strerror(errno));
    }
    return st;
}

static void shard_name(const struct job *j, size_t shard, char *name, size_t n_bytes)
{
    if (j->n_shards == 1) {
        snprintf(name, n_bytes, "model.safetensors");
    } else {
        snprintf(name, n_bytes, "model-%05zu-of-%05zu.safetensors", shard + 1, j->n_shards);
    }
}

static enum status write_shard(struct job *j, size_t shard)
{
    struct output *outputs = xmalloc(j->n_tensors * MAX_OUTPUTS * sizeof *outputs);
    size_t n = 0;
    for (size_t i = 0; i < j->n_tensors; i++) {
        if (j->shards[i] == shard) {
            n += (size_t)outputs_of(j, &j->tensors[i], outputs + n);
        }
    }
    char name[64], path[PATH_MAX];
    shard_name(j, shard, name, sizeof name);
    enum status st = quantise_path(path, sizeof path, j->out, name, j->err);
    if (st == OK) {
        st = write_outputs(j, path, outputs, n);
    }
    free(outputs);
    return st;
}

/* ---- the folder -------------------------------------------------------------------------- */

/* Assigns tensors to shards, greedily and in order. A tensor larger than a shard gets a shard of
 * its own. */
static void cut_into_shards(struct job *j)
{
    int64_t filled = 0;
    j->n_shards = 1;
    for (size_t i = 0; i < j->n_tensors; i++) {
        struct output outputs[MAX_OUTPUTS];
        int64_t n_bytes = 0;
        const int32_t n = outputs_of(j, &j->tensors[i], outputs);
        for (int32_t k = 0; k < n; k++) {
            n_bytes += (int64_t)outputs[k].n_bytes;
        }
        if (filled > 0 && filled + n_bytes > j->shard_bytes) {
            j->n_shards++;
            filled = 0;
        }
        filled += n_bytes;
        j->shards[i] = j->n_shards - 1;
        j->report->bytes_before += (int64_t)j->tensors[i].n_bytes;
    }
}

/* Writes the index in Hugging Face's format. This happens last because bytes_after is not known
 * earlier. */
static enum status write_index(const struct job *j)
{
    struct buf b;
    bool first = true;
    buf_init(&b, MAX_HEADER_BYTES);
    buf_printf(&b, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {",
               (long long)j->report->bytes_after);
    for (size_t i = 0; i < j->n_tensors; i++) {
        struct output outputs[MAX_OUTPUTS];
        char name[64];
        shard_name(j, j->shards[i], name, sizeof name);
        const int32_t n = outputs_of(j, &j->tensors[i], outputs);
        for (int32_t k = 0; k < n; k++) {
            if (first) {
                buf_puts(&b, "\n    ");
            } else {
                buf_puts(&b, ",\n    ");
            }
            put_name(&b, &outputs[k]);
            buf_printf(&b, ": \"%s\"", name);
            first = false;
        }
    }
    buf_puts(&b, "\n  }\n}\n");
    const enum status st = quantise_write_text(j->out, "model.safetensors.index.json", &b, j->err);
    buf_deinit(&b);
    return st;
}

/* Lists each matrix and whether it is quantised, so that the loader needs no rule for names. */
static enum status write_config(const struct job *j, const char *dir)
{
    struct quantise_module *modules = xcalloc(j->n_tensors, sizeof *modules);
    size_t n = 0;
    for (size_t i = 0; i < j->n_tensors; i++) {
        const struct checkpoint_tensor *t = &j->tensors[i];
        if (is_plain_matrix(t) && !strstr(t->name, "embed") &&
            strcmp(t->name, "lm_head.weight") != 0) {
            modules[n++] = (struct quantise_module){.name = t->name,
                                                    .n_name = base_bytes(t->name),
                                                    .stays = !is_quantised(t),
                                                    .group = group_of(j, t->dims[1])};
        }
    }
    const enum status st = quantise_write_config(dir, j->out, j->form, modules, n, j->err);
    free(modules);
    return st;
}

/* Everything is checked before the folder is created. */
static enum status write_all_files(struct job *j, const char *dir)
{
    TRY(check_tensors(j));
    TRY(quantise_make_folder(j->out, j->err));
    cut_into_shards(j);
    for (size_t i = 0; i < j->n_shards; i++) {
        TRY(write_shard(j, i));
    }
    j->report->n_files = (int64_t)j->n_shards;
    if (j->n_shards > 1) {
        TRY(write_index(j));
    }
    TRY(quantise_copy_rest(dir, j->out, j->err));
    return write_config(j, dir);
}

/* Refuses a model that is already quantised, because quantising it again would lose more
 * accuracy. */
static enum status check_source(const char *dir, struct err *err)
{
    struct quant *quant;
    bool is_gguf;
    TRY(gguf_is(dir, &is_gguf, err));
    if (is_gguf) {
        return err_set(err, ERR_UNSUPPORTED,
                       "%.300s: a GGUF file cannot be quantised; give the "
                       "folder that it was made from",
                       dir);
    }
    TRY(quant_open(dir, &quant, err));
    const bool is_quantised_already = quant != NULL;
    quant_close(quant);
    if (is_quantised_already) {
        return err_set(err, ERR_UNSUPPORTED, "%.300s: the model is quantised already", dir);
    }
    return OK;
}

enum status quantise_folder(const char *dir, const char *out, const char *format,
                            int64_t shard_bytes, struct quantise_report *report, struct err *err)
{
    struct job j = {.out = out, .shard_bytes = shard_bytes, .report = report, .err = err};
    *report = (struct quantise_report){0};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (strcmp(forms[i].name, format) == 0) {
            j.form = &forms[i];
        }
    }
    if (!j.form) {
        return err_set(err, ERR_INVALID, "'%.80s' is not a format; use one of %s", format,
                       QUANTISE_FORMATS);
    }
    TRY(check_source(dir, err));
    struct checkpoint *ck;
    TRY(checkpoint_open(dir, &ck, err));
    j.q = (struct requantise){.kind = j.form->kind, .blocks = j.form->blocks};
    j.tensors = checkpoint_tensors(ck, &j.n_tensors);
    j.shards = xcalloc(j.n_tensors + 1, sizeof *j.shards);
    const enum status st = write_all_files(&j, dir);
    free(j.shards);
    requantise_deinit(&j.q);
    checkpoint_close(ck);
    return st;
}
