// SPDX-License-Identifier: Apache-2.0
/* Filters that sort by a key or select by it: sort, dictsort, groupby, min, max. */
#include "engine/base/minmax.h"
#include "server/chat/jinja/filters.h"

#include <string.h>

struct order {
    struct jv key, item;
};

/* Merges two sorted runs. If two values cannot be compared, the whole sort fails. */
static bool merge(struct jrt *rt, const struct order *from, struct order *to, size_t low,
                  size_t mid, size_t high, bool reverse)
{
    size_t a = low, b = mid;
    for (size_t i = low; i < high; i++) {
        bool take_right = false;
        if (a < mid && b < high) {
            /* Stable in both directions: the right value goes first only if it is strictly
             * smaller. */
            const struct jv left = from[a].key, right = from[b].key;
            if (!(reverse ? jv_compare(rt, left, right, JV_LT, &take_right)
                          : jv_compare(rt, right, left, JV_LT, &take_right))) {
                return false;
            }
        }
        to[i] = from[a < mid && !take_right ? a++ : b++];
    }
    return true;
}

/* A bottom-up merge sort: stable like Python's, and without recursion. */
bool jinja_sort(struct jrt *rt, struct jv *items, const struct jv *keys, size_t n, bool reverse)
{
    if (n < 2) {
        return true;
    }
    struct order *a = jrt_alloc(rt, n, sizeof *a), *b = jrt_alloc(rt, n, sizeof *b);
    if (!a || !b) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        a[i] = (struct order){.key = keys[i], .item = items[i]};
    }
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t mid = lesser(low + width, n);
            size_t high = lesser(low + 2 * width, n);
            if (!merge(rt, a, b, low, mid, high, reverse)) {
                return false;
            }
        }
        struct order *t = a;
        a = b;
        b = t;
    }
    for (size_t i = 0; i < n; i++) {
        items[i] = a[i].item;
    }
    return true;
}

/* The keys of items by one attribute, case-folded unless told otherwise. */
static bool keys_of(struct jrt *rt, const struct jlist *l, struct jv attribute, struct jv fallback,
                    bool case_sensitive, struct jv **out)
{
    struct jpath path;
    struct jv *keys = jrt_alloc(rt, l->n, sizeof *keys);
    if (!keys || !jpath_make(rt, attribute, &path)) {
        return false;
    }
    for (size_t i = 0; i < l->n; i++) {
        if (!jpath_get(rt, &path, l->items[i], fallback, &keys[i]) ||
            (!case_sensitive && !jv_fold(rt, keys[i], &keys[i]))) {
            return false;
        }
    }
    *out = keys;
    return true;
}

/* "a,b" sorts by a, then by b. The key is always a list, because lists skip equal items, even those
 * without an order such as None. */
static bool multi_keys_of(struct jrt *rt, const struct jlist *l, struct jv attribute,
                          bool case_sensitive, struct jv **out)
{
    struct jlist *attributes = jlist_new(rt, 1);
    struct jstr *comma = js_lit(rt, ",");
    if (!attributes || !comma) {
        return false;
    }
    attributes->items[0] = attribute;
    if (attribute.type == JV_STR && (!js_flat(rt, attribute.u.s) ||
                                     !jt_split(rt, attribute.u.s, comma, -1, false, &attributes))) {
        return false;
    }
    struct jv *keys = jrt_alloc(rt, l->n, sizeof *keys);
    for (size_t i = 0; keys && i < l->n; i++) {
        keys[i] = jv_list(jlist_new(rt, attributes->n));
        if (!keys[i].u.list) {
            return false;
        }
    }
    for (size_t k = 0; keys && k < attributes->n; k++) {
        struct jv *part;
        if (!keys_of(rt, l, attributes->items[k], jv_missing(), case_sensitive, &part)) {
            return false;
        }
        for (size_t i = 0; i < l->n; i++) {
            keys[i].u.list->items[k] = part[i];
        }
    }
    *out = keys;
    return keys != NULL;
}

FILTER(jf_sort)
{
    struct jlist *l;
    struct jv *keys;
    (void)args;
    if (!jv_collect(rt, v, &l) || !multi_keys_of(rt, l, a[2], jf_truth_or(a[1], false), &keys) ||
        !jinja_sort(rt, l->items, keys, l->n, jf_truth_or(a[0], false))) {
        return false;
    }
    *out = jv_list(l);
    return true;
}

/* by: 0 sorts by key, 1 by value. */
FILTER(jf_dictsort)
{
    (void)args;
    int by = 0;
    if (jv_is_given(a[1])) {
        struct jstr *s;
        if (!jv_to_str(rt, a[1], &s)) {
            return false;
        }
        by = js_is(s, "value") ? 1 : -1;
        if (js_is(s, "key")) {
            by = 0;
        }
    }
    if (by < 0) {
        return jrt_fail(rt, "FilterArgumentError",
                        "You can only sort by either \"key\" or \"value\"");
    }
    if (v.type != JV_DICT) {
        if (v.type == JV_UNDEFINED) {
            return jv_fail_undefined(rt, v);
        }
        return jrt_fail(rt, "AttributeError", "'%s' object has no attribute 'items'",
                        jv_type_name(v));
    }
    const struct jdict *d = v.u.dict;
    struct jlist *l = jlist_new(rt, d->n);
    struct jv *keys = jrt_alloc(rt, d->n, sizeof *keys);
    if (!l || !keys) {
        return false;
    }
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = by == 0 ? d->e[i].key : d->e[i].value;
        if (!jv_pair(rt, d->e[i].key, d->e[i].value, &l->items[i]) ||
            (!jf_truth_or(a[0], false) && !jv_fold(rt, keys[i], &keys[i]))) {
            return false;
        }
    }
    *out = jv_list(l);
    return jinja_sort(rt, l->items, keys, d->n, jf_truth_or(a[2], false));
}

/* Sorts by the key, then makes a group of each run of equal keys. The keys are computed again after
 * the sort, since items have moved. */
FILTER(jf_groupby)
{
    struct jlist *l, *groups = jlist_new(rt, 0);
    struct jv *keys;
    struct jpath path;
    bool case_sensitive = jf_truth_or(a[2], false);
    (void)args;
    if (!groups || !jv_collect(rt, v, &l) || !jpath_make(rt, a[0], &path) ||
        !keys_of(rt, l, a[0], a[1], case_sensitive, &keys) ||
        !jinja_sort(rt, l->items, keys, l->n, false) ||
        !keys_of(rt, l, a[0], a[1], case_sensitive, &keys)) {
        return false;
    }
    for (size_t i = 0; i < l->n;) {
        size_t end = i + 1;
        bool equal = true;
        while (end < l->n) {
            if (!jv_equal(rt, keys[i], keys[end], &equal)) {
                return false;
            }
            if (!equal) {
                break;
            }
            end++;
        }
        struct jlist *members = jlist_new(rt, end - i);
        struct jv group, grouper = keys[i];
        if (!members || (!case_sensitive && !jpath_get(rt, &path, l->items[i], a[1], &grouper))) {
            return false;
        }
        memcpy(members->items, l->items + i, (end - i) * sizeof l->items[0]);
        if (!jv_pair(rt, grouper, jv_list(members), &group)) {
            return false;
        }
        group.flag = JV_GROUP;
        if (!jlist_push(rt, groups, group)) {
            return false;
        }
        i = end;
    }
    *out = jv_list(groups);
    return true;
}

/* The minimum or maximum; of equal ones, the first. */
static bool extreme(struct jrt *rt, struct jv v, const struct jv *a, enum jv_order better,
                    struct jv *out)
{
    struct jlist *l;
    struct jv *keys;
    if (!jv_collect(rt, v, &l) ||
        !keys_of(rt, l, a[1], jv_missing(), jf_truth_or(a[0], false), &keys)) {
        return false;
    }
    if (l->n == 0) {
        return jv_undefined_hint(rt, "No aggregated item, sequence was empty.", out);
    }
    size_t best = 0;
    for (size_t i = 1; i < l->n; i++) {
        bool yes;
        if (!jv_compare(rt, keys[i], keys[best], better, &yes)) {
            return false;
        }
        if (yes) {
            best = i;
        }
    }
    *out = l->items[best];
    return true;
}

FILTER(jf_min)
{
    (void)args;
    return extreme(rt, v, a, JV_LT, out);
}

FILTER(jf_max)
{
    (void)args;
    return extreme(rt, v, a, JV_GT, out);
}
