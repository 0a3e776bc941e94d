// SPDX-License-Identifier: Apache-2.0
/* Rules with a parameter, as llguidance has them: 64 bits that a rule hands to those it calls
 * ("name::set_bit(2)"), and conditions on them ("%if bit_clear(2)"). Each rule with each value that
 * is reached is a rule of its own.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_LARK_PARAM_H
#define SLUICE_ENGINE_GRAMMAR_LARK_PARAM_H

#include "engine/grammar/lark_lex.h"

#include <stdint.h>

/* Behind "::": the value handed on, given the present one; has_value false: the rule itself has
 * none. */
enum status lark_parameter(struct lark_lex *l, bool has_value, uint64_t value, uint64_t *to);

/* Behind "%if". */
enum status lark_condition(struct lark_lex *l, bool has_value, uint64_t value, bool *holds,
                           int depth);

#endif
