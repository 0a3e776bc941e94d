/* Two values: the same object, equal, in order; as Python has it, to a bounded depth. */
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"

#include <string.h>

bool jv_same(struct jv a, struct jv b)
{
    if (a.type != b.type) {
        return false;
    }
    switch (a.type) {
    case JV_NONE: return true;
    case JV_BOOL: return a.u.b == b.u.b;
    case JV_INT: return a.u.i == b.u.i;
    case JV_FLOAT: return memcmp(&a.u.f, &b.u.f, sizeof a.u.f) == 0;
    case JV_STR:
        return a.u.s == b.u.s || (a.flag == b.flag && a.u.s->s && a.u.s->n_bytes == b.u.s->n_bytes &&
                                  b.u.s->s && memcmp(a.u.s->s, b.u.s->s, a.u.s->n_bytes) == 0);
    default: return a.u.list == b.u.list;
    }
}

static bool equal_nested(struct jrt *rt, struct jv a, struct jv b, int nest, bool *equal);

static bool equal_lists(struct jrt *rt, const struct jlist *a, const struct jlist *b, int nest,
                        bool *equal)
{
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++) {
        if (!equal_nested(rt, a->items[i], b->items[i], nest + 1, equal)) {
            return false;
        }
    }
    return true;
}

static bool equal_dicts(struct jrt *rt, const struct jdict *a, const struct jdict *b, int nest,
                        bool *equal)
{
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++) {
        bool hashable;
        const struct jentry *e = jd_find(rt, b, a->e[i].key, &hashable);
        *equal = e != NULL;
        if (e && !equal_nested(rt, a->e[i].value, e->value, nest + 1, equal)) {
            return false;
        }
    }
    return rt->st == OK;
}

static bool equal_ranges(const struct jrange *a, const struct jrange *b)
{
    return a->n == b->n && (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

/* Key and item views compare as sets. */
static bool equal_views(struct jrt *rt, const struct jview *a, const struct jview *b, int nest,
                        bool *equal)
{
    *equal = a == b;
    if (a->kind == JVIEW_VALUES || b->kind != a->kind) {
        return true;
    }
    if (a->kind == JVIEW_ITEMS) {
        return equal_dicts(rt, a->dict, b->dict, nest, equal);
    }
    *equal = a->dict->n == b->dict->n;
    for (size_t i = 0; *equal && i < a->dict->n; i++) {
        bool hashable;
        *equal = jd_find(rt, b->dict, a->dict->e[i].key, &hashable) != NULL;
    }
    return rt->st == OK;
}

static bool equal_nested(struct jrt *rt, struct jv a, struct jv b, int nest, bool *equal)
{
    if (nest > JINJA_MAX_NEST) {
        return jrt_limit(rt, "a value is nested too deeply");
    }
    if (!jrt_step(rt)) {
        return false;
    }
    if (jv_is_number(a) && jv_is_number(b)) {
        *equal = jnum_compare(a, b) == 0 || (nest > 0 && jv_same(a, b) && a.type == JV_FLOAT);
        return true;
    }
    if (a.type != b.type) {
        *equal = false;
        return true;
    }
    switch (a.type) {
    case JV_UNDEFINED:
    case JV_NONE: *equal = true; return true;
    case JV_STR:
    case JV_BYTES:
        *equal = a.u.s->n_bytes == b.u.s->n_bytes;
        if (!*equal) {
            return true;
        }
        if (!js_flat(rt, a.u.s) || !js_flat(rt, b.u.s) || !jrt_charge(rt, a.u.s->n_bytes >> 8)) {
            return false;
        }
        *equal = memcmp(a.u.s->s, b.u.s->s, a.u.s->n_bytes) == 0;
        return true;
    case JV_LIST:
    case JV_TUPLE: return equal_lists(rt, a.u.list, b.u.list, nest, equal);
    case JV_DICT: return equal_dicts(rt, a.u.dict, b.u.dict, nest, equal);
    case JV_RANGE: *equal = equal_ranges(a.u.range, b.u.range); return true;
    case JV_VIEW: return equal_views(rt, a.u.view, b.u.view, nest, equal);
    case JV_METHOD:
        *equal = a.u.method == b.u.method ||
                 (a.u.method->m == b.u.method->m && jv_same(a.u.method->self, b.u.method->self));
        return true;
    default: *equal = jv_same(a, b); return true;
    }
}

bool jv_equal(struct jrt *rt, struct jv a, struct jv b, bool *equal)
{
    *equal = false;
    return equal_nested(rt, a, b, 0, equal);
}

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
    size_t n = a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes;
    int c = n > 0 ? memcmp(a->s, b->s, n) : 0;
    if (c == 0) {
        return a->n_bytes < b->n_bytes ? -1 : a->n_bytes > b->n_bytes;
    }
    return c < 0 ? -1 : 1;
}

static bool compare_nested(struct jrt *rt, struct jv a, struct jv b, enum jv_order op, int nest,
                           bool *out);

/* The first items that differ decide; without one, the lengths. */
static bool compare_lists(struct jrt *rt, const struct jlist *a, const struct jlist *b,
                          enum jv_order op, int nest, bool *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool equal = false;
        if (!equal_nested(rt, a->items[i], b->items[i], nest + 1, &equal)) {
            return false;
        }
        if (!equal) {
            return compare_nested(rt, a->items[i], b->items[i], op, nest + 1, out);
        }
    }
    *out = apply_order(a->n < b->n ? -1 : a->n > b->n, op);
    return true;
}

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
