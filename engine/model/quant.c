// SPDX-License-Identifier: Apache-2.0
/* How a checkpoint is quantised: rules from its config, applied to modules by name. */
#include "engine/model/quant.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/gguf/folder.h"
#include "engine/model/config.h"
#include "engine/model/quant_rules.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_FILE_BYTES = 16 << 20 };

struct quant {
    struct quant_rules *rules;
    char kv_cache[64]; // "": none is requested
};

/* The places where a quantisation config may be, in order of preference, and the method that
 * applies if the file names none. */
static const struct source {
    const char *file, *keys[2]; // members within members
    const char *method;
} sources[] = {
    {"config.json", {"quantization_config", "quantization"}, "modelopt"}, // older files
    {"config.json", {"quantization_config", NULL}, NULL},
    {"config.json", {"text_config", "quantization_config"}, NULL},
    {"config.json", {"llm_config", "quantization_config"}, NULL},
    {"config.json", {"compression_config", NULL}, "compressed-tensors"},
    {"hf_quant_config.json", {"quantization", NULL}, "modelopt"},
    {"quantize_config.json", {NULL, NULL}, "gptq"},
    {"quant_config.json", {NULL, NULL}, "awq"},
};

/* In older FP8 files kv_cache_scheme is "static", otherwise it is an object; modelopt also has its
 * own key. Whether there are scales is decided by the tensors. */
static void read_kv_cache(const struct json *j, char *out, size_t n_bytes)
{
    const struct json *scheme = json_get(j, "kv_cache_scheme");
    const char *word = json_get_string(j, "kv_cache_quant_algo");
    const char *type = json_get_string(scheme, "type");
    int64_t bits = json_get_int(scheme, "num_bits", 0);
    if (!word) {
        word = json_string(scheme);
    }
    if (word) {
        bool fp8 = strcasecmp(word, "fp8") == 0 || strcmp(word, "static") == 0;
        snprintf(out, n_bytes, "%.40s", fp8 ? "fp8" : word);
    } else if (json_is(scheme, JSON_OBJECT)) {
        bool fp8 = bits == 8 && (!type || strcmp(type, "float") == 0);
        if (fp8) {
            snprintf(out, n_bytes, "fp8");
        } else {
            snprintf(out, n_bytes, "%.30s of %lld bits", or_text(type, "numbers"), (long long)bits);
        }
    }
}

/* The source's object in its file; NULL: the file has none. */
static const struct json *config_in(const struct json *root, const struct source *s)
{
    const struct json *j = root;
    for (int32_t i = 0; i < 2 && s->keys[i]; i++) {
        j = json_get(j, s->keys[i]);
    }
    return json_is(j, JSON_OBJECT) && json_first(j) ? j : NULL;
}

/* The method that the config names, or the one implied by its keys or by the file that it is in. */
static const char *name_in(const struct json *j, const struct source *s)
{
    const char *name = json_get_string(j, "quant_method");
    if (!name && json_get_string(j, "quant_algo")) {
        return "modelopt";
    }
    return name ? name : s->method;
}

static enum status read_rules(const struct json *j, const char *name, struct quant **out,
                              struct err *err)
{
    if (!name) {
        return err_set(err, ERR_FORMAT, "quantization_config has no quant_method");
    }
    const struct quant_method *row = quant_method_find(name);
    if (!row) {
        char known[256];
        quant_method_list(known, sizeof known);
        return err_set(err, ERR_UNSUPPORTED, "the quant_method '%.40s' is not one of %s", name,
                       known);
    }
    struct quant *q = xcalloc(1, sizeof *q);
    q->rules = quant_rules_new();
    enum status st = row->read(j, q->rules, err);
    if (st != OK) {
        quant_close(q);
        return err_prefix(err, st, "quant_method %s", name);
    }
    read_kv_cache(j, q->kv_cache, sizeof q->kv_cache);
    *out = q;
    return OK;
}

/* Checkpoints describe their format in one of several files and keys. It is not an error if a file
 * is missing. */
static enum status open_source(const char *dir, const struct source *s, struct quant **out,
                               struct err *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, s->file);
    if (!file_exists(path)) {
        return OK;
    }
    struct json *root;
    TRY(model_config_parse(path, &root, err));
    const struct json *j = config_in(root, s);
    enum status st = j ? read_rules(j, name_in(j, s), out, err) : OK;
    json_free(root);
    if (st != OK) {
        return err_prefix(err, st, "%s", path);
    }
    return OK;
}

enum status quant_open(const char *dir, struct quant **out, struct err *err)
{
    *out = NULL;
    bool is_file;
    TRY(folder_is_file(dir, &is_file, err));
    if (is_file) {
        return OK; // the tensors of a GGUF file describe themselves
    }
    for (size_t i = 0; i < sizeof sources / sizeof sources[0] && !*out; i++) {
        TRY(open_source(dir, &sources[i], out, err));
    }
    return OK;
}

enum status quant_method_of(const char *dir, char *out, size_t n_bytes, struct err *err)
{
    char path[PATH_MAX];
    bool is_file;
    TRY(folder_is_file(dir, &is_file, err));
    out[0] = '\0';
    for (size_t i = 0; i < sizeof sources / sizeof sources[0] && !out[0]; i++) {
        const struct source *s = &sources[i];
        struct json *root = NULL;
        if (!folder_has(dir, s->file)) {
            continue;
        }
        if (is_file) {
            TRY(folder_json(dir, s->file, MAX_FILE_BYTES, &root, err));
        } else {
            snprintf(path, sizeof path, "%s/%s", dir, s->file);
            TRY(model_config_parse(path, &root, err));
        }
        const struct json *j = config_in(root, s);
        snprintf(out, n_bytes, "%s", j ? or_empty(name_in(j, s)) : "");
        json_free(root);
    }
    return OK;
}

void quant_close(struct quant *q)
{
    if (q) {
        quant_rules_free(q->rules);
        free(q);
    }
}

const char *quant_kv_cache(const struct quant *q)
{
    if (q && q->kv_cache[0]) {
        return q->kv_cache;
    }
    return NULL;
}

/* A module that is stored quantised must have a rule, because guessing its format could give wrong
 * numbers. */
enum status quant_read(const struct quant *q, struct module *m, const char *other,
                       struct weight_part *out, bool *found)
{
    const struct checkpoint_tensor *values;
    *found = module_is_quantised(m, &values);
    if (!*found) {
        return OK;
    }
    m->scheme = quant_rules_find(q->rules, m->name, other);
    if (!m->scheme->format) {
        return err_set(m->err, ERR_FORMAT,
                       "%s: tensor %s is quantised, but the config excludes its module",
                       values->file, values->name);
    }
    return module_read(m, values, out);
}

void quant_dummy(const struct quant *q, struct module *m, const char *other,
                 struct weight_part *out, bool *found)
{
    m->scheme = quant_rules_find(q->rules, m->name, other);
    *found = m->scheme->format && module_dummy(m, out);
}
