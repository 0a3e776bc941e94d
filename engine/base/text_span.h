// SPDX-License-Identifier: Apache-2.0
/* A stretch of text with its provenance. The template renderer produces a list of these, the
 * tokenizer consumes it: special tokens are never recognised where input bytes take part.
 * Thread: plain data. */
#ifndef SLUICE_BASE_TEXT_SPAN_H
#define SLUICE_BASE_TEXT_SPAN_H

#include <stdbool.h>
#include <stddef.h>

struct text_span {
    const char *text;
    size_t n_bytes;
    bool is_input; // came from the user: never a control token
};

#endif
