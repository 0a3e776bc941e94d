#include "engine/base/utf8.h"
#include "server/jinja_eval.h"
#include "server/jinja_num.h"
#include "server/jinja_unicode.h"

#include <math.h>
#include <string.h>

#define METHOD(name)                                                                               \
    static bool name(struct jrt *rt, struct jv self, const struct jv *a, const struct jargs *args, \
                     struct jv *out)

/* ---- helpers ---- */

/* The result of a str method: Markup stays Markup. */
static bool give(struct jv self, struct jstr *s, struct jv *out)
{
    *out = jv_str(s);
    out->flag = self.type == JV_STR ? self.flag : 0;
    return s != NULL;
}

/* A parameter that must be a str; Markup escapes what it is given. */
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

static bool int_or(struct jrt *rt, struct jv v, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    return !jv_is_given(v) || jv_as_index(rt, v, out);
}

/* start and end of find, count, startswith: characters, negative from the end, clamped. */
static bool text_range(struct jrt *rt, struct jstr *s, struct jv start, struct jv end, int64_t *from,
                       int64_t *to)
{
    int64_t n = (int64_t)js_chars(s);
    *from = 0;
    *to = n;
    if ((jv_is_given(start) && start.type != JV_NONE && !jv_as_index(rt, start, from)) ||
        (jv_is_given(end) && end.type != JV_NONE && !jv_as_index(rt, end, to))) {
        return false;
    }
    *to = *to > n ? n : *to < 0 ? *to + n : *to;
    *to = *to < 0 ? 0 : *to;
    *from = *from < 0 ? *from + n : *from;
    *from = *from < 0 ? 0 : *from;
    return true;
}

/* ---- case and white space ---- */

static bool mapped(struct jrt *rt, struct jv self, int how, struct jv *out)
{
    return js_flat(rt, self.u.s) && give(self, jt_map_case(rt, self.u.s, how), out);
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
    return js_flat(rt, self.u.s) && give(self, jt_capitalize(rt, self.u.s), out);
}

METHOD(str_title)
{
    (void)a, (void)args;
    return js_flat(rt, self.u.s) && give(self, jt_title(rt, self.u.s), out);
}

METHOD(str_swapcase)
{
    (void)a, (void)args;
    return js_flat(rt, self.u.s) && give(self, jt_swapcase(rt, self.u.s), out);
}

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
    return js_flat(rt, self.u.s) && give(self, jt_strip(rt, self.u.s, set, sides), out);
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

static bool split(struct jrt *rt, struct jv self, const struct jv *a, bool from_right,
                  struct jv *out)
{
    struct jstr *sep = NULL;
    int64_t max;
    struct jlist *l;
    if (!js_flat(rt, self.u.s) || !int_or(rt, a[1], -1, &max)) {
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
    size_t at = last ? jt_rfind(s, by, 0, s->n_bytes) : jt_find(s, by, 0, s->n_bytes);
    bool found = at != SIZE_MAX;
    size_t before = found ? at : last ? 0 : s->n_bytes;
    size_t behind = found ? at + by->n_bytes : last ? 0 : s->n_bytes;
    give(self, js_sub(rt, s, 0, before), &l->items[0]);
    give(self, js_sub(rt, s, before, behind - before), &l->items[1]);
    give(self, js_sub(rt, s, behind, s->n_bytes - behind), &l->items[2]);
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
    return give(self, jt_join(rt, self.u.s, parts), out);
}

METHOD(str_replace)
{
    struct jstr *old, *new_;
    int64_t max;
    (void)args;
    return js_flat(rt, self.u.s) && want_str(rt, self, a[0], &old) &&
           want_str(rt, self, a[1], &new_) && int_or(rt, a[2], -1, &max) &&
           give(self, jt_replace(rt, self.u.s, old, new_, max), out);
}

METHOD(str_removeprefix)
{
    struct jstr *s = self.u.s, *p;
    (void)args;
    if (!js_flat(rt, s) || !want_str(rt, self, a[0], &p)) {
        return false;
    }
    bool has = p->n_bytes <= s->n_bytes && memcmp(s->s, p->s, p->n_bytes) == 0;
    return give(self, has ? js_sub(rt, s, p->n_bytes, s->n_bytes - p->n_bytes) : s, out);
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
    return give(self, has ? js_sub(rt, s, 0, s->n_bytes - p->n_bytes) : s, out);
}

/* ---- searching ---- */

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
    size_t found = last ? jt_rfind(s, a[0].u.s, begin, end) : jt_find(s, a[0].u.s, begin, end);
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
    return str_find(rt, self, a, args, out) &&
           (out->u.i >= 0 || jrt_fail(rt, "ValueError", "substring not found"));
}

METHOD(str_rindex)
{
    return str_rfind(rt, self, a, args, out) &&
           (out->u.i >= 0 || jrt_fail(rt, "ValueError", "substring not found"));
}

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

/* ---- padding ---- */

static bool fill_char(struct jrt *rt, struct jv v, struct jstr **out)
{
    if (!jv_is_given(v)) {
        *out = js_lit(rt, " ");
        return *out != NULL;
    }
    if (v.type != JV_STR || !js_flat(rt, v.u.s) || js_chars(v.u.s) != 1) {
        return jrt_fail(rt, "TypeError", "The fill character must be exactly one character long");
    }
    *out = v.u.s;
    return true;
}

/* where: -1 text left, 0 centred, 1 text right */
static bool justify(struct jrt *rt, struct jv self, const struct jv *a, int where, struct jv *out)
{
    int64_t width;
    struct jstr *fill = NULL;
    if (!js_flat(rt, self.u.s) || !jv_as_index(rt, a[0], &width) || !fill_char(rt, a[1], &fill)) {
        return false;
    }
    int64_t pad = width - (int64_t)js_chars(self.u.s);
    if (pad <= 0) {
        return give(self, self.u.s, out);
    }
    int64_t left = where < 0 ? 0 : where > 0 ? pad : pad / 2 + (pad & width & 1);
    return give(self, jt_pad(rt, self.u.s, (size_t)left, (size_t)(pad - left), fill), out);
}

METHOD(str_ljust)
{
    (void)args;
    return justify(rt, self, a, -1, out);
}

METHOD(str_rjust)
{
    (void)args;
    return justify(rt, self, a, 1, out);
}

METHOD(str_center)
{
    (void)args;
    return justify(rt, self, a, 0, out);
}

METHOD(str_zfill)
{
    int64_t width;
    struct jstr *s = self.u.s, *zero = js_lit(rt, "0");
    (void)args;
    if (!zero || !js_flat(rt, s) || !jv_as_index(rt, a[0], &width)) {
        return false;
    }
    int64_t pad = width - (int64_t)js_chars(s);
    if (pad <= 0) {
        return give(self, s, out);
    }
    struct jsb b;
    jsb_init(&b, rt);
    size_t sign = s->n_bytes > 0 && (s->s[0] == '-' || s->s[0] == '+');
    jsb_put_range(&b, s, 0, sign);
    jsb_fill(&b, zero, (size_t)pad);
    jsb_put_range(&b, s, sign, s->n_bytes - sign);
    return give(self, jsb_done(&b), out);
}

METHOD(str_expandtabs)
{
    int64_t size;
    struct jstr *s = self.u.s, *space = js_lit(rt, " ");
    (void)args;
    if (!space || !js_flat(rt, s) || !int_or(rt, a[0], 8, &size)) {
        return false;
    }
    struct jsb b;
    jsb_init(&b, rt);
    int64_t column = 0;
    for (size_t i = 0; i < s->n_bytes && !b.failed; i++) {
        char c = s->s[i];
        if (c == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            jsb_fill(&b, space, (size_t)n);
            column += n;
            continue;
        }
        jsb_put_range(&b, s, i, 1);
        column = c == '\n' || c == '\r' ? 0 : column + (((unsigned char)c & 0xC0) != 0x80);
    }
    return give(self, jsb_done(&b), out);
}

/* ---- questions ---- */

/* All characters have one of the bits, and there is at least one. */
static bool all_of(struct jrt *rt, struct jv self, unsigned bits, bool or_empty, struct jv *out)
{
    struct jstr *s = self.u.s;
    if (!js_flat(rt, s)) {
        return false;
    }
    bool yes = or_empty || s->n_bytes > 0;
    for (size_t i = 0; yes && i < s->n_bytes;) {
        uint32_t cp;
        size_t n = utf8_decode(s->s + i, s->n_bytes - i, &cp);
        yes = n > 0 && uni_class(cp) & bits;
        i += n;
    }
    *out = jv_bool(yes);
    return true;
}

METHOD(str_isalpha)
{
    (void)a, (void)args;
    return all_of(rt, self, UNI_ALPHA, false, out);
}

METHOD(str_isdigit)
{
    (void)a, (void)args;
    return all_of(rt, self, UNI_DIGIT, false, out);
}

METHOD(str_isdecimal)
{
    (void)a, (void)args;
    return all_of(rt, self, UNI_DECIMAL, false, out);
}

METHOD(str_isnumeric)
{
    (void)a, (void)args;
    return all_of(rt, self, UNI_NUMERIC, false, out);
}

METHOD(str_isalnum)
{
    (void)a, (void)args;
    return all_of(rt, self, UNI_ALPHA | UNI_DIGIT | UNI_DECIMAL | UNI_NUMERIC, false, out);
}

METHOD(str_isspace)
{
    (void)a, (void)args;
    return all_of(rt, self, UNI_SPACE, false, out);
}

METHOD(str_isprintable)
{
    (void)a, (void)args;
    return all_of(rt, self, UNI_PRINTABLE, true, out);
}

METHOD(str_isascii)
{
    (void)a, (void)args;
    if (!js_flat(rt, self.u.s)) {
        return false;
    }
    *out = jv_bool(js_chars(self.u.s) == self.u.s->n_bytes);
    return true;
}

METHOD(str_isidentifier)
{
    (void)a, (void)args;
    if (!all_of(rt, self, UNI_ID_CONTINUE, false, out)) {
        return false;
    }
    uint32_t cp = 0;
    utf8_decode(self.u.s->s, self.u.s->n_bytes, &cp);
    *out = jv_bool(out->u.b && uni_class(cp) & UNI_ID_START);
    return true;
}

/* Some cased character, and all of them of the wanted kind. */
static bool cased_like(struct jrt *rt, struct jv self, unsigned wanted, unsigned refused,
                       struct jv *out)
{
    struct jstr *s = self.u.s;
    bool any = false, bad = false;
    if (!js_flat(rt, s)) {
        return false;
    }
    for (size_t i = 0; i < s->n_bytes;) {
        uint32_t cp;
        size_t n = utf8_decode(s->s + i, s->n_bytes - i, &cp);
        any |= (uni_class(cp) & wanted) != 0;
        bad |= (uni_class(cp) & refused) != 0;
        i += n > 0 ? n : 1;
    }
    *out = jv_bool(any && !bad);
    return true;
}

METHOD(str_islower)
{
    (void)a, (void)args;
    return cased_like(rt, self, UNI_LOWER, UNI_UPPER | UNI_TITLE, out);
}

METHOD(str_isupper)
{
    (void)a, (void)args;
    return cased_like(rt, self, UNI_UPPER, UNI_LOWER | UNI_TITLE, out);
}

METHOD(str_istitle)
{
    struct jstr *s = self.u.s;
    bool cased = false, before = false, ok = true;
    (void)a, (void)args;
    if (!js_flat(rt, s)) {
        return false;
    }
    for (size_t i = 0; i < s->n_bytes && ok;) {
        uint32_t cp;
        size_t n = utf8_decode(s->s + i, s->n_bytes - i, &cp);
        unsigned bits = uni_class(cp);
        if (bits & (UNI_UPPER | UNI_TITLE)) {
            ok = !before;
            before = cased = true;
        } else if (bits & UNI_LOWER) {
            ok = before;
            before = cased = true;
        } else {
            before = false;
        }
        i += n > 0 ? n : 1;
    }
    *out = jv_bool(ok && cased);
    return true;
}

/* ---- formatting, bytes ---- */

METHOD(str_format)
{
    (void)a;
    return jinja_format(rt, self, args, out);
}

METHOD(str_format_map)
{
    (void)args;
    if (a[0].type != JV_DICT) {
        return jrt_fail(rt, "TypeError", "format_map() needs a mapping");
    }
    const struct jdict *d = a[0].u.dict;
    struct jkwarg *kw = jrt_alloc(rt, d->n + 1, sizeof *kw);
    size_t n = 0;
    for (size_t i = 0; kw && i < d->n; i++) {
        if (d->e[i].key.type == JV_STR && js_flat(rt, d->e[i].key.u.s)) {
            kw[n++] = (struct jkwarg){.name = d->e[i].key.u.s, .value = d->e[i].value};
        }
    }
    struct jargs named = {.kw = kw, .n_kw = n};
    return kw && jinja_format(rt, self, &named, out);
}

METHOD(str_encode)
{
    (void)a, (void)args;
    *out = (struct jv){.type = JV_BYTES, .u.s = self.u.s};
    return js_flat(rt, self.u.s);
}

METHOD(bytes_decode)
{
    (void)a, (void)args, (void)rt;
    *out = jv_str(self.u.s);
    return true;
}

/* ---- lists, dictionaries, others ---- */

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

METHOD(list_index)
{
    int64_t from, to, n = (int64_t)self.u.list->n;
    (void)args;
    if (!int_or(rt, a[1], 0, &from) || !int_or(rt, a[2], n, &to)) {
        return false;
    }
    from = from < 0 ? from + n : from;
    to = to < 0 ? to + n : to;
    for (int64_t i = from < 0 ? 0 : from; i < to && i < n; i++) {
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
    *out = e ? e->value : jv_is_given(a[1]) ? a[1] : jv_none();
    return true;
}

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

enum {
    STR = 1 << JV_STR,
    LISTS = 1 << JV_LIST | 1 << JV_TUPLE,
    DICT = 1 << JV_DICT,
    INTS = 1 << JV_BOOL | 1 << JV_INT | 1 << JV_BIG,
};

/* Sorted by name. */
static const struct jinja_method methods[] = {
    {"bit_length", INTS, int_bit_length, "", 0, true},
    {"capitalize", STR, str_capitalize, "", 0, true},
    {"casefold", STR, str_casefold, "", 0, true},
    {"center", STR, str_center, "width,fillchar", 1, true},
    {"changed", 1 << JV_LOOP, loop_changed, NULL, 0, true},
    {"conjugate", INTS | 1 << JV_FLOAT, num_conjugate, "", 0, true},
    {"copy", 1 << JV_LIST, list_copy, "", 0, true},
    {"copy", DICT, dict_copy, "", 0, true},
    {"count", STR, str_count, "sub,start,end", 1, true},
    {"count", LISTS, list_count, "value", 1, true},
    {"cycle", 1 << JV_LOOP, loop_cycle, NULL, 0, true},
    {"decode", 1 << JV_BYTES, bytes_decode, "encoding,errors", 0, false},
    {"encode", STR, str_encode, "encoding,errors", 0, false},
    {"endswith", STR, str_endswith, "suffix,start,end", 1, true},
    {"expandtabs", STR, str_expandtabs, "tabsize", 0, false},
    {"find", STR, str_find, "sub,start,end", 1, true},
    {"format", STR, str_format, NULL, 0, false},
    {"format_map", STR, str_format_map, "mapping", 1, true},
    {"get", DICT, dict_get, "key,default", 1, true},
    {"index", STR, str_index, "sub,start,end", 1, true},
    {"index", LISTS, list_index, "value,start,stop", 1, true},
    {"is_integer", 1 << JV_FLOAT, float_is_integer, "", 0, true},
    {"isalnum", STR, str_isalnum, "", 0, true},
    {"isalpha", STR, str_isalpha, "", 0, true},
    {"isascii", STR, str_isascii, "", 0, true},
    {"isdecimal", STR, str_isdecimal, "", 0, true},
    {"isdigit", STR, str_isdigit, "", 0, true},
    {"isidentifier", STR, str_isidentifier, "", 0, true},
    {"islower", STR, str_islower, "", 0, true},
    {"isnumeric", STR, str_isnumeric, "", 0, true},
    {"isprintable", STR, str_isprintable, "", 0, true},
    {"isspace", STR, str_isspace, "", 0, true},
    {"istitle", STR, str_istitle, "", 0, true},
    {"isupper", STR, str_isupper, "", 0, true},
    {"items", DICT, dict_items, "", 0, true},
    {"join", STR, str_join, "iterable", 1, true},
    {"keys", DICT, dict_keys, "", 0, true},
    {"ljust", STR, str_ljust, "width,fillchar", 1, true},
    {"lower", STR, str_lower, "", 0, true},
    {"lstrip", STR, str_lstrip, "chars", 0, true},
    {"next", 1 << JV_CYCLER, cycler_next, "", 0, true},
    {"partition", STR, str_partition, "sep", 1, true},
    {"removeprefix", STR, str_removeprefix, "prefix", 1, true},
    {"removesuffix", STR, str_removesuffix, "suffix", 1, true},
    {"replace", STR, str_replace, "old,new,count", 2, true},
    {"reset", 1 << JV_CYCLER, cycler_reset, "", 0, true},
    {"rfind", STR, str_rfind, "sub,start,end", 1, true},
    {"rindex", STR, str_rindex, "sub,start,end", 1, true},
    {"rjust", STR, str_rjust, "width,fillchar", 1, true},
    {"rpartition", STR, str_rpartition, "sep", 1, true},
    {"rsplit", STR, str_rsplit, "sep,maxsplit", 0, false},
    {"rstrip", STR, str_rstrip, "chars", 0, true},
    {"split", STR, str_split, "sep,maxsplit", 0, false},
    {"splitlines", STR, str_splitlines, "keepends", 0, false},
    {"startswith", STR, str_startswith, "prefix,start,end", 1, true},
    {"strip", STR, str_strip, "chars", 0, true},
    {"swapcase", STR, str_swapcase, "", 0, true},
    {"title", STR, str_title, "", 0, true},
    {"upper", STR, str_upper, "", 0, true},
    {"values", DICT, dict_values, "", 0, true},
    {"zfill", STR, str_zfill, "width", 1, true},
};

enum { N_METHODS = sizeof methods / sizeof methods[0] };

static int order(const char *name, const char *s, size_t n_bytes)
{
    size_t n = strlen(name);
    int c = memcmp(name, s, n < n_bytes ? n : n_bytes);
    return c != 0 ? c : n < n_bytes ? -1 : n > n_bytes;
}

const struct jinja_method *jinja_methods_find(const char *name, size_t n_bytes)
{
    size_t low = 0, high = N_METHODS;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (order(methods[mid].name, name, n_bytes) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < N_METHODS && order(methods[low].name, name, n_bytes) == 0 ? &methods[low] : NULL;
}

const struct jinja_method *jinja_method_for(const struct jinja_method *first, struct jv self)
{
    for (const struct jinja_method *m = first;
         m && m < methods + N_METHODS && strcmp(m->name, first->name) == 0; m++) {
        if (m->types >> self.type & 1) {
            return m;
        }
    }
    return NULL;
}

bool jinja_is_mutator(struct jv self, const char *name, size_t n_bytes)
{
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    static const char *const of_list[] = {"append", "clear", "pop",    "reverse",
                                          "insert", "sort",  "extend", "remove"};
    bool dict = self.type == JV_DICT;
    if (!dict && self.type != JV_LIST) {
        return false;
    }
    size_t n = dict ? sizeof of_dict / sizeof of_dict[0] : sizeof of_list / sizeof of_list[0];
    for (size_t i = 0; i < n; i++) {
        const char *one = dict ? of_dict[i] : of_list[i];
        if (strlen(one) == n_bytes && memcmp(one, name, n_bytes) == 0) {
            return true;
        }
    }
    return false;
}
