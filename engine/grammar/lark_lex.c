// SPDX-License-Identifier: Apache-2.0
/* Splits a Lark grammar into words. The end of a line ends a rule, unless brackets are open or the
 * next line begins with '|'. */
#include "engine/grammar/lark_lex.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The message contains the line number of the current word. */
enum status lark_fail(const struct lark_lex *l, const char *fmt, ...)
{
    char text[256];
    int line = 1;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const char *end = l->word.s ? l->word.s : l->s;
    for (const char *p = l->s; p < end; p++) {
        line += *p == '\n';
    }
    return err_set(l->err, ERR_INVALID, "line %d of the grammar: %s", line, text);
}

static char at(const struct lark_lex *l, size_t ahead)
{
    return l->at + ahead < l->n ? l->s[l->at + ahead] : '\0';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}

/* Skips blanks and comments. Returns whether a line has ended. */
static bool skip(struct lark_lex *l)
{
    bool line = false;
    for (; l->at < l->n; l->at++) {
        char c = at(l, 0);
        if (c == '#' || (c == '/' && at(l, 1) == '/')) {
            while (l->at < l->n && at(l, 0) != '\n') {
                l->at++;
            }
        }
        if (at(l, 0) == '\n') {
            line = true;
        } else if (l->at >= l->n || (at(l, 0) != ' ' && at(l, 0) != '\t' && at(l, 0) != '\r')) {
            break;
        }
    }
    return line;
}

/* Reads a string or a regular expression, with the flags after it. A "/" inside a class of a
 * regular expression does not end it. */
static enum status quoted(struct lark_lex *l, char quote)
{
    size_t from = l->at++;
    bool in_class = false;
    while (l->at < l->n && (at(l, 0) != quote || in_class) && at(l, 0) != '\n') {
        l->at += at(l, 0) == '\\' ? 2 : 1;
    }
    if (l->at >= l->n || at(l, 0) != quote) {
        return lark_fail(l, "unterminated %s", quote == '/' ? "regular expression" : "string");
    }
    l->at++;
    size_t flags = l->at;
    while (is_lower(at(l, 0))) {
        l->at++;
    }
    l->word = (struct lark_word){quote == '/' ? LARK_REGEX : LARK_STRING, l->s + from, l->at - from,
                                 l->at - flags};
    return OK;
}

/* A name in upper case is a terminal, any other a rule. */
static void name(struct lark_lex *l)
{
    size_t from = l->at;
    bool upper = false;
    while (at(l, 0) == '_' || is_digit(at(l, 0)) || is_lower(at(l, 0)) || is_upper(at(l, 0))) {
        upper |= is_upper(at(l, 0));
        l->at++;
    }
    l->word = (struct lark_word){upper ? LARK_TERMINAL : LARK_RULE, l->s + from, l->at - from, 0};
}

static void number(struct lark_lex *l)
{
    size_t from = l->at;
    while (is_digit(at(l, 0)) || is_lower((char)(at(l, 0) | 32))) {
        l->at++;
    }
    l->word = (struct lark_word){LARK_NUMBER, l->s + from, l->at - from, 0};
}

static void mark(struct lark_lex *l)
{
    static const char *const longer[] = {"::", "..", "->"};
    size_t n = 1;
    char c = at(l, 0);
    for (size_t i = 0; i < 3; i++) {
        if (l->n - l->at >= 2 && memcmp(l->s + l->at, longer[i], 2) == 0) {
            n = 2;
        }
    }
    l->open += c == '(' || c == '[' || c == '{';
    l->open -= (c == ')' || c == ']' || c == '}') && l->open > 0;
    l->word = (struct lark_word){LARK_MARK, l->s + l->at, n, 0};
    l->at += n;
}

/* Reads the next word; LARK_LINE for a line end that matters. */
enum status lark_next(struct lark_lex *l)
{
    bool line = skip(l);
    l->word = (struct lark_word){LARK_END, l->s + l->at, 0, 0};
    if (l->at >= l->n) {
        return OK;
    }
    char c = at(l, 0);
    bool goes_on = c == '|' && at(l, 1) != '|';
    if (line && l->open == 0 && !goes_on) {
        l->word = (struct lark_word){LARK_LINE, l->s + l->at, 0, 0};
        return OK; // the next call will not see this line end
    }
    if (c == '"' || c == '/') {
        return quoted(l, c);
    }
    if (is_digit(c)) {
        number(l);
    } else if (c == '_' || is_lower(c) || is_upper(c)) {
        name(l);
    } else if (c == '%' && is_lower(at(l, 1))) {
        l->at++;
        name(l);
        l->word.kind = LARK_DIRECTIVE;
        l->word.s--;
        l->word.n++;
    } else {
        mark(l);
    }
    return OK;
}
