// SPDX-License-Identifier: Apache-2.0
/* Typed access to the members of a body. */
#include "server/call/body.h"

#include "engine/base/json_scan.h"
#include "engine/base/minmax.h"
#include "engine/base/words.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

bool body_wrong_type(struct call_error *e, const char *param, const char *expected,
                     const struct json *got)
{
    static const char *const words[] = {
        [JSON_NULL] = "null",       [JSON_BOOL] = "a boolean", [JSON_NUMBER] = "a number",
        [JSON_STRING] = "a string", [JSON_ARRAY] = "an array", [JSON_OBJECT] = "an object",
    };
    return call_error_set(e, 400, "invalid_type", param,
                          "Invalid type for '%s': expected %s, but got %s instead.", param,
                          expected, got ? words[json_type(got)] : "an array");
}

bool body_bool(struct body *b, const char *key, bool *v)
{
    const struct body_member *m = body_get(b, key);
    if (!m) {
        return false;
    }
    if (!json_is(m->node, JSON_BOOL)) {
        return body_wrong_type(b->error, key, "a boolean", m->node);
    }
    *v = json_bool(m->node, false);
    return true;
}

/* Reads an integer: with all 64 bits if the text consists of digits. 5.0 and 5e0 count as 5. */
static bool whole(const struct body_member *m, int64_t *v)
{
    struct json_scan sc;
    json_scan_init(&sc, m->start, m->n_bytes, 8);
    return json_scan_next(&sc) == JSON_TOKEN_NUMBER &&
           (json_scan_int64(&sc, v) || json_int64(m->node, v));
}

bool body_int(struct body *b, const char *key, int64_t min, int64_t max, int64_t *v)
{
    const struct body_member *m = body_get(b, key);
    if (!m) {
        return false;
    }
    if (!json_is(m->node, JSON_NUMBER)) {
        return body_wrong_type(b->error, key, "an integer", m->node);
    }
    int64_t n = 0;
    double real = json_number(m->node, 0);
    bool good = whole(m, &n);
    if (!good && (real == floor(real) || !isfinite(real)) && fabs(real) > 9e15) {
        good = true; // far out of range: the caller's error says on which side
        n = real > 0 ? INT64_MAX : INT64_MIN;
        if (max == INT64_MAX || min == INT64_MIN) {
            return call_error_set(b->error, 400, "invalid_value", key,
                                  "Invalid '%s': the integer does not fit a signed 64-bit number.",
                                  key);
        }
    }
    if (!good) {
        return call_error_set(b->error, 400, "invalid_type", key,
                              "Invalid type for '%s': expected an integer, but got a decimal "
                              "number instead.",
                              key);
    }
    if (n < min) {
        return call_error_set(b->error, 400, "integer_below_min_value", key,
                              "Invalid '%s': integer below minimum value. Expected a value >= "
                              "%" PRId64 ", but got %.*s instead.",
                              key, min, (int)lesser(m->n_bytes, 40), m->start);
    }
    if (n > max) {
        return call_error_set(b->error, 400, "integer_above_max_value", key,
                              "Invalid '%s': integer above maximum value. Expected a value <= "
                              "%" PRId64 ", but got %.*s instead.",
                              key, max, (int)lesser(m->n_bytes, 40), m->start);
    }
    *v = n;
    return true;
}

bool body_real(struct body *b, const char *key, double min, double max, double *v)
{
    const struct body_member *m = body_get(b, key);
    if (!m) {
        return false;
    }
    if (!json_is(m->node, JSON_NUMBER)) {
        return body_wrong_type(b->error, key, "a decimal", m->node);
    }
    double n = json_number(m->node, 0);
    int shown = (int)lesser(m->n_bytes, 40);
    if (!(n >= min)) {
        return call_error_set(b->error, 400, "decimal_below_min_value", key,
                              "Invalid '%s': decimal below minimum value. Expected a value >= %g, "
                              "but got %.*s instead.",
                              key, min, shown, m->start);
    }
    if (!(n <= max)) {
        return call_error_set(b->error, 400, "decimal_above_max_value", key,
                              "Invalid '%s': decimal above maximum value. Expected a value <= %g, "
                              "but got %.*s instead.",
                              key, max, shown, m->start);
    }
    *v = n;
    return true;
}

bool body_string(struct body *b, const char *key, const char **v)
{
    const struct body_member *m = body_get(b, key);
    if (!m) {
        return false;
    }
    if (!json_is(m->node, JSON_STRING)) {
        return body_wrong_type(b->error, key, "a string", m->node);
    }
    *v = json_string(m->node);
    return true;
}

bool body_object(struct body *b, const char *key, const struct json **v)
{
    const struct body_member *m = body_get(b, key);
    if (!m) {
        return false;
    }
    if (!json_is(m->node, JSON_OBJECT)) {
        return body_wrong_type(b->error, key, "an object", m->node);
    }
    *v = m->node;
    return true;
}

bool body_array(struct body *b, const char *key, const struct json **v)
{
    const struct body_member *m = body_get(b, key);
    if (!m) {
        return false;
    }
    if (!json_is(m->node, JSON_ARRAY)) {
        return body_wrong_type(b->error, key, "an array", m->node);
    }
    *v = m->node;
    return true;
}

bool body_choice(struct body *b, const char *key, const char *choices, int *index)
{
    const char *text;
    if (!body_string(b, key, &text)) {
        return false;
    }
    int i = words_find(choices, text);
    if (i >= 0) {
        *index = i;
        return true;
    }
    char list[200];
    size_t at = 0;
    for (const char *p = choices; *p && at + 40 < sizeof list;) {
        size_t len = strcspn(p, "|");
        bool last = p[len] == '\0';
        const char *join = last ? " and " : ", ";
        at += (size_t)snprintf(list + at, sizeof list - at, "%s'%.*s'", at == 0 ? "" : join,
                               (int)len, p);
        p += len + !last;
    }
    return call_error_set(b->error, 400, "invalid_value", key,
                          "Invalid value: '%.60s'. Supported values are: %s.", text, list);
}
