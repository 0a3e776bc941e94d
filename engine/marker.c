// SPDX-License-Identifier: Apache-2.0
#include "engine/marker.h"

#include <string.h>

/* Extends a match by one byte. n_matched: the length of the longest prefix of the marker with which
 * the text ended before this byte. Returns the same length after it. */
static size_t match(const char *marker, size_t n_matched, char byte)
{
    char tail[GRAMMAR_AFTER_MAX + 1];
    memcpy(tail, marker, n_matched);
    tail[n_matched++] = byte;
    size_t skip = 0;
    while (memcmp(tail + skip, marker, n_matched - skip) != 0) {
        skip++;
    }
    return n_matched - skip;
}

enum marker_found marker_search(const struct text_marker *m, const struct grammar_vocab *v,
                                size_t *n_matched, int32_t token)
{
    size_t length = strlen(m->text), n_bytes = 0, at = 0;
    const char *bytes = grammar_token_bytes(v, token, &n_bytes);
    if (token == m->id) {
        return MARKER_END;
    }
    for (; at < n_bytes && *n_matched < length; at++) {
        *n_matched = match(m->text, *n_matched, bytes[at]);
    }
    if (n_bytes == 0) {
        *n_matched = 0; // a special token has no text
    }
    if (*n_matched < length) {
        return MARKER_NONE;
    }
    return at == n_bytes ? MARKER_END : MARKER_WITHIN;
}
