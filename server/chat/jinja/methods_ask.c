// SPDX-License-Identifier: Apache-2.0
/* The is...() methods of str. */
#include "engine/base/utf8.h"
#include "server/chat/jinja/methods.h"
#include "server/chat/jinja/unicode.h"

/* ---- questions ---- */

/* True if every character has one of the bits, and there is at least one character or or_empty is
 * set. */
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

/* True for the empty string, as in Python. */
METHOD(str_isascii)
{
    (void)a, (void)args;
    if (!js_flat(rt, self.u.s)) {
        return false;
    }
    *out = jv_bool(js_chars(self.u.s) == self.u.s->n_bytes);
    return true;
}

/* The first character must be from a smaller set. */
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

/* True if there is a cased character, and all cased characters have the wanted case. */
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

/* True if upper-case letters only follow caseless characters, lower-case letters only follow cased
 * ones, and there is a cased character. */
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
