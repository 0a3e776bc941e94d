// SPDX-License-Identifier: Apache-2.0
/* Constructs expressions and simplifies each while it is constructed: sequences are nested to the
 * right, alternatives merged and factored, repetitions folded. */
#include "engine/grammar/expr.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { FACTOR_DEPTH = 100 }; // alternatives are factored by their first parts to this depth

uint32_t expr_bytes(struct exprs *x, const struct byte_set *set)
{
    if (!(set->w[0] | set->w[1] | set->w[2] | set->w[3])) {
        return EXPR_NONE;
    }
    uint32_t i = 0;
    while (i < x->n_sets && memcmp(&x->sets[i], set, sizeof *set) != 0) {
        i++;
    }
    exprs_spend(x, 1 + i / 16);
    if (i == x->n_sets) {
        GROW(x->sets, x->n_sets, x->cap_sets);
        x->sets[x->n_sets++] = *set;
    }
    return expr_make(x, (struct expr){.kind = X_BYTES, .a = i});
}

uint32_t expr_byte_range(struct exprs *x, int lo, int hi)
{
    struct byte_set s = {0};
    for (int b = lo; b <= hi; b++) {
        byte_set_add(&s, (unsigned)b);
    }
    return expr_bytes(x, &s);
}

uint32_t expr_byte(struct exprs *x, uint8_t byte)
{
    exprs_spend(x, 1);
    if (!x->byte[byte]) {
        x->byte[byte] = expr_byte_range(x, byte, byte);
    }
    return x->byte[byte];
}

static uint32_t cons(struct exprs *x, uint32_t a, uint32_t b)
{
    uint8_t fa = x->v[a].flags, fb = x->v[b].flags;
    unsigned flags = ((fa & fb) & XF_NULLABLE) | ((fa | fb) & (XF_CALLS | XF_DOUBT | XF_TEXT)) |
                     (fa & XF_CALL_FIRST);
    flags |= (fa & XF_NULLABLE) ? fb & XF_CALL_FIRST : 0u;
    return expr_make(x, (struct expr){.kind = X_SEQ, .flags = (uint8_t)flags, .a = a, .b = b});
}

static uint32_t head_of(const struct exprs *x, uint32_t e)
{
    return x->v[e].kind == X_SEQ ? x->v[e].a : e;
}

uint32_t expr_seq(struct exprs *x, uint32_t a, uint32_t b)
{
    if (a == EXPR_NONE || b == EXPR_NONE) {
        return EXPR_NONE;
    }
    if (a == EXPR_EMPTY || b == EXPR_EMPTY) {
        return a == EXPR_EMPTY ? b : a;
    }
    if (x->v[a].kind != X_SEQ) {
        const struct expr *p = &x->v[a]; // a* a* = a*
        bool any = p->kind == X_REP && p->b == 0 && p->c == EXPR_INF;
        if (any && head_of(x, b) == a) {
            return b;
        }
        return cons(x, a, b);
    }
    uint32_t some[32], n = 0, cap = 32, *part = some; // parts of a, which is nested to the right
    for (; x->v[a].kind == X_SEQ; a = x->v[a].b) {
        if (n == cap) {
            uint32_t *more = xmalloc(2 * cap * sizeof *more);
            memcpy(more, part, n * sizeof *more);
            if (part != some) {
                free(part);
            }
            part = more;
            cap *= 2;
        }
        part[n++] = x->v[a].a;
    }
    b = cons(x, a, b);
    while (n > 0 && !x->failed) {
        b = cons(x, part[--n], b);
    }
    if (part != some) {
        free(part);
    }
    return x->failed ? EXPR_NONE : b;
}

uint32_t expr_seq3(struct exprs *x, uint32_t a, uint32_t b, uint32_t c)
{
    return expr_seq(x, a, expr_seq(x, b, c));
}

uint32_t expr_literal(struct exprs *x, const char *s, size_t n)
{
    uint32_t e = EXPR_EMPTY;
    while (n > 0) {
        e = expr_seq(x, expr_byte(x, (uint8_t)s[--n]), e);
    }
    return e;
}

/* A growing list of expressions, which starts out on the stack. */
struct many {
    uint32_t some[24], *v;
    size_t n, cap;
};

static void many_put(struct many *m, uint32_t e)
{
    if (m->n == m->cap) {
        uint32_t *more = xmalloc(2 * m->cap * sizeof *more);
        memcpy(more, m->v, m->n * sizeof *more);
        if (m->v != m->some) {
            free(m->v);
        }
        m->v = more;
        m->cap *= 2;
    }
    m->v[m->n++] = e;
}

static void many_init(struct many *m)
{
    m->v = m->some;
    m->n = 0;
    m->cap = sizeof m->some / sizeof *m->some;
}

static void many_deinit(struct many *m)
{
    if (m->v != m->some) {
        free(m->v);
    }
}

struct headed {
    uint32_t head, e;
};

static int by_head(const void *p, const void *q)
{
    const struct headed *a = p, *b = q;
    if (a->head != b->head) {
        return a->head < b->head ? -1 : 1;
    }
    return a->e < b->e ? -1 : a->e > b->e;
}

static int by_id(const void *p, const void *q)
{
    uint32_t a = *(const uint32_t *)p, b = *(const uint32_t *)q;
    return a < b ? -1 : a > b;
}

/* Sorts branches, removes duplicates, and merges branches with the same first part. */
static void factor(struct exprs *x, struct many *m)
{
    struct headed some[24], *h = m->n <= 24 ? some : xmalloc(m->n * sizeof *h);
    for (size_t i = 0; i < m->n; i++) {
        h[i] = (struct headed){head_of(x, m->v[i]), m->v[i]};
    }
    if (m->n > 1) {
        qsort(h, m->n, sizeof *h, by_head);
    }
    size_t n = 0, end;
    for (size_t i = 0; i < m->n && !x->failed; i = end) {
        end = i + 1;
        while (end < m->n && h[end].head == h[i].head) {
            end++;
        }
        size_t unique = i;
        for (size_t j = i + 1; j < end; j++) {
            if (h[j].e != h[unique].e) {
                h[++unique] = h[j];
            }
        }
        if (unique == i || x->depth > FACTOR_DEPTH) {
            for (size_t j = i; j <= unique; j++) {
                m->v[n++] = h[j].e;
            }
            continue;
        }
        struct many tails;
        many_init(&tails);
        for (size_t j = i; j <= unique; j++) {
            many_put(&tails, x->v[h[j].e].kind == X_SEQ ? x->v[h[j].e].b : EXPR_EMPTY);
        }
        x->depth++;
        uint32_t tail = expr_alt(x, tails.v, tails.n);
        x->depth--;
        m->v[n++] = expr_seq(x, h[i].head, tail);
        many_deinit(&tails);
    }
    m->n = n;
    if (h != some) {
        free(h);
    }
    if (m->n > 1) {
        qsort(m->v, m->n, sizeof *m->v, by_id);
    }
}

/* Collects the branches of all expressions, including those of nested alternatives, and joins sets
 * of bytes to one set. Returns true if one branch is "any text". That branch includes all others,
 * because all alternatives begin at the same place, at the border of a character. */
static bool gather(struct exprs *x, const uint32_t *e, size_t n, struct many *out)
{
    struct byte_set set = {0};
    for (size_t i = 0; i < n; i++) {
        const struct expr *p = &x->v[e[i]];
        const uint32_t *list = p->kind == X_ALT ? x->list + p->a : &e[i];
        for (size_t j = 0; j < (p->kind == X_ALT ? p->b : 1); j++) {
            const struct expr *q = &x->v[list[j]];
            if (list[j] == x->any_text && x->any_text) {
                return true;
            }
            if (q->kind == X_BYTES) {
                for (int w = 0; w < 4; w++) {
                    set.w[w] |= x->sets[q->a].w[w];
                }
            } else if (q->kind != X_NONE) {
                many_put(out, list[j]);
            }
        }
    }
    exprs_spend(x, out->n);
    uint32_t bytes = expr_bytes(x, &set);
    if (bytes != EXPR_NONE) {
        many_put(out, bytes);
    }
    return false;
}

/* The parts are appended to x->list first, because expr_make compares them there. If the node
 * exists already, they are removed again. */
static uint32_t make_list(struct exprs *x, enum expr_kind kind, const struct many *m,
                          unsigned flags)
{
    // If the node exists, its list is there already, and this copy is not needed.
    for (size_t i = 0; i < m->n; i++) {
        GROW(x->list, x->n_list, x->cap_list);
        x->list[x->n_list++] = m->v[i];
    }
    uint32_t n = x->n;
    uint32_t id = expr_make(x, (struct expr){.kind = (uint8_t)kind,
                                             .flags = (uint8_t)flags,
                                             .a = x->n_list - (uint32_t)m->n,
                                             .b = (uint32_t)m->n});
    if (x->n == n) {
        x->n_list -= (uint32_t)m->n;
    }
    return id;
}

uint32_t expr_alt(struct exprs *x, const uint32_t *e, size_t n)
{
    struct many m;
    many_init(&m);
    uint32_t id = x->any_text;
    if (!gather(x, e, n, &m)) {
        factor(x, &m);
        bool empty = false, nullable = false;
        unsigned flags = 0;
        for (size_t i = 0; i < m.n; i++) {
            empty |= m.v[i] == EXPR_EMPTY;
            nullable |= m.v[i] != EXPR_EMPTY && expr_is(x, m.v[i], XF_NULLABLE);
            flags |= x->v[m.v[i]].flags;
        }
        if (empty && nullable) { // the list is sorted, so the empty text is the first
            memmove(m.v, m.v + 1, --m.n * sizeof *m.v);
        }
        id = m.n == 0 ? (uint32_t)EXPR_NONE : m.v[0];
        if (m.n > 1) {
            id = make_list(x, X_ALT, &m, flags);
        }
    }
    many_deinit(&m);
    return x->failed ? EXPR_NONE : id;
}

uint32_t expr_alt2(struct exprs *x, uint32_t a, uint32_t b)
{
    if (a == b || b == EXPR_NONE) {
        return a;
    }
    uint32_t e[2] = {a, b};
    if (a == EXPR_NONE) {
        return b;
    }
    return expr_alt(x, e, 2);
}

uint32_t expr_optional(struct exprs *x, uint32_t a)
{
    return expr_alt2(x, EXPR_EMPTY, a);
}

uint32_t expr_not(struct exprs *x, uint32_t a)
{
    if (x->v[a].kind == X_NOT) {
        return x->v[a].a;
    }
    unsigned flags = (expr_is(x, a, XF_NULLABLE) ? 0u : (unsigned)XF_NULLABLE) | XF_DOUBT;
    return expr_make(x, (struct expr){.kind = X_NOT, .flags = (uint8_t)flags, .a = a});
}

uint32_t expr_and(struct exprs *x, const uint32_t *e, size_t n)
{
    struct many m;
    many_init(&m);
    bool dead = false, positive = false, any = false;
    for (size_t i = 0; i < n; i++) {
        const struct expr *p = &x->v[e[i]];
        const uint32_t *list = p->kind == X_AND ? x->list + p->a : &e[i];
        for (size_t j = 0; j < (p->kind == X_AND ? p->b : 1); j++) {
            const struct expr *q = &x->v[list[j]];
            dead |= list[j] == EXPR_NONE;
            if (list[j] == x->any_text) {
                any = true; // neutral if another member is not an X_NOT
            } else if (q->kind != X_NOT || q->a != EXPR_NONE) {
                positive |= q->kind != X_NOT;
                many_put(&m, list[j]);
            }
        }
    }
    if (any && !positive) {
        many_put(&m, x->any_text);
    }
    qsort(m.v, m.n, sizeof *m.v, by_id);
    size_t unique = 0;
    unsigned flags = XF_NULLABLE;
    for (size_t i = 0; i < m.n; i++) {
        if (i == 0 || m.v[i] != m.v[i - 1]) {
            flags &= x->v[m.v[i]].flags;
            m.v[unique++] = m.v[i];
        }
    }
    m.n = unique;
    uint32_t id = m.n == 0 ? x->any_text : m.v[0];
    if (m.n > 1) {
        id = make_list(x, X_AND, &m, flags | XF_DOUBT);
    }
    many_deinit(&m);
    return dead ? (uint32_t)EXPR_NONE : id;
}

uint32_t expr_and2(struct exprs *x, uint32_t a, uint32_t b)
{
    uint32_t e[2] = {a, b};
    return expr_and(x, e, 2);
}

static uint32_t without_empty_branch(struct exprs *x, uint32_t a)
{
    const struct expr *p = &x->v[a];
    if (p->kind != X_ALT || x->list[p->a] != EXPR_EMPTY) {
        return a;
    }
    struct many m;
    many_init(&m);
    for (uint32_t i = 1; i < p->b; i++) {
        many_put(&m, x->list[p->a + i]);
    }
    uint32_t e = expr_alt(x, m.v, m.n);
    many_deinit(&m);
    return e;
}

uint32_t expr_rep(struct exprs *x, uint32_t a, uint32_t lo, uint32_t hi)
{
    if (expr_is(x, a, XF_NULLABLE)) {
        lo = 0;
        a = without_empty_branch(x, a);
    }
    if (hi == 0 || a == EXPR_EMPTY) {
        return EXPR_EMPTY;
    }
    if (a == EXPR_NONE) {
        return lo == 0 ? EXPR_EMPTY : EXPR_NONE;
    }
    if (lo == 1 && hi == 1) {
        return a;
    }
    if (lo == 0 && hi == 1) {
        return expr_optional(x, a);
    }
    const struct expr *p = &x->v[a];
    if (p->kind == X_REP && p->b <= 1 && p->c == EXPR_INF) {
        return expr_rep(x, p->a, p->b == 0 ? 0 : lo, EXPR_INF);
    }
    unsigned flags = p->flags | (lo == 0 ? (unsigned)XF_NULLABLE : 0u);
    return expr_make(
        x, (struct expr){.kind = X_REP, .flags = (uint8_t)flags, .a = a, .b = lo, .c = hi});
}

uint32_t expr_call(struct exprs *x, uint32_t rule)
{
    return expr_make(x,
                     (struct expr){.kind = X_CALL, .flags = XF_CALLS | XF_CALL_FIRST, .a = rule});
}

/* One character of UTF-8: in its shortest form, not a surrogate, not above U+10FFFF. */
static uint32_t any_char(struct exprs *x)
{
    static const uint8_t rows[][4] = {
        // range of the first byte, and of the second; the first byte determines how many more
        // follow
        {0xc2, 0xdf, 0x80, 0xbf}, {0xe0, 0xe0, 0xa0, 0xbf}, {0xe1, 0xec, 0x80, 0xbf},
        {0xed, 0xed, 0x80, 0x9f}, {0xee, 0xef, 0x80, 0xbf}, {0xf0, 0xf0, 0x90, 0xbf},
        {0xf1, 0xf3, 0x80, 0xbf}, {0xf4, 0xf4, 0x80, 0x8f},
    };
    uint32_t e = expr_byte_range(x, 0, 0x7f), more = expr_byte_range(x, 0x80, 0xbf);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t rest = rows[i][0] >= 0xe0 ? more : (uint32_t)EXPR_EMPTY;
        if (rows[i][0] >= 0xf0) {
            rest = expr_seq(x, more, more);
        }
        uint32_t second = expr_byte_range(x, rows[i][2], rows[i][3]);
        e = expr_alt2(x, e, expr_seq3(x, expr_byte_range(x, rows[i][0], rows[i][1]), second, rest));
    }
    return e;
}

void exprs_init(struct exprs *x, size_t max_bytes, uint64_t max_work)
{
    *x = (struct exprs){.max_bytes = SIZE_MAX, .max_work = UINT64_MAX};
    x->table_size = EXPRS_FIRST_TABLE;
    x->table = xcalloc(x->table_size, sizeof *x->table);
    memset(x->table, 0xff, x->table_size * sizeof *x->table);
    expr_make(x, (struct expr){.kind = X_NONE});
    expr_make(x, (struct expr){.kind = X_EMPTY, .flags = XF_NULLABLE});
    x->any_char = any_char(x);
    x->any_text = expr_rep(x, x->any_char, 0, EXPR_INF);
    x->max_bytes = max_bytes; // the common expressions above are made regardless of the limits
    x->max_work = max_work;
    x->work = 0;
}
