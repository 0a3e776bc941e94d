// SPDX-License-Identifier: Apache-2.0
/* The urlize filter: turns words that are links into anchors. A file of its own, because it is all
 * about the syntax of addresses. */
#include "server/chat/jinja/filters.h"
#include "server/chat/jinja/unicode.h"

#include "engine/base/minmax.h"
#include "engine/base/utf8.h"

#include <ctype.h>
#include <string.h>

struct word {
    const char *s;
    size_t n;
};

static bool starts(struct word w, const char *prefix)
{
    size_t n = strlen(prefix);
    return w.n >= n && strncasecmp(w.s, prefix, n) == 0;
}

static bool is_label(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '%' || c == '-' || (c & 0x80);
}

/* True if the text may follow a host: a port, then a path. */
static bool is_rest(struct word w)
{
    size_t i = 0;
    if (w.n > 0 && w.s[0] == ':') {
        for (i = 1; i < w.n && isdigit((unsigned char)w.s[i]); i++) {
        }
        if (i < 2 || i > 6) {
            return false;
        }
    }
    return i == w.n || strchr("/?#", w.s[i]);
}

/* The few endings for which a name without "www." or a scheme is a link. */
static bool is_basic_tld(struct word w)
{
    static const char *const tlds[] = {"com", "net", "int", "edu", "gov", "org", "info", "mil"};
    for (size_t i = 0; i < sizeof tlds / sizeof tlds[0]; i++) {
        if (w.n == strlen(tlds[i]) && starts(w, tlds[i])) {
            return true;
        }
    }
    return false;
}

/* True for a possible top-level domain: letters, or an internationalised label (xn--...). */
static bool is_tld(struct word w)
{
    bool idna = starts(w, "xn--") && w.n >= 6 && w.n <= 63;
    bool letters = w.n >= 2 && w.n <= 63;
    for (size_t i = 0; i < w.n; i++) {
        letters = letters && isalpha((unsigned char)w.s[i]);
        idna = idna && (i < 4 || (is_label(w.s[i]) && w.s[i] != '-'));
    }
    return letters || idna;
}

/* Four groups of digits, whose values are not checked. */
static bool is_ipv4(struct word w)
{
    int dots = 0, digits = 0;
    for (size_t i = 0; i < w.n; i++) {
        if (w.s[i] == '.') {
            dots++;
            digits = 0;
        } else if (!isdigit((unsigned char)w.s[i]) || ++digits > 3) {
            return false;
        }
        if (w.s[i] == '.' && (i == 0 || w.s[i - 1] == '.')) {
            return false;
        }
    }
    return dots == 3 && digits > 0;
}

static size_t scheme_length(struct word w)
{
    if (starts(w, "https://")) {
        return 8;
    }
    return starts(w, "http://") ? 7 : 0;
}

/* True for a URL with a scheme or "www.", or a host that ends with a common top-level
 * domain. */
static bool is_http(struct word w)
{
    size_t scheme = scheme_length(w);
    size_t skip = scheme;
    if (!scheme && starts(w, "www.")) {
        skip = 4;
    }
    size_t host = skip;
    while (host < w.n && (is_label(w.s[host]) || w.s[host] == '.')) {
        host++;
    }
    if (!is_rest((struct word){w.s + host, w.n - host})) {
        return false;
    }
    if (scheme && is_ipv4((struct word){w.s + skip, host - skip})) {
        return true;
    }
    size_t label = skip, labels = 0;
    bool long_labels = true;
    for (size_t i = skip; i < host; i++) {
        if (w.s[i] == '.') {
            if (i == label) {
                return false;
            }
            long_labels = long_labels && i - label >= 2 && i - label <= 63;
            label = i + 1;
            labels++;
        }
    }
    struct word last = {w.s + label, host - label};
    if (skip) {
        return is_tld(last);
    }
    return labels > 0 && long_labels && is_basic_tld(last);
}

/* True for any text, an @, and a host with a dot. */
static bool is_email(struct word w)
{
    const char *at = memrchr(w.s, '@', w.n);
    if (!at || at == w.s) {
        return false;
    }
    size_t from = (size_t)(at - w.s) + 1, dot = 0;
    for (size_t i = from; i < w.n; i++) {
        bool word = isalnum((unsigned char)w.s[i]) || w.s[i] == '_' || (w.s[i] & 0x80);
        if (!word && (i == from || (w.s[i] != '.' && w.s[i] != '-'))) {
            return false;
        }
        if (w.s[i] == '.') {
            dot = i;
        } else if (w.s[i] == '-') {
            dot = 0;
        }
    }
    return dot > from && dot + 1 < w.n;
}

struct link_style {
    struct jstr *rel, *target; // attributes including a leading space
    int64_t limit;             // -1: none
};

/* Writes the word as a link if it is an address, unchanged otherwise. */
static void put_link(struct jsb *b, struct jstr *s, size_t at, struct word w,
                     const struct link_style *style)
{
    bool http = is_http(w), mailto = starts(w, "mailto:");
    struct word address = mailto ? (struct word){w.s + 7, w.n - 7} : w;
    bool plain_mail = !mailto && memchr(w.s, '@', w.n) && !starts(w, "www.") && w.s[0] != '@' &&
                      !memchr(w.s, ':', w.n);
    if (!http && !((mailto || plain_mail) && is_email(address))) {
        jsb_put_range(b, s, at, w.n);
        return;
    }
    bool has_scheme = http && (strncmp(w.s, "http://", 7) == 0 || strncmp(w.s, "https://", 8) == 0);
    jsb_puts(b, "<a href=\"");
    if (http && !has_scheme) {
        jsb_puts(b, "https://");
    } else if (!http && !mailto) {
        jsb_puts(b, "mailto:");
    }
    jsb_put_range(b, s, at, w.n);
    jsb_puts(b, "\"");
    if (http) {
        jsb_put_str(b, style->rel);
        jsb_put_str(b, style->target);
    }
    jsb_puts(b, ">");
    struct jstr *shown = js_sub(b->rt, s, at + (w.n - address.n), address.n);
    bool cut = shown && http && style->limit >= 0 && js_chars(shown) > (size_t)style->limit;
    if (cut) {
        shown = jt_chars(b->rt, shown, 0, (size_t)style->limit);
    }
    if (shown) {
        jsb_put_str(b, shown);
    }
    if (cut) {
        jsb_puts(b, "...</a>");
    } else {
        jsb_puts(b, "</a>");
    }
}

static bool ends(struct word w, const char *suffix)
{
    size_t n = strlen(suffix);
    return w.n >= n && memcmp(w.s + w.n - n, suffix, n) == 0;
}

static int count(struct word w, const char *part)
{
    int n = 0;
    size_t len = strlen(part);
    for (size_t i = 0; i + len <= w.n; i++) {
        if (memcmp(w.s + i, part, len) == 0) {
            n++;
            i += len - 1;
        }
    }
    return n;
}

/* Punctuation around a word is not part of the link, unless its brackets balance. */
static void put_word(struct jsb *b, struct jstr *s, size_t at, size_t n,
                     const struct link_style *style)
{
    struct word w = {s->s + at, n};
    static const char *const open[] = {"(", "<", "&lt;"}, *const close[] = {")", ">", "&gt;"};
    size_t head = 0;
    for (;;) {
        struct word rest = {w.s + head, w.n - head};
        size_t step = rest.n >= 4 && memcmp(rest.s, "&lt;", 4) == 0 ? 4 : 0;
        if (starts(rest, "(") || starts(rest, "<")) {
            step = 1;
        }
        if (step == 0) {
            break;
        }
        head += step;
    }
    struct word middle = {w.s + head, w.n - head};
    for (;;) {
        size_t step = 0;
        if (middle.n > 0 && strchr(")>.,", middle.s[middle.n - 1])) {
            step = 1;
        }
        if (ends(middle, "&gt;")) {
            step = 4;
        }
        if (step == 0) {
            break;
        }
        middle.n -= step;
    }
    for (int i = 0; i < 3; i++) {
        struct word tail = {middle.s + middle.n, w.n - head - middle.n};
        int opened = count(middle, open[i]), moves = count(tail, close[i]);
        if (opened <= count(middle, close[i])) {
            continue;
        }
        for (moves = lesser(moves, opened); moves > 0; moves--) {
            const char *end =
                memmem(middle.s + middle.n, w.n - head - middle.n, close[i], strlen(close[i]));
            middle.n = (size_t)(end - middle.s) + strlen(close[i]);
        }
    }
    jsb_put_range(b, s, at, head);
    if (middle.n > 0) {
        put_link(b, s, at + head, middle, style);
    }
    jsb_put_range(b, s, at + head + middle.n, n - head - middle.n);
}

/* An attribute is left out if its value is empty. */
static bool attribute(struct jrt *rt, const char *name, struct jv v, struct jstr **out)
{
    struct jsb b;
    jsb_init(&b, rt);
    if (jv_truth(v)) {
        if (!jinja_escape(rt, v, &v)) {
            return false;
        }
        jsb_puts(&b, name);
        jsb_put_str(&b, v.u.s);
        jsb_puts(&b, "\"");
    }
    *out = jsb_done(&b);
    return *out != NULL;
}

/* Handles words one by one; the text between them stays unchanged. */
FILTER(jf_urlize)
{
    struct link_style style = {.limit = -1};
    struct jv rel =
        jv_str(js_lit(rt, jv_is_given(a[1]) && jv_truth(a[1]) ? "nofollow noopener" : "noopener"));
    (void)args;
    if (jv_is_given(a[3]) || jv_is_given(a[4])) {
        return jrt_fail(rt, "TemplateRuntimeError", "these options of urlize are not supported");
    }
    if (rt->st != OK || !jinja_escape(rt, v, &v) || !js_flat(rt, v.u.s) ||
        !attribute(rt, " rel=\"", rel, &style.rel) ||
        !attribute(rt, " target=\"", jv_is_given(a[2]) ? a[2] : jv_none(), &style.target) ||
        (jv_is_given(a[0]) && a[0].type != JV_NONE && !jv_as_index(rt, a[0], &style.limit))) {
        return false;
    }
    struct jstr *s = v.u.s;
    struct jsb b;
    jsb_init(&b, rt);
    for (size_t i = 0; i < s->n_bytes && !b.failed;) {
        size_t end = i, n = 0;
        uint32_t cp;
        while (end < s->n_bytes && (n = utf8_decode(s->s + end, s->n_bytes - end, &cp)) > 0 &&
               !uni_is_space(cp)) {
            end += n;
        }
        if (end > i) {
            put_word(&b, s, i, end - i, &style);
        }
        i = end < s->n_bytes ? end + n : end;
        jsb_put_range(&b, s, end, i - end);
    }
    *out = jv_str(jsb_done(&b));
    out->flag = rt->autoescape ? JV_MARKUP : 0;
    return out->u.s != NULL;
}
