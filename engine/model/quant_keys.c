// SPDX-License-Identifier: Apache-2.0
/* Reads members that several quant_methods have. */
#include "engine/model/quant_keys.h"

#include <stdio.h>
#include <string.h>

/* Null counts as absent. */
enum status quant_read_int(const struct json *j, const char *key, int64_t min, int64_t max,
                           int32_t otherwise, int32_t *out, struct err *err)
{
    int64_t v;
    const struct json *node = json_get(j, key);
    if (json_type(node) == JSON_NULL) {
        *out = otherwise;
        return OK;
    }
    if (!json_int64(node, &v) || v < min || v > max) {
        return err_set(err, ERR_FORMAT, "%s must be an integer from %lld to %lld", key,
                       (long long)min, (long long)max);
    }
    *out = (int32_t)v;
    return OK;
}

/* The group size of AWQ, GPTQ and compressed-tensors; -1 means a whole row, returned as 0. */
enum status quant_read_group(const struct json *j, const char *key, int32_t otherwise, int32_t *out,
                             struct err *err)
{
    TRY(quant_read_int(j, key, -1, 1 << 20, otherwise, out, err));
    if (*out == -1) {
        *out = 0;
    }
    return OK;
}

enum status quant_read_bits(const struct json *j, const char *key, int32_t *out, struct err *err)
{
    TRY(quant_read_int(j, key, 1, 16, *out, out, err));
    if (*out != 2 && *out != 4 && *out != 8) {
        return err_set(err, ERR_UNSUPPORTED, "%s: %d is not supported; 2, 4 and 8 are", key, *out);
    }
    return OK;
}

/* Checks that a string, if present, equals `want`. */
enum status quant_check_string(const struct json *j, const char *key, const char *want,
                               struct err *err)
{
    const char *have = json_get_string(j, key);
    if (!have || strcmp(have, want) == 0) {
        return OK;
    }
    return err_set(err, ERR_UNSUPPORTED, "%s '%.80s' is not supported; '%s' is", key, have, want);
}

/* Reads [rows, columns], or in older files "rowsxcolumns". */
enum status quant_read_block(const struct json *node, const char *key, struct quant_scheme *s,
                             struct err *err)
{
    int64_t rows = 0, cols = 0;
    const char *text = json_string(node);
    if (json_type(node) == JSON_NULL) {
        return OK;
    }
    if (text) {
        int r = 0, c = 0, end = 0;
        if (sscanf(text, "%6dx%6d%n", &r, &c, &end) == 2 && text[end] == 0) {
            rows = r;
            cols = c;
        }
    } else if (json_is(node, JSON_ARRAY) && json_count(node) == 2) {
        json_int64(json_first(node), &rows);
        json_int64(json_next(json_first(node)), &cols);
    }
    if (rows < 1 || cols < 1 || rows > 1 << 20 || cols > 1 << 20) {
        return err_set(err, ERR_FORMAT, "%s must be two sizes", key);
    }
    s->block_rows = (int32_t)rows;
    s->block_cols = (int32_t)cols;
    return OK;
}

/* ---- lists of modules that stay unquantised ----------------------------------------------- */

static enum rule_kind kind_of(const char *text, enum rule_kind otherwise)
{
    return strchr(text, '*') ? RULE_GLOB : otherwise;
}

/* Adds rules for modules that stay unquantised, given by name or by pattern ("re:..."). */
enum status quant_leave_alone(const struct json *j, const char *key, enum rule_kind otherwise,
                              struct quant_rules *rules, struct err *err)
{
    const struct json *list = json_get(j, key);
    if (json_type(list) == JSON_NULL) {
        return OK;
    }
    if (!json_is(list, JSON_ARRAY)) {
        return err_set(err, ERR_FORMAT, "%s must be a list", key);
    }
    for (const struct json *e = json_first(list); e; e = json_next(e)) {
        const char *text = json_string(e);
        if (!text) {
            return err_set(err, ERR_FORMAT, "%s must be a list of strings", key);
        }
        if (strncmp(text, "re:", 3) == 0) {
            TRY(quant_rules_add(rules, RULE_PATTERN, text + 3, NULL, err));
        } else {
            TRY(quant_rules_add(rules, kind_of(text, otherwise), text, NULL, err));
        }
    }
    return OK;
}
