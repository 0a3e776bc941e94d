// SPDX-License-Identifier: Apache-2.0
/* A search for a text among tokens that come one by one. Thread: any. */
#ifndef SLUICE_ENGINE_MARKER_H
#define SLUICE_ENGINE_MARKER_H

#include "engine/grammar/grammar.h"
#include "engine/schedule/request.h"

enum marker_found {
    MARKER_NONE,   // the text has not ended yet
    MARKER_WITHIN, // it ends inside this token
    MARKER_END,    // it ends with this token
};

/* Reads one more token. *n_matched: the length of the marker's prefix with which the tokens so far
 * end; 0 at first. */
enum marker_found marker_search(const struct text_marker *m, const struct grammar_vocab *v,
                                size_t *n_matched, int32_t token);

#endif
