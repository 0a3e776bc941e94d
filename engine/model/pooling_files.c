// SPDX-License-Identifier: Apache-2.0
/* The modules of sentence-transformers, from the files in a model's folder. */
#include "engine/model/pooling.h"

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/optional.h"
#include "engine/gguf/folder.h"
#include "engine/model/checkpoint.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 20, MAX_WIDTH = 1 << 20 };

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
    if (strstr(module, "..")) {
        return err_set(err, ERR_FORMAT, "%s/modules.json: the path '%.60s' leaves the folder", dir,
                       module);
    }
    if (strcmp(class, "Pooling") == 0) {
        return read_pooling(dir, module, encoder, p, err);
    }
    if (strcmp(class, "Normalize") == 0) {
        *normed = true;
        return OK;
    }
    if (strcmp(class, "Dense") == 0 && !*normed) {
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
