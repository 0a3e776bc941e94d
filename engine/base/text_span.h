// SPDX-License-Identifier: Apache-2.0
/* A piece of text and whether it came from the user. The template renderer produces a list of these
 * and the tokenizer consumes it: special tokens are never recognised in text that contains user
 * input.
 * Thread: plain data. */
#ifndef SLUICE_BASE_TEXT_SPAN_H
#define SLUICE_BASE_TEXT_SPAN_H

#include <stdbool.h>
#include <stddef.h>

struct text_span {
    const char *text;
    size_t n_bytes;
    bool is_input; // from the user: never a control token
};

#endif
