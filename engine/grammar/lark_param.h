// SPDX-License-Identifier: Apache-2.0
/* Rules with a parameter, as in llguidance: 64 bits that a rule passes to the rules it calls
 * ("name::set_bit(2)"), and conditions on these bits ("%if bit_clear(2)"). Each reachable pair of a
 * rule and a value becomes a separate rule.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_LARK_PARAM_H
#define SLUICE_ENGINE_GRAMMAR_LARK_PARAM_H

#include "engine/grammar/lark_lex.h"

#include <stdint.h>

/* Called after "::": computes the value to pass (*to) from the current rule's `value`. has_value
 * false: the current rule has no parameter. */
enum status lark_parameter(struct lark_lex *l, bool has_value, uint64_t value, uint64_t *to);

/* Called after "%if": whether the condition holds for the current rule's `value`. */
enum status lark_condition(struct lark_lex *l, bool has_value, uint64_t value, bool *holds,
                           int depth);

#endif
