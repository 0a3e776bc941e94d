// SPDX-License-Identifier: Apache-2.0
/* Exact decimal numbers of a schema: sign, digits before the point, digits after it.
 *
 * Thread: any. */
#ifndef SLUICE_ENGINE_GRAMMAR_DECIMAL_H
#define SLUICE_ENGINE_GRAMMAR_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>

enum { DECIMAL_MAX = 100 }; // maximum number of digits before the point, and after it

struct decimal {
    bool negative; // false for zero
    int n_whole, n_part;
    char whole[DECIMAL_MAX + 2]; // before the point, without leading zeros ("0" if none)
    char part[DECIMAL_MAX + 1];  // after the point, without trailing zeros
};

/* False: too many digits. */
bool decimal_read(struct decimal *d, const char *s, size_t n);
int decimal_compare(const struct decimal *a, const struct decimal *b);
bool decimal_is_whole(const struct decimal *d);
void decimal_add_one(struct decimal *d); // adds 1 to the magnitude of a whole number
/* Subtracts 1 from the magnitude of a whole number other than 0. */
void decimal_take_one(struct decimal *d);

/* Rounds to a whole number, towards plus or minus infinity. */
void decimal_round(struct decimal *d, bool up);

#endif
