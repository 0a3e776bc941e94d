// SPDX-License-Identifier: Apache-2.0
/* Methods of str for case and white space, splitting, joining and searching. Also the helpers that
 * all methods share. */
#include "engine/base/minmax.h"
#include "server/chat/jinja/methods.h"
#include "server/chat/jinja/unicode.h"

#include <string.h>

/* ---- helpers ---- */

/* The result of a str method: Markup stays Markup. */
bool jm_give(struct jv self, struct jstr *s, struct jv *out)
{
    *out = jv_str(s);
    out->flag = self.type == JV_STR ? self.flag : 0;
    return s != NULL;
}

/* A parameter that must be a str; Markup escapes its arguments. */
static bool want_str(struct jrt *rt, struct jv self, struct jv v, struct jstr **out)
{
    if (v.type != JV_STR) {
        return jrt_fail(rt, "TypeError", "must be str, not %s", jv_type_name(v));
    }
    if (self.type == JV_STR && self.flag & JV_MARKUP && !jinja_escape(rt, v, &v)) {
        return false;
    }
    *out = v.u.s;
    return js_flat(rt, v.u.s);
}

/* Reads the arguments `start` and `end` of find, count and startswith. They count characters,
 * negative ones from the end, and are clamped. */
static bool text_range(struct jrt *rt, struct jstr *s, struct jv start, struct jv end,
                       int64_t *from, int64_t *to)
{
    int64_t n = (int64_t)js_chars(s);
    *from = 0;
    *to = n;
    if ((jv_is_given(start) && start.type != JV_NONE && !jv_as_index(rt, start, from)) ||
        (jv_is_given(end) && end.type != JV_NONE && !jv_as_index(rt, end, to))) {
        return false;
    }
    if (*to > n) {
        *to = n;
    } else if (*to < 0) {
        *to += n;
    }
    *to = greater(0, *to);
    if (*from < 0) {
        *from = *from + n;
    }
    *from = greater(0, *from);
    return true;
}

/* ---- case and white space ---- */

static bool mapped(struct jrt *rt, struct jv self, int how, struct jv *out)
{
    return js_flat(rt, self.u.s) && jm_give(self, jt_map_case(rt, self.u.s, how), out);
}

METHOD(str_upper)
{
    (void)a, (void)args;
    return mapped(rt, self, UNI_TO_UPPER, out);
}

METHOD(str_lower)
{
    (void)a, (void)args;
    return mapped(rt, self, UNI_TO_LOWER, out);
}

METHOD(str_casefold)
{
    (void)a, (void)args;
    return mapped(rt, self, UNI_TO_FOLD, out);
}

METHOD(str_capitalize)
{
    (void)a, (void)args;
    return js_flat(rt, self.u.s) && jm_give(self, jt_capitalize(rt, self.u.s), out);
}

METHOD(str_title)
{
    (void)a, (void)args;
    return js_flat(rt, self.u.s) && jm_give(self, jt_title(rt, self.u.s), out);
}

METHOD(str_swapcase)
{
    (void)a, (void)args;
    return js_flat(rt, self.u.s) && jm_give(self, jt_swapcase(rt, self.u.s), out);
}

/* Strips the characters of a set, by default white space. */
static bool strip(struct jrt *rt, struct jv self, struct jv chars, int sides, struct jv *out)
{
    struct jstr *set = NULL;
    if (jv_is_given(chars) && chars.type != JV_NONE) {
        if (chars.type != JV_STR) {
            return jrt_fail(rt, "TypeError", "strip arg must be None or str");
        }
        set = chars.u.s;
        if (!js_flat(rt, set)) {
            return false;
        }
    }
    return js_flat(rt, self.u.s) && jm_give(self, jt_strip(rt, self.u.s, set, sides), out);
}

METHOD(str_strip)
{
    (void)args;
    return strip(rt, self, a[0], 3, out);
}

METHOD(str_lstrip)
{
    (void)args;
    return strip(rt, self, a[0], 1, out);
}

METHOD(str_rstrip)
{
    (void)args;
    return strip(rt, self, a[0], 2, out);
}

/* ---- cutting and joining ---- */

/* Without a separator, runs of white space separate the parts, and no part is empty. */
static bool split(struct jrt *rt, struct jv self, const struct jv *a, bool from_right,
                  struct jv *out)
{
    struct jstr *sep = NULL;
    int64_t max;
    struct jlist *l;
    if (!js_flat(rt, self.u.s) || !jv_int_or(rt, a[1], -1, &max)) {
        return false;
    }
    if (jv_is_given(a[0]) && a[0].type != JV_NONE) {
        if (a[0].type != JV_STR) {
            return jrt_fail(rt, "TypeError", "must be str or None, not %s", jv_type_name(a[0]));
        }
        sep = a[0].u.s;
        if (!js_flat(rt, sep)) {
            return false;
        }
        if (sep->n_bytes == 0) {
            return jrt_fail(rt, "ValueError", "empty separator");
        }
    }
    if (!jt_split(rt, self.u.s, sep, max, from_right, &l)) {
        return false;
    }
    for (size_t i = 0; i < l->n; i++) {
        l->items[i].flag = self.flag;
    }
    *out = jv_list(l);
    return true;
}

METHOD(str_split)
{
    (void)args;
    return split(rt, self, a, false, out);
}

METHOD(str_rsplit)
{
    (void)args;
    return split(rt, self, a, true, out);
}

/* All of Unicode's line ends, as in Python. */
METHOD(str_splitlines)
{
    struct jlist *l;
    (void)args;
    if (!js_flat(rt, self.u.s) ||
        !jt_splitlines(rt, self.u.s, jv_is_given(a[0]) && jv_truth(a[0]), &l)) {
        return false;
    }
    for (size_t i = 0; i < l->n; i++) {
        l->items[i].flag = self.flag;
    }
    *out = jv_list(l);
    return true;
}

/* Three parts: before the separator, the separator, and the rest; if the separator does not occur,
 * the whole text is the first or the last part. */
static bool partition(struct jrt *rt, struct jv self, struct jv sep, bool last, struct jv *out)
{
    struct jstr *s = self.u.s, *by;
    struct jlist *l = jlist_new(rt, 3);
    if (!l || !js_flat(rt, s) || !want_str(rt, self, sep, &by)) {
        return false;
    }
    if (by->n_bytes == 0) {
        return jrt_fail(rt, "ValueError", "empty separator");
    }
    size_t at;
    if (last) {
        at = jt_rfind(s, by, 0, s->n_bytes);
    } else {
        at = jt_find(s, by, 0, s->n_bytes);
    }
    bool found = at != SIZE_MAX;
    size_t before = last ? 0 : s->n_bytes, behind = before;
    if (found) {
        before = at;
        behind = at + by->n_bytes;
    }
    jm_give(self, js_sub(rt, s, 0, before), &l->items[0]);
    jm_give(self, js_sub(rt, s, before, behind - before), &l->items[1]);
    jm_give(self, js_sub(rt, s, behind, s->n_bytes - behind), &l->items[2]);
    *out = jv_tuple(l);
    return rt->st == OK;
}

METHOD(str_partition)
{
    (void)args;
    return partition(rt, self, a[0], false, out);
}

METHOD(str_rpartition)
{
    (void)args;
    return partition(rt, self, a[0], true, out);
}

/* Parts keep their own provenance. */
METHOD(str_join)
{
    struct jlist *parts;
    (void)args;
    if (!jv_is_iterable(a[0])) {
        return jrt_fail(rt, "TypeError", "can only join an iterable");
    }
    if (!js_flat(rt, self.u.s) || !jv_collect(rt, a[0], &parts)) {
        return false;
    }
    for (size_t i = 0; i < parts->n; i++) {
        if (self.flag & JV_MARKUP && !jinja_escape(rt, parts->items[i], &parts->items[i])) {
            return false;
        }
        if (parts->items[i].type != JV_STR) {
            return jrt_fail(rt, "TypeError", "sequence item %zu: expected str instance, %s found",
                            i, jv_type_name(parts->items[i]));
        }
    }
    return jm_give(self, jt_join(rt, self.u.s, parts), out);
}

/* At most `max` times; -1 means all. */
METHOD(str_replace)
{
    struct jstr *old, *new_;
    int64_t max;
    (void)args;
    return js_flat(rt, self.u.s) && want_str(rt, self, a[0], &old) &&
           want_str(rt, self, a[1], &new_) && jv_int_or(rt, a[2], -1, &max) &&
           jm_give(self, jt_replace(rt, self.u.s, old, new_, max), out);
}

/* The string itself if it does not begin with the prefix. */
METHOD(str_removeprefix)
{
    struct jstr *s = self.u.s, *p;
    (void)args;
    if (!js_flat(rt, s) || !want_str(rt, self, a[0], &p)) {
        return false;
    }
    bool has = p->n_bytes <= s->n_bytes && memcmp(s->s, p->s, p->n_bytes) == 0;
    return jm_give(self, has ? js_sub(rt, s, p->n_bytes, s->n_bytes - p->n_bytes) : s, out);
}

METHOD(str_removesuffix)
{
    struct jstr *s = self.u.s, *p;
    (void)args;
    if (!js_flat(rt, s) || !want_str(rt, self, a[0], &p)) {
        return false;
    }
    bool has = p->n_bytes > 0 && p->n_bytes <= s->n_bytes &&
               memcmp(s->s + s->n_bytes - p->n_bytes, p->s, p->n_bytes) == 0;
    return jm_give(self, has ? js_sub(rt, s, 0, s->n_bytes - p->n_bytes) : s, out);
}

/* ---- searching ---- */

/* An affix or a tuple of them; positions are in characters. */
static bool has_affix(struct jrt *rt, struct jv self, const struct jv *a, bool suffix,
                      struct jv *out)
{
    struct jstr *s = self.u.s;
    int64_t from, to;
    if (!js_flat(rt, s) || !text_range(rt, s, a[1], a[2], &from, &to)) {
        return false;
    }
    bool tuple = a[0].type == JV_TUPLE;
    size_t n = tuple ? a[0].u.list->n : 1;
    const struct jv *parts = tuple ? a[0].u.list->items : &a[0];
    size_t begin = js_offset(s, (size_t)from), end = js_offset(s, (size_t)to);
    *out = jv_bool(false);
    for (size_t i = 0; i < n; i++) {
        if (parts[i].type != JV_STR) {
            return jrt_fail(rt, "TypeError", "%s first arg must be str or a tuple of str, not %s",
                            suffix ? "endswith" : "startswith", jv_type_name(parts[i]));
        }
        const struct jstr *p = parts[i].u.s;
        if (!js_flat(rt, parts[i].u.s)) {
            return false;
        }
        if (from <= to && from <= (int64_t)js_chars(s) && p->n_bytes <= end - begin &&
            memcmp(s->s + (suffix ? end - p->n_bytes : begin), p->s, p->n_bytes) == 0) {
            *out = jv_bool(true);
        }
    }
    return true;
}

METHOD(str_startswith)
{
    (void)args;
    return has_affix(rt, self, a, false, out);
}

METHOD(str_endswith)
{
    (void)args;
    return has_affix(rt, self, a, true, out);
}

/* *at is the position in characters, or -1 if nothing is found. The search costs steps in
 * proportion to the text. */
static bool find(struct jrt *rt, struct jv self, const struct jv *a, bool last, int64_t *at)
{
    struct jstr *s = self.u.s;
    int64_t from, to;
    if (a[0].type != JV_STR) {
        return jrt_fail(rt, "TypeError", "must be str, not %s", jv_type_name(a[0]));
    }
    if (!js_flat(rt, s) || !js_flat(rt, a[0].u.s) || !text_range(rt, s, a[1], a[2], &from, &to) ||
        !jrt_charge(rt, s->n_bytes >> 8)) {
        return false;
    }
    *at = -1;
    if (from > to) {
        return true;
    }
    size_t begin = js_offset(s, (size_t)from), end = js_offset(s, (size_t)to);
    size_t found;
    if (last) {
        found = jt_rfind(s, a[0].u.s, begin, end);
    } else {
        found = jt_find(s, a[0].u.s, begin, end);
    }
    if (found != SIZE_MAX) {
        struct jstr head = {.s = s->s, .n_bytes = found, .n_chars = SIZE_MAX};
        *at = (int64_t)js_chars(&head);
    }
    return true;
}

METHOD(str_find)
{
    int64_t at;
    (void)args;
    if (!find(rt, self, a, false, &at)) {
        return false;
    }
    *out = jv_int(at);
    return true;
}

METHOD(str_rfind)
{
    int64_t at;
    (void)args;
    if (!find(rt, self, a, true, &at)) {
        return false;
    }
    *out = jv_int(at);
    return true;
}

METHOD(str_index)
{
    return jm_str_find(rt, self, a, args, out) &&
           (out->u.i >= 0 || jrt_fail(rt, "ValueError", "substring not found"));
}

METHOD(str_rindex)
{
    return jm_str_rfind(rt, self, a, args, out) &&
           (out->u.i >= 0 || jrt_fail(rt, "ValueError", "substring not found"));
}

/* Counts occurrences that do not overlap; the empty string occurs between all characters. */
METHOD(str_count)
{
    struct jstr *s = self.u.s;
    int64_t from, to, n = 0;
    (void)args;
    if (a[0].type != JV_STR) {
        return jrt_fail(rt, "TypeError", "must be str, not %s", jv_type_name(a[0]));
    }
    if (!js_flat(rt, s) || !js_flat(rt, a[0].u.s) || !text_range(rt, s, a[1], a[2], &from, &to) ||
        !jrt_charge(rt, s->n_bytes >> 8)) {
        return false;
    }
    const struct jstr *p = a[0].u.s;
    if (from > to || from > (int64_t)js_chars(s)) {
        n = 0;
    } else if (p->n_bytes == 0) {
        n = to - from + 1;
    } else {
        size_t at = js_offset(s, (size_t)from), end = js_offset(s, (size_t)to);
        while ((at = jt_find(s, p, at, end)) != SIZE_MAX) {
            n++;
            at += p->n_bytes;
        }
    }
    *out = jv_int(n);
    return true;
}
