// SPDX-License-Identifier: Apache-2.0
/* Closed lists of words, written as one text "a|b|c", and words that may be names.
 * Thread: any. */
#ifndef SLUICE_BASE_WORDS_H
#define SLUICE_BASE_WORDS_H

#include <stdbool.h>
#include <stddef.h>

/* Which word of the list this is, from 0; -1 if it is none. Several of them joined are none. */
int words_find(const char *list, const char *word);

/* The id of a request, which goes into headers, logs and other systems: 1 to 128 of
 * [A-Za-z0-9._:-]. */
bool words_is_id(const char *id, size_t n_bytes);

#endif
