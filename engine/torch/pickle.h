// SPDX-License-Identifier: Apache-2.0
/* Python's pickles, read as data. A pickle is a program for a stack machine; here its calls are not
 * made but become nodes that name the function and its arguments, and only globals that the caller
 * accepts may be named at all. Opcodes that plain data, calls and persistent ids do not need are
 * refused.
 * Thread: one owner; lookups any. */
#ifndef SLUICE_ENGINE_TORCH_PICKLE_H
#define SLUICE_ENGINE_TORCH_PICKLE_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,
    PICKLE_FLOAT, // its value is not kept
    PICKLE_TEXT,  // also bytes
    PICKLE_GLOBAL,
    PICKLE_TUPLE,
    PICKLE_LIST,
    PICKLE_DICT,
    PICKLE_CALL,       // its function and arguments: see `function`, `args`; its items: a dict's
    PICKLE_PERSISTENT, // args: what identifies an object outside the pickle
};

/* A node's index. Node 0 is NONE, and stands for everything that is missing. */
typedef uint32_t pickle_ref;

struct pickle_node {
    enum pickle_kind kind;
    bool has_state;          // a state was set, which is not kept
    uint32_t first, last, n; // the items, and their number
    pickle_ref function, args;
    int64_t number;   // INT and BOOL: the value; GLOBAL: what the caller's function returned
    const char *text; // of a TEXT, in the pickle, and not NUL-terminated
    size_t n_bytes;
};

/* An item of a tuple, list or dict; only a dict's has a key. */
struct pickle_item {
    pickle_ref key, value;
    uint32_t next;
};

struct pickle {
    struct pickle_node *nodes;
    struct pickle_item *items;
    size_t n_nodes, n_items, cap_nodes, cap_items;
    pickle_ref root;
};

/* Returns a number that identifies the global in its nodes, or -1: not accepted. */
typedef int32_t pickle_find_global(const char *module, const char *name);

/* `path` is for messages. pickle_close also after a failure. */
enum status pickle_open(const unsigned char *data, size_t n_bytes, const char *path,
                        pickle_find_global *find, struct pickle *out, struct err *err);
void pickle_close(struct pickle *p);

static inline const struct pickle_node *pickle_at(const struct pickle *p, pickle_ref ref)
{
    return &p->nodes[ref];
}

/* Item i of a tuple; nodes[0] if there is none. */
pickle_ref pickle_item_at(const struct pickle *p, pickle_ref tuple, uint32_t i);

#endif
