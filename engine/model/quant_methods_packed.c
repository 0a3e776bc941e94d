// SPDX-License-Identifier: Apache-2.0
/* The quant_methods whose modules have words of several numbers, with scales and zeros of groups.
 */
#include "engine/base/optional.h"
#include "engine/model/quant_keys.h"

#include <string.h>

/* ---- awq ---------------------------------------------------------------------------------- */

/* There are two generations of key names. Libraries interpret the list of modules differently
 * (AutoAWQ matches an entry anywhere in a name); all agree on entries that are whole components. */
enum status quant_read_awq(const struct json *j, struct quant_rules *rules, struct err *err)
{
    struct quant_scheme s = {.format = format_find("awq"), .bits = 4};
    TRY(quant_read_bits(j, "w_bit", &s.bits, err));
    TRY(quant_read_bits(j, "bits", &s.bits, err));
    if (s.bits != 4) {
        return err_set(err, ERR_UNSUPPORTED, "bits: %d is not supported; 4 is", s.bits);
    }
    TRY(quant_read_group(j, "q_group_size", 128, &s.group, err));
    TRY(quant_read_group(j, "group_size", s.group, &s.group, err));
    static const char *const versions[] = {"version", "checkpoint_format", "format"};
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        const char *version = json_get_string(j, versions[i]);
        if (version && strcmp(version, "GEMM") != 0) {
            TRY(quant_check_string(j, versions[i], "gemm", err));
        }
    }
    TRY(quant_leave_alone(j, "modules_to_not_convert", RULE_PART, rules, err));
    return quant_rules_add(rules, RULE_ALL, "", &s, err);
}

/* ---- gptq --------------------------------------------------------------------------------- */

/* Patterns; the first one that matches decides. "-:PATTERN" excludes modules; "+:PATTERN" or
 * "PATTERN" gives them other parameters. */
static enum status read_dynamic(const struct json *list, const struct quant_scheme *base,
                                struct quant_rules *rules, struct err *err)
{
    for (const struct json *e = json_first(list); e; e = json_next(e)) {
        const char *key = json_key(e);
        if (strncmp(key, "-:", 2) == 0) {
            TRY(quant_rules_add(rules, RULE_PATTERN, key + 2, NULL, err));
            continue;
        }
        struct quant_scheme s = *base;
        TRY(quant_read_bits(e, "bits", &s.bits, err));
        TRY(quant_read_group(e, "group_size", base->group > 0 ? base->group : -1, &s.group, err));
        s.act_order = json_get_bool(e, "desc_act", base->act_order);
        const char *pattern = strncmp(key, "+:", 2) == 0 ? key + 2 : key;
        TRY(quant_rules_add(rules, RULE_PATTERN, pattern, &s, err));
    }
    return OK;
}

/* The first generation stores zeros minus one. */
enum status quant_read_gptq(const struct json *j, struct quant_rules *rules, struct err *err)
{
    struct quant_scheme s = {.format = format_find("gptq"), .bits = 4, .zero_offset = 1};
    TRY(quant_read_bits(j, "bits", &s.bits, err));
    TRY(quant_read_group(j, "group_size", 128, &s.group, err));
    s.act_order = json_get_bool(j, "desc_act", false);
    TRY(quant_check_string(j, "pack_dtype", "int32", err));
    const char *format = json_get_string(j, "checkpoint_format");
    if (!format) {
        format = json_get_string(j, "format");
    }
    if (format && strcmp(format, "gptq_v2") == 0) {
        s.zero_offset = 0;
    } else if (format && strcmp(format, "gptq") != 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "checkpoint_format '%.80s' is not supported; gptq and gptq_v2 are", format);
    }
    const struct json *dynamic = json_get(j, "dynamic");
    if (json_type(dynamic) != JSON_NULL && !json_is(dynamic, JSON_OBJECT)) {
        return err_set(err, ERR_FORMAT, "dynamic must be an object");
    }
    TRY(read_dynamic(dynamic, &s, rules, err));
    return quant_rules_add(rules, RULE_ALL, "", &s, err);
}

/* ---- auto-round --------------------------------------------------------------------------- */

/* The library stores modules as GPTQ or AWQ does, by the format's name. */
static enum status read_packing(const struct json *j, struct quant_scheme *s, struct err *err)
{
    static const struct {
        const char *name, *format;
        int32_t zero_offset;
    } rows[] = {
        {"auto_round:auto_gptq", "gptq", 1}, {"auto_round:gptq", "gptq", 1},
        {"auto_round:gptqmodel", "gptq", 0}, {"auto_round", "gptq", 0},
        {"auto_round:auto_awq", "awq", 0},   {"auto_round:awq", "awq", 0},
    };
    const char *name = json_get_string(j, "packing_format");
    if (!name) { // older files
        name = or_text(json_get_string(j, "backend"), rows[0].name);
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            s->format = format_find(rows[i].format);
            s->zero_offset = rows[i].zero_offset;
            return OK;
        }
    }
    return err_set(err, ERR_UNSUPPORTED,
                   "packing_format '%.80s' is not supported; auto_round, auto_round:auto_gptq and "
                   "auto_round:auto_awq are",
                   name);
}

/* Reads the numbers' type, and those of the inputs, which must not be rounded. */
static enum status read_scheme(const struct json *j, struct quant_scheme *s, struct err *err)
{
    int32_t input_bits;
    TRY(quant_check_string(j, "data_type", "int", err));
    TRY(quant_read_int(j, "act_bits", 1, 32, 16, &input_bits, err));
    if (input_bits < 16) {
        return err_set(err, ERR_UNSUPPORTED, "act_bits: %d is not supported; 16 is", input_bits);
    }
    TRY(quant_read_bits(j, "bits", &s->bits, err));
    if (s->format == format_find("awq") && s->bits != 4) {
        return err_set(err, ERR_UNSUPPORTED, "bits: %d of awq is not supported; 4 is", s->bits);
    }
    return quant_read_group(j, "group_size", s->group > 0 ? s->group : -1, &s->group, err);
}

/* Modules by name, or by a pattern, that have other parameters, or 16 bits: these are stored
 * unquantised. */
static enum status read_extra(const struct json *list, const struct quant_scheme *base,
                              struct quant_rules *rules, struct err *err)
{
    for (const struct json *e = json_first(list); e; e = json_next(e)) {
        const char *key = json_key(e);
        const enum rule_kind kind = strpbrk(key, "*^$|()[]?+\\") ? RULE_PATTERN : RULE_NAME;
        struct quant_scheme s = *base;
        if (json_get_int(e, "bits", base->bits) >= 16) {
            TRY(quant_rules_add(rules, kind, key, NULL, err));
            continue;
        }
        enum status st = read_scheme(e, &s, err);
        if (st != OK) {
            return err_prefix(err, st, "extra_config.%.200s", key);
        }
        TRY(quant_rules_add(rules, kind, key, &s, err));
    }
    return OK;
}

enum status quant_read_auto_round(const struct json *j, struct quant_rules *rules, struct err *err)
{
    struct quant_scheme s = {.bits = 4, .group = 128};
    TRY(read_packing(j, &s, err));
    TRY(read_scheme(j, &s, err));
    if (json_first(json_get(j, "rotation_config"))) {
        return err_set(err, ERR_UNSUPPORTED, "a rotation_config is not supported");
    }
    const struct json *extra = json_get(j, "extra_config");
    if (json_type(extra) != JSON_NULL && !json_is(extra, JSON_OBJECT)) {
        return err_set(err, ERR_FORMAT, "extra_config must be an object");
    }
    TRY(read_extra(extra, &s, rules, err));
    TRY(quant_leave_alone(j, "modules_to_not_convert", RULE_PART, rules, err));
    return quant_rules_add(rules, RULE_ALL, "", &s, err);
}
