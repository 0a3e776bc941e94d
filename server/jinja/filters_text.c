/* Filters on strings, numbers and single values. */
#include "engine/base/utf8.h"
#include "server/jinja/filters.h"
#include "server/jinja/num.h"
#include "server/jinja/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* v as a string for filters that call soft_str. */
static bool soft(struct jrt *rt, struct jv v, struct jv *s)
{
    return jv_soft_str(rt, v, s) && js_flat(rt, s->u.s);
}

static bool give(struct jv like, struct jstr *s, struct jv *out)
{
    *out = jv_str(s);
    out->flag = like.flag;
    return s != NULL;
}

static bool int_or(struct jrt *rt, struct jv v, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    return !jv_is_given(v) || jv_as_index(rt, v, out);
}

static bool truth_or(struct jv v, bool otherwise)
{
    return jv_is_given(v) ? jv_truth(v) : otherwise;
}

/* ---- case, trimming, replacing ---- */

FILTER(jf_upper)
{
    (void)a, (void)args;
    return soft(rt, v, &v) && give(v, jt_map_case(rt, v.u.s, UNI_TO_UPPER), out);
}

FILTER(jf_lower)
{
    (void)a, (void)args;
    return soft(rt, v, &v) && give(v, jt_map_case(rt, v.u.s, UNI_TO_LOWER), out);
}

FILTER(jf_capitalize)
{
    (void)a, (void)args;
    return soft(rt, v, &v) && give(v, jt_capitalize(rt, v.u.s), out);
}

/* Words begin behind white space and - ( { [ <. */
static bool begins_word(uint32_t cp)
{
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || uni_is_space(cp);
}

FILTER(jf_title)
{
    (void)a, (void)args;
    if (!soft(rt, v, &v)) {
        return false;
    }
    struct jstr *s = v.u.s;
    struct jsb b;
    jsb_init(&b, rt);
    for (size_t i = 0; i < s->n_bytes && !b.failed;) {
        uint32_t cp;
        size_t n = utf8_decode(s->s + i, s->n_bytes - i, &cp);
        if (begins_word(cp)) {
            jsb_put_range(&b, s, i, n);
            i += n;
            continue;
        }
        size_t end = i + n, m;
        while (end < s->n_bytes && (m = utf8_decode(s->s + end, s->n_bytes - end, &cp)) > 0 &&
               !begins_word(cp)) {
            end += m;
        }
        struct jstr *first = js_sub(rt, s, i, n), *rest = js_sub(rt, s, i + n, end - i - n);
        first = first ? jt_map_case(rt, first, UNI_TO_UPPER) : NULL;
        rest = rest ? jt_map_case(rt, rest, UNI_TO_LOWER) : NULL;
        if (!first || !rest) {
            return false;
        }
        jsb_put_str(&b, first);
        jsb_put_str(&b, rest);
        i = end;
    }
    return give((struct jv){0}, jsb_done(&b), out);
}

FILTER(jf_trim)
{
    struct jstr *chars = NULL;
    (void)args;
    if (!soft(rt, v, &v)) {
        return false;
    }
    if (jv_is_given(a[0]) && a[0].type != JV_NONE) {
        if (a[0].type != JV_STR) {
            return jrt_fail(rt, "TypeError", "strip arg must be None or str");
        }
        chars = a[0].u.s;
        if (!js_flat(rt, chars)) {
            return false;
        }
    }
    return give(v, jt_strip(rt, v.u.s, chars, 3), out);
}

FILTER(jf_replace)
{
    struct jstr *s, *old, *new_;
    int64_t max = -1;
    (void)args;
    if (jv_is_given(a[2]) && a[2].type != JV_NONE && !jv_as_index(rt, a[2], &max)) {
        return false;
    }
    return jv_to_str(rt, v, &s) && jv_to_str(rt, a[0], &old) && jv_to_str(rt, a[1], &new_) &&
           give((struct jv){0}, jt_replace(rt, s, old, new_, max), out);
}

FILTER(jf_string)
{
    (void)a, (void)args;
    return soft(rt, v, out);
}

FILTER(jf_safe)
{
    (void)a, (void)args;
    if (!soft(rt, v, out)) {
        return false;
    }
    out->flag = JV_MARKUP;
    return true;
}

FILTER(jf_escape)
{
    (void)a, (void)args;
    return jinja_escape(rt, v, out);
}

FILTER(jf_forceescape)
{
    (void)a, (void)args;
    if (!soft(rt, v, &v)) {
        return false;
    }
    v.flag = 0;
    return jinja_escape(rt, v, out);
}

/* Tags and comments go, runs of white space become one space, entities their characters. */
FILTER(jf_striptags)
{
    (void)a, (void)args;
    if (!soft(rt, v, &v)) {
        return false;
    }
    struct jstr *s = v.u.s;
    struct jsb b;
    jsb_init(&b, rt);
    for (size_t i = 0; i < s->n_bytes && !b.failed;) {
        bool comment = s->n_bytes - i >= 4 && memcmp(s->s + i, "<!--", 4) == 0;
        const char *end = NULL;
        if (s->s[i] == '<') {
            end = comment ? memmem(s->s + i + 4, s->n_bytes - i - 4, "-->", 3)
                          : memchr(s->s + i, '>', s->n_bytes - i);
        }
        if (end) {
            i = (size_t)(end - s->s) + (comment ? 3 : 1);
        } else if (s->s[i] == '<') { // no tag begins any more
            jsb_put_range(&b, s, i, s->n_bytes - i);
            break;
        } else {
            const char *next = memchr(s->s + i, '<', s->n_bytes - i);
            size_t to = next ? (size_t)(next - s->s) : s->n_bytes;
            jsb_put_range(&b, s, i, to - i);
            i = to;
        }
    }
    struct jlist *words;
    struct jstr *text = jsb_done(&b), *space = js_lit(rt, " ");
    if (!text || !space || !jt_split(rt, text, NULL, -1, false, &words)) {
        return false;
    }
    text = jt_join(rt, space, words);
    static const struct {
        const char *entity, *text;
    } entities[] = {{"&lt;", "<"},  {"&gt;", ">"},   {"&quot;", "\""},
                    {"&#34;", "\""}, {"&#39;", "'"}, {"&nbsp;", "\xC2\xA0"}, {"&amp;", "&"}};
    for (size_t i = 0; text && i < sizeof entities / sizeof entities[0]; i++) {
        // A character that was spelled by the user is the user's.
        enum jprov prov = text->prov == PROV_TEMPLATE ? PROV_TEMPLATE : PROV_INPUT;
        struct jstr *from = js_lit(rt, entities[i].entity);
        struct jstr *to = js_new(rt, entities[i].text, strlen(entities[i].text), prov);
        text = from && to ? jt_replace(rt, text, from, to, -1) : NULL;
    }
    return give((struct jv){0}, text, out);
}

FILTER(jf_center)
{
    int64_t width;
    struct jstr *space = js_lit(rt, " ");
    (void)args;
    if (!space || !soft(rt, v, &v) || !int_or(rt, a[0], 80, &width)) {
        return false;
    }
    int64_t pad = width - (int64_t)js_chars(v.u.s);
    if (pad <= 0) {
        *out = v;
        return true;
    }
    int64_t left = pad / 2 + (pad & width & 1);
    return give(v, jt_pad(rt, v.u.s, (size_t)left, (size_t)(pad - left), space), out);
}

FILTER(jf_indent)
{
    int64_t width;
    struct jstr *by;
    struct jlist *lines;
    bool first = truth_or(a[1], false), blank = truth_or(a[2], false);
    (void)args;
    if (v.type == JV_UNDEFINED) {
        return jv_fail_undefined(rt, v);
    }
    if (v.type != JV_STR) {
        return jrt_fail(rt, "TypeError", "unsupported operand type(s) for +=: '%s' and 'str'",
                        jv_type_name(v));
    }
    if (jv_is_given(a[0]) && a[0].type == JV_STR) {
        by = a[0].u.s;
    } else {
        struct jv spaces;
        struct jstr *space = js_lit(rt, " ");
        if (!space || !int_or(rt, a[0], 4, &width) ||
            !jinja_repeat(rt, jv_str(space), jv_int(width), &spaces)) {
            return false;
        }
        by = spaces.u.s;
    }
    struct jstr *newline = js_lit(rt, "\n");
    struct jstr *s = newline ? js_concat(rt, v.u.s, newline) : NULL;
    if (!s || !js_flat(rt, s) || !jt_splitlines(rt, s, false, &lines)) {
        return false;
    }
    struct jsb b;
    jsb_init(&b, rt);
    for (size_t i = 0; i < lines->n && !b.failed; i++) {
        struct jstr *line = lines->items[i].u.s;
        if (i > 0) {
            jsb_puts(&b, "\n");
        }
        if (i == 0 ? first : blank || line->n_bytes > 0) {
            jsb_put_str(&b, by);
        }
        jsb_put_str(&b, line);
    }
    return give(v, jsb_done(&b), out);
}

FILTER(jf_truncate)
{
    int64_t length, leeway;
    struct jstr *end = js_lit(rt, "...");
    (void)args;
    if (v.type != JV_STR) {
        size_t n; // what has a length but cannot be cut fails only when it must be
        if (!jv_len(rt, v, &n)) {
            return false;
        }
        *out = v;
        return n <= 260 || jrt_fail(rt, "TypeError", "only strings can be truncated");
    }
    if (!end || !js_flat(rt, v.u.s) || !int_or(rt, a[0], 255, &length) ||
        (jv_is_given(a[2]) && !jv_to_str(rt, a[2], &end)) ||
        !int_or(rt, a[3].type == JV_NONE ? jv_missing() : a[3], 5, &leeway)) {
        return false;
    }
    int64_t n_end = (int64_t)js_chars(end);
    if (length < n_end || leeway < 0) {
        return jrt_fail(rt, "AssertionError", "expected length >= %lld, got %lld", (long long)n_end,
                        (long long)length);
    }
    if ((int64_t)js_chars(v.u.s) <= length + leeway) {
        *out = v;
        return true;
    }
    struct jstr *cut = jt_chars(rt, v.u.s, 0, (size_t)(length - n_end));
    if (cut && !truth_or(a[1], false)) {
        struct jlist *parts;
        struct jstr *space = js_lit(rt, " ");
        if (!space || !jt_split(rt, cut, space, 1, true, &parts)) {
            return false;
        }
        cut = parts->items[0].u.s;
    }
    return cut && give(v, js_concat(rt, cut, end), out);
}

FILTER(jf_wordcount)
{
    (void)a, (void)args;
    if (!soft(rt, v, &v)) {
        return false;
    }
    int64_t n = 0;
    bool in_word = false;
    const struct jstr *s = v.u.s;
    for (size_t i = 0; i < s->n_bytes;) {
        uint32_t cp;
        size_t k = utf8_decode(s->s + i, s->n_bytes - i, &cp);
        bool word = cp == '_' || uni_class(cp) & (UNI_ALPHA | UNI_NUMERIC | UNI_DIGIT | UNI_DECIMAL);
        n += word && !in_word;
        in_word = word;
        i += k > 0 ? k : 1;
    }
    *out = jv_int(n);
    return true;
}

FILTER(jf_format)
{
    (void)a;
    if (!soft(rt, v, &v)) {
        return false;
    }
    if (args->n_pos > 0 && args->n_kw > 0) {
        return jrt_fail(rt, "FilterArgumentError", "can't handle positional and keyword arguments "
                        "at the same time");
    }
    if (args->n_kw > 0) {
        struct jdict *d = jd_new(rt);
        for (size_t i = 0; d && i < args->n_kw; i++) {
            if (!jd_set(rt, d, jv_str(args->kw[i].name), args->kw[i].value)) {
                return false;
            }
        }
        return d && jinja_percent(rt, v, jv_dict(d), out);
    }
    struct jlist *l = jlist_new(rt, args->n_pos);
    if (!l) {
        return false;
    }
    if (args->n_pos > 0) {
        memcpy(l->items, args->pos, args->n_pos * sizeof l->items[0]);
    }
    return jinja_percent(rt, v, jv_tuple(l), out);
}

static void put_quoted(struct jsb *b, const struct jstr *s, bool query)
{
    static const char hex[] = "0123456789ABCDEF";
    for (size_t i = 0; i < s->n_bytes && !b->failed; i++) {
        char c = s->s[i];
        bool safe = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    (c && strchr("_.-~", c)) || (c == '/' && !query);
        bool input = js_input_at(s, i);
        if (safe) {
            jsb_putc(b, c, input);
        } else if (c == ' ' && query) {
            jsb_putc(b, '+', input);
        } else {
            char text[3] = {'%', hex[(unsigned char)c >> 4], hex[c & 15]};
            jsb_put(b, text, 3, input);
        }
    }
}

FILTER(jf_urlencode)
{
    struct jsb b;
    struct jstr *s;
    (void)a, (void)args;
    jsb_init(&b, rt);
    if (v.type == JV_STR || !jv_is_iterable(v)) {
        if (!jv_to_str(rt, v, &s)) {
            return false;
        }
        put_quoted(&b, s, false);
        return give((struct jv){0}, jsb_done(&b), out);
    }
    if (v.type == JV_DICT) {
        struct jview *view = jrt_alloc(rt, 1, sizeof *view);
        if (!view) {
            return false;
        }
        *view = (struct jview){.dict = v.u.dict, .kind = JVIEW_ITEMS};
        v = (struct jv){.type = JV_VIEW, .u.view = view};
    }
    struct jwalk w;
    struct jv pair;
    int more;
    if (!jwalk_init(rt, v, &w)) {
        return false;
    }
    while ((more = jwalk_next(rt, &w, &pair)) > 0) {
        struct jlist *two;
        if (!jv_collect(rt, pair, &two)) {
            return false;
        }
        if (two->n != 2) {
            return jrt_fail(rt, "ValueError", "not enough values to unpack (expected 2)");
        }
        if (b.n_bytes > 0) {
            jsb_puts(&b, "&");
        }
        for (int i = 0; i < 2; i++) {
            if (!jv_to_str(rt, two->items[i], &s)) {
                return false;
            }
            put_quoted(&b, s, true);
            if (i == 0) {
                jsb_puts(&b, "=");
            }
        }
    }
    return more == 0 && give((struct jv){0}, jsb_done(&b), out);
}

FILTER(jf_xmlattr)
{
    (void)args;
    if (v.type != JV_DICT) {
        return v.type == JV_UNDEFINED ? jv_fail_undefined(rt, v)
                                      : jrt_fail(rt, "AttributeError", "'%s' object has no "
                                                 "attribute 'items'", jv_type_name(v));
    }
    struct jsb b;
    jsb_init(&b, rt);
    bool space = truth_or(a[0], true);
    for (size_t i = 0; i < v.u.dict->n; i++) {
        struct jv key = v.u.dict->e[i].key, value = v.u.dict->e[i].value;
        if (value.type == JV_NONE || value.type == JV_UNDEFINED) {
            continue;
        }
        if (key.type != JV_STR || !js_flat(rt, key.u.s)) {
            return jrt_fail(rt, "TypeError", "expected string or bytes-like object");
        }
        for (size_t k = 0; k < key.u.s->n_bytes; k++) {
            if (strchr(" \t\n\r\f\v/>=", key.u.s->s[k])) {
                return jrt_fail(rt, "ValueError", "Invalid character in attribute name");
            }
        }
        if (!jinja_escape(rt, key, &key) || !jinja_escape(rt, value, &value)) {
            return false;
        }
        jsb_puts(&b, space || b.n_bytes > 0 ? " " : "");
        jsb_put_str(&b, key.u.s);
        jsb_puts(&b, "=\"");
        jsb_put_str(&b, value.u.s);
        jsb_puts(&b, "\"");
    }
    return give((struct jv){0}, jsb_done(&b), out);
}

/* ---- numbers ---- */

static bool int_from(struct jrt *rt, struct jv v, int64_t base, struct jv *out, bool *ok)
{
    *ok = false;
    if (v.type == JV_STR) {
        return js_flat(rt, v.u.s) && jnum_parse_int(rt, v.u.s->s, v.u.s->n_bytes, base, out, ok);
    }
    if (jv_is_integer(v)) {
        *out = v.type == JV_BOOL ? jv_int(v.u.b) : v;
        *ok = true;
    } else if (v.type == JV_FLOAT && isfinite(v.u.f)) {
        *ok = true;
        return jnum_from_double(rt, v.u.f, out);
    } else if (v.type == JV_FLOAT && isinf(v.u.f)) {
        return jrt_fail(rt, "OverflowError", "cannot convert float infinity to integer");
    }
    return true;
}

FILTER(jf_int)
{
    int64_t base;
    bool ok;
    (void)args;
    if (v.type == JV_UNDEFINED) {
        return jv_fail_undefined(rt, v);
    }
    if (!int_or(rt, a[1], 10, &base) || !int_from(rt, v, base, out, &ok)) {
        return false;
    }
    double f;
    if (!ok && v.type == JV_STR && jnum_parse_float(v.u.s->s, v.u.s->n_bytes, &f) && isfinite(f)) {
        return jnum_from_double(rt, f, out);
    }
    if (!ok) {
        *out = jv_is_given(a[0]) ? a[0] : jv_int(0);
    }
    return true;
}

FILTER(jf_float)
{
    double f;
    (void)args;
    if (v.type == JV_UNDEFINED) {
        return jv_fail_undefined(rt, v);
    }
    if (jv_is_integer(v) || v.type == JV_FLOAT) {
        if (!jnum_to_double(rt, v, &f)) {
            return false;
        }
        *out = jv_float(f);
        return true;
    }
    if (v.type == JV_STR && js_flat(rt, v.u.s) &&
        jnum_parse_float(v.u.s->s, v.u.s->n_bytes, &f)) {
        *out = jv_float(f);
        return true;
    }
    *out = jv_is_given(a[0]) ? a[0] : jv_float(0.0);
    return rt->st == OK;
}

FILTER(jf_abs)
{
    (void)a, (void)args;
    if (v.type == JV_UNDEFINED) {
        return jrt_fail(rt, "TypeError", "bad operand type for abs(): 'Undefined'");
    }
    if (!jv_is_integer(v) && v.type != JV_FLOAT) {
        return jrt_fail(rt, "TypeError", "bad operand type for abs(): '%s'", jv_type_name(v));
    }
    return jnum_abs(rt, v, out);
}

/* Correctly rounded, ties to even in decimal, as Python's round of a float. */
static double round_decimal(double f, int64_t digits)
{
    char text[400];
    if (!isfinite(f) || digits > 330) {
        return f;
    }
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)digits, f);
        return strtod(text, NULL);
    }
    if (digits < -308) {
        return copysign(0.0, f);
    }
    double scale = pow(10.0, (double)-digits), q = f / scale, r = nearbyint(q);
    return r * scale;
}

/* round(integer, -digits): to the nearest multiple, ties to the even one. */
static bool round_integer(struct jrt *rt, struct jv v, int64_t digits, struct jv *out)
{
    struct jv unit, quotient, rest, twice, odd;
    if (digits > 400) {
        *out = jv_int(0);
        return true;
    }
    if (!jnum_binary(rt, JOP_POW, jv_int(10), jv_int(digits), &unit) ||
        !jnum_binary(rt, JOP_FLOORDIV, v, unit, &quotient) ||
        !jnum_binary(rt, JOP_MOD, v, unit, &rest) ||
        !jnum_binary(rt, JOP_MUL, rest, jv_int(2), &twice) ||
        !jnum_binary(rt, JOP_MOD, quotient, jv_int(2), &odd)) {
        return false;
    }
    int side = jnum_compare(twice, unit);
    bool up = side > 0 || (side == 0 && odd.u.i == 1);
    return (!up || jnum_binary(rt, JOP_ADD, quotient, jv_int(1), &quotient)) &&
           jnum_binary(rt, JOP_MUL, quotient, unit, out);
}

FILTER(jf_round)
{
    int64_t digits;
    double f;
    (void)args;
    const char *method = "common";
    struct jstr *name = NULL;
    if (jv_is_given(a[1])) {
        if (!jv_to_str(rt, a[1], &name)) {
            return false;
        }
        method = js_is(name, "ceil") ? "ceil" : js_is(name, "floor") ? "floor" : "common";
        if (!js_is(name, method)) {
            return jrt_fail(rt, "FilterArgumentError", "method must be common, ceil or floor");
        }
    }
    if (!int_or(rt, a[0], 0, &digits)) {
        return false;
    }
    if (!jv_is_integer(v) && v.type != JV_FLOAT) {
        return v.type == JV_UNDEFINED
                   ? jrt_fail(rt, "TypeError", "type Undefined doesn't define __round__ method")
                   : jrt_fail(rt, "TypeError", "type %s doesn't define __round__ method",
                              jv_type_name(v));
    }
    bool common = strcmp(method, "common") == 0;
    if (common && v.type != JV_FLOAT && digits >= 0) {
        *out = v.type == JV_BOOL ? jv_int(v.u.b) : v;
        return true;
    }
    if (common && v.type != JV_FLOAT) {
        return round_integer(rt, v, -digits, out);
    }
    if (common) {
        *out = jv_float(round_decimal(v.u.f, digits));
        return true;
    }
    struct jv scale, scaled, whole;
    if (!jnum_binary(rt, JOP_POW, jv_int(10), jv_int(digits), &scale) ||
        !jnum_binary(rt, JOP_MUL, v, scale, &scaled) || !jnum_to_double(rt, scaled, &f)) {
        return false;
    }
    if (!isfinite(f)) {
        return jrt_fail(rt, "OverflowError", "cannot convert float infinity to integer");
    }
    return jnum_from_double(rt, strcmp(method, "ceil") == 0 ? ceil(f) : floor(f), &whole) &&
           jnum_binary(rt, JOP_DIV, whole, scale, out);
}

FILTER(jf_filesizeformat)
{
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const powers[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    struct jv number;
    if (!jf_float(rt, v, (struct jv[]){jv_none()}, args, &number)) {
        return false;
    }
    if (number.type != JV_FLOAT) {
        return jrt_fail(rt, "ValueError", "could not convert to float");
    }
    bool binary = truth_or(a[0], false);
    double bytes = number.u.f, base = binary ? 1024 : 1000, unit = base * base;
    char text[64];
    if (!isfinite(bytes)) {
        return jrt_fail(rt, "OverflowError", "cannot convert float infinity to integer");
    }
    if (bytes == 1) {
        snprintf(text, sizeof text, "1 Byte");
    } else if (bytes < base) {
        snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes) + 0.0); // + 0.0: no minus zero
    } else {
        int i = 0;
        while (i < 7 && bytes >= unit) {
            unit *= base;
            i++;
        }
        snprintf(text, sizeof text, "%.1f %s", base * bytes / unit, (binary ? powers : decimal)[i]);
    }
    return give((struct jv){0}, js_copy(rt, text, strlen(text), PROV_TEMPLATE), out);
}

/* ---- any value ---- */

FILTER(jf_default)
{
    (void)rt, (void)args;
    bool missing = v.type == JV_UNDEFINED || (truth_or(a[1], false) && !jv_truth(v));
    *out = !missing ? v : jv_is_given(a[0]) ? a[0] : jv_str(js_lit(rt, ""));
    return rt->st == OK;
}

static struct jstr *indent_text(struct jrt *rt, struct jv v)
{
    int64_t n;
    struct jv spaces;
    struct jstr *space = js_lit(rt, " ");
    if (v.type == JV_STR) {
        return js_flat(rt, v.u.s) ? v.u.s : NULL;
    }
    if (!space || !jv_as_index(rt, v, &n) ||
        !jinja_repeat(rt, jv_str(space), jv_int(n), &spaces)) {
        return NULL;
    }
    return spaces.u.s;
}

/* json.dumps(x, ensure_ascii=, indent=, separators=, sort_keys=) with the defaults that
 * transformers sets. */
FILTER(jf_tojson)
{
    struct jjson_style style = {.ascii = truth_or(a[0], false), .sort_keys = truth_or(a[3], false)};
    struct jstr *s;
    (void)args;
    if (jv_is_given(a[1]) && a[1].type != JV_NONE && !(style.indent = indent_text(rt, a[1]))) {
        return false;
    }
    style.comma = js_lit(rt, style.indent ? "," : ", ");
    style.colon = js_lit(rt, ": ");
    if (jv_is_given(a[2]) && a[2].type != JV_NONE) {
        struct jlist *l;
        if (!jv_collect(rt, a[2], &l)) {
            return false;
        }
        if (l->n != 2 || l->items[0].type != JV_STR || l->items[1].type != JV_STR) {
            return jrt_fail(rt, "TypeError", "separators must be two strings");
        }
        style.comma = l->items[0].u.s;
        style.colon = l->items[1].u.s;
    }
    return rt->st == OK && jinja_tojson(rt, v, &style, &s) && give((struct jv){0}, s, out);
}

FILTER(jf_attr)
{
    struct jstr *name;
    (void)args;
    if (a[0].type != JV_STR || !js_flat(rt, a[0].u.s)) {
        return jrt_fail(rt, "TypeError", "attribute name must be string, not '%s'",
                        jv_type_name(a[0]));
    }
    name = a[0].u.s;
    if (v.type == JV_DICT) { // its keys are no attributes
        const struct jinja_method *m =
            jinja_method_for(jinja_methods_find(name->s, name->n_bytes), v);
        if (!m && !jinja_is_mutator(v, name->s, name->n_bytes)) {
            return jv_undefined(rt, v, a[0], out);
        }
    }
    return jinja_attr(rt, v, name, jinja_methods_find(name->s, name->n_bytes), out);
}

/* pprint sorts keys, and what is longer than a line it breaks in ways that are not done here. */
FILTER(jf_pprint)
{
    struct jstr *s;
    struct jv text, entries;
    (void)args;
    if (v.type == JV_DICT) {
        const struct jv sorted[] = {jv_bool(true), jv_missing(), jv_missing()};
        if (!jf_dictsort(rt, v, sorted, args, &entries)) {
            return false;
        }
        struct jdict *d = jd_new(rt);
        for (size_t i = 0; d && i < entries.u.list->n; i++) {
            const struct jv *pair = entries.u.list->items[i].u.list->items;
            if (!jd_set(rt, d, pair[0], pair[1])) {
                return false;
            }
        }
        v = jv_dict(d);
    }
    if (rt->st != OK || !jv_repr(rt, v, &s)) {
        return false;
    }
    text = jv_str(s);
    bool nested = v.type == JV_DICT || v.type == JV_LIST || v.type == JV_TUPLE;
    if (nested ? js_chars(s) >= 80 : v.type == JV_STR && js_chars(s) >= 80) {
        return jrt_fail(rt, "TemplateRuntimeError", "pprint of a long value is not supported");
    }
    (void)a;
    *out = text;
    return true;
}

FILTER(jf_unsupported)
{
    (void)v, (void)a, (void)args, (void)out;
    return jrt_fail(rt, "TemplateRuntimeError", "this filter is not supported");
}
