// SPDX-License-Identifier: Apache-2.0
/* One character of a regular expression, or a set of characters: escapes and classes.
 *
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_REGEX_CLASS_H
#define SLUICE_ENGINE_GRAMMAR_REGEX_CLASS_H

#include "engine/base/status.h"
#include "engine/grammar/charset.h"

struct regex_source {
    const char *s;
    size_t n, at;
    bool unicode;     // \d, \w and \s include more than ASCII
    bool ignore_case; // whether case is ignored at this position; a group may change it
};

/* Writes the sentence and the position to err; returns ERR_INVALID. */
enum status regex_wrong(const struct regex_source *in, struct err *err, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* Reads a literal character, `.`, an escape or a class in brackets. */
enum status regex_parse_set(struct regex_source *in, bool dot_all, struct charset *out,
                            struct err *err);

#endif
