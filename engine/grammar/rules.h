// SPDX-License-Identifier: Apache-2.0
/* Rules: named expressions that call each other. A parser adds them as it meets them; rules_finish
 * makes of them what the automaton walks: no rule matches the empty text (a call of one that did is
 * optional instead), none begins with a call of itself, by whatever way (left recursion becomes
 * right recursion), none is dead (every call can end).
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_RULES_H
#define SLUICE_ENGINE_GRAMMAR_RULES_H

#include "engine/grammar/expr.h"

#include "engine/base/status.h"

struct rules {
    struct rule {
        uint32_t body;  // an expression
        uint32_t order; // a rule comes before those that it begins with a call of
    } *v;
    uint32_t n, cap;
};

uint32_t rules_add(struct rules *r); // body EXPR_NONE until set
void rules_deinit(struct rules *r);

/* *start is an expression over the rules. ERR_INVALID: it matches nothing; ERR_LIMIT. */
enum status rules_finish(struct exprs *x, struct rules *r, uint32_t *start, struct err *err);

/* What of an expression begins with a byte: neither its calls of rules at the front, nor the empty
 * text. */
uint32_t rules_without_calls(struct exprs *x, uint32_t e);

#endif
