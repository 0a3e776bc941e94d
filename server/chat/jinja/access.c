// SPDX-License-Identifier: Apache-2.0
/* Attributes, items and slices. As in Jinja2, an item is tried if there is no attribute, and vice
 * versa. An attribute that the sandbox forbids evaluates to an undefined value with a message. */
#include "engine/base/minmax.h"
#include "server/chat/jinja/eval.h"

#include <string.h>

/* Converts a Python index, which may be negative, to a position in n items. False: it is out of
 * range. */
static bool resolve_index(int64_t i, size_t n, size_t *at)
{
    if (i < 0) {
        i = i + (int64_t)n;
    }
    *at = (size_t)i;
    return i >= 0 && (size_t)i < n;
}

/* Python's indexing of a sequence. A character of a string is found by counting, which costs steps
 * on long strings. */
static bool item_of_sequence(struct jrt *rt, struct jv obj, int64_t i, bool *found, struct jv *out)
{
    size_t n, at;
    if (!jv_len(rt, obj, &n)) {
        return false;
    }
    *found = resolve_index(i, n, &at);
    if (!*found) {
        return true;
    }
    if (obj.type == JV_RANGE) {
        *out = jv_int(obj.u.range->start + (int64_t)at * obj.u.range->step);
    } else if (obj.type == JV_BYTES) {
        *out = jv_int((unsigned char)obj.u.s->s[at]);
    } else if (obj.type == JV_STR) {
        *out = obj;
        if (jrt_charge(rt, obj.u.s->n_bytes >> 10)) {
            out->u.s = jt_chars(rt, obj.u.s, at, at + 1);
        } else {
            out->u.s = NULL;
        }
        return out->u.s != NULL;
    } else {
        *out = obj.u.list->items[at];
    }
    return true;
}

/* obj[index]; *found false where Python raises a TypeError or LookupError. */
static bool subscript(struct jrt *rt, struct jv obj, struct jv index, bool *found, struct jv *out)
{
    *found = false;
    switch (obj.type) {
    case JV_DICT: {
        bool hashable;
        const struct jentry *e = jd_find(rt, obj.u.dict, index, &hashable);
        *found = e != NULL;
        if (e) {
            *out = e->value;
        }
        return rt->st == OK;
    }
    case JV_UNDEFINED: return jv_fail_undefined(rt, obj);
    case JV_LIST:
    case JV_TUPLE:
    case JV_RANGE:
    case JV_BYTES:
    case JV_STR:
        if (!jv_is_integer(index)) {
            return true;
        }
        int64_t i;
        return jv_as_index(rt, index, &i) && item_of_sequence(rt, obj, i, found, out);
    default: return true;
    }
}

/* Makes a method a value, which a template may pass on or compare. */
static bool bind_method(struct jrt *rt, struct jv obj, const struct jinja_method *m, struct jv *out)
{
    struct jmethod *bound = jrt_alloc(rt, 1, sizeof *bound);
    if (!bound) {
        return false;
    }
    *bound = (struct jmethod){.self = obj, .m = m};
    *out = (struct jv){.type = JV_METHOD, .u.method = bound};
    return true;
}

/* The macro attributes that Jinja2 documents. */
static bool macro_attr(struct jrt *rt, const struct jmacro *m, struct jstr *name, bool *found,
                       struct jv *out)
{
    *found = true;
    if (js_is(name, "name")) {
        *out = m->name ? jv_str(m->name) : jv_none();
    } else if (js_is(name, "catch_kwargs")) {
        *out = jv_bool(m->sig->uses_kwargs);
    } else if (js_is(name, "catch_varargs")) {
        *out = jv_bool(m->sig->uses_varargs);
    } else if (js_is(name, "caller")) {
        *out = jv_bool(m->sig->uses_caller);
    } else if (js_is(name, "explicit_caller")) {
        *out = jv_bool(m->sig->explicit_caller);
    } else if (js_is(name, "arguments")) {
        struct jlist *l = jlist_new(rt, (size_t)m->sig->n);
        for (int i = 0; l && i < m->sig->n; i++) {
            l->items[i] = jv_str(m->sig->names[i]);
        }
        *out = jv_tuple(l);
        return l != NULL;
    } else {
        *found = false;
    }
    return true;
}

/* Attributes that are values rather than methods. */
static bool plain_attr(struct jrt *rt, struct jv obj, struct jstr *name, bool *found,
                       struct jv *out)
{
    *found = false;
    switch (obj.type) {
    case JV_NAMESPACE: {
        const struct jentry *e = jd_find_text(rt, obj.u.dict, name->s, name->n_bytes);
        *found = e != NULL;
        if (e) {
            *out = e->value;
        }
        return rt->st == OK;
    }
    case JV_LOOP: return jloop_attr(rt, obj, name, found, out);
    case JV_MACRO: return macro_attr(rt, obj.u.macro, name, found, out);
    case JV_TUPLE:
        *found = (obj.flag & JV_GROUP) && (js_is(name, "grouper") || js_is(name, "list"));
        if (*found) {
            *out = obj.u.list->items[js_is(name, "list")];
        }
        return true;
    case JV_RANGE:
        *found = js_is(name, "start") || js_is(name, "stop") || js_is(name, "step");
        if (*found) {
            const struct jrange *r = obj.u.range;
            if (js_is(name, "start")) {
                *out = jv_int(r->start);
            } else {
                *out = jv_int(js_is(name, "stop") ? r->stop : r->step);
            }
        }
        return true;
    case JV_CYCLER:
        *found = js_is(name, "current");
        if (*found) {
            *out = obj.u.cycler->items->items[obj.u.cycler->at];
        }
        return true;
    case JV_BOOL:
    case JV_INT:
    case JV_BIG:
    case JV_FLOAT:
        *found = true;
        if (js_is(name, "real") || (js_is(name, "numerator") && obj.type != JV_FLOAT)) {
            *out = obj.type == JV_BOOL ? jv_int(obj.u.b) : obj;
        } else if (js_is(name, "imag")) {
            *out = obj.type == JV_FLOAT ? jv_float(0) : jv_int(0);
        } else if (js_is(name, "denominator") && obj.type != JV_FLOAT) {
            *out = jv_int(1);
        } else {
            *found = false;
        }
        return true;
    default: return true;
    }
}

/* getattr(obj, name); *found false where Python raises an AttributeError. An attribute that the
 * sandbox forbids counts as found: the result is an undefined value whose error says so. */
static bool get_attr(struct jrt *rt, struct jv obj, struct jstr *name,
                     const struct jinja_method *methods, bool *found, struct jv *out)
{
    if (obj.type == JV_UNDEFINED) {
        bool magic = name->n_bytes >= 4 && memcmp(name->s, "__", 2) == 0 &&
                     memcmp(name->s + name->n_bytes - 2, "__", 2) == 0;
        *found = false;
        return magic || jv_fail_undefined(rt, obj);
    }
    bool private = name->n_bytes > 0 && name->s[0] == '_';
    bool dunder = private && (js_is(name, "__class__") || js_is(name, "__doc__") ||
                              js_is(name, "__init__") || js_is(name, "__len__"));
    if (dunder || jinja_is_mutator(obj, name->s, name->n_bytes)) {
        *found = true;
        if (!jv_undefined(rt, obj, jv_str(name), out)) {
            return false;
        }
        out->u.undef->unsafe = true;
        return true;
    }
    if (!plain_attr(rt, obj, name, found, out)) {
        return false;
    }
    const struct jinja_method *m;
    if (*found) {
        m = NULL;
    } else {
        m = jinja_method_for(methods, obj);
    }
    if (m) {
        *found = true;
        return bind_method(rt, obj, m, out);
    }
    return true;
}

/* obj.name as in Jinja2: the attribute, otherwise the item, otherwise an undefined value that
 * remembers object and name. */
bool jinja_attr(struct jrt *rt, struct jv obj, struct jstr *name,
                const struct jinja_method *methods, struct jv *out)
{
    bool found;
    if (!get_attr(rt, obj, name, methods, &found, out)) {
        return false;
    }
    if (!found && !subscript(rt, obj, jv_str(name), &found, out)) {
        return false;
    }
    return found || jv_undefined(rt, obj, jv_str(name), out);
}

/* obj[index] for a constant index: the item, otherwise the attribute. `methods` were looked up at
 * compile time. */
bool jinja_item_known(struct jrt *rt, struct jv obj, struct jv index,
                      const struct jinja_method *methods, struct jv *out)
{
    // Fast path: templates that treat strings as lists of parts look up 'type' on every character.
    if (obj.type == JV_STR && index.type == JV_STR && !methods && index.u.s->n_bytes > 0 &&
        index.u.s->s[0] != '_') {
        return jv_undefined(rt, obj, index, out);
    }
    bool found;
    if (!subscript(rt, obj, index, &found, out)) {
        return false;
    }
    if (!found && index.type == JV_STR && !get_attr(rt, obj, index.u.s, methods, &found, out)) {
        return false;
    }
    return found || jv_undefined(rt, obj, index, out);
}

/* The same for a computed index. Its text may come from the request, but it can only reach
 * attributes that the sandbox allows. */
bool jinja_item(struct jrt *rt, struct jv obj, struct jv index, struct jv *out)
{
    const struct jinja_method *methods = NULL;
    if (index.type == JV_STR) {
        if (!js_flat(rt, index.u.s)) {
            return false;
        }
        methods = jinja_methods_find(rt, index.u.s->s, index.u.s->n_bytes);
    }
    return jinja_item_known(rt, obj, index, methods, out);
}

/* A slice of n items: `count` items from `start` in steps of `step`. */
struct bounds {
    int64_t start, stop, step;
    size_t count;
};

/* Reads one bound of a slice, which is `otherwise` if it is left out or none. */
static bool slice_part(struct jrt *rt, struct jv v, int64_t otherwise, int64_t *i)
{
    if (v.type == JV_NONE || v.type == JV_MISSING) {
        *i = otherwise;
        return true;
    }
    if (!jv_is_integer(v)) {
        return jrt_fail(rt, "TypeError",
                        "slice indices must be integers or None or have an "
                        "__index__ method");
    }
    return jv_as_index(rt, v, i);
}

static int64_t clamp(int64_t i, int64_t low, int64_t high)
{
    if (i < low) {
        return low;
    }
    return lesser(high, i);
}

/* Equivalent to Python's slice.indices. */
static bool slice_bounds(struct jrt *rt, const struct jv part[3], size_t n_items, struct bounds *b)
{
    int64_t n = (int64_t)n_items, start, stop;
    if (!slice_part(rt, part[2], 1, &b->step)) {
        return false;
    }
    if (b->step == 0) {
        return jrt_fail(rt, "ValueError", "slice step cannot be zero");
    }
    b->step = clamp(b->step, -INT64_MAX / 4, INT64_MAX / 4);
    bool down = b->step < 0;
    int64_t low = down ? -1 : 0, high = down ? n - 1 : n;
    if (!slice_part(rt, part[0], down ? INT64_MAX / 2 : 0, &start) ||
        !slice_part(rt, part[1], down ? INT64_MIN / 2 : INT64_MAX / 2, &stop)) {
        return false;
    }
    start = clamp(start, INT64_MIN / 4, INT64_MAX / 4);
    stop = clamp(stop, INT64_MIN / 4, INT64_MAX / 4);
    bool open_stop = down && (part[1].type == JV_NONE || part[1].type == JV_MISSING);
    b->start = clamp(start < 0 ? start + n : start, low, high);
    if (open_stop) {
        b->stop = -1;
    } else {
        b->stop = clamp(stop < 0 ? stop + n : stop, low, high);
    }
    int64_t span = down ? b->start - b->stop : b->stop - b->start;
    int64_t step = down ? -b->step : b->step;
    b->count = span > 0 ? (size_t)((span - 1) / step + 1) : 0;
    return true;
}

/* Slices by characters, each with its provenance. Only text with multi-byte characters needs a
 * table of their offsets. */
static struct jstr *slice_text(struct jrt *rt, struct jstr *s, const struct bounds *b)
{
    if (b->step == 1) {
        return jt_chars(rt, s, (size_t)b->start, (size_t)b->start + b->count);
    }
    if (b->step == -1 && b->count == js_chars(s)) {
        return jt_reverse(rt, s);
    }
    struct jsb sb;
    jsb_init(&sb, rt);
    bool ascii = js_chars(s) == s->n_bytes;
    size_t *at = NULL; // byte offset of each character
    if (!ascii) {
        at = jrt_alloc(rt, js_chars(s) + 1, sizeof *at);
        size_t n = 0;
        for (size_t i = 0; at && i < s->n_bytes; i++) {
            if (((unsigned char)s->s[i] & 0xC0) != 0x80) {
                at[n++] = i;
            }
        }
        if (!at) {
            return NULL;
        }
        at[n] = s->n_bytes;
    }
    for (size_t i = 0; i < b->count && !sb.failed; i++) {
        size_t c = (size_t)(b->start + (int64_t)i * b->step);
        jsb_put_range(&sb, s, ascii ? c : at[c], ascii ? 1 : at[c + 1] - at[c]);
    }
    return jsb_done(&sb);
}

/* A slice of a list with step 1 shares its items, which are immutable. */
bool jinja_slice(struct jrt *rt, struct jv obj, const struct jv part[3], struct jv *out)
{
    size_t n;
    struct bounds b;
    switch (obj.type) {
    case JV_UNDEFINED: return jv_fail_undefined(rt, obj);
    case JV_DICT: return jrt_fail(rt, "TypeError", "unhashable type: 'slice'");
    case JV_LIST:
    case JV_TUPLE:
    case JV_STR:
    case JV_RANGE:
        if (!jv_len(rt, obj, &n) || !slice_bounds(rt, part, n, &b) ||
            !jrt_charge(rt, b.count / 8)) {
            return false;
        }
        break;
    default:
        return jrt_fail(rt, "TypeError", "'%s' object is not subscriptable", jv_type_name(obj));
    }
    *out = obj;
    out->flag = obj.type == JV_STR ? obj.flag : 0;
    if (obj.type == JV_STR) {
        out->u.s = slice_text(rt, obj.u.s, &b);
        return out->u.s != NULL;
    }
    if (obj.type == JV_RANGE) {
        const struct jrange *r = obj.u.range;
        struct jrange *s = jrt_alloc(rt, 1, sizeof *s);
        if (s) {
            *s = (struct jrange){.start = r->start + b.start * r->step,
                                 .stop = r->start + b.stop * r->step,
                                 .step = r->step * b.step,
                                 .n = (int64_t)b.count};
        }
        out->u.range = s;
        return s != NULL;
    }
    struct jlist *l = jlist_new(rt, b.step == 1 ? 0 : b.count);
    if (!l) {
        return false;
    }
    if (b.step == 1) { // shares the items
        *l = (struct jlist){.items = obj.u.list->items + b.start, .n = b.count};
    }
    for (size_t i = 0; b.step != 1 && i < b.count; i++) {
        l->items[i] = obj.u.list->items[b.start + (int64_t)i * b.step];
    }
    out->u.list = l;
    return true;
}
