// SPDX-License-Identifier: Apache-2.0
/* JSON in both directions: parsing the request into values, and the `tojson` filter. */
#include "server/chat/jinja/json.h"

#include "engine/base/json_scan.h"
#include "engine/base/optional.h"
#include "engine/base/utf8.h"
#include "server/chat/jinja/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- reading ---- */

static bool bad_json(struct jrt *rt, struct json_scan *sc, const char *what)
{
    if (rt->st == OK) {
        struct err e = {{0}};
        json_scan_error(sc, &e);
        rt->st = err_set(&rt->err, ERR_INVALID, "%s: %s", what, e.text);
    }
    return false;
}

/* Most strings have no escapes and are not copied, so the request's text must outlive the
 * render. */
static struct jstr *read_string(struct jrt *rt, struct json_scan *sc, enum jprov prov)
{
    if (!sc->escaped) {
        return js_new(rt, sc->text, sc->text_bytes, prov); // points into the request's own bytes
    }
    struct buf b;
    buf_init(&b, sc->text_bytes + 16);
    json_scan_unescape(sc, &b);
    struct jstr *s = js_copy(rt, or_empty(b.data), b.n_bytes, prov);
    buf_deinit(&b);
    return s;
}

/* Integers of any size keep all digits. Numbers with a point or exponent are floats. */
static bool read_number(struct jrt *rt, const struct json_scan *sc, struct jv *out)
{
    int64_t i;
    if (json_scan_int64(sc, &i)) {
        *out = jv_int(i);
        return true;
    }
    for (size_t k = 0; k < sc->text_bytes; k++) {
        if (strchr(".eE", sc->text[k])) {
            *out = jv_float(json_scan_double(sc));
            return true;
        }
    }
    return jnum_from_decimal(rt, sc->text, sc->text_bytes, out);
}

static bool read_value(struct jrt *rt, struct json_scan *sc, enum json_token token, enum jprov prov,
                       const char *what, struct jv *out);

static bool read_array(struct jrt *rt, struct json_scan *sc, enum jprov prov, const char *what,
                       struct jv *out)
{
    struct jlist *l = jlist_new(rt, 0);
    enum json_token token;
    while (l && (token = json_scan_next(sc)) != JSON_TOKEN_ARRAY_END) {
        struct jv v;
        if (!read_value(rt, sc, token, prov, what, &v) || !jlist_push(rt, l, v)) {
            return false;
        }
    }
    *out = jv_list(l);
    return l != NULL;
}

static bool read_object(struct jrt *rt, struct json_scan *sc, enum jprov prov, const char *what,
                        struct jv *out)
{
    struct jdict *d = jd_new(rt);
    enum json_token token;
    while (d && (token = json_scan_next(sc)) != JSON_TOKEN_OBJECT_END) {
        if (token != JSON_TOKEN_KEY) {
            return bad_json(rt, sc, what);
        }
        struct jv v;
        struct jstr *key = read_string(rt, sc, prov);
        if (!key || !read_value(rt, sc, json_scan_next(sc), prov, what, &v) ||
            !jd_set(rt, d, jv_str(key), v)) {
            return false;
        }
    }
    *out = jv_dict(d);
    return d != NULL;
}

/* Recursion is limited by the scanner's depth. */
static bool read_value(struct jrt *rt, struct json_scan *sc, enum json_token token, enum jprov prov,
                       const char *what, struct jv *out)
{
    switch (token) {
    case JSON_TOKEN_OBJECT: return read_object(rt, sc, prov, what, out);
    case JSON_TOKEN_ARRAY: return read_array(rt, sc, prov, what, out);
    case JSON_TOKEN_STRING: *out = jv_str(read_string(rt, sc, prov)); return out->u.s != NULL;
    case JSON_TOKEN_NUMBER: return read_number(rt, sc, out);
    case JSON_TOKEN_TRUE:
    case JSON_TOKEN_FALSE: *out = jv_bool(token == JSON_TOKEN_TRUE); return true;
    case JSON_TOKEN_NULL: *out = jv_none(); return true;
    default: return bad_json(rt, sc, what);
    }
}

bool jinja_from_json(struct jrt *rt, const char *text, size_t n_bytes, enum jprov prov,
                     const char *what, struct jv *out)
{
    struct json_scan sc;
    json_scan_init(&sc, text, n_bytes, JINJA_MAX_NEST);
    return read_value(rt, &sc, json_scan_next(&sc), prov, what, out) &&
           (json_scan_next(&sc) == JSON_TOKEN_END || bad_json(rt, &sc, what));
}

/* ---- tojson, as Python's json.dumps ---- */

static bool put_json(struct jsb *b, struct jv v, const struct jjson_style *style, int nest);

/* Writes a short escape if there is one, otherwise \u, with surrogates beyond the BMP. */
static void put_escape(struct jsb *b, uint32_t cp, bool input)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    char text[16];
    const char *p = cp > 0 && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    int n;
    if (p) {
        n = snprintf(text, sizeof text, "\\%c", to[p - from]);
    } else if (cp < 0x10000) {
        n = snprintf(text, sizeof text, "\\u%04x", cp);
    } else {
        n = snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                     0xDC00 + ((cp - 0x10000) & 0x3FF));
    }
    jsb_put(b, text, (size_t)n, input);
}

/* Like Python's json.dumps: escapes quotes, backslashes and characters below U+0020; with `ascii`
 * (ensure_ascii) also everything that is not printable ASCII. */
static void put_json_string(struct jsb *b, struct jstr *s, bool ascii)
{
    if (!js_flat(b->rt, s)) {
        b->failed = true;
        return;
    }
    jsb_putc(b, '"', false);
    size_t from = 0, n;
    for (size_t i = 0; i < s->n_bytes && !b->failed; i += n) {
        unsigned char c = (unsigned char)s->s[i];
        n = 1;
        if (c < 0x80 ? c >= 0x20 && c != '"' && c != '\\' && (!ascii || c != 0x7F) : !ascii) {
            continue;
        }
        uint32_t cp = c;
        if (c >= 0x80) {
            n = utf8_decode(s->s + i, s->n_bytes - i, &cp);
        }
        jsb_put_range(b, s, from, i - from);
        put_escape(b, cp, js_input_at(s, i));
        from = i + n;
    }
    jsb_put_range(b, s, from, s->n_bytes - from);
    jsb_putc(b, '"', false);
}

/* Writes NaN and infinities like Python, although they are not JSON. */
static bool put_json_number(struct jsb *b, struct jv v)
{
    if (v.type == JV_FLOAT && !isfinite(v.u.f)) {
        if (isnan(v.u.f)) {
            jsb_puts(b, "NaN");
        } else {
            if (v.u.f < 0) {
                jsb_puts(b, "-Infinity");
            } else {
                jsb_puts(b, "Infinity");
            }
        }
        return true;
    }
    return jv_put_repr(b, v, 0);
}

static void put_line(struct jsb *b, const struct jjson_style *style, int nest)
{
    jsb_putc(b, '\n', false);
    jsb_fill(b, style->indent, (size_t)nest);
}

static void put_separator(struct jsb *b, const struct jjson_style *style, bool first, int nest)
{
    if (!first) {
        jsb_put_str(b, style->comma);
    }
    if (style->indent) {
        put_line(b, style, nest + 1);
    }
}

static bool put_json_list(struct jsb *b, const struct jlist *l, const struct jjson_style *style,
                          int nest)
{
    jsb_putc(b, '[', false);
    for (size_t i = 0; i < l->n; i++) {
        put_separator(b, style, i == 0, nest);
        if (!put_json(b, l->items[i], style, nest + 1)) {
            return false;
        }
    }
    if (style->indent && l->n > 0) {
        put_line(b, style, nest);
    }
    jsb_putc(b, ']', false);
    return true;
}

/* Keys become strings: true, null, 1, 1.5. */
static bool put_json_key(struct jsb *b, struct jv key, bool ascii)
{
    if (key.type == JV_STR) {
        put_json_string(b, key.u.s, ascii);
        return true;
    }
    if (key.type != JV_NONE && key.type != JV_BOOL && key.type != JV_FLOAT && !jv_is_integer(key)) {
        return jrt_fail(b->rt, "TypeError", "keys must be str, int, float, bool or None, not %s",
                        jv_type_name(key));
    }
    jsb_putc(b, '"', false);
    if (key.type == JV_NONE) {
        jsb_puts(b, "null");
    } else if (key.type == JV_BOOL) {
        if (key.u.b) {
            jsb_puts(b, "true");
        } else {
            jsb_puts(b, "false");
        }
    } else if (!put_json_number(b, key)) {
        return false;
    }
    jsb_putc(b, '"', false);
    return true;
}

/* For sort_keys. It compares like the sort filter, so keys of different types are an error. */
static bool sorted_entries(struct jrt *rt, const struct jdict *d, const struct jentry **out)
{
    struct jv *items = jrt_alloc(rt, d->n, sizeof *items);
    struct jv *keys = jrt_alloc(rt, d->n, sizeof *keys);
    struct jentry *e = jrt_alloc(rt, d->n, sizeof *e);
    if (!items || !keys || !e) {
        return false;
    }
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->e[i].key;
        items[i] = jv_int((int64_t)i);
    }
    if (!jinja_sort(rt, items, keys, d->n, false)) {
        return false;
    }
    for (size_t i = 0; i < d->n; i++) {
        e[i] = d->e[items[i].u.i];
    }
    *out = e;
    return true;
}

static bool put_json_dict(struct jsb *b, const struct jdict *d, const struct jjson_style *style,
                          int nest)
{
    const struct jentry *e = d->e;
    if (style->sort_keys && d->n > 1 && !sorted_entries(b->rt, d, &e)) {
        return false;
    }
    jsb_putc(b, '{', false);
    for (size_t i = 0; i < d->n; i++) {
        put_separator(b, style, i == 0, nest);
        if (!put_json_key(b, e[i].key, style->ascii)) {
            return false;
        }
        jsb_put_str(b, style->colon);
        if (!put_json(b, e[i].value, style, nest + 1)) {
            return false;
        }
    }
    if (style->indent && d->n > 0) {
        put_line(b, style, nest);
    }
    jsb_putc(b, '}', false);
    return true;
}

/* Every value counts as a step, so the limits on templates hold here, too. */
static bool put_json(struct jsb *b, struct jv v, const struct jjson_style *style, int nest)
{
    if (nest > JINJA_MAX_NEST) {
        return jrt_limit(b->rt, "a value is nested too deeply");
    }
    if (b->failed || !jrt_step(b->rt)) {
        return false;
    }
    switch (v.type) {
    case JV_NONE: jsb_puts(b, "null"); return true;
    case JV_BOOL: jsb_puts(b, bool_word(v.u.b)); return true;
    case JV_INT:
    case JV_BIG:
    case JV_FLOAT: return put_json_number(b, v);
    case JV_STR: put_json_string(b, v.u.s, style->ascii); return !b->failed;
    case JV_LIST:
    case JV_TUPLE: return put_json_list(b, v.u.list, style, nest);
    case JV_DICT: return put_json_dict(b, v.u.dict, style, nest);
    default:
        return jrt_fail(b->rt, "TypeError", "Object of type %s is not JSON serializable",
                        jv_type_name(v));
    }
}

bool jinja_tojson(struct jrt *rt, struct jv v, const struct jjson_style *style, struct jstr **out)
{
    struct jsb b;
    jsb_init(&b, rt);
    *out = put_json(&b, v, style, 0) ? jsb_done(&b) : NULL;
    return *out != NULL;
}
