// SPDX-License-Identifier: Apache-2.0
#include "engine/base/nearest.h"
#include "engine/base/minmax.h"

#include <string.h>

enum { MAX_WORD = 64 };

/* Levenshtein distance of two words; b has at most MAX_WORD bytes. */
static size_t distance(const char *a, const char *b, size_t nb)
{
    size_t row[MAX_WORD + 1], na = strlen(a);
    for (size_t j = 0; j <= nb; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            char c = b[j - 1] == '_' ? '-' : b[j - 1];
            size_t best = diagonal + (a[i - 1] != c);
            diagonal = row[j];
            best = lesser(row[j] + 1, best);
            best = lesser(row[j - 1] + 1, best);
            row[j] = best;
        }
    }
    return row[nb];
}

void nearest_try(struct nearest *n, const char *word)
{
    if (n->n_bytes > MAX_WORD) {
        return; // too long to be a typing error
    }
    size_t d = distance(word, n->typed, n->n_bytes);
    if (!n->word || d < n->distance) {
        n->word = word;
        n->distance = d;
    }
}

const char *nearest_word(const struct nearest *n)
{
    if (n->word && n->distance <= 1 + n->n_bytes / 3) {
        return n->word;
    }
    return NULL;
}
