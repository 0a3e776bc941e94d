// SPDX-License-Identifier: Apache-2.0
#include "engine/model/config.h"
#include "engine/base/optional.h"

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/minmax.h"
#include "engine/gguf/folder.h"
#include "engine/model/overrides.h"
#include "engine/model/wrappers.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* Reads a required positive integer of at most `max`. */
static enum status need_int(const struct json *j, const char *key, int64_t max, int32_t *out,
                            struct err *err)
{
    int64_t v;
    const struct json *node = json_get(j, key);
    if (!node) {
        return err_set(err, ERR_FORMAT, "config.json: %s is missing", key);
    }
    if (!json_int64(node, &v) || v < 1 || v > max) {
        return err_set(err, ERR_FORMAT, "config.json: %s must be an integer from 1 to %lld", key,
                       (long long)max);
    }
    *out = (int32_t)v;
    return OK;
}

static enum status option_int(const struct json *j, const char *key, int64_t max, int32_t otherwise,
                              int32_t *out, struct err *err)
{
    if (json_type(json_get(j, key)) == JSON_NULL) {
        *out = otherwise;
        return OK;
    }
    return need_int(j, key, max, out, err);
}

/* The width of the MLPs: one number, or one for each layer. */
static enum status read_widths(const struct json *j, struct model_config *c, struct err *err)
{
    enum { WIDEST = 1 << 22 };
    const struct json *widths = json_get(j, "intermediate_size");
    if (!json_is(widths, JSON_ARRAY)) {
        return option_int(j, "intermediate_size", WIDEST, c->hidden * 4, &c->ffn, err);
    }
    int32_t i = 0;
    for (const struct json *v = json_first(widths); v; v = json_next(v), i++) {
        int64_t n;
        if (!json_int64(v, &n) || n < 1 || n > WIDEST || i >= c->n_layers) {
            break;
        }
        c->layers[i].ffn = (int32_t)n;
        c->ffn = greater(c->ffn, c->layers[i].ffn);
    }
    if (i != c->n_layers || json_count(widths) != (size_t)i) {
        return err_set(err, ERR_FORMAT,
                       "config.json: intermediate_size must be an integer from 1 to %d, or a list "
                       "with one for each layer",
                       WIDEST);
    }
    return OK;
}

/* The sizes that all families have. Their bounds keep later products inside int64_t. */
static enum status read_dims(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(need_int(j, "hidden_size", 1 << 20, &c->hidden, err));
    // For Nemotron's class this list is enough: its length is the number of layers.
    const struct json *kinds = json_get(j, "layers_block_type");
    const int32_t n_kinds = (int32_t)json_count(kinds);
    if (n_kinds > 0 && n_kinds <= MAX_LAYERS) {
        TRY(option_int(j, "num_hidden_layers", MAX_LAYERS, n_kinds, &c->n_layers, err));
    } else {
        TRY(need_int(j, "num_hidden_layers", MAX_LAYERS, &c->n_layers, err));
    }
    TRY(need_int(j, "num_attention_heads", 4096, &c->n_heads, err));
    TRY(need_int(j, "vocab_size", 1 << 24, &c->vocab, err));
    TRY(read_widths(j, c, err));
    TRY(option_int(j, "num_key_value_heads", c->n_heads, c->n_heads, &c->n_kv_heads, err));
    c->head_dim = greater(c->hidden / c->n_heads, 1);
    // With latent attention, classes save the size of the part with positions, which may be 0.
    if (json_get_int(j, "kv_lora_rank", 0) == 0 || json_get_int(j, "head_dim", -1) != 0) {
        TRY(option_int(j, "head_dim", 4096, c->hidden / c->n_heads, &c->head_dim, err));
    }
    TRY(option_int(j, "max_position_embeddings", MAX_POSITIONS, 2048, &c->max_pos, err));
    int64_t n_modules = json_get_int(j, "mtp_num_hidden_layers", 0); // Qwen's name for it
    c->n_draft_layers = (int32_t)json_get_int(j, "num_nextn_predict_layers", n_modules);
    if (c->n_heads % c->n_kv_heads) {
        return err_set(err, ERR_FORMAT, "config.json: %d heads cannot share %d key/value heads",
                       c->n_heads, c->n_kv_heads);
    }
    if (c->head_dim < 1) {
        return err_set(err, ERR_FORMAT, "config.json: head_dim is 0");
    }
    return OK;
}

static const char *dtype_name(const struct json *j)
{
    const char *name = json_get_string(j, "dtype");
    if (name) {
        return name;
    }
    return json_get_string(j, "torch_dtype");
}

/* The dtype may be in the outer config, with or without "torch.". */
static enum status read_dtype(const struct json *root, const struct json *j, struct model_config *c,
                              struct err *err)
{
    const char *name = dtype_name(j);
    if (!name) {
        name = dtype_name(root);
    }
    c->dtype_is_set = name != NULL;
    if (!name) {
        name = "bfloat16";
    }
    const char *bare = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
    if (!dtype_find(bare, &c->dtype)) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: dtype '%s' is not supported", name);
    }
    return OK;
}

/* Several keys are in use for this setting; the first one that is present counts. */
static enum status read_activation(const struct json *j, struct model_config *c, struct err *err)
{
    const char *name = json_get_string(j, "hidden_activation");
    if (!name) {
        name = json_get_string(j, "hidden_act");
    }
    if (!name) {
        name = json_get_string(j, "mlp_hidden_act");
    }
    if (!name) {
        return OK;
    }
    static const struct {
        const char *name;
        enum activation act;
    } rows[] = {{"silu", ACT_SILU},          {"swish", ACT_SILU},
                {"gelu", ACT_GELU},          {"gelu_pytorch_tanh", ACT_GELU_TANH},
                {"gelu_new", ACT_GELU_TANH}, {"gelu_fast", ACT_GELU_TANH},
                {"relu", ACT_RELU},          {"relu2", ACT_RELU2},
                {"swigluoai", ACT_GPT_OSS},  {"xielu", ACT_XIELU}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            c->act = rows[i].act;
            return OK;
        }
    }
    return err_set(err, ERR_UNSUPPORTED, "config.json: unknown activation '%s'", name);
}

static bool is_state(const char *type)
{
    return strcmp(type, "linear_attention") == 0 || strcmp(type, "mamba") == 0 ||
           strcmp(type, "conv") == 0;
}

/* If layer_types is present, it decides. */
static enum status read_layer_types(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *types = json_get(j, "layer_types");
    if (!json_is(types, JSON_ARRAY)) {
        return OK;
    }
    if (json_count(types) < (size_t)c->n_layers) {
        return err_set(err, ERR_FORMAT, "config.json: layer_types has fewer entries than layers");
    }
    int32_t window = (int32_t)json_get_int(j, "sliding_window", 0);
    int32_t i = 0;
    for (const struct json *t = json_first(types); t && i < c->n_layers; t = json_next(t), i++) {
        const char *name = json_string(t);
        const bool stateful = c->state.layer.conv_kernel > 0, sparse = c->index.top_k > 0;
        c->layers[i].chunk = 0;
        if (name && is_state(name) && stateful) {
            c->layers[i].kv = -1;
            c->layers[i].state = 0;
        } else if (name && (strcmp(name, "full_attention") == 0 ||
                            (stateful && strcmp(name, "attention") == 0) ||
                            (sparse && strcmp(name, "indexed_attention") == 0))) {
            c->layers[i].window = 0;
            c->layers[i].kv = 0;
            c->layers[i].state = -1;
        } else if (name && strcmp(name, "minimax_m3_sparse") == 0 && c->index.block > 0) {
            c->layers[i].window = 0;
            c->layers[i].index = 0;
        } else if (name && strcmp(name, "chunked_attention") == 0) {
            TRY(need_int(j, "attention_chunk_size", MAX_POSITIONS, &c->layers[i].chunk, err));
            c->layers[i].window = 0;
            c->layers[i].kv = 0;
            c->layers[i].state = -1;
        } else if (name && strcmp(name, "sliding_attention") == 0) {
            if (window < 1) {
                return err_set(err, ERR_FORMAT,
                               "config.json: sliding layers, but no sliding_window");
            }
            c->layers[i].window = window;
            c->layers[i].kv = 0;
            c->layers[i].state = -1;
        } else {
            return err_set(err, ERR_UNSUPPORTED, "config.json: unknown layer type '%s'",
                           or_text(name, "(not a string)"));
        }
    }
    return OK;
}

/* Latent attention has no chunks, and picks of an indexer have no windows either. */
static enum status check_bounds(const struct model_config *c, struct err *err)
{
    for (int32_t i = 0; i < c->n_layers && (c->kv_lora > 0 || c->index.top_k > 0); i++) {
        const struct layer_config *l = &c->layers[i];
        if (l->chunk > 0 || (l->window > 0 && c->index.top_k > 0)) {
            return err_set(err, ERR_UNSUPPORTED,
                           "config.json: %s in layer %d is not supported with %s attention",
                           l->chunk > 0 ? "chunked_attention" : "sliding_attention", i,
                           c->index.top_k > 0 ? "sparse" : "latent");
        }
    }
    return OK;
}

/* Layers have the model's sizes unless the family has set others. */
static void size_layers(struct model_config *c)
{
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        if (l->n_heads <= 0) {
            l->n_heads = c->n_heads;
        }
        if (l->n_kv_heads <= 0) {
            l->n_kv_heads = c->n_kv_heads;
        }
        if (l->head_dim <= 0) {
            l->head_dim = c->head_dim;
        }
        if (l->ffn <= 0) {
            l->ffn = c->ffn;
        }
    }
}

/* Numbers the layers with keys and values and the indexers, and separately the layers with a state.
 * The numbers are their indices in the KV set and the state set. */
static void number_layers(struct model_config *c)
{
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        const bool own = l->kv_of == i;
        if (!own) {
            l->kv = c->layers[l->kv_of].kv;
        } else {
            l->kv = l->kv >= 0 ? c->n_kv_layers++ : -1;
            l->state = l->state >= 0 ? c->n_state_layers++ : -1;
        }
        if (l->index >= 0) {
            l->index = c->n_kv_layers;
            c->n_kv_layers += c->index.pool > 0 ? 2 : 1;
        }
        if (own || l->index >= 0) {
            c->last_store = i;
        }
    }
}

/* The longest text that the model was made for, before the operator's options are applied. */
static int32_t natural_length(const struct json *j, int32_t max_pos)
{
    const struct json *rope = rope_params(j);
    const char *type = rope_type(rope);
    double factor = json_get_number(rope, "factor", 1.0), longest = max_pos;
    if (factor <= 1.0 || factor >= 1e6) {
        return max_pos;
    }
    if (strcmp(type, "dynamic") == 0 && !(rope_alpha(j) > 0.0)) {
        longest = (double)max_pos * factor;
    } else if (strcmp(type, "yarn") == 0) {
        // Users who add YaRN do not change max_position_embeddings.
        longest = json_get_number(rope, "original_max_position_embeddings", 0.0) * factor;
    }
    if (longest < max_pos) {
        return max_pos;
    }
    if (longest < MAX_POSITIONS) {
        return (int32_t)longest;
    }
    return MAX_POSITIONS;
}

/* A wrapper's own key takes precedence over that of most text parts, and the family has the
 * default. A separate head is required only if the file says so, because some published folders
 * have neither the key nor the head. */
static void read_tied(const struct json *root, const struct json *j, struct model_config *c)
{
    static const char key[] = "tie_word_embeddings";
    const bool inner = wrapper_heeds_inner_tie(root) && json_get_bool(j, key, false);
    c->tied = inner || json_get_bool(root, key, c->tied);
    c->untied = !inner && !json_get_bool(root, key, true);
}

/* Adds one id or a list of ids. Repeated ids, and ids outside the vocabulary, are dropped. */
static void add_eos(struct model_config *c, const struct json *node)
{
    int64_t v;
    if (json_is(node, JSON_ARRAY)) {
        for (const struct json *e = json_first(node); e; e = json_next(e)) {
            add_eos(c, e);
        }
    } else if (json_int64(node, &v) && v >= 0 && v < c->vocab && c->n_eos < MAX_EOS) {
        for (int32_t i = 0; i < c->n_eos; i++) {
            if (c->eos[i] == v) {
                return;
            }
        }
        c->eos[c->n_eos++] = (int32_t)v;
    }
}

/* Applies a default if it is valid by itself, and ignores it otherwise: published files contain
 * values that no sampler accepts, such as a top_p of 0. */
static void take_default(struct model_config *c, struct sampling_params with, const char *path)
{
    struct err why = {0};
    if (sampling_params_check(&with, c->vocab, &why) == OK) {
        c->defaults = with;
    } else {
        log_warn("%s: %s: ignored", path, why.text);
    }
}

/* Each default is applied separately. One that is out of range is dropped with a warning, and the
 * others still apply. */
static void read_defaults(const struct json *j, const char *path, struct model_config *c)
{
    const struct sampling_params *p = &c->defaults;
    struct sampling_params with = *p;
    bool greedy = !json_get_bool(j, "do_sample", true); // only an explicit false means greedy
    if (greedy) {
        with.temperature = 0.0f;
    } else {
        with.temperature = (float)json_get_number(j, "temperature", 1.0);
    }
    take_default(c, with, path);
    int64_t top_k = json_get_int(j, "top_k", 0);
    if (top_k > INT32_MAX) {
        top_k = INT32_MAX;
    } else if (top_k < INT32_MIN) {
        top_k = INT32_MIN;
    } else if (top_k == -1) { // some files write -1 for "off"
        top_k = 0;
    }
    with = *p;
    with.top_k = (int32_t)top_k;
    take_default(c, with, path);
    with = *p;
    with.top_p = (float)json_get_number(j, "top_p", 1.0);
    take_default(c, with, path);
    with = *p;
    with.min_p = (float)json_get_number(j, "min_p", 0.0);
    take_default(c, with, path);
    with = *p;
    with.repetition_penalty = (float)json_get_number(j, "repetition_penalty", 1.0);
    take_default(c, with, path);
}

/* Takes the ids of the text part and its wrapper; if there are none, takes those of the family,
 * which the defaults have added to j. */
static void read_eos(const struct json *own, const struct json *wrapper, const struct json *j,
                     struct model_config *c)
{
    c->eos_is_usual = !own && !wrapper;
    add_eos(c, c->eos_is_usual ? json_get(j, "eos_token_id") : own);
    add_eos(c, wrapper);
}

/* generation_config.json is optional. Its end-of-text ids are added to those of config.json. If
 * config.json names none, they replace the family's default ids. */
static enum status read_generation(const char *dir, struct model_config *c, struct err *err)
{
    c->defaults = sampling_params_default();
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    if (!folder_has(dir, "generation_config.json")) {
        return OK;
    }
    struct json *j;
    TRY(folder_json(dir, "generation_config.json", MAX_CONFIG_BYTES, &j, err));
    enum status st = model_keys_check_generation(j, err);
    if (st != OK) {
        json_free(j);
        return err_prefix(err, st, "%s", path);
    }
    const struct json *eos = json_get(j, "eos_token_id");
    if (c->eos_is_usual && json_type(eos) != JSON_NULL) {
        c->n_eos = 0;
    }
    add_eos(c, eos);
    read_defaults(j, path, c);
    json_free(j);
    return OK;
}

/* Missing keys get the defaults that transformers has for the family. */
static enum status add_defaults(const struct family *family, struct json *config, struct err *err)
{
    struct json *defaults;
    TRY(json_parse(family->defaults, strlen(family->defaults), NULL, &defaults, err));
    const struct json *others = json_get(defaults, "other_keys");
    bool good = true;
    for (const struct json *v = json_first(others); v; v = json_next(v)) {
        good = json_rename(config, json_key(v), json_string(v)) && good;
    }
    good = json_add_missing(config, defaults) && good;
    json_free(defaults);
    return good ? OK : err_set(err, ERR_NOMEM, "no memory for the family's defaults");
}

/* Keys are checked before the family reads them. An unsupported key that would change answers is
 * reported here by name. */
static enum status open_family(const struct json *root, struct json *config,
                               const struct family **out, struct err *err)
{
    const char *type = json_get_string(config, "model_type");
    if (!type) {
        type = json_get_string(root, "model_type");
    }
    const char *inner = type ? wrapper_family(type) : NULL;
    const struct family *family = type ? family_find(or_text(inner, type)) : NULL;
    if (!family) {
        char known[320]; // leaves room for the rest of the message
        family_list(known, sizeof known);
        return err_set(err, ERR_UNSUPPORTED, "config.json: the model_type '%.40s' is not one of %s",
                       or_text(type, "(missing)"), known);
    }
    TRY(model_keys_check(root, err));
    if (config != root) {
        TRY(model_keys_check(config, err));
    }
    if (!json_get_bool(config, "is_causal", true)) {
        return err_set(
            err, ERR_UNSUPPORTED,
            "config.json: is_causal is false: attention to later tokens is not supported");
    }
    *out = family;
    TRY(wrapper_complete(root, family->model_type, config, err));
    return add_defaults(family, config, err);
}

/* The order matters: first the defaults, then the family's reader, then what is derived from both
 * (layer types, sizes, ropes, end-of-text ids). */
static enum status read_config(struct json *root, struct model_config *c, struct err *err)
{
    struct json *j = wrapper_text(root);
    // Read before the family's default is added.
    const struct json *eos = json_get(j, "eos_token_id");
    const struct json *wrapper_eos = json_get(root, "eos_token_id");
    const struct family *family = NULL;
    TRY(open_family(root, j, &family, err));
    snprintf(c->model_type, sizeof c->model_type, "%s", family->model_type);
    c->names = family->names;
    TRY(read_dims(j, c, err));
    TRY(read_dtype(root, j, c, err));
    c->norm_eps = (float)json_get_number(j, "rms_norm_eps", 1e-6);
    c->attn_scale = 1.0f / sqrtf((float)c->head_dim);
    c->embed_scale = c->residual_scale = c->logit_scale = c->routed_scale = 1.0f;
    c->partial_rotary = 1.0f;
    c->act = ACT_SILU;
    c->gated = true;
    c->n_ropes = 1;
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].kv_of = i;
        c->layers[i].state = c->layers[i].index = -1;
    }
    TRY(read_activation(j, c, err));
    TRY(family->read(j, c, err));
    if (json_is(json_get(j, "intermediate_size"), JSON_ARRAY) && !c->widths_by_layer) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: intermediate_size cannot be a list in this family");
    }
    if (c->act == ACT_XIELU && !c->names->act) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: the activation 'xielu' is not supported in this family");
    }
    if (json_get_bool(j, "norms_plus_one", false)) {
        c->norm_offset = 0.0f;
        c->layer_norms_less_one = false;
    }
    TRY(read_layer_types(j, c, err));
    if (c->read_layers) {
        TRY(c->read_layers(j, c, err));
    }
    TRY(check_bounds(c, err));
    size_layers(c);
    number_layers(c);
    if (c->n_kv_layers == 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: no layer has attention, which is not supported");
    }
    read_tied(root, j, c);
    TRY(ropes_read(j, c, err));
    c->max_pos = c->n_positions > 0 ? c->n_positions : natural_length(j, c->max_pos);
    read_eos(eos, wrapper_eos, j, c);
    return OK;
}

bool model_config_fit(struct model_config *c, int32_t max_len)
{
    bool changed = false;
    for (int32_t i = 0; i < c->n_ropes; i++) {
        changed = rope_fit(&c->rope[i], max_len) || changed;
    }
    return changed;
}

/* Some programs write Infinity, which JSON does not have, for a number; it becomes null. modelopt
 * leaves U+0000 in the names of modules that stay unquantised; it becomes spaces, so such a name
 * matches none. */
static void make_readable(char *text, size_t n)
{
    static const char *const words[] = {"-Infinity", "Infinity"};
    static const char nul[] = "\\u0000";
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        if (quoted && n - i >= sizeof nul - 1 && memcmp(text + i, nul, sizeof nul - 1) == 0) {
            memset(text + i, ' ', sizeof nul - 1);
        } else if (quoted && text[i] == '\\') {
            i++;
        } else if (text[i] == '"') {
            quoted = !quoted;
        }
        for (size_t w = 0; !quoted && w < sizeof words / sizeof words[0]; w++) {
            size_t length = strlen(words[w]);
            if (length <= n - i && memcmp(text + i, words[w], length) == 0) {
                memset(text + i, ' ', length);
                memcpy(text + i, "null", 4);
            }
        }
    }
}

enum status model_config_parse(const char *path, struct json **root, struct err *err)
{
    char *text;
    size_t n;
    TRY(file_read(path, MAX_CONFIG_BYTES, &text, &n, err));
    make_readable(text, n);
    enum status st = json_parse(text, n, NULL, root, err);
    free(text);
    if (st != OK) {
        return err_prefix(err, st, "%s", path);
    }
    return OK;
}

enum status model_config_load(const char *dir, struct model_config *c, struct err *err)
{
    return model_config_load_over(dir, NULL, c, err);
}

/* Overrides are applied before anything is read, so their values are checked like those of the
 * file. */
enum status model_config_load_over(const char *dir, const char *overrides, struct model_config *c,
                                   struct err *err)
{
    *c = (struct model_config){0};
    struct json *root;
    bool is_file;
    TRY(folder_is_file(dir, &is_file, err));
    if (is_file) {
        TRY(folder_json(dir, "config.json", MAX_CONFIG_BYTES, &root, err));
    } else {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/config.json", dir);
        TRY(model_config_parse(path, &root, err));
    }
    enum status st = json_is(root, JSON_OBJECT)
                         ? model_config_override(root, overrides, err)
                         : err_set(err, ERR_FORMAT, "config.json: not a JSON object");
    if (st == OK) {
        st = read_config(root, c, err);
    }
    json_free(root);
    if (st != OK) {
        return err_prefix(err, st, "%s", dir);
    }
    return read_generation(dir, c, err);
}
