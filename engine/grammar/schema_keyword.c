// SPDX-License-Identifier: Apache-2.0
/* The lists of keywords, and the functions that read their values. */
#include "engine/grammar/schema.h"

#include "engine/grammar/decimal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Errors contain the place in the schema as a JSON pointer. */
enum status schema_fail(struct schema *s, enum status st, const struct tree_value *at,
                        const char *fmt, ...)
{
    char text[300], path[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    tree_path(at, path, sizeof path);
    return err_set(s->c->err, st, "%s: %s", path, text);
}

/* Reads the value of a keyword, which must have this type. */
enum status schema_typed(struct schema *s, const struct tree_value *schema, const char *keyword,
                         enum json_type type, const struct tree_value **value)
{
    *value = tree_get(schema, keyword);
    if (*value && (*value)->type != type) {
        return schema_fail(s, ERR_INVALID, schema, "\"%s\" must be of type %s", keyword,
                           json_type_name(type));
    }
    return OK;
}

/* Reads a whole number that is not negative. A very large maximum counts as no limit. */
enum status schema_count(struct schema *s, const struct tree_value *schema, const char *keyword,
                         bool *found, uint32_t *count)
{
    const struct tree_value *v;
    struct decimal d;
    *found = false;
    TRY(schema_typed(s, schema, keyword, JSON_NUMBER, &v));
    if (!v) {
        return OK;
    }
    *found = true;
    if (!decimal_read(&d, v->text, v->n_text) || d.n_whole > 9) {
        if (v->text[0] != '-' && strncmp(keyword, "max", 3) == 0) {
            *count = EXPR_INF - 1; // has the same effect as any larger number
            return OK;
        }
        return schema_fail(s, ERR_LIMIT, schema, "\"%s\" is too large", keyword);
    }
    if (d.negative || d.n_part > 0) {
        return schema_fail(s, ERR_INVALID, schema,
                           "\"%s\" must be a whole number that is not negative", keyword);
    }
    *count = (uint32_t)strtoul(d.whole, NULL, 10);
    return OK;
}

/* Validation keywords that are not supported. Keywords that are supported only for some values are
 * checked where they are read. Keywords in none of these lists do not affect validation. */
static const char *const refused[] = {
    "$dynamicRef", "$recursiveRef", "contentSchema", "disallow", "extends", "divisibleBy",
};

/* Keywords that not all drafts have. If a document names its draft and uses a keyword of another
 * draft, the keyword would have no effect, which is probably not intended. */
static const struct {
    const char *name;
    int first, last; // first and last draft that has the keyword
} of_drafts[] = {
    {"dependencies", 0, 7},
    {"dependentRequired", 2019, 2020},
    {"dependentSchemas", 2019, 2020},
};

/* Unsupported keywords are errors unless they have no effect. If the document names a draft, that
 * draft must have the keywords that are used. */
enum status schema_check_keywords(struct schema *s, const struct tree_value *schema)
{
    for (size_t i = 0; s->names_draft && i < sizeof of_drafts / sizeof *of_drafts; i++) {
        bool has = s->draft >= of_drafts[i].first && s->draft <= of_drafts[i].last;
        if (!has && tree_get(schema, of_drafts[i].name)) {
            return schema_fail(s, ERR_UNSUPPORTED, schema,
                               "the draft that \"$schema\" names has no keyword \"%s\"",
                               of_drafts[i].name);
        }
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (tree_get(schema, refused[i])) {
            return schema_fail(s, ERR_UNSUPPORTED, schema, "the keyword \"%s\" is not supported",
                               refused[i]);
        }
    }
    return OK;
}

static const struct {
    const char *name;
    uint32_t types;
} type_names[] = {
    {"null", T_NULL},       {"boolean", T_BOOL},
    {"integer", T_INTEGER}, {"number", T_INTEGER | T_NUMBER},
    {"string", T_STRING},   {"array", T_ARRAY},
    {"object", T_OBJECT},
};

static enum status one_type(struct schema *s, const struct tree_value *schema,
                            const struct tree_value *name, uint32_t *types)
{
    for (size_t i = 0; i < sizeof type_names / sizeof *type_names; i++) {
        if (tree_is_string(name, type_names[i].name)) {
            *types |= type_names[i].types;
            return OK;
        }
    }
    bool is_text = name->type == JSON_STRING;
    return schema_fail(s, ERR_INVALID, schema, "\"type\": \"%.40s\" is not a JSON type",
                       is_text ? name->text : json_type_name(name->type));
}

/* The types that all members allow. */
enum status schema_types(struct schema *s, const struct set *set, uint32_t *types)
{
    *types = T_ALL;
    for (uint32_t i = 0; i < set->n; i++) {
        const struct tree_value *schema = set->v[i].schema, *v = tree_get(schema, "type"), *no;
        uint32_t these = 0;
        if (v && v->type == JSON_ARRAY) {
            for (const struct tree_value *name = v->first; name; name = name->next) {
                TRY(one_type(s, schema, name, &these));
            }
        } else if (v) {
            TRY(one_type(s, schema, v, &these));
        }
        *types &= v ? these : T_ALL;
        no = tree_get(schema, "not");
        v = no ? tree_get(no, "type") : NULL;
        if (!v || no->n != 1) {
            continue;
        }
        these = 0;
        for (const struct tree_value *name = v->type == JSON_ARRAY ? v->first : v; name;
             name = name->next) {
            TRY(one_type(s, schema, name, &these));
            if (v->type != JSON_ARRAY) {
                break;
            }
        }
        if ((these & T_INTEGER) && !(these & T_NUMBER)) {
            return schema_fail(s, ERR_UNSUPPORTED, schema,
                               "\"not\" of the type integer is not supported");
        }
        *types &= ~these;
    }
    return OK;
}
