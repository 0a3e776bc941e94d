// SPDX-License-Identifier: Apache-2.0
/* The remainder of a JSON object whose named properties come in a fixed order, followed by any
 * others. Each position in the object is one expression, expanded when it is reached. All names are
 * in one trie, so that hundreds of optional properties cost no more at a position than the bytes of
 * the names that may follow.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_OBJECT_H
#define SLUICE_ENGINE_GRAMMAR_OBJECT_H

#include "engine/grammar/expr.h"

struct expr_property {
    char *name; // owned
    size_t n_name;
    uint32_t value; // EXPR_NONE: not allowed
    bool required;
};

struct expr_object {
    struct expr_property *v;
    uint32_t n, cap;
    uint32_t other;    // a complete pair with an undeclared name; EXPR_NONE: not allowed
    uint32_t min, max; // number of pairs; max may be EXPR_INF
    uint32_t space, colon,
        comma; // separators; colon and comma include the white space after them
    /* A name follows `open` and ends with the byte name_end, with JSON's escapes unless it is bare;
     * `close` ends the object and may be empty. */
    uint32_t open, close;
    uint8_t name_end;
    bool bare;

    // Computed by object_finish.
    uint32_t *next_required; // index of the first required property from v[i] on; n: none
    uint32_t *n_required;    // number of required properties from v[i] on
    struct key_node {
        uint32_t child, sibling; // 0: none
        uint32_t first, count;   // range of `below`: the properties whose names continue from here,
                                 // ascending
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

/* Builds the trie, after all values are final, and before any derivative of the object. */
void object_finish(struct exprs *x, struct expr_object *o);

/* Whether any text can complete the object: all required properties are possible. */
bool object_has_room(const struct expr_object *o);

uint32_t object_expand(struct exprs *x, uint32_t e);                         // an X_OBJECT
void object_first_of_key(struct exprs *x, uint32_t e, struct byte_set *out); // an X_KEY
uint32_t object_derive_key(struct exprs *x, uint32_t e, uint8_t byte);

#endif
