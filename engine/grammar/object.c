// SPDX-License-Identifier: Apache-2.0
/* Objects as one compact node: a position in the list of properties, the number of pairs so far,
 * and a place in a trie of all names. */
#include "engine/grammar/object.h"

#include "engine/base/mem.h"
#include "engine/grammar/text.h"

#include <stdlib.h>
#include <string.h>

void object_add(struct expr_object *o, const char *name, size_t n_name, uint32_t value,
                bool required)
{
    GROW(o->v, o->n, o->cap);
    char *copy = xmalloc(n_name + 1);
    memcpy(copy, name, n_name);
    copy[n_name] = 0;
    o->v[o->n++] = (struct expr_property){copy, n_name, value, required};
}

void object_free(struct expr_object *o)
{
    if (!o) {
        return;
    }
    for (uint32_t i = 0; i < o->n; i++) {
        free(o->v[i].name);
    }
    free(o->v);
    free(o->next_required);
    free(o->n_required);
    free(o->trie);
    free(o->below);
    free(o);
}

static bool counts(const struct expr_object *o)
{
    return o->min > 0 || o->max != EXPR_INF;
}

/* Whether all required properties and the minimum number of pairs are present, so that the object
 * may end. */
static bool is_over(const struct exprs *x, const struct expr_object *o, uint32_t next,
                    uint32_t pairs)
{
    if (!expr_is(x, o->close, XF_NULLABLE) || !expr_is(x, o->space, XF_NULLABLE) ||
        pairs < o->min) {
        return false;
    }
    while (next < o->n && !o->v[next].required) {
        next++;
    }
    return next == o->n;
}

/* `pairs` is the number of pairs so far, but not more than the largest number that makes a
 * difference. */
static uint32_t node(struct exprs *x, enum expr_kind kind, uint32_t object, uint32_t next,
                     uint32_t pairs, uint32_t at)
{
    const struct expr_object *o = x->objects[object];
    if (!counts(o) && pairs > 1) {
        pairs = 1;
    }
    bool over = kind == X_OBJECT && is_over(x, o, next, pairs);
    return expr_make(x, (struct expr){.kind = (uint8_t)kind,
                                      .flags = XF_CALLS | XF_TEXT | (over ? XF_NULLABLE : 0),
                                      .a = object,
                                      .b = next,
                                      .c = pairs,
                                      .d = at});
}

uint32_t object_start(struct exprs *x, struct expr_object *o)
{
    GROW(x->objects, x->n_objects, x->cap_objects);
    x->objects[x->n_objects++] = o;
    byte_set_add(&x->own_class, o->name_end);
    return node(x, X_OBJECT, x->n_objects - 1, 0, 0, 0);
}

/* ---- the trie of names ---- */

static uint32_t trie_child(const struct expr_object *o, uint32_t at, uint8_t byte)
{
    uint32_t c = o->trie[at].child;
    while (c && o->trie[c].byte != byte) {
        c = o->trie[c].sibling;
    }
    return c;
}

/* The child of a trie node for this byte, which is added if missing. The bytes of names must be
 * distinguished, so each gets a class of its own. */
static uint32_t trie_step(struct exprs *x, struct expr_object *o, uint32_t at, uint8_t byte)
{
    uint32_t c = trie_child(o, at, byte);
    exprs_spend(x, 1);
    if (!c) {
        GROW(o->trie, o->n_trie, o->cap_trie);
        c = o->n_trie++;
        o->trie[c] = (struct key_node){.byte = byte, .sibling = o->trie[at].child};
        o->trie[at].child = c;
        byte_set_add(&x->own_class, byte);
    }
    o->trie[c].count++;
    return c;
}

/* Writes the bytes of a name as they appear in the text, followed by its end byte. */
static size_t name_bytes(struct exprs *x, const struct expr_object *o,
                         const struct expr_property *p, uint8_t *out)
{
    size_t n = 0;
    if (o->bare) {
        memcpy(out, p->name, p->n_name);
        out[p->n_name] = o->name_end;
        return p->n_name + 1;
    }
    uint32_t e = text_literal(x, p->name, p->n_name);
    while (!x->failed && e != EXPR_EMPTY) {
        uint32_t first = x->v[e].kind == X_SEQ ? x->v[e].a : e;
        const struct byte_set *set = &x->sets[x->v[first].a];
        unsigned b = 0;
        while (!byte_set_has(set, b)) {
            b++;
        }
        out[n++] = (uint8_t)b;
        e = x->v[e].kind == X_SEQ ? x->v[e].b : (uint32_t)EXPR_EMPTY;
    }
    out[n++] = o->name_end;
    return n;
}

/* Walks the trie along a name. Adds nodes, or with `fill` records the property in each node. */
static void add_name(struct exprs *x, struct expr_object *o, uint32_t property, bool fill)
{
    uint8_t *text = xmalloc(o->v[property].n_name * 6 + 1);
    size_t n = name_bytes(x, o, &o->v[property], text);
    uint32_t at = 0;
    for (size_t i = 0; i <= n && !x->failed; i++) {
        struct key_node *k = &o->trie[at];
        if (fill) {
            o->below[k->first + k->count++] = property;
            if (i == n) {
                k->leaf = property + 1;
            }
        }
        if (i < n) {
            if (fill) {
                at = trie_child(o, at, text[i]);
            } else {
                at = trie_step(x, o, at, text[i]);
            }
        }
    }
    free(text);
}

/* Computes, for each position, the next required property and the number of required ones from
 * there on, so that steps take constant time. */
void object_finish(struct exprs *x, struct expr_object *o)
{
    o->next_required = xcalloc(o->n + 1, sizeof *o->next_required);
    o->n_required = xcalloc(o->n + 1, sizeof *o->n_required);
    o->next_required[o->n] = o->n;
    for (uint32_t i = o->n; i-- > 0;) {
        if (o->v[i].required) {
            o->next_required[i] = i;
        } else {
            o->next_required[i] = o->next_required[i + 1];
        }
        o->n_required[i] = o->n_required[i + 1] + o->v[i].required;
    }
    GROW(o->trie, o->n_trie, o->cap_trie);
    o->trie[o->n_trie++] = (struct key_node){0};
    for (uint32_t i = 0; i < o->n && !x->failed; i++) {
        if (o->v[i].value != EXPR_NONE) {
            o->trie[0].count++;
            add_name(x, o, i, false);
        }
    }
    for (uint32_t i = 0; i < o->n_trie; i++) {
        o->trie[i].first = o->n_below;
        o->n_below += o->trie[i].count;
        o->trie[i].count = 0;
    }
    o->below = xcalloc(o->n_below ? o->n_below : 1, sizeof *o->below);
    for (uint32_t i = 0; i < o->n && !x->failed; i++) {
        if (o->v[i].value != EXPR_NONE) {
            add_name(x, o, i, true);
        }
    }
}

/* ---- what may follow ---- */

/* The maximum number of pairs that can still follow, with properties from `next` on. */
static uint64_t room(const struct expr_object *o, uint32_t next)
{
    if (o->other != EXPR_NONE) {
        return UINT32_MAX;
    }
    uint64_t n = 0;
    for (uint32_t i = next; i < o->n; i++) {
        n += o->v[i].value != EXPR_NONE;
    }
    return n;
}

/* Whether the number of pairs can still become valid, given `pairs` pairs so far, if the next
 * property is `next` or a later one. */
static bool counts_fit(const struct expr_object *o, uint32_t next, uint32_t pairs)
{
    if (!counts(o)) {
        return true;
    }
    return (uint64_t)pairs + o->n_required[next] <= o->max && pairs + room(o, next) >= o->min;
}

/* Whether any object satisfies the limits. */
bool object_has_room(const struct expr_object *o)
{
    uint64_t required = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        if (o->v[i].required && o->v[i].value == EXPR_NONE) {
            return false;
        }
        required += o->v[i].required;
    }
    return required <= o->max && room(o, 0) >= o->min && o->min <= o->max;
}

/* Whether any of the properties below this node may come next. */
static bool any_below(struct exprs *x, const struct expr_object *o, uint32_t at, uint32_t next,
                      uint32_t pairs)
{
    const struct key_node *k = &o->trie[at];
    const uint32_t *list = o->below + k->first;
    uint32_t last = o->next_required[next], lo = 0, hi = k->count;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (list[mid] < next) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    for (; lo < k->count && list[lo] <= last; lo++) {
        if (counts_fit(o, list[lo] + 1, pairs + 1)) {
            return true;
        }
        exprs_spend(x, 1);
    }
    return false;
}

/* A pair with an undeclared name, then possibly more of them, then the end. */
static uint32_t others(struct exprs *x, const struct expr_object *o, uint32_t pairs)
{
    if (o->other == EXPR_NONE || pairs >= o->max) {
        return EXPR_NONE;
    }
    uint32_t again = expr_seq3(x, o->space, o->comma, o->other);
    uint32_t lo = o->min > pairs + 1 ? o->min - pairs - 1 : 0;
    uint32_t hi = o->max == EXPR_INF ? EXPR_INF : o->max - pairs - 1;
    uint32_t end = expr_seq(x, o->space, o->close);
    return expr_seq3(x, o->other, expr_rep(x, again, lo, hi), end);
}

/* The expression after a pair: a pair with a later property, a pair with an undeclared name, or, if
 * nothing required is left, the end. */
uint32_t object_expand(struct exprs *x, uint32_t e)
{
    uint32_t id = x->v[e].a, next = x->v[e].b, pairs = x->v[e].c;
    const struct expr_object *o = x->objects[id];
    bool may_end = o->next_required[next] == o->n;
    uint32_t pair = EXPR_NONE;
    if (any_below(x, o, 0, next, pairs)) {
        pair = expr_seq(x, o->open, node(x, X_KEY, id, next, pairs, 0));
    }
    if (may_end) {
        pair = expr_alt2(x, pair, others(x, o, pairs));
    }
    if (pairs > 0) {
        pair = expr_seq(x, o->comma, pair);
    }
    uint32_t end = may_end && pairs >= o->min ? o->close : (uint32_t)EXPR_NONE;
    return expr_seq(x, o->space, expr_alt2(x, pair, end));
}

void object_first_of_key(struct exprs *x, uint32_t e, struct byte_set *out)
{
    const struct expr_object *o = x->objects[x->v[e].a];
    for (uint32_t c = o->trie[x->v[e].d].child; c; c = o->trie[c].sibling) {
        byte_set_add(out, o->trie[c].byte);
    }
}

/* The derivative within a name: the next node of the trie or, at the end of the name, the
 * property's value. */
uint32_t object_derive_key(struct exprs *x, uint32_t e, uint8_t byte)
{
    uint32_t id = x->v[e].a, next = x->v[e].b, pairs = x->v[e].c;
    const struct expr_object *o = x->objects[id];
    uint32_t at = trie_child(o, x->v[e].d, byte);
    if (!at || !any_below(x, o, at, next, pairs)) {
        return EXPR_NONE;
    }
    if (!o->trie[at].leaf) {
        return node(x, X_KEY, id, next, pairs, at);
    }
    uint32_t property = o->trie[at].leaf - 1;
    uint32_t rest = node(x, X_OBJECT, id, property + 1, pairs + 1, 0);
    return expr_seq3(x, o->colon, o->v[property].value, rest);
}
