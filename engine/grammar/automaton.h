// SPDX-License-Identifier: Apache-2.0
/* States of a grammar over bytes. A state is the set of all ways in which the text so far can be
 * parsed. Each way is an item: an expression for the rest of the current rule, and a stack of what
 * follows when that rule ends. States and stacks are interned: texts with the same continuations
 * (as far as the automaton can tell) have the same state, stacks share their tails, and a
 * transition is looked up in the state's row once it is known. A call at the end of a rule pushes
 * nothing, so right recursion and lists do not grow the stack.
 *
 * When a table is full, x->failed is set; automaton_reset forgets all states.
 *
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_AUTOMATON_H
#define SLUICE_ENGINE_GRAMMAR_AUTOMATON_H

#include "engine/grammar/rules.h"

struct item {
    uint32_t e, stack;
};

enum {
    STATE_DEAD = 0, // no text of the language begins like this
    STACK_ROOT = 0, // nothing follows
};

/* Interned lists of items: stacks, and the kernels of states. */
struct item_lists {
    struct item_list {
        uint32_t first, n, hash, next;
    } *v;
    uint32_t n, cap;
    struct item *items;
    uint32_t n_items, cap_items;
    uint32_t *table, table_size;
};

struct automaton {
    struct exprs *x;
    struct rules *rules;
    struct item_lists stacks, kernels;
    struct astate {
        // By class of bytes: next state + 1, 0 if it is not known yet; NULL: none is known.
        uint32_t *row;
        uint32_t closed, n_closed; // range in automaton.closed: the kernel's items, and those of
                                   // the rules that they call
        uint32_t mask;             // slot in masks.c, + 1; 0: none
        bool may_end, is_closed;
    } *v; // indexed by the kernel's id
    uint32_t cap_v;
    struct item *closed;
    uint32_t n_closed, cap_closed;
    uint32_t start, max_items;
    size_t row_bytes, max_bytes;
};

void automaton_init(struct automaton *a, struct exprs *x, struct rules *rules, uint32_t max_items,
                    size_t max_bytes);
void automaton_deinit(struct automaton *a);
void automaton_reset(struct automaton *a); // forgets all states
size_t automaton_bytes(const struct automaton *a);

/* The state with these items: the rest of the text may follow any of them. */
uint32_t automaton_state(struct automaton *a, const struct item *items, size_t n);
uint32_t automaton_step(struct automaton *a, uint32_t state, uint8_t byte);

/* All items of a state. If an item begins with a call of a rule, the items of that rule are
 * included. */
const struct item *automaton_items(struct automaton *a, uint32_t state, size_t *n);

static inline bool automaton_may_end(const struct automaton *a, uint32_t state)
{
    return a->v[state].may_end;
}

#endif
