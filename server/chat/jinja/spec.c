// SPDX-License-Identifier: Apache-2.0
/* Python's format specifications, the part after the colon in "{:>8.3f}". */
#include "engine/base/minmax.h"
#include "engine/base/utf8.h"
#include "server/chat/jinja/format.h"
#include "server/chat/jinja/num.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PRECISION = 1000 }; // for floats; larger values are rejected

static bool is_align(char c)
{
    return c && strchr("<>=^", c);
}

/* A decimal number at *p; false if it is too large. */
static bool take_number(const char **p, const char *end, int64_t *v)
{
    *v = -1;
    while (*p < end && isdigit((unsigned char)**p)) {
        *v = greater(0, *v) * 10 + (**p - '0');
        if (*v > INT32_MAX) {
            return false;
        }
        (*p)++;
    }
    return true;
}

/* [[fill]align][sign][z][#][0][width][grouping][.precision][type]; each part is optional,
 * and text after them is an error. */
bool jspec_parse(struct jrt *rt, const struct jstr *text, struct jspec *spec)
{
    const char *p = text->s, *end = p + text->n_bytes;
    *spec = (struct jspec){.width = -1, .precision = -1};
    size_t n = p < end ? utf8_valid_length(p, (size_t)(end - p)) : 0;
    if (n > 0 && p + n < end && is_align(p[n])) {
        spec->fill = js_copy(rt, p, n, PROV_TEMPLATE);
        spec->align = p[n];
        p += n + 1;
    } else if (p < end && is_align(*p)) {
        spec->align = *p++;
    }
    if (p < end && strchr("+- ", *p)) {
        spec->sign = *p++;
    }
    if (p < end && *p == 'z') {
        spec->no_negative_zero = true;
        p++;
    }
    if (p < end && *p == '#') {
        spec->alternate = true;
        p++;
    }
    if (p < end && *p == '0') {
        spec->zero = true;
        p++;
        if (!spec->fill) {
            spec->fill = js_lit(rt, "0");
        }
        if (!spec->align) {
            spec->align = '=';
        }
    }
    bool ok = take_number(&p, end, &spec->width);
    if (p < end && (*p == ',' || *p == '_')) {
        spec->grouping = *p++;
    }
    if (ok && p < end && *p == '.') {
        p++;
        ok = take_number(&p, end, &spec->precision) && spec->precision >= 0;
    }
    if (ok && p < end) {
        spec->type = *p++;
    }
    if (!ok || p < end) {
        return jrt_fail(rt, "ValueError", "Invalid format specifier");
    }
    return rt->st == OK;
}

/* The padding has the provenance of the fill character; a default space is the template's. */
bool jspec_put_padded(struct jsb *b, struct jstr *s, const struct jspec *spec, char default_align)
{
    if (!js_flat(b->rt, s)) {
        return false;
    }
    size_t n = js_chars(s),
           pad = spec->width > 0 && (size_t)spec->width > n ? (size_t)spec->width - n : 0;
    char align = spec->align ? spec->align : default_align;
    size_t left = align == '^' ? pad / 2 : 0;
    if (align == '>' || align == '=') {
        left = pad;
    }
    struct jstr *fill = spec->fill ? spec->fill : js_lit(b->rt, " ");
    if (!fill) {
        return false;
    }
    jsb_fill(b, fill, left);
    jsb_put_str(b, s);
    jsb_fill(b, fill, pad - left);
    return !b->failed;
}

/* Inserts separators into the integer digits: every three, or four for binary formats. With zero
 * padding the zeros are grouped, too, up to `min_width` characters. */
static struct jstr *group_digits(struct jrt *rt, const char *digits, size_t n, char separator,
                                 int every, size_t min_width)
{
    struct jsb b;
    jsb_init(&b, rt);
    size_t total = n;
    while (separator && total + (total - 1) / (size_t)every < min_width) {
        total++;
    }
    if (!separator && total < min_width) {
        total = min_width;
    }
    for (size_t i = 0; i < total && !b.failed; i++) {
        if (separator && i > 0 && (total - i) % (size_t)every == 0) {
            jsb_putc(&b, separator, false);
        }
        jsb_putc(&b, i < total - n ? '0' : digits[i - (total - n)], false);
    }
    return jsb_done(&b);
}

const char *jspec_sign(const struct jspec *spec, bool negative)
{
    if (negative) {
        return "-";
    }
    switch (spec->sign) {
    case '+': return "+";
    case ' ': return " ";
    default: return "";
    }
}

/* Writes sign, prefix ("0x"), integer digits and the rest (".5e+10%"), padded. */
static bool put_number(struct jsb *b, const struct jspec *spec, bool negative, const char *prefix,
                       const char *digits, size_t n_digits, const char *rest, int group_every)
{
    struct jrt *rt = b->rt;
    char head[8];
    snprintf(head, sizeof head, "%s%s", jspec_sign(spec, negative), prefix);
    bool zeros = spec->align == '=' && spec->fill && js_is(spec->fill, "0");
    size_t around = strlen(head) + strlen(rest);
    size_t min_width = 0;
    if (zeros && spec->width > 0 && (size_t)spec->width > around) {
        min_width = (size_t)spec->width - around;
    }
    if (min_width > JINJA_MAX_OUTPUT) {
        return jrt_limit(rt, "a string is too long");
    }
    struct jstr *whole = group_digits(rt, digits, n_digits, spec->grouping, group_every, min_width);
    if (!whole) {
        return false;
    }
    struct jsb number;
    jsb_init(&number, rt);
    bool inside = spec->align == '=' && !zeros; // padding goes between sign and digits
    if (!inside) {
        jsb_puts(&number, head);
    }
    jsb_put_str(&number, whole);
    jsb_puts(&number, rest);
    struct jstr *s = jsb_done(&number);
    if (!s) {
        return false;
    }
    struct jspec pad = *spec;
    if (inside) {
        jsb_puts(b, head);
        if (pad.width > 0) {
            pad.width -= (int64_t)strlen(head);
        }
    }
    return jspec_put_padded(b, s, &pad, '>');
}

/* The digits of |v| in base 2, 8 or 16. */
static bool radix_digits(struct jrt *rt, struct jv v, int base, const char **digits, size_t *n)
{
    static const char alphabet[] = "0123456789abcdef";
    if (!jnum_abs(rt, v, &v)) {
        return false;
    }
    enum { CAP = 40000 };
    char *text = jrt_alloc(rt, v.type == JV_BIG ? CAP : 72, 1);
    if (!text) {
        return false;
    }
    char *end = text + (v.type == JV_BIG ? CAP : 72), *p = end;
    struct jv zero = jv_int(0);
    do {
        struct jv rest;
        if (v.type == JV_BIG) {
            if (!jbig_divmod(rt, v, jv_int(base), &v, &rest)) {
                return false;
            }
        } else {
            int64_t i = v.type == JV_BOOL ? v.u.b : v.u.i;
            rest = jv_int(i % base);
            v = jv_int(i / base);
        }
        *--p = alphabet[rest.u.i];
    } while (p > text && jnum_compare(v, zero) != 0);
    *digits = p;
    *n = (size_t)(end - p);
    return true;
}

static bool is_negative(struct jv v)
{
    return jnum_compare(v, jv_int(0)) < 0;
}

/* Writes the digits in the type's base, grouped and prefixed. With 0 or '=' the padding is between
 * sign and digits. */
bool jspec_put_int(struct jsb *b, struct jv v, const struct jspec *spec)
{
    struct jrt *rt = b->rt;
    const char *s;
    size_t n;
    int base = 10;
    const char *prefix = "";
    if (spec->precision >= 0) {
        return jrt_fail(rt, "ValueError", "Precision not allowed in integer format specifier");
    }
    switch (spec->type) {
    case 'b':
        base = 2;
        prefix = "0b";
        break;
    case 'o':
        base = 8;
        prefix = "0o";
        break;
    case 'x':
        base = 16;
        prefix = "0x";
        break;
    case 'X':
        base = 16;
        prefix = "0X";
        break;
    default: break;
    }
    if (base != 10 && spec->grouping == ',') {
        return jrt_fail(rt, "ValueError", "Cannot specify ',' with '%c'.", spec->type);
    }
    bool negative = is_negative(v);
    if (base == 10) {
        if (v.type == JV_BOOL) {
            v = jv_int(v.u.b);
        }
        if (!jnum_int_text(rt, v, &s, &n)) {
            return false;
        }
        s += negative;
        n -= negative;
    } else if (!radix_digits(rt, v, base, &s, &n)) {
        return false;
    }
    for (size_t i = 0; spec->type == 'X' && i < n; i++) {
        ((char *)s)[i] = (char)toupper((unsigned char)s[i]);
    }
    return put_number(b, spec, negative, spec->alternate ? prefix : "", s, n, "",
                      base == 10 ? 3 : 4);
}

/* Splits "123.45e+10" after the integer digits. */
static bool put_float_text(struct jsb *b, const struct jspec *spec, bool negative, const char *text)
{
    size_t n = 0;
    while (isdigit((unsigned char)text[n])) {
        n++;
    }
    if (n == 0) { // inf, nan
        struct jspec plain = *spec;
        plain.grouping = 0;
        return put_number(b, &plain, negative, "", text, strlen(text), "", 3);
    }
    return put_number(b, spec, negative, "", text, n, text + n, 3);
}

/* Removes trailing zeros of the fraction from "1.500e+02". */
static void strip_fraction(char *text)
{
    char *e = strchr(text, 'e'), *end = e;
    while (end && end > text && end[-1] == '0' && strchr(text, '.')) {
        end--;
    }
    end -= end && end > text && end[-1] == '.';
    if (e && end != e) {
        memmove(end, e, strlen(e) + 1);
    }
}

/* Without a type: like repr. With a precision: like 'g', but with at least one digit after the
 * point, and the exponential form begins at 10^(precision - 1) instead of 10^precision. */
static void general_without_type(double f, const struct jspec *spec, char *text, size_t cap)
{
    if (spec->precision < 0) {
        char shortest[40];
        jnum_float_text(f, shortest);
        snprintf(text, cap, "%s", shortest);
        return;
    }
    int precision = spec->precision == 0 ? 1 : (int)spec->precision;
    snprintf(text, cap, "%.*e", precision - 1, f);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent < -4 || exponent >= precision - 1) {
        strip_fraction(text);
        return;
    }
    snprintf(text, cap, "%.*g", precision, f);
    if (!strchr(text, '.')) {
        snprintf(text + strlen(text), 3, ".0");
    }
}

/* For types whose conversion in C agrees with Python's. */
static void print_float(char *text, size_t cap, char type, bool alternate, int precision, double f)
{
    switch (type) {
    case 'e': snprintf(text, cap, alternate ? "%#.*e" : "%.*e", precision, f); break;
    case 'E': snprintf(text, cap, alternate ? "%#.*E" : "%.*E", precision, f); break;
    case 'g': snprintf(text, cap, alternate ? "%#.*g" : "%.*g", precision, f); break;
    case 'G': snprintf(text, cap, alternate ? "%#.*G" : "%.*G", precision, f); break;
    default: snprintf(text, cap, alternate ? "%#.*f" : "%.*f", precision, f); break;
    }
}

/* Also handles types that C lacks: % multiplies by 100, and n is the same as g. */
bool jspec_put_float(struct jsb *b, double f, const struct jspec *spec)
{
    char type = spec->type, text[1500];
    if (spec->precision > MAX_PRECISION) {
        return jrt_fail(b->rt, "ValueError", "precision too big");
    }
    int precision = spec->precision < 0 ? 6 : (int)spec->precision;
    bool negative = signbit(f) && !isnan(f);
    f = fabs(f);
    const char *percent = "";
    if (type == '%') {
        f *= 100;
        type = 'f';
        percent = "%";
    }
    if (type == 'n') {
        type = 'g';
    }
    if (!isfinite(f)) {
        snprintf(text, sizeof text, "%s%s", isnan(f) ? "nan" : "inf", percent);
        for (char *p = text; (type == 'F' || type == 'E' || type == 'G') && *p; p++) {
            *p = (char)toupper((unsigned char)*p);
        }
        return put_float_text(b, spec, negative, text);
    }
    if (type == 0) {
        general_without_type(f, spec, text, sizeof text);
    } else {
        print_float(text, sizeof text, type, spec->alternate, precision, f);
    }
    snprintf(text + strlen(text), 2, "%s", percent);
    if (spec->no_negative_zero && negative && strspn(text, "0.%") == strlen(text)) {
        negative = false;
    }
    return put_float_text(b, spec, negative, text);
}

/* Type c: the character with this number. */
static bool put_char(struct jsb *b, struct jv v, const struct jspec *spec)
{
    int64_t cp;
    char c[4];
    if (!jv_as_index(b->rt, v, &cp)) {
        return false;
    }
    if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) {
        return jrt_fail(b->rt, "OverflowError", "%%c arg not in range(0x110000)");
    }
    // Like "%c": numbers have no provenance.
    struct jstr *s = js_copy(b->rt, c, utf8_encode((uint32_t)cp, c), PROV_INPUT);
    return s && jspec_put_padded(b, s, spec, '<');
}

static bool unknown_code(struct jrt *rt, const struct jspec *spec, struct jv v)
{
    return jrt_fail(rt, "ValueError", "Unknown format code '%c' for object of type '%s'",
                    spec->type, jv_type_name(v));
}

/* Options for numbers are errors for strings. */
static bool put_text(struct jsb *b, struct jstr *s, const struct jspec *spec)
{
    if (spec->sign || spec->alternate || spec->grouping || spec->no_negative_zero ||
        (spec->align == '=' && !spec->zero)) {
        return jrt_fail(b->rt, "ValueError", "this format specifier is not for strings");
    }
    if (spec->precision >= 0 && !(s = jt_chars(b->rt, s, 0, (size_t)spec->precision))) {
        return false;
    }
    struct jspec pad = *spec;
    pad.align = spec->align == '=' ? '<' : spec->align;
    return jspec_put_padded(b, s, &pad, '<');
}

/* Formats by the value's type. As in Python, a type code that does not fit it is an error. */
bool jspec_put(struct jsb *b, struct jv v, const struct jspec *spec)
{
    struct jrt *rt = b->rt;
    struct jstr *s;
    if (v.type == JV_STR) {
        return (!spec->type || spec->type == 's' || unknown_code(rt, spec, v)) &&
               js_flat(rt, v.u.s) && put_text(b, v.u.s, spec);
    }
    if (jv_is_integer(v)) {
        if (spec->type && strchr("eEfFgG%", spec->type)) {
            double f;
            return jnum_to_double(rt, v, &f) && jspec_put_float(b, f, spec);
        }
        if (spec->type == 'c') {
            return put_char(b, v, spec);
        }
        if (spec->type && !strchr("bdoxXn", spec->type)) {
            return unknown_code(rt, spec, v);
        }
        return jspec_put_int(b, v, spec);
    }
    if (v.type == JV_FLOAT) {
        if (spec->type && !strchr("eEfFgGn%", spec->type)) {
            return unknown_code(rt, spec, v);
        }
        return jspec_put_float(b, v.u.f, spec);
    }
    bool plain = !spec->fill && !spec->align && !spec->sign && !spec->alternate && !spec->type &&
                 !spec->grouping && spec->width < 0 && spec->precision < 0;
    if (!plain) {
        return jrt_fail(rt, "TypeError", "unsupported format string passed to %s.__format__",
                        jv_type_name(v));
    }
    if (!jv_to_str(rt, v, &s)) {
        return false;
    }
    jsb_put_str(b, s);
    return !b->failed;
}
