// SPDX-License-Identifier: Apache-2.0
/* Lists that share storage with the lists they were built from; appending never changes what an
 * earlier value sees. */
#include "server/chat/jinja/rt.h"

#include <string.h>

/* The memory of lists that grow from one another (ns.list + [x] in a loop). Space after the end of
 * a list is free until a longer list takes it. */
struct jlist_store {
    struct jv *items;
    size_t n, cap;
};

struct jlist *jlist_new(struct jrt *rt, size_t n)
{
    struct jlist *l = jrt_alloc(rt, 1, sizeof *l);
    if (l && n > 0) {
        l->items = jrt_alloc(rt, n, sizeof l->items[0]);
        l->n = n;
    }
    if (l && (n == 0 || l->items)) {
        return l;
    }
    return NULL;
}

/* Makes room after the last item. The shared store can be used only if nobody has appended
 * after this list's end; otherwise the items move to a new store. */
static bool grow(struct jrt *rt, struct jlist *l, size_t more)
{
    struct jlist_store *st = l->store;
    if (st && st->items + st->n == l->items + l->n && st->cap - st->n >= more) {
        return true;
    }
    size_t cap = (l->n + more) * 2;
    struct jlist_store *wider = jrt_alloc(rt, 1, sizeof *wider);
    struct jv *items = jrt_alloc(rt, cap, sizeof *items);
    if (!wider || !items) {
        return false;
    }
    if (l->n > 0) {
        memcpy(items, l->items, l->n * sizeof *items);
    }
    *wider = (struct jlist_store){.items = items, .n = l->n, .cap = cap};
    l->store = wider;
    l->items = items;
    return true;
}

/* a + b. In a loop it takes linear time, since a's store is extended. */
struct jlist *jlist_join(struct jrt *rt, const struct jlist *a, const struct jlist *b)
{
    struct jlist *l = jrt_alloc(rt, 1, sizeof *l);
    if (!l || !jrt_charge(rt, b->n)) {
        return NULL;
    }
    *l = *a;
    if (b->n == 0) {
        return l;
    }
    if (!grow(rt, l, b->n)) {
        return NULL;
    }
    memcpy(l->items + l->n, b->items, b->n * sizeof b->items[0]);
    l->n += b->n;
    l->store->n += b->n;
    return l;
}

bool jlist_push(struct jrt *rt, struct jlist *l, struct jv v)
{
    if (!jrt_step(rt) || !grow(rt, l, 1)) {
        return false;
    }
    l->items[l->n++] = v;
    l->store->n++;
    return true;
}

bool jv_pair(struct jrt *rt, struct jv a, struct jv b, struct jv *out)
{
    struct jlist *l = jlist_new(rt, 2);
    if (!l) {
        return false;
    }
    l->items[0] = a;
    l->items[1] = b;
    *out = jv_tuple(l);
    return true;
}
