// SPDX-License-Identifier: Apache-2.0
/* Character classes and escapes of regular expressions. */
#include "engine/grammar/regex_class.h"

#include "engine/base/minmax.h"
#include "engine/base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Errors contain the position of the parser in bytes. */
enum status regex_wrong(const struct regex_source *in, struct err *err, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return err_set(err, ERR_INVALID, "%s (at byte %zu of the regular expression)", text, in->at);
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 32);
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return -1;
}

/* Reads between min and max hexadecimal digits. */
static enum status parse_hex(struct regex_source *in, int min, int max, uint32_t *v,
                             struct err *err)
{
    int n = 0;
    *v = 0;
    while (n < max && in->at < in->n && hex_value(in->s[in->at]) >= 0) {
        *v = *v * 16 + (uint32_t)hex_value(in->s[in->at++]);
        n++;
    }
    if (n < min) {
        return regex_wrong(in, err, "an escape lacks hexadecimal digits");
    }
    return OK;
}

/* Called after \x, \u or \U: reads digits, or digits in braces. */
static enum status parse_code(struct regex_source *in, int digits, uint32_t *v, struct err *err)
{
    if (in->at < in->n && in->s[in->at] == '{') {
        in->at++;
        TRY(parse_hex(in, 1, 8, v, err));
        if (in->at >= in->n || in->s[in->at] != '}') {
            return regex_wrong(in, err, "an escape has no closing brace");
        }
        in->at++;
    } else {
        TRY(parse_hex(in, digits, digits, v, err));
    }
    bool high = *v >= 0xd800 && *v <= 0xdbff;
    if (high && in->n - in->at >= 6 && in->s[in->at] == '\\' && in->s[in->at + 1] == 'u') {
        uint32_t low;
        in->at += 2;
        TRY(parse_hex(in, 4, 4, &low, err));
        if (low >= 0xdc00 && low <= 0xdfff) {
            *v = 0x10000 + ((*v - 0xd800) << 10) + (low - 0xdc00);
        }
    }
    bool surrogate = *v >= 0xd800 && *v <= 0xdfff;
    if (*v > 0x10ffff || surrogate) {
        return regex_wrong(in, err, "an escape is not a valid character");
    }
    return OK;
}

/* Reads \pL, \p{L}, \p{^L} and \p{gc=L}. The category may be given by its short or its long
 * name. */
static enum status parse_category(struct regex_source *in, bool invert, struct charset *out,
                                  struct err *err)
{
    size_t from = in->at + 1, end = from;
    if (in->at < in->n && in->s[in->at] != '{') { // \pL
        from = in->at;
        end = from + 1;
        in->at = end;
    } else {
        while (end < in->n && in->s[end] != '}') {
            end++;
        }
        if (end >= in->n) {
            return regex_wrong(in, err, "unterminated Unicode class");
        }
        in->at = end + 1;
    }
    if (end > from && in->s[from] == '^') {
        invert = !invert;
        from++;
    }
    static const char *const prefixes[] = {"General_Category=", "gc="};
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(prefixes[i]);
        if (end - from > n && memcmp(in->s + from, prefixes[i], n) == 0) {
            from += n;
        }
    }
    struct charset of = {0};
    if (!charset_add_category(&of, in->s + from, end - from)) {
        regex_wrong(in, err, "unknown Unicode class \"%.*s\"", (int)lesser(end - from, 60),
                    in->s + from);
        return ERR_UNSUPPORTED;
    }
    if (in->ignore_case) {
        charset_add_cases(&of);
    }
    if (invert) {
        charset_invert(&of);
    }
    charset_add_all(out, &of);
    charset_deinit(&of);
    return OK;
}

/* Called after a backslash. *one: the character; UINT32_MAX if it is a set, which is then in
 * `out`. */
static enum status parse_escape(struct regex_source *in, bool in_class, uint32_t *one,
                                struct charset *out, struct err *err)
{
    static const struct {
        char letter;
        uint8_t c;
    } control[] = {{'t', 9},  {'n', 10}, {'v', 11}, {'f', 12},
                   {'r', 13}, {'a', 7},  {'e', 27}, {'0', 0}};
    *one = UINT32_MAX;
    if (in->at >= in->n) {
        return regex_wrong(in, err, "a backslash is the last character");
    }
    char c = in->s[in->at++];
    if (charset_add_escape(out, c, in->unicode)) {
        return OK;
    }
    if (c == '0' && in->at < in->n && in->s[in->at] >= '0' && in->s[in->at] <= '9') {
        regex_wrong(in, err, "an octal escape is not supported (use \\x)");
        return ERR_UNSUPPORTED;
    }
    for (size_t i = 0; i < sizeof control / sizeof *control; i++) {
        if (control[i].letter == c) {
            *one = control[i].c;
            return OK;
        }
    }
    switch (c) {
    case 'b':
        if (in_class) {
            *one = 8;
            return OK;
        }
        regex_wrong(in, err, "the word boundary \\b is not supported");
        return ERR_UNSUPPORTED;
    case 'B': regex_wrong(in, err, "\\B is not supported"); return ERR_UNSUPPORTED;
    case 'p':
    case 'P': return parse_category(in, c == 'P', out, err);
    case 'x': return parse_code(in, 2, one, err);
    case 'u': return parse_code(in, 4, one, err);
    case 'U': return parse_code(in, 8, one, err);
    case 'c':
        if (in->at < in->n && ((in->s[in->at] | 32) >= 'a' && (in->s[in->at] | 32) <= 'z')) {
            *one = (uint32_t)in->s[in->at++] & 31;
            return OK;
        }
        return regex_wrong(in, err, "\\c needs a letter");
    default: break;
    }
    if (c >= '1' && c <= '9') {
        regex_wrong(in, err, "a backreference is not supported");
        return ERR_UNSUPPORTED;
    }
    bool letter = (c | 32) >= 'a' && (c | 32) <= 'z';
    if (letter) {
        regex_wrong(in, err, "the escape \\%c is not supported", c);
        return ERR_UNSUPPORTED;
    }
    in->at--;
    in->at += utf8_decode(in->s + in->at, in->n - in->at, one);
    return OK;
}

/* Reads "[:alpha:]" within a class. */
static enum status parse_posix(struct regex_source *in, struct charset *out, bool *found,
                               struct err *err)
{
    static const struct {
        const char *name, *ranges; // ranges: pairs of first and last character
    } known[] = {
        {"alpha", "azAZ"},
        {"digit", "09"},
        {"alnum", "azAZ09"},
        {"upper", "AZ"},
        {"lower", "az"},
        {"xdigit", "09afAF"},
        {"space", "\t\r  "},
        {"blank", "\t\t  "},
        {"word", "azAZ09__"},
        {"punct", "!/:@[`{~"},
        {"print", " ~"},
        {"graph", "!~"},
        {"cntrl", "\x01\x1f\x7f\x7f"},
    };
    *found = false;
    const char *s = in->s + in->at;
    size_t left = in->n - in->at;
    const char *end = NULL;
    if (left > 2 && s[0] == '[' && s[1] == ':') {
        end = memmem(s + 2, left - 2, ":]", 2);
    }
    if (!end) {
        return OK;
    }
    *found = true;
    bool invert = s[2] == '^';
    const char *name = s + 2 + invert;
    struct charset of = {0};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].name) == (size_t)(end - name) &&
            memcmp(known[i].name, name, (size_t)(end - name)) == 0) {
            for (const char *r = known[i].ranges; *r; r += 2) {
                charset_add(&of, (uint8_t)r[0], (uint8_t)r[1]);
            }
        }
    }
    if (of.n == 0) {
        regex_wrong(in, err, "unknown class [:...:]");
        return ERR_UNSUPPORTED;
    }
    if (invert) {
        charset_invert(&of);
    }
    charset_add_all(out, &of);
    charset_deinit(&of);
    in->at += (size_t)(end + 2 - s);
    return OK;
}

/* Reads one end of a range, or a set. */
static enum status parse_member(struct regex_source *in, uint32_t *one, struct charset *out,
                                struct err *err)
{
    bool posix;
    *one = UINT32_MAX;
    TRY(parse_posix(in, out, &posix, err));
    if (posix) {
        return OK;
    }
    if (in->s[in->at] == '\\') {
        in->at++;
        return parse_escape(in, true, one, out, err);
    }
    in->at += utf8_decode(in->s + in->at, in->n - in->at, one);
    return OK;
}

/* Whether a "]" at the start of a class is a member of the class. It is a member if a later "]" can
 * end the class. Otherwise "[]" matches nothing and "[^]" everything, as in ECMA-262. */
static bool starts_with_bracket(const struct regex_source *in)
{
    size_t at = in->at + 1;
    if (in->at >= in->n || in->s[in->at] != ']') {
        return false;
    }
    while (at < in->n && in->s[at] != ']') {
        at += in->s[at] == '\\' ? 2 : 1;
    }
    return at < in->n;
}

/* Reads the members of a class up to "]". Other cases are added before the inversion, so that [^a]
 * without case excludes "A" as well. */
static enum status parse_class(struct regex_source *in, struct charset *out, struct err *err)
{
    size_t from = in->at;
    bool invert = in->at < in->n && in->s[in->at] == '^';
    in->at += invert;
    bool bracket = starts_with_bracket(in);
    while (in->at < in->n && (bracket || in->s[in->at] != ']')) {
        bracket = false;
        uint32_t lo, hi;
        TRY(parse_member(in, &lo, out, err));
        bool range = in->at + 1 < in->n && in->s[in->at] == '-' && in->s[in->at + 1] != ']';
        if (!range || lo == UINT32_MAX) {
            if (lo != UINT32_MAX) {
                charset_add(out, lo, lo);
            }
            continue;
        }
        in->at++;
        TRY(parse_member(in, &hi, out, err));
        if (hi == UINT32_MAX) { // in "a-\d" the dash is a character
            charset_add(out, lo, lo);
            charset_add(out, '-', '-');
            continue;
        }
        if (lo > hi) {
            return regex_wrong(in, err, "a range in a class runs backwards");
        }
        charset_add(out, lo, hi);
    }
    if (in->at >= in->n) {
        in->at = from;
        return regex_wrong(in, err, "unterminated class");
    }
    in->at++;
    if (in->ignore_case) {
        charset_add_cases(out);
    }
    if (invert) {
        charset_invert(out);
    }
    return OK;
}

/* Reads one character, an escape, a class in brackets, or '.'. */
enum status regex_parse_set(struct regex_source *in, bool dot_all, struct charset *out,
                            struct err *err)
{
    char c = in->s[in->at];
    uint32_t one = UINT32_MAX;
    if (c == '[') {
        in->at++;
        return parse_class(in, out, err);
    }
    if (c == '.') {
        in->at++;
        if (!dot_all) {
            charset_add(out, '\n', '\n');
        }
        charset_invert(out);
        return OK;
    }
    if (c == '\\') {
        in->at++;
        TRY(parse_escape(in, false, &one, out, err));
    } else {
        in->at += utf8_decode(in->s + in->at, in->n - in->at, &one);
    }
    if (one != UINT32_MAX) {
        charset_add(out, one, one);
    }
    if (one != UINT32_MAX && in->ignore_case) {
        charset_add_cases(out);
    }
    return OK;
}
