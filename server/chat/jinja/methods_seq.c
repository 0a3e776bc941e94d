// SPDX-License-Identifier: Apache-2.0
/* Methods of lists, dictionaries, numbers and the objects of loops. */
#include "engine/base/minmax.h"
#include "server/chat/jinja/methods.h"

#include <math.h>

/* ---- lists, dictionaries, others ---- */

/* Counts the items equal to v. As in Python, identity counts as equality, so a NaN is found in its
 * own list. */
static bool count_items(struct jrt *rt, struct jv self, struct jv v, int64_t *n, int64_t *first)
{
    const struct jlist *l = self.u.list;
    *n = 0;
    *first = -1;
    for (size_t i = 0; i < l->n; i++) {
        bool equal = jv_same(l->items[i], v);
        if (!equal && !jv_equal(rt, l->items[i], v, &equal)) {
            return false;
        }
        if (equal && (*n)++ == 0) {
            *first = (int64_t)i;
        }
    }
    return true;
}

METHOD(list_count)
{
    int64_t n, first;
    (void)args;
    if (!count_items(rt, self, a[0], &n, &first)) {
        return false;
    }
    *out = jv_int(n);
    return true;
}

/* Negative bounds count from the end. */
METHOD(list_index)
{
    int64_t from, to, n = (int64_t)self.u.list->n;
    (void)args;
    if (!jv_int_or(rt, a[1], 0, &from) || !jv_int_or(rt, a[2], n, &to)) {
        return false;
    }
    if (from < 0) {
        from = from + n;
    }
    if (to < 0) {
        to = to + n;
    }
    for (int64_t i = greater(0, from); i < to && i < n; i++) {
        bool equal = jv_same(self.u.list->items[i], a[0]);
        if (!equal && !jv_equal(rt, self.u.list->items[i], a[0], &equal)) {
            return false;
        }
        if (equal) {
            *out = jv_int(i);
            return true;
        }
    }
    return jrt_fail(rt, "ValueError", "the value is not in the %s", jv_type_name(self));
}

/* The list is new, its items are the same. */
METHOD(list_copy)
{
    struct jlist *l;
    (void)a, (void)args;
    if (!jv_collect(rt, self, &l)) {
        return false;
    }
    *out = jv_list(l);
    return true;
}

/* A default is returned instead of an error for a missing key; a key that cannot be hashed is still
 * an error. */
METHOD(dict_get)
{
    bool hashable;
    (void)args;
    const struct jentry *e = jd_find(rt, self.u.dict, a[0], &hashable);
    if (rt->st != OK) {
        return false;
    }
    if (!hashable) {
        return jrt_fail(rt, "TypeError", "unhashable type: '%s'", jv_type_name(a[0]));
    }
    *out = jv_is_given(a[1]) ? a[1] : jv_none();
    if (e) {
        *out = e->value;
    }
    return true;
}

/* keys(), values() and items() show later changes of the dictionary. */
static bool view(struct jrt *rt, struct jv self, enum jview_kind kind, struct jv *out)
{
    struct jview *v = jrt_alloc(rt, 1, sizeof *v);
    if (v) {
        *v = (struct jview){.dict = self.u.dict, .kind = kind};
    }
    *out = (struct jv){.type = JV_VIEW, .u.view = v};
    return v != NULL;
}

METHOD(dict_keys)
{
    (void)a, (void)args;
    return view(rt, self, JVIEW_KEYS, out);
}

METHOD(dict_values)
{
    (void)a, (void)args;
    return view(rt, self, JVIEW_VALUES, out);
}

METHOD(dict_items)
{
    (void)a, (void)args;
    return view(rt, self, JVIEW_ITEMS, out);
}

METHOD(dict_copy)
{
    struct jdict *d = jd_new(rt);
    (void)a, (void)args;
    for (size_t i = 0; d && i < self.u.dict->n; i++) {
        if (!jd_set(rt, d, self.u.dict->e[i].key, self.u.dict->e[i].value)) {
            return false;
        }
    }
    *out = jv_dict(d);
    return d != NULL;
}

METHOD(cycler_next)
{
    struct jcycler *c = self.u.cycler;
    (void)rt, (void)a, (void)args;
    *out = c->items->items[c->at];
    c->at = (c->at + 1) % c->items->n;
    return true;
}

METHOD(cycler_reset)
{
    (void)rt, (void)a, (void)args;
    self.u.cycler->at = 0;
    *out = jv_none();
    return true;
}

METHOD(loop_cycle)
{
    (void)a;
    return jloop_cycle(rt, self, args, out);
}

METHOD(loop_changed)
{
    (void)a;
    return jloop_changed(rt, self, args, out);
}

/* Counts the bits of the absolute value, as in Python. */
METHOD(int_bit_length)
{
    (void)a, (void)args;
    if (self.type == JV_BIG) {
        return jrt_fail(rt, "OverflowError", "bit_length of so large an integer is not supported");
    }
    int64_t i = self.type == JV_BOOL ? self.u.b : self.u.i, n = 0;
    for (uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i; u; u >>= 1) {
        n++;
    }
    *out = jv_int(n);
    return true;
}

METHOD(num_conjugate)
{
    (void)rt, (void)a, (void)args;
    *out = self.type == JV_BOOL ? jv_int(self.u.b) : self;
    return true;
}

METHOD(float_is_integer)
{
    (void)rt, (void)a, (void)args;
    *out = jv_bool(isfinite(self.u.f) && floor(self.u.f) == self.u.f);
    return true;
}
