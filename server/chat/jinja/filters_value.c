// SPDX-License-Identifier: Apache-2.0
/* Filters on numbers, and those that take any value. */
#include "server/chat/jinja/filters.h"
#include "server/chat/jinja/num.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* "12.7"|int is 12. Text that is not a number gives the default. */
FILTER(jf_int)
{
    int64_t base;
    bool ok;
    (void)args;
    if (v.type == JV_UNDEFINED) {
        return jv_fail_undefined(rt, v);
    }
    if (!jv_int_or(rt, a[1], 10, &base) || !int_from(rt, v, base, out, &ok)) {
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
    if (v.type == JV_STR && js_flat(rt, v.u.s) && jnum_parse_float(v.u.s->s, v.u.s->n_bytes, &f)) {
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

/* Rounds correctly in decimal, ties to even, like Python's round() of a float. */
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

/* The method "common" rounds halves to even in decimal, as Python's round() does. */
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
        static const char *const methods[] = {"ceil", "floor", "common"};
        int i = 0;
        while (i < 2 && !js_is(name, methods[i])) {
            i++;
        }
        method = methods[i];
        if (!js_is(name, method)) {
            return jrt_fail(rt, "FilterArgumentError", "method must be common, ceil or floor");
        }
    }
    if (!jv_int_or(rt, a[0], 0, &digits)) {
        return false;
    }
    if (!jv_is_integer(v) && v.type != JV_FLOAT) {
        if (v.type == JV_UNDEFINED) {
            return jrt_fail(rt, "TypeError", "type Undefined doesn't define __round__ method");
        }
        return jrt_fail(rt, "TypeError", "type %s doesn't define __round__ method",
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

/* Writes a size as Jinja2 does: whole bytes below the base, one decimal above. */
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
    bool binary = jf_truth_or(a[0], false);
    double bytes = number.u.f, base = binary ? 1024 : 1000, unit = base * base;
    char text[64];
    if (!isfinite(bytes)) {
        return jrt_fail(rt, "OverflowError", "cannot convert float infinity to integer");
    }
    if (bytes == 1) {
        snprintf(text, sizeof text, "1 Byte");
    } else if (bytes < base) {
        // + 0.0 avoids a negative zero
        snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes) + 0.0);
    } else {
        int i = 0;
        while (i < 7 && bytes >= unit) {
            unit *= base;
            i++;
        }
        snprintf(text, sizeof text, "%.1f %s", base * bytes / unit, (binary ? powers : decimal)[i]);
    }
    return jf_give((struct jv){0}, js_copy(rt, text, strlen(text), PROV_TEMPLATE), out);
}

/* ---- any value ---- */

/* With boolean=true, values that are false count as missing, too. */
FILTER(jf_default)
{
    (void)rt, (void)args;
    bool missing = v.type == JV_UNDEFINED || (jf_truth_or(a[1], false) && !jv_truth(v));
    *out = v;
    if (missing) {
        *out = jv_is_given(a[0]) ? a[0] : jv_str(js_lit(rt, ""));
    }
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
    if (!space || !jv_as_index(rt, v, &n) || !jinja_repeat(rt, jv_str(space), jv_int(n), &spaces)) {
        return NULL;
    }
    return spaces.u.s;
}

/* json.dumps(x, ensure_ascii=, indent=, separators=, sort_keys=) with the defaults that
 * transformers sets. */
FILTER(jf_tojson)
{
    struct jjson_style style = {.ascii = jf_truth_or(a[0], false),
                                .sort_keys = jf_truth_or(a[3], false)};
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
    return rt->st == OK && jinja_tojson(rt, v, &style, &s) && jf_give((struct jv){0}, s, out);
}

/* |attr never falls back to an item. */
FILTER(jf_attr)
{
    struct jstr *name;
    (void)args;
    if (a[0].type != JV_STR || !js_flat(rt, a[0].u.s)) {
        return jrt_fail(rt, "TypeError", "attribute name must be string, not '%s'",
                        jv_type_name(a[0]));
    }
    name = a[0].u.s;
    if (v.type == JV_DICT) { // its keys are not attributes
        const struct jinja_method *m =
            jinja_method_for(jinja_methods_find(rt, name->s, name->n_bytes), v);
        if (!m && !jinja_is_mutator(v, name->s, name->n_bytes)) {
            return jv_undefined(rt, v, a[0], out);
        }
    }
    return jinja_attr(rt, v, name, jinja_methods_find(rt, name->s, name->n_bytes), out);
}

/* pprint sorts keys. Its breaking of long lines is not implemented. */
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
