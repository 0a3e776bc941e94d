// SPDX-License-Identifier: Apache-2.0
/* The shortest text of an expression, as far as its form shows it. */
#include "engine/base/minmax.h"
#include "engine/grammar/expr.h"

enum {
    PARTS_MAX = 200, // chosen: parts of an expression that are looked at
    DEPTH_MAX = 50,  // chosen: limit of recursion
};

static uint64_t shortest(struct exprs *x, uint32_t id, int *parts, int depth);

static uint64_t shortest_seq(struct exprs *x, uint32_t id, int *parts, int depth)
{
    uint64_t n = 0;
    for (; x->v[id].kind == X_SEQ && n < EXPR_INF; id = x->v[id].b) {
        n += shortest(x, x->v[id].a, parts, depth + 1);
    }
    return n < EXPR_INF ? n + shortest(x, id, parts, depth + 1) : EXPR_INF;
}

static uint64_t shortest_alt(struct exprs *x, struct expr e, int *parts, int depth)
{
    uint64_t least = EXPR_INF;
    for (uint32_t i = 0; i < e.b; i++) {
        uint64_t n = shortest(x, x->list[e.a + i], parts, depth + 1);
        least = lesser(n, least);
    }
    return least;
}

/* Sums of a few numbers below 2^32, and products of two, fit in 64 bits. */
static uint64_t shortest(struct exprs *x, uint32_t id, int *parts, int depth)
{
    struct expr e = x->v[id];
    if (--*parts < 0 || depth > DEPTH_MAX || !exprs_spend(x, 1)) {
        return EXPR_INF;
    }
    if (e.flags & XF_NULLABLE) {
        return 0;
    }
    switch ((enum expr_kind)e.kind) {
    case X_BYTES: return x->sets[e.a].w[0] | x->sets[e.a].w[1] ? 1 : EXPR_INF;
    case X_SEQ: return shortest_seq(x, id, parts, depth);
    case X_ALT: return shortest_alt(x, e, parts, depth);
    case X_REP: {
        uint64_t n = e.b * shortest(x, e.a, parts, depth + 1);
        return lesser(n, EXPR_INF);
    }
    default: return EXPR_INF;
    }
}

uint32_t expr_shortest(struct exprs *x, uint32_t e)
{
    int parts = PARTS_MAX;
    uint64_t n = shortest(x, e, &parts, 0);
    return n < EXPR_INF ? (uint32_t)n : EXPR_INF;
}
