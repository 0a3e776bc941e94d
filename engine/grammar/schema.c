// SPDX-License-Identifier: Apache-2.0
/* Compiles JSON schemas to expressions. The unit of compilation is a set: all schemas that apply to
 * the same value, whose keywords are combined. */
#include "engine/grammar/schema.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLANKS = 24, // longest run of white space, by default
    SET_WORK = 150,
};

/* ---- sets ---- */

/* A schema is in a set at most once for each combination of flags. */
void set_add(struct set *set, const struct tree_value *schema, uint32_t flags, uint32_t at)
{
    for (uint32_t i = 0; i < set->n; i++) {
        if (set->v[i].schema == schema && set->v[i].flags == flags) {
            return;
        }
    }
    GROW(set->v, set->n, set->cap);
    set->v[set->n++] = (struct member){schema, flags, at};
}

void set_add_all(struct set *set, const struct set *of)
{
    for (uint32_t i = 0; i < of->n; i++) {
        set_add(set, of->v[i].schema, of->v[i].flags, of->v[i].at);
    }
    set->place = greater(of->place, set->place);
}

void set_deinit(struct set *set)
{
    free(set->v);
    *set = (struct set){0};
}

/* Adds a schema that another one refers to; false if it is in the set already. A schema from which
 * a branch has been chosen counts as a different schema, because a branch that leads back to its
 * own schema needs a new choice. */
static bool add_once(struct set *set, const struct tree_value *schema, uint32_t keep, uint32_t at)
{
    uint32_t n = set->n;
    set_add(set, schema, keep, at);
    return set->n > n;
}

/* Adds the schemas that a member refers to or implies: its $ref, its allOf, and the expansion of
 * its keywords. *dead: one of them is `false`. */
static enum status gather(struct schema *s, struct member m, struct set *to, bool *dead, int depth)
{
    const struct tree_value *schema = m.schema, *v, *implied;
    uint32_t keep = m.flags & M_KEEP;
    if (!exprs_spend(s->x, 4 + 2 * to->n) || depth > s->c->limits->max_depth) {
        return schema_fail(s, ERR_LIMIT, schema, "the schema is too complex");
    }
    if (schema->type == JSON_BOOL) {
        *dead |= !schema->truth;
        return OK;
    }
    TRY(schema_check_keywords(s, schema));
    v = tree_get(schema, "$ref");
    if (v) {
        struct member target = {.flags = keep, .at = m.at ? m.at : v->number};
        TRY(schema_resolve(s, v, &target.schema));
        if (add_once(to, target.schema, keep, target.at)) {
            TRY(gather(s, target, to, dead, depth + 1));
        }
        if (s->draft <= 7) {
            return OK;
        }
    }
    TRY(schema_implied(s, schema, &implied));
    if (implied && add_once(to, implied, keep, m.at)) {
        TRY(gather(s, (struct member){implied, keep, m.at}, to, dead, depth + 1));
    }
    TRY(schema_typed(s, schema, "allOf", JSON_ARRAY, &v));
    for (v = v ? v->first : NULL; v; v = v->next) {
        if (!schema_is(v)) {
            return schema_fail(s, ERR_INVALID, schema,
                               "\"allOf\" contains something that is not a schema");
        }
        if (add_once(to, v, keep, m.at)) {
            TRY(gather(s, (struct member){v, keep, m.at}, to, dead, depth + 1));
        }
    }
    return OK;
}

/* Drops members that have no further effect: `true`, and, in drafts in which $ref hides the
 * keywords beside it, references that have been followed. */
static void drop_references(const struct schema *s, struct set *set)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        const struct tree_value *schema = set->v[i].schema;
        bool hidden = s->draft <= 7 && tree_get(schema, "$ref");
        if (schema->type == JSON_OBJECT && schema->n > 0 && !hidden) {
            set->v[n++] = set->v[i];
        }
    }
    set->n = n;
}

/* Detects a cycle of references that never reaches a schema. */
static enum status check_circle(struct schema *s, const struct set *from)
{
    for (uint32_t i = 0; i < from->n; i++) {
        const struct tree_value *v = from->v[i].schema;
        for (uint32_t steps = 0; v->type == JSON_OBJECT && tree_get(v, "$ref"); steps++) {
            if (s->draft > 7 && v->n > 1) {
                break;
            }
            if (steps > 1000) {
                return schema_fail(s, ERR_INVALID, v, "\"$ref\" refers to itself");
            }
            TRY(schema_resolve(s, tree_get(v, "$ref"), &v));
        }
    }
    return OK;
}

/* ---- compiled sets ---- */

static int by_schema(const void *p, const void *q)
{
    const struct member *a = p, *b = q;
    if (a->schema != b->schema) {
        return a->schema->number < b->schema->number ? -1 : 1;
    }
    return a->flags < b->flags ? -1 : a->flags > b->flags;
}

static bool equal_sets(const struct set *a, const struct set *b)
{
    bool equal = a->n == b->n && a->place == b->place;
    for (uint32_t i = 0; i < a->n && equal; i++) {
        equal = a->v[i].schema == b->v[i].schema && a->v[i].flags == b->v[i].flags;
    }
    return equal;
}

/* Equal sets compile to the same rule, which also ends recursion. */
static uint32_t *slot_of(struct schema *s, const struct set *key, uint64_t hash)
{
    size_t i = hash & (s->table_size - 1);
    for (; s->table[i]; i = (i + 1) & (s->table_size - 1)) {
        const struct compiled *p = &s->v[s->table[i] - 1];
        if (p->hash == hash && equal_sets(&p->set, key)) {
            break;
        }
    }
    return &s->table[i];
}

/* The index of the set's entry, which is added if it is missing. The entry takes ownership of `set`
 * as its key, in the document's order. */
static uint32_t entry_of(struct schema *s, const struct set *set)
{
    struct set key = {0};
    set_add_all(&key, set);
    if (key.n > 1) {
        qsort(key.v, key.n, sizeof *key.v, by_schema);
    }
    uint64_t h = key.n * 4 + key.place;
    for (uint32_t i = 0; i < key.n; i++) {
        h = hash_mix(h * 31 + ((uint64_t)key.v[i].schema->number << 32 | key.v[i].flags));
    }
    if (s->n * 2 >= s->table_size) {
        free(s->table);
        s->table_size = s->table_size ? s->table_size * 2 : 64;
        s->table = xcalloc(s->table_size, sizeof *s->table);
        for (uint32_t i = 0; i < s->n; i++) {
            *slot_of(s, &s->v[i].set, s->v[i].hash) = i + 1;
        }
    }
    uint32_t *slot = slot_of(s, &key, h);
    if (*slot) {
        set_deinit(&key);
        return *slot - 1;
    }
    GROW(s->v, s->n, s->cap);
    s->v[s->n++] = (struct compiled){.set = key, .hash = h};
    *slot = s->n;
    return s->n - 1;
}

/* ---- one set ---- */

/* null, true or false, unless the set excludes that value. */
static uint32_t literal(struct schema *s, const struct set *set, enum json_type type, bool truth)
{
    const struct tree_value value = {.type = type, .truth = truth};
    const char *text = schema_word(s, &value);
    enum style_type kind = type == JSON_NULL ? STYLE_NULL : STYLE_BOOL;
    if (schema_excluded(set, &value)) {
        return (uint32_t)EXPR_NONE;
    }
    return schema_style_value(s, set, kind, expr_literal(s->x, text, strlen(text)));
}

/* One branch for each type that all schemas of the set allow, in the notation of the style. */
static enum status each_type(struct schema *s, const struct set *set, uint32_t types, uint32_t *e)
{
    uint32_t branch[N_TYPES + 1] = {EXPR_NONE}, n = 0, one;
    types = schema_style_types(set, types);
    if (types & T_NULL) {
        branch[n++] = literal(s, set, JSON_NULL, false);
    }
    if (types & T_BOOL) {
        branch[n++] = literal(s, set, JSON_BOOL, true);
        branch[n++] = literal(s, set, JSON_BOOL, false);
    }
    if (types & (T_INTEGER | T_NUMBER)) {
        TRY(schema_number(s, set, !(types & T_NUMBER), &one));
        branch[n++] = schema_style_value(s, set, STYLE_NUMBER, one);
    }
    if (types & T_STRING) {
        TRY(schema_string(s, set, &one));
        branch[n++] = schema_style_value(s, set, STYLE_STRING, one);
    }
    if (types & T_ARRAY) {
        TRY(schema_array(s, set, &one));
        branch[n++] = schema_style_value(s, set, STYLE_ARRAY, one);
    }
    if (types & T_OBJECT) {
        TRY(schema_object(s, set, &one));
        branch[n++] = schema_style_value(s, set, STYLE_OBJECT, one);
    }
    *e = expr_alt(s->x, branch, n);
    return OK;
}

/* First anyOf and oneOf, then listed values, then each possible type. */
static enum status compile_set(struct schema *s, const struct set *set, uint32_t *e)
{
    bool found;
    uint32_t types;
    TRY(schema_branch(s, set, &found, e));
    if (found) {
        return OK;
    }
    TRY(schema_types(s, set, &types));
    TRY(schema_enum(s, set, types, &found, e));
    if (!found) {
        return each_type(s, set, types, e);
    }
    return OK;
}

/* Each set of schemas is compiled once. A set that contains itself becomes a rule that is
 * called. */
static enum status gathered_set(struct schema *s, const struct set *set, uint32_t *e)
{
    uint32_t at = entry_of(s, set);
    if (s->v[at].done) {
        *e = s->v[at].e;
        return OK;
    }
    if (s->v[at].e) { // the set contains itself: recursion
        if (!s->v[at].rule) {
            s->v[at].rule = rules_add(s->c->rules) + 1;
        }
        *e = expr_call(s->x, s->v[at].rule - 1);
        return OK;
    }
    s->v[at].e = 1;
    if (++s->depth > 4 * s->c->limits->max_depth || !exprs_spend(s->x, SET_WORK + 30 * set->n)) {
        return err_set(s->c->err, ERR_LIMIT, "the schema is too complex");
    }
    TRY(compile_set(s, set, e));
    s->depth--;
    if (s->v[at].rule) {
        s->c->rules->v[s->v[at].rule - 1].body = *e;
        *e = expr_call(s->x, s->v[at].rule - 1);
    }
    s->v[at].e = *e;
    s->v[at].done = true;
    return OK;
}

/* Compiles the set with more members added. References are replaced by what they refer to. `dead`
 * means that a member is `false`. */
enum status schema_set_with(struct schema *s, const struct set *set, const struct set *more,
                            uint32_t *e)
{
    struct set all = {0};
    bool dead = false;
    *e = EXPR_NONE;
    set_add_all(&all, set);
    all.place = greater(more->place, all.place);
    enum status st = check_circle(s, more);
    for (uint32_t i = 0; i < more->n && st == OK; i++) {
        set_add(&all, more->v[i].schema, more->v[i].flags, more->v[i].at);
        st = gather(s, more->v[i], &all, &dead, 0);
    }
    if (st == OK && !dead) {
        drop_references(s, &all);
        st = gathered_set(s, &all, e);
    }
    set_deinit(&all);
    return st;
}

enum status schema_set(struct schema *s, const struct set *set, uint32_t *e)
{
    return schema_set_with(s, &(struct set){0}, set, e);
}

/* ---- entry point ---- */

/* The draft decides what some keywords mean. If none is named, it is the latest. */
static int draft_of(const struct tree_value *root)
{
    static const struct {
        const char *part;
        int draft;
    } drafts[] = {
        {"draft-03", 4}, {"draft-04", 4}, {"draft-06", 6}, {"draft-07", 7}, {"2019-09", 2019}};
    const struct tree_value *v = tree_get(root, "$schema");
    for (size_t i = 0; v && v->type == JSON_STRING && i < sizeof drafts / sizeof *drafts; i++) {
        if (strstr(v->text, drafts[i].part)) {
            return drafts[i].draft;
        }
    }
    return 2020;
}

/* The blanks between JSON's tokens. A client's own pattern must match only blanks, because answers
 * would not be JSON otherwise. */
static enum status read_space(struct schema *s)
{
    const struct grammar_source *source = s->c->source;
    struct byte_set blanks = {0};
    for (const char *c = " \t\n\r"; *c; c++) {
        byte_set_add(&blanks, (uint8_t)*c);
    }
    uint32_t any = expr_rep(s->x, expr_bytes(s->x, &blanks), 0, EXPR_INF);
    if (source->disable_any_whitespace || s->style->compact) {
        s->space = EXPR_EMPTY;
    } else if (source->whitespace_pattern) {
        const char *p = source->whitespace_pattern;
        enum status st = regex_language(s->x, p, strlen(p), 0, regex_limits_of(s->c->limits),
                                        &s->space, s->c->err);
        if (st != OK) {
            return err_prefix(s->c->err, st, "whitespace_pattern");
        }
        bool other = expr_clean(s->x, expr_and2(s->x, s->space, expr_not(s->x, any))) != EXPR_NONE;
        if (s->space == EXPR_NONE || other) {
            return err_set(s->c->err, ERR_INVALID,
                           "whitespace_pattern: it must match only white space of JSON");
        }
    } else {
        s->space = expr_rep(s->x, expr_bytes(s->x, &blanks), 0, BLANKS);
    }
    return OK;
}

/* The place of the root depends on the style, because an outermost object may have a special
 * notation. */
static enum status compile_root(struct schema *s, uint32_t *start)
{
    if (!schema_is(s->root)) {
        return schema_fail(s, ERR_INVALID, s->root, "a schema must be an object, true or false");
    }
    s->draft = draft_of(s->root);
    s->names_draft = tree_get(s->root, "$schema") != NULL;
    TRY(read_space(s));
    bool outer = s->style->has_outer || s->c->only_object;
    struct set set = {.place = outer ? PLACE_OUTER : PLACE_ANY};
    set_add(&set, s->root, 0, 0);
    enum status st = schema_set(s, &set, start);
    set_deinit(&set);
    return st;
}

/* For a schema that is part of another document (tags). */
enum status schema_parse_at(struct compile *c, struct tree *tree, const struct tree_value *root,
                            uint32_t *start)
{
    struct schema s = {.c = c, .x = c->x, .tree = tree, .root = root};
    s.style = c->style ? c->style : style_json();
    enum status st = compile_root(&s, start);
    for (uint32_t i = 0; i < s.n; i++) {
        set_deinit(&s.v[i].set);
    }
    free(s.v);
    free(s.table);
    return st;
}

/* The tree may grow to twice its size, because some keywords are expanded into others. */
enum status schema_parse(struct compile *c, uint32_t *start)
{
    struct tree tree = {0};
    const struct grammar_limits *l = c->limits;
    enum status st =
        tree_read(&tree, c->source->text, c->source->n_bytes, l->max_depth, l->max_nodes, c->err);
    if (st == OK) {
        tree.max_values *= 2; // room for the expansions of keywords
        st = schema_parse_at(c, &tree, tree.root, start);
    }
    tree_deinit(&tree);
    return st;
}
