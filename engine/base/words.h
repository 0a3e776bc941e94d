// SPDX-License-Identifier: Apache-2.0
/* Closed lists of words, written as one text "a|b|c"; and checks of words used as ids.
 * Thread: any. */
#ifndef SLUICE_BASE_WORDS_H
#define SLUICE_BASE_WORDS_H

#include <stdbool.h>
#include <stddef.h>

/* Index of the word in the list; -1 if absent. A word that contains '|' is never found. */
int words_find(const char *list, const char *word);

/* True for a valid request id, which goes into headers, logs and other systems: 1 to 128 of
 * [A-Za-z0-9._:-]. */
bool words_is_id(const char *id, size_t n_bytes);

#endif
