// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/rules.h"

#include "engine/base/mem.h"
#include "engine/grammar/object.h"

#include <stdlib.h>
#include <string.h>

enum {
    CYCLE_MAX = 100,       // chosen: number of mutually left-recursive rules
    RECURSION_MAX = 10000, // chosen: depth of recursion of the functions below
};

uint32_t rules_add(struct rules *r)
{
    GROW(r->v, r->n, r->cap);
    r->v[r->n] = (struct rule){.body = EXPR_NONE};
    return r->n++;
}

void rules_deinit(struct rules *r)
{
    free(r->v);
    *r = (struct rules){0};
}

static bool enter(struct exprs *x)
{
    if (++x->depth > RECURSION_MAX) {
        x->failed = true;
    }
    return exprs_spend(x, 1);
}

/* ---- rewriting calls ---- */

/* A rewrite: the replacements of calls and objects, and the results so far. */
struct rewrite {
    struct exprs *x;
    const uint32_t *call;    // indexed by rule: what replaces a call
    const bool *object_dead; // by object; NULL: none
    bool *object_done;
    uint32_t *done, n_done; // by expression: its rewritten form, plus 1
};

static uint32_t rewrite(struct rewrite *w, uint32_t e);

static void rewrite_object(struct rewrite *w, uint32_t id)
{
    struct expr_object *o = w->x->objects[id];
    if (w->object_done[id]) {
        return;
    }
    w->object_done[id] = true;
    for (uint32_t i = 0; i < o->n; i++) {
        o->v[i].value = rewrite(w, o->v[i].value);
    }
    o->other = rewrite(w, o->other);
}

static uint32_t rewrite_list(struct rewrite *w, struct expr p)
{
    uint32_t *list = xmalloc(p.b * sizeof *list);
    for (uint32_t i = 0; i < p.b; i++) {
        list[i] = rewrite(w, w->x->list[p.a + i]);
    }
    uint32_t e = expr_alt(w->x, list, p.b);
    free(list);
    return e;
}

/* Sequences may be long, so they are rewritten in a loop. */
static uint32_t rewrite_seq(struct rewrite *w, uint32_t e)
{
    uint32_t *part = NULL, n = 0, cap = 0;
    for (; w->x->v[e].kind == X_SEQ && expr_is(w->x, e, XF_CALLS); e = w->x->v[e].b) {
        GROW(part, n, cap);
        part[n++] = w->x->v[e].a;
    }
    e = rewrite(w, e);
    while (n > 0) {
        e = expr_seq(w->x, rewrite(w, part[--n]), e);
    }
    free(part);
    return e;
}

/* Replaces calls of rules by w->call. Shared nodes are rewritten only once. */
static uint32_t rewrite(struct rewrite *w, uint32_t e)
{
    struct exprs *x = w->x;
    struct expr p = x->v[e];
    if (!(p.flags & XF_CALLS) || x->failed) {
        return e;
    }
    if (e < w->n_done && w->done[e]) {
        return w->done[e] - 1;
    }
    uint32_t to = e;
    if (enter(x)) {
        switch ((enum expr_kind)p.kind) {
        case X_CALL: to = w->call[p.a]; break;
        case X_SEQ: to = rewrite_seq(w, e); break;
        case X_ALT: to = rewrite_list(w, p); break;
        case X_REP: to = expr_rep(x, rewrite(w, p.a), p.b, p.c); break;
        case X_OBJECT:
            to = w->object_dead && w->object_dead[p.a] ? (uint32_t)EXPR_NONE : e;
            rewrite_object(w, p.a);
            break;
        default: break;
        }
    }
    x->depth--;
    if (e < w->n_done) {
        w->done[e] = to + 1;
    }
    return to;
}

static void rewrite_all(struct exprs *x, struct rules *r, uint32_t *start, const uint32_t *call,
                        const bool *object_dead)
{
    struct rewrite w = {x, call, object_dead, xcalloc(x->n_objects + 1, 1), NULL, x->n};
    w.done = xcalloc(x->n, sizeof *w.done);
    for (uint32_t i = 0; i < r->n; i++) {
        r->v[i].body = rewrite(&w, r->v[i].body);
    }
    for (uint32_t i = 0; i < x->n_objects; i++) {
        rewrite_object(&w, i);
    }
    *start = rewrite(&w, *start);
    free(w.done);
    free(w.object_done);
}

/* ---- facts of expressions that depend on their rules ---- */

enum fact {
    NULLABLE,   // matches the empty text
    PRODUCTIVE, // matches something
};

struct facts {
    struct exprs *x;
    enum fact fact;
    bool *rule, *object;
    uint8_t *memo; // by expression, valid for one iteration: 1 means no, 2 means yes
};

static bool holds(struct facts *f, uint32_t e);

/* Whether the fact (can match the empty text, or can match any text at all) holds for an
 * expression, given what is known about the rules so far. */
static bool holds_fresh(struct facts *f, uint32_t e)
{
    struct exprs *x = f->x;
    struct expr p = x->v[e];
    switch ((enum expr_kind)p.kind) {
    case X_CALL: return f->rule[p.a];
    case X_OBJECT: return f->fact == PRODUCTIVE ? f->object[p.a] : (p.flags & XF_NULLABLE) != 0;
    case X_SEQ:
        for (; x->v[e].kind == X_SEQ; e = x->v[e].b) {
            if (!holds(f, x->v[e].a)) {
                return false;
            }
        }
        return holds(f, e);
    case X_ALT:
        for (uint32_t i = 0; i < p.b; i++) {
            if (holds(f, x->list[p.a + i])) {
                return true;
            }
        }
        return false;
    case X_REP: return p.b == 0 || holds(f, p.a);
    default: return f->fact == PRODUCTIVE && e != EXPR_NONE;
    }
}

static bool holds(struct facts *f, uint32_t e)
{
    const struct expr *p = &f->x->v[e];
    if (!(p->flags & XF_CALLS)) {
        if (f->fact == PRODUCTIVE) {
            return e != EXPR_NONE;
        }
        return (p->flags & XF_NULLABLE) != 0;
    }
    if (!f->memo[e]) {
        bool yes = enter(f->x) && holds_fresh(f, e);
        f->x->depth--;
        f->memo[e] = yes ? 2 : 1;
    }
    return f->memo[e] == 2;
}

static bool object_holds(struct facts *f, const struct expr_object *o)
{
    struct expr_object copy = *o; // the object without its dead properties
    copy.v = xmalloc((o->n + 1) * sizeof *copy.v);
    for (uint32_t i = 0; i < o->n; i++) {
        copy.v[i] = o->v[i];
        if (holds(f, o->v[i].value)) {
            copy.v[i].value = o->v[i].value;
        } else {
            copy.v[i].value = (uint32_t)EXPR_NONE;
        }
    }
    copy.other = holds(f, o->other) ? o->other : (uint32_t)EXPR_NONE;
    bool yes = object_has_room(&copy);
    free(copy.v);
    return yes;
}

/* Computes the least fixed point: the rules and objects for which the fact holds. */
static void find_facts(struct facts *f, const struct rules *r)
{
    bool more = true, down = true;
    f->memo = xmalloc(f->x->n);
    f->rule = xcalloc(r->n + 1, 1);
    f->object = xcalloc(f->x->n_objects + 1, 1);
    while (more && !f->x->failed) {
        more = false;
        memset(f->memo, 0, f->x->n);
        exprs_spend(f->x, f->x->n / 8);
        for (uint32_t i = 0; i < f->x->n_objects && f->fact == PRODUCTIVE; i++) {
            if (!f->object[i] && object_holds(f, f->x->objects[i])) {
                f->object[i] = more = true;
            }
        }
        for (uint32_t i = 0; i < r->n; i++) {
            uint32_t at = down ? i : r->n - 1 - i;
            if (!f->rule[at] && holds(f, r->v[at].body)) {
                f->rule[at] = more = true;
            }
        }
        down = !down;
    }
}

static void facts_deinit(struct facts *f)
{
    free(f->memo);
    free(f->rule);
    free(f->object);
}

/* ---- removing the empty text from rules ---- */

/* `e` without the empty text. */
static uint32_t not_empty(struct exprs *x, uint32_t e)
{
    struct expr p = x->v[e];
    if (!(p.flags & XF_NULLABLE) || x->failed) {
        return e;
    }
    uint32_t to = EXPR_NONE;
    if (enter(x)) {
        switch ((enum expr_kind)p.kind) {
        case X_EMPTY: break;
        case X_SEQ:
            to = expr_alt2(x, expr_seq(x, not_empty(x, p.a), p.b), not_empty(x, p.b));
            break;
        case X_ALT:
            for (uint32_t i = 0; i < p.b; i++) {
                to = expr_alt2(x, to, not_empty(x, x->list[p.a + i]));
            }
            break;
        case X_REP: {
            uint32_t a = not_empty(x, p.a);
            to = expr_seq(x, a, expr_rep(x, a, 0, expr_less(p.c, 1)));
            break;
        }
        default: to = expr_and2(x, e, expr_rep(x, x->any_char, 1, EXPR_INF)); break;
        }
    }
    x->depth--;
    return to;
}

/* After this, no rule matches the empty text; calls of the rules that matched it are optional. The
 * automaton relies on this, because otherwise a step could expand calls for ever. */
static void remove_empty(struct exprs *x, struct rules *r, uint32_t *start)
{
    struct facts f = {.x = x, .fact = NULLABLE};
    find_facts(&f, r);
    uint32_t *call = xcalloc(r->n + 1, sizeof *call);
    bool any = false;
    for (uint32_t i = 0; i < r->n; i++) {
        call[i] = expr_call(x, i);
        if (f.rule[i]) {
            call[i] = expr_optional(x, call[i]);
        }
        any |= f.rule[i];
    }
    if (any) {
        rewrite_all(x, r, start, call, NULL);
    }
    for (uint32_t i = 0; i < r->n && any; i++) {
        r->v[i].body = not_empty(x, r->v[i].body);
    }
    free(call);
    facts_deinit(&f);
}

/* ---- left recursion ---- */

struct graph {
    struct exprs *x;
    struct rules *r;
    uint32_t *number, *low, *stack, n_stack, count;
    bool *waits;
    uint32_t *group; // by rule: the index of its group, plus 1
    uint32_t n_groups;
};

/* Tarjan's algorithm. Finds groups of mutually left-recursive rules. If a rule begins with a call
 * into another group, the rule's own group has the higher number. */
static void visit(struct graph *g, uint32_t v)
{
    g->number[v] = g->low[v] = ++g->count;
    g->stack[g->n_stack++] = v;
    g->waits[v] = true;
    struct expr_calls calls = {0};
    if (enter(g->x)) {
        expr_first_calls(g->x, g->r->v[v].body, &calls);
    }
    for (size_t i = 0; i < calls.n; i++) {
        uint32_t w = calls.v[i].rule;
        if (!g->number[w]) {
            visit(g, w);
        }
        if (g->waits[w] && g->low[w] < g->low[v]) {
            g->low[v] = g->low[w];
        }
    }
    g->x->depth--;
    free(calls.v);
    if (g->low[v] == g->number[v]) {
        g->n_groups++;
        uint32_t w;
        do {
            w = g->stack[--g->n_stack];
            g->waits[w] = false;
            g->group[w] = g->n_groups;
        } while (w != v);
    }
}

static void graph_make(struct graph *g, struct exprs *x, struct rules *r)
{
    *g = (struct graph){.x = x, .r = r};
    g->number = xcalloc(r->n + 1, sizeof *g->number);
    g->low = xcalloc(r->n + 1, sizeof *g->low);
    g->stack = xcalloc(r->n + 1, sizeof *g->stack);
    g->group = xcalloc(r->n + 1, sizeof *g->group);
    g->waits = xcalloc(r->n + 1, 1);
    for (uint32_t v = 0; v < r->n && !x->failed; v++) {
        if (!g->number[v]) {
            visit(g, v);
        }
    }
}

static void graph_free(struct graph *g)
{
    free(g->number);
    free(g->low);
    free(g->stack);
    free(g->group);
    free(g->waits);
}

uint32_t rules_without_calls(struct exprs *x, uint32_t e)
{
    struct expr p = x->v[e];
    if (!(p.flags & XF_CALL_FIRST) || x->failed) {
        return not_empty(x, e);
    }
    uint32_t to = EXPR_NONE;
    if (enter(x)) {
        switch ((enum expr_kind)p.kind) {
        case X_SEQ:
            to = expr_seq(x, rules_without_calls(x, p.a), p.b);
            if (expr_is(x, p.a, XF_NULLABLE)) {
                to = expr_alt2(x, to, rules_without_calls(x, p.b));
            }
            break;
        case X_ALT:
            for (uint32_t i = 0; i < p.b; i++) {
                to = expr_alt2(x, to, rules_without_calls(x, x->list[p.a + i]));
            }
            break;
        case X_REP: {
            to = expr_seq(x, rules_without_calls(x, p.a),
                          expr_rep(x, p.a, expr_less(p.b, 1), expr_less(p.c, 1)));
            break;
        }
        default: break;
        }
    }
    x->depth--;
    return to;
}

/* A group of n rules as a system of equations: A_k = sum over j of A_j after[j][k], plus
 * first[k]. */
struct group {
    uint32_t n, *rule;
    uint32_t *first, *after;
    bool *unit; // [j][k]: A_j derives from A_k through unit rules, in any number of steps
};

/* Splits each body of the group into what does not begin with a call inside the group (first) and
 * what follows such a call (after). `unit` becomes the transitive closure of the calls that nothing
 * follows. */
static void group_read(struct group *s, struct exprs *x, struct rules *r, const uint32_t *member)
{
    uint32_t n = s->n;
    for (uint32_t k = 0; k < n && !x->failed; k++) {
        struct expr_calls calls = {0};
        uint32_t body = r->v[s->rule[k]].body;
        expr_first_calls(x, body, &calls);
        s->first[k] = rules_without_calls(x, body);
        for (size_t i = 0; i < calls.n; i++) {
            uint32_t j = member[calls.v[i].rule], rest = calls.v[i].rest;
            if (j == 0) {
                uint32_t call = expr_seq(x, expr_call(x, calls.v[i].rule), rest);
                s->first[k] = expr_alt2(x, s->first[k], call);
                continue;
            }
            uint32_t *after = &s->after[(j - 1) * n + k];
            s->unit[(j - 1) * n + k] |= expr_is(x, rest, XF_NULLABLE);
            *after = expr_alt2(x, *after, not_empty(x, rest));
        }
        free(calls.v);
        s->unit[k * n + k] = true;
    }
    for (uint32_t m = 0; m < n; m++) {
        for (uint32_t j = 0; j < n; j++) {
            for (uint32_t k = 0; k < n; k++) {
                s->unit[j * n + k] |= s->unit[j * n + m] && s->unit[m * n + k];
            }
        }
    }
}

/* A_i = sum over j of first[j] C_ji, where C_ji is what may follow an A_j at the start of an A_i:
 * C_ji = empty if A_j is an A_i, or after[j][k] C_ki. */
static void group_solve(const struct group *s, struct exprs *x, struct rules *r)
{
    uint32_t n = s->n, base = r->n;
    for (uint32_t i = 0; i < n * n; i++) {
        rules_add(r);
    }
    for (uint32_t i = 0; i < n && !x->failed; i++) {
        uint32_t whole = EXPR_NONE;
        for (uint32_t j = 0; j < n && !x->failed; j++) {
            uint32_t body = EXPR_NONE;
            for (uint32_t m = 0; m < n; m++) {
                for (uint32_t k = 0; s->unit[j * n + m] && k < n && exprs_spend(x, 1); k++) {
                    uint32_t more = expr_call(x, base + k * n + i);
                    if (s->unit[k * n + i]) {
                        more = expr_optional(x, more);
                    }
                    body = expr_alt2(x, body, expr_seq(x, s->after[m * n + k], more));
                }
            }
            r->v[base + j * n + i].body = body;
            uint32_t tail = expr_call(x, base + j * n + i);
            if (s->unit[j * n + i]) {
                tail = expr_optional(x, tail);
            }
            whole = expr_alt2(x, whole, expr_seq(x, s->first[j], tail));
        }
        r->v[s->rule[i]].body = whole;
    }
}

/* The matrices have n * n elements, so the size of a group is limited. */
static void solve_group(struct exprs *x, struct rules *r, const uint32_t *rule, uint32_t n)
{
    struct group s = {.n = n};
    if (n > CYCLE_MAX) {
        x->failed = true;
        return;
    }
    uint32_t *member = xcalloc(r->n, sizeof *member);
    s.rule = xcalloc(n, sizeof *s.rule);
    s.first = xcalloc(n, sizeof *s.first);
    s.after = xcalloc((size_t)n * n, sizeof *s.after);
    s.unit = xcalloc((size_t)n * n, 1);
    for (uint32_t i = 0; i < n; i++) {
        s.rule[i] = rule[i];
        member[rule[i]] = i + 1;
    }
    group_read(&s, x, r, member);
    group_solve(&s, x, r);
    free(member);
    free(s.rule);
    free(s.first);
    free(s.after);
    free(s.unit);
}

static bool calls_itself_first(struct exprs *x, const struct rules *r, uint32_t v)
{
    struct expr_calls calls = {0};
    bool yes = false;
    expr_first_calls(x, r->v[v].body, &calls);
    for (size_t i = 0; i < calls.n; i++) {
        yes |= calls.v[i].rule == v;
    }
    free(calls.v);
    return yes;
}

/* Rules that begin with calls of each other form groups. Within a group, left recursion is replaced
 * by repetition, so that expanding calls up to the next byte always ends. */
static void remove_left_recursion(struct exprs *x, struct rules *r)
{
    struct graph g;
    uint32_t n_rules = r->n;
    graph_make(&g, x, r);
    uint32_t *size = xcalloc(g.n_groups + 2, sizeof *size),
             *list = xcalloc(n_rules + 1, sizeof *list);
    for (uint32_t v = 0; v < n_rules; v++) {
        size[g.group[v]]++;
    }
    // Where each group's rules start in the list.
    for (uint32_t at = 1, from = 0; at <= g.n_groups; at++) {
        uint32_t n = size[at];
        size[at] = from;
        from += n;
    }
    size[g.n_groups + 1] = n_rules;
    for (uint32_t v = 0; v < n_rules && !x->failed; v++) {
        list[size[g.group[v]]++] = v;
    }
    for (uint32_t at = 1, from = 0; at <= g.n_groups && !x->failed; from = size[at++]) {
        uint32_t n = size[at] - from;
        if (n > 1 || calls_itself_first(x, r, list[from])) {
            solve_group(x, r, list + from, n);
        }
    }
    free(size);
    free(list);
    graph_free(&g);
}

/* Rules that can match no text at all are replaced by EXPR_NONE, so that no mask allows a token
 * after which the text cannot be completed. */
static void remove_dead(struct exprs *x, struct rules *r, uint32_t *start)
{
    struct facts f = {.x = x, .fact = PRODUCTIVE};
    find_facts(&f, r);
    uint32_t *call = xcalloc(r->n + 1, sizeof *call);
    bool *dead = xcalloc(x->n_objects + 1, 1);
    for (uint32_t i = 0; i < r->n; i++) {
        call[i] = f.rule[i] ? expr_call(x, i) : (uint32_t)EXPR_NONE;
    }
    for (uint32_t i = 0; i < x->n_objects; i++) {
        dead[i] = !f.object[i];
    }
    rewrite_all(x, r, start, call, dead);
    free(call);
    free(dead);
    facts_deinit(&f);
}

static void set_order(struct exprs *x, struct rules *r)
{
    struct graph g;
    graph_make(&g, x, r);
    for (uint32_t v = 0; v < r->n; v++) {
        r->v[v].order = UINT32_MAX - g.group[v];
    }
    x->failed |= g.n_groups != r->n; // otherwise some left recursion remains
    graph_free(&g);
}

enum status rules_finish(struct exprs *x, struct rules *r, uint32_t *start, struct err *err)
{
    remove_empty(x, r, start);
    remove_left_recursion(x, r);
    remove_dead(x, r, start);
    set_order(x, r);
    for (uint32_t i = 0; i < x->n_objects && !x->failed; i++) {
        object_finish(x, x->objects[i]);
    }
    if (x->failed) {
        return err_set(err, ERR_LIMIT, "the grammar is too large or too complex");
    }
    if (*start == EXPR_NONE) {
        return err_set(err, ERR_INVALID, "the grammar matches nothing: no text can be an answer");
    }
    return OK;
}
