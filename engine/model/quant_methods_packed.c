// SPDX-License-Identifier: Apache-2.0
/* The quant_methods whose modules have words of several numbers, with scales and zeros of groups.
 */
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
