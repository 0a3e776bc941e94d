// SPDX-License-Identifier: Apache-2.0
/* Source to tokens by Jinja2's rules: trim_blocks, lstrip_blocks, the minus signs of tags, balanced
 * brackets. */
#include "engine/base/utf8.h"
#include "server/chat/jinja/ast.h"
#include "server/chat/jinja/unicode.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Tokens point into the normalised source. `open` is the stack of open brackets: while it is not
 * empty, }} does not end a tag. */
struct lexer {
    struct jrt *rt;
    const char *s;
    size_t n_bytes, at;
    int line;
    bool line_starting; // the last tag ended with a newline, or there was no tag yet
    struct jtoken *tokens;
    size_t n_tokens, cap;
    char open[JINJA_MAX_NEST]; // the open brackets
    int n_open;
};

/* Records an error. Only the first is kept: later ones are consequences. */
bool jinja_syntax(struct jrt *rt, int line, const char *fmt, ...)
{
    if (rt->st != OK) {
        return false;
    }
    rt->st = ERR_FORMAT;
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    err_set(&rt->err, ERR_FORMAT, "line %d: %s", line, text);
    return false;
}

static bool add(struct lexer *lx, enum jtoken_kind kind, int op, const char *s, size_t n_bytes)
{
    if (lx->n_tokens == lx->cap) {
        size_t cap = lx->cap ? lx->cap * 2 : 256;
        struct jtoken *wider = jrt_alloc(lx->rt, cap, sizeof *wider);
        if (!wider) {
            return false;
        }
        if (lx->n_tokens > 0) {
            memcpy(wider, lx->tokens, lx->n_tokens * sizeof *wider);
        }
        lx->tokens = wider;
        lx->cap = cap;
    }
    lx->tokens[lx->n_tokens++] =
        (struct jtoken){.kind = kind, .line = lx->line, .op = op, .s = s, .n_bytes = n_bytes};
    return true;
}

static char peek(const struct lexer *lx, size_t ahead)
{
    if (lx->at + ahead < lx->n_bytes) {
        return lx->s[lx->at + ahead];
    }
    return '\0';
}

static bool looking_at(const struct lexer *lx, size_t at, const char *word)
{
    size_t n = strlen(word);
    return lx->n_bytes - at >= n && memcmp(lx->s + at, word, n) == 0;
}

/* Length of the white-space character at s, or 0. */
static size_t space_length(const char *s, size_t n_bytes)
{
    if (n_bytes == 0) {
        return 0;
    }
    if ((unsigned char)s[0] < 0x80) {
        return uni_is_space((unsigned char)s[0]);
    }
    uint32_t cp;
    size_t n = utf8_decode(s, n_bytes, &cp);
    return uni_is_space(cp) ? n : 0;
}

static size_t skip_spaces(const struct lexer *lx, size_t at)
{
    size_t n;
    while ((n = space_length(lx->s + at, lx->n_bytes - at)) > 0) {
        at += n;
    }
    return at;
}

/* The length of the text without trailing white space. */
static size_t rstrip(const char *s, size_t n_bytes)
{
    size_t end = 0;
    for (size_t i = 0; i < n_bytes;) {
        size_t space = space_length(s + i, n_bytes - i);
        if (space > 0) {
            i += space;
        } else {
            size_t n = utf8_valid_length(s + i, n_bytes - i);
            i += n;
            end = i;
        }
    }
    return end;
}

static void advance(struct lexer *lx, size_t to)
{
    for (; lx->at < to; lx->at++) {
        lx->line += lx->s[lx->at] == '\n';
    }
}

/* Adds the text before a tag whose sign is '-', '+' or another character. `lstrip`: the tag is not
 * a variable, so spaces between the start of the line and the tag are removed. */
static bool add_data(struct lexer *lx, size_t from, size_t to, char sign, bool lstrip)
{
    const char *s = lx->s + from;
    size_t n = to - from;
    if (sign == '-') {
        n = rstrip(s, n);
    } else if (sign != '+' && lstrip) {
        size_t line = n;
        while (line > 0 && s[line - 1] != '\n') {
            line--;
        }
        if ((line > 0 || lx->line_starting) && rstrip(s + line, n - line) == 0) {
            n = line;
        }
    }
    return n == 0 || add(lx, T_DATA, 0, s, n);
}

/* Tries to end a tag at `at`: "+%}", "-%}" with the white space after it, or "%}" with one newline.
 * Variables ("}}") have no "+" and keep the newline. Returns the end, or 0. */
static size_t tag_end(const struct lexer *lx, size_t at, const char *close, bool variable)
{
    if (looking_at(lx, at, close)) {
        size_t end = at + 2;
        return end + (!variable && end < lx->n_bytes && lx->s[end] == '\n');
    }
    if (at < lx->n_bytes && lx->s[at] == '-' && looking_at(lx, at + 1, close)) {
        return skip_spaces(lx, at + 3);
    }
    if (!variable && at < lx->n_bytes && lx->s[at] == '+' && looking_at(lx, at + 1, close)) {
        return at + 3;
    }
    return 0;
}

static bool finish_tag(struct lexer *lx, size_t end)
{
    lx->line_starting = lx->s[end - 1] == '\n';
    advance(lx, end);
    return true;
}

/* Comments do not nest, and tags inside of them mean nothing. */
static bool lex_comment(struct lexer *lx, size_t body)
{
    for (size_t i = body; i < lx->n_bytes; i++) {
        size_t end = tag_end(lx, i, "#}", false);
        if (end > 0) {
            return finish_tag(lx, end);
        }
    }
    return jinja_syntax(lx->rt, lx->line, "Missing end of comment tag");
}

/* The end of a tag that only consists of a sign and this word, or 0 if there is another tag. */
static size_t word_tag(const struct lexer *lx, size_t at, const char *word, char *sign)
{
    if (!looking_at(lx, at, "{%")) {
        return 0;
    }
    at += 2;
    *sign = at < lx->n_bytes ? lx->s[at] : '\0';
    at += *sign == '-' || *sign == '+';
    at = skip_spaces(lx, at);
    if (!looking_at(lx, at, word)) {
        return 0;
    }
    return skip_spaces(lx, at + strlen(word));
}

/* The end of a tag {% raw %} at `at`, or 0. The newline after it is kept. */
static size_t raw_begin(const struct lexer *lx, size_t at, char *sign)
{
    size_t close = word_tag(lx, at, "raw", sign);
    if (close == 0) {
        return 0;
    }
    if (looking_at(lx, close, "%}")) {
        return close + 2;
    }
    if (looking_at(lx, close, "-%}")) {
        return skip_spaces(lx, close + 3);
    }
    return 0;
}

/* Everything up to endraw is data. White space is trimmed at both ends as at other tags. */
static bool lex_raw(struct lexer *lx, size_t body)
{
    lx->line_starting = lx->s[body - 1] == '\n';
    advance(lx, body);
    for (size_t i = body; i < lx->n_bytes; i++) {
        char sign;
        size_t close = lx->s[i] == '{' ? word_tag(lx, i, "endraw", &sign) : 0;
        size_t end = close > 0 ? tag_end(lx, close, "%}", false) : 0;
        if (end > 0) {
            return add_data(lx, body, i, sign, true) && finish_tag(lx, end);
        }
    }
    return jinja_syntax(lx->rt, lx->line, "Missing end of raw directive");
}

/* Names are Python's identifiers, so any letter of Unicode may be in one. */
static bool is_word(const struct lexer *lx, size_t at, size_t *n)
{
    if (at >= lx->n_bytes) {
        return false;
    }
    unsigned char c = (unsigned char)lx->s[at];
    *n = 1;
    if (c < 0x80) {
        return isalnum(c) || c == '_';
    }
    uint32_t cp;
    *n = utf8_decode(lx->s + at, lx->n_bytes - at, &cp);
    return uni_class(cp) & UNI_ID_CONTINUE;
}

static bool lex_name(struct lexer *lx)
{
    size_t end = lx->at, n;
    while (is_word(lx, end, &n)) {
        end += n;
    }
    if (end == lx->at) {
        return jinja_syntax(lx->rt, lx->line, "unexpected char '%c'", lx->s[lx->at]);
    }
    add(lx, T_NAME, 0, lx->s + lx->at, end - lx->at);
    lx->at = end;
    return lx->rt->st == OK;
}

/* Escapes are decoded by the parser. Here the character after a backslash is only skipped, so that
 * it does not end the string. */
static bool lex_string(struct lexer *lx)
{
    char quote = lx->s[lx->at];
    for (size_t i = lx->at + 1; i < lx->n_bytes; i++) {
        if (lx->s[i] == '\\') {
            i++;
        } else if (lx->s[i] == quote) {
            add(lx, T_STRING, 0, lx->s + lx->at, i + 1 - lx->at);
            advance(lx, i + 1);
            return lx->rt->st == OK;
        }
    }
    return jinja_syntax(lx->rt, lx->line, "unexpected char '%c'", quote);
}

/* The end of a run of digits, which may have single underscores between them. */
static size_t digits(const struct lexer *lx, size_t at, const char *set, bool underscore_first)
{
    while (at < lx->n_bytes) {
        bool under = lx->s[at] == '_' && underscore_first && at + 1 < lx->n_bytes;
        char c = under ? lx->s[at + 1] : lx->s[at];
        if (!c || !strchr(set, tolower((unsigned char)c))) {
            break;
        }
        at += 1 + under;
        underscore_first = true;
    }
    return at;
}

static size_t exponent_end(const struct lexer *lx, size_t at)
{
    if (at >= lx->n_bytes || tolower((unsigned char)lx->s[at]) != 'e') {
        return 0;
    }
    at++;
    at += at < lx->n_bytes && (lx->s[at] == '+' || lx->s[at] == '-');
    size_t end = digits(lx, at, "0123456789", false);
    return end > at ? end : 0;
}

/* A float needs a fraction or an exponent, and no dot before it (a.0.1 are two indices). */
static size_t float_end(const struct lexer *lx)
{
    if (lx->at > 0 && lx->s[lx->at - 1] == '.') {
        return 0;
    }
    size_t whole = digits(lx, lx->at, "0123456789", false), end = 0;
    if (whole < lx->n_bytes && lx->s[whole] == '.') {
        size_t part = digits(lx, whole + 1, "0123456789", false);
        if (part > whole + 1) {
            end = exponent_end(lx, part);
            return end > 0 ? end : part;
        }
    }
    return exponent_end(lx, whole);
}

/* The digits after "0x", "0o" and "0b"; NULL for other letters. */
static const char *digits_of_base(char letter)
{
    switch (letter) {
    case 'x': return "0123456789abcdef";
    case 'o': return "01234567";
    case 'b': return "01";
    default: return NULL;
    }
}

/* Digits may be grouped by underscores. As in Python, a number that begins with a zero must have
 * only zeros. */
static size_t int_end(const struct lexer *lx)
{
    size_t at = lx->at;
    if (lx->s[at] != '0') {
        return digits(lx, at, "0123456789", false);
    }
    const char *set = digits_of_base((char)tolower((unsigned char)peek(lx, 1)));
    if (set) {
        size_t end = digits(lx, at + 2, set, true);
        if (end > at + 2) {
            return end;
        }
    }
    return digits(lx, at, "0", false);
}

static bool lex_number(struct lexer *lx)
{
    size_t end = float_end(lx);
    enum jtoken_kind kind = end > 0 ? T_FLOAT : T_INT;
    if (end <= 0) {
        end = int_end(lx);
    }
    add(lx, kind, 0, lx->s + lx->at, end - lx->at);
    lx->at = end;
    return lx->rt->st == OK;
}

/* Checks that brackets match and limits their depth. */
static bool balance(struct lexer *lx, char c)
{
    if (c == '(' || c == '[' || c == '{') {
        if (lx->n_open == JINJA_MAX_NEST) {
            return jinja_syntax(lx->rt, lx->line, "brackets are nested too deeply");
        }
        lx->open[lx->n_open++] = c;
        return true;
    }
    if (c != ')' && c != ']' && c != '}') {
        return true;
    }
    char want = c == ']' ? '[' : '{';
    if (c == ')') {
        want = '(';
    }
    if (lx->n_open == 0 || lx->open[lx->n_open - 1] != want) {
        return jinja_syntax(lx->rt, lx->line, "unexpected '%c'", c);
    }
    lx->n_open--;
    return true;
}

/* Tries operators of two characters first. The code of an operator consists of its characters. */
static bool lex_operator(struct lexer *lx)
{
    static const char *const twos[] = {"//", "**", "==", "!=", ">=", "<="};
    for (size_t i = 0; i < sizeof twos / sizeof twos[0]; i++) {
        if (looking_at(lx, lx->at, twos[i])) {
            add(lx, T_OP, JOPCODE(twos[i][0], twos[i][1]), lx->s + lx->at, 2);
            lx->at += 2;
            return lx->rt->st == OK;
        }
    }
    char c = lx->s[lx->at];
    if (c && strchr("+-/*%~[](){}><=.:|,;", c)) {
        if (!balance(lx, c)) {
            return false;
        }
        add(lx, T_OP, c, lx->s + lx->at, 1);
        lx->at++;
        return lx->rt->st == OK;
    }
    return lex_name(lx); // reports the invalid character
}

/* The token that begins with `c`. */
static bool lex_token(struct lexer *lx, char c)
{
    if (isdigit((unsigned char)c)) {
        return lex_number(lx);
    }
    if (c == '\'' || c == '"') {
        return lex_string(lx);
    }
    if (isalpha((unsigned char)c) || c == '_' || (c & 0x80)) {
        return lex_name(lx);
    }
    return lex_operator(lx);
}

/* Lexes the inside of a tag up to and including its end (or the end of the source, which the parser
 * reports). */
static bool lex_tag(struct lexer *lx, bool variable)
{
    const char *close = variable ? "}}" : "%}";
    lx->n_open = 0;
    while (lx->at < lx->n_bytes) {
        size_t end = lx->n_open == 0 ? tag_end(lx, lx->at, close, variable) : 0;
        if (end > 0) {
            return add(lx, variable ? T_VAR_END : T_BLOCK_END, 0, lx->s + lx->at, 2) &&
                   finish_tag(lx, end);
        }
        char c = lx->s[lx->at];
        size_t space = space_length(lx->s + lx->at, lx->n_bytes - lx->at);
        if (space > 0) {
            advance(lx, lx->at + space);
            continue;
        }
        if (!lex_token(lx, c)) {
            return false;
        }
    }
    return true;
}

/* Lexes one stretch of text and the tag after it. */
static bool lex_step(struct lexer *lx)
{
    size_t from = lx->at, m = from;
    while (
        m + 1 < lx->n_bytes &&
        !(lx->s[m] == '{' && (lx->s[m + 1] == '{' || lx->s[m + 1] == '%' || lx->s[m + 1] == '#'))) {
        m++;
    }
    if (m + 1 >= lx->n_bytes) {
        bool ok = add(lx, T_DATA, 0, lx->s + from, lx->n_bytes - from);
        advance(lx, lx->n_bytes);
        return ok;
    }
    char kind = lx->s[m + 1], sign = '\0';
    size_t raw = kind == '%' ? raw_begin(lx, m, &sign) : 0;
    if (raw == 0) {
        sign = m + 2 < lx->n_bytes ? lx->s[m + 2] : '\0';
    }
    if (!add_data(lx, from, m, sign, kind != '{')) {
        return false;
    }
    advance(lx, m);
    if (raw > 0) {
        return lex_raw(lx, raw);
    }
    size_t body = m + 2 + (sign == '-' || sign == '+');
    if (kind == '#') {
        return lex_comment(lx, body);
    }
    if (!add(lx, kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN, 0, lx->s + m, 2)) {
        return false;
    }
    lx->at = body;
    lx->line_starting = false;
    return lex_tag(lx, kind == '{');
}

/* Line ends become \n, and the last one is dropped, as with Jinja2's keep_trailing_newline off. */
static size_t normalize(const char *s, size_t n_bytes, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        if (s[i] == '\r') {
            out[n++] = '\n';
            i += i + 1 < n_bytes && s[i + 1] == '\n';
        } else {
            out[n++] = s[i];
        }
    }
    if (n > 0 && out[n - 1] == '\n') {
        return n - 1;
    }
    return n;
}

/* The list ends with T_EOF, so the parser may always look one token ahead. */
bool jinja_lex(struct jrt *rt, const char *source, size_t n_bytes, struct jtoken **tokens,
               size_t *n_tokens)
{
    char *text = jrt_alloc(rt, n_bytes + 1, 1);
    if (!text) {
        return false;
    }
    size_t bad = utf8_check(source, n_bytes);
    if (bad < n_bytes) {
        return jinja_syntax(rt, 1, "not UTF-8 at byte %zu", bad);
    }
    struct lexer lx = {.rt = rt,
                       .s = text,
                       .n_bytes = normalize(source, n_bytes, text),
                       .line = 1,
                       .line_starting = true};
    while (lx.at < lx.n_bytes) {
        if (!lex_step(&lx)) {
            return false;
        }
    }
    if (!add(&lx, T_EOF, 0, "", 0)) {
        return false;
    }
    *tokens = lx.tokens;
    *n_tokens = lx.n_tokens;
    return true;
}
