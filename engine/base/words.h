/* Closed lists of words, written as one text "a|b|c".
 * Thread: any. */
#ifndef SLUICE_BASE_WORDS_H
#define SLUICE_BASE_WORDS_H

/* Which word of the list this is, from 0; -1 if it is none. Several of them joined are none. */
int words_find(const char *list, const char *word);

#endif
