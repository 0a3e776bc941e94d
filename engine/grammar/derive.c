// SPDX-License-Identifier: Apache-2.0
/* Derivatives of expressions, and the search for dead ones. */
#include "engine/grammar/expr.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/grammar/object.h"
#include "engine/grammar/text.h"

#include <stdlib.h>
#include <string.h>

enum { DERIVE_DEPTH = 4000 }; // limit of recursion; far more than parsers accept

/* ---- the memo ---- */

static struct derived *memo_slot(struct exprs *x, uint64_t key)
{
    size_t i = (size_t)hash_mix(key) & (x->memo_size - 1);
    while (x->memo[i].key != 0 && x->memo[i].key != key) {
        i = (i + 1) & (x->memo_size - 1);
    }
    return &x->memo[i];
}

/* The table stays at most half full. Entries are never removed: a derivative depends only on the
 * expression and the byte. */
static void memo_put(struct exprs *x, uint64_t key, uint32_t to)
{
    if (x->n_memo * 2 >= x->memo_size) {
        struct derived *old = x->memo;
        uint32_t size = x->memo_size;
        x->memo_size = size ? size * 2 : 256;
        x->memo = xcalloc(x->memo_size, sizeof *x->memo);
        for (uint32_t i = 0; i < size; i++) {
            if (old[i].key != 0) {
                *memo_slot(x, old[i].key) = old[i];
            }
        }
        free(old);
    }
    *memo_slot(x, key) = (struct derived){key, to};
    x->n_memo++;
}

/* ---- derivatives ---- */

static uint32_t derive(struct exprs *x, uint32_t e, uint8_t byte);

/* A growing list of branches. */
struct branches {
    uint32_t some[16], *v;
    size_t n, cap;
};

/* EXPR_NONE is dropped, because it adds nothing to an alternative. The first entries are stored on
 * the caller's stack. */
static void branches_put(struct branches *b, uint32_t e)
{
    if (e == EXPR_NONE) {
        return;
    }
    if (b->n == b->cap) {
        uint32_t *more = xmalloc(2 * b->cap * sizeof *more);
        memcpy(more, b->v, b->n * sizeof *more);
        if (b->v != b->some) {
            free(b->v);
        }
        b->v = more;
        b->cap *= 2;
    }
    b->v[b->n++] = e;
}

/* Most lists have only a few branches, and need no allocation. */
static uint32_t branches_end(struct exprs *x, struct branches *b)
{
    uint32_t e = b->n == 0 ? (uint32_t)EXPR_NONE : b->v[0];
    if (b->n > 1) {
        e = expr_alt(x, b->v, b->n);
    }
    if (b->v != b->some) {
        free(b->v);
    }
    return e;
}

static void branches_init(struct branches *b)
{
    b->v = b->some;
    b->n = 0;
    b->cap = sizeof b->some / sizeof *b->some;
}

/* (ab)' = a'b, plus b' if a may be empty. Sequences are walked in a loop instead of by
 * recursion. */
static uint32_t derive_seq(struct exprs *x, uint32_t e, uint8_t byte)
{
    struct branches out;
    branches_init(&out);
    while (x->v[e].kind == X_SEQ && !x->failed) {
        uint32_t a = x->v[e].a, b = x->v[e].b;
        branches_put(&out, expr_seq(x, derive(x, a, byte), b));
        e = b;
        if (!expr_is(x, a, XF_NULLABLE)) {
            return branches_end(x, &out);
        }
    }
    branches_put(&out, derive(x, e, byte));
    return branches_end(x, &out);
}

static uint32_t derive_alt(struct exprs *x, struct expr e, uint8_t byte)
{
    struct branches out;
    branches_init(&out);
    for (uint32_t i = 0; i < e.b && !x->failed; i++) {
        branches_put(&out, derive(x, x->list[e.a + i], byte));
    }
    return branches_end(x, &out);
}

/* The derivative of an intersection is the intersection of the derivatives. The children are in
 * x->list, which derive() may move, so they are read by index in every round. */
static uint32_t derive_and(struct exprs *x, struct expr e, uint8_t byte)
{
    struct branches out;
    branches_init(&out);
    bool dead = false;
    exprs_spend(x, e.b);
    for (uint32_t i = 0; i < e.b && !x->failed && !dead; i++) {
        uint32_t d = derive(x, x->list[e.a + i], byte);
        dead = d == EXPR_NONE;
        branches_put(&out, d);
    }
    uint32_t all = dead ? (uint32_t)EXPR_NONE : expr_and(x, out.v, out.n);
    out.n = 0;
    branches_end(x, &out);
    return all;
}

static uint32_t derive_rep(struct exprs *x, struct expr e, uint8_t byte)
{
    uint32_t first = derive(x, e.a, byte);
    if (first == EXPR_NONE) {
        return EXPR_NONE;
    }
    return expr_seq(x, first, expr_rep(x, e.a, expr_less(e.b, 1), expr_less(e.c, 1)));
}

/* The state is the remainder of the digits so far; from any remainder, further digits can reach 0.
 * If a point is allowed, a separate expression limits the digits after it. */
static uint32_t derive_multiple(struct exprs *x, uint32_t id, struct expr e, uint8_t byte)
{
    if (byte == '.' && e.c) {
        return id;
    }
    if (byte < '0' || byte > '9') {
        return EXPR_NONE;
    }
    uint32_t rest = (uint32_t)(((uint64_t)e.b * 10 + (byte - '0')) % e.a);
    uint8_t flags = rest == 0 ? XF_NULLABLE : 0;
    return expr_make(
        x, (struct expr){.kind = X_MULTIPLE, .flags = flags, .a = e.a, .b = rest, .c = e.c});
}

/* One derivative, without the memo table. A rule call has no derivative, because the automaton
 * expands calls into items before it steps. */
static uint32_t derive_fresh(struct exprs *x, uint32_t id, uint8_t byte)
{
    struct expr e = x->v[id];
    switch ((enum expr_kind)e.kind) {
    case X_SEQ: return derive_seq(x, id, byte);
    case X_ALT: return derive_alt(x, e, byte);
    case X_AND: return derive_and(x, e, byte);
    case X_NOT: return expr_not(x, derive(x, e.a, byte));
    case X_REP: return derive_rep(x, e, byte);
    case X_TEXT: return text_derive(x, id, byte);
    case X_MULTIPLE: return derive_multiple(x, id, e, byte);
    case X_OBJECT: return derive(x, object_expand(x, id), byte);
    case X_KEY: return object_derive_key(x, id, byte);
    case X_NONE:
    case X_EMPTY:
    case X_BYTES:
    case X_CALL: break;
    }
    return EXPR_NONE;
}

/* Derivatives are memoised. Each call spends work, and the depth of recursion is limited, because
 * grammars come from clients. */
static uint32_t derive(struct exprs *x, uint32_t e, uint8_t byte)
{
    uint8_t kind = x->v[e].kind;
    if (kind == X_BYTES) {
        if (byte_set_has(&x->sets[x->v[e].a], byte)) {
            return EXPR_EMPTY;
        }
        return EXPR_NONE;
    }
    if (kind == X_NONE || kind == X_EMPTY || kind == X_CALL || !exprs_spend(x, 1)) {
        return EXPR_NONE;
    }
    uint64_t key = (uint64_t)e << 8 | byte;
    if (x->memo_size > 0) {
        struct derived *slot = memo_slot(x, key);
        if (slot->key == key) {
            return slot->to;
        }
    }
    if (++x->depth > DERIVE_DEPTH) {
        x->failed = true;
    }
    uint32_t to = derive_fresh(x, e, byte);
    x->depth--;
    if (x->failed) {
        return EXPR_NONE;
    }
    memo_put(x, key, to);
    return to;
}

uint32_t expr_derive(struct exprs *x, uint32_t e, uint8_t byte)
{
    uint32_t d = derive(x, e, byte);
    if (expr_is(x, d, XF_DOUBT)) {
        return expr_clean(x, d);
    }
    return d;
}

/* ---- dead branches ---- */

/* A depth-first search with its path; a table contains the expressions that have been seen. */
struct search {
    struct visit {
        uint32_t e, parent;
    } *v;
    uint32_t n, cap;
    uint32_t *stack; // indices in v
    uint32_t n_stack, cap_stack;
    uint32_t *seen, seen_size; // hash table with open addressing: index + 1
};

/* Returns false if the expression has been found before. `parent` leads back to the start, so that
 * the path to a match can be marked. */
static bool search_add(struct search *s, uint32_t e, uint32_t parent)
{
    if (s->n * 2 >= s->seen_size) {
        free(s->seen);
        s->seen_size = s->seen_size ? s->seen_size * 2 : 64;
        s->seen = xcalloc(s->seen_size, sizeof *s->seen);
        for (uint32_t i = 0; i < s->n; i++) {
            size_t at = hash_mix(s->v[i].e) & (s->seen_size - 1);
            while (s->seen[at]) {
                at = (at + 1) & (s->seen_size - 1);
            }
            s->seen[at] = i + 1;
        }
    }
    size_t at = hash_mix(e) & (s->seen_size - 1);
    for (; s->seen[at]; at = (at + 1) & (s->seen_size - 1)) {
        if (s->v[s->seen[at] - 1].e == e) {
            return false;
        }
    }
    GROW(s->v, s->n, s->cap);
    GROW(s->stack, s->n_stack, s->cap_stack);
    s->v[s->n] = (struct visit){e, parent};
    s->stack[s->n_stack++] = s->n++;
    s->seen[at] = s->n;
    return true;
}

/* 1: it is known to match something; 0: it is known to match nothing; otherwise unknown. */
static int known(const struct exprs *x, uint32_t e)
{
    const struct expr *p = &x->v[e];
    if (e == EXPR_NONE || p->clean == EXPR_NONE + 1) {
        return 0;
    }
    if (!(p->flags & XF_DOUBT) || (p->flags & XF_NULLABLE) || p->clean) {
        return 1;
    }
    return -1;
}

/* True if an X_AND only limits the length of another expression, and that expression has a short
 * enough text. A search would have to begin anew for every remaining length. */
static bool fits_length(struct exprs *x, uint32_t id)
{
    struct expr e = x->v[id];
    if (e.kind != X_AND || e.b != 2) {
        return false;
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct expr length = x->v[x->list[e.a + i]];
        if (length.kind == X_REP && length.a == x->any_char && length.b == 0) {
            uint32_t n = expr_shortest(x, x->list[e.a + 1 - i]);
            return n != EXPR_INF && n <= length.c;
        }
    }
    return false;
}

/* Whether an X_AND or X_NOT matches anything. Searches its derivatives for one that accepts the
 * empty text, and records the result for all derivatives on the path to it. */
static bool search_match(struct exprs *x, uint32_t e)
{
    if (known(x, e) >= 0) {
        return known(x, e) == 1;
    }
    if (fits_length(x, e)) {
        return true;
    }
    struct search s = {0};
    search_add(&s, e, 0);
    uint32_t found = UINT32_MAX;
    exprs_classify(x);
    while (s.n_stack > 0 && found == UINT32_MAX && !x->failed) {
        uint32_t at = s.stack[--s.n_stack];
        for (int c = 0; c < x->n_classes && found == UINT32_MAX && !x->failed; c++) {
            uint32_t d = derive(x, s.v[at].e, x->class_byte[c]);
            int k = known(x, d);
            if (k == 1) {
                found = at;
            } else if (k < 0) {
                search_add(&s, d, at);
            }
        }
    }
    for (uint32_t at = found; found != UINT32_MAX; at = s.v[at].parent) {
        uint32_t v = s.v[at].e;
        if (x->v[v].kind == X_AND || x->v[v].kind == X_NOT) {
            x->v[v].clean = v + 1;
        }
        if (at == 0) {
            break;
        }
    }
    for (uint32_t i = 0; i < s.n && found == UINT32_MAX && !x->failed; i++) {
        x->v[s.v[i].e].clean = EXPR_NONE + 1;
    }
    free(s.v);
    free(s.stack);
    free(s.seen);
    return found != UINT32_MAX;
}

/* Cleans an alternative: drops the branches that match nothing. */
static uint32_t clean_alt(struct exprs *x, struct expr e)
{
    struct branches out;
    branches_init(&out);
    for (uint32_t i = 0; i < e.b && !x->failed; i++) {
        branches_put(&out, expr_clean(x, x->list[e.a + i]));
    }
    return branches_end(x, &out);
}

/* Cleans a sequence, its last part first: if that matches nothing, neither does the sequence, and
 * the other parts need not be cleaned. Sequences can be long, so they are walked in a loop instead
 * of by recursion. */
static uint32_t clean_seq(struct exprs *x, uint32_t e)
{
    struct branches part; // the parts of the sequence, in order
    branches_init(&part);
    uint32_t rest = e;
    for (; x->v[rest].kind == X_SEQ && expr_is(x, rest, XF_DOUBT) && !x->v[rest].clean;
         rest = x->v[rest].b) {
        branches_put(&part, x->v[rest].a);
    }
    rest = expr_clean(x, rest);
    while (part.n > 0 && rest != EXPR_NONE && !x->failed) {
        rest = expr_seq(x, expr_clean(x, part.v[--part.n]), rest);
    }
    part.n = 0;
    branches_end(x, &part);
    return rest;
}

/* Removes branches that match nothing. Only intersections and complements (XF_DOUBT) need a search
 * for a match; the result is stored in the node. */
uint32_t expr_clean(struct exprs *x, uint32_t id)
{
    struct expr e = x->v[id];
    if (!(e.flags & XF_DOUBT) || x->failed) {
        return id;
    }
    if (e.clean) {
        return e.clean - 1;
    }
    if (++x->depth > DERIVE_DEPTH) {
        x->failed = true;
        return EXPR_NONE;
    }
    uint32_t to = id;
    switch ((enum expr_kind)e.kind) {
    case X_AND:
    case X_NOT: to = search_match(x, id) ? id : (uint32_t)EXPR_NONE; break;
    case X_ALT: to = clean_alt(x, e); break;
    case X_SEQ: to = clean_seq(x, id); break;
    case X_REP: to = expr_rep(x, expr_clean(x, e.a), e.b, e.c); break;
    case X_TEXT: to = text_clean(x, id); break;
    default: break;
    }
    x->depth--;
    if (!x->failed) {
        x->v[id].clean = to + 1;
        x->v[to].clean = to + 1;
    }
    return to;
}

/* ---- calls ---- */

static void calls_put(struct expr_calls *out, uint32_t rule, uint32_t rest)
{
    GROW(out->v, out->n, out->cap);
    out->v[out->n++] = (struct expr_first){rule, rest};
}

/* The calls that an expression may begin with, each with what follows it in that expression. */
void expr_first_calls(struct exprs *x, uint32_t id, struct expr_calls *out)
{
    struct expr e = x->v[id];
    if (!(e.flags & XF_CALL_FIRST) || !exprs_spend(x, 1)) {
        return;
    }
    size_t from = out->n;
    switch ((enum expr_kind)e.kind) {
    case X_CALL: calls_put(out, e.a, EXPR_EMPTY); break;
    case X_SEQ:
        expr_first_calls(x, e.a, out);
        for (size_t i = from; i < out->n; i++) {
            out->v[i].rest = expr_seq(x, out->v[i].rest, e.b);
        }
        if (expr_is(x, e.a, XF_NULLABLE)) {
            expr_first_calls(x, e.b, out);
        }
        break;
    case X_ALT:
        for (uint32_t i = 0; i < e.b; i++) {
            expr_first_calls(x, x->list[e.a + i], out);
        }
        break;
    case X_REP: {
        uint32_t again = expr_rep(x, e.a, expr_less(e.b, 1), expr_less(e.c, 1));
        expr_first_calls(x, e.a, out);
        for (size_t i = from; i < out->n; i++) {
            out->v[i].rest = expr_seq(x, out->v[i].rest, again);
        }
        break;
    }
    default: break;
    }
}
