// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/regex.h"

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/grammar/charset.h"
#include "engine/grammar/regex_class.h"

#include <stdlib.h>
#include <string.h>

/* Parts without anchors become expressions immediately. Parts with anchors stay a tree until
 * everything is parsed. */
enum node_kind { R_EXPR, R_START, R_END, R_SEQ, R_ALT, R_REP };

/* A node of the parsed expression. Anchors are resolved later, because their meaning depends on
 * their place. */
struct node {
    enum node_kind kind;
    uint32_t e;        // for R_EXPR
    uint32_t first, n; // children in parser.list; for R_REP the child is list[first]
    uint32_t lo, hi;   // for R_REP
};

/* `of_node` and `of_rest` cache the results for the four combinations of being at the start and at
 * the end of the text. */
struct parser {
    struct exprs *x;
    struct regex_source in;
    unsigned flags;
    struct regex_limits limits;
    int depth;
    struct node *v;
    uint32_t n, cap;
    uint32_t *list;
    uint32_t n_list, cap_list;
    uint32_t (*of_node)[4]; // by node: cached result of match, plus 1, for each combination of
                            // start and end
    uint32_t (*of_rest)[4]; // by position in the list: the same for the rest of a sequence, from
                            // that child on
};

static uint32_t add(struct parser *p, struct node node)
{
    GROW(p->v, p->n, p->cap);
    p->v[p->n] = node;
    return p->n++;
}

static uint32_t add_expr(struct parser *p, uint32_t e)
{
    return add(p, (struct node){.kind = R_EXPR, .e = e});
}

/* The children of a node; if none of them has an anchor, they become one expression. */
struct children {
    uint32_t *v;
    size_t n, cap;
};

/* Joins adjacent children that have no anchors. */
static void join(struct parser *p, struct children *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (n > 0 && p->v[c->v[n - 1]].kind == R_EXPR && p->v[c->v[i]].kind == R_EXPR) {
            c->v[n - 1] = add_expr(p, expr_seq(p->x, p->v[c->v[n - 1]].e, p->v[c->v[i]].e));
        } else {
            c->v[n++] = c->v[i];
        }
    }
    c->n = n;
}

/* Parts without anchors are joined to one expression at once. Only a list that contains an anchor
 * needs nodes, which match() resolves later. */
static uint32_t add_children(struct parser *p, enum node_kind kind, struct children *c)
{
    bool plain = true;
    for (size_t i = 0; i < c->n; i++) {
        plain &= p->v[c->v[i]].kind == R_EXPR;
    }
    uint32_t node;
    if (c->n == 1) {
        node = c->v[0];
    } else if (plain) {
        for (size_t i = 0; i < c->n; i++) {
            c->v[i] = p->v[c->v[i]].e;
        }
        uint32_t e = EXPR_EMPTY;
        for (size_t i = c->n; kind == R_SEQ && i-- > 0;) {
            e = expr_seq(p->x, c->v[i], e);
        }
        node = add_expr(p, kind == R_ALT ? expr_alt(p->x, c->v, c->n) : e);
    } else {
        if (kind == R_SEQ) {
            join(p, c);
        }
        uint32_t first = p->n_list;
        for (size_t i = 0; i < c->n; i++) {
            GROW(p->list, p->n_list, p->cap_list);
            p->list[p->n_list++] = c->v[i];
        }
        node = add(p, (struct node){.kind = kind, .first = first, .n = (uint32_t)c->n});
    }
    free(c->v);
    *c = (struct children){0};
    return node;
}

static void put(struct children *c, uint32_t node)
{
    GROW(c->v, c->n, c->cap);
    c->v[c->n++] = node;
}

/* ---- parsing ---- */

static enum status parse_alternatives(struct parser *p, uint32_t *node, struct err *err);

static bool at(const struct parser *p, const char *word)
{
    size_t n = strlen(word);
    return p->in.n - p->in.at >= n && memcmp(p->in.s + p->in.at, word, n) == 0;
}

static bool take(struct parser *p, const char *word)
{
    bool is = at(p, word);
    if (is) {
        p->in.at += strlen(word);
    }
    return is;
}

/* Names of groups have no effect here, but they must be well formed. */
static enum status parse_name(struct parser *p, struct err *err)
{
    size_t from = p->in.at;
    while (p->in.at < p->in.n && p->in.s[p->in.at] != '>') {
        p->in.at++;
    }
    if (p->in.at == p->in.n || p->in.at == from) {
        return regex_wrong(&p->in, err, "unterminated name of a group");
    }
    p->in.at++;
    return OK;
}

/* Reads "i", "s", "i-s:" etc. after "(?". *group: a group follows; otherwise the flags apply from
 * here on. */
static enum status parse_flags(struct parser *p, bool *group, struct err *err)
{
    static const struct {
        char letter;
        unsigned flag; // 0: the flag has no effect on the supported syntax
    } known[] = {{'i', REGEX_IGNORE_CASE}, {'s', REGEX_DOT_ALL}, {'u', 0}};
    bool off = false;
    for (; p->in.at < p->in.n; p->in.at++) {
        char c = p->in.s[p->in.at];
        if (c == ')' || c == ':') {
            p->in.at++;
            *group = c == ':';
            return OK;
        }
        size_t i = 0;
        while (i < 3 && known[i].letter != c) {
            i++;
        }
        if (c == '-' && !off) {
            off = true;
        } else if (i == 3) {
            return regex_wrong(&p->in, err, "unknown flag (only i and s are supported)");
        } else {
            if (off) {
                p->flags = p->flags & ~known[i].flag;
            } else {
                p->flags = p->flags | known[i].flag;
            }
        }
    }
    return regex_wrong(&p->in, err, "unterminated group");
}

/* A construct that is not regular is an error that names it. Flags that are set inside a
 * group end with it. */
static enum status parse_group(struct parser *p, uint32_t *node, struct err *err)
{
    static const struct {
        const char *begin, *why;
    } refused[] = {
        {"?=", "lookahead"},          {"?!", "lookahead"},       {"?<=", "lookbehind"},
        {"?<!", "lookbehind"},        {"?>", "an atomic group"}, {"?(", "a conditional group"},
        {"?#", "a comment"},          {"?&", "recursion"},       {"?R", "recursion"},
        {"?P=", "a backreference"},   {"?P>", "recursion"},      {"?|", "a branch reset"},
        {"*", "a backtracking verb"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (at(p, refused[i].begin)) {
            regex_wrong(&p->in, err, "%s is not supported", refused[i].why);
            return ERR_UNSUPPORTED;
        }
    }
    unsigned flags = p->flags;
    bool group = true;
    if (++p->depth > p->limits.max_depth) {
        regex_wrong(&p->in, err, "groups nest deeper than %d", p->limits.max_depth);
        return ERR_LIMIT;
    }
    if (take(p, "?<") || take(p, "?P<") || take(p, "?'")) {
        TRY(parse_name(p, err));
    } else if (!take(p, "?:") && take(p, "?")) {
        TRY(parse_flags(p, &group, err));
    }
    if (!group) { // (?i) applies up to the end of the enclosing group
        p->depth--;
        *node = add_expr(p, EXPR_EMPTY);
        return OK;
    }
    TRY(parse_alternatives(p, node, err));
    if (!take(p, ")")) {
        return regex_wrong(&p->in, err, "unterminated group");
    }
    p->flags = flags;
    p->depth--;
    return OK;
}

/* One character, class, anchor or group. */
static enum status parse_atom(struct parser *p, uint32_t *node, struct err *err)
{
    char c = p->in.s[p->in.at];
    if (c == '(') {
        p->in.at++;
        return parse_group(p, node, err);
    }
    if (c == '^' || c == '$') {
        p->in.at++;
        *node = add(p, (struct node){.kind = c == '^' ? R_START : R_END});
        return OK;
    }
    if (at(p, "\\A") || at(p, "\\z") || at(p, "\\Z")) {
        p->in.at += 2;
        *node = add(p, (struct node){.kind = p->in.s[p->in.at - 1] == 'A' ? R_START : R_END});
        return OK;
    }
    if (c == '*' || c == '+' || c == '?') {
        return regex_wrong(&p->in, err, "'%c' has nothing to repeat", c);
    }
    struct charset set = {0};
    p->in.ignore_case = (p->flags & REGEX_IGNORE_CASE) != 0;
    enum status st = regex_parse_set(&p->in, (p->flags & REGEX_DOT_ALL) != 0, &set, err);
    if (st == OK) {
        *node = add_expr(p, charset_expr(p->x, &set));
    }
    charset_deinit(&set);
    return st;
}

/* Counts saturate at UINT32_MAX, so that a long number cannot wrap to a small one. */
static enum status parse_count(struct parser *p, uint32_t *count, struct err *err)
{
    uint64_t v = 0;
    size_t from = p->in.at;
    while (p->in.at < p->in.n && p->in.s[p->in.at] >= '0' && p->in.s[p->in.at] <= '9') {
        if (v < UINT32_MAX) {
            v = v * 10 + (uint64_t)(p->in.s[p->in.at] - '0');
        }
        p->in.at++;
    }
    if (p->in.at == from) {
        return regex_wrong(&p->in, err, "a repetition's count is not a number");
    }
    if (v > p->limits.max_repeat) {
        regex_wrong(&p->in, err, "a repetition's count is above %u", p->limits.max_repeat);
        return ERR_LIMIT;
    }
    *count = (uint32_t)v;
    return OK;
}

/* A brace after an atom begins a count if a digit, a sign or a comma follows. Otherwise it is
 * literal. */
static bool at_count(const struct parser *p)
{
    return p->in.at + 1 < p->in.n && p->in.s[p->in.at] == '{' &&
           strchr("0123456789,-", p->in.s[p->in.at + 1]) && p->in.s[p->in.at + 1];
}

/* "*", "+", "?", "{n}", "{n,}" or "{n,m}". */
static enum status parse_bounds(struct parser *p, uint32_t *lo, uint32_t *hi, struct err *err)
{
    *lo = 0;
    *hi = EXPR_INF;
    if (take(p, "*")) {
        return OK;
    }
    if (take(p, "?")) {
        *hi = 1;
        return OK;
    }
    *lo = 1;
    if (take(p, "+")) {
        return OK;
    }
    p->in.at++;
    TRY(parse_count(p, lo, err));
    *hi = *lo;
    if (take(p, ",")) {
        *hi = EXPR_INF;
        if (!at(p, "}")) {
            TRY(parse_count(p, hi, err));
        }
    }
    if (!take(p, "}")) {
        return regex_wrong(&p->in, err, "unterminated repetition");
    }
    if (*lo > *hi) {
        return regex_wrong(&p->in, err, "a repetition's minimum is above its maximum");
    }
    return OK;
}

/* Laziness is ignored, because it changes which text is found first, but not which texts match.
 * Possessive repetition does change that, so it is refused. */
static enum status parse_repeated(struct parser *p, uint32_t *node, struct err *err)
{
    TRY(parse_atom(p, node, err));
    int n = 0;
    while (p->in.at < p->in.n && (strchr("*+?", p->in.s[p->in.at]) || at_count(p)) &&
           p->in.s[p->in.at]) {
        uint32_t lo, hi;
        if (++n > p->limits.max_depth) {
            return regex_wrong(&p->in, err, "too many repetitions of one item");
        }
        TRY(parse_bounds(p, &lo, &hi, err));
        if (take(p, "?")) {
            // a lazy repetition matches the same language
        } else if (at(p, "+")) {
            regex_wrong(&p->in, err, "possessive repetition is not supported");
            return ERR_UNSUPPORTED;
        }
        struct node of = p->v[*node];
        if (of.kind == R_EXPR) {
            *node = add_expr(p, expr_rep(p->x, of.e, lo, hi));
            continue;
        }
        GROW(p->list, p->n_list, p->cap_list);
        p->list[p->n_list++] = *node;
        *node = add(
            p, (struct node){.kind = R_REP, .first = p->n_list - 1, .n = 1, .lo = lo, .hi = hi});
    }
    return OK;
}

/* Parses up to "|", ")" or the end. */
static enum status parse_sequence(struct parser *p, uint32_t *node, struct err *err)
{
    struct children c = {0};
    enum status st = OK;
    while (st == OK && p->in.at < p->in.n && p->in.s[p->in.at] != '|' && p->in.s[p->in.at] != ')') {
        st = parse_repeated(p, node, err);
        if (st == OK) {
            put(&c, *node);
        }
        if (p->x->failed) {
            st = err_set(err, ERR_LIMIT, "the regular expression is too large");
        }
    }
    if (st != OK) {
        free(c.v);
        return st;
    }
    *node = add_children(p, R_SEQ, &c);
    return OK;
}

/* Parses the alternatives of a group or of the whole expression. */
static enum status parse_alternatives(struct parser *p, uint32_t *node, struct err *err)
{
    struct children c = {0};
    enum status st;
    do {
        st = parse_sequence(p, node, err);
        if (st == OK) {
            put(&c, *node);
        }
    } while (st == OK && take(p, "|"));
    if (st != OK) {
        free(c.v);
        return st;
    }
    *node = add_children(p, R_ALT, &c);
    return OK;
}

/* ---- anchors ---- */

/* The texts that a node matches, given whether it begins at the start of the text (start) and ends
 * at the end of the text (end). */
static uint32_t match(struct parser *p, uint32_t node, bool start, bool end, struct err *err);

static uint32_t some(struct parser *p, uint32_t e) // `e` without the empty text
{
    if (expr_is(p->x, e, XF_NULLABLE)) {
        return expr_and2(p->x, e, expr_rep(p->x, p->x->any_char, 1, EXPR_INF));
    }
    return e;
}

/* A sequence, from child i on. If a child is at the start of the text, the next child is at the
 * start only if this one matched nothing; the same holds, in reverse, at the end. */
static uint32_t match_seq(struct parser *p, struct node n, uint32_t i, bool start, bool end,
                          struct err *err)
{
    struct exprs *x = p->x;
    uint32_t child = p->list[n.first + i], *memo = &p->of_rest[n.first + i][start * 2 + end];
    if (*memo) {
        return *memo - 1;
    }
    if (i + 1 == n.n) {
        return match(p, child, start, end, err);
    }
    uint32_t mid_first = match(p, child, start, false, err);
    uint32_t all =
        expr_seq(x, some(p, mid_first), some(p, match_seq(p, n, i + 1, false, end, err)));
    if (expr_is(x, mid_first, XF_NULLABLE)) {
        all = expr_alt2(x, all, some(p, match_seq(p, n, i + 1, start, end, err)));
    }
    uint32_t last_first = end ? match(p, child, start, true, err) : mid_first;
    uint32_t after = match_seq(p, n, i + 1, false, end, err);
    if (expr_is(x, after, XF_NULLABLE)) {
        all = expr_alt2(x, all, some(p, last_first));
    }
    if (expr_is(x, last_first, XF_NULLABLE) &&
        expr_is(x, match_seq(p, n, i + 1, start, end, err), XF_NULLABLE)) {
        all = expr_optional(x, all);
    }
    *memo = all + 1;
    return all;
}

/* A repetition with an anchor inside is split into its first, middle and last round, because only
 * the outer rounds can touch the ends of the text. */
static uint32_t match_rep(struct parser *p, struct node n, bool start, bool end, struct err *err)
{
    struct exprs *x = p->x;
    uint32_t child = p->list[n.first];
    uint32_t first = match(p, child, start, false, err), mid = match(p, child, false, false, err);
    uint32_t last = match(p, child, false, end, err), only = match(p, child, start, end, err);
    uint32_t nullable =
        (x->v[first].flags | x->v[mid].flags | x->v[last].flags | x->v[only].flags) & XF_NULLABLE;
    if (nullable && n.hi > 1) {
        err_set(err, ERR_UNSUPPORTED, "an anchor is repeated");
        return EXPR_NONE;
    }
    uint32_t all = n.lo <= 1 ? only : (uint32_t)EXPR_NONE;
    if (n.hi >= 2) {
        uint32_t hi = n.hi == EXPR_INF ? EXPR_INF : n.hi - 2;
        uint32_t more = expr_seq3(x, first, expr_rep(x, mid, n.lo > 2 ? n.lo - 2 : 0, hi), last);
        all = expr_alt2(x, all, more);
    }
    if (n.lo == 0) {
        return expr_optional(x, all);
    }
    return all;
}

/* The language of a node that is at the start (start) or the end (end) of the text, or neither. An
 * anchor at another place matches nothing. */
static uint32_t match_fresh(struct parser *p, struct node n, bool start, bool end, struct err *err)
{
    switch (n.kind) {
    case R_EXPR: return n.e;
    case R_START: return start ? EXPR_EMPTY : EXPR_NONE;
    case R_END: return end ? EXPR_EMPTY : EXPR_NONE;
    case R_SEQ: return match_seq(p, n, 0, start, end, err);
    case R_REP: return match_rep(p, n, start, end, err);
    case R_ALT: break;
    }
    uint32_t all = EXPR_NONE;
    for (uint32_t i = 0; i < n.n; i++) {
        all = expr_alt2(p->x, all, match(p, p->list[n.first + i], start, end, err));
    }
    return all;
}

static uint32_t match(struct parser *p, uint32_t node, bool start, bool end, struct err *err)
{
    uint32_t *memo = &p->of_node[node][start * 2 + end];
    if (!*memo && exprs_spend(p->x, 1)) {
        *memo = match_fresh(p, p->v[node], start, end, err) + 1;
    }
    return *memo ? *memo - 1 : (uint32_t)EXPR_NONE;
}

/* For a search, the match may be anywhere, so all four combinations of text before and after it are
 * tried. */
static uint32_t match_anywhere(struct parser *p, uint32_t node, struct err *err)
{
    struct exprs *x = p->x;
    if (p->v[node].kind == R_EXPR) {
        return expr_seq3(x, x->any_text, p->v[node].e, x->any_text);
    }
    uint32_t text = expr_rep(x, x->any_char, 1, EXPR_INF);
    uint32_t e[4] = {
        match(p, node, true, true, err),
        expr_seq(x, text, match(p, node, false, true, err)),
        expr_seq(x, match(p, node, true, false, err), text),
        expr_seq3(x, text, match(p, node, false, false, err), text),
    };
    return expr_alt(x, e, 4);
}

/* Parses, then resolves anchors. The result is an expression over UTF-8 bytes. */
enum status regex_language(struct exprs *x, const char *s, size_t n, unsigned flags,
                           struct regex_limits limits, uint32_t *out, struct err *err)
{
    struct parser p = {
        .x = x, .in = {s, n, 0, (flags & REGEX_UNICODE) != 0}, .flags = flags, .limits = limits};
    struct err why = {{0}};
    uint32_t node = 0;
    enum status st = OK;
    if (utf8_check(s, n) != n) {
        st = err_set(&why, ERR_INVALID, "the regular expression is not UTF-8");
    }
    if (st == OK) {
        st = parse_alternatives(&p, &node, &why);
    }
    if (st == OK && p.in.at < n) {
        st = regex_wrong(&p.in, &why, "')' without a group");
    }
    if (st == OK) {
        p.of_node = xcalloc(p.n, sizeof *p.of_node);
        p.of_rest = xcalloc(p.n_list + 1, sizeof *p.of_rest);
        uint32_t e;
        if (flags & REGEX_SEARCH) {
            e = match_anywhere(&p, node, &why);
        } else {
            e = match(&p, node, true, true, &why);
        }
        *out = expr_clean(x, e);
        st = why.text[0] ? ERR_UNSUPPORTED : OK;
    }
    if (x->failed) {
        st = err_set(&why, ERR_LIMIT, "the regular expression is too large or too complex");
    }
    free(p.v);
    free(p.list);
    free(p.of_node);
    free(p.of_rest);
    if (st != OK) {
        return err_set(err, st, "%s", why.text);
    }
    return OK;
}
