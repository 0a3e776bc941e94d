// SPDX-License-Identifier: Apache-2.0
/* Python's ordering of two values, to a bounded depth. Equality is in dict.c. */
#include "engine/base/minmax.h"
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"

#include <string.h>

static bool apply_order(int c, enum jv_order op)
{
    switch (op) {
    case JV_LT: return c == -1;
    case JV_LE: return c == -1 || c == 0;
    case JV_GT: return c == 1;
    case JV_GE: return c == 1 || c == 0;
    }
    return false;
}

static int compare_bytes(const struct jstr *a, const struct jstr *b)
{
    size_t n = lesser(a->n_bytes, b->n_bytes);
    int c = n > 0 ? memcmp(a->s, b->s, n) : 0;
    if (c == 0) {
        if (a->n_bytes < b->n_bytes) {
            return -1;
        }
        return a->n_bytes > b->n_bytes;
    }
    return c < 0 ? -1 : 1;
}

static bool compare_nested(struct jrt *rt, struct jv a, struct jv b, enum jv_order op, int nest,
                           bool *out);

/* Compares by the first items that differ, or if there are none, by length. */
static bool compare_lists(struct jrt *rt, const struct jlist *a, const struct jlist *b,
                          enum jv_order op, int nest, bool *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool equal = false;
        if (!jv_equal_nested(rt, a->items[i], b->items[i], nest + 1, &equal)) {
            return false;
        }
        if (!equal) {
            return compare_nested(rt, a->items[i], b->items[i], op, nest + 1, out);
        }
    }
    *out = apply_order(a->n < b->n ? -1 : a->n > b->n, op);
    return true;
}

/* Sequences compare by their first unequal items, and numbers of all types with each other. Other
 * pairs of types are an error with Python's message. */
static bool compare_nested(struct jrt *rt, struct jv a, struct jv b, enum jv_order op, int nest,
                           bool *out)
{
    static const char *const signs[] = {"<", "<=", ">", ">="};
    if (nest > JINJA_MAX_NEST) {
        return jrt_limit(rt, "a value is nested too deeply");
    }
    if (!jrt_step(rt)) {
        return false;
    }
    if (jv_is_number(a) && jv_is_number(b)) {
        *out = apply_order(jnum_compare(a, b), op);
        return true;
    }
    if (a.type == JV_UNDEFINED || b.type == JV_UNDEFINED) {
        return jv_fail_undefined(rt, a.type == JV_UNDEFINED ? a : b);
    }
    if (a.type == b.type && (a.type == JV_STR || a.type == JV_BYTES)) {
        if (!js_flat(rt, a.u.s) || !js_flat(rt, b.u.s)) {
            return false;
        }
        *out = apply_order(compare_bytes(a.u.s, b.u.s), op);
        return true;
    }
    if (a.type == b.type && (a.type == JV_LIST || a.type == JV_TUPLE)) {
        return compare_lists(rt, a.u.list, b.u.list, op, nest, out);
    }
    return jrt_fail(rt, "TypeError", "'%s' not supported between instances of '%s' and '%s'",
                    signs[op], jv_type_name(a), jv_type_name(b));
}

bool jv_compare(struct jrt *rt, struct jv a, struct jv b, enum jv_order op, bool *out)
{
    *out = false;
    return compare_nested(rt, a, b, op, 0, out);
}
