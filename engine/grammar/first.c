// SPDX-License-Identifier: Apache-2.0
/* The bytes that a text of an expression may begin with. Most bytes are not among them, and are
 * known to lead nowhere without a derivative being computed. */
#include "engine/grammar/expr.h"
#include "engine/grammar/object.h"
#include "engine/grammar/text.h"

enum { FIRST_DEPTH = 200 }; // limit of recursion; at that depth any byte is allowed

static void add_set(struct byte_set *to, const struct byte_set *from)
{
    for (int i = 0; i < 4; i++) {
        to->w[i] |= from->w[i];
    }
}

static void add_all(struct byte_set *to)
{
    for (int i = 0; i < 4; i++) {
        to->w[i] = UINT64_MAX;
    }
}

static void first(struct exprs *x, uint32_t id, struct byte_set *out, int depth);

/* The intersection of the bytes that the children may begin with. */
static void first_and(struct exprs *x, struct expr e, struct byte_set *out, int depth)
{
    struct byte_set all;
    add_all(&all);
    for (uint32_t i = 0; i < e.b; i++) {
        struct byte_set one = {{0}};
        first(x, x->list[e.a + i], &one, depth + 1);
        for (int k = 0; k < 4; k++) {
            all.w[k] &= one.w[k];
        }
    }
    add_set(out, &all);
}

static void first_seq(struct exprs *x, uint32_t e, struct byte_set *out, int depth)
{
    while (x->v[e].kind == X_SEQ) {
        first(x, x->v[e].a, out, depth + 1);
        if (!expr_is(x, x->v[e].a, XF_NULLABLE)) {
            return;
        }
        e = x->v[e].b;
    }
    first(x, e, out, depth + 1);
}

/* A superset of the bytes that a text can begin with. It is exact except for X_AND and X_NOT, and
 * below FIRST_DEPTH, where it contains all bytes. */
static void first(struct exprs *x, uint32_t id, struct byte_set *out, int depth)
{
    struct expr e = x->v[id];
    if (depth > FIRST_DEPTH) {
        add_all(out);
        return;
    }
    exprs_spend(x, 1);
    switch ((enum expr_kind)e.kind) {
    case X_BYTES: add_set(out, &x->sets[e.a]); break;
    case X_SEQ: first_seq(x, id, out, depth); break;
    case X_ALT:
        for (uint32_t i = 0; i < e.b; i++) {
            first(x, x->list[e.a + i], out, depth + 1);
        }
        break;
    case X_AND: first_and(x, e, out, depth); break;
    case X_NOT: add_all(out); break;
    case X_REP: first(x, e.a, out, depth + 1); break;
    case X_TEXT: {
        struct byte_set inside = {{0}};
        first(x, e.a, &inside, depth + 1);
        text_first(x, id, &inside, out);
        break;
    }
    case X_MULTIPLE:
        for (const char *c = "0123456789."; *c; c++) {
            byte_set_add(out, (uint8_t)*c);
        }
        break;
    case X_OBJECT: first(x, object_expand(x, id), out, depth + 1); break;
    case X_KEY: object_first_of_key(x, id, out); break;
    case X_NONE:
    case X_EMPTY:
    case X_CALL: break;
    }
}

void expr_first_bytes(struct exprs *x, uint32_t e, struct byte_set *out)
{
    first(x, e, out, 0);
}
