// SPDX-License-Identifier: Apache-2.0
/* States of a grammar: sets of items, which are interned when they first occur and have a row of
 * successors each. Stacks share their tails, because most states differ only in the top of the
 * stack. */
#include "engine/grammar/automaton.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- interned lists ---- */

static int by_stack(const void *p, const void *q)
{
    const struct item *a = p, *b = q;
    if (a->stack != b->stack) {
        return a->stack < b->stack ? -1 : 1;
    }
    return a->e < b->e ? -1 : a->e > b->e;
}

/* Interns a list, whose items are sorted, and returns its id. *fresh says whether the list is
 * new. */
static uint32_t intern(struct item_lists *l, const struct item *items, uint32_t n, bool *fresh)
{
    uint64_t h = n;
    for (uint32_t i = 0; i < n; i++) {
        h = hash_mix(h * 31 + ((uint64_t)items[i].e << 32 | items[i].stack));
    }
    uint32_t hash = (uint32_t)h;
    *fresh = false;
    for (uint32_t i = l->table_size ? l->table[hash & (l->table_size - 1)] : UINT32_MAX;
         i != UINT32_MAX; i = l->v[i].next) {
        if (l->v[i].hash == hash && l->v[i].n == n &&
            (n == 0 || memcmp(l->items + l->v[i].first, items, n * sizeof *items) == 0)) {
            return i;
        }
    }
    *fresh = true;
    GROW(l->v, l->n, l->cap);
    uint32_t first = l->n_items;
    for (uint32_t i = 0; i < n; i++) {
        GROW(l->items, l->n_items, l->cap_items);
        l->items[l->n_items++] = items[i];
    }
    l->v[l->n++] = (struct item_list){.first = first, .n = n, .hash = hash};
    if (l->n > l->table_size) {
        l->table_size = l->table_size ? l->table_size * 2 : 64;
        l->table = xrealloc(l->table, l->table_size * sizeof *l->table);
        memset(l->table, 0xff, l->table_size * sizeof *l->table);
        for (uint32_t i = 0; i < l->n; i++) {
            uint32_t *slot = &l->table[l->v[i].hash & (l->table_size - 1)];
            l->v[i].next = *slot;
            *slot = i;
        }
    } else {
        uint32_t *slot = &l->table[hash & (l->table_size - 1)];
        l->v[l->n - 1].next = *slot;
        *slot = l->n - 1;
    }
    return l->n - 1;
}

static void lists_deinit(struct item_lists *l)
{
    free(l->v);
    free(l->items);
    free(l->table);
    *l = (struct item_lists){0};
}

static size_t lists_bytes(const struct item_lists *l)
{
    return l->cap * sizeof *l->v + l->cap_items * sizeof *l->items +
           l->table_size * sizeof *l->table;
}

/* ---- building sets of items ---- */

struct items {
    struct item some[32], *v;
    size_t n, cap;
};

static void items_init(struct items *s)
{
    s->v = s->some;
    s->n = 0;
    s->cap = sizeof s->some / sizeof *s->some;
}

static void items_deinit(struct items *s)
{
    if (s->v != s->some) {
        free(s->v);
    }
}

/* Small sets are stored in the struct; larger ones move to the heap. */
static void items_put(struct items *s, uint32_t e, uint32_t stack)
{
    if (s->n == s->cap) {
        struct item *more = xmalloc(2 * s->cap * sizeof *more);
        memcpy(more, s->v, s->n * sizeof *more);
        items_deinit(s);
        s->v = more;
        s->cap *= 2;
    }
    s->v[s->n++] = (struct item){e, stack};
}

/* Keeps only one item per stack: alternatives that share a stack are merged into one expression. */
static bool items_merge(struct automaton *a, struct items *s, uint32_t e, uint32_t stack)
{
    exprs_spend(a->x, 1 + s->n / 8);
    for (size_t i = 0; i < s->n; i++) {
        if (s->v[i].stack == stack) {
            uint32_t both = expr_alt2(a->x, s->v[i].e, e);
            bool more = both != s->v[i].e;
            s->v[i].e = both;
            return more;
        }
    }
    if (s->n >= a->max_items) {
        a->x->failed = true;
        return false;
    }
    items_put(s, e, stack);
    return true;
}

/* ---- states ---- */

void automaton_init(struct automaton *a, struct exprs *x, struct rules *rules, uint32_t max_items,
                    size_t max_bytes)
{
    *a = (struct automaton){.x = x, .rules = rules, .max_items = max_items, .max_bytes = max_bytes};
    automaton_reset(a);
}

void automaton_deinit(struct automaton *a)
{
    for (uint32_t i = 0; i < a->kernels.n; i++) {
        free(a->v[i].row);
    }
    free(a->v);
    free(a->closed);
    lists_deinit(&a->stacks);
    lists_deinit(&a->kernels);
    *a = (struct automaton){0};
}

/* A state has the number of its interned kernel. */
static uint32_t state_new(struct automaton *a)
{
    if (a->kernels.n > a->cap_v) {
        uint32_t cap = a->cap_v;
        a->cap_v = cap ? cap * 2 : 64;
        a->v = xrealloc(a->v, a->cap_v * sizeof *a->v);
    }
    a->v[a->kernels.n - 1] = (struct astate){0};
    return a->kernels.n - 1;
}

/* Forgets everything except the compiled rules. The empty stack and the dead state are added first,
 * because their numbers are fixed. */
void automaton_reset(struct automaton *a)
{
    struct automaton fresh = {
        .x = a->x, .rules = a->rules, .max_items = a->max_items, .max_bytes = a->max_bytes};
    bool is_new;
    automaton_deinit(a);
    *a = fresh;
    intern(&a->stacks, NULL, 0, &is_new);  // STACK_ROOT
    intern(&a->kernels, NULL, 0, &is_new); // STATE_DEAD
    state_new(a);
}

size_t automaton_bytes(const struct automaton *a)
{
    return lists_bytes(&a->stacks) + lists_bytes(&a->kernels) + a->cap_v * sizeof *a->v +
           a->cap_closed * sizeof *a->closed + a->row_bytes;
}

/* Pops: an item whose rule has ended continues with the items on its stack. The kernel keeps the
 * items that have not ended. If the root's stack is reached, it also keeps an empty rest, which
 * means that the text may end. */
static void complete(struct automaton *a, struct items *s)
{
    struct items seen; // stacks that have been popped
    items_init(&seen);
    for (size_t i = 0; i < s->n && !a->x->failed; i++) {
        uint32_t stack = s->v[i].stack;
        bool popped = stack == STACK_ROOT || !expr_is(a->x, s->v[i].e, XF_NULLABLE);
        for (size_t j = 0; j < seen.n && !popped; j++) {
            popped = seen.v[j].stack == stack;
        }
        if (popped) {
            continue;
        }
        items_put(&seen, EXPR_NONE, stack);
        struct item_list l = a->stacks.v[stack];
        bool again = false;
        for (uint32_t j = 0; j < l.n; j++) {
            struct item to = a->stacks.items[l.first + j];
            again |= items_merge(a, s, to.e, to.stack);
        }
        if (again) {
            i = SIZE_MAX; // start again, because an item before this one may now be able to end
        }
    }
    items_deinit(&seen);
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->v[i].e != EXPR_EMPTY || s->v[i].stack == STACK_ROOT) {
            s->v[n++] = s->v[i];
        }
    }
    s->n = n;
}

/* The state that consists of these items. Equal sets of items are one state, which keeps the
 * automaton finite. If there are no items, or a limit is exceeded, the state is STATE_DEAD. */
static uint32_t intern_state(struct automaton *a, struct items *s)
{
    complete(a, s);
    if (a->x->failed || s->n == 0) {
        return STATE_DEAD;
    }
    qsort(s->v, s->n, sizeof *s->v, by_stack);
    bool fresh;
    uint32_t id = intern(&a->kernels, s->v, (uint32_t)s->n, &fresh);
    if (fresh) {
        state_new(a);
        a->v[id].may_end = s->v[0].stack == STACK_ROOT && expr_is(a->x, s->v[0].e, XF_NULLABLE);
        if (automaton_bytes(a) > a->max_bytes) {
            a->x->failed = true;
        }
    }
    return id;
}

/* The state that consists of these items, with equal items merged. */
uint32_t automaton_state(struct automaton *a, const struct item *items, size_t n)
{
    struct items s;
    items_init(&s);
    for (size_t i = 0; i < n && !a->x->failed; i++) {
        items_merge(a, &s, items[i].e, items[i].stack);
    }
    uint32_t id = intern_state(a, &s);
    items_deinit(&s);
    return id;
}

/* ---- calls of rules ---- */

/* Calls that have not been expanded into items of the called rule yet. */
struct pending {
    struct waiting {
        uint32_t rule, rest, stack;
    } *v;
    size_t n, cap;
};

/* Adds the calls that an item may begin with; the item itself then waits on the stack. */
static void add_calls(struct automaton *a, struct item it, struct pending *p)
{
    if (!expr_is(a->x, it.e, XF_CALL_FIRST)) {
        return;
    }
    struct expr_calls calls = {0};
    expr_first_calls(a->x, it.e, &calls);
    for (size_t i = 0; i < calls.n; i++) {
        GROW(p->v, p->n, p->cap);
        p->v[p->n++] = (struct waiting){calls.v[i].rule, calls.v[i].rest, it.stack};
    }
    free(calls.v);
}

/* The stack with what follows a call. If nothing follows it, this is the stack that is there
 * already. */
static uint32_t push(struct automaton *a, const struct items *after)
{
    struct items s;
    items_init(&s);
    for (size_t i = 0; i < after->n; i++) {
        struct item it = after->v[i];
        if (it.e != EXPR_EMPTY || it.stack == STACK_ROOT) {
            items_merge(a, &s, it.e, it.stack);
            continue;
        }
        struct item_list l = a->stacks.v[it.stack];
        for (uint32_t j = 0; j < l.n; j++) {
            struct item to = a->stacks.items[l.first + j];
            items_merge(a, &s, to.e, to.stack);
        }
    }
    uint32_t id = STACK_ROOT;
    if (s.n != 1 || s.v[0].e != EXPR_EMPTY || s.v[0].stack != STACK_ROOT) {
        bool fresh;
        qsort(s.v, s.n, sizeof *s.v, by_stack);
        id = intern(&a->stacks, s.v, (uint32_t)s.n, &fresh);
    }
    items_deinit(&s);
    return id;
}

/* Takes the waiting rule that comes first in the order. All calls of it are known by then, because
 * no later rule begins with a call of it. */
static struct item take_first(struct automaton *a, struct pending *p)
{
    uint32_t rule = p->v[0].rule;
    for (size_t i = 1; i < p->n; i++) {
        if (a->rules->v[p->v[i].rule].order < a->rules->v[rule].order) {
            rule = p->v[i].rule;
        }
    }
    struct items after;
    items_init(&after);
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (p->v[i].rule == rule) {
            items_put(&after, p->v[i].rest, p->v[i].stack);
        } else {
            p->v[n++] = p->v[i];
        }
    }
    exprs_spend(a->x, p->n);
    p->n = n;
    struct item it = {a->rules->v[rule].body, push(a, &after)};
    items_deinit(&after);
    return it;
}

/* The items of a state, and those of all rules that they may begin with. They are computed when the
 * state is first left, not when it is made, because most states that masks touch are never left. */
const struct item *automaton_items(struct automaton *a, uint32_t state, size_t *n)
{
    if (!a->v[state].is_closed) {
        struct item_list k = a->kernels.v[state];
        struct pending p = {0};
        uint32_t first = a->n_closed;
        for (uint32_t i = 0; i < k.n; i++) {
            GROW(a->closed, a->n_closed, a->cap_closed);
            a->closed[a->n_closed++] = a->kernels.items[k.first + i];
            add_calls(a, a->kernels.items[k.first + i], &p);
        }
        while (p.n > 0 && !a->x->failed) {
            struct item it = take_first(a, &p);
            GROW(a->closed, a->n_closed, a->cap_closed);
            a->closed[a->n_closed++] = it;
            add_calls(a, it, &p);
            if (a->n_closed - first > a->max_items) {
                a->x->failed = true;
            }
        }
        free(p.v);
        if (a->x->failed) {
            a->n_closed = first;
            *n = 0;
            return a->closed;
        }
        a->v[state].closed = first;
        a->v[state].n_closed = a->n_closed - first;
        a->v[state].is_closed = true;
    }
    *n = a->v[state].n_closed;
    return a->closed + a->v[state].closed;
}

/* Makes the row of a state. Bytes that no item begins with lead to STATE_DEAD. */
static void start_row(struct automaton *a, uint32_t state)
{
    size_t n, n_classes = (size_t)a->x->n_classes;
    struct byte_set first = {{0}};
    automaton_items(a, state, &n);
    for (size_t i = 0; i < n && !a->x->failed; i++) {
        expr_first_bytes(a->x, a->closed[a->v[state].closed + i].e, &first);
    }
    if (a->x->failed) {
        return;
    }
    uint32_t *row = xcalloc(n_classes, sizeof *row);
    for (size_t c = 0; c < n_classes; c++) {
        if (byte_set_has(&first, a->x->class_byte[c])) {
            row[c] = 0;
        } else {
            row[c] = STATE_DEAD + 1;
        }
    }
    a->v[state].row = row;
    a->row_bytes += n_classes * sizeof *row;
}

/* The successor of a state by a byte. All bytes of a class have the same successor. A row entry is
 * a state plus 1, or 0 if the successor is not known yet. */
uint32_t automaton_step(struct automaton *a, uint32_t state, uint8_t byte)
{
    uint8_t c = a->x->class_of[byte];
    if (!a->v[state].row) {
        start_row(a, state);
    }
    if (a->v[state].row && a->v[state].row[c]) {
        return a->v[state].row[c] - 1;
    }
    size_t n;
    automaton_items(a, state, &n);
    struct items s;
    items_init(&s);
    for (size_t i = 0; i < n && !a->x->failed; i++) {
        struct item it = a->closed[a->v[state].closed + i];
        uint32_t d = expr_derive(a->x, it.e, a->x->class_byte[c]);
        if (d != EXPR_NONE) {
            items_merge(a, &s, d, it.stack);
        }
    }
    uint32_t to = intern_state(a, &s);
    items_deinit(&s);
    if (a->x->failed) {
        return STATE_DEAD;
    }
    a->v[state].row[c] = to + 1;
    return to;
}
