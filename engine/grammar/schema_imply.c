// SPDX-License-Identifier: Apache-2.0
/* Expands keywords that can be expressed by others: if, not, dependentRequired etc. */
#include "engine/base/optional.h"
#include "engine/grammar/schema.h"

#include <string.h>

/* ---- building schemas ---- */

static struct tree_value *made(struct schema *s, enum json_type type,
                               const struct tree_value *where)
{
    return tree_new(s->tree, type, where);
}

static struct tree_value *put(struct schema *s, struct tree_value *to, const char *key,
                              const struct tree_value *v)
{
    return tree_put(s->tree, to, key, length_or_0(key), v);
}

/* Makes {keyword: value}. */
static struct tree_value *with(struct schema *s, const char *keyword, const struct tree_value *v,
                               const struct tree_value *where)
{
    struct tree_value *o = made(s, JSON_OBJECT, where);
    return put(s, o, keyword, v) ? o : NULL;
}

/* Makes a string node that refers to the schema's own text. */
static struct tree_value *text(struct schema *s, const char *value, size_t n,
                               const struct tree_value *where)
{
    struct tree_value *v = made(s, JSON_STRING, where);
    if (v) {
        v->text = value;
        v->n_text = n;
    }
    return v;
}

static struct tree_value *truth(struct schema *s, bool value, const struct tree_value *where)
{
    struct tree_value *v = made(s, JSON_BOOL, where);
    if (v) {
        v->truth = value;
    }
    return v;
}

/* Makes {"required": [name]}. */
static struct tree_value *requires(struct schema *s, const char *name, size_t n,
                                   const struct tree_value *where)
{
    struct tree_value *list = made(s, JSON_ARRAY, where);
    if (put(s, list, NULL, text(s, name, n, where))) {
        return with(s, "required", list, where);
    }
    return NULL;
}

/* ---- not ---- */

static const struct tree_value *negate(struct schema *s, const struct tree_value *v, int depth);

static bool is_scalar(const struct tree_value *v)
{
    return v->type != JSON_OBJECT && v->type != JSON_ARRAY;
}

static bool all_scalars(const struct tree_value *list)
{
    bool all = list->type == JSON_ARRAY;
    for (const struct tree_value *v = all ? list->first : NULL; v; v = v->next) {
        all &= is_scalar(v);
    }
    return all;
}

/* not (A and B) is (not A) or (not B). */
static const struct tree_value *negate_each(struct schema *s, const struct tree_value *list,
                                            const char *keyword, int depth)
{
    struct tree_value *all = made(s, JSON_ARRAY, list);
    for (const struct tree_value *v = list->type == JSON_ARRAY ? list->first : NULL; v;
         v = v->next) {
        if (!put(s, all, NULL, negate(s, v, depth))) {
            return NULL;
        }
    }
    if (all && all->n > 0) {
        return with(s, keyword, all, list);
    }
    return NULL;
}

/* An object that lacks one of these names. */
static const struct tree_value *negate_required(struct schema *s, const struct tree_value *list)
{
    struct tree_value *any = made(s, JSON_ARRAY, list);
    for (const struct tree_value *v = list->type == JSON_ARRAY ? list->first : NULL; v;
         v = v->next) {
        if (v->type != JSON_STRING ||
            !put(s, any, NULL, with(s, "not", requires(s, v->text, v->n_text, list), list))) {
            return NULL;
        }
    }
    if (any && any->n > 0) {
        return with(s, "anyOf", any, list);
    }
    return truth(s, false, list);
}

/* Not all properties match, so some property is present and does not match its schema. */
static const struct tree_value *negate_properties(struct schema *s,
                                                  const struct tree_value *properties, int depth)
{
    struct tree_value *any = made(s, JSON_ARRAY, properties);
    for (const struct tree_value *v = properties->type == JSON_OBJECT ? properties->first : NULL; v;
         v = v->next) {
        struct tree_value *has = requires(s, v->key, v->n_key, properties);
        struct tree_value *one = made(s, JSON_OBJECT, properties);
        bool ok = tree_put(s->tree, one, v->key, v->n_key, negate(s, v, depth)) &&
                  put(s, has, "properties", one) &&
                  put(s, has, "type", text(s, "object", 6, properties)) && put(s, any, NULL, has);
        if (!ok) {
            return NULL;
        }
    }
    if (any && any->n > 0) {
        return with(s, "anyOf", any, properties);
    }
    return truth(s, false, properties);
}

/* The negation of one keyword of a schema. NULL: it cannot be expressed. */
static const struct tree_value *negate_keyword(struct schema *s, const struct tree_value *v,
                                               int depth)
{
    static const struct {
        const char *name, *opposite;
    } bounds[] = {{"minimum", "exclusiveMaximum"},
                  {"maximum", "exclusiveMinimum"},
                  {"exclusiveMinimum", "maximum"},
                  {"exclusiveMaximum", "minimum"}};
    const struct tree_value key = {.type = JSON_STRING, .text = v->key, .n_text = v->n_key};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        if (tree_is_string(&key, bounds[i].name) && v->type == JSON_NUMBER) {
            struct tree_value *o = with(s, bounds[i].opposite, v, v);
            if (put(s, o, "type", text(s, "number", 6, v))) {
                return o;
            }
            return NULL;
        }
    }
    if (tree_is_string(&key, "const") || tree_is_string(&key, "enum") ||
        tree_is_string(&key, "type")) {
        bool simple;
        if (key.text[0] == 'c') {
            simple = is_scalar(v);
        } else {
            simple = key.text[0] == 't' || all_scalars(v);
        }
        if (simple) {
            return with(s, "not", with(s, v->key, v, v), v);
        }
        return NULL;
    }
    if (tree_is_string(&key, "required")) {
        return negate_required(s, v);
    }
    if (tree_is_string(&key, "properties")) {
        return negate_properties(s, v, depth);
    }
    if (tree_is_string(&key, "not")) {
        return v;
    }
    if (tree_is_string(&key, "anyOf")) {
        return negate_each(s, v, "allOf", depth);
    }
    if (tree_is_string(&key, "allOf")) {
        return negate_each(s, v, "anyOf", depth);
    }
    return NULL;
}

/* Keywords without effect on validity, which a negation may ignore. */
static bool is_annotation(const struct tree_value *v)
{
    static const char *const names[] = {"title",    "description", "default", "examples",
                                        "$comment", "deprecated",  "$schema", "readOnly",
                                        "$id",      "writeOnly"};
    const struct tree_value key = {.type = JSON_STRING, .text = v->key, .n_text = v->n_key};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (tree_is_string(&key, names[i])) {
            return true;
        }
    }
    return false;
}

/* A schema for exactly the values that do not satisfy `v`. NULL: this cannot be expressed with the
 * supported keywords. */
static const struct tree_value *negate(struct schema *s, const struct tree_value *v, int depth)
{
    if (!schema_is(v) || depth > 16 || !exprs_spend(s->x, 10)) {
        return NULL;
    }
    if (v->type == JSON_BOOL) {
        return truth(s, !v->truth, v);
    }
    const struct tree_value *ref = tree_get(v, "$ref"), *to;
    if (ref) {
        bool alone = v->n == 1 || s->draft <= 7;
        if (alone && schema_resolve(s, ref, &to) == OK) {
            return negate(s, to, depth + 1);
        }
        return NULL;
    }
    struct tree_value *any = made(s, JSON_ARRAY, v);
    for (const struct tree_value *k = v->first; k; k = k->next) {
        if (!is_annotation(k) && !put(s, any, NULL, negate_keyword(s, k, depth + 1))) {
            return NULL;
        }
    }
    if (!any || any->n == 0) {
        if (any) {
            return truth(s, false, v);
        }
        return NULL;
    }
    if (any->n == 1) {
        return any->first;
    }
    return with(s, "anyOf", any, v);
}

/* `not` of a type, of scalar values or of one required name needs no expansion, because
 * schema_types, schema_excluded and the compiler of objects handle it. */
static bool is_simple_not(const struct tree_value *v)
{
    const struct tree_value *k = NULL;
    if (v->type == JSON_OBJECT && v->n == 1) {
        k = v->first;
    }
    const struct tree_value key = {
        .type = JSON_STRING, .text = k ? k->key : "", .n_text = k ? k->n_key : 0};
    if (tree_is_string(&key, "required")) {
        return k->type == JSON_ARRAY && k->n == 1;
    }
    return tree_is_string(&key, "type") || (tree_is_string(&key, "const") && is_scalar(k)) ||
           (tree_is_string(&key, "enum") && all_scalars(k));
}

/* The values that a simple `not` excludes are removed one by one, which is exact and cheap. */
bool schema_excluded(const struct set *set, const struct tree_value *value)
{
    for (uint32_t i = 0; i < set->n; i++) {
        const struct tree_value *no = tree_get(set->v[i].schema, "not");
        const struct tree_value *one = tree_get(no, "const"), *list = tree_get(no, "enum");
        if (one && no->n == 1 && tree_equal(one, value)) {
            return true;
        }
        for (const struct tree_value *v = list && no->n == 1 ? list->first : NULL; v; v = v->next) {
            if (tree_equal(v, value)) {
                return true;
            }
        }
    }
    return false;
}

/* ---- what a schema implies ---- */

/* All other negations are expanded, which requires that every keyword inside can be negated. */
static enum status imply_not(struct schema *s, const struct tree_value *schema,
                             struct tree_value *all)
{
    const struct tree_value *no = tree_get(schema, "not");
    if (!no || is_simple_not(no)) {
        return OK;
    }
    if (!put(s, all, NULL, negate(s, no, 0))) {
        return schema_fail(s, ERR_UNSUPPORTED, schema, "this \"not\" is not supported");
    }
    return OK;
}

/* Expands to (if and then) or (not if and else). */
static enum status imply_if(struct schema *s, const struct tree_value *schema,
                            struct tree_value *all)
{
    const struct tree_value *cond = tree_get(schema, "if"), *yes = tree_get(schema, "then"),
                            *no = tree_get(schema, "else");
    if (!cond || (!yes && !no) || s->draft < 7) {
        return OK;
    }
    struct tree_value *first = made(s, JSON_ARRAY, cond), *second = made(s, JSON_ARRAY, cond);
    struct tree_value *any = made(s, JSON_ARRAY, cond);
    bool ok = put(s, first, NULL, cond) && (!yes || put(s, first, NULL, yes)) &&
              put(s, second, NULL, negate(s, cond, 0)) && (!no || put(s, second, NULL, no)) &&
              put(s, any, NULL, with(s, "allOf", first, cond)) &&
              put(s, any, NULL, with(s, "allOf", second, cond)) &&
              put(s, all, NULL, with(s, "anyOf", any, cond));
    if (!ok) {
        return schema_fail(s, ERR_UNSUPPORTED, schema, "this \"if\" is not supported");
    }
    return OK;
}

/* An object either lacks the name, or has it and satisfies what the name requires: other names, or
 * a schema. */
static struct tree_value *dependent(struct schema *s, const struct tree_value *v)
{
    struct tree_value *any = made(s, JSON_ARRAY, v), *both = made(s, JSON_ARRAY, v);
    struct tree_value *has = requires(s, v->key, v->n_key, v);
    bool ok = put(s, any, NULL, with(s, "not", has, v)) && put(s, both, NULL, has);
    if (v->type == JSON_ARRAY) {
        ok = ok && put(s, both, NULL, with(s, "required", v, v));
    } else {
        ok = ok && put(s, both, NULL, v);
    }
    ok = ok && put(s, any, NULL, with(s, "allOf", both, v));
    if (ok) {
        return with(s, "anyOf", any, v);
    }
    return NULL;
}

/* Dependencies do not restrict values that are not objects; such values satisfy "not":
 * {"required"}. */
static enum status imply_dependents(struct schema *s, const struct tree_value *schema,
                                    struct tree_value *all)
{
    static const char *const keywords[] = {"dependentRequired", "dependentSchemas", "dependencies"};
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        const struct tree_value *v;
        TRY(schema_typed(s, schema, keywords[i], JSON_OBJECT, &v));
        for (v = v ? v->first : NULL; v; v = v->next) {
            if (v->type != JSON_ARRAY && !schema_is(v)) {
                return schema_fail(s, ERR_INVALID, schema,
                                   "\"%s\" contains neither names nor a schema", keywords[i]);
            }
            if (!put(s, all, NULL, dependent(s, v))) {
                return schema_fail(s, ERR_LIMIT, schema, "the schema is too large");
            }
        }
    }
    return OK;
}

/* The expansion of a schema is a separate tree, which is kept for the next time. */
enum status schema_implied(struct schema *s, const struct tree_value *schema,
                           const struct tree_value **implied)
{
    static const char *const keywords[] = {"not", "if", "dependentRequired", "dependentSchemas",
                                           "dependencies"};
    bool any = false;
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        any |= tree_get(schema, keywords[i]) != NULL;
    }
    *implied = schema->implied;
    if (!any || *implied) {
        return OK;
    }
    struct tree_value *all = made(s, JSON_ARRAY, schema);
    if (!all) {
        return schema_fail(s, ERR_LIMIT, schema, "the schema is too large");
    }
    TRY(imply_not(s, schema, all));
    TRY(imply_if(s, schema, all));
    TRY(imply_dependents(s, schema, all));
    struct tree_value *made_up = with(s, "allOf", all, schema);
    if (!made_up) {
        return schema_fail(s, ERR_LIMIT, schema, "the schema is too large");
    }
    ((struct tree_value *)schema)->implied = made_up;
    *implied = made_up;
    return OK;
}
