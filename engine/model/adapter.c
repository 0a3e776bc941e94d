// SPDX-License-Identifier: Apache-2.0
/* Opens adapters' folders, and checks everything in them that does not depend on the model. */
#include "engine/model/adapter.h"

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/gguf/folder.h"
#include "engine/model/checkpoint.h"
#include "engine/model/wrappers.h"
#include "engine/tokenizer/name_pattern.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 4 << 20 }; // chosen

struct adapter {
    const char *name;
    char *dir;
    struct json *config;
    struct checkpoint *files;
    struct adapter_module *modules; // sorted by name
    int32_t n_modules, first;       // first: number of modules of the adapters before it
};

struct adapters {
    struct adapter *list;
    int32_t n, n_modules;
};

/* ---- the config ------------------------------------------------------------------------------ */

/* Some ways to initialise an adapter also change the model's weights, which the folder lacks. */
static bool changes_base(const char *init)
{
    static const char *const ways[] = {"pissa", "olora", "corda", "loftq"};
    for (size_t i = 0; init && i < sizeof ways / sizeof ways[0]; i++) {
        if (strncmp(init, ways[i], strlen(ways[i])) == 0) {
            return true;
        }
    }
    return false;
}

static enum status refuse(const struct adapter *a, const char *key, const char *value,
                          struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED,
                   "adapter '%.64s': %s %.60s in %.200s/adapter_config.json "
                   "is not supported",
                   a->name, key, value, a->dir);
}

/* The keys that change an answer. fan_in_fan_out does not: it is how the base's matrix is stored,
 * while A and B are stored alike for all layers. */
static enum status check_config(const struct adapter *a, struct err *err)
{
    static const char *const flags[] = {"use_dora", "use_qalora", "lora_bias"};
    static const char *const lists[] = {"modules_to_save", "layer_replication",
                                        "trainable_token_indices", "target_parameters",
                                        "alora_invocation_tokens"};
    const struct json *c = a->config;
    const char *type = json_get_string(c, "peft_type");
    const char *bias = json_get_string(c, "bias");
    const char *init = json_get_string(c, "init_lora_weights");
    if (!type || strcmp(type, "LORA") != 0) {
        return refuse(a, "peft_type", or_text(type, "(none)"), err);
    }
    if (bias && strcmp(bias, "none") != 0) {
        return refuse(a, "bias", bias, err);
    }
    if (changes_base(init)) {
        return refuse(a, "init_lora_weights", init, err);
    }
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (json_get_bool(c, flags[i], false)) {
            return refuse(a, flags[i], "true", err);
        }
    }
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        const struct json *list = json_get(c, lists[i]);
        if (json_type(list) != JSON_NULL && json_count(list) > 0) {
            return refuse(a, lists[i], "(not empty)", err);
        }
    }
    return OK;
}

/* The entry of an object whose keys are patterns for the ends of modules' names, as in PEFT; the
 * first one that fits counts. */
static enum status pattern_value(const struct adapter *a, const char *key, const char *module,
                                 double *value, struct err *err)
{
    const struct json *object = json_get(a->config, key);
    for (const struct json *c = json_first(object); c; c = json_next(c)) {
        char text[512];
        struct name_pattern *pattern = NULL;
        if (snprintf(text, sizeof text, "(.*\\.)?(%s)$", json_key(c)) >= (int)sizeof text ||
            !json_is(c, JSON_NUMBER)) {
            return refuse(a, key, json_key(c), err);
        }
        if (name_pattern_compile(text, &pattern, err) != OK) {
            return err_prefix(err, ERR_FORMAT, "adapter '%.64s': %s", a->name, key);
        }
        const bool fits = name_pattern_matches(pattern, module);
        name_pattern_free(pattern);
        if (fits) {
            *value = json_number(c, *value);
            return OK;
        }
    }
    return OK;
}

/* The module's rank must be the one that the config declares, because the scale depends on it.
 * `whole`: its name in the model, as patterns see it. */
static enum status read_scale(const struct adapter *a, const char *whole, struct adapter_module *m,
                              struct err *err)
{
    double rank = json_get_number(a->config, "r", 0.0);
    double alpha = json_get_number(a->config, "lora_alpha", 0.0);
    TRY(pattern_value(a, "rank_pattern", whole, &rank, err));
    TRY(pattern_value(a, "alpha_pattern", whole, &alpha, err));
    if (rank != (double)m->rank) {
        return err_set(err, ERR_FORMAT,
                       "adapter '%.64s': %.120s has rank %lld, but "
                       "adapter_config.json says %g",
                       a->name, m->name, (long long)m->rank, rank);
    }
    const bool root = json_get_bool(a->config, "use_rslora", false);
    m->scale = (float)(alpha / (root ? sqrt(rank) : rank));
    if (!(isfinite(m->scale) && m->scale > 0.0f)) {
        return err_set(err, ERR_FORMAT,
                       "adapter '%.64s': lora_alpha %g of %.120s is not a positive "
                       "number",
                       a->name, alpha, m->name);
    }
    return OK;
}

/* ---- the modules ----------------------------------------------------------------------------- */

/* The name from this word and a number on; NULL: it does not occur. */
static const char *tail_from(const char *name, const char *word)
{
    for (const char *at = name; (at = strstr(at, word)) != NULL; at++) {
        if ((at == name || at[-1] == '.') && isdigit((unsigned char)at[strlen(word)])) {
            return at;
        }
    }
    return NULL;
}

const char *adapters_tail(const char *name)
{
    return or_text(tail_from(name, "layers."), name);
}

/* The name by which a model's loader looks for the module. GPT-2 and its kin call the layers
 * "h.". The caller frees it. */
static char *module_name(const char *name)
{
    static const char layers[] = "layers.", other[] = "h.";
    const char *tail = tail_from(name, layers) ? NULL : tail_from(name, other);
    if (!tail) {
        return xstrdup(adapters_tail(name));
    }
    const char *rest = tail + sizeof other - 1;
    const size_t n = sizeof layers + strlen(rest);
    char *made = xmalloc(n);
    snprintf(made, n, "%s%s", layers, rest);
    return made;
}

static enum status check_tensor(const struct adapter *a, const struct checkpoint_tensor *t,
                                struct err *err)
{
    const bool plain =
        t->dtype_known && (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16);
    if (!plain || t->n_dims != 2 || t->dims[0] < 1 || t->dims[1] < 1) {
        return err_set(err, ERR_FORMAT,
                       "adapter '%.64s': %.200s: tensor %.160s is not a matrix of "
                       "floating-point numbers",
                       a->name, t->file, t->name);
    }
    const int64_t n = t->dims[0] * t->dims[1];
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(dtype_load(t->data, t->dtype, i))) {
            return err_set(err, ERR_FORMAT,
                           "adapter '%.64s': %.200s: tensor %.160s has a value that "
                           "is not finite",
                           a->name, t->file, t->name);
        }
    }
    return OK;
}

/* Pairs the tensor A with its B. */
static enum status read_module(const struct adapter *a, const struct checkpoint_tensor *down,
                               size_t base_bytes, struct adapter_module *m, struct err *err)
{
    char name[1024];
    snprintf(name, sizeof name, "%.*s.lora_B.weight", (int)base_bytes, down->name);
    *m = (struct adapter_module){.down = down, .up = checkpoint_find(a->files, name)};
    if (!m->up) {
        return err_set(err, ERR_FORMAT, "adapter '%.64s': there is no tensor %.200s", a->name,
                       name);
    }
    TRY(check_tensor(a, m->down, err));
    TRY(check_tensor(a, m->up, err));
    m->rank = down->dims[0];
    if (m->up->dims[1] != m->rank || m->rank > MAX_ADAPTER_RANK) {
        return err_set(err, ERR_FORMAT,
                       "adapter '%.64s': %.200s has ranks %lld and %lld; both must "
                       "be the same, and at most %d",
                       a->name, down->name, (long long)m->rank, (long long)m->up->dims[1],
                       MAX_ADAPTER_RANK);
    }
    static const char wrapper[] = "base_model.model.";
    const bool wrapped = strncmp(name, wrapper, sizeof wrapper - 1) == 0;
    name[base_bytes] = '\0';
    m->name = module_name(name);
    return read_scale(a, wrapped ? name + sizeof wrapper - 1 : name, m, err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct adapter_module *)a)->name,
                  ((const struct adapter_module *)b)->name);
}

static bool ends_with(const char *name, const char *end, size_t *begin)
{
    const size_t n = strlen(name), m = strlen(end);
    *begin = n > m ? n - m : 0;
    return n > m && strcmp(name + n - m, end) == 0;
}

/* Pairs of the image part do not matter, because requests with images are refused. */
static enum status read_modules(struct adapter *a, struct err *err)
{
    size_t n, base_bytes, n_towers = 0;
    const struct checkpoint_tensor *all = checkpoint_tensors(a->files, &n);
    a->modules = xcalloc(n, sizeof *a->modules);
    for (size_t i = 0; i < n; i++) {
        if (wrapper_is_tower(all[i].name)) {
            n_towers++;
        } else if (ends_with(all[i].name, ".lora_A.weight", &base_bytes) && base_bytes < 1000) {
            TRY(read_module(a, &all[i], base_bytes, &a->modules[a->n_modules++], err));
        } else if (!ends_with(all[i].name, ".lora_B.weight", &base_bytes)) {
            return err_set(err, ERR_UNSUPPORTED,
                           "adapter '%.64s': tensor %.200s in %.200s is not "
                           "supported: it is neither lora_A nor lora_B of a linear layer",
                           a->name, all[i].name, all[i].file);
        }
    }
    if (n_towers > 0) {
        log_info("adapter '%s': %zu tensors of images and sound are ignored", a->name, n_towers);
    }
    if (a->n_modules == 0) {
        return err_set(err, ERR_FORMAT, "adapter '%.64s': %.300s changes no linear layer", a->name,
                       a->dir);
    }
    qsort(a->modules, (size_t)a->n_modules, sizeof *a->modules, by_name);
    for (int32_t i = 1; i < a->n_modules; i++) {
        if (strcmp(a->modules[i - 1].name, a->modules[i].name) == 0) {
            return err_set(err, ERR_FORMAT, "adapter '%.64s': %.200s occurs twice", a->name,
                           a->modules[i].name);
        }
    }
    return OK;
}

/* PyTorch's file is read only where there is no other, as in PEFT. */
static const char *weights_of(const char *dir)
{
    static const char safe[] = "adapter_model.safetensors", torch[] = "adapter_model.bin";
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, safe);
    if (file_exists(path)) {
        return safe;
    }
    snprintf(path, sizeof path, "%s/%s", dir, torch);
    return file_exists(path) ? torch : safe;
}

static enum status open_one(struct adapter *a, struct err *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/adapter_config.json", a->dir);
    if (json_parse_file(path, MAX_CONFIG_BYTES, &a->config, err) != OK) {
        return err_prefix(err, ERR_IO, "adapter '%.64s'", a->name);
    }
    TRY(check_config(a, err));
    const enum status st = checkpoint_open_file(a->dir, weights_of(a->dir), &a->files, err);
    if (st != OK) {
        return err_prefix(err, st, "adapter '%.64s'", a->name);
    }
    return read_modules(a, err);
}

static enum status check_model(const char *model, struct err *err)
{
    bool is_file;
    TRY(folder_is_file(model, &is_file, err));
    if (!is_file) {
        return OK;
    }
    return err_set(err, ERR_UNSUPPORTED, "adapters need a model folder; %.300s is a GGUF file",
                   model);
}

enum status adapters_open(const char *model, const char *const *names, const char *const *dirs,
                          int32_t n, struct adapters **out, struct err *err)
{
    *out = NULL;
    if (n == 0) {
        return OK;
    }
    TRY(check_model(model, err));
    struct adapters *a = xcalloc(1, sizeof *a);
    enum status st = OK;
    *out = a;
    a->list = xcalloc((size_t)n, sizeof *a->list);
    for (; a->n < n && st == OK; a->n++) {
        struct adapter *one = &a->list[a->n];
        *one = (struct adapter){
            .name = names[a->n], .dir = xstrdup(dirs[a->n]), .first = a->n_modules};
        st = open_one(one, err);
        a->n_modules += one->n_modules;
    }
    if (st != OK) {
        adapters_close(a);
        *out = NULL;
    }
    return st;
}

void adapters_close(struct adapters *a)
{
    for (int32_t i = 0; a && i < a->n; i++) {
        struct adapter *one = &a->list[i];
        for (int32_t k = 0; k < one->n_modules; k++) {
            free(one->modules[k].name);
        }
        free(one->modules);
        free(one->dir);
        json_free(one->config);
        checkpoint_close(one->files);
    }
    if (a) {
        free(a->list);
    }
    free(a);
}

int32_t adapters_count(const struct adapters *a)
{
    return a ? a->n : 0;
}

int32_t adapters_n_modules(const struct adapters *a)
{
    return a ? a->n_modules : 0;
}

const char *adapters_name(const struct adapters *a, int32_t i)
{
    return a->list[i].name;
}

const struct adapter_module *adapters_find(const struct adapters *a, int32_t i, const char *module,
                                           int32_t *number)
{
    const struct adapter *one = &a->list[i];
    const struct adapter_module key = {.name = (char *)(uintptr_t)module};
    const struct adapter_module *m =
        bsearch(&key, one->modules, (size_t)one->n_modules, sizeof key, by_name);
    if (m) {
        *number = one->first + (int32_t)(m - one->modules);
    }
    return m;
}

enum status adapters_check_used(const struct adapters *a, const bool *used, struct err *err)
{
    for (int32_t i = 0; i < adapters_count(a); i++) {
        const struct adapter *one = &a->list[i];
        for (int32_t k = 0; k < one->n_modules; k++) {
            if (!used[one->first + k]) {
                return err_set(
                    err, ERR_UNSUPPORTED,
                    "adapter '%.64s' changes %.160s, which is not possible: this model "
                    "has no such layer, or it is an expert, a router, an embedding, the output "
                    "head, MLA's kv_b_proj, or attention with values narrower than its keys",
                    one->name, one->modules[k].name);
            }
        }
    }
    return OK;
}
