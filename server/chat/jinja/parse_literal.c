// SPDX-License-Identifier: Apache-2.0
/* Literals, names and parentheses. */
#include "engine/base/minmax.h"
#include "engine/base/utf8.h"
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"
#include "server/chat/jinja/parse.h"

#include <stdio.h>
#include <string.h>

/* ---- literals ---- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

/* Reads `want` hex digits as a code point; -1 if there are too few digits or the value is not a
 * character. */
static int hex_digits(const char *s, size_t n_bytes, size_t want, uint32_t *cp)
{
    if (n_bytes < want) {
        return -1;
    }
    *cp = 0;
    for (size_t i = 0; i < want; i++) {
        int d = hex_digit(s[i]);
        if (d < 0) {
            return -1;
        }
        *cp = *cp * 16 + (uint32_t)d;
    }
    return *cp <= 0x10FFFF ? (int)want : -1;
}

static void put_scalar(struct jsb *b, uint32_t cp)
{
    jsb_put_cp(b, cp >= 0xD800 && cp < 0xE000 ? 0xFFFD : cp, false);
}

/* Parses the escape after a backslash; returns its length in bytes, -1 if it is malformed. */
static int put_escape(struct jsb *b, const char *s, size_t n_bytes)
{
    static const char plain[] = "\\'\"abfnrtv", value[] = "\\'\"\a\b\f\n\r\t\v";
    const char *at = strchr(plain, s[0]);
    uint32_t cp = 0;
    if (s[0] == '\n') {
        return 1;
    }
    if (s[0] && at) {
        jsb_putc(b, value[at - plain], false);
        return 1;
    }
    if (s[0] >= '0' && s[0] <= '7') {
        int n = 0;
        while (n < 3 && (size_t)n < n_bytes && s[n] >= '0' && s[n] <= '7') {
            cp = cp * 8 + (uint32_t)(s[n++] - '0');
        }
        put_scalar(b, cp);
        return n;
    }
    if (s[0] == 'x' || s[0] == 'u' || s[0] == 'U') {
        size_t want = s[0] == 'u' ? 4 : 8;
        if (s[0] == 'x') {
            want = 2;
        }
        if (hex_digits(s + 1, n_bytes - 1, want, &cp) < 0) {
            return -1;
        }
        put_scalar(b, cp);
        return (int)want + 1;
    }
    if (s[0] == 'N') {
        return -1; // character names are not supported
    }
    jsb_putc(b, '\\', false);
    if ((unsigned char)s[0] < 0x80) {
        jsb_putc(b, s[0], false);
        return 1;
    }
    /* Jinja2 first replaces non-ASCII characters by escapes, so a backslash before such a character
     * applies to the text of its escape. */
    char text[12];
    int n = (int)utf8_decode(s, n_bytes, &cp);
    if (cp < 0x100) {
        snprintf(text, sizeof text, "x%02x", cp);
    } else {
        snprintf(text, sizeof text, cp < 0x10000 ? "u%04x" : "U%08x", cp);
    }
    jsb_puts(b, text);
    return n;
}

/* Appends the text of a literal without its quotes. */
static bool put_literal(struct jparser *p, struct jsb *b, const struct jtoken *t)
{
    const char *s = t->s + 1;
    size_t n = t->n_bytes - 2;
    for (size_t i = 0; i < n;) {
        size_t run = i;
        while (run < n && s[run] != '\\') {
            run++;
        }
        jsb_put(b, s + i, run - i, false);
        i = run;
        if (i < n) {
            int took = put_escape(b, s + i + 1, n - i - 1);
            if (took < 0) {
                return jinja_syntax(p->rt, t->line, "a malformed escape in a string");
            }
            i += 1 + (size_t)took;
        }
    }
    return !b->failed;
}

/* Adjacent literals are joined, as in Python. */
static struct jnode *string_literal(struct jparser *p)
{
    struct jsb b;
    jsb_init(&b, p->rt);
    while (jp_token(p)->kind == T_STRING) {
        if (!put_literal(p, &b, jp_next(p))) {
            return NULL;
        }
    }
    struct jstr *s = jp_settled(jsb_done(&b));
    if (s) {
        return jp_constant(p, jv_str(s));
    }
    return NULL;
}

struct jnode *jp_number(struct jparser *p)
{
    const struct jtoken *t = jp_next(p);
    struct jv v;
    bool ok = true;
    if (t->kind == T_INT) {
        if (!jnum_parse_int(p->rt, t->s, t->n_bytes, 0, &v, &ok)) {
            return NULL;
        }
        if (!ok) { // zeros such as 00 are valid; integers with more digits than int() accepts are
                   // not
            jinja_syntax(p->rt, t->line, "a number is too long");
            return NULL;
        }
        return jp_constant(p, v);
    }
    double f;
    if (!jnum_parse_float(t->s, t->n_bytes, &f)) {
        jinja_syntax(p->rt, t->line, "a number is too long");
        return NULL;
    }
    return jp_constant(p, jv_float(f));
}

static struct jnode *list_literal(struct jparser *p)
{
    struct jnodes l = {0};
    jp_next(p);
    while (!jp_is_op(p, ']')) {
        if (l.n > 0 && !jp_expect_op(p, ',')) {
            return NULL;
        }
        if (jp_is_op(p, ']')) {
            break;
        }
        if (!jp_push(p, &l, jp_expression(p, true))) {
            return NULL;
        }
    }
    if (jp_expect_op(p, ']')) {
        return jp_with_kids(p, N_LIST, &l);
    }
    return NULL;
}

static struct jnode *dict_literal(struct jparser *p)
{
    struct jnodes l = {0};
    jp_next(p);
    while (!jp_is_op(p, '}')) {
        if (l.n > 0 && !jp_expect_op(p, ',')) {
            return NULL;
        }
        if (jp_is_op(p, '}')) {
            break;
        }
        if (!jp_push(p, &l, jp_expression(p, true)) || !jp_expect_op(p, ':') ||
            !jp_push(p, &l, jp_expression(p, true))) {
            return NULL;
        }
    }
    if (jp_expect_op(p, '}')) {
        return jp_with_kids(p, N_DICT, &l);
    }
    return NULL;
}

/* true, false and none are constants in both spellings; any other name is a symbol, a
 * number that indexes the render's variables. */
static struct jnode *name_expr(struct jparser *p, bool with_namespace)
{
    const struct jtoken *t = jp_next(p);
    if (jp_token_is(t, "true") || jp_token_is(t, "True")) {
        return jp_constant(p, jv_bool(true));
    }
    if (jp_token_is(t, "false") || jp_token_is(t, "False")) {
        return jp_constant(p, jv_bool(false));
    }
    if (jp_token_is(t, "none") || jp_token_is(t, "None")) {
        return jp_constant(p, jv_none());
    }
    struct jnode *n = jp_node(p, N_NAME);
    if (!n) {
        return NULL;
    }
    n->sym = jinja_symbol(p->t, t->s, t->n_bytes);
    n->value = jv_str(p->t->names.names[greater(0, n->sym)]);
    if (with_namespace && jp_skip_op(p, '.')) {
        const struct jtoken *attr = jp_expect_name(p);
        struct jstr *s = attr ? jp_text(p, attr) : NULL;
        if (!s) {
            return NULL;
        }
        n->kind = N_NSREF;
        n->value = jv_str(s);
    }
    return n->sym >= 0 ? n : NULL;
}

struct jnode *jp_primary(struct jparser *p, bool with_namespace)
{
    const struct jtoken *t = jp_token(p);
    switch (t->kind) {
    case T_NAME: return name_expr(p, with_namespace);
    case T_STRING: return string_literal(p);
    case T_INT:
    case T_FLOAT: return jp_number(p);
    default: break;
    }
    if (jp_is_op(p, '[')) {
        return list_literal(p);
    }
    if (jp_is_op(p, '{')) {
        return dict_literal(p);
    }
    if (jp_skip_op(p, '(')) {
        struct jnode *n = jp_tuple(p, true, true);
        if (n && jp_expect_op(p, ')')) {
            return n;
        }
        return NULL;
    }
    jp_unexpected(p, "an expression");
    return NULL;
}
