// SPDX-License-Identifier: Apache-2.0
/* The literals of Lark grammars as expressions: strings, ranges of characters, regular expressions.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_LARK_LITERAL_H
#define SLUICE_ENGINE_GRAMMAR_LARK_LITERAL_H

#include "engine/grammar/lark_lex.h"
#include "engine/grammar/regex.h"

/* Each function reports errors by lark_fail, at the lexer's position. */
enum status lark_string(struct lark_lex *lex, struct exprs *x, struct lark_word w, uint32_t *e);
enum status lark_range(struct lark_lex *lex, struct exprs *x, struct lark_word from,
                       struct lark_word to, uint32_t *e); // "a".."z"
enum status lark_regex(struct lark_lex *lex, struct exprs *x, struct regex_limits limits,
                       struct lark_word w, uint32_t *e);

#endif
