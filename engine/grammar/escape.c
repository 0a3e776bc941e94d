// SPDX-License-Identifier: Apache-2.0
/* Turns a grammar's text into the content of a JSON string: every rule and expression gets an
 * escaped copy. */
#include "engine/grammar/escape.h"

#include "engine/base/mem.h"
#include "engine/grammar/text.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 2000 };

/* Each rule and each expression is copied only once. `todo` holds the rules whose copies are not
 * made yet. */
struct escape {
    struct exprs *x;
    struct rules *rules;
    uint32_t *second; // by rule that existed at the start: its escaped copy, plus 1
    uint32_t n_rules, *todo, n_todo;
    uint32_t *done; // by expression that existed at the start: its escaped form, plus 1
    uint32_t n_done;
    int depth;
    bool bad;
};

/* The bytes of the set that a JSON string contains as they are, and the escapes of the others. */
static uint32_t bytes(struct escape *s, uint32_t set)
{
    struct exprs *x = s->x;
    struct byte_set plain = x->sets[set];
    uint32_t e = EXPR_NONE;
    for (unsigned b = 0; b < 128; b++) {
        if (!byte_set_has(&plain, b) || !(b < 0x20 || b == '"' || b == '\\')) {
            continue;
        }
        plain.w[b >> 6] &= ~(1ull << (b & 63));
        char c = (char)b;
        e = expr_alt2(x, e, text_literal(x, &c, 1));
    }
    bool any = plain.w[0] | plain.w[1] | plain.w[2] | plain.w[3];
    if (any) {
        return expr_alt2(x, e, expr_bytes(x, &plain));
    }
    return e;
}

static uint32_t call(struct escape *s, uint32_t rule)
{
    if (!s->second[rule]) {
        s->second[rule] = rules_add(s->rules) + 1;
        s->todo[s->n_todo++] = rule;
    }
    return expr_call(s->x, s->second[rule] - 1);
}

static uint32_t expression(struct escape *s, uint32_t e);

/* Alternatives and intersections, one child at a time. */
static uint32_t list(struct escape *s, struct expr p)
{
    uint32_t *part = xcalloc(p.b + 1, sizeof *part);
    for (uint32_t i = 0; i < p.b; i++) {
        part[i] = expression(s, s->x->list[p.a + i]);
    }
    uint32_t e;
    if (p.kind == X_ALT) {
        e = expr_alt(s->x, part, p.b);
    } else {
        e = expr_and(s->x, part, p.b);
    }
    free(part);
    return e;
}

/* Sequences are nested to the right and can be as long as the text, so they are walked in a loop
 * instead of by recursion. */
static uint32_t sequence(struct escape *s, uint32_t e)
{
    uint32_t n = 0, at = e;
    for (; s->x->v[at].kind == X_SEQ; at = s->x->v[at].b) {
        n++;
    }
    uint32_t *part = xcalloc(n + 1, sizeof *part), i = 0;
    for (at = e; s->x->v[at].kind == X_SEQ; at = s->x->v[at].b) {
        part[i++] = at;
    }
    uint32_t to = expression(s, at);
    while (i-- > 0) {
        to = expr_seq(s->x, expression(s, s->x->v[part[i]].a), to);
    }
    free(part);
    return to;
}

/* Nodes are shared, so each is translated only once; without `done` the time could be exponential
 * in the depth. */
static uint32_t expression(struct escape *s, uint32_t e)
{
    struct expr p = s->x->v[e];
    if (e < s->n_done && s->done[e]) {
        return s->done[e] - 1;
    }
    if (++s->depth > DEPTH_MAX || !exprs_spend(s->x, 2)) {
        s->x->failed = true;
        return EXPR_NONE;
    }
    uint32_t to = e;
    switch ((enum expr_kind)p.kind) {
    case X_NONE:
    case X_EMPTY: break;
    case X_BYTES: to = bytes(s, p.a); break;
    case X_SEQ: to = sequence(s, e); break;
    case X_ALT:
    case X_AND: to = list(s, p); break;
    case X_NOT: to = expr_not(s->x, expression(s, p.a)); break;
    case X_REP: to = expr_rep(s->x, expression(s, p.a), p.b, p.c); break;
    case X_CALL: to = call(s, p.a); break;
    default: s->bad = true; break;
    }
    s->depth--;
    if (e < s->n_done) {
        s->done[e] = to + 1;
    }
    return to;
}

/* A language without calls becomes one X_TEXT, whose derivatives do the escaping. Only rules need
 * copies. */
bool escape_json(struct exprs *x, struct rules *rules, uint32_t e, uint32_t *out)
{
    uint32_t quote = expr_byte(x, '"');
    if (!(x->v[e].flags & (XF_CALLS | XF_TEXT))) {
        *out = expr_seq(x, quote, text_make(x, e));
        return true;
    }
    struct escape s = {.x = x, .rules = rules, .n_rules = rules->n, .n_done = x->n};
    s.second = xcalloc(rules->n + 1, sizeof *s.second);
    s.todo = xcalloc(rules->n + 1, sizeof *s.todo);
    s.done = xcalloc(x->n + 1, sizeof *s.done);
    uint32_t text = expression(&s, e);
    for (uint32_t i = 0; i < s.n_todo && !x->failed; i++) {
        uint32_t rule = s.todo[i], body = expression(&s, rules->v[rule].body);
        rules->v[s.second[rule] - 1].body = body;
    }
    free(s.second);
    free(s.todo);
    free(s.done);
    *out = expr_seq3(x, quote, text, quote);
    return !s.bad;
}
