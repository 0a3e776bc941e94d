// SPDX-License-Identifier: Apache-2.0
/* Text as the inside of a JSON string: raw characters, short escapes, \u00XX for control
 * characters. Any \uXXXX, with pairs of surrogates checked, only where the text may be anything:
 * elsewhere what it stands for would have to be compared with all that may come.
 * Thread: one owner.
 */
#ifndef SLUICE_ENGINE_GRAMMAR_TEXT_H
#define SLUICE_ENGINE_GRAMMAR_TEXT_H

#include "engine/grammar/expr.h"

/* The rest of a JSON string, from behind the first quote to its closing one, whose text is of the
 * language `a`. */
uint32_t text_make(struct exprs *x, uint32_t a);

/* Of an X_TEXT. */
uint32_t text_derive(struct exprs *x, uint32_t e, uint8_t byte);
/* Adds what it may begin with, where its text may begin with `inside`. */
void text_first(struct exprs *x, uint32_t e, const struct byte_set *inside, struct byte_set *out);
uint32_t text_clean(struct exprs *x, uint32_t e);

/* The text of a JSON string as we would write it, without quotes: an expression of these bytes
 * alone. */
uint32_t text_literal(struct exprs *x, const char *s, size_t n);

#endif
