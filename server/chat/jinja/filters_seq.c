// SPDX-License-Identifier: Apache-2.0
/* Filters that process a whole sequence at once. */
#include "server/chat/jinja/filters.h"
#include "server/chat/jinja/num.h"

FILTER(jf_length)
{
    size_t n;
    (void)a, (void)args;
    if (!jv_len(rt, v, &n)) {
        return false;
    }
    *out = jv_int((int64_t)n);
    return true;
}

FILTER(jf_list)
{
    struct jlist *l;
    (void)a, (void)args;
    if (!jv_collect(rt, v, &l)) {
        return false;
    }
    *out = jv_list(l);
    return true;
}

/* Only reads one item, so it works on endless iterators. */
FILTER(jf_first)
{
    struct jwalk w;
    (void)a, (void)args;
    int more = jwalk_init(rt, v, &w) ? jwalk_next(rt, &w, out) : -1;
    if (more == 0) {
        return jv_undefined_hint(rt, "No first item, sequence was empty.", out);
    }
    return more > 0;
}

static bool is_reversible(struct jv v)
{
    return jv_is_iterable(v) && v.type != JV_ITER && v.type != JV_LOOP;
}

/* Any iterable that can be reversed; generators cannot. */
FILTER(jf_last)
{
    struct jlist *l;
    (void)a, (void)args;
    if (!is_reversible(v)) {
        return jrt_fail(rt, "TypeError", "'%s' object is not reversible", jv_type_name(v));
    }
    if (v.type == JV_LIST || v.type == JV_TUPLE) {
        l = v.u.list;
    } else if (!jv_collect(rt, v, &l)) {
        return false;
    }
    if (l->n == 0) {
        return jv_undefined_hint(rt, "No last item, sequence was empty.", out);
    }
    *out = l->items[l->n - 1];
    return true;
}

FILTER(jf_random)
{
    (void)a, (void)args;
    bool same_for_all = v.type == JV_LIST || v.type == JV_TUPLE || v.type == JV_STR;
    size_t n;
    if (!same_for_all || !jv_len(rt, v, &n)) {
        return jrt_fail(rt, "TypeError", "random needs a sequence");
    }
    return jf_first(rt, v, a, args, out); // |random returns the first item, because a prompt must
                                          // be reproducible
}

/* Strings are reversed by characters. */
FILTER(jf_reverse)
{
    struct jlist *l;
    (void)a, (void)args;
    if (v.type == JV_STR) {
        *out = v;
        out->u.s = js_flat(rt, v.u.s) ? jt_reverse(rt, v.u.s) : NULL;
        return out->u.s != NULL;
    }
    if (!jv_is_iterable(v)) {
        return jrt_fail(rt, "FilterArgumentError", "argument must be iterable");
    }
    if (!jv_collect(rt, v, &l)) {
        return false;
    }
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jv t = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = t;
    }
    if (v.type == JV_ITER) {
        *out = jv_list(l);
        return true;
    }
    return jiter_new(rt, JITER_PLAIN, jv_list(l), out);
}

/* Converts each item to text; with autoescape, separator and items are escaped unless they
 * are Markup. */
FILTER(jf_join)
{
    struct jstr *sep = js_lit(rt, "");
    struct jpath path;
    struct jwalk w;
    struct jv item;
    int more;
    (void)args;
    if (!sep || !jpath_make(rt, a[1], &path) || !jwalk_init(rt, v, &w) ||
        (jv_is_given(a[0]) && !jv_to_str(rt, a[0], &sep))) {
        return false;
    }
    struct jsb b;
    jsb_init(&b, rt);
    for (size_t n = 0; (more = jwalk_next(rt, &w, &item)) > 0; n++) {
        if (n > 0) {
            jsb_put_str(&b, sep);
        }
        if (!jpath_get(rt, &path, item, jv_missing(), &item)) {
            return false;
        }
        if (rt->autoescape && !jinja_escape(rt, item, &item)) {
            return false;
        }
        if (!jv_put_str(&b, item)) {
            return false;
        }
    }
    *out = jv_str(jsb_done(&b));
    out->flag = rt->autoescape ? JV_MARKUP : 0;
    return more == 0 && out->u.s;
}

/* Adds the items to `start`, with Python's addition. */
FILTER(jf_sum)
{
    struct jpath path;
    struct jwalk w;
    struct jv item, total = jv_is_given(a[1]) ? a[1] : jv_int(0);
    int more;
    (void)args;
    if (total.type == JV_STR) {
        return jrt_fail(rt, "TypeError", "sum() can't sum strings [use ''.join(seq) instead]");
    }
    if (!jpath_make(rt, a[0], &path) || !jwalk_init(rt, v, &w)) {
        return false;
    }
    while ((more = jwalk_next(rt, &w, &item)) > 0) {
        if (!jpath_get(rt, &path, item, jv_missing(), &item) ||
            !jinja_binary(rt, JOP_ADD, total, item, &total)) {
            return false;
        }
    }
    *out = total;
    return more == 0;
}
