// SPDX-License-Identifier: Apache-2.0
/* The rest of a JSON object whose named properties come in a fixed order, then any others: one node
 * of an expression for each place in it, expanded when it is reached. All names are in one trie, so
 * that hundreds of optional properties cost no more at a place than the bytes of the names that may
 * follow.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_OBJECT_H
#define SLUICE_ENGINE_GRAMMAR_OBJECT_H

#include "engine/grammar/expr.h"

struct expr_property {
    char *name; // owned
    size_t n_name;
    uint32_t value; // EXPR_NONE: it may not be there
    bool required;
};

struct expr_object {
    struct expr_property *v;
    uint32_t n, cap;
    uint32_t other;    // a whole pair of another name; EXPR_NONE: there are none
    uint32_t min, max; // pairs; max may be EXPR_INF
    uint32_t space, colon,
        comma; // between tokens; colon and comma with their white space behind them
    /* A name stands behind `open` and before the byte name_end, with the escapes of JSON unless it
     * is bare; what closes the object is `close`, which may be nothing. */
    uint32_t open, close;
    uint8_t name_end;
    bool bare;

    // Made by object_finish.
    uint32_t *next_required; // of v[i] and those behind it; n: none
    uint32_t *n_required;    // of v[i] and those behind it
    struct key_node {
        uint32_t child, sibling; // 0: none
        uint32_t first, count; // in `below`: the properties whose names go on from here, ascending
        uint32_t leaf;         // the property whose name ends here, plus 1
        uint8_t byte;
    } *trie; // [0] is the root
    uint32_t n_trie, cap_trie;
    uint32_t *below;
    uint32_t n_below, cap_below;
};

void object_add(struct expr_object *o, const char *name, size_t n_name, uint32_t value,
                bool required);
void object_free(struct expr_object *o); // accepts NULL

/* Takes the object into `x` (which does not own it) and says where it begins: behind the brace. */
uint32_t object_start(struct exprs *x, struct expr_object *o);

/* After all values are what they will be: the trie. Before any derivative of it. */
void object_finish(struct exprs *x, struct expr_object *o);

/* Whether any text of it can end: all that is required can be there. */
bool object_has_room(const struct expr_object *o);

uint32_t object_expand(struct exprs *x, uint32_t e);                         // an X_OBJECT
void object_first_of_key(struct exprs *x, uint32_t e, struct byte_set *out); // an X_KEY
uint32_t object_derive_key(struct exprs *x, uint32_t e, uint8_t byte);

#endif
