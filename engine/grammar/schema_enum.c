// SPDX-License-Identifier: Apache-2.0
/* enum and const: the listed values that all other keywords of the set allow. */
#include "engine/grammar/schema.h"

#include "engine/base/mem.h"
#include "engine/grammar/decimal.h"
#include "engine/grammar/text.h"

#include <stdlib.h>
#include <string.h>

/* Whether the only text of the expression `text` is also a text of `of`. */
static bool is_in(struct exprs *x, uint32_t text, uint32_t of)
{
    while (text != EXPR_EMPTY && of != EXPR_NONE && !x->failed) {
        uint32_t first = x->v[text].kind == X_SEQ ? x->v[text].a : text;
        const struct byte_set *set = &x->sets[x->v[first].a];
        unsigned b = 0;
        while (!byte_set_has(set, b)) {
            b++;
        }
        of = expr_derive(x, of, (uint8_t)b);
        if (x->v[text].kind == X_SEQ) {
            text = x->v[text].b;
        } else {
            text = (uint32_t)EXPR_EMPTY;
        }
    }
    return !x->failed && expr_is(x, of, XF_NULLABLE);
}

/* A number without a fraction is an integer in any spelling, such as 1.0 or 1e2. */
static uint32_t type_of(const struct tree_value *v)
{
    struct decimal d;
    switch (v->type) {
    case JSON_NULL: return T_NULL;
    case JSON_BOOL: return T_BOOL;
    case JSON_NUMBER:
        return !decimal_read(&d, v->text, v->n_text) || decimal_is_whole(&d) ? T_INTEGER : T_NUMBER;
    case JSON_STRING: return T_STRING;
    case JSON_ARRAY: return T_ARRAY;
    case JSON_OBJECT: return T_OBJECT;
    }
    return 0;
}

/* How a number is spelled in the output: whole numbers without point and exponent, other numbers as
 * in the schema. */
static uint32_t number_text(struct exprs *x, const struct tree_value *v)
{
    struct decimal d;
    if (!decimal_read(&d, v->text, v->n_text) ||
        (!decimal_is_whole(&d) && memchr(v->text, 'e', v->n_text))) {
        return expr_literal(x, v->text, v->n_text);
    }
    uint32_t part = EXPR_EMPTY;
    if (!decimal_is_whole(&d)) {
        part = expr_seq(x, expr_byte(x, '.'), expr_literal(x, d.part, (size_t)d.n_part));
    }
    uint32_t e = expr_seq(x, expr_literal(x, d.whole, (size_t)d.n_whole), part);
    if (d.negative) {
        return expr_seq(x, expr_byte(x, '-'), e);
    }
    return e;
}

/* A string as JSON, or bare where the style writes strings without quotes. */
static uint32_t string_text(struct schema *s, const struct set *set, const struct tree_value *v)
{
    struct exprs *x = s->x;
    uint32_t text = expr_literal(x, v->text, v->n_text);
    if (set->place >= PLACE_BARE) {
        return text;
    }
    if (s->style->quote) {
        uint32_t own = schema_style_text(s, s->style->quote);
        return expr_seq3(x, own, text, own);
    }
    uint32_t quote = expr_byte(x, '"');
    return expr_seq3(x, quote, text_literal(x, v->text, v->n_text), quote);
}

/* A schema that only this array or object satisfies. */
static const struct tree_value *as_schema(struct schema *s, const struct tree_value *v)
{
    struct tree *t = s->tree;
    struct tree_value *o = tree_new(t, JSON_OBJECT, v), *parts = tree_new(t, v->type, v);
    struct tree_value *required = tree_new(t, JSON_ARRAY, v), *no = tree_new(t, JSON_BOOL, v);
    struct tree_value *type = tree_new(t, JSON_STRING, v), *count = tree_new(t, JSON_NUMBER, v);
    char *digits = arena_alloc(&t->arena, 1, 16);
    if (!o || !parts || !required || !no || !type || !count || !digits) {
        return NULL;
    }
    bool array = v->type == JSON_ARRAY, ok = true;
    for (const struct tree_value *k = v->first; k; k = k->next) {
        struct tree_value *one = tree_new(t, JSON_OBJECT, v), *name = tree_new(t, JSON_STRING, v);
        ok = ok && name && tree_put(t, one, "const", 5, k) &&
             tree_put(t, parts, k->key, k->n_key, one);
        if (ok && !array) {
            name->text = k->key;
            name->n_text = k->n_key;
            ok = tree_put(t, required, NULL, 0, name);
        }
    }
    type->text = array ? "array" : "object";
    type->n_text = strlen(type->text);
    uint32_t n = v->n, at = 15;
    do {
        digits[--at] = (char)('0' + n % 10);
        n /= 10;
    } while (n > 0);
    count->text = digits + at;
    count->n_text = 15 - at;
    ok = ok && tree_put(t, o, "type", 4, type);
    if (array) {
        ok = ok && tree_put(t, o, "prefixItems", 11, parts) && tree_put(t, o, "items", 5, no) &&
             tree_put(t, o, "minItems", 8, count);
    } else {
        ok = ok && tree_put(t, o, "properties", 10, parts) &&
             tree_put(t, o, "required", 8, required) &&
             tree_put(t, o, "additionalProperties", 20, no);
    }
    return ok ? o : NULL;
}

/* Listed values are checked against the rest of the set, which is compiled at most once per
 * type. */
struct candidates {
    struct schema *s;
    const struct set *set;
    const struct tree_value *list; // the list that has the candidates; NULL: they come from a const
    struct set rest;               // the set without its enums and consts
    uint32_t types;
    uint32_t number[2], string; // scalars that the rest allows, plus 1; 0: not compiled yet
};

/* Whether another member has an enum or const that does not contain the value. */
static bool is_missing(const struct set *set, const struct tree_value *of,
                       const struct tree_value *value)
{
    for (uint32_t i = 0; i < set->n; i++) {
        const struct tree_value *one = tree_get(set->v[i].schema, "const"),
                                *list = tree_get(set->v[i].schema, "enum");
        if (set->v[i].flags & M_ENUM_DONE) {
            continue;
        }
        if (one && !tree_equal(one, value)) {
            return true;
        }
        if (list == of) {
            continue; // the candidate comes from this list
        }
        const struct tree_value *v = list ? list->first : NULL;
        while (v && !tree_equal(v, value)) {
            v = v->next;
        }
        if (list && !v) {
            return true;
        }
    }
    return false;
}

/* The value as written, if the other schemas allow it. The language of all numbers (or strings)
 * that they allow is compiled once per enum. */
static enum status scalar(struct candidates *c, const struct tree_value *v, uint32_t *e)
{
    struct exprs *x = c->s->x;
    if (v->type == JSON_NULL || v->type == JSON_BOOL) {
        const char *word = schema_word(c->s, v);
        enum style_type type = v->type == JSON_NULL ? STYLE_NULL : STYLE_BOOL;
        *e = schema_style_value(c->s, c->set, type, expr_literal(x, word, strlen(word)));
        return OK;
    }
    bool number = v->type == JSON_NUMBER, whole = type_of(v) == T_INTEGER;
    uint32_t *known = number ? &c->number[whole] : &c->string;
    if (!*known) {
        uint32_t all;
        if (number) {
            TRY(schema_number(c->s, &c->rest, whole, &all));
        } else {
            TRY(schema_string(c->s, &c->rest, &all));
        }
        *known = all + 1;
    }
    *e = number ? number_text(x, v) : string_text(c->s, c->set, v);
    // Expressions of bounds do not include exponents.
    bool exponent = number && memchr(v->text, 'e', v->n_text);
    bool good = is_in(x, *e, *known - 1) || (exponent && !whole);
    if (good) {
        *e = schema_style_value(c->s, c->set, number ? STYLE_NUMBER : STYLE_STRING, *e);
    } else {
        *e = (uint32_t)EXPR_NONE;
    }
    return OK;
}

/* Drops a value that the types, other enums or "not" exclude. An array or object becomes a schema
 * that only it satisfies, so that "properties" and the like apply to it, too. */
static enum status candidate(struct candidates *c, const struct tree_value *v, uint32_t *e)
{
    *e = EXPR_NONE;
    if (!(c->types & type_of(v)) || is_missing(c->set, c->list, v) || schema_excluded(c->set, v)) {
        return OK;
    }
    if (v->type != JSON_ARRAY && v->type != JSON_OBJECT) {
        return scalar(c, v, e);
    }
    const struct tree_value *schema = as_schema(c->s, v);
    if (!schema) {
        return schema_fail(c->s, ERR_LIMIT, v, "the schema is too large");
    }
    struct set more = {0};
    set_add(&more, schema, 0, 0);
    enum status st = schema_set_with(c->s, &c->rest, &more, e);
    set_deinit(&more);
    return st;
}

/* The first list of values in the set. Other lists are compared with it. */
static enum status first_list(struct schema *s, const struct set *set,
                              const struct tree_value **list, const struct tree_value **one)
{
    *list = *one = NULL;
    for (uint32_t i = 0; i < set->n && !*list && !*one; i++) {
        if (set->v[i].flags & M_ENUM_DONE) {
            continue;
        }
        TRY(schema_typed(s, set->v[i].schema, "enum", JSON_ARRAY, list));
        *one = tree_get(set->v[i].schema, "const");
        if (*list && (*list)->n == 0) {
            return schema_fail(s, ERR_INVALID, set->v[i].schema, "\"enum\" is empty");
        }
    }
    return OK;
}

/* The listed values that all other members of the set accept. */
enum status schema_enum(struct schema *s, const struct set *set, uint32_t types, bool *found,
                        uint32_t *e)
{
    const struct tree_value *list, *one;
    struct candidates c = {.s = s, .set = set, .types = types};
    TRY(first_list(s, set, &list, &one));
    *found = list || one;
    if (!*found) {
        return OK;
    }
    c.list = list;
    c.types = schema_style_types(set, types);
    c.rest.place = set->place;
    for (uint32_t i = 0; i < set->n; i++) {
        set_add(&c.rest, set->v[i].schema, set->v[i].flags | M_ENUM_DONE, set->v[i].at);
    }
    uint32_t *branch = xcalloc((list ? list->n : 0) + 2, sizeof *branch), n = 0;
    enum status st = one && !list ? candidate(&c, one, &branch[n++]) : OK;
    for (const struct tree_value *v = list ? list->first : NULL; v && st == OK; v = v->next) {
        st = candidate(&c, v, &branch[n++]);
    }
    *e = st == OK ? expr_alt(s->x, branch, n) : (uint32_t)EXPR_NONE;
    free(branch);
    set_deinit(&c.rest);
    return st;
}
