// SPDX-License-Identifier: Apache-2.0
/* Filters on strings: case, trimming, replacing, layout, escaping. */
#include "engine/base/utf8.h"
#include "server/chat/jinja/filters.h"
#include "server/chat/jinja/unicode.h"

#include <string.h>

/* Converts v to a string like soft_str, for the filters that call it in Jinja2. */
static bool soft(struct jrt *rt, struct jv v, struct jv *s)
{
    return jv_soft_str(rt, v, s) && js_flat(rt, s->u.s);
}

FILTER(jf_upper)
{
    (void)a, (void)args;
    return soft(rt, v, &v) && jf_give(v, jt_map_case(rt, v.u.s, UNI_TO_UPPER), out);
}

FILTER(jf_lower)
{
    (void)a, (void)args;
    return soft(rt, v, &v) && jf_give(v, jt_map_case(rt, v.u.s, UNI_TO_LOWER), out);
}

FILTER(jf_capitalize)
{
    (void)a, (void)args;
    return soft(rt, v, &v) && jf_give(v, jt_capitalize(rt, v.u.s), out);
}

/* Words begin after white space and - ( { [ <. */
static bool begins_word(uint32_t cp)
{
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || uni_is_space(cp);
}

/* Words begin after white space, hyphens and brackets, unlike in str.title(). */
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
    return jf_give((struct jv){0}, jsb_done(&b), out);
}

/* An argument of None means white space, as without an argument. */
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
    return jf_give(v, jt_strip(rt, v.u.s, chars, 3), out);
}

/* Converts values of any type to strings first. */
FILTER(jf_replace)
{
    struct jstr *s, *old, *new_;
    int64_t max = -1;
    (void)args;
    if (jv_is_given(a[2]) && a[2].type != JV_NONE && !jv_as_index(rt, a[2], &max)) {
        return false;
    }
    return jv_to_str(rt, v, &s) && jv_to_str(rt, a[0], &old) && jv_to_str(rt, a[1], &new_) &&
           jf_give((struct jv){0}, jt_replace(rt, s, old, new_, max), out);
}

FILTER(jf_string)
{
    (void)a, (void)args;
    return soft(rt, v, out);
}

/* Marks text as escaped already. */
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

/* Escapes text even if it is marked as safe. */
FILTER(jf_forceescape)
{
    (void)a, (void)args;
    if (!soft(rt, v, &v)) {
        return false;
    }
    v.flag = 0;
    return jinja_escape(rt, v, out);
}

/* Removes tags and comments, collapses white space, and decodes entities. */
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
            if (comment) {
                end = memmem(s->s + i + 4, s->n_bytes - i - 4, "-->", 3);
            } else {
                end = memchr(s->s + i, '>', s->n_bytes - i);
            }
        }
        if (end) {
            i = (size_t)(end - s->s) + (comment ? 3 : 1);
        } else if (s->s[i] == '<') { // an unfinished tag
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
    } entities[] = {{"&lt;", "<"},  {"&gt;", ">"},          {"&quot;", "\""}, {"&#34;", "\""},
                    {"&#39;", "'"}, {"&nbsp;", "\xC2\xA0"}, {"&amp;", "&"}};
    for (size_t i = 0; text && i < sizeof entities / sizeof entities[0]; i++) {
        // A character that was written as an entity in user input is user input.
        enum jprov prov = text->prov == PROV_TEMPLATE ? PROV_TEMPLATE : PROV_INPUT;
        struct jstr *from = js_lit(rt, entities[i].entity);
        struct jstr *to = js_new(rt, entities[i].text, strlen(entities[i].text), prov);
        text = from && to ? jt_replace(rt, text, from, to, -1) : NULL;
    }
    return jf_give((struct jv){0}, text, out);
}

/* Python's centring: an odd space goes left or right depending on the width's parity. */
FILTER(jf_center)
{
    int64_t width;
    struct jstr *space = js_lit(rt, " ");
    (void)args;
    if (!space || !soft(rt, v, &v) || !jv_int_or(rt, a[0], 80, &width)) {
        return false;
    }
    int64_t pad = width - (int64_t)js_chars(v.u.s);
    if (pad <= 0) {
        *out = v;
        return true;
    }
    int64_t left = pad / 2 + (pad & width & 1);
    return jf_give(v, jt_pad(rt, v.u.s, (size_t)left, (size_t)(pad - left), space), out);
}

/* As in Jinja2, the first line and blank ones are indented only on request. */
FILTER(jf_indent)
{
    int64_t width;
    struct jstr *by;
    struct jlist *lines;
    bool first = jf_truth_or(a[1], false), blank = jf_truth_or(a[2], false);
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
        if (!space || !jv_int_or(rt, a[0], 4, &width) ||
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
    return jf_give(v, jsb_done(&b), out);
}

/* Cuts at the end of a word, or anywhere if killwords is set. Text that exceeds the length by no
 * more than the leeway stays whole. */
FILTER(jf_truncate)
{
    int64_t length, leeway;
    struct jstr *end = js_lit(rt, "...");
    (void)args;
    if (v.type != JV_STR) {
        size_t n; // a value with a length that cannot be sliced fails only if slicing is needed
        if (!jv_len(rt, v, &n)) {
            return false;
        }
        *out = v;
        return n <= 260 || jrt_fail(rt, "TypeError", "only strings can be truncated");
    }
    if (!end || !js_flat(rt, v.u.s) || !jv_int_or(rt, a[0], 255, &length) ||
        (jv_is_given(a[2]) && !jv_to_str(rt, a[2], &end)) ||
        !jv_int_or(rt, a[3].type == JV_NONE ? jv_missing() : a[3], 5, &leeway)) {
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
    if (cut && !jf_truth_or(a[1], false)) {
        struct jlist *parts;
        struct jstr *space = js_lit(rt, " ");
        if (!space || !jt_split(rt, cut, space, 1, true, &parts)) {
            return false;
        }
        cut = parts->items[0].u.s;
    }
    return cut && jf_give(v, js_concat(rt, cut, end), out);
}

/* Words as Python's regular expression \w+ finds them. */
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
        bool word =
            cp == '_' || uni_class(cp) & (UNI_ALPHA | UNI_NUMERIC | UNI_DIGIT | UNI_DECIMAL);
        n += word && !in_word;
        in_word = word;
        i += k > 0 ? k : 1;
    }
    *out = jv_int(n);
    return true;
}

/* Python's % with either kind of arguments. */
FILTER(jf_format)
{
    (void)a;
    if (!soft(rt, v, &v)) {
        return false;
    }
    if (args->n_pos > 0 && args->n_kw > 0) {
        return jrt_fail(rt, "FilterArgumentError",
                        "can't handle positional and keyword arguments "
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

/* Percent-encodes UTF-8 bytes, each with the provenance of its character. */
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

/* Encodes a string, or a mapping or a list of pairs as a query. */
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
        return jf_give((struct jv){0}, jsb_done(&b), out);
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
    return more == 0 && jf_give((struct jv){0}, jsb_done(&b), out);
}

/* Writes attributes of an XML element. Those with the value none or undefined are left out; a key
 * with a character that would end the name is an error. */
FILTER(jf_xmlattr)
{
    (void)args;
    if (v.type != JV_DICT) {
        if (v.type == JV_UNDEFINED) {
            return jv_fail_undefined(rt, v);
        }
        return jrt_fail(rt, "AttributeError",
                        "'%s' object has no "
                        "attribute 'items'",
                        jv_type_name(v));
    }
    struct jsb b;
    jsb_init(&b, rt);
    bool space = jf_truth_or(a[0], true);
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
        if (space || b.n_bytes > 0) {
            jsb_puts(&b, " ");
        }
        jsb_put_str(&b, key.u.s);
        jsb_puts(&b, "=\"");
        jsb_put_str(&b, value.u.s);
        jsb_puts(&b, "\"");
    }
    return jf_give((struct jv){0}, jsb_done(&b), out);
}
