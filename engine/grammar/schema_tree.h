// SPDX-License-Identifier: Apache-2.0
/* A JSON text as a tree for the schema compiler. Members keep their order, numbers their text, and
 * strings their length (they may contain any character). Every value knows its path, for messages.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_SCHEMA_TREE_H
#define SLUICE_ENGINE_GRAMMAR_SCHEMA_TREE_H

#include "engine/base/arena.h"
#include "engine/base/json.h"
#include "engine/base/status.h"

#include <stdint.h>

struct tree_value {
    enum json_type type;
    uint32_t number;  // index of the value in its tree, from 0
    const char *text; // the string (unescaped), or the literal of a number
    size_t n_text;
    bool truth;      // value of a boolean
    const char *key; // key of a member
    size_t n_key;
    struct tree_value *parent, *first, *last, *next;
    uint32_t n;                 // number of children
    struct tree_value *implied; // for the schema compiler: the expansion of its keywords
};

struct tree {
    struct arena arena;
    struct tree_value *root;
    uint32_t n_values, max_values;
};

enum status tree_read(struct tree *t, const char *text, size_t n, int max_depth,
                      uint32_t max_values, struct err *err);
void tree_deinit(struct tree *t);

/* The member with this key; the last one if there are several, NULL if there is none. */
const struct tree_value *tree_get(const struct tree_value *object, const char *key);
const struct tree_value *tree_get_n(const struct tree_value *object, const char *key, size_t n);

/* Whether two JSON values are equal: numbers are compared by value, members in any order. */
bool tree_equal(const struct tree_value *a, const struct tree_value *b);
bool tree_is_string(const struct tree_value *v, const char *s);

/* "#/properties/a", truncated on the left if it is long. */
void tree_path(const struct tree_value *v, char *out, size_t n_bytes);

/* Creates a value that is not in the text, for the expansion of keywords. NULL: the tree is too
 * large. */
struct tree_value *tree_new(struct tree *t, enum json_type type, const struct tree_value *where);
/* Adds a copy of `v`, whose children are shared, to an object or array. */
struct tree_value *tree_put(struct tree *t, struct tree_value *to, const char *key, size_t n_key,
                            const struct tree_value *v);

#endif
