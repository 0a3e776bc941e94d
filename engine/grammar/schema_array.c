// SPDX-License-Identifier: Apache-2.0
/* Arrays: combines the item keywords of all members of a set. */
#include "engine/grammar/schema.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>

/* Chosen: values of an enum with unique items, because every subset of them needs a state. */
enum { UNIQUE_MAX = 8 };

/* The items of an array: leading items by position, and all later ones. */
struct array {
    struct schema *s;
    const struct set *set;
    uint32_t *item, n_items; // expressions of the leading items
    uint32_t rest;           // expression of each later item
    uint32_t lo, hi;
    const struct tree_value *contains;
    uint32_t contains_flags;
    bool unique;
};

/* Reads the list of schemas for leading items, and the schema for later items. */
static enum status parts(struct schema *s, const struct tree_value *schema,
                         const struct tree_value **list, const struct tree_value **rest)
{
    const struct tree_value *items = tree_get(schema, "items");
    bool old = items && items->type == JSON_ARRAY;
    *list = old ? items : NULL;
    *rest = old ? tree_get(schema, "additionalItems") : items;
    if (!old) {
        TRY(schema_typed(s, schema, "prefixItems", JSON_ARRAY, list));
    }
    for (const struct tree_value *v = *list ? (*list)->first : NULL; v; v = v->next) {
        if (!schema_is(v)) {
            return schema_fail(s, ERR_INVALID, schema,
                               "every item of a list of schemas must be a schema");
        }
    }
    if (*rest && !schema_is(*rest)) {
        return schema_fail(s, ERR_INVALID, schema, "\"items\" must be a schema");
    }
    return OK;
}

/* The expression for items[i], or, if i is beyond the lists, for each later item. The schema `also`
 * applies in addition. */
static enum status item_at(struct array *a, uint32_t i, const struct tree_value *also, uint32_t *e)
{
    struct set set = {0};
    enum status st = OK;
    for (uint32_t m = 0; m < a->set->n && st == OK; m++) {
        const struct tree_value *list, *rest, *v = NULL;
        st = parts(a->s, a->set->v[m].schema, &list, &rest);
        if (st == OK) {
            v = list ? list->first : NULL;
            for (uint32_t k = 0; v && k < i; k++) {
                v = v->next;
            }
            if (!v) {
                v = rest;
            }
        }
        if (v) {
            set_add(&set, v, a->set->v[m].flags & M_KEEP, 0);
        }
    }
    if (also) {
        set_add(&set, also, a->contains_flags, 0);
    }
    bool element = a->s->style->elements;
    if (st == OK && element) {
        st = schema_style_place(a->s, set.n > 0 ? set.v[0].schema : NULL, &set.place);
    }
    if (st == OK) {
        st = schema_set(a->s, &set, e);
    }
    set_deinit(&set);
    if (st == OK && element) {
        uint32_t open = schema_style_text(a->s, a->s->style->key);
        open = expr_seq(a->s->x, open, expr_literal(a->s->x, "item>", 5));
        *e = expr_seq(a->s->x, open, schema_style_element(a->s, "item", 4, *e));
    }
    return st;
}

/* What separates items, without white space. */
static uint32_t separator(const struct array *a)
{
    if (a->s->style->elements) {
        return (uint32_t)EXPR_EMPTY;
    }
    return expr_byte(a->s->x, ',');
}

/* "minContains": 0 makes "contains" always true. "contains" is then ignored, and not rejected where
 * it is unsupported. */
static enum status read_contains(struct array *a, const struct tree_value *schema, uint32_t flags)
{
    bool found;
    uint32_t min = 1, max;
    const struct tree_value *v = tree_get(schema, "contains");
    if (!v || a->s->draft < 6) {
        return OK;
    }
    TRY(schema_count(a->s, schema, "minContains", &found, &min));
    if (!found) {
        min = 1;
    }
    TRY(schema_count(a->s, schema, "maxContains", &found, &max));
    if (found || min > 1 || a->contains) {
        return schema_fail(a->s, ERR_UNSUPPORTED, schema,
                           "\"contains\" is supported once, without counts (minContains 0 or 1)");
    }
    if (!schema_is(v)) {
        return schema_fail(a->s, ERR_INVALID, schema, "\"contains\" must be a schema");
    }
    if (min == 1) {
        a->contains = v;
        a->contains_flags = flags & M_KEEP;
    }
    return OK;
}

/* Several schemas may apply to one array; the tightest bounds count. */
static enum status read_member(struct array *a, struct member m)
{
    bool found;
    uint32_t count;
    const struct tree_value *list, *rest, *v;
    TRY(schema_count(a->s, m.schema, "minItems", &found, &count));
    if (found && count > a->lo) {
        a->lo = count;
    }
    TRY(schema_count(a->s, m.schema, "maxItems", &found, &count));
    if (found && count < a->hi) {
        a->hi = count;
    }
    TRY(parts(a->s, m.schema, &list, &rest));
    if (list && list->n > a->n_items) {
        a->n_items = list->n;
    }
    TRY(schema_typed(a->s, m.schema, "uniqueItems", JSON_BOOL, &v));
    a->unique |= v && v->truth;
    v = tree_get(m.schema, "unevaluatedItems");
    if (v && (v->type != JSON_BOOL || !v->truth)) {
        return schema_fail(a->s, ERR_UNSUPPORTED, m.schema,
                           "\"unevaluatedItems\" is not supported (use \"items\")");
    }
    return read_contains(a, m.schema, m.flags);
}

/* ---- as expressions ---- */

static uint32_t comma(struct array *a, uint32_t e)
{
    return expr_seq3(a->s->x, a->s->space, separator(a), expr_seq(a->s->x, a->s->space, e));
}

/* The items from i on, each preceded by the separator. */
static uint32_t tail(struct array *a)
{
    struct exprs *x = a->s->x;
    uint32_t n = a->n_items,
             e = expr_rep(x, comma(a, a->rest), expr_less(a->lo, n), expr_less(a->hi, n));
    for (uint32_t i = n; i-- > 1;) {
        uint32_t more;
        if (i < a->hi) {
            more = expr_seq(x, comma(a, a->item[i]), e);
        } else {
            more = (uint32_t)EXPR_NONE;
        }
        e = i >= a->lo ? expr_optional(x, more) : more;
    }
    return e;
}

/* A list with limits on its length, for arrays without contains and uniqueItems. */
static uint32_t plain(struct array *a)
{
    struct exprs *x = a->s->x;
    uint32_t first = a->n_items > 0 ? a->item[0] : a->rest, after;
    if (a->n_items == 0) { // the first item is one of the later items already
        after = expr_rep(x, comma(a, a->rest), expr_less(a->lo, 1), expr_less(a->hi, 1));
    } else {
        after = tail(a);
    }
    uint32_t some;
    if (a->hi == 0) {
        some = (uint32_t)EXPR_NONE;
    } else {
        some = expr_seq3(x, first, after, a->s->space);
    }
    if (a->lo == 0) {
        return expr_optional(x, some);
    }
    return some;
}

/* Any items, then one that matches `contains`, then any items. */
static enum status containing(struct array *a, uint32_t *e)
{
    struct exprs *x = a->s->x;
    uint32_t one;
    if (a->n_items > 0 || a->lo > 1 || a->hi != EXPR_INF) {
        return schema_fail(a->s, ERR_UNSUPPORTED, a->set->v[0].schema,
                           "\"contains\" together with counts or a list of items is not supported");
    }
    TRY(item_at(a, 0, a->contains, &one));
    uint32_t before = expr_seq3(x, a->rest, a->s->space, expr_seq(x, separator(a), a->s->space));
    uint32_t after = expr_rep(x, comma(a, a->rest), 0, EXPR_INF);
    *e = expr_seq3(x, expr_rep(x, before, 0, EXPR_INF), one, expr_seq(x, after, a->s->space));
    return OK;
}

/* For unique items of an enum. What may follow depends on the values that are left. */
struct unique {
    struct array *a;
    uint32_t value[UNIQUE_MAX], n;
    uint32_t memo[1 << UNIQUE_MAX];
};

/* The rest of an array in which the values of the bit set `used` have occurred. There are at most
 * 2^n sets; each is compiled once. */
static uint32_t unique_from(struct unique *u, uint32_t used)
{
    struct exprs *x = u->a->s->x;
    uint32_t n = (uint32_t)__builtin_popcount(used), e = EXPR_NONE;
    if (u->memo[used]) {
        return u->memo[used] - 1;
    }
    for (uint32_t i = 0; i < u->n && n < u->a->hi; i++) {
        if (!(used >> i & 1)) {
            uint32_t item = n > 0 ? comma(u->a, u->value[i]) : u->value[i];
            e = expr_alt2(x, e, expr_seq(x, item, unique_from(u, used | 1u << i)));
        }
    }
    if (n >= u->a->lo) {
        e = expr_alt2(x, e, n > 0 ? u->a->s->space : (uint32_t)EXPR_EMPTY);
    }
    u->memo[used] = e + 1;
    return e;
}

/* Unique items need a state per set of values that have occurred, so they are limited to short
 * enums. */
static enum status unique(struct array *a, uint32_t *e)
{
    struct exprs *x = a->s->x;
    struct unique u = {.a = a};
    struct expr all = x->v[a->rest];
    const struct tree_value *list = NULL;
    for (uint32_t i = 0; i < a->set->n; i++) {
        const struct tree_value *items = tree_get(a->set->v[i].schema, "items"), *to = items;
        const struct tree_value *ref = items ? tree_get(items, "$ref") : NULL;
        if (ref) {
            TRY(schema_resolve(a->s, ref, &to));
        }
        if (to && to->type == JSON_OBJECT && tree_get(to, "enum")) {
            list = tree_get(to, "enum");
        }
    }
    if (!list || list->n > UNIQUE_MAX || a->n_items > 0 || a->contains || (all.flags & XF_CALLS)) {
        return schema_fail(a->s, ERR_UNSUPPORTED, a->set->v[0].schema,
                           "\"uniqueItems\" is supported for items of an enum of at most %d values",
                           UNIQUE_MAX);
    }
    for (const struct tree_value *v = list->first; v; v = v->next) {
        struct tree_value *one = tree_new(a->s->tree, JSON_OBJECT, v);
        if (!tree_put(a->s->tree, one, "const", 5, v)) {
            return schema_fail(a->s, ERR_LIMIT, v, "the schema is too large");
        }
        a->contains_flags = 0;
        uint32_t value;
        TRY(item_at(a, 0, one, &value));
        bool again = value == EXPR_NONE;
        for (uint32_t i = 0; i < u.n; i++) {
            again |= u.value[i] == value;
        }
        if (!again) {
            u.value[u.n++] = value;
        }
    }
    *e = unique_from(&u, 0);
    return OK;
}

/* Combines the keywords of all members, then chooses how to build the expression. */
static enum status array_items(struct array *a, uint32_t *e)
{
    for (uint32_t i = 0; i < a->set->n; i++) {
        TRY(read_member(a, a->set->v[i]));
    }
    a->item = xcalloc(a->n_items + 1, sizeof *a->item);
    TRY(item_at(a, UINT32_MAX, NULL, &a->rest));
    for (uint32_t i = 0; i < a->n_items; i++) {
        TRY(item_at(a, i, NULL, &a->item[i]));
    }
    if (a->unique && a->hi > 1 && a->rest + a->n_items > 0) {
        return unique(a, e);
    }
    if (a->contains) {
        return containing(a, e);
    }
    *e = a->lo > a->hi ? (uint32_t)EXPR_NONE : plain(a);
    return OK;
}

/* Styles with elements write arrays without brackets. */
enum status schema_array(struct schema *s, const struct set *set, uint32_t *e)
{
    struct array a = {.s = s, .set = set, .hi = EXPR_INF};
    enum status st = array_items(&a, e);
    free(a.item);
    if (st == OK && !s->style->elements) {
        struct exprs *x = s->x;
        uint32_t open = expr_seq(x, expr_byte(x, '['), s->space);
        *e = expr_seq3(x, open, *e, expr_byte(x, ']'));
    }
    return st;
}
