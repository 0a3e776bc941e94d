// SPDX-License-Identifier: Apache-2.0
/* Finds the known word closest to a mistyped one. Thread: plain data. */
#ifndef SLUICE_BASE_NEAREST_H
#define SLUICE_BASE_NEAREST_H

#include <stddef.h>

struct nearest {
    const char *typed; // the mistyped word, n_bytes long; '_' counts as '-'
    size_t n_bytes;
    const char *word; // the closest word so far; NULL at first
    size_t distance;  // letters to add, remove or change
};

/* Offers one of the known words. */
void nearest_try(struct nearest *n, const char *word);

/* The closest word offered, or NULL if none is close enough to be a likely correction. */
const char *nearest_word(const struct nearest *n);

#endif
