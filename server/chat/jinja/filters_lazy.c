// SPDX-License-Identifier: Apache-2.0
/* Filters that return a generator, like Python's: an item is processed when it is requested, so
 * items that a template never reaches cannot fail. */
#include "server/chat/jinja/filters.h"

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

/* map(attribute=..., default=...). */
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

/* Arguments are checked when the first item is requested, as in a Python generator. */
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
    it->filter = jinja_filter_find(rt, name->s, name->n_bytes);
    if (!it->filter) {
        return jrt_fail(rt, "TemplateRuntimeError", "No filter named '%.*s'.",
                        name->n_bytes < 100 ? (int)name->n_bytes : 100, name->s);
    }
    it->rest = (struct jargs){.pos = it->args.pos + 1,
                              .n_pos = it->args.n_pos - 1,
                              .kw = it->args.kw,
                              .n_kw = it->args.n_kw};
    return true;
}

/* select, reject and their variants by attribute. Without a test they use the value's truth. */
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
        return true; // without a test the truth value decides
    }
    struct jstr *name;
    if (!jv_to_str(rt, it->args.pos[off], &name)) {
        return false;
    }
    it->test = jinja_test_find(rt, name->s, name->n_bytes);
    if (!it->test) {
        return jrt_fail(rt, "TemplateRuntimeError", "No test named '%.*s'.",
                        name->n_bytes < 100 ? (int)name->n_bytes : 100, name->s);
    }
    it->rest = (struct jargs){.pos = it->args.pos + off + 1,
                              .n_pos = it->args.n_pos - off - 1,
                              .kw = it->args.kw,
                              .n_kw = it->args.n_kw};
    return true;
}

/* True if no item has been requested yet: arguments are checked at the first one. */
static bool is_fresh(struct jiter *it)
{
    bool fresh = it->at == 0;
    it->at = 1;
    return fresh;
}

/* The filter or attribute is looked up at the first item, so with an empty list an unknown one is
 * not an error. */
static int next_mapped(struct jrt *rt, struct jiter *it, struct jv *out)
{
    struct jv item;
    if (is_fresh(it) && !find_map(rt, it)) {
        return -1;
    }
    int more = jwalk_next(rt, &it->walk, &item);
    if (more <= 0) {
        return more;
    }
    bool ok;
    if (it->filter) {
        ok = jinja_run_filter(rt, it->filter, item, &it->rest, out);
    } else {
        ok = jpath_get(rt, &it->path, item, it->fallback, out);
    }
    return ok ? 1 : -1;
}

/* Passes on items unchanged; only the test looks at their attribute. */
static int next_selected(struct jrt *rt, struct jiter *it, struct jv *out)
{
    int more;
    if (is_fresh(it) && !find_select(rt, it)) {
        return -1;
    }
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

/* Compares items by their path, ignoring case; the first of equal items is kept. */
static int next_unique(struct jrt *rt, struct jiter *it, struct jv *out)
{
    int more;
    while ((more = jwalk_next(rt, &it->walk, out)) > 0) {
        struct jv key;
        bool hashable;
        if (!jpath_get(rt, &it->path, *out, jv_missing(), &key) ||
            (it->fold_case && !jv_fold(rt, key, &key))) {
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

/* Compares by value, and strings by default without regard to case. */
FILTER(jf_unique)
{
    (void)args;
    if (!jiter_new(rt, JITER_UNIQUE, v, out)) {
        return false;
    }
    struct jiter *it = out->u.iter;
    it->next = next_unique;
    it->fold_case = !jf_truth_or(a[0], false);
    it->seen = jd_new(rt);
    return it->seen && jpath_make(rt, a[1], &it->path);
}

/* map, select and reject differ in what they do with an item. */
static bool lazy(struct jrt *rt, enum jiter_kind kind, struct jv v, const struct jargs *args,
                 bool by_attribute, bool negate, struct jv *out)
{
    if (!jiter_new(rt, kind, v, out)) {
        return false;
    }
    if (kind == JITER_MAP) {
        out->u.iter->next = next_mapped;
    } else {
        out->u.iter->next = next_selected;
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
