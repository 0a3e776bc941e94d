// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/expr.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

void exprs_deinit(struct exprs *x)
{
    free(x->v);
    free(x->list);
    free(x->sets);
    free(x->table);
    free(x->memo);
    free(x->objects);
    *x = (struct exprs){0};
}

size_t exprs_bytes(const struct exprs *x)
{
    return x->cap * sizeof *x->v + x->cap_list * sizeof *x->list + x->cap_sets * sizeof *x->sets +
           x->table_size * sizeof *x->table + x->memo_size * sizeof *x->memo;
}

bool exprs_spend(struct exprs *x, uint64_t units)
{
    x->work += units;
    if (x->work > x->max_work) {
        x->failed = true;
    }
    return !x->failed;
}

/* ---- interning ---- */

static uint32_t hash_of(const struct exprs *x, const struct expr *e)
{
    uint64_t h = e->kind;
    if (e->kind == X_ALT || e->kind == X_AND) {
        for (uint32_t i = 0; i < e->b; i++) {
            h = hash_mix(h * 31 + x->list[e->a + i]);
        }
        return (uint32_t)h;
    }
    h = hash_mix(h ^ (uint64_t)e->a << 8 ^ (uint64_t)e->b << 36);
    return (uint32_t)hash_mix(h ^ e->c ^ (uint64_t)e->d << 32);
}

static bool same(const struct exprs *x, const struct expr *p, const struct expr *q)
{
    if (p->kind != q->kind) {
        return false;
    }
    if (p->kind == X_ALT || p->kind == X_AND) {
        return p->b == q->b && memcmp(x->list + p->a, x->list + q->a, p->b * sizeof *x->list) == 0;
    }
    return p->a == q->a && p->b == q->b && p->c == q->c && p->d == q->d;
}

static void rehash(struct exprs *x, uint32_t size)
{
    if (size != x->table_size) {
        x->table = xrealloc(x->table, size * sizeof *x->table);
        x->table_size = size;
    }
    memset(x->table, 0xff, size * sizeof *x->table);
    for (uint32_t i = 0; i < x->n; i++) {
        uint32_t *slot = &x->table[x->v[i].hash & (size - 1)];
        x->v[i].next = *slot;
        *slot = i;
    }
}

uint32_t expr_make(struct exprs *x, struct expr e)
{
    exprs_spend(x, 1);
    e.hash = hash_of(x, &e);
    for (uint32_t i = x->table[e.hash & (x->table_size - 1)]; i != UINT32_MAX; i = x->v[i].next) {
        if (x->v[i].hash == e.hash && same(x, &x->v[i], &e)) {
            return i;
        }
    }
    if (exprs_bytes(x) > x->max_bytes || x->n >= UINT32_MAX / 2) {
        x->failed = true;
    }
    if (x->failed) {
        return EXPR_NONE;
    }
    GROW(x->v, x->n, x->cap);
    if (x->n >= x->table_size) {
        rehash(x, x->table_size * 2);
    }
    uint32_t *slot = &x->table[e.hash & (x->table_size - 1)];
    e.next = *slot;
    *slot = x->n;
    x->v[x->n] = e;
    return x->n++;
}

struct exprs_mark exprs_mark(const struct exprs *x)
{
    return (struct exprs_mark){x->n, x->n_list, x->n_sets};
}

void exprs_reset(struct exprs *x, struct exprs_mark mark)
{
    x->n = mark.n;
    x->n_list = mark.n_list;
    x->n_sets = mark.n_sets;
    x->failed = false;
    uint32_t size = EXPRS_FIRST_TABLE;
    while (size < x->n) {
        size *= 2;
    }
    for (uint32_t i = 0; i < x->n; i++) {
        if (x->v[i].clean > x->n) {
            x->v[i].clean = 0;
        }
    }
    for (int b = 0; b < 256; b++) {
        if (x->byte[b] >= x->n) {
            x->byte[b] = 0;
        }
    }
    rehash(x, size);
    free(x->memo);
    x->memo = NULL;
    x->n_memo = x->memo_size = 0;
}

/* ---- classes of bytes ---- */

/* Splits the classes by whether a byte is in the set. */
static void split_classes(struct exprs *x, const struct byte_set *set)
{
    int fresh[256];
    memset(fresh, -1, sizeof fresh);
    bool out[256] = {0};
    for (unsigned b = 0; b < 256; b++) {
        out[x->class_of[b]] |= !byte_set_has(set, b);
    }
    for (unsigned b = 0; b < 256; b++) {
        int c = x->class_of[b];
        if (byte_set_has(set, b) && out[c]) {
            if (fresh[c] < 0) {
                fresh[c] = x->n_classes++;
            }
            x->class_of[b] = (uint8_t)fresh[c];
        }
    }
}

static void split_each(struct exprs *x, const struct byte_set *set)
{
    for (unsigned b = 0; b < 256; b++) {
        struct byte_set one = {0};
        byte_set_add(&one, b);
        if (byte_set_has(set, b)) {
            split_classes(x, &one);
        }
    }
}

void exprs_classify(struct exprs *x)
{
    uint64_t of = (uint64_t)x->n_sets * 4 + x->has_text * 2u + x->has_digits;
    if (x->n_classes > 0 && (x->classes_final || of == x->classed)) {
        return;
    }
    memset(x->class_of, 0, sizeof x->class_of);
    x->n_classes = 1;
    for (uint32_t i = 0; i < x->n_sets; i++) {
        split_classes(x, &x->sets[i]);
    }
    struct byte_set each = x->own_class;
    for (unsigned b = '0'; x->has_digits && b <= '9'; b++) {
        byte_set_add(&each, b);
    }
    split_each(x, &each);
    exprs_spend(x, x->n_sets);
    x->classed = of;
    for (int b = 255; b >= 0; b--) {
        x->class_byte[x->class_of[b]] = (uint8_t)b;
    }
}
