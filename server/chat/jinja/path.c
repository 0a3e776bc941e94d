// SPDX-License-Identifier: Apache-2.0
/* The key by which filters access an item: an attribute path ("a.b.0"), optionally case-folded.
 * Shared by filters that sort, join, sum, map or select. */
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"
#include "server/chat/jinja/unicode.h"

/* Splits "a.b.0" into its parts. A part of digits is an index. */
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

/* `fallback` (unless MISSING or None) replaces an undefined part. */
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

bool jv_fold(struct jrt *rt, struct jv v, struct jv *out)
{
    *out = v;
    if (v.type != JV_STR) {
        return true;
    }
    struct jstr *s = js_flat(rt, v.u.s) ? jt_map_case(rt, v.u.s, UNI_TO_LOWER) : NULL;
    *out = jv_str(s);
    return s != NULL;
}
