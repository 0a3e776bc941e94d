// SPDX-License-Identifier: Apache-2.0
/* --speculative-config: JSON in vLLM's shape. Unknown keys are errors, never ignored. */
#include "engine/speculate/options.h"

#include "engine/speculate/tree.h"

#include "engine/base/json.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <stdio.h>
#include <string.h>

enum { WHOLE = 100, TEXT_OR_LIST }; // value types of this table, in addition to those of JSON

static const struct {
    const char *name;
    int type;
} keys[] = {{"method", JSON_STRING},
            {"model", TEXT_OR_LIST},
            {"num_speculative_tokens", WHOLE},
            {"prompt_lookup_min", WHOLE},
            {"prompt_lookup_max", WHOLE},
            {"expansion", JSON_ARRAY},
            {"tree_width", WHOLE},
            {"tree_nodes", WHOLE},
            {"disable_by_batch_size", WHOLE},
            {"draft_tensor_parallel_size", WHOLE},
            {"kv_cache_dtype", JSON_STRING},
            {"quantization", JSON_STRING},
            {"rejection_sample_method", JSON_STRING},
            {"draft_sample_method", JSON_STRING},
            {"synthetic_acceptance_rate", JSON_NUMBER},
            {"synthetic_bonus", JSON_BOOL},
            {"fixed", JSON_BOOL}};

enum { N_KEYS = sizeof keys / sizeof keys[0] };

/* Whether the value has the type of the table: a JSON type, or one of the two above. */
static bool has_type(const struct json *j, int type)
{
    int64_t v;
    switch (type) {
    case WHOLE: return json_int64(j, &v);
    case TEXT_OR_LIST: return json_is(j, JSON_STRING) || json_is(j, JSON_ARRAY);
    default: return json_is(j, (enum json_type)type);
    }
}

static const char *type_name(int type)
{
    switch (type) {
    case WHOLE: return "a whole number";
    case TEXT_OR_LIST: return "a folder, or a list of them";
    case JSON_STRING: return "a string";
    case JSON_ARRAY: return "a list";
    case JSON_NUMBER: return "a number";
    default: return "true or false";
    }
}

/* Unknown keys are errors, because users would believe that an ignored option has an effect. */
enum status spec_options_check(const struct json *j, struct err *err)
{
    if (!json_is(j, JSON_OBJECT)) {
        return err_set(err, ERR_INVALID, "speculative-config: must be a JSON object");
    }
    for (const struct json *c = json_first(j); c; c = json_next(c)) {
        size_t i = 0;
        while (i < N_KEYS && strcmp(keys[i].name, json_key(c)) != 0) {
            i++;
        }
        if (i == N_KEYS) {
            return err_set(err, ERR_UNSUPPORTED, "speculative-config: unknown key '%.64s'",
                           json_key(c));
        }
        if (!has_type(c, keys[i].type)) {
            return err_set(err, ERR_INVALID, "speculative-config: %s must be %s", keys[i].name,
                           type_name(keys[i].type));
        }
    }
    return OK;
}

/* Values are also checked against each other, for instance the shortest and the longest length of
 * n-grams. */
enum status spec_options_read(struct spec_options *o, const struct json *j, struct err *err)
{
    int64_t k = json_get_int(j, "num_speculative_tokens", 4);
    int64_t least = json_get_int(j, "prompt_lookup_min", 2);
    int64_t max_n = json_get_int(j, "prompt_lookup_max", greater(least, 5));
    int64_t min_n = json_get_int(j, "prompt_lookup_min", lesser(max_n, 2));
    int64_t busy = json_get_int(j, "disable_by_batch_size", 32);
    int64_t ranks = json_get_int(j, "draft_tensor_parallel_size", 1);
    if (k < 1 || k > MAX_DRAFTS - 1) {
        return err_set(err, ERR_INVALID,
                       "speculative-config: num_speculative_tokens must be from "
                       "1 to %d",
                       MAX_DRAFTS - 1);
    }
    if (min_n < 1 || max_n < min_n || max_n > 32) {
        return err_set(err, ERR_INVALID,
                       "speculative-config: prompt_lookup_min and _max must be "
                       "1 <= min <= max <= 32");
    }
    if (busy < 0 || busy > INT32_MAX || ranks < 1 || ranks > INT32_MAX) {
        return err_set(err, ERR_INVALID,
                       "speculative-config: disable_by_batch_size must be 0 or "
                       "more, draft_tensor_parallel_size 1 or more");
    }
    const char *form = json_get_string(j, "quantization");
    o->quantization = form ? requantise_named(form) : REQUANTISE_NOT;
    if (form && o->quantization == REQUANTISE_NOT) {
        return err_set(err, ERR_UNSUPPORTED,
                       "speculative-config: quantization: draft models can be quantised while they "
                       "are loaded, to fp8 or int4; '%.60s' is neither (the format of a folder "
                       "that is quantised already is in its config.json)",
                       form);
    }
    o->k = (int32_t)k;
    o->min_n = (int32_t)min_n;
    o->max_n = (int32_t)max_n;
    o->max_batch = (int32_t)busy;
    o->draft_ranks = (int32_t)ranks;
    const char *kv = json_get_string(j, "kv_cache_dtype");
    snprintf(o->kv_cache_dtype, sizeof o->kv_cache_dtype, "%s", or_empty(kv));
    o->fixed = json_get_bool(j, "fixed", false);
    o->draft_max_len = INT32_MAX;
    return OK;
}

enum status spec_options_read_models(struct spec_options *o, const struct json *j, int32_t most,
                                     struct err *err)
{
    const struct json *models = json_get(j, "model");
    const struct json *one = models;
    if (json_is(models, JSON_ARRAY)) {
        one = json_first(models);
    }
    for (; one && o->n_models < most; one = one == models ? NULL : json_next(one)) {
        const char *folder = json_string(one);
        if (!folder || strlen(folder) >= sizeof o->models[0]) {
            o->n_models = 0;
            break;
        }
        snprintf(o->models[o->n_models++], sizeof o->models[0], "%s", folder);
    }
    if (o->n_models == 0 || one) {
        return err_set(err, ERR_INVALID,
                       "speculative-config: 'model' must name the draft model's "
                       "folder%s",
                       text_if(most > 1, ", or be a list of up to 3"));
    }
    return OK;
}

static enum status read_expansion(struct spec_options *o, const struct json *j, struct err *err)
{
    const struct json *list = json_get(j, "expansion");
    int64_t nodes = 0, level = 1, k = 0;
    for (const struct json *c = json_first(list); c; c = json_next(c)) {
        bool fits = json_int64(c, &k) && k >= 1 && k <= 16 && o->n_expansion < MAX_DRAFTS - 1;
        level = fits ? level * k : MAX_TREE_NODES;
        nodes += level;
        if (!fits || nodes >= MAX_TREE_NODES) {
            return err_set(err, ERR_INVALID,
                           "speculative-config: expansion must be a list of at most %d numbers "
                           "from 1 to 16, which together give at most %d nodes",
                           MAX_DRAFTS - 1, MAX_TREE_NODES - 1);
        }
        o->expansion[o->n_expansion++] = (int32_t)k;
    }
    if (o->n_expansion == 0) {
        return err_set(err, ERR_INVALID, "speculative-config: expansion must be a list of numbers");
    }
    int64_t depth = json_get_int(j, "num_speculative_tokens", o->n_expansion);
    o->k = depth < o->n_expansion ? (int32_t)depth : o->n_expansion;
    o->budget = (int32_t)nodes * 8; // chosen: eight full trees per step
    return OK;
}

enum status spec_options_read_tree(struct spec_options *o, const struct json *j, struct err *err)
{
    int64_t width = json_get_int(j, "tree_width", 4), nodes = json_get_int(j, "tree_nodes", 32);
    if (width < 1 || width > 16 || nodes < 1 || nodes > 4096 || 1 + o->k * width > MAX_TREE_NODES ||
        1 + o->k * width * width > MAX_TREE_CANDIDATES) {
        return err_set(
            err, ERR_INVALID,
            "speculative-config: tree_width must be from 1 to 16, with "
            "num_speculative_tokens times its square below %d, tree_nodes from 1 to 4096",
            MAX_TREE_CANDIDATES);
    }
    o->width = (int32_t)width;
    o->budget = (int32_t)nodes;
    o->lookup = json_get(j, "prompt_lookup_max") != NULL;
    if (json_get(j, "expansion")) {
        return read_expansion(o, j, err);
    }
    return OK;
}

static bool is(const char *s, const char *word)
{
    return s && strcmp(s, word) == 0;
}

/* vLLM's names. "standard" with probabilistic drafts is the method that older versions call
 * "probabilistic". */
enum status spec_options_read_rejection(struct spec_options *o, const struct json *j, bool trees,
                                        struct err *err)
{
    const char *how = json_get_string(j, "rejection_sample_method");
    const char *drafts = json_get_string(j, "draft_sample_method");
    if (how && !is(how, "standard") && !is(how, "strict") && !is(how, "probabilistic") &&
        !is(how, "synthetic")) {
        return err_set(err, ERR_UNSUPPORTED,
                       "speculative-config: rejection_sample_method '%s' is "
                       "not one of standard, probabilistic, synthetic",
                       how);
    }
    if (drafts && !is(drafts, "greedy") && !is(drafts, "probabilistic")) {
        return err_set(err, ERR_UNSUPPORTED,
                       "speculative-config: draft_sample_method '%s' is not "
                       "one of greedy, probabilistic",
                       drafts);
    }
    double rate = json_get_number(j, "synthetic_acceptance_rate", -1.0);
    if (is(how, "synthetic")) {
        if (trees) {
            return err_set(err, ERR_UNSUPPORTED,
                           "speculative-config: synthetic acceptance is for "
                           "chains, not for trees");
        }
        o->rejection = REJECT_SYNTHETIC;
        o->synthetic_rate = (float)rate;
        o->no_bonus = !json_get_bool(j, "synthetic_bonus", true);
        if (rate >= 0.0 && rate <= 1.0) {
            return OK;
        }
        return err_set(err, ERR_INVALID,
                       "speculative-config: synthetic_acceptance_rate must "
                       "be from 0 to 1");
    }
    if (rate != -1.0) {
        return err_set(err, ERR_INVALID,
                       "speculative-config: synthetic_acceptance_rate needs "
                       "rejection_sample_method 'synthetic'");
    }
    if (is(how, "probabilistic") || is(drafts, "probabilistic")) {
        o->rejection = REJECT_PROBABILISTIC;
        bool one_law = o->n_models == 1 && !o->lookup;
        if (!one_law) {
            return err_set(err, ERR_UNSUPPORTED,
                           "speculative-config: probabilistic rejection needs the distribution of "
                           "one draft model: the method "
                           "draft_model or tree, with one model and no lookup");
        }
        return OK;
    }
    return OK;
}
