// SPDX-License-Identifier: Apache-2.0
/* The internal interface of the schema compiler. A *set* is all schemas that apply to one place of
 * a text (a schema, its $ref, its allOf; or several schemas of one property). To compile a set to
 * an expression, first its branches (anyOf etc.) are chosen, one after the other; each choice gives
 * another set. Then the expression for each remaining JSON type is built from the keywords of all
 * members. Each set is compiled once; a set that contains itself becomes a rule.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_SCHEMA_H
#define SLUICE_ENGINE_GRAMMAR_SCHEMA_H

#include "engine/grammar/parsers.h"
#include "engine/grammar/schema_tree.h"
#include "engine/grammar/style.h"

#include <stdbool.h>

/* How a member of a set is interpreted, in addition to the schema itself. */
enum member_flag {
    M_ANY_DONE = 1, // a branch of its anyOf has been chosen; the next two are similar
    M_ONE_DONE = 2,
    M_ENUM_DONE = 4,
    // Names that this member does not mention are not allowed, even if other members mention them.
    M_CLOSED = 8,
    M_OPEN = 16,                // names that this member does not mention are allowed
    M_KEEP = M_CLOSED | M_OPEN, // flags that subschemas inherit
};

struct member {
    const struct tree_value *schema;
    uint32_t flags;
    /* Position in the document, if it differs from the schema's own; determines the order of its
     * names. */
    uint32_t at;
};

/* For styles: where in the text a set's value is. */
enum place {
    PLACE_ANY,
    PLACE_OUTER,     // the outermost value, which must be an object
    PLACE_BARE,      // a value inside it; strings are unquoted
    PLACE_BARE_TEXT, // as PLACE_BARE, but any unquoted text other than null is read as a string
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
    T_NUMBER = 8, // a number that is not an integer; "number" in a schema means both
    T_STRING = 16,
    T_ARRAY = 32,
    T_OBJECT = 64,
    T_ALL = 127,
};

struct schema {
    struct compile *c;
    struct exprs *x;
    struct tree *tree;
    const struct tree_value *root; // root of the schema
    int draft;                     // 4, 6, 7, 2019, 2020
    bool names_draft;              // the document names a draft in $schema
    int depth;
    const struct style *style;
    uint32_t space;   // white space between tokens
    struct compiled { // known sets; the table finds them by hash
        struct set set;
        uint64_t hash;
        uint32_t e, rule; // rule: number of the rule, plus 1, if the set was found inside itself
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

/* schema.c. Both compile a set; EXPR_NONE: no value matches it. schema_set first completes the set
 * with the schemas that its members refer to. schema_set_with: `set` is complete already, and
 * `more` is added to it. */
enum status schema_set(struct schema *s, const struct set *set, uint32_t *e);
enum status schema_set_with(struct schema *s, const struct set *set, const struct set *more,
                            uint32_t *e);

/* schema_ref.c */
enum status schema_resolve(struct schema *s, const struct tree_value *ref,
                           const struct tree_value **to);

/* schema_branch.c. If a member has an anyOf or oneOf from which no branch has been chosen yet, sets
 * *chosen, and *e to the union over the choices. */
enum status schema_branch(struct schema *s, const struct set *set, bool *chosen, uint32_t *e);

/* schema_imply.c. The expansion of if, not and the dependent keywords into anyOf, allOf and simple
 * uses of `not`. NULL: there is nothing to expand. */
enum status schema_implied(struct schema *s, const struct tree_value *schema,
                           const struct tree_value **implied);

/* Whether a member's "not" of an "enum" or "const" excludes a value. */
bool schema_excluded(const struct set *set, const struct tree_value *value);

/* Each of these compiles the keywords of one kind, for all members. The functions that read
 * keywords are in schema_keyword.c. */
enum status schema_types(struct schema *s, const struct set *set, uint32_t *types);
enum status schema_enum(struct schema *s, const struct set *set, uint32_t types, bool *found,
                        uint32_t *e);
/* The string as written in the output. */
enum status schema_string(struct schema *s, const struct set *set, uint32_t *e);
/* The string's content in characters, before it is escaped. */
enum status schema_content(struct schema *s, const struct set *set, uint32_t *e);
enum status schema_number(struct schema *s, const struct set *set, bool whole, uint32_t *e);
enum status schema_array(struct schema *s, const struct set *set, uint32_t *e);
enum status schema_object(struct schema *s, const struct set *set, uint32_t *e);

/* Checks that all keywords are known and supported. */
enum status schema_check_keywords(struct schema *s, const struct tree_value *schema);

/* Reads a keyword's value as a count. *found false: the keyword is absent. */
enum status schema_count(struct schema *s, const struct tree_value *schema, const char *keyword,
                         bool *found, uint32_t *count);
/* Reads the value of a keyword, which must have this type. NULL: the keyword is absent. */
enum status schema_typed(struct schema *s, const struct tree_value *schema, const char *keyword,
                         enum json_type type, const struct tree_value **value);

/* schema_style.c: output in styles other than JSON. schema_style_text: the bytes of a style's text.
 * schema_style_place: the place of a parameter's value; as in the parsers, the first schema that
 * restricts it decides. schema_style_value: a value with the prefix of its type.
 * schema_style_types: the types that are allowed in a place. */
uint32_t schema_style_text(struct schema *s, const char *text);
enum status schema_style_place(struct schema *s, const struct tree_value *first, enum place *place);
uint32_t schema_style_value(struct schema *s, const struct set *set, enum style_type type,
                            uint32_t e);
uint32_t schema_style_types(const struct set *set, uint32_t types);
/* For styles with elements: a member of an object or array, which is NAME and its value. */
uint32_t schema_style_element(struct schema *s, const char *name, size_t n, uint32_t e);
/* Texts that do not contain the end marker of their parameter. Also used for names, and inside
 * JSON. */
uint32_t schema_style_content(struct schema *s, uint32_t content);
/* The text of a string, as written in a place. */
uint32_t schema_style_string(struct schema *s, const struct set *set, uint32_t content);
/* Whether the name of a member can be written; `bare`: without quotes. */
bool schema_style_writes_name(const struct schema *s, bool bare, const char *name, size_t n);
/* null, true or false. */
const char *schema_word(const struct schema *s, const struct tree_value *v);

/* Regular expression `nth` (from 0) of a known format. A text of the format must match all of them.
 * NULL: there are no more. */
const char *schema_format(const char *name, size_t n, uint32_t nth);

static inline bool schema_is(const struct tree_value *v)
{
    return v->type == JSON_OBJECT || v->type == JSON_BOOL;
}

#endif
