// SPDX-License-Identifier: Apache-2.0
/* Numbers of JSON within bounds, as expressions.
 *
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_NUMBER_H
#define SLUICE_ENGINE_GRAMMAR_NUMBER_H

#include "engine/grammar/decimal.h"
#include "engine/grammar/expr.h"

struct number_bounds {
    bool has_min, has_max, min_excluded, max_excluded;
    struct decimal min, max;
};

/* Tightens the bounds. */
void number_above(struct number_bounds *b, const struct decimal *v, bool excluded);
void number_below(struct number_bounds *b, const struct decimal *v, bool excluded);

/* Whole numbers within the bounds, written without point and exponent. "-0" is excluded. */
uint32_t number_integer(struct exprs *x, const struct number_bounds *b);

/* Any numbers within the bounds. If there are bounds, they are written without exponent. */
uint32_t number_any(struct exprs *x, const struct number_bounds *b);

/* Multiples of `of` (above 0) within the bounds, written without exponent, and with at most as many
 * digits after the point as `of` has. False: the modulus is too large. */
bool number_multiple(struct exprs *x, const struct number_bounds *b, const struct decimal *of,
                     bool whole, uint32_t *e);

#endif
