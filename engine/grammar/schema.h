// SPDX-License-Identifier: Apache-2.0
/* The schema compiler's own interface. What has to hold at one place of a text is a *set*: all
 * schemas that apply there at once (a schema, its $ref, its allOf; what several say of one
 * property). A set becomes an expression: first its branches (anyOf and the like) are chosen, one
 * after the other, each choice another set; then each type of JSON that is left is made of what all
 * members say of it. Sets are compiled once; one that is met inside itself becomes a rule. Thread:
 * one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_SCHEMA_H
#define SLUICE_ENGINE_GRAMMAR_SCHEMA_H

#include "engine/grammar/parsers.h"
#include "engine/grammar/schema_tree.h"
#include "engine/grammar/style.h"

#include <stdbool.h>

/* How a member of a set is taken, beside the schema itself. */
enum member_flag {
    M_ANY_DONE = 1, // its anyOf has been chosen from; likewise the next
    M_ONE_DONE = 2,
    M_ENUM_DONE = 4,
    M_CLOSED =
        8, // names that it does not say anything of are not allowed, whatever other members say
    M_OPEN = 16,                // they are allowed
    M_KEEP = M_CLOSED | M_OPEN, // what is handed on to the schemas inside
};

struct member {
    const struct tree_value *schema;
    uint32_t flags;
    uint32_t
        at; // where the document mentions it, if not where it stands: its names come in this order
};

/* Where in a text of a style a set's value stands. */
enum place {
    PLACE_ANY,
    PLACE_OUTER,     // the outermost object, which it must be
    PLACE_BARE,      // a value of it: strings are bare
    PLACE_BARE_TEXT, // where bare text is always read as a string, but for null
};

struct set {
    struct member *v;
    uint32_t n, cap;
    enum place place;
};

enum { N_TYPES = 7 };
enum type_bit {
    T_NULL = 1,
    T_BOOL = 2,
    T_INTEGER = 4,
    T_NUMBER = 8, // that is not whole; numbers are both
    T_STRING = 16,
    T_ARRAY = 32,
    T_OBJECT = 64,
    T_ALL = 127,
};

struct schema {
    struct compile *c;
    struct exprs *x;
    struct tree *tree;
    const struct tree_value *root; // of the schema in it
    int draft;                     // 4, 6, 7, 2019, 2020
    bool names_draft;              // the document does
    int depth;
    const struct style *style;
    uint32_t space;   // between tokens
    struct compiled { // sets that have been met, by their hash
        struct set set;
        uint64_t hash;
        uint32_t e, rule; // rule: plus 1, once it was met inside itself
        bool done;
    } *v;
    uint32_t n, cap;
    uint32_t *table, table_size;
};

/* Writes "#/path: sentence"; returns the status. */
enum status schema_fail(struct schema *s, enum status st, const struct tree_value *at,
                        const char *fmt, ...) PRINTF_LIKE(4, 5);

void set_add(struct set *set, const struct tree_value *schema, uint32_t flags, uint32_t at);
void set_add_all(struct set *set, const struct set *of);
void set_deinit(struct set *set);

/* schema.c: a set as an expression; EXPR_NONE: nothing fits. It is made whole first: what its
 * members bring with them joins it. With: `set` is whole already, and `more` joins it. */
enum status schema_set(struct schema *s, const struct set *set, uint32_t *e);
enum status schema_set_with(struct schema *s, const struct set *set, const struct set *more,
                            uint32_t *e);

/* schema_ref.c */
enum status schema_resolve(struct schema *s, const struct tree_value *ref,
                           const struct tree_value **to);

/* schema_branch.c: if a member has an anyOf or oneOf that is not done: *chosen, and *e is what its
 * choices come to. */
enum status schema_branch(struct schema *s, const struct set *set, bool *chosen, uint32_t *e);

/* schema_imply.c: what if, not and the dependent keywords come to, said with anyOf, allOf and `not`
 * of simple things; NULL: nothing. */
enum status schema_implied(struct schema *s, const struct tree_value *schema,
                           const struct tree_value **implied);

/* Whether a value is excluded by a member's "not": {"enum": ...} or "const". */
bool schema_excluded(const struct set *set, const struct tree_value *value);

/* Keywords of one kind each: what all members say of it. schema_keyword.c has the readers. */
enum status schema_types(struct schema *s, const struct set *set, uint32_t *types);
enum status schema_enum(struct schema *s, const struct set *set, uint32_t types, bool *found,
                        uint32_t *e);
enum status schema_string(struct schema *s, const struct set *set, uint32_t *e);  // as written
enum status schema_content(struct schema *s, const struct set *set, uint32_t *e); // its text
enum status schema_number(struct schema *s, const struct set *set, bool whole, uint32_t *e);
enum status schema_array(struct schema *s, const struct set *set, uint32_t *e);
enum status schema_object(struct schema *s, const struct set *set, uint32_t *e);

/* Checks that each keyword is one that we know, and can do. */
enum status schema_check_keywords(struct schema *s, const struct tree_value *schema);

/* A keyword's value as a count; *found false: it is not there. */
enum status schema_count(struct schema *s, const struct tree_value *schema, const char *keyword,
                         bool *found, uint32_t *count);
/* The keyword's value if it is of this type, NULL if it is not there. */
enum status schema_typed(struct schema *s, const struct tree_value *schema, const char *keyword,
                         enum json_type type, const struct tree_value **value);

/* schema_style.c: what styles other than JSON's write. The bytes of a style's text; the place of a
 * parameter's value, which the first schema that speaks of it decides as those do who read it; a
 * value with what stands before it by its type; the types that may stand in a place. */
uint32_t schema_style_text(struct schema *s, const char *text);
enum status schema_style_place(struct schema *s, const struct tree_value *first, enum place *place);
uint32_t schema_style_value(struct schema *s, const struct set *set, enum style_type type,
                            uint32_t e);
uint32_t schema_style_types(const struct set *set, uint32_t types);
/* A member of an object or array whose style writes elements, as NAME and its value. */
uint32_t schema_style_element(struct schema *s, const char *name, size_t n, uint32_t e);
/* Texts without what would end the parameter that they are in; also of names, and within JSON. */
uint32_t schema_style_content(struct schema *s, uint32_t content);
/* A string's text as it is written in a place. */
uint32_t schema_style_string(struct schema *s, const struct set *set, uint32_t content);
/* null, true or false. */
const char *schema_word(const struct schema *s, const struct tree_value *v);

/* A regular expression for a known format; NULL: not known. */
const char *schema_format(const char *name, size_t n);

static inline bool schema_is(const struct tree_value *v)
{
    return v->type == JSON_OBJECT || v->type == JSON_BOOL;
}

#endif
