// SPDX-License-Identifier: Apache-2.0
/* Objects: combines the property keywords of all members of a set. */
#include "engine/grammar/schema.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/grammar/names.h"
#include "engine/grammar/object.h"
#include "engine/grammar/spelling.h"
#include "engine/grammar/text.h"

#include <stdlib.h>
#include <string.h>

enum {
    PATTERN_SETS_MAX = 64, // chosen: number of combinations of patterns that a name can match
    OTHER_NAME_MAX = 64,   // chosen, within STYLE_NAME_MAX_BYTES
};

/* The keywords about an object from all members of a set. They are collected before the expression
 * is built. */
struct builder {
    struct schema *s;
    const struct set *set;
    struct expr_object *o;
    bool outer;          // this is the outermost object of a style with a special notation for it
    uint32_t value_end;  // what follows each value
    struct names names;  // the declared and the required names
    struct name_schema { // a member's schema for a name; those for one name are chained
        uint32_t member, next; // next: index + 1
        const struct tree_value *schema;
    } *name_schemas;
    uint32_t n_name_schemas, cap_name_schemas;
    uint32_t *first_schema; // by name: index of its first schema, plus 1
    uint32_t cap_first;
    bool *required, *banned;
    uint32_t n_declared;
    uint32_t min, max;
    bool closed;           // undeclared names are not allowed
    uint32_t name_content; // the names that propertyNames allow
    struct pattern {
        const struct tree_value *schema;
        uint32_t member;
        uint32_t content; // the names that match the pattern
    } *patterns;
    uint32_t n_patterns, cap_patterns;
};

/* ---- reading ---- */

/* If a schema contains a name twice, the last one counts, as everywhere. */
static void add_schema(struct builder *b, uint32_t name, uint32_t member,
                       const struct tree_value *schema)
{
    if (name >= b->cap_first) {
        uint32_t cap = (name + 1) * 2;
        b->first_schema = xrealloc(b->first_schema, cap * sizeof *b->first_schema);
        memset(b->first_schema + b->cap_first, 0, (cap - b->cap_first) * sizeof *b->first_schema);
        b->cap_first = cap;
    }
    uint32_t first = b->first_schema[name];
    if (first && b->name_schemas[first - 1].member == member) {
        b->name_schemas[first - 1].schema = schema;
        return;
    }
    GROW(b->name_schemas, b->n_name_schemas, b->cap_name_schemas);
    b->name_schemas[b->n_name_schemas++] = (struct name_schema){member, first, schema};
    b->first_schema[name] = b->n_name_schemas;
}

/* If several members have schemas for a name, all of them apply. */
static enum status add_names(struct builder *b, uint32_t member)
{
    const struct tree_value *v;
    TRY(schema_typed(b->s, b->set->v[member].schema, "properties", JSON_OBJECT, &v));
    for (v = v ? v->first : NULL; v; v = v->next) {
        if (!schema_is(v)) {
            return schema_fail(b->s, ERR_INVALID, v, "the value of a property must be a schema");
        }
        add_schema(b, names_get(&b->names, v->key, v->n_key), member, v);
    }
    return OK;
}

/* With `collect` adds the names; otherwise marks which of them are required. */
static enum status add_required(struct builder *b, const struct tree_value *schema, bool collect)
{
    const struct tree_value *v = tree_get(schema, "required"), *no = tree_get(schema, "not");
    if (v && v->type == JSON_BOOL && b->s->draft <= 4) {
        return OK; // in draft 3, `required` was a flag of the property
    }
    TRY(schema_typed(b->s, schema, "required", JSON_ARRAY, &v));
    for (v = v ? v->first : NULL; v; v = v->next) {
        if (v->type != JSON_STRING) {
            return schema_fail(b->s, ERR_INVALID, schema,
                               "\"required\" contains something that is not a name");
        }
        uint32_t i = names_get(&b->names, v->text, v->n_text);
        if (!collect) {
            b->required[i] = true;
        }
    }
    v = no && no->n == 1 ? tree_get(no, "required") : NULL;
    if (v && v->n == 1 && v->first->type == JSON_STRING) {
        uint32_t i = names_get(&b->names, v->first->text, v->first->n_text);
        if (!collect) {
            b->banned[i] = true;
        }
    }
    return OK;
}

/* A pattern of patternProperties also applies to declared names that it matches. */
static enum status add_patterns(struct builder *b, const struct tree_value *schema, uint32_t member)
{
    const struct tree_value *v;
    TRY(schema_typed(b->s, schema, "patternProperties", JSON_OBJECT, &v));
    for (v = v ? v->first : NULL; v; v = v->next) {
        uint32_t e;
        struct err why = {{0}};
        enum status st = regex_language(b->s->x, v->key, v->n_key, REGEX_SEARCH,
                                        regex_limits_of(b->s->c->limits), &e, &why);
        if (st != OK || !schema_is(v)) {
            return schema_fail(b->s, st == OK ? ERR_INVALID : st, schema,
                               "\"patternProperties\": %s",
                               st == OK ? "the value of a property must be a schema" : why.text);
        }
        GROW(b->patterns, b->n_patterns, b->cap_patterns);
        b->patterns[b->n_patterns++] = (struct pattern){v, member, e};
    }
    return OK;
}

/* propertyNames restricts the names themselves. */
static enum status add_name_schema(struct builder *b, struct member m)
{
    const struct tree_value *v = tree_get(m.schema, "propertyNames");
    if (!v) {
        return OK;
    }
    if (!schema_is(v)) {
        return schema_fail(b->s, ERR_INVALID, m.schema, "\"propertyNames\" must be a schema");
    }
    static const char *const known[] = {"pattern", "minLength", "maxLength", "format", "type"};
    uint32_t n = 0, content;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        n += tree_get(v, known[i]) != NULL;
    }
    const struct tree_value *list = tree_get(v, "enum"), *one = tree_get(v, "const");
    if (v->type == JSON_BOOL) {
        content = v->truth ? b->s->x->any_text : (uint32_t)EXPR_EMPTY;
        if (!v->truth) {
            b->max = 0;
        }
    } else if (list || one) {
        content = EXPR_NONE;
        for (const struct tree_value *k = list ? list->first : one; k; k = list ? k->next : NULL) {
            if (k->type == JSON_STRING) {
                content = expr_alt2(b->s->x, content, expr_literal(b->s->x, k->text, k->n_text));
            }
        }
        n++;
    } else {
        struct set set = {0};
        set_add(&set, v, 0, 0);
        enum status st = schema_content(b->s, &set, &content);
        set_deinit(&set);
        TRY(st);
    }
    if (v->type == JSON_OBJECT && n != v->n) {
        return schema_fail(
            b->s, ERR_UNSUPPORTED, m.schema,
            "\"propertyNames\" is supported with pattern, lengths, format, enum and const");
    }
    b->name_content = expr_clean(b->s->x, expr_and2(b->s->x, b->name_content, content));
    return OK;
}

/* unevaluatedProperties is treated like additionalProperties, provided that no other keyword of the
 * schema could have evaluated names. */
static enum status check_unevaluated(struct builder *b, const struct tree_value *schema)
{
    const struct tree_value *v = tree_get(schema, "unevaluatedProperties");
    if (!v || (v->type == JSON_BOOL && v->truth) || tree_get(schema, "additionalProperties")) {
        return OK;
    }
    if (b->set->n > 1 || v->type != JSON_BOOL || tree_get(schema, "anyOf") ||
        tree_get(schema, "oneOf")) {
        return schema_fail(b->s, ERR_UNSUPPORTED, schema,
                           "\"unevaluatedProperties\" is supported only as false, in a schema that "
                           "is not combined with others");
    }
    return OK;
}

/* Whether a schema mentions any properties. If so, other names are not allowed. */
static bool names_any(const struct tree_value *schema)
{
    const struct tree_value *properties = tree_get(schema, "properties");
    return (properties && properties->n > 0) || tree_get(schema, "patternProperties");
}

/* The position of the member's properties in the document. */
static uint32_t place_of(struct member m)
{
    const struct tree_value *properties = tree_get(m.schema, "properties");
    if (m.at || !properties) {
        return m.at;
    }
    return properties->number;
}

/* Adds the names of all members, in the order of the document. */
static enum status add_all_names(struct builder *b)
{
    bool *done = xcalloc(b->set->n + 1, 1);
    enum status st = OK;
    for (uint32_t n = 0; n < b->set->n && st == OK; n++) {
        uint32_t next = UINT32_MAX;
        for (uint32_t i = 0; i < b->set->n; i++) {
            if (!done[i] &&
                (next == UINT32_MAX || place_of(b->set->v[i]) < place_of(b->set->v[next]))) {
                next = i;
            }
        }
        done[next] = true;
        st = add_names(b, next);
    }
    free(done);
    return st;
}

/* An object is closed unless a keyword or open_objects allows other names. */
static enum status read_members(struct builder *b)
{
    bool named = false, decided = b->s->c->source->open_objects;
    TRY(add_all_names(b));
    for (uint32_t i = 0; i < b->set->n; i++) {
        const struct tree_value *schema = b->set->v[i].schema;
        bool found;
        uint32_t count;
        TRY(add_patterns(b, schema, i));
        TRY(add_name_schema(b, b->set->v[i]));
        TRY(check_unevaluated(b, schema));
        TRY(schema_count(b->s, schema, "minProperties", &found, &count));
        if (found && count > b->min) {
            b->min = count;
        }
        TRY(schema_count(b->s, schema, "maxProperties", &found, &count));
        if (found && count < b->max) {
            b->max = count;
        }
        named |= names_any(schema);
        decided |=
            tree_get(schema, "additionalProperties") || tree_get(schema, "unevaluatedProperties");
        decided |= (b->set->v[i].flags & M_KEEP) != 0;
    }
    b->closed = named && !decided;
    b->n_declared = b->names.n;
    for (uint32_t i = 0; i < b->set->n; i++) {
        TRY(add_required(b, b->set->v[i].schema, true));
    }
    b->required = xcalloc(b->names.n + 1, 1);
    b->banned = xcalloc(b->names.n + 1, 1);
    for (uint32_t i = 0; i < b->set->n; i++) {
        TRY(add_required(b, b->set->v[i].schema, false));
    }
    return OK;
}

/* ---- values ---- */

static bool matches(struct exprs *x, uint32_t e, const char *s, size_t n)
{
    for (size_t i = 0; i < n && e != EXPR_NONE; i++) {
        e = expr_derive(x, e, (uint8_t)s[i]);
    }
    return expr_is(x, e, XF_NULLABLE);
}

/* A member's schema for names that it does not list; NULL: it has none. */
static enum status others_of(struct builder *b, uint32_t member, const struct tree_value **v)
{
    const struct tree_value *schema = b->set->v[member].schema;
    static const struct tree_value no = {.type = JSON_BOOL};
    *v = tree_get(schema, "additionalProperties");
    if (!*v) {
        *v = tree_get(schema, "unevaluatedProperties");
    }
    if (*v && !schema_is(*v)) {
        return schema_fail(b->s, ERR_INVALID, schema, "\"additionalProperties\" must be a schema");
    }
    if (!*v && names_any(schema) && (b->set->v[member].flags & M_CLOSED)) {
        *v = &no;
    }
    return OK;
}

static const uint32_t OTHER_NAME = UINT32_MAX; // a name that no schema lists

static const struct tree_value *said_by(const struct builder *b, uint32_t name, uint32_t member)
{
    uint32_t at = name < b->cap_first ? b->first_schema[name] : 0;
    while (at && b->name_schemas[at - 1].member != member) {
        at = b->name_schemas[at - 1].next;
    }
    return at ? b->name_schemas[at - 1].schema : NULL;
}

/* Collects the schemas for the value of a name: those given for the name and those of the patterns
 * that it matches, or else those for other names. */
static enum status value_set(struct builder *b, uint32_t name, const bool *matched, struct set *out)
{
    for (uint32_t i = 0; i < b->set->n; i++) {
        const struct tree_value *v = said_by(b, name, i);
        uint32_t keep = b->set->v[i].flags & M_KEEP;
        bool named = v != NULL;
        if (v) {
            set_add(out, v, keep, 0);
        }
        for (uint32_t p = 0; p < b->n_patterns; p++) {
            if (b->patterns[p].member == i && matched[p]) {
                set_add(out, b->patterns[p].schema, keep, 0);
                named = true;
            }
        }
        if (!named) {
            TRY(others_of(b, i, &v));
            if (v) {
                set_add(out, v, keep, 0);
            }
        }
    }
    return OK;
}

/* The expression for the value of a property. All schemas that apply to the name are combined. */
static enum status value_of(struct builder *b, uint32_t name, const bool *matched, uint32_t *e)
{
    struct set set = {0};
    bool element = b->outer && b->s->style->elements;
    enum status st = value_set(b, name, matched, &set);
    if (st == OK && b->outer) {
        st = schema_style_place(b->s, set.n > 0 ? set.v[0].schema : NULL, &set.place);
    }
    if (st == OK) {
        st = schema_set(b->s, &set, e);
    }
    set_deinit(&set);
    if (st == OK && element) {
        *e = schema_style_element(b->s, b->names.v[name].s, b->names.v[name].n, *e);
        return st;
    }
    if (st == OK) {
        *e = expr_seq(b->s->x, *e, b->value_end);
    } else {
        *e = (uint32_t)EXPR_NONE;
    }
    return st;
}

/* The format of calls cannot write this name. Calls that need not be possible go without it. */
static enum status refuse_name(struct builder *b, uint32_t name, uint32_t *value)
{
    const struct tree_value *at = b->set->v[0].schema;
    if (name < b->cap_first && b->first_schema[name]) {
        at = b->name_schemas[b->first_schema[name] - 1].schema;
    }
    *value = EXPR_NONE;
    if (b->s->c->skip_names) {
        return OK;
    }
    return schema_fail(b->s, ERR_UNSUPPORTED, at,
                       "in this model's format of calls, \"%.*s\" cannot be the name of a "
                       "parameter",
                       (int)lesser(b->names.v[name].n, (size_t)64), b->names.v[name].s);
}

/* Adds the properties in the order in which they were first mentioned. */
static enum status add_properties(struct builder *b)
{
    bool *matched = xcalloc(b->n_patterns + 1, 1);
    enum status st = OK;
    for (uint32_t i = 0; i < b->names.n && st == OK; i++) {
        struct name name = b->names.v[i];
        uint32_t value = EXPR_NONE;
        for (uint32_t p = 0; p < b->n_patterns; p++) {
            matched[p] = matches(b->s->x, b->patterns[p].content, name.s, name.n);
        }
        if (!b->banned[i] && matches(b->s->x, b->name_content, name.s, name.n)) {
            st = value_of(b, i, matched, &value);
        }
        if (st == OK && value != EXPR_NONE &&
            !schema_style_writes_name(b->s, b->o->bare, name.s, name.n)) {
            st = refuse_name(b, i, &value);
        }
        bool only_banned = i >= b->n_declared && !b->required[i];
        if (!only_banned || b->banned[i]) {
            object_add(b->o, name.s, name.n, value, b->required[i]);
        }
        if (b->s->x->failed) {
            st = schema_fail(b->s, ERR_LIMIT, b->set->v[0].schema, "the schema is too complex");
        }
    }
    free(matched);
    return st;
}

/* ---- undeclared names ---- */

/* An undeclared name and its end. Unquoted names consist of up to OTHER_NAME_MAX word characters.
 */
static uint32_t other_name(struct builder *b, uint32_t names)
{
    struct exprs *x = b->s->x;
    if (!b->o->bare) {
        return text_make(x, names);
    }
    struct byte_set first = {0};
    byte_set_add(&first, '_');
    for (unsigned c = 'a'; c <= 'z'; c++) {
        byte_set_add(&first, c);
        byte_set_add(&first, c - 'a' + 'A');
    }
    struct byte_set word = first;
    for (const char *c = "0123456789"; *c; c++) {
        byte_set_add(&word, (uint8_t)*c);
    }
    uint32_t begin = expr_bytes(x, b->s->style->word_names ? &first : &word);
    uint32_t words = expr_seq(x, begin, expr_rep(x, expr_bytes(x, &word), 0, OTHER_NAME_MAX - 1));
    return expr_seq(x, expr_clean(x, expr_and2(x, names, words)), expr_byte(x, b->o->name_end));
}

/* Adds pairs whose name is in `names`, in groups: one for each set of patterns, from p on, that a
 * name may match. */
static enum status add_others(struct builder *b, uint32_t names, uint32_t p, bool *matched,
                              uint32_t *left)
{
    struct exprs *x = b->s->x;
    if (names == EXPR_NONE) {
        return OK;
    }
    if (p < b->n_patterns) {
        uint32_t in = expr_clean(x, expr_and2(x, names, b->patterns[p].content));
        uint32_t out = expr_clean(x, expr_and2(x, names, expr_not(x, b->patterns[p].content)));
        matched[p] = true;
        TRY(add_others(b, in, p + 1, matched, left));
        matched[p] = false;
        return add_others(b, out, p + 1, matched, left);
    }
    bool any = false;
    for (uint32_t i = 0; i < b->n_patterns; i++) {
        any |= matched[i];
    }
    if ((b->closed && !any) || (b->outer && b->s->style->elements)) {
        return OK;
    }
    if (--*left == 0 || x->failed) {
        return schema_fail(b->s, ERR_LIMIT, b->set->v[0].schema,
                           "\"patternProperties\": too many patterns overlap");
    }
    uint32_t value;
    TRY(value_of(b, OTHER_NAME, matched, &value));
    uint32_t pair = expr_seq3(x, other_name(b, names), b->o->colon, value);
    b->o->other = expr_alt2(x, b->o->other, expr_seq(x, b->o->open, pair));
    return OK;
}

/* Adds pairs with undeclared names, for each combination of patterns that such a name can match. */
static enum status add_other_names(struct builder *b)
{
    struct exprs *x = b->s->x;
    if (b->closed && b->n_patterns == 0) {
        return OK;
    }
    uint32_t *declared = xcalloc(b->names.n + 1, sizeof *declared), left = PATTERN_SETS_MAX;
    for (uint32_t i = 0; i < b->names.n; i++) {
        declared[i] = expr_literal(x, b->names.v[i].s, b->names.v[i].n);
    }
    uint32_t not_declared = expr_not(x, expr_alt(x, declared, b->names.n));
    uint32_t names = expr_clean(x, expr_and2(x, b->name_content, not_declared));
    names = schema_style_content(b->s, names);
    bool *matched = xcalloc(b->n_patterns + 1, 1);
    enum status st = add_others(b, names, 0, matched, &left);
    free(matched);
    free(declared);
    return st;
}

/* ---- assembly ---- */

/* Sets the text around names and values. */
static enum status lay_out(struct builder *b, uint32_t *open)
{
    struct exprs *x = b->s->x;
    struct expr_object *o = b->o;
    const struct style *style = b->s->style;
    uint32_t space = b->s->space;
    o->bare = style->bare_names || b->outer;
    o->space = space;
    o->open = o->bare ? (uint32_t)EXPR_EMPTY : expr_byte(x, '"');
    o->name_end = o->bare ? ':' : '"';
    o->comma = expr_seq(x, expr_byte(x, ','), space);
    if (o->bare) {
        o->colon = (uint32_t)EXPR_EMPTY;
    } else {
        o->colon = expr_seq3(x, space, expr_byte(x, ':'), space);
    }
    o->close = expr_byte(x, '}');
    *open = expr_byte(x, '{');
    b->value_end = EXPR_EMPTY;
    if (!b->outer) {
        return OK;
    }
    struct buf colon;
    buf_init(&colon, 1 << 10);
    enum status st = spell(b->s->c, style->colon, strlen(style->colon), &colon);
    if (st == OK) {
        o->name_end = (uint8_t)colon.data[0];
        o->colon = expr_literal(x, colon.data + 1, colon.n_bytes - 1);
        o->space = EXPR_EMPTY;
        o->open = schema_style_text(b->s, style->key);
        o->comma = schema_style_text(b->s, style->comma);
        o->close = schema_style_text(b->s, style->close);
        *open = schema_style_text(b->s, style->open);
        b->value_end = schema_style_text(b->s, style->value_end);
    }
    buf_deinit(&colon);
    return st;
}

/* An object whose limits cannot be met matches nothing. */
static enum status build(struct builder *b, uint32_t *e)
{
    struct exprs *x = b->s->x;
    uint32_t open;
    TRY(read_members(b));
    TRY(lay_out(b, &open));
    b->o->min = b->min;
    b->o->max = b->max;
    TRY(add_properties(b));
    TRY(add_other_names(b));
    if (b->o->n == 0 && b->o->other == EXPR_NONE && b->min == 0) {
        *e = expr_seq3(x, open, b->o->space, b->o->close);
        object_free(b->o);
        b->o = NULL;
        return OK;
    }
    if (!object_has_room(b->o)) {
        *e = EXPR_NONE;
        object_free(b->o);
        b->o = NULL;
        return OK;
    }
    *e = expr_seq(x, open, object_start(x, b->o));
    b->o = NULL; // the expressions own it from now on
    return OK;
}

enum status schema_object(struct schema *s, const struct set *set, uint32_t *e)
{
    struct builder b = {.s = s, .set = set, .max = EXPR_INF, .name_content = s->x->any_text};
    b.outer = s->style->has_outer && (set->place == PLACE_OUTER || s->style->elements);
    b.o = xcalloc(1, sizeof *b.o);
    enum status st = build(&b, e);
    names_deinit(&b.names);
    free(b.required);
    free(b.banned);
    free(b.name_schemas);
    free(b.first_schema);
    free(b.patterns);
    object_free(b.o);
    return st;
}
