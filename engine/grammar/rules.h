// SPDX-License-Identifier: Apache-2.0
/* Rules: named expressions that may call each other. Parsers add them as they occur; rules_finish
 * converts them to the form that the automaton needs: no rule matches the empty text (calls of the
 * rules that matched it become optional), no rule is left-recursive, directly or indirectly (it is
 * converted to right recursion), and no rule is dead (every call can complete).
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_RULES_H
#define SLUICE_ENGINE_GRAMMAR_RULES_H

#include "engine/grammar/expr.h"

#include "engine/base/status.h"

struct rules {
    struct rule {
        uint32_t body;  // an expression
        uint32_t order; // if a rule begins with a call, its number is lower than that of the rule
                        // it calls
    } *v;
    uint32_t n, cap;
};

uint32_t rules_add(struct rules *r); // the body is EXPR_NONE until it is set
void rules_deinit(struct rules *r);

/* *start is an expression over the rules. ERR_INVALID: it matches nothing; or ERR_LIMIT. */
enum status rules_finish(struct exprs *x, struct rules *r, uint32_t *start, struct err *err);

/* The texts of an expression that begin with a byte, without those that begin with a call and
 * without the empty text. */
uint32_t rules_without_calls(struct exprs *x, uint32_t e);

#endif
