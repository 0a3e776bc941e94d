// SPDX-License-Identifier: Apache-2.0
/* GBNF as in llama.cpp: rules over characters, with classes, groups and repetition. The text must
 * match the rule `root`. A rule ends where the name of the next rule and "::=" follow. */
#include "engine/grammar/parsers.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/utf8.h"
#include "engine/grammar/charset.h"
#include "engine/grammar/names.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gbnf {
    struct compile *c;
    struct exprs *x;
    const char *s;
    size_t n, at;
    int depth;
    struct names names;
    uint32_t first; // rule of the first name; the others follow in the order of their numbers
    bool *defined;
    uint32_t cap_defined;
};

static enum status fail(struct gbnf *g, const char *fmt, ...) PRINTF_LIKE(2, 3);
static enum status fail(struct gbnf *g, const char *fmt, ...)
{
    char text[256];
    int line = 1;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    for (size_t i = 0; i < g->at; i++) {
        line += g->s[i] == '\n';
    }
    return err_set(g->c->err, ERR_INVALID, "line %d of the grammar: %s", line, text);
}

/* ---- tokens ---- */

static void skip_space(struct gbnf *g)
{
    for (; g->at < g->n; g->at++) {
        char c = g->s[g->at];
        if (c == '#') {
            while (g->at < g->n && g->s[g->at] != '\n') {
                g->at++;
            }
        }
        if (g->at >= g->n || !strchr(" \t\r\n", g->s[g->at]) || g->s[g->at] == 0) {
            return;
        }
    }
}

static char peek(const struct gbnf *g)
{
    return g->at < g->n ? g->s[g->at] : '\0';
}

static bool take(struct gbnf *g, const char *word)
{
    size_t n = strlen(word);
    bool is = g->n - g->at >= n && memcmp(g->s + g->at, word, n) == 0;
    if (is) {
        g->at += n;
    }
    return is;
}

static size_t name_length(const struct gbnf *g)
{
    size_t n = 0;
    while (g->at + n < g->n) {
        char c = g->s[g->at + n], lower = (char)(c | 32);
        if (!(lower >= 'a' && lower <= 'z') && !(c >= '0' && c <= '9') && c != '-' && c != '_') {
            break;
        }
        n++;
    }
    return n;
}

/* The number of the name at this position. A new name gets a rule. */
static uint32_t take_name(struct gbnf *g, size_t n)
{
    uint32_t id = names_get(&g->names, g->s + g->at, n);
    while (g->c->rules->n <= g->first + id) {
        rules_add(g->c->rules);
    }
    if (id >= g->cap_defined) {
        g->defined = xrealloc(g->defined, (size_t)(id + 1) * 2);
        memset(g->defined + g->cap_defined, 0, (size_t)(id + 1) * 2 - g->cap_defined);
        g->cap_defined = (id + 1) * 2;
    }
    g->at += n;
    return id;
}

/* Whether the next rule begins at this position: a name and "::=". */
static bool at_rule(struct gbnf *g)
{
    size_t from = g->at, n = name_length(g);
    g->at += n;
    skip_space(g);
    bool is = n > 0 && take(g, "::=");
    g->at = from;
    return is;
}

/* ---- characters ---- */

/* Surrogates and numbers above 0x10ffff are errors, because UTF-8 text cannot contain them. */
static enum status parse_hex(struct gbnf *g, int digits, uint32_t *v)
{
    *v = 0;
    for (int i = 0; i < digits; i++) {
        char c = peek(g), lower = (char)(c | 32);
        if (c >= '0' && c <= '9') {
            *v = *v * 16 + (uint32_t)(c - '0');
        } else if (lower >= 'a' && lower <= 'f') {
            *v = *v * 16 + (uint32_t)(lower - 'a' + 10);
        } else {
            return fail(g, "an escape needs %d hexadecimal digits", digits);
        }
        g->at++;
    }
    if (*v > 0x10ffff || (*v >= 0xd800 && *v <= 0xdfff)) {
        return fail(g, "an escape is not a valid character");
    }
    return OK;
}

/* One character of a literal or a class. Accepts llama.cpp's escapes, and a backslash before any
 * punctuation. An unknown escaped letter is an error; it does not stand for itself. */
static enum status parse_char(struct gbnf *g, uint32_t *v)
{
    static const char escapes[][2] = {{'t', '\t'}, {'r', '\r'}, {'n', '\n'},
                                      {'f', '\f'}, {'v', '\v'}, {'b', '\b'},
                                      {'a', '\a'}, {'0', 0},    {'e', 27}};
    if (peek(g) != '\\') {
        g->at += utf8_decode(g->s + g->at, g->n - g->at, v);
        return OK;
    }
    g->at++;
    char c = peek(g);
    if (g->at >= g->n) {
        return fail(g, "a backslash is the last character");
    }
    g->at++;
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        if (escapes[i][0] == c) {
            *v = (uint8_t)escapes[i][1];
            return OK;
        }
    }
    switch (c) {
    case 'x': return parse_hex(g, 2, v);
    case 'u': return parse_hex(g, 4, v);
    case 'U': return parse_hex(g, 8, v);
    default: break;
    }
    if ((uint8_t)c < 0x80 && !strchr("\\\"'[]^-/?.$*+(){}|", c)) {
        return fail(g, "unknown escape \\%c", c);
    }
    g->at--;
    g->at += utf8_decode(g->s + g->at, g->n - g->at, v);
    return OK;
}

/* If the end is missing, the error is reported at the opening quote. The buffer is large enough,
 * because no escape is shorter than the UTF-8 that it stands for. */
static enum status parse_literal(struct gbnf *g, uint32_t *e)
{
    size_t from = g->at++, n = 0;
    char *text = xmalloc(g->n - from + 1);
    enum status st = OK;
    while (st == OK && g->at < g->n && peek(g) != '"') {
        uint32_t c = 0;
        st = parse_char(g, &c);
        if (st == OK) {
            n += utf8_encode(c, text + n);
        }
    }
    if (st == OK && g->at >= g->n) {
        g->at = from;
        st = fail(g, "unterminated literal");
    }
    g->at += st == OK;
    *e = expr_literal(g->x, text, n);
    free(text);
    return st;
}

/* The members of a class, up to "]". A "-" directly before "]" is a member, not a range. */
static enum status parse_members(struct gbnf *g, struct charset *set)
{
    size_t from = g->at++;
    bool invert = take(g, "^");
    while (g->at < g->n && peek(g) != ']') {
        uint32_t lo = 0, hi = 0;
        TRY(parse_char(g, &lo));
        hi = lo;
        if (peek(g) == '-' && g->at + 1 < g->n && g->s[g->at + 1] != ']') {
            g->at++;
            TRY(parse_char(g, &hi));
        }
        if (lo > hi) {
            return fail(g, "a range in a class runs backwards");
        }
        charset_add(set, lo, hi);
    }
    if (g->at >= g->n) {
        g->at = from;
        return fail(g, "unterminated class");
    }
    g->at++;
    if (invert) {
        charset_invert(set);
    }
    return OK;
}

static enum status parse_class(struct gbnf *g, uint32_t *e)
{
    struct charset set = {0};
    enum status st = parse_members(g, &set);
    *e = st == OK ? charset_expr(g->x, &set) : (uint32_t)EXPR_NONE;
    charset_deinit(&set);
    return st;
}

/* ---- expressions ---- */

static enum status parse_alternatives(struct gbnf *g, uint32_t *e, bool *empty);

/* A name, literal, class, "." or group. Lookahead and token references are valid GBNF but cannot be
 * expressed here; the error names them. */
static enum status parse_atom(struct gbnf *g, uint32_t *e)
{
    size_t n = name_length(g);
    bool empty;
    if (n > 0) {
        *e = expr_call(g->x, g->first + take_name(g, n));
        return OK;
    }
    switch (peek(g)) {
    case '"': return parse_literal(g, e);
    case '[': return parse_class(g, e);
    case '.':
        g->at++;
        *e = g->x->any_char;
        return OK;
    case '(': break;
    case '<': return fail(g, "references to tokens (<...>) are not supported");
    default: return fail(g, "a rule cannot continue with '%c'", peek(g));
    }
    if (++g->depth > g->c->limits->max_depth) {
        fail(g, "groups nest deeper than %d", g->c->limits->max_depth);
        return ERR_LIMIT;
    }
    g->at++;
    skip_space(g);
    if (peek(g) == '=' || peek(g) == '!') {
        return fail(g, "lookahead is not supported");
    }
    TRY(parse_alternatives(g, e, &empty));
    if (!take(g, ")")) {
        return fail(g, "unterminated group");
    }
    g->depth--;
    return OK;
}

/* Counts saturate at UINT32_MAX, so that a long number cannot wrap to a small one. */
static enum status parse_count(struct gbnf *g, uint32_t *count)
{
    uint64_t v = 0;
    size_t from = g->at;
    for (; peek(g) >= '0' && peek(g) <= '9'; g->at++) {
        if (v < UINT32_MAX) {
            v = v * 10 + (uint64_t)(peek(g) - '0');
        }
    }
    if (g->at == from) {
        return fail(g, "a repetition's count is not a number");
    }
    if (v > g->c->limits->max_repeat) {
        fail(g, "a repetition's count is above %u", g->c->limits->max_repeat);
        return ERR_LIMIT;
    }
    *count = (uint32_t)v;
    skip_space(g);
    return OK;
}

/* "*", "+", "?", "{n}", "{n,}", "{,m}" or "{n,m}". */
static enum status parse_bounds(struct gbnf *g, uint32_t *lo, uint32_t *hi)
{
    *lo = peek(g) == '+';
    *hi = peek(g) == '?' ? 1 : EXPR_INF;
    if (!take(g, "{")) {
        g->at++;
        return OK;
    }
    skip_space(g);
    if (peek(g) != ',') {
        TRY(parse_count(g, lo));
        *hi = *lo;
    }
    if (take(g, ",")) {
        *hi = EXPR_INF;
        skip_space(g);
        if (peek(g) != '}') {
            TRY(parse_count(g, hi));
        }
    }
    if (!take(g, "}")) {
        return fail(g, "unterminated repetition");
    }
    if (*lo > *hi) {
        return fail(g, "a repetition's minimum is above its maximum");
    }
    return OK;
}

static bool at_repeat(const struct gbnf *g)
{
    char c = peek(g);
    return c == '*' || c == '+' || c == '?' || c == '{';
}

/* Parses up to the end of an alternative, group or rule. *empty: there was nothing to parse. */
static enum status parse_sequence(struct gbnf *g, uint32_t *e, bool *empty)
{
    uint32_t *part = NULL, n = 0, cap = 0;
    enum status st = OK;
    skip_space(g);
    while (st == OK && g->at < g->n && peek(g) != '|' && peek(g) != ')' && !at_rule(g)) {
        uint32_t one = EXPR_NONE, lo, hi;
        st = parse_atom(g, &one);
        skip_space(g);
        for (int i = 0; st == OK && at_repeat(g); i++) {
            if (i < g->c->limits->max_depth) {
                st = parse_bounds(g, &lo, &hi);
            } else {
                st = fail(g, "too many repetitions");
            }
            if (st == OK) {
                one = expr_rep(g->x, one, lo, hi);
            }
            skip_space(g);
        }
        GROW(part, n, cap);
        part[n++] = one;
        if (st == OK && g->x->failed) {
            st = ERR_LIMIT;
        }
    }
    *empty = n == 0;
    *e = EXPR_EMPTY;
    while (n > 0) {
        *e = expr_seq(g->x, part[--n], *e);
    }
    free(part);
    return st;
}

static enum status parse_alternatives(struct gbnf *g, uint32_t *e, bool *empty)
{
    uint32_t *branch = NULL, n = 0, cap = 0, one;
    enum status st;
    do {
        st = parse_sequence(g, &one, empty);
        GROW(branch, n, cap);
        branch[n++] = one;
    } while (st == OK && take(g, "|"));
    *empty = *empty && n == 1;
    *e = st == OK ? expr_alt(g->x, branch, n) : (uint32_t)EXPR_NONE;
    free(branch);
    return st;
}

/* A rule may be used before it is defined. take_name() gives it an id at its first use, and
 * parse_rules() checks at the end that every rule was defined. */
static enum status parse_rule(struct gbnf *g)
{
    size_t n = name_length(g);
    bool empty;
    uint32_t body;
    if (n == 0) {
        return fail(g, "a rule's name is expected here");
    }
    uint32_t id = take_name(g, n);
    skip_space(g);
    if (!take(g, "::=")) {
        return fail(g, "\"::=\" must follow the name \"%.*s\"", (int)lesser(n, 60),
                    g->names.v[id].s);
    }
    if (g->defined[id]) {
        return fail(g, "the rule \"%.*s\" is defined twice", (int)lesser(n, 60), g->names.v[id].s);
    }
    g->defined[id] = true;
    TRY(parse_alternatives(g, &body, &empty));
    if (empty) {
        return fail(g, "the rule \"%.*s\" is empty", (int)lesser(n, 60), g->names.v[id].s);
    }
    if (peek(g) == ')') {
        return fail(g, "')' without a group");
    }
    g->c->rules->v[g->first + id].body = body;
    return OK;
}

static enum status parse_rules(struct gbnf *g, uint32_t *start)
{
    for (skip_space(g); g->at < g->n; skip_space(g)) {
        TRY(parse_rule(g));
    }
    for (uint32_t i = 0; i < g->names.n; i++) {
        if (!g->defined[i]) {
            return err_set(g->c->err, ERR_INVALID, "the rule \"%.*s\" is not defined",
                           (int)lesser(g->names.v[i].n, 60), g->names.v[i].s);
        }
    }
    uint32_t n = g->names.n, root = names_get(&g->names, "root", 4);
    if (root == n) {
        return err_set(g->c->err, ERR_INVALID, "the grammar has no rule \"root\"");
    }
    *start = expr_call(g->x, g->first + root);
    return OK;
}

enum status gbnf_parse(struct compile *c, uint32_t *start)
{
    struct gbnf g = {
        .c = c, .x = c->x, .s = c->source->text, .n = c->source->n_bytes, .first = c->rules->n};
    enum status st = parse_rules(&g, start);
    names_deinit(&g.names);
    free(g.defined);
    return st;
}
