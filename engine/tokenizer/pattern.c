// SPDX-License-Identifier: Apache-2.0
/* Translates Oniguruma's (Ruby) pattern syntax to PCRE2's. Differences: classes nest and intersect
 * (&&), \h is a hexadecimal digit, {n,m}+ repeats instead of being possessive, (?m) means (?s)
 * elsewhere, and \w, \s, \p{L} and the like follow another version of Unicode. Classes are in
 * pattern_class.c. */
#include "engine/tokenizer/pattern.h"

#include "engine/base/optional.h"
#include "engine/base/utf8.h"

#include <ctype.h>
#include <string.h>

static void begin_atom(struct translator *t)
{
    t->atom = t->out->n_bytes;
    t->has_atom = true;
}

/* When Oniguruma ignores case, it folds some pairs of letters to one character; PCRE2 does not. */
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

/* Writes \b and \B in terms of Oniguruma's \w, which includes marks. */
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

/* A shorthand such as \w, a character, a boundary, or an escape that means the same in PCRE2 and
 * is copied. */
static enum status read_backslash(struct translator *t)
{
    bool is = false;
    size_t atom = t->out->n_bytes;
    TRY(pattern_read_shorthand(t, t->out, &is));
    if (is) {
        t->atom = atom;
        t->has_atom = true;
        return OK;
    }
    uint32_t cp;
    TRY(pattern_read_escape(t, &cp, &is));
    if (is) {
        begin_atom(t);
        buf_printf(t->out, "\\x{%X}", cp);
        return OK;
    }
    char e = pattern_peek(t, 1);
    if (e == 'b' || e == 'B') {
        put_boundary(t, e == 'b');
        return OK;
    }
    if (e == '\0' || !strchr("AzZGRXkK0123456789", e)) {
        return pattern_refuse(t, "an unknown escape");
    }
    begin_atom(t);
    buf_put(t->out, t->p + t->i, 2);
    t->i += 2;
    return OK;
}

/* Reads "(?imx-imx)" and "(?imx-imx:". Ruby's m is PCRE2's s. */
static enum status read_flags(struct translator *t)
{
    bool off = false;
    while (t->i < t->n && pattern_peek(t, 0) != ':' && pattern_peek(t, 0) != ')') {
        char c = pattern_peek(t, 0);
        if (c == '-') {
            off = true;
        } else if (c == 'i') {
            t->caseless = !off;
        } else if (c != 'm' && c != 'x') {
            return pattern_refuse(t, "an unknown flag");
        }
        if (c == 'x') {
            return pattern_refuse(t, "the flag x");
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

/* Options in a group hold until the group ends, so the state is kept per group. */
static enum status open_group(struct translator *t)
{
    if (t->n_groups == MAX_GROUPS) {
        return pattern_refuse(t, "groups nested too deeply");
    }
    t->groups[t->n_groups].start = t->out->n_bytes;
    t->groups[t->n_groups].caseless = t->caseless;
    t->has_atom = false;
    buf_putc(t->out, '(');
    t->i++;
    if (pattern_peek(t, 0) != '?') {
        t->n_groups++;
        return OK;
    }
    buf_putc(t->out, '?');
    t->i++;
    char c = pattern_peek(t, 0);
    if (c == 'i' || c == 'm' || c == 'x' || c == '-') {
        TRY(read_flags(t));
        buf_putc(t->out, pattern_peek(t, 0));
        // "(?i)" applies to the end of the enclosing group.
        t->n_groups += pattern_peek(t, 0) == ':';
        t->i++;
        return OK;
    }
    // These are the same in both syntaxes.
    char next = pattern_peek(t, 1);
    bool named =
        c == '<' && (next == '=' || next == '!' || next == '_' || isalpha((unsigned char)next));
    if (c == '\0' || (!strchr(":=!>", c) && !named)) {
        return pattern_refuse(t, "an unknown kind of group");
    }
    t->n_groups++;
    return OK;
}

static enum status close_group(struct translator *t)
{
    if (t->n_groups == 0) {
        return pattern_refuse(t, "a ')' without '('");
    }
    t->n_groups--;
    t->caseless = t->groups[t->n_groups].caseless;
    t->atom = t->groups[t->n_groups].start;
    t->has_atom = true;
    buf_putc(t->out, ')');
    t->i++;
    return OK;
}

/* Wraps the last atom in a group: "X{3}" becomes "(?:X{3})". */
static void wrap_atom(struct translator *t)
{
    struct buf copy;
    buf_init(&copy, t->out->max_bytes);
    buf_put(&copy, t->out->data + t->atom, t->out->n_bytes - t->atom);
    t->out->n_bytes = t->atom;
    buf_printf(t->out, "(?:%s)", or_empty(copy.data));
    buf_deinit(&copy);
}

/* Called at '{', which is literal unless it starts a quantifier. */
static void read_braces(struct translator *t)
{
    size_t k = 1;
    char low[8] = "", high[8] = "";
    bool comma = false;
    for (; isdigit((unsigned char)pattern_peek(t, k)) || (pattern_peek(t, k) == ',' && !comma);
         k++) {
        char *half = comma ? high : low;
        size_t n = strlen(half);
        if (pattern_peek(t, k) == ',') {
            comma = true;
        } else if (n < 6) {
            half[n] = pattern_peek(t, k);
            half[n + 1] = '\0';
        } else {
            break;
        }
    }
    if (pattern_peek(t, k) != '}' || !t->has_atom || (!low[0] && !high[0])) {
        begin_atom(t);
        buf_puts(t->out, "\\{");
        t->i++;
        return;
    }
    buf_printf(t->out, "{%s%s%s}", low[0] ? low : "0", text_if(comma, ","), high);
    t->i += k + 1;
    if (pattern_peek(t, 0) == '+' || (pattern_peek(t, 0) == '?' && !comma)) {
        wrap_atom(t);
    }
}

/* Two letters that fold to one character, such as "ss" for a sharp s, match differently in the two
 * libraries. */
static enum status read_literal(struct translator *t)
{
    uint32_t cp;
    size_t n = utf8_decode(t->p + t->i, t->n - t->i, &cp);
    if (t->caseless && folds_together(t->last_literal, cp)) {
        return pattern_refuse(t, "letters that fold to one character");
    }
    t->last_literal = cp;
    begin_atom(t);
    buf_put(t->out, t->p + t->i, n);
    t->i += n;
    return OK;
}

static enum status read_one(struct translator *t)
{
    char c = pattern_peek(t, 0);
    uint32_t literal = t->last_literal;
    t->last_literal = 0;
    switch (c) {
    case '\\': return read_backslash(t);
    case '[': begin_atom(t); return pattern_read_class(t, t->out);
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
        return pattern_refuse(&t, "an unterminated group");
    }
    if (out->failed) {
        return pattern_refuse(&t, "classes that are too large");
    }
    return OK;
}
