// SPDX-License-Identifier: Apache-2.0
/* The known word that somebody may have meant who typed another one.
 * Thread: plain data. */
#ifndef SLUICE_BASE_NEAREST_H
#define SLUICE_BASE_NEAREST_H

#include <stddef.h>

struct nearest {
    const char *typed; // [n_bytes]; '_' counts as '-'
    size_t n_bytes;
    const char *word; // of those that were tried; NULL at first
    size_t distance;  // letters to add, to leave out or to change
};

/* One of the words that there are. */
void nearest_try(struct nearest *n, const char *word);

/* The nearest of those that were tried, NULL when none is near enough to be meant. */
const char *nearest_word(const struct nearest *n);

#endif
