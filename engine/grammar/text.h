// SPDX-License-Identifier: Apache-2.0
/* Text as the content of a JSON string: raw characters, short escapes, and \u00XX for control
 * characters. Other \uXXXX escapes, whose surrogates must be paired, are allowed only in
 * unconstrained text; elsewhere the escaped character would have to be matched against the
 * language.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_TEXT_H
#define SLUICE_ENGINE_GRAMMAR_TEXT_H

#include "engine/grammar/expr.h"

/* The rest of a JSON string after the opening quote, including the closing quote. Its text is in
 * the language `a`. */
uint32_t text_make(struct exprs *x, uint32_t a);

/* text_alike: an X_TEXT of the language `a` that is at the same position within an escape as `e`.
 * text_is_plain: `e` is not within an escape. */
uint32_t text_alike(struct exprs *x, uint32_t e, uint32_t a);
static inline bool text_is_plain(const struct exprs *x, uint32_t e)
{
    return x->v[e].b == 0;
}

uint32_t text_derive(struct exprs *x, uint32_t e, uint8_t byte);
/* Adds the bytes that `e` may begin with, given that its language may begin with the bytes in
 * `inside`. */
void text_first(struct exprs *x, uint32_t e, const struct byte_set *inside, struct byte_set *out);
uint32_t text_clean(struct exprs *x, uint32_t e);

/* Matches exactly `s` as the content of a JSON string without quotes, written with this project's
 * choice of escapes. */
uint32_t text_literal(struct exprs *x, const char *s, size_t n);

#endif
