// SPDX-License-Identifier: Apache-2.0
/* Operators: Python's rules for operand types, and its error messages. Attributes and items:
 * access.c. */
#include "engine/base/minmax.h"
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"

#include <string.h>

static bool is_sequence(struct jv v)
{
    return v.type == JV_STR || v.type == JV_LIST || v.type == JV_TUPLE || v.type == JV_BYTES;
}

static bool unsupported(struct jrt *rt, int op, struct jv a, struct jv b)
{
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
    return jrt_fail(rt, "TypeError", "unsupported operand type(s) for %s: '%s' and '%s'", signs[op],
                    jv_type_name(a), jv_type_name(b));
}

/* If one side is Markup, the other is escaped and the result is Markup. */
static bool add_strings(struct jrt *rt, struct jv a, struct jv b, struct jv *out)
{
    bool markup = (a.flag | b.flag) & JV_MARKUP;
    if (markup && (!jinja_escape(rt, a, &a) || !jinja_escape(rt, b, &b))) {
        return false;
    }
    struct jstr *s = js_concat(rt, a.u.s, b.u.s);
    *out = jv_str(s);
    out->flag = markup ? JV_MARKUP : 0;
    return s != NULL;
}

/* Types must be equal; a list and a tuple cannot be added. */
static bool add(struct jrt *rt, struct jv a, struct jv b, struct jv *out)
{
    if (a.type == JV_STR && b.type == JV_STR) {
        return add_strings(rt, a, b, out);
    }
    if ((a.type == JV_LIST && b.type == JV_LIST) || (a.type == JV_TUPLE && b.type == JV_TUPLE)) {
        struct jlist *l = jlist_join(rt, a.u.list, b.u.list);
        *out = (struct jv){.type = a.type, .u.list = l};
        return l != NULL;
    }
    if (is_sequence(a)) {
        return jrt_fail(rt, "TypeError", "can only concatenate %s (not \"%s\") to %s",
                        jv_type_name(a), jv_type_name(b), jv_type_name(a));
    }
    return unsupported(rt, JOP_ADD, a, b);
}

/* The size is checked before the list is allocated. */
static bool repeat_items(struct jrt *rt, const struct jlist *l, size_t times, struct jlist **out)
{
    size_t n;
    if (__builtin_mul_overflow(l->n, times, &n) || n > JINJA_MAX_MEMORY / sizeof(struct jv)) {
        return jrt_limit(rt, "a list is too long");
    }
    struct jlist *r = jrt_charge(rt, n) ? jlist_new(rt, n) : NULL;
    for (size_t i = 0; r && i < n; i += l->n) {
        memcpy(r->items + i, l->items, l->n * sizeof l->items[0]);
    }
    *out = r;
    return r != NULL;
}

/* A negative count is the same as 0. */
bool jinja_repeat(struct jrt *rt, struct jv sequence, struct jv times, struct jv *out)
{
    int64_t n;
    if (!jv_as_index(rt, times, &n)) {
        return false;
    }
    n = greater(0, n);
    *out = sequence;
    if (sequence.type != JV_STR && sequence.type != JV_BYTES) {
        return repeat_items(rt, sequence.u.list, (size_t)n, &out->u.list);
    }
    struct jsb b;
    jsb_init(&b, rt);
    jsb_fill(&b, sequence.u.s, (size_t)n);
    out->u.s = jsb_done(&b);
    return out->u.s != NULL;
}

/* Either operand may be the sequence. */
static bool multiply(struct jrt *rt, struct jv a, struct jv b, struct jv *out)
{
    if (is_sequence(a) || is_sequence(b)) {
        struct jv sequence = is_sequence(a) ? a : b, times = is_sequence(a) ? b : a;
        if (!jv_is_integer(times)) {
            return jrt_fail(rt, "TypeError", "can't multiply sequence by non-int of type '%s'",
                            jv_type_name(times));
        }
        return jinja_repeat(rt, sequence, times, out);
    }
    return unsupported(rt, JOP_MUL, a, b);
}

/* Handles numbers, then strings with %, then sequences. Other operands give Python's TypeError. */
bool jinja_binary(struct jrt *rt, int op, struct jv a, struct jv b, struct jv *out)
{
    if (jv_is_number(a) && jv_is_number(b)) {
        return jnum_binary(rt, (enum jop)op, a, b, out);
    }
    if (op == JOP_MOD && a.type == JV_STR) {
        return jinja_percent(rt, a, b, out);
    }
    if (op == JOP_ADD && a.type == b.type) {
        if (a.type != JV_UNDEFINED) {
            return add(rt, a, b, out);
        }
    }
    /* Python asks the left operand first. Undefined raises on either side; str and list reject
     * Undefined earlier, which only affects the message. */
    if (a.type == JV_UNDEFINED || b.type == JV_UNDEFINED) {
        return jv_fail_undefined(rt, a.type == JV_UNDEFINED ? a : b);
    }
    if (op == JOP_ADD) {
        return add(rt, a, b, out);
    }
    if (op == JOP_MUL) {
        return multiply(rt, a, b, out);
    }
    return unsupported(rt, op, a, b);
}

/* Costs steps by length, since a template could search a long text often. */
static bool contains_text(struct jrt *rt, struct jv text, struct jv part, bool *out)
{
    if (part.type != JV_STR) {
        return jrt_fail(rt, "TypeError", "'in <string>' requires string as left operand, not %s",
                        jv_type_name(part));
    }
    if (!js_flat(rt, text.u.s) || !js_flat(rt, part.u.s) ||
        !jrt_charge(rt, text.u.s->n_bytes >> 8)) {
        return false;
    }
    *out = jt_find(text.u.s, part.u.s, 0, text.u.s->n_bytes) != SIZE_MAX;
    return true;
}

/* A key that cannot be hashed is an error, as in Python. */
static bool contains_key(struct jrt *rt, const struct jdict *d, struct jv key, bool *out)
{
    bool hashable;
    *out = jd_find(rt, d, key, &hashable) != NULL;
    if (!hashable && rt->st == OK) {
        return jrt_fail(rt, "TypeError", "unhashable type: '%s'", jv_type_name(key));
    }
    return rt->st == OK;
}

/* Strings are searched for a string and mappings for a key; other containers are searched for an
 * equal item. */
bool jv_contains(struct jrt *rt, struct jv container, struct jv v, bool *out)
{
    *out = false;
    if (container.type == JV_STR) {
        return contains_text(rt, container, v, out);
    }
    if (container.type == JV_DICT) {
        return contains_key(rt, container.u.dict, v, out);
    }
    if (container.type == JV_VIEW && container.u.view->kind == JVIEW_KEYS) {
        return contains_key(rt, container.u.view->dict, v, out);
    }
    if (!jv_is_iterable(container)) {
        return jrt_fail(rt, "TypeError", "argument of type '%s' is not iterable",
                        jv_type_name(container));
    }
    struct jwalk w;
    struct jv item;
    int more = 0;
    if (!jwalk_init(rt, container, &w)) {
        return false;
    }
    while (!*out && (more = jwalk_next(rt, &w, &item)) > 0) {
        if (jv_same(item, v)) {
            *out = true;
        } else if (!jv_equal(rt, item, v, out)) {
            return false;
        }
    }
    return more >= 0;
}
