// SPDX-License-Identifier: Apache-2.0
/* Lark grammars, as supported by OpenAI's custom tools and llguidance: rules (lower case) and
 * terminals (upper case), strings, regular expressions, ranges, groups, repetition, %ignore,
 * %import of `common`, rules with a parameter. Rules are context-free, and a text matches if there
 * is any way to split it into terminals, which are not greedy. Priorities, templates, %declare,
 * %json and special tokens are rejected. */
#include "engine/grammar/parsers.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/grammar/lark_calls.h"
#include "engine/grammar/lark_common.h"
#include "engine/grammar/lark_literal.h"
#include "engine/grammar/lark_param.h"
#include "engine/grammar/names.h"

#include <stdlib.h>
#include <string.h>

enum { TERMINAL_DEPTH = 100 };

struct definition {
    size_t at; // position of its body in the text; 0: it is not defined
    bool terminal, parameter;
    uint32_t e; // for a terminal: its expression, plus 1
    bool busy;  // for a terminal: it is being parsed
};

struct lark {
    struct compile *c;
    struct exprs *x;
    struct lark_lex lex;
    struct names names;
    struct definition *v; // indexed by the name's number
    uint32_t cap;
    struct lark_calls calls;
    uint32_t ignored; // expression for any number of ignored terminals
    size_t *ignores;  // positions of their expressions in the text
    uint32_t n_ignores, cap_ignores;
    int depth;
    // The rule or terminal that is being parsed.
    bool in_terminal, has_value;
    uint64_t value;
};

static enum status parse_alternatives(struct lark *g, uint32_t *e);

/* Parses from `at` to the end of the statement. */
static enum status parse_body(struct lark *g, size_t at, uint32_t *e)
{
    g->lex.at = at;
    g->lex.open = 0;
    TRY(lark_next(&g->lex));
    TRY(parse_alternatives(g, e));
    bool ends = g->lex.word.kind == LARK_LINE || g->lex.word.kind == LARK_END;
    if (!ends) {
        return lark_fail(&g->lex, "a rule cannot continue like this");
    }
    return OK;
}

static struct definition *definition_of(struct lark *g, const char *s, size_t n, uint32_t *id)
{
    *id = names_get(&g->names, s, n);
    if (*id >= g->cap) {
        uint32_t cap = (*id + 1) * 2;
        g->v = xrealloc(g->v, cap * sizeof *g->v);
        memset(g->v + g->cap, 0, (cap - g->cap) * sizeof *g->v);
        g->cap = cap;
    }
    return &g->v[*id];
}

static enum status expect(struct lark *g, const char *mark)
{
    if (lark_is(&g->lex, mark)) {
        return lark_next(&g->lex);
    }
    return lark_fail(&g->lex, "'%s' is expected here", mark);
}

/* ---- names ---- */

/* A terminal is compiled once, where it is first used. Terminals cannot be recursive, which `busy`
 * detects. The lexer is moved to the definition and back. */
static enum status terminal_expr(struct lark *g, uint32_t id, uint32_t *e)
{
    struct definition d = g->v[id];
    struct name name = g->names.v[id];
    if (!d.at || !d.terminal) {
        return lark_fail(&g->lex, "the terminal \"%.*s\" is not defined", (int)lesser(name.n, 60),
                         name.s);
    }
    if (d.e) {
        *e = d.e - 1;
        return OK;
    }
    if (d.busy || ++g->depth > TERMINAL_DEPTH) {
        return lark_fail(&g->lex, "the terminal \"%.*s\" is defined in terms of itself",
                         (int)lesser(name.n, 60), name.s);
    }
    struct lark saved = *g;
    g->v[id].busy = true;
    g->in_terminal = true;
    TRY(parse_body(g, d.at, e));
    g->v[id].e = *e + 1;
    g->v[id].busy = false;
    g->lex = saved.lex;
    g->in_terminal = saved.in_terminal;
    g->depth = saved.depth - 1;
    return OK;
}

/* The rule for a name and a value of its parameter. Its body is parsed later. */
static enum status rule_call(struct lark *g, uint32_t name, uint64_t value, uint32_t *e)
{
    uint32_t rule, before = g->calls.n;
    bool fits = lark_calls_add(&g->calls, g->c->rules, name, value, &rule);
    if (!fits || (g->calls.n > before && !exprs_spend(g->x, 10))) {
        lark_fail(&g->lex, "rules with parameters expand to too many rules");
        return ERR_LIMIT;
    }
    *e = expr_call(g->x, rule);
    return OK;
}

/* The name of a terminal becomes its expression. The name of a rule becomes a call, which may pass
 * a parameter. */
static enum status name_expr(struct lark *g, uint32_t *e)
{
    struct lark_word w = g->lex.word;
    uint32_t id;
    uint64_t value = 0;
    definition_of(g, w.s, w.n, &id);
    TRY(lark_next(&g->lex));
    if (w.kind == LARK_TERMINAL) {
        TRY(terminal_expr(g, id, e));
        return OK;
    }
    if (g->in_terminal) {
        return lark_fail(&g->lex, "a terminal cannot use the rule \"%.*s\"", (int)lesser(w.n, 60),
                         w.s);
    }
    bool given = lark_is(&g->lex, "::");
    if (given) {
        TRY(lark_next(&g->lex));
        TRY(lark_parameter(&g->lex, g->has_value, g->value, &value));
    }
    if (!g->v[id].at || g->v[id].terminal) {
        return lark_fail(&g->lex, "the rule \"%.*s\" is not defined", (int)lesser(w.n, 60), w.s);
    }
    if (given != g->v[id].parameter) {
        return lark_fail(&g->lex, "the rule \"%.*s\" has %s parameter", (int)lesser(w.n, 60), w.s,
                         given ? "no" : "a");
    }
    return rule_call(g, id, value, e);
}

/* ---- expressions ---- */

/* "(...)", or "[...]", which is optional. */
static enum status group_expr(struct lark *g, uint32_t *e)
{
    bool optional = lark_is(&g->lex, "[");
    if (++g->depth > g->c->limits->max_depth) {
        lark_fail(&g->lex, "groups nest deeper than %d", g->c->limits->max_depth);
        return ERR_LIMIT;
    }
    TRY(lark_next(&g->lex));
    TRY(parse_alternatives(g, e));
    TRY(expect(g, optional ? "]" : ")"));
    g->depth--;
    if (optional) {
        *e = expr_optional(g->x, *e);
    }
    return OK;
}

static enum status literal_expr(struct lark *g, uint32_t *e)
{
    struct lark_word w = g->lex.word;
    TRY(lark_next(&g->lex));
    if (w.kind == LARK_REGEX) {
        return lark_regex(&g->lex, g->x, regex_limits_of(g->c->limits), w, e);
    }
    if (!lark_is(&g->lex, "..")) {
        return lark_string(&g->lex, g->x, w, e);
    }
    TRY(lark_next(&g->lex));
    struct lark_word to = g->lex.word;
    TRY(lark_next(&g->lex));
    return lark_range(&g->lex, g->x, w, to, e);
}

/* Ignored text is allowed after every lexeme, but not inside a terminal, because the parts of a
 * terminal belong together. */
static enum status atom_expr(struct lark *g, uint32_t *e)
{
    enum lark_kind kind = g->lex.word.kind;
    if (lark_is(&g->lex, "(") || lark_is(&g->lex, "[")) {
        return group_expr(g, e);
    }
    bool lexeme = kind != LARK_RULE;
    if (kind == LARK_STRING || kind == LARK_REGEX) {
        TRY(literal_expr(g, e));
    } else if (kind == LARK_RULE || kind == LARK_TERMINAL) {
        TRY(name_expr(g, e));
    } else if (kind == LARK_DIRECTIVE) {
        lark_fail(&g->lex, "%.*s is not supported here", (int)lesser(g->lex.word.n, 40),
                  g->lex.word.s);
        return ERR_UNSUPPORTED;
    } else if (lark_is(&g->lex, "<")) {
        lark_fail(&g->lex, "references to tokens (<...>) are not supported");
        return ERR_UNSUPPORTED;
    } else {
        return lark_fail(&g->lex, "a rule cannot continue like this");
    }
    if (lexeme && !g->in_terminal) {
        *e = expr_seq(g->x, *e, g->ignored);
    }
    return OK;
}

/* Counts saturate at UINT32_MAX, so that a long number cannot wrap to a small one. */
static enum status parse_count(struct lark *g, uint32_t *count)
{
    uint64_t v = 0;
    struct lark_word w = g->lex.word;
    for (size_t i = 0; i < w.n && w.kind == LARK_NUMBER; i++) {
        if (w.s[i] < '0' || w.s[i] > '9') {
            return lark_fail(&g->lex, "a repetition's count is not a number");
        }
        if (v < UINT32_MAX) {
            v = v * 10 + (uint64_t)(w.s[i] - '0');
        }
    }
    if (w.kind != LARK_NUMBER) {
        return lark_fail(&g->lex,
                         "a repetition's count is not a number (templates are not supported)");
    }
    if (v > g->c->limits->max_repeat) {
        lark_fail(&g->lex, "a repetition's count is above %u", g->c->limits->max_repeat);
        return ERR_LIMIT;
    }
    *count = (uint32_t)v;
    return lark_next(&g->lex);
}

/* {m,n} or ~ m..n */
static enum status parse_bounds(struct lark *g, uint32_t *lo, uint32_t *hi)
{
    bool brace = lark_is(&g->lex, "{");
    const char *between = brace ? "," : "..";
    *lo = 0;
    TRY(lark_next(&g->lex));
    if (!lark_is(&g->lex, ",")) {
        TRY(parse_count(g, lo));
    }
    *hi = *lo;
    if (lark_is(&g->lex, between)) {
        TRY(lark_next(&g->lex));
        *hi = EXPR_INF;
        if (!lark_is(&g->lex, "}")) {
            TRY(parse_count(g, hi));
        }
    }
    if (brace) {
        TRY(expect(g, "}"));
    }
    if (*lo > *hi) {
        return lark_fail(&g->lex, "a repetition's minimum is above its maximum");
    }
    return OK;
}

/* A repetition may follow another ("a*?" is (a*)?). Their number is limited, because each nests the
 * expression one level deeper. */
static enum status item_expr(struct lark *g, uint32_t *e)
{
    TRY(atom_expr(g, e));
    for (int i = 0;; i++) {
        uint32_t lo = 0, hi = EXPR_INF;
        if (lark_is(&g->lex, "*") || lark_is(&g->lex, "+") || lark_is(&g->lex, "?")) {
            lo = lark_is(&g->lex, "+");
            hi = lark_is(&g->lex, "?") ? 1 : EXPR_INF;
            TRY(lark_next(&g->lex));
        } else if (lark_is(&g->lex, "{") || lark_is(&g->lex, "~")) {
            TRY(parse_bounds(g, &lo, &hi));
        } else {
            return OK;
        }
        if (i == g->c->limits->max_depth) {
            return lark_fail(&g->lex, "too many repetitions of one item");
        }
        *e = expr_rep(g->x, *e, lo, hi);
    }
}

static bool at_end(const struct lark *g)
{
    enum lark_kind kind = g->lex.word.kind;
    return kind == LARK_END || kind == LARK_LINE || lark_is(&g->lex, "|") ||
           lark_is(&g->lex, ")") || lark_is(&g->lex, "]") || lark_is(&g->lex, "->") ||
           (kind == LARK_DIRECTIVE && g->lex.word.n == 3 && memcmp(g->lex.word.s, "%if", 3) == 0);
}

/* Parses what may follow a sequence: a condition and an alias. */
static enum status parse_suffix(struct lark *g, bool *holds)
{
    *holds = true;
    if (g->lex.word.kind == LARK_DIRECTIVE) {
        TRY(lark_next(&g->lex));
        TRY(lark_condition(&g->lex, g->has_value, g->value, holds, 0));
    }
    if (lark_is(&g->lex, "->")) {
        TRY(lark_next(&g->lex));
        if (g->lex.word.kind != LARK_RULE) {
            return lark_fail(&g->lex, "expected a name after \"->\"");
        }
        TRY(lark_next(&g->lex));
    }
    if (!at_end(g)) {
        return lark_fail(&g->lex, "a rule cannot continue like this");
    }
    return OK;
}

/* The parts are joined from last to first, so that the sequence nests to the right. If there is a
 * condition at the end and it does not hold, the branch is removed together with its calls.
 * If it were kept, recursion with a counter that the condition limits would never end. */
static enum status sequence_expr(struct lark *g, uint32_t *e)
{
    uint32_t *part = NULL, n = 0, cap = 0, n_calls = g->calls.n;
    enum status st = OK;
    bool holds = true;
    while (st == OK && !at_end(g)) {
        uint32_t one = EXPR_NONE;
        st = item_expr(g, &one);
        GROW(part, n, cap);
        part[n++] = one;
        if (st == OK && g->x->failed) {
            st = ERR_LIMIT;
        }
    }
    *e = EXPR_EMPTY;
    while (n > 0) {
        *e = expr_seq(g->x, part[--n], *e);
    }
    free(part);
    if (st == OK) {
        st = parse_suffix(g, &holds);
    }
    if (!holds) {
        lark_calls_forget(&g->calls, n_calls);
        *e = (uint32_t)EXPR_NONE;
    }
    return st;
}

/* A "|" before the first branch is allowed, as in Lark's own grammars. */
static enum status parse_alternatives(struct lark *g, uint32_t *e)
{
    uint32_t *branch = NULL, n = 0, cap = 0, one;
    enum status st = lark_is(&g->lex, "|") ? lark_next(&g->lex) : OK;
    while (st == OK) {
        st = sequence_expr(g, &one);
        GROW(branch, n, cap);
        branch[n++] = one;
        if (st != OK || !lark_is(&g->lex, "|")) {
            break;
        }
        st = lark_next(&g->lex);
    }
    *e = st == OK ? expr_alt(g->x, branch, n) : (uint32_t)EXPR_NONE;
    free(branch);
    return st;
}

/* ---- statements ---- */

static enum status define(struct lark *g, struct lark_word w, bool parameter, size_t at, uint32_t e)
{
    uint32_t id;
    struct definition *d = definition_of(g, w.s, w.n, &id);
    if (d->at) {
        return lark_fail(&g->lex, "\"%.*s\" is defined twice", (int)lesser(w.n, 60), w.s);
    }
    *d = (struct definition){
        .at = at, .terminal = w.kind == LARK_TERMINAL, .parameter = parameter, .e = e};
    return OK;
}

/* The terminals of Lark's "common" are known as regular expressions. "->" may rename them; renaming
 * a terminal to a rule's name is refused. */
static enum status import_one(struct lark *g)
{
    struct lark_word w = g->lex.word, as = w;
    TRY(lark_next(&g->lex));
    if (lark_is(&g->lex, "->")) {
        TRY(lark_next(&g->lex));
        as = g->lex.word;
        TRY(lark_next(&g->lex));
    }
    const char *regex = lark_common(w.s, w.n);
    if (regex && as.kind == LARK_TERMINAL) {
        uint32_t e;
        TRY(regex_language(g->x, regex, strlen(regex), 0, regex_limits_of(g->c->limits), &e,
                           g->c->err));
        return define(g, as, false, SIZE_MAX, e + 1);
    }
    return lark_fail(&g->lex, "\"common\" has no \"%.*s\"", (int)lesser(w.n, 60), w.s);
}

/* %import common.A, %import common.A -> B, %import common (A, B). No other file is supported. */
static enum status import(struct lark *g)
{
    struct lark_word from = g->lex.word;
    if (from.kind != LARK_RULE || from.n != 6 || memcmp(from.s, "common", 6) != 0) {
        lark_fail(&g->lex, "%%import is supported only from \"common\"");
        return ERR_UNSUPPORTED;
    }
    TRY(lark_next(&g->lex));
    if (lark_is(&g->lex, ".")) {
        TRY(lark_next(&g->lex));
        return import_one(g);
    }
    TRY(expect(g, "("));
    TRY(import_one(g));
    while (lark_is(&g->lex, ",")) {
        TRY(lark_next(&g->lex));
        TRY(import_one(g));
    }
    return expect(g, ")");
}

static enum status skip_statement(struct lark *g)
{
    while (g->lex.word.kind != LARK_LINE && g->lex.word.kind != LARK_END) {
        TRY(lark_next(&g->lex));
    }
    return OK;
}

static enum status directive(struct lark *g)
{
    struct lark_word w = g->lex.word;
    TRY(lark_next(&g->lex));
    if (w.n == 7 && memcmp(w.s, "%import", 7) == 0) {
        return import(g);
    }
    if (w.n == 7 && memcmp(w.s, "%ignore", 7) == 0) {
        GROW(g->ignores, g->n_ignores, g->cap_ignores);
        g->ignores[g->n_ignores++] = (size_t)(g->lex.word.s - g->lex.s);
        return skip_statement(g);
    }
    lark_fail(&g->lex, "%.*s is not supported", (int)lesser(w.n, 40), w.s);
    return ERR_UNSUPPORTED;
}

/* name: ..., ?name: ..., name::_ : ... */
static enum status statement(struct lark *g)
{
    if (g->lex.word.kind == LARK_DIRECTIVE) {
        return directive(g);
    }
    while (lark_is(&g->lex, "?") || lark_is(&g->lex, "!")) {
        TRY(lark_next(&g->lex));
    }
    struct lark_word w = g->lex.word;
    bool parameter = false;
    if (w.kind != LARK_RULE && w.kind != LARK_TERMINAL) {
        return lark_fail(&g->lex, "a rule's name is expected here");
    }
    TRY(lark_next(&g->lex));
    if (lark_is(&g->lex, ".")) {
        lark_fail(&g->lex, "priorities are not supported");
        return ERR_UNSUPPORTED;
    }
    if (lark_is(&g->lex, "::")) {
        TRY(lark_next(&g->lex));
        parameter = w.kind == LARK_RULE && g->lex.word.kind == LARK_RULE && g->lex.word.n == 1;
        if (!parameter || g->lex.word.s[0] != '_') {
            return lark_fail(&g->lex, "a rule's parameter is defined as \"name::_\"");
        }
        TRY(lark_next(&g->lex));
    }
    size_t at = g->lex.at;
    TRY(expect(g, ":"));
    TRY(define(g, w, parameter, at, 0));
    return skip_statement(g);
}

/* Each ignored expression is an unnamed terminal. */
static enum status parse_ignored(struct lark *g)
{
    g->in_terminal = true;
    for (uint32_t i = 0; i < g->n_ignores; i++) {
        uint32_t e;
        TRY(parse_body(g, g->ignores[i], &e));
        g->ignored = expr_alt2(g->x, g->ignored, e);
    }
    g->in_terminal = false;
    g->ignored = expr_rep(g->x, g->ignored, 0, EXPR_INF);
    return OK;
}

/* Terminals and rules must be valid even if they are not used. */
static enum status check_unused(struct lark *g)
{
    for (uint32_t id = 0; id < g->names.n; id++) {
        uint32_t e;
        struct definition d = g->v[id];
        if (d.at && d.terminal) {
            g->depth = 0;
            TRY(terminal_expr(g, id, &e));
        } else if (d.at && !d.parameter) {
            TRY(rule_call(g, id, 0, &e));
        }
    }
    return OK;
}

/* First all definitions are located, then bodies are parsed, beginning with "start". To parse a
 * body one must know whether a name is a rule, is a terminal or has a parameter, whatever the order
 * in the text. */
static enum status parse(struct lark *g, uint32_t *start)
{
    uint32_t id;
    g->lex.err = g->c->err;
    TRY(lark_next(&g->lex));
    while (g->lex.word.kind != LARK_END) {
        if (g->lex.word.kind != LARK_LINE) {
            TRY(statement(g));
        }
        if (g->lex.word.kind != LARK_END) {
            if (g->lex.word.kind == LARK_LINE) {
                TRY(lark_next(&g->lex));
            } else {
                TRY(lark_fail(&g->lex, "a statement cannot continue like this"));
            }
        }
    }
    struct definition *d = definition_of(g, "start", 5, &id);
    if (!d->at || d->parameter) {
        return err_set(g->c->err, ERR_INVALID,
                       "the grammar has no rule \"start\" (without a parameter)");
    }
    TRY(parse_ignored(g));
    TRY(rule_call(g, id, 0, start));
    TRY(check_unused(g));
    for (uint32_t i = 0; i < g->calls.n; i++) { // the list grows while bodies call other rules
        struct lark_call it = g->calls.v[i];
        uint32_t body;
        g->has_value = g->v[it.name].parameter;
        g->value = it.value;
        g->depth = 0;
        TRY(parse_body(g, g->v[it.name].at, &body));
        g->c->rules->v[it.rule].body = body;
    }
    *start = expr_seq(g->x, g->ignored, *start);
    return OK;
}

enum status lark_parse(struct compile *c, uint32_t *start)
{
    struct lark g = {.c = c, .x = c->x, .ignored = EXPR_NONE};
    g.lex = (struct lark_lex){.s = c->source->text, .n = c->source->n_bytes};
    enum status st = parse(&g, start);
    names_deinit(&g.names);
    free(g.v);
    lark_calls_deinit(&g.calls);
    free(g.ignores);
    return st;
}
