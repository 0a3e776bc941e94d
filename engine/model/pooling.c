// SPDX-License-Identifier: Apache-2.0
/* The modules of sentence-transformers, and how a pooled vector passes through its matrices. */
#include "engine/model/pooling.h"

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "engine/gguf/folder.h"
#include "engine/model/checkpoint.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_FILE_BYTES = 1 << 20, MAX_WIDTH = 1 << 20 };

/* ---- the arithmetic ----------------------------------------------------------------------- */

bool pool_act_named(const char *name, enum pool_act *out)
{
    static const struct {
        const char *name;
        enum pool_act act;
    } rows[] = {{"identity", POOL_ACT_NONE}, {"linear", POOL_ACT_NONE}, {"tanh", POOL_ACT_TANH},
                {"relu", POOL_ACT_RELU},     {"gelu", POOL_ACT_GELU},   {"silu", POOL_ACT_SILU},
                {"swish", POOL_ACT_SILU}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcasecmp(rows[i].name, name) == 0) {
            *out = rows[i].act;
            return true;
        }
    }
    return false;
}

static float activated(enum pool_act act, float x)
{
    switch (act) {
    case POOL_ACT_NONE: return x;
    case POOL_ACT_TANH: return tanhf(x);
    case POOL_ACT_RELU: return greater(x, 0.0f);
    case POOL_ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case POOL_ACT_SILU: return x / (1.0f + expf(-x));
    }
    return x;
}

static void norm_row(const struct pool_step *s, float *x)
{
    double sum = 0, squares = 0;
    for (int32_t i = 0; i < s->n_out; i++) {
        sum += (double)x[i];
    }
    const double mean = sum / s->n_out;
    for (int32_t i = 0; i < s->n_out; i++) {
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    }
    const double scale = 1.0 / sqrt(squares / s->n_out + (double)s->eps);
    for (int32_t i = 0; i < s->n_out; i++) {
        x[i] = (float)(((double)x[i] - mean) * scale) * s->norm[i];
        x[i] += s->norm_bias ? s->norm_bias[i] : 0.0f;
    }
}

static void run_step(const struct pool_step *s, const float *x, float *y)
{
    for (int32_t k = 0; k < s->n_out; k++) {
        y[k] = 0.0f;
    }
    for (int32_t i = 0; i < s->n_in; i++) {
        const float *column = s->columns + (size_t)i * (size_t)s->n_out;
        for (int32_t k = 0; k < s->n_out; k++) {
            y[k] += x[i] * column[k];
        }
    }
    for (int32_t k = 0; k < s->n_out; k++) {
        y[k] = activated(s->act, y[k] + (s->bias ? s->bias[k] : 0.0f));
    }
    if (s->norm) {
        norm_row(s, y);
    }
}

int32_t pooling_width(const struct pooling *p, int32_t hidden)
{
    return p->n_steps > 0 ? p->steps[p->n_steps - 1].n_out : hidden;
}

void pooling_apply(const struct pooling *p, const float *x, int32_t hidden, float *out)
{
    for (int32_t i = 0; i < p->n_steps; i++) {
        run_step(&p->steps[i], x, p->room[i % 2]);
        x = p->room[i % 2];
    }
    memmove(out, x, (size_t)pooling_width(p, hidden) * sizeof *out); // they may be the same
}

static float *vector_of(const struct weight_part *p)
{
    float *out = NULL;
    if (p) {
        out = xmalloc((size_t)p->n_cols * sizeof *out);
        for (int64_t i = 0; i < p->n_cols; i++) {
            out[i] = weight_part_get(p, 0, i);
        }
    }
    return out;
}

enum status pooling_add(struct pooling *p, const struct pool_parts *parts, enum pool_act act,
                        float eps, struct err *err)
{
    const struct weight_part *m = parts->matrix;
    const size_t n = (size_t)m->n_rows * (size_t)m->n_cols;
    if (p->n_steps == MAX_POOL_STEPS) {
        return err_set(err, ERR_UNSUPPORTED, "more than %d dense modules", MAX_POOL_STEPS);
    }
    float *columns = mem_try_calloc(n, sizeof *columns);
    if (!columns) {
        return err_set(err, ERR_NOMEM, "no memory for a dense module");
    }
    for (int64_t row = 0; row < m->n_rows; row++) {
        for (int64_t col = 0; col < m->n_cols; col++) {
            columns[col * m->n_rows + row] = weight_part_get(m, row, col);
        }
    }
    p->steps[p->n_steps++] = (struct pool_step){.n_in = (int32_t)m->n_cols,
                                                .n_out = (int32_t)m->n_rows,
                                                .columns = columns,
                                                .bias = vector_of(parts->bias),
                                                .norm = vector_of(parts->norm),
                                                .norm_bias = vector_of(parts->norm_bias),
                                                .act = act,
                                                .eps = eps};
    for (int i = 0; i < 2; i++) {
        int32_t widest = 1;
        for (int32_t k = 0; k < p->n_steps; k++) {
            widest = greater(p->steps[k].n_out, widest);
        }
        free(p->room[i]);
        p->room[i] = xcalloc((size_t)widest, sizeof *p->room[i]);
    }
    return OK;
}

void pooling_deinit(struct pooling *p)
{
    for (int32_t i = 0; i < p->n_steps; i++) {
        free(p->steps[i].columns);
        free(p->steps[i].bias);
        free(p->steps[i].norm);
        free(p->steps[i].norm_bias);
    }
    free(p->room[0]);
    free(p->room[1]);
    *p = (struct pooling){0};
}

/* ---- the files ---------------------------------------------------------------------------- */

/* The part of a class's name after its modules. */
static const char *class_of(const char *name)
{
    const char *dot = strrchr(or_empty(name), '.');
    return dot ? dot + 1 : or_empty(name);
}

/* A file of a module; *out is NULL if there is none. */
static enum status read_module(const char *dir, const char *module, struct json **out,
                               struct err *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s/config.json", dir, module);
    *out = NULL;
    if (file_is_absent(path)) {
        return OK;
    }
    return json_parse_file(path, MAX_FILE_BYTES, out, err);
}

static enum status read_kind(const struct json *config, bool encoder, enum pool_kind *kind,
                             struct err *err)
{
    static const struct {
        const char *key, *word;
        enum pool_kind kind;
    } rows[] = {{"pooling_mode_cls_token", "cls", POOL_FIRST},
                {"pooling_mode_mean_tokens", "mean", POOL_MEAN},
                {"pooling_mode_max_tokens", "max", POOL_MAX},
                {"pooling_mode_lasttoken", "lasttoken", POOL_LAST},
                {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", POOL_NONE},
                {"pooling_mode_weightedmean_tokens", "weightedmean", POOL_NONE}};
    const char *word = json_get_string(config, "pooling_mode"), *found = NULL;
    int n = 0;
    *kind = POOL_MEAN;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (json_get_bool(config, rows[i].key, word && strcmp(word, rows[i].word) == 0)) {
            *kind = rows[i].kind;
            found = rows[i].word;
            n++;
        }
    }
    if ((word && n == 0) || n > 1 || (n == 1 && *kind == POOL_NONE)) {
        return err_set(err, ERR_UNSUPPORTED, "the pooling %s is not supported",
                       n > 1 ? "by several modes" : or_text(found, word));
    }
    if (*kind == POOL_FIRST && !encoder) {
        return err_set(err, ERR_UNSUPPORTED,
                       "pooling by the first token is supported only for encoders, because in "
                       "other models it has not seen the text");
    }
    return OK;
}

static enum status read_pooling(const char *dir, const char *module, bool encoder,
                                struct pooling *p, struct err *err)
{
    struct json *config;
    TRY(read_module(dir, module, &config, err));
    if (!config) {
        return OK;
    }
    const enum status st = read_kind(config, encoder, &p->kind, err);
    json_free(config);
    return st == OK ? OK : err_prefix(err, st, "%s/%s/config.json", dir, module);
}

/* A tensor of a module's file; the part is empty if there is none. */
static enum status part_of_module(const struct checkpoint *ck, const char *name, int64_t n_rows,
                                  int64_t n_cols, struct weight_part *out, struct err *err)
{
    const struct checkpoint_tensor *t = checkpoint_find(ck, name);
    const bool plain = t && t->dtype_known && !t->blocks &&
                       (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16);
    const int32_t n_dims = n_rows > 1 ? 2 : 1;
    if (!plain || t->n_dims < n_dims || t->dims[t->n_dims - 1] != n_cols ||
        (t->n_dims == 2 && t->dims[0] != n_rows) || t->n_dims > 2) {
        return err_set(err, ERR_FORMAT, "%s: there is no tensor %s of %lld x %lld numbers",
                       checkpoint_where(ck), name, (long long)n_rows, (long long)n_cols);
    }
    *out = weight_part_plain(t->data, t->dtype, n_rows, n_cols, n_cols);
    return OK;
}

static enum status load_dense(const struct checkpoint *ck, const struct json *config, int32_t width,
                              struct pooling *p, struct err *err)
{
    struct weight_part matrix, bias;
    const int64_t n_in = json_get_int(config, "in_features", 0);
    const int64_t n_out = json_get_int(config, "out_features", 0);
    const bool biased = json_get_bool(config, "bias", true);
    const char *name = or_text(json_get_string(config, "activation_function"), "Tanh");
    enum pool_act act;
    if (n_in != width || n_out < 1 || n_out > MAX_WIDTH) {
        return err_set(err, ERR_FORMAT,
                       "in_features is %lld and out_features %lld, but vectors have %d elements",
                       (long long)n_in, (long long)n_out, width);
    }
    if (!pool_act_named(class_of(name), &act)) {
        return err_set(err, ERR_UNSUPPORTED, "the activation_function '%.60s' is not supported",
                       name);
    }
    TRY(part_of_module(ck, "linear.weight", n_out, n_in, &matrix, err));
    if (biased) {
        TRY(part_of_module(ck, "linear.bias", 1, n_out, &bias, err));
    }
    const struct pool_parts parts = {.matrix = &matrix, .bias = biased ? &bias : NULL};
    return pooling_add(p, &parts, act, 0.0f, err);
}

static enum status read_dense(const char *dir, const char *module, int32_t hidden,
                              struct pooling *p, struct err *err)
{
    char path[PATH_MAX];
    struct json *config;
    struct checkpoint *ck = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, module);
    TRY(read_module(dir, module, &config, err));
    enum status st = checkpoint_open(path, &ck, err);
    if (st == OK) {
        st = load_dense(ck, config, pooling_width(p, hidden), p, err);
    }
    checkpoint_close(ck);
    json_free(config);
    return st == OK ? OK : err_prefix(err, st, "%s", path);
}

/* One module of the list. The vectors are normalised in the end, whatever the list says, unless a
 * request does not want it; so nothing may follow a norm. */
static enum status read_entry(const char *dir, const struct json *entry, int32_t hidden,
                              bool encoder, bool *normed, struct pooling *p, struct err *err)
{
    const char *class = class_of(json_get_string(entry, "type"));
    const char *module = or_empty(json_get_string(entry, "path"));
    if (strcmp(class, "Transformer") == 0 || strcmp(class, "Dropout") == 0) {
        return OK;
    }
    if (strcmp(class, "Pooling") == 0) {
        return read_pooling(dir, module, encoder, p, err);
    }
    if (strcmp(class, "Normalize") == 0) {
        *normed = true;
        return OK;
    }
    if (strcmp(class, "Dense") == 0 && !*normed && !strstr(module, "..")) {
        return read_dense(dir, module, hidden, p, err);
    }
    return err_set(err, ERR_UNSUPPORTED, "%s/modules.json: the module '%.60s' is not supported%s",
                   dir, class, text_if(*normed, " after Normalize"));
}

enum status pooling_read_modules(const char *dir, int32_t hidden, bool encoder, struct pooling *p,
                                 struct err *err)
{
    char path[PATH_MAX];
    struct json *list;
    bool is_file, normed = false;
    TRY(folder_is_file(dir, &is_file, err));
    snprintf(path, sizeof path, "%s/modules.json", dir);
    if (is_file) {
        return OK;
    }
    if (file_is_absent(path)) {
        return read_pooling(dir, "1_Pooling", encoder, p, err);
    }
    TRY(json_parse_file(path, MAX_FILE_BYTES, &list, err));
    enum status st = OK;
    for (const struct json *m = json_first(list); m && st == OK; m = json_next(m)) {
        st = read_entry(dir, m, hidden, encoder, &normed, p, err);
    }
    json_free(list);
    return st;
}
