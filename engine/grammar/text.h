// SPDX-License-Identifier: Apache-2.0
/* Text as contents of a JSON string: raw characters, short escapes, \u00XX for control characters.
 * Any \uXXXX, with surrogate pairs checked, is only allowed in unconstrained text: elsewhere its
 * character would have to be matched against the language.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_TEXT_H
#define SLUICE_ENGINE_GRAMMAR_TEXT_H

#include "engine/grammar/expr.h"

/* The remainder of a JSON string after the opening quote, including the closing one, whose text is
 * in the language `a`. */
uint32_t text_make(struct exprs *x, uint32_t a);

/* Another text at the same place of an escape, and whether none has begun. */
uint32_t text_alike(struct exprs *x, uint32_t e, uint32_t a);
static inline bool text_is_plain(const struct exprs *x, uint32_t e)
{
    return x->v[e].b == 0;
}

/* The derivative of an X_TEXT. */
uint32_t text_derive(struct exprs *x, uint32_t e, uint8_t byte);
/* Adds the bytes that it may begin with, if its text may begin with `inside`. */
void text_first(struct exprs *x, uint32_t e, const struct byte_set *inside, struct byte_set *out);
uint32_t text_clean(struct exprs *x, uint32_t e);

/* The contents of a JSON string as we write it, without quotes: an expression of exactly these
 * bytes. */
uint32_t text_literal(struct exprs *x, const char *s, size_t n);

#endif
