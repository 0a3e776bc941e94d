// SPDX-License-Identifier: Apache-2.0
/* Output of styles other than JSON: words, strings, and the text around values. */
#include "engine/grammar/schema.h"

#include "engine/grammar/spelling.h"
#include "engine/grammar/text.h"

#include <string.h>

const char *schema_word(const struct schema *s, const struct tree_value *v)
{
    return s->style->words[v->type == JSON_NULL ? 0 : 1 + !v->truth];
}

/* Styles must not use end ids: if an end id of the vocabulary has this name, it cannot be written,
 * and the expression matches nothing. */
uint32_t schema_style_text(struct schema *s, const char *text)
{
    struct compile c = *s->c;
    struct err unused;
    uint32_t e = EXPR_NONE;
    c.err = &unused;
    if (spell_expr(&c, text, strlen(text), &e) == OK) {
        return e;
    }
    return (uint32_t)EXPR_NONE;
}

/* The texts that do not contain `bar`. */
static uint32_t without(struct schema *s, uint32_t content, const char *bar)
{
    struct exprs *x = s->x;
    uint32_t has = expr_seq3(x, x->any_text, expr_literal(x, bar, strlen(bar)), x->any_text);
    return expr_clean(x, expr_and2(x, content, expr_not(x, has)));
}

uint32_t schema_style_content(struct schema *s, uint32_t content)
{
    if (s->style->bar) {
        return without(s, content, s->style->bar);
    }
    return content;
}

bool schema_style_writes_name(const struct schema *s, bool bare, const char *name, size_t n)
{
    const char *bar = s->style->bar;
    return (!bar || !memmem(name, n, bar, strlen(bar))) &&
           (!bare || style_reads_name(s->style, name, n));
}

/* A string as written in a place: bare, in the style's quotes, or as JSON. If the style has its own
 * quotes, the string must not contain them. */
uint32_t schema_style_string(struct schema *s, const struct set *set, uint32_t content)
{
    struct exprs *x = s->x;
    content = schema_style_content(s, content);
    if (set->place >= PLACE_BARE) {
        return content;
    }
    if (s->style->quote) {
        uint32_t quote = schema_style_text(s, s->style->quote);
        return expr_seq3(x, quote, without(s, content, s->style->quote), quote);
    }
    return expr_seq(x, expr_byte(x, '"'), text_make(x, content));
}

uint32_t schema_style_element(struct schema *s, const char *name, size_t n, uint32_t e)
{
    struct exprs *x = s->x;
    uint32_t end = expr_seq3(x, schema_style_text(s, s->style->value_end), expr_literal(x, name, n),
                             expr_byte(x, '>'));
    return expr_seq(x, e, end);
}

uint32_t schema_style_value(struct schema *s, const struct set *set, enum style_type type,
                            uint32_t e)
{
    const char *before = set->place >= PLACE_BARE ? s->style->types[type] : NULL;
    if (before && e != EXPR_NONE) {
        return expr_seq(s->x, schema_style_text(s, before), e);
    }
    return e;
}

uint32_t schema_style_types(const struct set *set, uint32_t types)
{
    switch (set->place) {
    case PLACE_OUTER: return types & T_OBJECT;
    case PLACE_BARE_TEXT: return types & (T_STRING | T_NULL);
    default: return types;
    }
}

/* ---- how unquoted text is interpreted ---- */

/* What a schema says about a type: nothing, that values may have this type, or that they must have
 * another one. This must agree with server/chat/tools/value.c, which parses the output. */
struct reading {
    const char *type;
    bool known, allowed;
};

static void read_list(const struct tree_value *list, struct reading *r)
{
    for (const struct tree_value *one = list ? list->first : NULL; one; one = one->next) {
        r->known |= one->type == JSON_STRING;
        r->allowed |= tree_is_string(one, r->type);
    }
}

/* The types that a parameter may have, as far as its schema shows without being compiled. */
static enum status read_schema(struct schema *s, const struct tree_value *schema, int depth,
                               struct reading *r)
{
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    const struct tree_value *ref = tree_get(schema, "$ref"), *type = tree_get(schema, "type");
    const struct tree_value *first = tree_get(schema, "const"), *list = tree_get(schema, "enum");
    if (ref && depth < 8) {
        TRY(schema_resolve(s, ref, &schema));
        return read_schema(s, schema, depth + 1, r);
    }
    if (type && type->type == JSON_STRING) {
        r->known = true;
        r->allowed |= tree_is_string(type, r->type);
        return OK;
    }
    read_list(type, r);
    for (size_t i = 0; i < 3 && depth < 8 && !r->allowed; i++) {
        const struct tree_value *all = tree_get(schema, lists[i]);
        for (const struct tree_value *v = all ? all->first : NULL; v && !r->allowed; v = v->next) {
            TRY(read_schema(s, v, depth + 1, r));
        }
    }
    if (list) {
        first = list->first;
    }
    if (!type && first && !r->allowed) {
        r->known = true;
        r->allowed = strcmp(json_type_name(first->type), r->type) == 0;
    }
    return OK;
}

/* Decides whether a parameter's value is written bare, in quotes or as JSON. */
enum status schema_style_place(struct schema *s, const struct tree_value *first, enum place *place)
{
    struct reading text = {.type = "string"};
    *place = s->style->is_bare ? PLACE_BARE : PLACE_ANY;
    if (!s->style->is_bare || s->style->types[STYLE_STRING]) {
        return OK;
    }
    if (first) {
        TRY(read_schema(s, first, 0, &text));
    }
    if (text.allowed || !text.known) {
        *place = PLACE_BARE_TEXT;
    } else {
        *place = PLACE_BARE;
    }
    return OK;
}
