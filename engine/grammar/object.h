// SPDX-License-Identifier: Apache-2.0
/* The rest of a JSON object whose named properties come in a fixed order, followed by any others.
 * Each position in the object is one expression, which is expanded when it is reached. All names
 * are in one trie, so hundreds of optional properties cost no more at a position than the bytes
 * that their names may begin with.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_OBJECT_H
#define SLUICE_ENGINE_GRAMMAR_OBJECT_H

#include "engine/grammar/expr.h"

struct expr_property {
    char *name; // owned
    size_t n_name;
    uint32_t value; // EXPR_NONE: the property is not allowed
    bool required;
};

struct expr_object {
    struct expr_property *v;
    uint32_t n, cap;
    uint32_t other;    // a complete pair with an undeclared name; EXPR_NONE: none are allowed
    uint32_t min, max; // minimum and maximum number of pairs; max may be EXPR_INF
    uint32_t space, colon,
        comma; // separators; colon and comma include the white space after them
    /* A name follows `open` and ends with the byte name_end. JSON's escapes are used in it unless
     * it is bare. `close` ends the object, and may be empty. */
    uint32_t open, close;
    uint8_t name_end;
    bool bare;

    // Computed by object_finish.
    // By i: index of the first required property from v[i] on; n: there is none.
    uint32_t *next_required;
    uint32_t *n_required; // by i: number of required properties from v[i] on
    struct key_node {
        uint32_t child, sibling; // 0: none
        uint32_t first, count;   // range of `below`: the properties whose names continue from this
                                 // node, ascending
        uint32_t leaf;           // index of the property whose name ends here, plus 1
        uint8_t byte;
    } *trie; // [0] is the root
    uint32_t n_trie, cap_trie;
    uint32_t *below;
    uint32_t n_below, cap_below;
};

void object_add(struct expr_object *o, const char *name, size_t n_name, uint32_t value,
                bool required);
void object_free(struct expr_object *o); // accepts NULL

/* Adds the object to `x` (which does not own it) and returns the expression after the opening
 * brace. */
uint32_t object_start(struct exprs *x, struct expr_object *o);

/* Builds the trie. Call it when all values are final, and before any derivative of the object. */
void object_finish(struct exprs *x, struct expr_object *o);

/* Whether any text can complete the object, which means that all required properties are
 * possible. */
bool object_has_room(const struct expr_object *o);

uint32_t object_expand(struct exprs *x, uint32_t e);                         // e: an X_OBJECT
void object_first_of_key(struct exprs *x, uint32_t e, struct byte_set *out); // e: an X_KEY
uint32_t object_derive_key(struct exprs *x, uint32_t e, uint8_t byte);

#endif
