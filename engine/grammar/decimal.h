// SPDX-License-Identifier: Apache-2.0
/* Decimal numbers of a schema, exactly: a sign, digits, and how many of them are behind the point.
 *
 * Thread: any. */
#ifndef SLUICE_ENGINE_GRAMMAR_DECIMAL_H
#define SLUICE_ENGINE_GRAMMAR_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>

enum { DECIMAL_MAX = 100 }; // digits

struct decimal {
    bool negative; // never of zero
    int n_whole, n_part;
    char whole[DECIMAL_MAX + 2]; // before the point, without zeros in front ("0" for none)
    char part[DECIMAL_MAX + 1];  // behind it, without zeros at the end
};

bool decimal_read(struct decimal *d, const char *s,
                  size_t n); // false: more digits than DECIMAL_MAX
int decimal_compare(const struct decimal *a, const struct decimal *b);
bool decimal_is_whole(const struct decimal *d);
void decimal_add_one(struct decimal *d);  // to the magnitude of a whole number
void decimal_take_one(struct decimal *d); // from the magnitude of a whole number that is not 0

/* Towards plus or minus infinity, to a whole number. */
void decimal_round(struct decimal *d, bool up);

#endif
