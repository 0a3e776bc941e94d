// SPDX-License-Identifier: Apache-2.0
/* Formatting: the % operator and str.format, with the provenance of what they print.
 * Specifications of fields: spec.c. */
#include "server/chat/jinja/format.h"

#include "engine/base/minmax.h"
#include "engine/base/utf8.h"
#include "server/chat/jinja/num.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- "..." % args ---- */

/* The state of one format % args. */
struct percent {
    struct jrt *rt;
    struct jsb *b;
    struct jv args; // a tuple, a mapping, or one value
    size_t at;      // the next positional argument
    bool used_mapping;
    bool markup;
};

/* The next positional argument. A value that is not a tuple is the only argument. */
static bool next_arg(struct percent *pc, struct jv *out)
{
    if (pc->args.type == JV_TUPLE) {
        if (pc->at < pc->args.u.list->n) {
            *out = pc->args.u.list->items[pc->at++];
            return true;
        }
    } else if (pc->at == 0) {
        pc->at = 1;
        *out = pc->args;
        return true;
    }
    return jrt_fail(pc->rt, "TypeError", "not enough arguments for format string");
}

/* Reads "(key)" at f[*i], and looks up its value. */
static bool mapping_arg(struct percent *pc, struct jstr *f, size_t *i, struct jv *out)
{
    size_t from = ++*i;
    int open = 1;
    while (*i < f->n_bytes && open > 0) {
        open += f->s[*i] == '(';
        open -= f->s[*i] == ')';
        ++*i;
    }
    if (open > 0) {
        return jrt_fail(pc->rt, "ValueError", "incomplete format key");
    }
    if (pc->args.type != JV_DICT) {
        return jrt_fail(pc->rt, "TypeError", "format requires a mapping");
    }
    const struct jentry *e = jd_find_text(pc->rt, pc->args.u.dict, f->s + from, *i - 1 - from);
    if (!e) {
        return jrt_fail(pc->rt, "KeyError", "'%.*s'", (int)(*i - 1 - from), f->s + from);
    }
    pc->used_mapping = true;
    *out = e->value;
    return true;
}

/* User input as a field name could pick a control token out of the template's own text, letter by
 * letter. So the output of such a field always counts as input. */
static bool has_input(const struct jstr *f, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        if (js_input_at(f, i)) {
            return true;
        }
    }
    return false;
}

/* Appends a field's output; by_input: all of it counts as input. */
static bool put_chosen(struct jsb *b, struct jsb *field, bool by_input)
{
    struct jstr *s = jsb_done(field);
    if (s && by_input) {
        jsb_put(b, s->s, s->n_bytes, true);
    } else if (s) {
        jsb_put_str(b, s);
    }
    return s && !b->failed;
}

/* Reads a width or precision at f[*i]: digits, or "*" for the next argument. */
static bool count_arg(struct percent *pc, const struct jstr *f, size_t *i, int64_t *v)
{
    if (*i < f->n_bytes && f->s[*i] == '*') {
        struct jv arg;
        ++*i;
        if (!next_arg(pc, &arg)) {
            return false;
        }
        if (!jv_is_integer(arg)) {
            return jrt_fail(pc->rt, "TypeError", "* wants int");
        }
        return jv_as_index(pc->rt, arg, v);
    }
    while (*i < f->n_bytes && isdigit((unsigned char)f->s[*i])) {
        *v = greater(0, *v) * 10 + (f->s[(*i)++] - '0');
        if (*v > INT32_MAX) {
            return jrt_fail(pc->rt, "ValueError", "width too big");
        }
    }
    return true;
}

/* %s, %r, %a and %c. */
static bool put_percent_text(struct percent *pc, struct jv v, struct jspec *spec, char code)
{
    struct jstr *s;
    if (code == 'c') {
        if (v.type == JV_STR) {
            if (!js_flat(pc->rt, v.u.s) || js_chars(v.u.s) != 1) {
                return jrt_fail(pc->rt, "TypeError", "%%c requires int or char");
            }
        } else if (jv_is_integer(v)) {
            char c[4];
            int64_t cp = 0;
            if (!jv_as_index(pc->rt, v, &cp) || cp < 0 || cp > 0x10FFFF ||
                (cp >= 0xD800 && cp < 0xE000)) {
                return jrt_fail(pc->rt, "OverflowError", "%%c arg not in range(0x110000)");
            }
            // Numbers have no provenance, and %c could spell anything, so its result counts as
            // input.
            v = jv_str(js_copy(pc->rt, c, utf8_encode((uint32_t)cp, c), PROV_INPUT));
        } else {
            return jrt_fail(pc->rt, "TypeError", "%%c requires int or char");
        }
    }
    if (pc->markup && code == 's' && !jinja_escape(pc->rt, v, &v)) {
        return false;
    }
    if (code == 'r' || code == 'a' ? !jv_repr(pc->rt, v, &s) : !jv_to_str(pc->rt, v, &s)) {
        return false;
    }
    if (spec->precision >= 0 && code != 'c') {
        s = jt_chars(pc->rt, s, 0, (size_t)spec->precision);
    }
    spec->fill = NULL;
    spec->align = spec->align == '<' ? '<' : '>';
    return s && jspec_put_padded(pc->b, s, spec, '>');
}

/* %d and relatives. A precision is a minimum number of digits; the result is padded to the
 * width. */
static bool put_percent_int(struct percent *pc, struct jv v, struct jspec *spec, char code)
{
    if (v.type == JV_FLOAT && !strchr("oxX", code)) {
        if (!jnum_from_double(pc->rt, v.u.f, &v)) {
            return false;
        }
    }
    if (!jv_is_integer(v)) {
        if (strchr("oxX", code)) {
            return jrt_fail(pc->rt, "TypeError", "%%%c format: an integer is required, not %s",
                            code, jv_type_name(v));
        }
        return jrt_fail(pc->rt, "TypeError", "%%%c format: a real number is required, not %s", code,
                        jv_type_name(v));
    }
    spec->type = strchr("oxX", code) ? code : 'd';
    if (spec->precision > 0) { // minimum number of digits: pad with zeros
        struct jsb digits;
        jsb_init(&digits, pc->rt);
        struct jspec inner = {.width = spec->precision,
                              .precision = -1,
                              .align = '=',
                              .zero = true,
                              .type = spec->type,
                              .fill = js_lit(pc->rt, "0")};
        bool negative = jnum_compare(v, jv_int(0)) < 0;
        jsb_puts(&digits, jspec_sign(spec, negative));
        if (spec->alternate && spec->type != 'd') {
            jsb_putc(&digits, '0', false);
            jsb_putc(&digits, spec->type, false);
        }
        if (!inner.fill || !jnum_abs(pc->rt, v, &v) || !jspec_put_int(&digits, v, &inner)) {
            return false;
        }
        struct jstr *s = jsb_done(&digits);
        if (spec->align == '=') {
            spec->align = '>';
            spec->fill = NULL;
        }
        return s && jspec_put_padded(pc->b, s, spec, '>');
    }
    spec->precision = -1;
    return jspec_put_int(pc->b, v, spec);
}

static bool put_percent_float(struct percent *pc, struct jv v, struct jspec *spec, char code)
{
    double f;
    if (v.type == JV_UNDEFINED) {
        return jv_fail_undefined(pc->rt, v);
    }
    if (!jv_is_integer(v) && v.type != JV_FLOAT) {
        return jrt_fail(pc->rt, "TypeError", "must be real number, not %s", jv_type_name(v));
    }
    spec->type = code;
    return jnum_to_double(pc->rt, v, &f) && jspec_put_float(pc->b, f, spec);
}

/* One conversion, starting after the '%'. */
static bool convert(struct percent *pc, struct jstr *f, size_t *i)
{
    struct jspec spec = {.width = -1, .precision = -1};
    struct jv v = jv_missing();
    bool left = false, zero = false;
    if (*i < f->n_bytes && f->s[*i] == '(' && !mapping_arg(pc, f, i, &v)) {
        return false;
    }
    for (; *i < f->n_bytes && strchr("-+ #0", f->s[*i]); ++*i) {
        char c = f->s[*i];
        left |= c == '-';
        zero |= c == '0';
        spec.alternate |= c == '#';
        if (c == '+' || (c == ' ' && !spec.sign)) {
            spec.sign = c;
        }
    }
    if (!count_arg(pc, f, i, &spec.width)) {
        return false;
    }
    if (spec.width < -1) {
        left = true;
        spec.width = -spec.width;
    }
    if (*i < f->n_bytes && f->s[*i] == '.') {
        ++*i;
        spec.precision = 0;
        if (!count_arg(pc, f, i, &spec.precision)) {
            return false;
        }
        spec.precision = greater(0, spec.precision);
    }
    while (*i < f->n_bytes && strchr("hlL", f->s[*i])) {
        ++*i;
    }
    if (*i >= f->n_bytes) {
        return jrt_fail(pc->rt, "ValueError", "incomplete format");
    }
    char code = f->s[(*i)++];
    if (code == '%') {
        jsb_putc(pc->b, '%', js_input_at(f, *i - 1));
        return true;
    }
    if (!jv_is_given(v) && !next_arg(pc, &v)) {
        return false;
    }
    spec.align = zero ? '=' : '>';
    if (left) {
        spec.align = '<';
    }
    spec.fill = zero && !left ? js_lit(pc->rt, "0") : NULL;
    if (strchr("srac", code)) {
        return put_percent_text(pc, v, &spec, code);
    }
    if (strchr("diuoxX", code)) {
        if (v.type == JV_UNDEFINED) {
            return jv_fail_undefined(pc->rt, v);
        }
        return put_percent_int(pc, v, &spec, code);
    }
    if (strchr("eEfFgG", code)) {
        return put_percent_float(pc, v, &spec, code);
    }
    return jrt_fail(pc->rt, "ValueError", "unsupported format character '%c' (0x%x) at index %zu",
                    code, (unsigned)code & 0xFF, *i - 1);
}

/* Text between conversions keeps its provenance. Fields need a buffer of their own only if the
 * format contains input, because only then may put_chosen change their provenance. */
bool jinja_percent(struct jrt *rt, struct jv format, struct jv args, struct jv *out)
{
    struct jsb b;
    struct jstr *f = format.u.s;
    struct percent pc = {.rt = rt, .b = &b, .args = args, .markup = format.flag & JV_MARKUP};
    jsb_init(&b, rt);
    if (!js_flat(rt, f)) {
        return false;
    }
    for (size_t i = 0; i < f->n_bytes && !b.failed;) {
        const char *p = memchr(f->s + i, '%', f->n_bytes - i);
        size_t to = p ? (size_t)(p - f->s) : f->n_bytes;
        jsb_put_range(&b, f, i, to - i);
        i = to + 1;
        if (!p) {
            break;
        }
        struct jsb one;
        jsb_init(&one, rt);
        pc.b = f->prov == PROV_TEMPLATE ? &b : &one;
        if (!jrt_step(rt) || !convert(&pc, f, &i) ||
            (pc.b == &one && !put_chosen(&b, &one, has_input(f, to, i)))) {
            return false;
        }
    }
    bool left_over;
    if (args.type == JV_TUPLE) {
        left_over = pc.at < args.u.list->n;
    } else {
        left_over = pc.at == 0 && args.type != JV_DICT && args.type != JV_LIST &&
                    args.type != JV_RANGE && args.type != JV_UNDEFINED;
    }
    if (left_over && !pc.used_mapping) {
        return jrt_fail(rt, "TypeError", "not all arguments converted during string formatting");
    }
    *out = jv_str(jsb_done(&b));
    out->flag = format.flag;
    return out->u.s != NULL;
}

/* ---- str.format ---- */

/* The state of one str.format. Automatic and manual numbering ({} and {0}) may not be mixed. */
struct formatter {
    struct jrt *rt;
    const struct jargs *args;
    size_t next; // number of the next field with automatic numbering
    bool automatic, manual;
    bool markup; // inserted values are escaped
};

static bool format_into(struct formatter *fm, struct jsb *b, struct jstr *f, int nest);

/* The value named by a field's first part. */
static bool field_start(struct formatter *fm, struct jstr *name, struct jv *out)
{
    bool digits = name->n_bytes > 0;
    for (size_t i = 0; i < name->n_bytes; i++) {
        digits = digits && isdigit((unsigned char)name->s[i]);
    }
    size_t at = fm->next;
    if (name->n_bytes == 0) {
        fm->automatic = true;
        fm->next++;
    } else if (digits) {
        fm->manual = true;
        at = 0;
        for (size_t i = 0; i < name->n_bytes && at < 1000000; i++) {
            at = at * 10 + (size_t)(name->s[i] - '0');
        }
    } else {
        for (size_t k = 0; k < fm->args->n_kw; k++) {
            const struct jstr *n = fm->args->kw[k].name;
            if (n->n_bytes == name->n_bytes && memcmp(n->s, name->s, n->n_bytes) == 0) {
                *out = fm->args->kw[k].value;
                return true;
            }
        }
        return jrt_fail(fm->rt, "KeyError", "'%.*s'",
                        name->n_bytes < 100 ? (int)name->n_bytes : 100, name->s);
    }
    if (fm->automatic && fm->manual) {
        return jrt_fail(fm->rt, "ValueError",
                        "cannot switch from manual field specification to automatic field "
                        "numbering");
    }
    if (at >= fm->args->n_pos) {
        return jrt_fail(fm->rt, "IndexError",
                        "Replacement index %zu out of range for positional args tuple", at);
    }
    *out = fm->args->pos[at];
    return true;
}

/* Follows the ".name" and "[key]" parts, with the lookups of the sandbox. */
static bool field_rest(struct formatter *fm, struct jstr *f, size_t at, struct jv *v)
{
    while (at < f->n_bytes) {
        bool bracket = f->s[at] == '[';
        size_t from = ++at;
        while (at < f->n_bytes &&
               (bracket ? f->s[at] != ']' : f->s[at] != '.' && f->s[at] != '[')) {
            at++;
        }
        struct jstr *name = js_sub(fm->rt, f, from, at - from);
        if (!name || name->n_bytes == 0 || (bracket && at >= f->n_bytes)) {
            return jrt_fail(fm->rt, "ValueError", "Empty attribute in format string");
        }
        at += bracket;
        if (bracket && at < f->n_bytes && f->s[at] != '.' && f->s[at] != '[') {
            return jrt_fail(fm->rt, "ValueError",
                            "Only '.' or '[' may follow ']' in format field specifier");
        }
        struct jv index = jv_str(name);
        bool ok = false;
        if (bracket && strspn(name->s, "0123456789") >= name->n_bytes) {
            struct jv number;
            if (!jnum_from_decimal(fm->rt, name->s, name->n_bytes, &number)) {
                return false;
            }
            index = number;
        }
        if (bracket) {
            ok = jinja_item(fm->rt, *v, index, v);
        } else {
            ok =
                jinja_attr(fm->rt, *v, name, jinja_methods_find(fm->rt, name->s, name->n_bytes), v);
        }
        if (!ok) {
            return false;
        }
    }
    return true;
}

/* !s, !r and !a; the latter two are the same here. */
static bool convert_field(struct jrt *rt, char conversion, struct jv *v)
{
    struct jstr *s;
    if (conversion == 's' ? !jv_to_str(rt, *v, &s) : !jv_repr(rt, *v, &s)) {
        return false;
    }
    *v = jv_str(s);
    return true;
}

/* Formats a field, given without its braces: name [!conversion] [:spec]. *chosen: user input
 * determined which value it shows. */
static bool put_field(struct formatter *fm, struct jsb *b, struct jstr *field, int nest,
                      bool *chosen)
{
    struct jrt *rt = fm->rt;
    size_t end = 0, depth = 0;
    while (end < field->n_bytes && (depth > 0 || (field->s[end] != '!' && field->s[end] != ':'))) {
        depth += field->s[end] == '[';
        depth -= field->s[end] == ']' && depth > 0;
        end++;
    }
    size_t name_end = 0;
    while (name_end < end && field->s[name_end] != '.' && field->s[name_end] != '[') {
        name_end++;
    }
    struct jstr *first = js_sub(rt, field, 0, name_end), *whole = js_sub(rt, field, 0, end);
    struct jv v;
    if (!first || !whole || !field_start(fm, first, &v) || !field_rest(fm, whole, name_end, &v)) {
        return false;
    }
    if (end < field->n_bytes && field->s[end] == '!') {
        if (end + 1 >= field->n_bytes || !strchr("rsa", field->s[end + 1]) ||
            (end + 2 < field->n_bytes && field->s[end + 2] != ':')) {
            return jrt_fail(rt, "ValueError", "Unknown conversion specifier");
        }
        if (!convert_field(rt, field->s[end + 1], &v)) {
            return false;
        }
        end += 2;
    }
    struct jspec spec;
    struct jsb text;
    jsb_init(&text, rt);
    if (end < field->n_bytes) {
        struct jstr *inner = js_sub(rt, field, end + 1, field->n_bytes - end - 1);
        if (!inner || !format_into(fm, &text, inner, nest + 1)) {
            return false;
        }
    }
    struct jstr *spec_text = jsb_done(&text);
    if (!spec_text || !jspec_parse(rt, spec_text, &spec)) {
        return false;
    }
    *chosen = *chosen || spec_text->prov != PROV_TEMPLATE;
    if (!fm->markup || nest > 1) {
        return jspec_put(b, v, &spec);
    }
    struct jsb plain;
    jsb_init(&plain, rt);
    struct jstr *s = jspec_put(&plain, v, &spec) ? jsb_done(&plain) : NULL;
    struct jv escaped = jv_str(s);
    escaped.flag = v.type == JV_STR ? v.flag : 0;
    if (!s || !jinja_escape(rt, escaped, &escaped)) {
        return false;
    }
    jsb_put_str(b, escaped.u.s);
    return !b->failed;
}

/* Copies f to b with its fields in braces replaced, and with single braces for {{ and }}. A
 * field's format may itself have fields. */
static bool format_into(struct formatter *fm, struct jsb *b, struct jstr *f, int nest)
{
    if (nest > 2) {
        return jrt_fail(fm->rt, "ValueError", "Max string recursion exceeded");
    }
    for (size_t i = 0; i < f->n_bytes;) {
        char c = f->s[i];
        if ((c == '{' || c == '}') && i + 1 < f->n_bytes && f->s[i + 1] == c) {
            jsb_put_range(b, f, i, 1);
            i += 2;
            continue;
        }
        if (c == '}') {
            return jrt_fail(fm->rt, "ValueError", "Single '}' encountered in format string");
        }
        if (c != '{') {
            size_t to = i;
            while (to < f->n_bytes && f->s[to] != '{' && f->s[to] != '}') {
                to++;
            }
            jsb_put_range(b, f, i, to - i);
            i = to;
            continue;
        }
        size_t from = ++i;
        for (int open = 1; i < f->n_bytes; i++) {
            open += f->s[i] == '{';
            open -= f->s[i] == '}';
            if (open == 0) {
                break;
            }
        }
        if (i >= f->n_bytes) {
            return jrt_fail(fm->rt, "ValueError", "expected '}' before end of string");
        }
        struct jstr *field = js_sub(fm->rt, f, from, i - from);
        i++;
        struct jsb one;
        jsb_init(&one, fm->rt);
        bool chosen = has_input(f, from - 1, i);
        if (!field || !jrt_step(fm->rt) || !put_field(fm, &one, field, nest, &chosen) ||
            !put_chosen(b, &one, chosen)) {
            return false;
        }
    }
    return !b->failed;
}

bool jinja_format(struct jrt *rt, struct jv text, const struct jargs *args, struct jv *out)
{
    struct jstr *format = text.u.s;
    struct formatter fm = {.rt = rt, .args = args, .markup = text.flag & JV_MARKUP};
    struct jsb b;
    jsb_init(&b, rt);
    if (!js_flat(rt, format) || !format_into(&fm, &b, format, 1)) {
        return false;
    }
    *out = jv_str(jsb_done(&b));
    out->flag = text.flag;
    return out->u.s != NULL;
}
