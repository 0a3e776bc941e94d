/* Filters on sequences and mappings. */
#include "server/jinja/filters.h"
#include "server/jinja/num.h"
#include "server/jinja/unicode.h"

#include <string.h>

/* ---- attribute paths: "a.b.0" ---- */

bool jpath_make(struct jrt *rt, struct jv attribute, struct jpath *path)
{
    *path = (struct jpath){0};
    if (!jv_is_given(attribute) || attribute.type == JV_NONE) {
        return true;
    }
    struct jlist *parts;
    if (attribute.type == JV_STR) {
        struct jstr *dot = js_lit(rt, ".");
        if (!dot || !js_flat(rt, attribute.u.s) ||
            !jt_split(rt, attribute.u.s, dot, -1, false, &parts)) {
            return false;
        }
    } else {
        parts = jlist_new(rt, 1);
        if (!parts) {
            return false;
        }
        parts->items[0] = attribute;
    }
    for (size_t i = 0; attribute.type == JV_STR && i < parts->n; i++) {
        const struct jstr *s = parts->items[i].u.s;
        bool digits = s->n_bytes > 0;
        for (size_t k = 0; k < s->n_bytes; k++) {
            digits = digits && s->s[k] >= '0' && s->s[k] <= '9';
        }
        if (digits && !jnum_from_decimal(rt, s->s, s->n_bytes, &parts->items[i])) {
            return false;
        }
    }
    *path = (struct jpath){.parts = parts->items, .n = parts->n};
    return true;
}

/* `fallback` (not MISSING, not None) takes the place of an undefined part. */
bool jpath_get(struct jrt *rt, const struct jpath *path, struct jv item, struct jv fallback,
               struct jv *out)
{
    for (size_t i = 0; i < path->n; i++) {
        if (!jinja_item(rt, item, path->parts[i], &item)) {
            return false;
        }
        if (item.type == JV_UNDEFINED && jv_is_given(fallback) && fallback.type != JV_NONE) {
            item = fallback;
        }
    }
    *out = item;
    return true;
}

static bool fold(struct jrt *rt, struct jv v, struct jv *out)
{
    *out = v;
    if (v.type != JV_STR) {
        return true;
    }
    struct jstr *s = js_flat(rt, v.u.s) ? jt_map_case(rt, v.u.s, UNI_TO_LOWER) : NULL;
    *out = jv_str(s);
    return s != NULL;
}

/* ---- sorting ---- */

struct order {
    struct jv key, item;
};

static bool merge(struct jrt *rt, const struct order *from, struct order *to, size_t low, size_t mid,
                  size_t high, bool reverse)
{
    size_t a = low, b = mid;
    for (size_t i = low; i < high; i++) {
        bool take_right = false;
        if (a < mid && b < high) {
            /* Stable both ways: the right one goes first only if it is strictly before. */
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
            size_t mid = low + width < n ? low + width : n;
            size_t high = low + 2 * width < n ? low + 2 * width : n;
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

/* The keys of items by one attribute; case folded unless told otherwise. */
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
            (!case_sensitive && !fold(rt, keys[i], &keys[i]))) {
            return false;
        }
    }
    *out = keys;
    return true;
}

/* "a,b" sorts by a, then by b: the key is a list, always (so that equal items that have no order,
 * such as none, do not fail). */
static bool multi_keys_of(struct jrt *rt, const struct jlist *l, struct jv attribute,
                          bool case_sensitive, struct jv **out)
{
    struct jlist *attributes = jlist_new(rt, 1);
    struct jstr *comma = js_lit(rt, ",");
    if (!attributes || !comma) {
        return false;
    }
    attributes->items[0] = attribute;
    if (attribute.type == JV_STR &&
        (!js_flat(rt, attribute.u.s) ||
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

FILTER(jf_dictsort)
{
    (void)args;
    int by = 0;
    if (jv_is_given(a[1])) {
        struct jstr *s;
        if (!jv_to_str(rt, a[1], &s)) {
            return false;
        }
        by = js_is(s, "key") ? 0 : js_is(s, "value") ? 1 : -1;
    }
    if (by < 0) {
        return jrt_fail(rt, "FilterArgumentError",
                        "You can only sort by either \"key\" or \"value\"");
    }
    if (v.type != JV_DICT) {
        return v.type == JV_UNDEFINED
                   ? jv_fail_undefined(rt, v)
                   : jrt_fail(rt, "AttributeError", "'%s' object has no attribute 'items'",
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
            (!jf_truth_or(a[0], false) && !fold(rt, keys[i], &keys[i]))) {
            return false;
        }
    }
    *out = jv_list(l);
    return jinja_sort(rt, l->items, keys, d->n, jf_truth_or(a[2], false));
}

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
        best = yes ? i : best;
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

/* ---- whole sequences ---- */

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
    return jf_first(rt, v, a, args, out); // a prompt must not depend on chance
}

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

/* ---- generators ---- */

FILTER(jf_items)
{
    (void)a, (void)args;
    return jiter_new(rt, JITER_ITEMS, v, out);
}

FILTER(jf_batch)
{
    (void)args;
    if (!jiter_new(rt, JITER_BATCH, v, out)) {
        return false;
    }
    out->u.iter->fill = a[1];
    return jv_as_index(rt, a[0], &out->u.iter->size);
}

FILTER(jf_slice)
{
    (void)args;
    if (!jiter_new(rt, JITER_SLICE, v, out)) {
        return false;
    }
    out->u.iter->fill = a[1];
    return jv_as_index(rt, a[0], &out->u.iter->size);
}

FILTER(jf_unique)
{
    (void)args;
    if (!jiter_new(rt, JITER_UNIQUE, v, out)) {
        return false;
    }
    struct jiter *it = out->u.iter;
    it->fold_case = !jf_truth_or(a[0], false);
    it->seen = jd_new(rt);
    return it->seen && jpath_make(rt, a[1], &it->path);
}

static bool lazy(struct jrt *rt, enum jiter_kind kind, struct jv v, const struct jargs *args,
                 bool by_attribute, bool negate, struct jv *out)
{
    if (!jiter_new(rt, kind, v, out)) {
        return false;
    }
    out->u.iter->args = *args;
    out->u.iter->by_attribute = by_attribute;
    out->u.iter->negate = negate;
    return true;
}

FILTER(jf_map)
{
    (void)a;
    return lazy(rt, JITER_MAP, v, args, false, false, out);
}

FILTER(jf_select)
{
    (void)a;
    return lazy(rt, JITER_SELECT, v, args, false, false, out);
}

FILTER(jf_reject)
{
    (void)a;
    return lazy(rt, JITER_SELECT, v, args, false, true, out);
}

FILTER(jf_selectattr)
{
    (void)a;
    return lazy(rt, JITER_SELECT, v, args, true, false, out);
}

FILTER(jf_rejectattr)
{
    (void)a;
    return lazy(rt, JITER_SELECT, v, args, true, true, out);
}

static bool map_by_attribute(struct jrt *rt, struct jiter *it)
{
    struct jv attribute = jv_missing();
    for (size_t i = 0; i < it->args.n_kw; i++) {
        const struct jkwarg *kw = &it->args.kw[i];
        if (js_is(kw->name, "attribute")) {
            attribute = kw->value;
        } else if (js_is(kw->name, "default")) {
            it->fallback = kw->value;
        } else {
            return jrt_fail(rt, "FilterArgumentError", "Unexpected keyword argument '%.*s'",
                            (int)kw->name->n_bytes, kw->name->s);
        }
    }
    it->by_attribute = true;
    return jpath_make(rt, attribute, &it->path);
}

static bool find_map(struct jrt *rt, struct jiter *it)
{
    bool has_attribute = false;
    for (size_t i = 0; i < it->args.n_kw; i++) {
        has_attribute |= js_is(it->args.kw[i].name, "attribute");
    }
    if (it->args.n_pos == 0 && has_attribute) {
        return map_by_attribute(rt, it);
    }
    if (it->args.n_pos == 0) {
        return jrt_fail(rt, "FilterArgumentError", "map requires a filter argument");
    }
    struct jstr *name;
    if (!jv_to_str(rt, it->args.pos[0], &name)) {
        return false;
    }
    it->filter = jinja_filter_find(name->s, name->n_bytes);
    if (!it->filter) {
        return jrt_fail(rt, "TemplateRuntimeError", "No filter named '%.*s'.",
                        name->n_bytes < 100 ? (int)name->n_bytes : 100, name->s);
    }
    it->rest = (struct jargs){.pos = it->args.pos + 1, .n_pos = it->args.n_pos - 1,
                              .kw = it->args.kw, .n_kw = it->args.n_kw};
    return true;
}

static bool find_select(struct jrt *rt, struct jiter *it)
{
    size_t off = it->by_attribute;
    if (it->by_attribute) {
        if (it->args.n_pos == 0) {
            return jrt_fail(rt, "FilterArgumentError", "Missing parameter for attribute name");
        }
        if (!jpath_make(rt, it->args.pos[0], &it->path)) {
            return false;
        }
    }
    if (it->args.n_pos <= off) {
        return true; // by truth
    }
    struct jstr *name;
    if (!jv_to_str(rt, it->args.pos[off], &name)) {
        return false;
    }
    it->test = jinja_test_find(name->s, name->n_bytes);
    if (!it->test) {
        return jrt_fail(rt, "TemplateRuntimeError", "No test named '%.*s'.",
                        name->n_bytes < 100 ? (int)name->n_bytes : 100, name->s);
    }
    it->rest = (struct jargs){.pos = it->args.pos + off + 1, .n_pos = it->args.n_pos - off - 1,
                              .kw = it->args.kw, .n_kw = it->args.n_kw};
    return true;
}

static int next_mapped(struct jrt *rt, struct jiter *it, struct jv *out)
{
    struct jv item;
    int more = jwalk_next(rt, &it->walk, &item);
    if (more <= 0) {
        return more;
    }
    bool ok = it->filter ? jinja_run_filter(rt, it->filter, item, &it->rest, out)
                         : jpath_get(rt, &it->path, item, it->fallback, out);
    return ok ? 1 : -1;
}

static int next_selected(struct jrt *rt, struct jiter *it, struct jv *out)
{
    int more;
    while ((more = jwalk_next(rt, &it->walk, out)) > 0) {
        struct jv look = *out;
        if (it->by_attribute && !jpath_get(rt, &it->path, look, jv_missing(), &look)) {
            return -1;
        }
        bool yes = false;
        if (!it->test) {
            yes = jv_truth(look);
        } else if (!jinja_run_test(rt, it->test, look, &it->rest, &yes)) {
            return -1;
        }
        if (yes != it->negate) {
            return 1;
        }
    }
    return more;
}

static int next_unique(struct jrt *rt, struct jiter *it, struct jv *out)
{
    int more;
    while ((more = jwalk_next(rt, &it->walk, out)) > 0) {
        struct jv key;
        bool hashable;
        if (!jpath_get(rt, &it->path, *out, jv_missing(), &key) ||
            (it->fold_case && !fold(rt, key, &key))) {
            return -1;
        }
        bool seen = jd_find(rt, it->seen, key, &hashable) != NULL;
        if (!seen && !jd_set(rt, it->seen, key, jv_none())) {
            return -1;
        }
        if (!seen) {
            return 1;
        }
    }
    return more;
}

int jiter_filter_next(struct jrt *rt, struct jiter *it, struct jv *out)
{
    bool fresh = it->at == 0; // the arguments are looked at with the first item
    it->at = 1;
    if (fresh && it->kind != JITER_UNIQUE &&
        !(it->kind == JITER_MAP ? find_map(rt, it) : find_select(rt, it))) {
        return -1;
    }
    return it->kind == JITER_MAP      ? next_mapped(rt, it, out)
           : it->kind == JITER_SELECT ? next_selected(rt, it, out)
                                      : next_unique(rt, it, out);
}
