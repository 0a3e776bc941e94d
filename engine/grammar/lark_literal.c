// SPDX-License-Identifier: Apache-2.0
/* Literals of Lark grammars: strings, expressions with flags, ranges, and special tokens. */
#include "engine/grammar/lark_literal.h"

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/grammar/charset.h"

#include <stdlib.h>
#include <string.h>

/* Surrogates and numbers above 0x10ffff are errors, because UTF-8 text cannot contain them. */
static enum status parse_hex(struct lark_lex *lex, const char *s, size_t n, size_t digits,
                             uint32_t *v)
{
    *v = 0;
    for (size_t i = 0; i < digits; i++) {
        char c = i < n ? s[i] : ' ', lower = (char)(c | 32);
        if (c >= '0' && c <= '9') {
            *v = *v * 16 + (uint32_t)(c - '0');
        } else if (lower >= 'a' && lower <= 'f') {
            *v = *v * 16 + (uint32_t)(lower - 'a' + 10);
        } else {
            return lark_fail(lex, "an escape needs %zu hexadecimal digits", digits);
        }
    }
    bool bad = *v > 0x10ffff || (*v >= 0xd800 && *v <= 0xdfff);
    if (bad) {
        return lark_fail(lex, "an escape is not a valid character");
    }
    return OK;
}

/* *used becomes the number of bytes read. An unknown escaped letter is an error; it does not stand
 * for itself. */
static enum status parse_char(struct lark_lex *lex, const char *s, size_t n, size_t *used,
                              uint32_t *v)
{
    static const char escapes[][2] = {{'t', '\t'}, {'r', '\r'}, {'n', '\n'},
                                      {'f', '\f'}, {'b', '\b'}, {'v', '\v'}};
    if (s[0] != '\\') {
        *used = utf8_decode(s, n, v);
        return OK;
    }
    char c = n > 1 ? s[1] : ' ';
    static const char *const coded = "xuU"; // followed by 2, 4 and 8 digits
    const char *code = memchr(coded, c, 3);
    if (code) {
        size_t digits = (size_t)2 << (code - coded);
        *used = 2 + digits;
        return parse_hex(lex, s + 2, n - 2, digits, v);
    }
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        if (escapes[i][0] == c) {
            *v = (uint8_t)escapes[i][1];
            *used = 2;
            return OK;
        }
    }
    if (!strchr("\\\"'/", c)) {
        return lark_fail(lex, "unknown escape \\%c", c);
    }
    *v = (uint8_t)c;
    *used = 2;
    return OK;
}

/* Reads the characters of a string; *ignore_case comes from its flags. */
static enum status parse_string(struct lark_lex *lex, struct lark_word w, uint32_t *chars,
                                size_t *n, bool *ignore_case)
{
    *ignore_case = w.n_flags == 1 && w.s[w.n - 1] == 'i';
    if (w.n_flags > 0 && !*ignore_case) {
        return lark_fail(lex, "the only flag of a string is i");
    }
    size_t at = 1, end = w.n - w.n_flags - 1, used = 0;
    for (*n = 0; at < end; at += used) {
        TRY(parse_char(lex, w.s + at, end - at, &used, &chars[(*n)++]));
    }
    return OK;
}

/* The sequence is built from the last character to the first, so that it nests to the right without
 * copies. */
enum status lark_string(struct lark_lex *lex, struct exprs *x, struct lark_word w, uint32_t *e)
{
    uint32_t *chars = xcalloc(w.n + 1, sizeof *chars);
    size_t n;
    bool ignore_case;
    enum status st = parse_string(lex, w, chars, &n, &ignore_case);
    *e = EXPR_EMPTY;
    while (st == OK && n > 0) {
        struct charset one = {0};
        charset_add(&one, chars[n - 1], chars[n - 1]);
        if (ignore_case) {
            charset_add_cases(&one);
        }
        *e = expr_seq(x, charset_expr(x, &one), *e);
        charset_deinit(&one);
        n--;
    }
    free(chars);
    return st;
}

/* "a".."z" */
enum status lark_range(struct lark_lex *lex, struct exprs *x, struct lark_word from,
                       struct lark_word to, uint32_t *e)
{
    uint32_t lo[32], hi[32];
    size_t n = 0, m = 0;
    bool ignore_case;
    if (to.kind != LARK_STRING || from.n > 14 || to.n > 14) {
        return lark_fail(lex, "a range must be between two strings of one character");
    }
    TRY(parse_string(lex, from, lo, &n, &ignore_case));
    TRY(parse_string(lex, to, hi, &m, &ignore_case));
    if (n != 1 || m != 1 || lo[0] > hi[0]) {
        return lark_fail(
            lex, "a range is between two strings of one character, the first not above the second");
    }
    struct charset set = {0};
    charset_add(&set, lo[0], hi[0]);
    *e = charset_expr(x, &set);
    charset_deinit(&set);
    return OK;
}

/* Of the flags that change which texts match, only the supported ones are allowed: i, s and u. */
enum status lark_regex(struct lark_lex *lex, struct exprs *x, struct regex_limits limits,
                       struct lark_word w, uint32_t *e)
{
    unsigned flags = REGEX_UNICODE;
    struct err why = {{0}};
    for (size_t i = w.n - w.n_flags; i < w.n; i++) {
        if (w.s[i] != 'i' && w.s[i] != 's' && w.s[i] != 'u') {
            return lark_fail(lex, "the only flags of a regular expression are i, s and u");
        }
        flags |= w.s[i] == 'i' ? REGEX_IGNORE_CASE : 0u;
        flags |= w.s[i] == 's' ? REGEX_DOT_ALL : 0u;
    }
    size_t n = w.n - w.n_flags - 2;
    enum status st = regex_language(x, w.s + 1, n, flags, limits, e, &why);
    if (st != OK) {
        lark_fail(lex, "%s", why.text);
    }
    return st;
}
