// SPDX-License-Identifier: Apache-2.0
/* anyOf and oneOf: each becomes a choice. */
#include "engine/grammar/schema.h"

#include "engine/base/mem.h"

#include <stdlib.h>

/* Compiles the set with the flag of member i set, and with the branch added. */
static enum status chosen_set(struct schema *s, const struct set *set, uint32_t i,
                              enum member_flag done, const struct tree_value *branch, uint32_t *e)
{
    struct set rest = {.place = set->place}, more = {0};
    for (uint32_t j = 0; j < set->n; j++) {
        set_add(&rest, set->v[j].schema, set->v[j].flags | (j == i ? (uint32_t)done : 0u),
                set->v[j].at);
    }
    set_add(&more, branch, set->v[i].flags & M_KEEP, set->v[i].at);
    enum status st = schema_set_with(s, &rest, &more, e);
    set_deinit(&rest);
    set_deinit(&more);
    return st;
}

/* True if no text that is accepted for branch a is valid for branch b. For this, a is interpreted
 * as in this project (unmentioned names are not allowed), and b as in the specification. */
static enum status disjoint(struct schema *s, const struct set *set, uint32_t i,
                            const struct tree_value *a, const struct tree_value *b, bool *is)
{
    struct set rest = {0}, both = {0}; // compiled as JSON, whatever their place in the style
    uint32_t e;
    for (uint32_t j = 0; j < set->n; j++) {
        uint32_t flags = set->v[j].flags | (j == i ? M_ONE_DONE : 0u);
        set_add(&rest, set->v[j].schema, (flags & ~(uint32_t)M_KEEP) | M_CLOSED, set->v[j].at);
    }
    set_add(&both, a, M_CLOSED, 0);
    set_add(&both, b, M_OPEN, 0);
    enum status st = schema_set_with(s, &rest, &both, &e);
    *is = e == EXPR_NONE;
    set_deinit(&rest);
    set_deinit(&both);
    return st;
}

/* oneOf equals anyOf if the schemas exclude each other, which is proven for each pair. If that
 * fails, oneOf is an error, because a text that matches two schemas must not be accepted. */
static enum status check_one_of(struct schema *s, const struct set *set, uint32_t i,
                                const struct tree_value *list)
{
    for (const struct tree_value *a = list->first; a; a = a->next) {
        for (const struct tree_value *b = list->first; b; b = b->next) {
            bool is = true;
            if (a != b) {
                TRY(disjoint(s, set, i, a, b, &is));
            }
            if (!is) {
                return schema_fail(s, ERR_UNSUPPORTED, set->v[i].schema,
                                   "\"oneOf\" is supported only where its schemas exclude each "
                                   "other (use \"anyOf\")");
            }
        }
    }
    return OK;
}

/* Compiles each branch together with the rest of the set. */
static enum status choose(struct schema *s, const struct set *set, uint32_t i,
                          enum member_flag done, const struct tree_value *list, uint32_t *e)
{
    uint32_t *branch = xcalloc(list->n + 1, sizeof *branch), n = 0;
    enum status st = OK;
    for (const struct tree_value *v = list->first; v && st == OK; v = v->next) {
        st = chosen_set(s, set, i, done, v, &branch[n++]);
    }
    *e = st == OK ? expr_alt(s->x, branch, n) : (uint32_t)EXPR_NONE;
    free(branch);
    return st;
}

/* While two sets are compared, a oneOf in them may be treated as an anyOf. This can only add texts
 * that both accept, so the result is still safe. */
static bool is_compared(const struct set *set)
{
    for (uint32_t i = 0; i < set->n; i++) {
        if (set->v[i].flags & M_KEEP) {
            return true;
        }
    }
    return false;
}

/* Makes the first open choice of the set. A flag marks it as done, so that the recursion goes on to
 * the other choices. */
enum status schema_branch(struct schema *s, const struct set *set, bool *chosen, uint32_t *e)
{
    static const struct {
        const char *keyword;
        enum member_flag done;
    } rows[] = {{"anyOf", M_ANY_DONE}, {"oneOf", M_ONE_DONE}};
    *chosen = false;
    for (uint32_t i = 0; i < set->n; i++) {
        for (size_t k = 0; k < 2; k++) {
            const struct tree_value *list, *schema = set->v[i].schema;
            TRY(schema_typed(s, schema, rows[k].keyword, JSON_ARRAY, &list));
            if (!list || (set->v[i].flags & rows[k].done)) {
                continue;
            }
            for (const struct tree_value *v = list->first; v || list->n == 0; v = v->next) {
                if (!v || !schema_is(v)) {
                    return schema_fail(s, ERR_INVALID, schema, "\"%s\" must be a list of schemas",
                                       rows[k].keyword);
                }
            }
            *chosen = true;
            if (k == 1 && !is_compared(set)) {
                TRY(check_one_of(s, set, i, list));
            }
            return choose(s, set, i, rows[k].done, list, e);
        }
    }
    return OK;
}
