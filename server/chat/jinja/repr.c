// SPDX-License-Identifier: Apache-2.0
/* str() and repr() of values, exactly as in Python. */
#include "engine/base/utf8.h"
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"
#include "server/chat/jinja/unicode.h"

#include <stdio.h>
#include <string.h>

/* ---- repr of a str: quotes, escapes ---- */

/* Writes the escape that Python uses for a character of this size. */
static void put_hex(struct jsb *b, uint32_t cp, bool input)
{
    char text[16];
    int n;
    if (cp < 0x100) {
        n = snprintf(text, sizeof text, "\\x%02x", cp);
    } else {
        n = snprintf(text, sizeof text, cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
    }
    jsb_put(b, text, (size_t)n, input);
}

static const char *short_form_of(uint32_t cp)
{
    switch (cp) {
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: return NULL;
    }
}

/* The quote is escaped if both kinds are in the string. */
static void put_repr_char(struct jsb *b, uint32_t cp, char quote, bool input)
{
    const char *short_form = short_form_of(cp);
    if (short_form) {
        jsb_put(b, short_form, 2, input);
    } else if (cp == (uint32_t)quote || cp == '\\') {
        jsb_putc(b, '\\', input);
        jsb_putc(b, (char)cp, input);
    } else {
        put_hex(b, cp, input);
    }
}

static bool is_plain(uint32_t cp, char quote)
{
    if (cp < 0x80) {
        return cp >= 0x20 && cp < 0x7F && cp != (uint32_t)quote && cp != '\\';
    }
    return uni_class(cp) & UNI_PRINTABLE;
}

/* Python's choice of quotes: double ones only if there are single but no double quotes in
 * the text. */
static void put_str_repr(struct jsb *b, struct jstr *s)
{
    if (!js_flat(b->rt, s)) {
        b->failed = true;
        return;
    }
    bool single = s->n_bytes > 0 && memchr(s->s, '\'', s->n_bytes);
    bool both = single && memchr(s->s, '"', s->n_bytes);
    char quote = single && !both ? '"' : '\'';
    jsb_putc(b, quote, false);
    size_t from = 0, n;
    for (size_t i = 0; i < s->n_bytes && !b->failed; i += n) {
        uint32_t cp = 0;
        n = utf8_decode(s->s + i, s->n_bytes - i, &cp);
        if (n <= 0) {
            n = 1;
        }
        if (!is_plain(cp, quote)) {
            jsb_put_range(b, s, from, i - from);
            put_repr_char(b, cp, quote, js_input_at(s, i));
            from = i + n;
        }
    }
    jsb_put_range(b, s, from, s->n_bytes - from);
    jsb_putc(b, quote, false);
}

/* Single quotes, unless there are some inside and no double ones. */
static void put_bytes_repr(struct jsb *b, const struct jstr *s)
{
    bool single = s->n_bytes > 0 && memchr(s->s, '\'', s->n_bytes);
    bool both = single && memchr(s->s, '"', s->n_bytes);
    char quote = single && !both ? '"' : '\'';
    jsb_putc(b, 'b', false);
    jsb_putc(b, quote, false);
    for (size_t i = 0; i < s->n_bytes && !b->failed; i++) {
        unsigned char c = (unsigned char)s->s[i];
        if (c >= 0x20 && c < 0x7F && c != '\\' && c != (unsigned char)quote) {
            jsb_putc(b, (char)c, js_input_at(s, i));
        } else {
            put_repr_char(b, c, quote, js_input_at(s, i));
        }
    }
    jsb_putc(b, quote, false);
}

/* ---- repr of everything ---- */

/* Lists, tuples (a single item has a comma after it) and the items of views. */
static bool put_items(struct jsb *b, const struct jlist *l, char open, char close, int nest)
{
    jsb_putc(b, open, false);
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0) {
            jsb_puts(b, ", ");
        }
        if (!jv_put_repr(b, l->items[i], nest + 1)) {
            return false;
        }
    }
    if (open == '(' && l->n == 1) {
        jsb_putc(b, ',', false);
    }
    jsb_putc(b, close, false);
    return true;
}

/* `nest` is the depth, which is limited. */
static bool put_dict(struct jsb *b, const struct jdict *d, int nest)
{
    jsb_putc(b, '{', false);
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0) {
            jsb_puts(b, ", ");
        }
        if (!jv_put_repr(b, d->e[i].key, nest + 1)) {
            return false;
        }
        jsb_puts(b, ": ");
        if (!jv_put_repr(b, d->e[i].value, nest + 1)) {
            return false;
        }
    }
    jsb_putc(b, '}', false);
    return true;
}

static bool put_view(struct jsb *b, const struct jview *view, int nest)
{
    struct jlist *l;
    struct jv v = {.type = JV_VIEW, .u.view = (struct jview *)view};
    jsb_puts(b, jv_type_name(v));
    jsb_putc(b, '(', false);
    if (!jv_collect(b->rt, v, &l) || !put_items(b, l, '[', ']', nest)) {
        return false;
    }
    jsb_putc(b, ')', false);
    return true;
}

/* The step is left out if it is 1. */
static void put_range(struct jsb *b, const struct jrange *r)
{
    char text[80];
    if (r->step == 1) {
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)r->start, (long long)r->stop);
    } else {
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)r->start,
                 (long long)r->stop, (long long)r->step);
    }
    jsb_puts(b, text);
}

/* The shortest text that reads back as the same float. */
static bool put_number(struct jsb *b, struct jv v)
{
    char text[40];
    const char *s;
    size_t n;
    if (v.type == JV_FLOAT) {
        jnum_float_text(v.u.f, text);
        jsb_puts(b, text);
        return true;
    }
    if (!jnum_int_text(b->rt, v, &s, &n)) {
        return false;
    }
    jsb_put(b, s, n, false);
    return true;
}

/* A macro without a name is the body of a call block. */
static bool put_macro(struct jsb *b, const struct jmacro *m)
{
    jsb_puts(b, "<Macro ");
    if (m->name) {
        put_str_repr(b, m->name);
    } else {
        jsb_puts(b, "'caller'");
    }
    jsb_putc(b, '>', false);
    return true;
}

/* Python prints addresses for these; no template can depend on the digits. */
static bool put_opaque(struct jsb *b, struct jv v)
{
    if (v.type == JV_FUNC && v.u.func->is_class) {
        jsb_puts(b, "<class '");
        if (strcmp(v.u.func->name, "dict") != 0) {
            jsb_puts(b, "jinja2.utils.");
        }
        if (strcmp(v.u.func->name, "namespace") == 0) {
            jsb_puts(b, "Namespace");
        } else {
            jsb_puts(b, v.u.func->name);
        }
        jsb_puts(b, "'>");
        return true;
    }
    jsb_puts(b, "<");
    if (v.type == JV_FUNC) {
        jsb_puts(b, v.u.func->name);
    } else {
        jsb_puts(b, jv_type_name(v));
    }
    jsb_puts(b, " object>");
    return true;
}

/* Python's text of each type. */
static bool put_repr_inner(struct jsb *b, struct jv v, int nest)
{
    switch (v.type) {
    case JV_UNDEFINED: jsb_puts(b, "Undefined"); return true;
    case JV_NONE: jsb_puts(b, "None"); return true;
    case JV_BOOL: jsb_puts(b, v.u.b ? "True" : "False"); return true;
    case JV_INT:
    case JV_BIG:
    case JV_FLOAT: return put_number(b, v);
    case JV_STR:
        if (v.flag & JV_MARKUP) {
            jsb_puts(b, "Markup(");
        }
        put_str_repr(b, v.u.s);
        if (v.flag & JV_MARKUP) {
            jsb_puts(b, ")");
        }
        return true;
    case JV_BYTES: put_bytes_repr(b, v.u.s); return true;
    case JV_LIST: return put_items(b, v.u.list, '[', ']', nest);
    case JV_TUPLE: return put_items(b, v.u.list, '(', ')', nest);
    case JV_DICT: return put_dict(b, v.u.dict, nest);
    case JV_NAMESPACE:
        jsb_puts(b, "<Namespace ");
        if (!put_dict(b, v.u.dict, nest)) {
            return false;
        }
        jsb_puts(b, ">");
        return true;
    case JV_RANGE: put_range(b, v.u.range); return true;
    case JV_VIEW: return put_view(b, v.u.view, nest);
    case JV_MACRO: return put_macro(b, v.u.macro);
    case JV_LOOP: return jloop_repr(b, v);
    default: return put_opaque(b, v);
    }
}

bool jv_put_repr(struct jsb *b, struct jv v, int nest)
{
    if (nest > JINJA_MAX_NEST) {
        return jrt_limit(b->rt, "a value is nested too deeply");
    }
    return jrt_step(b->rt) && put_repr_inner(b, v, nest) && !b->failed;
}

/* str(): a string stays unchanged, an undefined value is empty, and other values are their repr. */
bool jv_put_str(struct jsb *b, struct jv v)
{
    if (v.type == JV_STR) {
        jsb_put_str(b, v.u.s);
        return !b->failed;
    }
    return v.type == JV_UNDEFINED || jv_put_repr(b, v, 0);
}

bool jv_repr(struct jrt *rt, struct jv v, struct jstr **out)
{
    struct jsb b;
    jsb_init(&b, rt);
    *out = jv_put_repr(&b, v, 0) ? jsb_done(&b) : NULL;
    return *out != NULL;
}

/* A string is its own text. */
bool jv_to_str(struct jrt *rt, struct jv v, struct jstr **out)
{
    if (v.type == JV_STR) {
        *out = v.u.s;
        return js_flat(rt, v.u.s);
    }
    struct jsb b;
    jsb_init(&b, rt);
    *out = jv_put_str(&b, v) ? jsb_done(&b) : NULL;
    return *out != NULL;
}

/* Markup stays Markup. */
bool jv_soft_str(struct jrt *rt, struct jv v, struct jv *out)
{
    struct jstr *s;
    if (!jv_to_str(rt, v, &s)) {
        return false;
    }
    *out = jv_str(s);
    out->flag = v.type == JV_STR ? v.flag : 0;
    return true;
}

/* NULL: the character stays. */
static const char *html_escape_of(char c)
{
    switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&#34;";
    case '\'': return "&#39;";
    default: return NULL;
    }
}

/* HTML-escapes unless the value is Markup; entities have the provenance of the character
 * that they replace. */
bool jinja_escape(struct jrt *rt, struct jv v, struct jv *out)
{
    struct jstr *s;
    if (!jv_to_str(rt, v, &s)) {
        return false;
    }
    bool markup = v.type == JV_STR && v.flag & JV_MARKUP;
    if (!markup) {
        struct jsb b;
        jsb_init(&b, rt);
        size_t from = 0;
        for (size_t i = 0; i < s->n_bytes; i++) {
            const char *to = html_escape_of(s->s[i]);
            if (to) {
                jsb_put_range(&b, s, from, i - from);
                jsb_put(&b, to, strlen(to), js_input_at(s, i));
                from = i + 1;
            }
        }
        jsb_put_range(&b, s, from, s->n_bytes - from);
        s = jsb_done(&b);
    }
    *out = jv_str(s);
    out->flag = JV_MARKUP;
    return s != NULL;
}
