// SPDX-License-Identifier: Apache-2.0
/* The part of a pattern that stands for one character: classes, shorthands and escapes. A class
 * becomes an expression that matches one character: [items] if brackets suffice, otherwise
 * alternatives and lookaheads. */
#include "engine/tokenizer/pattern.h"

#include "engine/base/optional.h"
#include "engine/base/utf8.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CLASS_DEPTH = 8 };

enum status pattern_refuse(struct translator *t, const char *what)
{
    return err_set(t->err, ERR_UNSUPPORTED, "the pattern \"%.200s\" has %s at byte %zu", t->p, what,
                   t->i);
}

/* Called at "\p{" or "\P{". Appends items, and returns in *negated whether they are negated. */
static enum status read_property(struct translator *t, struct buf *items, bool *negated)
{
    *negated = pattern_peek(t, 1) == 'P';
    const char *open = t->p + t->i + 3;
    const char *close = pattern_peek(t, 2) == '{' ? strchr(open, '}') : NULL;
    char name[64];
    size_t n = 0;
    if (!close || close - open >= (ptrdiff_t)sizeof name) {
        return pattern_refuse(t, "a property that cannot be read");
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
            return pattern_refuse(t, "a property that cannot be read");
        }
    }
    name[n] = '\0';
    if (!class_put_named(items, name)) {
        buf_printf(items, class_is_script(name) ? "\\p{sc:%s}" : "\\p{%s}", name);
    }
    t->i = (size_t)(close - t->p) + 1;
    return OK;
}

/* Called at a backslash. If it starts a shorthand class (\s \W \h \p{..}), appends its items and
 * advances. */
static enum status read_shorthand(struct translator *t, struct buf *items, bool *negated, bool *is)
{
    char c = pattern_peek(t, 1);
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

/* Reads the hexadecimal digits of an escape. Surrogates are not characters. */
static bool read_hex(struct translator *t, size_t from, size_t max_digits, uint32_t *cp,
                     size_t *digits)
{
    uint32_t v = 0;
    size_t n = 0;
    while (n < max_digits && isxdigit((unsigned char)pattern_peek(t, from + n))) {
        char c = pattern_peek(t, from + n);
        v = v << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
        n++;
    }
    *cp = v;
    *digits = n;
    return n > 0 && v < 0x110000 && !(v >= 0xD800 && v < 0xE000);
}

enum status pattern_read_escape(struct translator *t, uint32_t *cp, bool *is)
{
    static const char letters[] = "nrtfvae", values[] = "\n\r\t\f\v\a\033";
    char c = pattern_peek(t, 1);
    size_t digits = 0;
    *is = true;
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter) {
        *cp = (unsigned char)values[letter - letters];
        t->i += 2;
        return OK;
    }
    if (c == 'u' || (c == 'x' && pattern_peek(t, 2) != '{')) {
        size_t want = c == 'u' ? 4 : 2;
        if (!read_hex(t, 2, want, cp, &digits) || (c == 'u' && digits != 4) ||
            (c == 'x' && *cp >= 0x80)) {
            return pattern_refuse(t, "a character number that cannot be read");
        }
        t->i += 2 + digits;
        return OK;
    }
    if (c == 'x') {
        if (!read_hex(t, 3, 8, cp, &digits) || pattern_peek(t, 3 + digits) != '}') {
            return pattern_refuse(t, "a character number that cannot be read");
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
    struct buf more;  // "|X|Y": other expressions for one character
};

/* A class that is being translated. Members that PCRE2 allows between brackets go to `items`. The
 * others are alternatives in `more`, each after a "|". */
static void put_class(struct buf *out, const struct class_text *c, bool negated)
{
    const char *items = or_empty(c->items.data);
    const char *more = or_empty(c->more.data);
    if (*more == '\0') {
        buf_printf(out, "[%s%s]", text_if(negated, "^"), items);
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

enum status pattern_read_shorthand(struct translator *t, struct buf *out, bool *is)
{
    struct class_text c = {0};
    bool negated = false;
    buf_init(&c.items, 1 << 20);
    enum status st = read_shorthand(t, &c.items, &negated, is);
    if (st == OK && *is) {
        put_class(out, &c, negated);
    }
    buf_deinit(&c.items);
    return st;
}

/* Reads "[:name:]" inside a class. */
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
        return pattern_refuse(t, "an unknown [:class:]");
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

/* Reads one character of a class, in any notation. */
static enum status read_class_char(struct translator *t, uint32_t *cp)
{
    if (pattern_peek(t, 0) != '\\') {
        t->i += utf8_decode(t->p + t->i, t->n - t->i, cp);
        return OK;
    }
    bool is;
    if (pattern_peek(t, 1) == 'b') {
        *cp = '\b';
        t->i += 2;
        return OK;
    }
    TRY(pattern_read_escape(t, cp, &is));
    if (is) {
        return OK;
    }
    if (pattern_peek(t, 1) == '0') {
        *cp = 0;
        t->i += 2;
        return OK;
    }
    return pattern_refuse(t, "an unknown escape in a class");
}

/* A class within the class, a shorthand, a character or a range. */
static enum status read_class_item(struct translator *t, struct class_text *c)
{
    bool is = false;
    if (pattern_peek(t, 0) == '[') {
        if (pattern_peek(t, 1) == ':') {
            TRY(read_posix(t, c, &is));
        }
        if (!is) {
            buf_puts(&c->more, "|");
            TRY(pattern_read_class(t, &c->more));
        }
        return OK;
    }
    if (pattern_peek(t, 0) == '\\') {
        TRY(read_class_shorthand(t, c, &is));
        if (is) {
            return OK;
        }
    }
    uint32_t from, to;
    TRY(read_class_char(t, &from));
    to = from;
    char after = pattern_peek(t, 1);
    bool shorthand =
        after == '\\' && pattern_peek(t, 2) != '\0' && strchr("sSdDwWhHpP", pattern_peek(t, 2));
    if (pattern_peek(t, 0) == '-' && after != ']' && after != '\0' && after != '[' && !shorthand) {
        t->i++;
        TRY(read_class_char(t, &to));
        if (to < from) {
            return pattern_refuse(t, "an empty range");
        }
    }
    class_put_range(&c->items, from, to);
    return OK;
}

/* Reads items up to ']' or "&&". */
static enum status read_class_items(struct translator *t, struct class_text *c, bool *any)
{
    while (t->i < t->n && !(pattern_peek(t, 0) == ']' && *any)) {
        if (pattern_peek(t, 0) == '&' && pattern_peek(t, 1) == '&') {
            return OK;
        }
        *any = true;
        TRY(read_class_item(t, c));
    }
    if (t->i < t->n) {
        return OK;
    }
    return pattern_refuse(t, "an unterminated class");
}

/* a&&b: a character must be in both classes. All classes but the last become lookaheads before the
 * last one. */
static enum status read_operands(struct translator *t, struct buf *out, bool negated)
{
    struct class_text c = {0};
    struct buf all; // "(?=A)(?=B)C" for A&&B&&C
    buf_init(&c.items, 1 << 20);
    buf_init(&c.more, 1 << 20);
    buf_init(&all, 2 << 20);
    bool any = false, intersects = false;
    enum status st;
    while ((st = read_class_items(t, &c, &any)) == OK && pattern_peek(t, 0) == '&') {
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
        return pattern_refuse(t, "a class that is too large");
    }
    return st;
}

enum status pattern_read_class(struct translator *t, struct buf *out)
{
    if (++t->class_depth > MAX_CLASS_DEPTH) {
        return pattern_refuse(t, "classes nested too deeply");
    }
    t->i++;
    bool negated = pattern_peek(t, 0) == '^';
    t->i += negated;
    TRY(read_operands(t, out, negated));
    t->i++;
    t->class_depth--;
    return OK;
}
