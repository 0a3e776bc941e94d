// SPDX-License-Identifier: Apache-2.0
/* The quant_methods. Each translates its config to rules. */
#include "engine/base/optional.h"
#include "engine/model/quant_keys.h"

#include "engine/base/words.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- fp8 ---------------------------------------------------------------------------------- */

/* Inputs have a scale per row, or one per block as wide as the weights' blocks. */
static enum status read_fp8_inputs(const struct json *j, struct quant_scheme *s, struct err *err)
{
    const char *scheme = json_get_string(j, "activation_scheme");
    const char *scales = json_get_string(j, "scale_fmt");
    s->inputs =
        (struct input_rule){.numbers = INPUT_E4M3, .from_row = true, .group = s->block_cols};
    s->inputs.power_of_two = scales && strcmp(scales, "ue8m0") == 0;
    if (scheme && strcmp(scheme, "static") == 0) {
        s->inputs = (struct input_rule){.numbers = INPUT_E4M3};
        return OK;
    }
    return quant_check_string(j, "activation_scheme", "dynamic", err);
}

static enum status read_fp8(const struct json *j, struct quant_rules *rules, struct err *err)
{
    struct quant_scheme s = {.format = format_find("fp8"), .bits = 8};
    TRY(quant_check_string(j, "fmt", "e4m3", err));
    TRY(quant_check_string(j, "expert_dtype", "fp8", err));
    TRY(quant_read_block(json_get(j, "weight_block_size"), "weight_block_size", &s, err));
    TRY(read_fp8_inputs(j, &s, err));
    TRY(quant_leave_alone(j, "ignored_layers", RULE_PART, rules, err));
    TRY(quant_leave_alone(j, "modules_to_not_convert", RULE_PART, rules, err));
    return quant_rules_add(rules, RULE_ALL, "", &s, err);
}

/* Meta's files: a scale per output. Inputs above activation_scale_ub are clipped. */
static enum status read_fbgemm(const struct json *j, struct quant_rules *rules, struct err *err)
{
    const float usual = 1200.0f;
    const struct json *limit = json_get(j, "activation_scale_ub");
    struct quant_scheme s = {.format = format_find("fp8"),
                             .bits = 8,
                             .inputs = {.numbers = INPUT_E4M3, .from_row = true, .limit = usual}};
    if (json_type(limit) != JSON_NULL) {
        s.inputs.limit = (float)json_number(limit, 0.0);
    }
    if (!(s.inputs.limit > 0.0f) || !isfinite(s.inputs.limit)) {
        return err_set(err, ERR_FORMAT, "activation_scale_ub must be a positive number");
    }
    TRY(quant_leave_alone(j, "modules_to_not_convert", RULE_PART, rules, err));
    return quant_rules_add(rules, RULE_ALL, "", &s, err);
}

/* ---- compressed-tensors ------------------------------------------------------------------- */

/* Reads how a group rounds inputs. If the node is null, it does not round them. */
static enum status read_ct_inputs(const struct json *j, struct input_rule *out, struct err *err)
{
    *out = (struct input_rule){.numbers = INPUT_AS_IT_IS};
    if (!json_is(j, JSON_OBJECT)) {
        return OK;
    }
    const char *type = json_get_string(j, "type"), *strategy = json_get_string(j, "strategy");
    bool is_float = type && strcmp(type, "float") == 0;
    int32_t bits;
    TRY(quant_read_int(j, "num_bits", 1, 16, 8, &bits, err));
    if (bits == 8) {
        out->numbers = is_float ? INPUT_E4M3 : INPUT_I8;
    } else if (bits == 4 && is_float) {
        out->numbers = INPUT_E2M1;
    } else {
        return err_set(err, ERR_UNSUPPORTED, "input_activations of %d bits are not supported",
                       bits);
    }
    out->asymmetric = !json_get_bool(j, "symmetric", true);
    out->from_row = json_get_bool(j, "dynamic", false) || json_get_string(j, "dynamic");
    if (out->from_row) {
        TRY(quant_read_group(j, "group_size", 0, &out->group, err));
    }
    if (strategy && strcmp(strategy, "token") == 0) {
        out->group = 0;
    }
    out->power_of_two = out->numbers == INPUT_E2M1 && out->group == 32;
    return OK;
}

/* Reads a group's scheme. Its format is NULL if the group does not quantise weights. */
static enum status read_ct_scheme(const struct json *group, const char *otherwise,
                                  struct quant_scheme *s, struct err *err)
{
    const struct json *weights = json_get(group, "weights");
    *s = (struct quant_scheme){.bits = 8};
    if (!json_is(weights, JSON_OBJECT)) {
        return OK;
    }
    const char *name = json_get_string(group, "format"), *type = json_get_string(weights, "type");
    bool is_float = type && strcmp(type, "float") == 0;
    if (!name) {
        name = otherwise;
    }
    if (name && strcmp(name, "dense") == 0) {
        return OK;
    }
    if (name && strcmp(name, "naive-quantized") == 0) {
        name = is_float ? "float-quantized" : "int-quantized";
    }
    s->format = name ? format_find(name) : NULL;
    if (!s->format) {
        return err_set(err, ERR_UNSUPPORTED, "the format '%.80s' is not supported",
                       or_text(name, "(none)"));
    }
    const char *strategy = json_get_string(weights, "strategy");
    TRY(quant_read_int(weights, "num_bits", 1, 16, 8, &s->bits, err));
    TRY(quant_read_group(weights, "group_size", 0, &s->group, err));
    if (strategy && (strcmp(strategy, "channel") == 0 || strcmp(strategy, "tensor") == 0)) {
        s->group = 0;
    }
    s->asymmetric = !json_get_bool(weights, "symmetric", true);
    // an actorder of "weight" does not change how weights are stored
    const char *order = json_get_string(weights, "actorder");
    s->act_order = order ? strcmp(order, "group") == 0 : json_get_bool(weights, "actorder", false);
    if (s->format != format_find("mxfp8-quantized")) { // libraries round its inputs differently
        TRY(read_ct_inputs(json_get(group, "input_activations"), &s->inputs, err));
    }
    return quant_read_block(json_get(weights, "block_structure"), "block_structure", s, err);
}

enum ct_pass { CT_NAMES, CT_PATTERNS, CT_CLASSES };

static enum ct_pass pass_of(const char *target)
{
    if (strcmp(target, "Linear") == 0) {
        return CT_CLASSES;
    }
    return strncmp(target, "re:", 3) == 0 ? CT_PATTERNS : CT_NAMES;
}

/* Names precede patterns, and patterns precede classes. "Linear" is the only class in a decoder
 * that has weights. */
static enum status read_ct_targets(const struct json *group, enum ct_pass pass,
                                   const struct quant_scheme *s, struct quant_rules *rules,
                                   struct err *err)
{
    const struct json *targets = json_get(group, "targets");
    if (!json_is(targets, JSON_ARRAY)) {
        return err_set(err, ERR_FORMAT, "targets must be a list");
    }
    for (const struct json *e = json_first(targets); e; e = json_next(e)) {
        const char *text = json_string(e);
        if (!text) {
            return err_set(err, ERR_FORMAT, "targets must be a list of strings");
        }
        static const enum rule_kind kinds[] = {RULE_NAME, RULE_PATTERN, RULE_ALL};
        if (pass_of(text) == pass) {
            const char *rest = pass == CT_PATTERNS ? text + 3 : text;
            TRY(quant_rules_add(rules, kinds[pass], rest, s, err));
        }
    }
    return OK;
}

/* Transformed and sparse weights are not supported. */
static enum status check_ct_empty(const struct json *j, const char *key, struct err *err)
{
    const struct json *node = json_get(j, key);
    const char *format = json_get_string(node, "format");
    if (!json_first(node) || (format && strcmp(format, "dense") == 0)) {
        return OK;
    }
    return err_set(err, ERR_UNSUPPORTED, "a %s is not supported", key);
}

/* compressed-tensors. Groups are read in several passes: whatever their order, a target that names
 * a module takes precedence over a pattern, and a pattern over a class. */
static enum status read_ct(const struct json *j, struct quant_rules *rules, struct err *err)
{
    TRY(check_ct_empty(j, "sparsity_config", err));
    TRY(check_ct_empty(j, "transform_config", err));
    TRY(quant_leave_alone(j, "ignore", RULE_NAME, rules, err));
    const struct json *groups = json_get(j, "config_groups");
    if (!json_is(groups, JSON_OBJECT)) {
        return err_set(err, ERR_FORMAT, "config_groups must be an object");
    }
    for (enum ct_pass pass = CT_NAMES; pass <= CT_CLASSES; pass++) {
        for (const struct json *g = json_first(groups); g; g = json_next(g)) {
            struct quant_scheme s;
            enum status st = read_ct_scheme(g, json_get_string(j, "format"), &s, err);
            if (st == OK && s.format) {
                st = read_ct_targets(g, pass, &s, rules, err);
            }
            if (st != OK) {
                return err_prefix(err, st, "config_groups.%.80s", json_key(g));
            }
        }
    }
    return OK;
}

/* ---- mxfp4 -------------------------------------------------------------------------------- */

static enum status read_mxfp4(const struct json *j, struct quant_rules *rules, struct err *err)
{
    struct quant_scheme s = {.format = format_find("mxfp4"), .bits = 4, .group = 32};
    TRY(quant_leave_alone(j, "modules_to_not_convert", RULE_PART, rules, err));
    return quant_rules_add(rules, RULE_ALL, "", &s, err);
}

/* ---- mxfp8 -------------------------------------------------------------------------------- */

static enum status read_mxfp8(const struct json *j, struct quant_rules *rules, struct err *err)
{
    struct quant_scheme s = {.format = format_find("mxfp8-quantized"), .bits = 8, .group = 32};
    TRY(quant_leave_alone(j, "ignored_layers", RULE_PART, rules, err));
    TRY(quant_leave_alone(j, "modules_to_not_convert", RULE_PART, rules, err));
    return quant_rules_add(rules, RULE_ALL, "", &s, err);
}

/* ---- modelopt ----------------------------------------------------------------------------- */

/* modelopt writes most names in capitals, but not fp8_pb_wo. */
static enum status modelopt_scheme(const char *algo, struct quant_scheme *s, struct err *err)
{
    static const struct {
        const char *algo, *format;
        int32_t bits, block;
        struct input_rule inputs;
    } rows[] = {
        {"FP8", "fp8", 8, 0, {.numbers = INPUT_E4M3}},
        {"FP8_PER_CHANNEL_PER_TOKEN", "fp8", 8, 0, {.numbers = INPUT_E4M3, .from_row = true}},
        {"FP8_PB_WO", "fp8", 8, 128, {.numbers = INPUT_AS_IT_IS}},
        {"FP8_BLOCK_SCALES", "fp8", 8, 128, {.numbers = INPUT_AS_IT_IS}}, // TensorRT-LLM's name
        {"MXFP8", "mxfp8-quantized", 8, 0, {.numbers = INPUT_AS_IT_IS}},
        {"NVFP4", "NVFP4", 4, 0, {.numbers = INPUT_E2M1, .from_row = true, .group = 16}},
        {"W4A16_NVFP4", "NVFP4", 4, 0, {.numbers = INPUT_AS_IT_IS}},
    };
    for (size_t i = 0; algo && i < sizeof rows / sizeof rows[0]; i++) {
        if (strcasecmp(rows[i].algo, algo) == 0) {
            *s = (struct quant_scheme){.format = format_find(rows[i].format),
                                       .bits = rows[i].bits,
                                       .block_rows = rows[i].block,
                                       .block_cols = rows[i].block,
                                       .inputs = rows[i].inputs};
            return OK;
        }
    }
    return err_set(err, ERR_UNSUPPORTED, "the quant_algo '%.80s' is not supported",
                   or_text(algo, "(none)"));
}

/* With mixed schemes, modules are listed by name, or by a common name for all experts. */
static enum status read_modelopt_layers(const struct json *j, struct quant_rules *rules,
                                        struct err *err)
{
    const struct json *layers = json_get(j, "quantized_layers");
    if (!json_is(layers, JSON_OBJECT)) {
        return err_set(err, ERR_FORMAT, "MIXED_PRECISION requires quantized_layers");
    }
    static const enum rule_kind kinds[] = {RULE_NAME, RULE_PART};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        for (const struct json *e = json_first(layers); e; e = json_next(e)) {
            struct quant_scheme s;
            TRY(modelopt_scheme(json_get_string(e, "quant_algo"), &s, err));
            TRY(quant_rules_add(rules, kinds[i], json_key(e), &s, err));
        }
    }
    return OK;
}

/* In mixed precision each layer has its own algorithm. */
static enum status read_modelopt(const struct json *j, struct quant_rules *rules, struct err *err)
{
    const char *algo = json_get_string(j, "quant_algo");
    TRY(quant_leave_alone(j, "exclude_modules", RULE_PART, rules, err));
    TRY(quant_leave_alone(j, "ignore", RULE_PART, rules, err));
    if (algo && strcasecmp(algo, "MIXED_PRECISION") == 0) {
        return read_modelopt_layers(j, rules, err);
    }
    struct quant_scheme s;
    TRY(modelopt_scheme(algo, &s, err));
    return quant_rules_add(rules, RULE_ALL, "", &s, err);
}

/* ---- bitsandbytes ------------------------------------------------------------------------- */

/* Everything else about a module is stored with its tensors. What the library does with inputs of
 * 8-bit modules (all but outliers are rounded) is not done here: only weights are quantised. */
static enum status read_bnb(const struct json *j, struct quant_rules *rules, struct err *err)
{
    const bool is_8 = json_get_bool(j, "load_in_8bit", json_get_bool(j, "_load_in_8bit", false));
    const bool is_4 = json_get_bool(j, "load_in_4bit", json_get_bool(j, "_load_in_4bit", false));
    if (is_8 == is_4) {
        return err_set(err, ERR_FORMAT, "either load_in_4bit or load_in_8bit must be true");
    }
    TRY(quant_check_string(j, "bnb_4bit_quant_storage", "uint8", err));
    struct quant_scheme s = {.format =
                                 format_find(is_4 ? "bitsandbytes-4bit" : "bitsandbytes-8bit"),
                             .bits = is_4 ? 4 : 8};
    TRY(quant_leave_alone(j, "llm_int8_skip_modules", RULE_PART, rules, err));
    return quant_rules_add(rules, RULE_ALL, "", &s, err);
}

/* ---- bitnet ------------------------------------------------------------------------------- */

/* Inputs have a scale per row. The two classes differ in what they do with the stored scale. */
static enum status read_bitnet(const struct json *j, struct quant_rules *rules, struct err *err)
{
    const char *class = json_get_string(j, "linear_class");
    struct quant_scheme s = {.format = format_find("bitnet"),
                             .bits = 2,
                             .inputs = {.numbers = INPUT_I8, .from_row = true},
                             .inverse_scale = true};
    TRY(quant_check_string(j, "quantization_mode", "offline", err));
    if (class && strcmp(class, "autobitlinear") == 0) {
        s.inverse_scale = false;
    } else {
        TRY(quant_check_string(j, "linear_class", "bitlinear", err));
    }
    if (json_get_bool(j, "use_rms_norm", false)) {
        return err_set(err, ERR_UNSUPPORTED, "use_rms_norm true is not supported");
    }
    TRY(quant_leave_alone(j, "modules_to_not_convert", RULE_PART, rules, err));
    return quant_rules_add(rules, RULE_ALL, "", &s, err);
}

/* ---- the table ---------------------------------------------------------------------------- */

static const struct quant_method methods[] = {
    {"fp8", NULL, read_fp8},
    {"fbgemm_fp8", NULL, read_fbgemm},
    {"compressed-tensors", NULL, read_ct},
    {"awq", "auto_awq|awq_marlin", quant_read_awq},
    {"gptq", "auto_gptq|gptq_marlin", quant_read_gptq},
    {"auto-round", "inc|auto_round", quant_read_auto_round},
    {"mxfp4", "gpt_oss_mxfp4", read_mxfp4},
    {"mxfp8", NULL, read_mxfp8},
    {"bitsandbytes", NULL, read_bnb},
    {"bitnet", NULL, read_bitnet},
    {"modelopt", "modelopt_fp4|modelopt_mxfp8|modelopt_mixed", read_modelopt},
};

enum { N_METHODS = sizeof methods / sizeof methods[0] };

const struct quant_method *quant_method_find(const char *name)
{
    for (size_t i = 0; i < N_METHODS; i++) {
        if (strcmp(methods[i].name, name) == 0) {
            return &methods[i];
        }
    }
    return NULL;
}

bool quant_method_is(const char *method, const char *name)
{
    const struct quant_method *row = quant_method_find(method);
    return strcmp(method, name) == 0 || (row && row->also && words_find(row->also, name) >= 0);
}

void quant_method_list(char *out, size_t n_bytes)
{
    out[0] = 0;
    for (size_t i = 0; i < N_METHODS; i++) {
        size_t at = strlen(out);
        snprintf(out + at, n_bytes - at, "%s%s", text_if(i, ", "), methods[i].name);
    }
}
