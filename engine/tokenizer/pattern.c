// SPDX-License-Identifier: Apache-2.0
/* Translates Oniguruma's (Ruby) pattern syntax to PCRE2's. Differences: classes nest and intersect
 * (&&), \h is a hexadecimal digit, {n,m}+ repeats instead of being possessive, (?m) means (?s)
 * elsewhere, and \w, \s, \p{L} and the like follow another version of Unicode.
 *
 * A class becomes an expression that matches one character: [items] if brackets suffice, otherwise
 * alternatives and lookaheads. */
#include "engine/tokenizer/regex.h"

#include "engine/base/optional.h"
#include "engine/base/utf8.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GROUPS = 64, MAX_CLASS_DEPTH = 8 };

struct translator {
    const char *p;
    size_t n, i;
    struct buf *out;
    size_t atom; // where the last atom starts in out
    bool has_atom, caseless;
    uint32_t last_literal; // for two letters that fold to one
    int class_depth, n_groups;
    struct {
        size_t start;
        bool caseless;
    } groups[MAX_GROUPS];
    struct err *err;
};

static enum status refuse(struct translator *t, const char *what)
{
    return err_set(t->err, ERR_UNSUPPORTED, "the pattern \"%.200s\" has %s at byte %zu", t->p, what,
                   t->i);
}

static char peek(const struct translator *t, size_t ahead)
{
    return t->i + ahead < t->n ? t->p[t->i + ahead] : '\0';
}

/* At "\p{" or "\P{": appends items, and tells whether they are negated. */
static enum status read_property(struct translator *t, struct buf *items, bool *negated)
{
    *negated = peek(t, 1) == 'P';
    const char *open = t->p + t->i + 3;
    const char *close = peek(t, 2) == '{' ? strchr(open, '}') : NULL;
    char name[64];
    size_t n = 0;
    if (!close || close - open >= (ptrdiff_t)sizeof name) {
        return refuse(t, "a property that cannot be read");
    }
    const char *from = open;
    if (from < close && *from == '^') {
        *negated = !*negated;
        from++;
    }
    for (const char *c = from; c < close; c++) {
        if (*c != ' ' && *c != '_' && *c != '-') {
            name[n++] = (char)tolower((unsigned char)*c);
        }
        if (!isalnum((unsigned char)*c) && *c != ' ' && *c != '_' && *c != '-') {
            return refuse(t, "a property that cannot be read");
        }
    }
    name[n] = '\0';
    if (!class_put_named(items, name)) {
        buf_printf(items, class_is_script(name) ? "\\p{sc:%s}" : "\\p{%s}", name);
    }
    t->i = (size_t)(close - t->p) + 1;
    return OK;
}

/* At a backslash: if it starts a shorthand class (\s \W \h \p{..}), appends its items and
 * advances. */
static enum status read_shorthand(struct translator *t, struct buf *items, bool *negated, bool *is)
{
    char c = peek(t, 1);
    *is = true;
    switch (c) {
    case 'p':
    case 'P': return read_property(t, items, negated);
    case 's':
    case 'S': class_put_flags(items, U_SPACE, 0); break;
    case 'd':
    case 'D': class_put_property(items, "Nd", U_DIGIT); break;
    case 'w':
    case 'W': class_put_word(items, t->class_depth > 0); break;
    case 'h':
    case 'H': buf_puts(items, "0-9A-Fa-f"); break;
    default: *is = false; return OK;
    }
    *negated = isupper((unsigned char)c) != 0;
    t->i += 2;
    return OK;
}

/* ---- single characters ---- */

/* Hexadecimal digits of an escape; surrogates are no characters. */
static bool read_hex(struct translator *t, size_t from, size_t max_digits, uint32_t *cp,
                     size_t *digits)
{
    uint32_t v = 0;
    size_t n = 0;
    while (n < max_digits && isxdigit((unsigned char)peek(t, from + n))) {
        char c = peek(t, from + n);
        v = v << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
        n++;
    }
    *cp = v;
    *digits = n;
    return n > 0 && v < 0x110000 && !(v >= 0xD800 && v < 0xE000);
}

/* At a backslash that starts a character given as a number or a letter. */
static enum status read_escape(struct translator *t, uint32_t *cp, bool *is)
{
    static const char letters[] = "nrtfvae", values[] = "\n\r\t\f\v\a\033";
    char c = peek(t, 1);
    size_t digits = 0;
    *is = true;
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter) {
        *cp = (unsigned char)values[letter - letters];
        t->i += 2;
        return OK;
    }
    if (c == 'u' || (c == 'x' && peek(t, 2) != '{')) {
        size_t want = c == 'u' ? 4 : 2;
        if (!read_hex(t, 2, want, cp, &digits) || (c == 'u' && digits != 4) ||
            (c == 'x' && *cp >= 0x80)) {
            return refuse(t, "a character number that cannot be read");
        }
        t->i += 2 + digits;
        return OK;
    }
    if (c == 'x') {
        if (!read_hex(t, 3, 8, cp, &digits) || peek(t, 3 + digits) != '}') {
            return refuse(t, "a character number that cannot be read");
        }
        t->i += 4 + digits;
        return OK;
    }
    if (c != '\0' && !isalnum((unsigned char)c)) {
        t->i++;
        t->i += utf8_decode(t->p + t->i, t->n - t->i, cp);
        return OK;
    }
    *is = false;
    return OK;
}

/* ---- classes ---- */

struct class_text {
    struct buf items; // inside one pair of brackets
    struct buf more;  // "|X|Y": further expressions for one character
};

/* What fits between brackets goes to `items`; the rest are alternatives in `more`, each
 * after a "|". */
static void put_class(struct buf *out, const struct class_text *c, bool negated)
{
    const char *items = or_empty(c->items.data);
    const char *more = or_empty(c->more.data);
    if (*more == '\0') {
        buf_printf(out, "[%s%s]", negated ? "^" : "", items);
        return;
    }
    if (negated) {
        buf_puts(out, "(?:(?!");
    } else {
        buf_puts(out, "(?:");
    }
    if (*items) {
        buf_printf(out, "[%s]%s", items, more);
    } else {
        buf_puts(out, more + 1);
    }
    if (negated) {
        buf_puts(out, ")(?s:.))");
    } else {
        buf_puts(out, ")");
    }
}

static enum status read_class(struct translator *t, struct buf *out);

/* "[:name:]" inside a class. */
static enum status read_posix(struct translator *t, struct class_text *c, bool *is)
{
    const char *close = strstr(t->p + t->i, ":]");
    const char *from = t->p + t->i + 2;
    char name[16];
    *is = false;
    if (!close || close < from || close - from >= (ptrdiff_t)sizeof name) {
        return OK;
    }
    bool negated = *from == '^';
    from += negated;
    memcpy(name, from, (size_t)(close - from));
    name[close - from] = '\0';
    for (const char *k = name; *k; k++) {
        if (!islower((unsigned char)*k)) {
            return OK;
        }
    }
    struct class_text inner = {0};
    buf_init(&inner.items, 1 << 20);
    bool known = class_put_posix(&inner.items, name);
    if (known && negated) {
        buf_puts(&c->more, "|");
        put_class(&c->more, &inner, true);
    } else if (known) {
        buf_puts(&c->items, inner.items.data);
    }
    buf_deinit(&inner.items);
    if (!known) {
        return refuse(t, "an unknown [:class:]");
    }
    t->i = (size_t)(close - t->p) + 2;
    *is = true;
    return OK;
}

/* A negated shorthand cannot stand between brackets with other items, so it becomes an
 * alternative. */
static enum status read_class_shorthand(struct translator *t, struct class_text *c, bool *is)
{
    struct class_text inner = {0};
    bool negated = false;
    buf_init(&inner.items, 1 << 20);
    enum status st = read_shorthand(t, &inner.items, &negated, is);
    if (st == OK && *is && negated) {
        buf_puts(&c->more, "|");
        put_class(&c->more, &inner, true);
    } else if (st == OK && *is) {
        buf_puts(&c->items, inner.items.data);
    }
    buf_deinit(&inner.items);
    return st;
}

/* One character of a class, in any notation. */
static enum status read_class_char(struct translator *t, uint32_t *cp)
{
    if (peek(t, 0) != '\\') {
        t->i += utf8_decode(t->p + t->i, t->n - t->i, cp);
        return OK;
    }
    bool is;
    if (peek(t, 1) == 'b') {
        *cp = '\b';
        t->i += 2;
        return OK;
    }
    TRY(read_escape(t, cp, &is));
    if (is) {
        return OK;
    }
    if (peek(t, 1) == '0') {
        *cp = 0;
        t->i += 2;
        return OK;
    }
    return refuse(t, "an escape in a class that is not known");
}

static enum status read_class_item(struct translator *t, struct class_text *c)
{
    bool is = false;
    if (peek(t, 0) == '[') {
        if (peek(t, 1) == ':') {
            TRY(read_posix(t, c, &is));
        }
        if (!is) {
            buf_puts(&c->more, "|");
            TRY(read_class(t, &c->more));
        }
        return OK;
    }
    if (peek(t, 0) == '\\') {
        TRY(read_class_shorthand(t, c, &is));
        if (is) {
            return OK;
        }
    }
    uint32_t from, to;
    TRY(read_class_char(t, &from));
    to = from;
    char after = peek(t, 1);
    bool shorthand = after == '\\' && peek(t, 2) != '\0' && strchr("sSdDwWhHpP", peek(t, 2));
    if (peek(t, 0) == '-' && after != ']' && after != '\0' && after != '[' && !shorthand) {
        t->i++;
        TRY(read_class_char(t, &to));
        if (to < from) {
            return refuse(t, "an empty range");
        }
    }
    class_put_range(&c->items, from, to);
    return OK;
}

/* Items up to ']' or "&&". */
static enum status read_class_items(struct translator *t, struct class_text *c, bool *any)
{
    while (t->i < t->n && !(peek(t, 0) == ']' && *any)) {
        if (peek(t, 0) == '&' && peek(t, 1) == '&') {
            return OK;
        }
        *any = true;
        TRY(read_class_item(t, c));
    }
    if (t->i < t->n) {
        return OK;
    }
    return refuse(t, "a class that does not end");
}

/* a&&b means that a character must be in both: lookaheads in front of the last class. */
static enum status read_operands(struct translator *t, struct buf *out, bool negated)
{
    struct class_text c = {0};
    struct buf all; // "(?=A)(?=B)C" of A&&B&&C
    buf_init(&c.items, 1 << 20);
    buf_init(&c.more, 1 << 20);
    buf_init(&all, 2 << 20);
    bool any = false, intersects = false;
    enum status st;
    while ((st = read_class_items(t, &c, &any)) == OK && peek(t, 0) == '&') {
        intersects = true;
        buf_puts(&all, "(?=");
        put_class(&all, &c, false);
        buf_puts(&all, ")");
        buf_clear(&c.items);
        buf_clear(&c.more);
        t->i += 2;
    }
    if (st == OK && !intersects) {
        put_class(out, &c, negated);
    } else if (st == OK) {
        put_class(&all, &c, false);
        buf_printf(out, negated ? "(?:(?!%s)(?s:.))" : "(?:%s)", all.data);
    }
    bool failed = c.items.failed || c.more.failed || all.failed;
    buf_deinit(&c.items);
    buf_deinit(&c.more);
    buf_deinit(&all);
    if (failed) {
        return refuse(t, "a class that is too large");
    }
    return st;
}

/* At '['. */
static enum status read_class(struct translator *t, struct buf *out)
{
    if (++t->class_depth > MAX_CLASS_DEPTH) {
        return refuse(t, "classes nested too deeply");
    }
    t->i++;
    bool negated = peek(t, 0) == '^';
    t->i += negated;
    TRY(read_operands(t, out, negated));
    t->i++;
    t->class_depth--;
    return OK;
}

/* ---- everything else ---- */

static void begin_atom(struct translator *t)
{
    t->atom = t->out->n_bytes;
    t->has_atom = true;
}

/* Oniguruma folds some pairs of letters to one character when ignoring case; PCRE2 does not. */
static bool folds_together(uint32_t a, uint32_t b)
{
    static const char pairs[][3] = {"ss", "ff", "fi", "fl", "st"};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if ((a | 0x20) == (uint32_t)pairs[i][0] && (b | 0x20) == (uint32_t)pairs[i][1]) {
            return true;
        }
    }
    return false;
}

/* \b and \B by Oniguruma's \w, which includes marks. */
static void put_boundary(struct translator *t, bool is_boundary)
{
    struct buf word;
    buf_init(&word, 1 << 20);
    class_put_word(&word, false);
    const char *w = or_empty(word.data);
    begin_atom(t);
    buf_printf(t->out, "(?:(?<=[%s])(?%c[%s])|(?<![%s])(?%c[%s]))", w, is_boundary ? '!' : '=', w,
               w, is_boundary ? '=' : '!', w);
    t->i += 2;
    buf_deinit(&word);
}

static enum status read_backslash(struct translator *t)
{
    struct class_text c = {0};
    bool negated = false, is = false;
    buf_init(&c.items, 1 << 20);
    enum status st = read_shorthand(t, &c.items, &negated, &is);
    if (st == OK && is) {
        begin_atom(t);
        put_class(t->out, &c, negated);
    }
    buf_deinit(&c.items);
    if (st != OK || is) {
        return st;
    }
    uint32_t cp;
    TRY(read_escape(t, &cp, &is));
    if (is) {
        begin_atom(t);
        buf_printf(t->out, "\\x{%X}", cp);
        return OK;
    }
    char e = peek(t, 1);
    if (e == 'b' || e == 'B') {
        put_boundary(t, e == 'b');
        return OK;
    }
    if (e == '\0' || !strchr("AzZGRXkK0123456789", e)) {
        return refuse(t, "an escape that is not known");
    }
    begin_atom(t);
    buf_put(t->out, t->p + t->i, 2);
    t->i += 2;
    return OK;
}

/* "(?imx-imx)" and "(?imx-imx:": Ruby's m is PCRE2's s. */
static enum status read_flags(struct translator *t)
{
    bool off = false;
    while (t->i < t->n && peek(t, 0) != ':' && peek(t, 0) != ')') {
        char c = peek(t, 0);
        if (c == '-') {
            off = true;
        } else if (c == 'i') {
            t->caseless = !off;
        } else if (c != 'm' && c != 'x') {
            return refuse(t, "a flag that is not known");
        }
        if (c == 'x') {
            return refuse(t, "the flag x");
        }
        if (c == 'm') {
            buf_putc(t->out, 's');
        } else {
            buf_putc(t->out, c);
        }
        t->i++;
    }
    return OK;
}

/* Options in a group hold until its end, so the state is kept per group. */
static enum status open_group(struct translator *t)
{
    if (t->n_groups == MAX_GROUPS) {
        return refuse(t, "groups nested too deeply");
    }
    t->groups[t->n_groups].start = t->out->n_bytes;
    t->groups[t->n_groups].caseless = t->caseless;
    t->has_atom = false;
    buf_putc(t->out, '(');
    t->i++;
    if (peek(t, 0) != '?') {
        t->n_groups++;
        return OK;
    }
    buf_putc(t->out, '?');
    t->i++;
    char c = peek(t, 0);
    if (c == 'i' || c == 'm' || c == 'x' || c == '-') {
        TRY(read_flags(t));
        buf_putc(t->out, peek(t, 0));
        // "(?i)" applies to the end of the enclosing group.
        t->n_groups += peek(t, 0) == ':';
        t->i++;
        return OK;
    }
    // The same in both syntaxes.
    char next = peek(t, 1);
    bool named =
        c == '<' && (next == '=' || next == '!' || next == '_' || isalpha((unsigned char)next));
    if (c == '\0' || (!strchr(":=!>", c) && !named)) {
        return refuse(t, "a group that is not known");
    }
    t->n_groups++;
    return OK;
}

static enum status close_group(struct translator *t)
{
    if (t->n_groups == 0) {
        return refuse(t, "a ')' without '('");
    }
    t->n_groups--;
    t->caseless = t->groups[t->n_groups].caseless;
    t->atom = t->groups[t->n_groups].start;
    t->has_atom = true;
    buf_putc(t->out, ')');
    t->i++;
    return OK;
}

/* Wraps the last atom: "X{3}" -> "(?:X{3})". */
static void wrap_atom(struct translator *t)
{
    struct buf copy;
    buf_init(&copy, t->out->max_bytes);
    buf_put(&copy, t->out->data + t->atom, t->out->n_bytes - t->atom);
    t->out->n_bytes = t->atom;
    buf_printf(t->out, "(?:%s)", or_empty(copy.data));
    buf_deinit(&copy);
}

/* At '{', which is literal unless it starts a quantifier. */
static void read_braces(struct translator *t)
{
    size_t k = 1;
    char low[8] = "", high[8] = "";
    bool comma = false;
    for (; isdigit((unsigned char)peek(t, k)) || (peek(t, k) == ',' && !comma); k++) {
        char *half = comma ? high : low;
        size_t n = strlen(half);
        if (peek(t, k) == ',') {
            comma = true;
        } else if (n < 6) {
            half[n] = peek(t, k);
            half[n + 1] = '\0';
        } else {
            break;
        }
    }
    if (peek(t, k) != '}' || !t->has_atom || (!low[0] && !high[0])) {
        begin_atom(t);
        buf_puts(t->out, "\\{");
        t->i++;
        return;
    }
    buf_printf(t->out, "{%s%s%s}", low[0] ? low : "0", comma ? "," : "", high);
    t->i += k + 1;
    if (peek(t, 0) == '+' || (peek(t, 0) == '?' && !comma)) {
        wrap_atom(t);
    }
}

/* Two letters that fold to one character, such as "ss" for a sharp s, match differently in
 * both libraries. */
static enum status read_literal(struct translator *t)
{
    uint32_t cp;
    size_t n = utf8_decode(t->p + t->i, t->n - t->i, &cp);
    if (t->caseless && folds_together(t->last_literal, cp)) {
        return refuse(t, "letters that fold to one character");
    }
    t->last_literal = cp;
    begin_atom(t);
    buf_put(t->out, t->p + t->i, n);
    t->i += n;
    return OK;
}

static enum status read_one(struct translator *t)
{
    char c = peek(t, 0);
    uint32_t literal = t->last_literal;
    t->last_literal = 0;
    switch (c) {
    case '\\': return read_backslash(t);
    case '[': begin_atom(t); return read_class(t, t->out);
    case '(': return open_group(t);
    case ')': return close_group(t);
    case '{': read_braces(t); return OK;
    case '|': t->has_atom = false; break;
    case '*':
    case '+':
    case '?':
    case '^':
    case '$': break;
    case '.': begin_atom(t); break;
    default: t->last_literal = literal; return read_literal(t);
    }
    buf_putc(t->out, c);
    t->i++;
    return OK;
}

enum status pattern_translate(const char *pattern, struct buf *out, struct err *err)
{
    struct translator t = {.p = pattern, .n = strlen(pattern), .out = out, .err = err};
    if (utf8_check(pattern, t.n) != t.n) {
        return err_set(err, ERR_FORMAT, "a pattern is not UTF-8");
    }
    while (t.i < t.n) {
        TRY(read_one(&t));
    }
    if (t.n_groups > 0) {
        return refuse(&t, "a group that does not end");
    }
    if (out->failed) {
        return refuse(&t, "classes that are too large");
    }
    return OK;
}
