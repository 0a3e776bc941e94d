// SPDX-License-Identifier: Apache-2.0
/* The rules that a Lark grammar calls, one entry for each pair of a rule and a value of its
 * parameter. Each pair becomes a rule of the automaton.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_LARK_CALLS_H
#define SLUICE_ENGINE_GRAMMAR_LARK_CALLS_H

#include "engine/grammar/rules.h"

#include <stdbool.h>
#include <stdint.h>

struct lark_calls {
    struct lark_call {
        uint32_t name;
        uint64_t value;
        uint32_t rule;
    } *v;
    uint32_t n, cap;
    uint32_t *table, table_size;
};

void lark_calls_deinit(struct lark_calls *c);

/* The rule for a name and a value. If it is new, it has no body yet. False: there are too many. */
bool lark_calls_add(struct lark_calls *c, struct rules *rules, uint32_t name, uint64_t value,
                    uint32_t *rule);

/* Removes the calls that were added after the first n. */
void lark_calls_forget(struct lark_calls *c, uint32_t n);

#endif
