// SPDX-License-Identifier: Apache-2.0
/* Methods of str that pad and format; bytes. */
#include "server/chat/jinja/methods.h"

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
        return jm_give(self, self.u.s, out);
    }
    int64_t left = pad / 2 + (pad & width & 1);
    if (where != 0) {
        left = where < 0 ? 0 : pad;
    }
    return jm_give(self, jt_pad(rt, self.u.s, (size_t)left, (size_t)(pad - left), fill), out);
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

/* Zeros go after the sign. */
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
        return jm_give(self, s, out);
    }
    struct jsb b;
    jsb_init(&b, rt);
    size_t sign = s->n_bytes > 0 && (s->s[0] == '-' || s->s[0] == '+');
    jsb_put_range(&b, s, 0, sign);
    jsb_fill(&b, zero, (size_t)pad);
    jsb_put_range(&b, s, sign, s->n_bytes - sign);
    return jm_give(self, jsb_done(&b), out);
}

/* Tabs stop at multiples of `size`; a line end resets the column. */
METHOD(str_expandtabs)
{
    int64_t size;
    struct jstr *s = self.u.s, *space = js_lit(rt, " ");
    (void)args;
    if (!space || !js_flat(rt, s) || !jv_int_or(rt, a[0], 8, &size)) {
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
        if (c == '\n' || c == '\r') {
            column = 0;
        } else {
            column = column + (((unsigned char)c & 0xC0) != 0x80);
        }
    }
    return jm_give(self, jsb_done(&b), out);
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
