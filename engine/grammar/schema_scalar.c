// SPDX-License-Identifier: Apache-2.0
/* Strings and numbers: combines the keywords of all members of a set. */
#include "engine/grammar/schema.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/grammar/number.h"

#include <stdlib.h>
#include <string.h>

/* ---- strings ---- */

struct contents {
    uint32_t *v;
    uint32_t n, cap;
};

static void put(struct contents *c, uint32_t e)
{
    GROW(c->v, c->n, c->cap);
    c->v[c->n++] = e;
}

/* Adds a regular expression. A pattern may match anywhere in the text, but a format must match all
 * of it. */
static enum status add_regex(struct schema *s, const struct tree_value *schema, const char *text,
                             size_t n, bool search, struct contents *out)
{
    uint32_t e;
    struct err why = {{0}};
    enum status st = regex_language(s->x, text, n, search ? REGEX_SEARCH : 0,
                                    regex_limits_of(s->c->limits), &e, &why);
    if (st != OK) {
        return schema_fail(s, st, schema, "\"%s\": %s", search ? "pattern" : "format", why.text);
    }
    put(out, e);
    return OK;
}

/* minLength and maxLength count characters. */
static enum status add_lengths(struct schema *s, const struct set *set, struct contents *out)
{
    uint32_t lo = 0, hi = EXPR_INF;
    for (uint32_t i = 0; i < set->n; i++) {
        bool found;
        uint32_t count;
        TRY(schema_count(s, set->v[i].schema, "minLength", &found, &count));
        if (found && count > lo) {
            lo = count;
        }
        TRY(schema_count(s, set->v[i].schema, "maxLength", &found, &count));
        if (found && count < hi) {
            hi = count;
        }
    }
    if (lo > 0 || hi != EXPR_INF) {
        put(out, lo > hi ? (uint32_t)EXPR_NONE : expr_rep(s->x, s->x->any_char, lo, hi));
    }
    return OK;
}

/* Collects the texts that "not" excludes. */
static void add_excluded(struct schema *s, const struct set *set, struct contents *out)
{
    struct contents texts = {0};
    for (uint32_t i = 0; i < set->n; i++) {
        const struct tree_value *no = tree_get(set->v[i].schema, "not");
        const struct tree_value *one = tree_get(no, "const"), *list = tree_get(no, "enum");
        for (const struct tree_value *v = list ? list->first : one; v && no->n == 1;
             v = list ? v->next : NULL) {
            if (v->type == JSON_STRING) {
                put(&texts, expr_literal(s->x, v->text, v->n_text));
            }
        }
    }
    if (texts.n > 0) {
        put(out, expr_not(s->x, expr_alt(s->x, texts.v, texts.n)));
    }
    free(texts.v);
}

/* Collects the languages that the keywords require of a string's content. The content must be in
 * all of them. */
static enum status gather_contents(struct schema *s, const struct set *set, struct contents *out)
{
    for (uint32_t i = 0; i < set->n; i++) {
        const struct tree_value *schema = set->v[i].schema, *v;
        TRY(schema_typed(s, schema, "pattern", JSON_STRING, &v));
        if (v) {
            TRY(add_regex(s, schema, v->text, v->n_text, true, out));
        }
        v = tree_get(schema, "format");
        bool named = v && v->type == JSON_STRING;
        const char *format = named ? schema_format(v->text, v->n_text, 0) : NULL;
        for (uint32_t nth = 1; format; nth++) {
            TRY(add_regex(s, schema, format, strlen(format), false, out));
            format = schema_format(v->text, v->n_text, nth);
        }
    }
    TRY(add_lengths(s, set, out));
    add_excluded(s, set, out);
    return OK;
}

/* The language of a string's content, in characters; it is escaped later. */
enum status schema_content(struct schema *s, const struct set *set, uint32_t *e)
{
    struct contents all = {0};
    enum status st = gather_contents(s, set, &all);
    if (st == OK) {
        put(&all, s->x->any_text);
        *e = expr_clean(s->x, expr_and(s->x, all.v, all.n));
    }
    free(all.v);
    return st;
}

enum status schema_string(struct schema *s, const struct set *set, uint32_t *e)
{
    uint32_t content;
    TRY(schema_content(s, set, &content));
    *e = schema_style_string(s, set, content);
    return OK;
}

/* ---- numbers ---- */

static enum status read_decimal(struct schema *s, const struct tree_value *schema,
                                const char *keyword, bool *found, struct decimal *d)
{
    const struct tree_value *v;
    TRY(schema_typed(s, schema, keyword, JSON_NUMBER, &v));
    *found = v != NULL;
    if (v && !decimal_read(d, v->text, v->n_text)) {
        return schema_fail(s, ERR_LIMIT, schema, "\"%s\" has more than %d digits", keyword,
                           DECIMAL_MAX);
    }
    return OK;
}

/* Reads an exclusive bound: in draft 4 it is a flag beside the bound, later a bound itself. */
static enum status read_excluded(struct schema *s, const struct tree_value *schema,
                                 const char *bound, const char *excluded, struct number_bounds *b,
                                 void (*narrow)(struct number_bounds *, const struct decimal *,
                                                bool))
{
    bool found;
    struct decimal d;
    const struct tree_value *flag = tree_get(schema, excluded);
    bool is_flag = flag && flag->type == JSON_BOOL;
    TRY(read_decimal(s, schema, bound, &found, &d));
    if (found) {
        narrow(b, &d, is_flag && flag->truth);
    }
    if (is_flag) {
        return OK;
    }
    TRY(read_decimal(s, schema, excluded, &found, &d));
    if (found) {
        narrow(b, &d, true);
    }
    return OK;
}

/* Numbers that are multiples of every multipleOf in the set. */
static enum status multiples(struct schema *s, const struct set *set, const struct number_bounds *b,
                             bool whole, uint32_t *e)
{
    bool any = false;
    for (uint32_t i = 0; i < set->n; i++) {
        bool found;
        struct decimal d;
        uint32_t one;
        TRY(read_decimal(s, set->v[i].schema, "multipleOf", &found, &d));
        if (!found) {
            continue;
        }
        if (d.negative || (d.whole[0] == '0' && d.n_part == 0)) {
            return schema_fail(s, ERR_INVALID, set->v[i].schema, "\"multipleOf\" must be above 0");
        }
        if (!number_multiple(s->x, b, &d, whole, &one)) {
            return schema_fail(
                s, ERR_UNSUPPORTED, set->v[i].schema,
                "\"multipleOf\" has too many digits, or is above 10,000 together with bounds");
        }
        *e = any ? expr_clean(s->x, expr_and2(s->x, *e, one)) : one;
        any = true;
    }
    if (!any) {
        *e = whole ? number_integer(s->x, b) : number_any(s->x, b);
    }
    return OK;
}

/* Only integers can be excluded, because they have a single spelling; other numbers have many. */
static enum status exclude_numbers(struct schema *s, const struct set *set, bool whole, uint32_t *e)
{
    for (uint32_t i = 0; i < set->n; i++) {
        const struct tree_value *no = tree_get(set->v[i].schema, "not");
        const struct tree_value *one = tree_get(no, "const"), *list = tree_get(no, "enum");
        for (const struct tree_value *v = list ? list->first : one; v && no->n == 1;
             v = list ? v->next : NULL) {
            struct decimal d;
            if (v->type != JSON_NUMBER) {
                continue;
            }
            if (!whole) {
                return schema_fail(s, ERR_UNSUPPORTED, set->v[i].schema,
                                   "\"not\" of a number is supported only for the type integer");
            }
            if (!decimal_read(&d, v->text, v->n_text) || !decimal_is_whole(&d)) {
                continue;
            }
            uint32_t text = expr_literal(s->x, d.whole, (size_t)d.n_whole);
            if (d.negative) {
                text = expr_seq(s->x, expr_byte(s->x, '-'), text);
            }
            *e = expr_clean(s->x, expr_and2(s->x, *e, expr_not(s->x, text)));
        }
    }
    return OK;
}

/* Combines the bounds of all members, then multipleOf, then excluded values. */
enum status schema_number(struct schema *s, const struct set *set, bool whole, uint32_t *e)
{
    struct number_bounds b = {0};
    for (uint32_t i = 0; i < set->n; i++) {
        const struct tree_value *schema = set->v[i].schema;
        TRY(read_excluded(s, schema, "minimum", "exclusiveMinimum", &b, number_above));
        TRY(read_excluded(s, schema, "maximum", "exclusiveMaximum", &b, number_below));
    }
    TRY(multiples(s, set, &b, whole, e));
    return exclude_numbers(s, set, whole, e);
}
