// SPDX-License-Identifier: Apache-2.0
/* Regular expressions, in the common subset of JSON Schema (ECMA-262), Rust's regex crate and Lark:
 * alternatives, groups (named or not), classes, repetition (lazy or not: the language is the same),
 * anchors, flags i and s. `.` is any character except a line feed. Lookaround, backreferences, word
 * boundaries, atomic groups and possessive repetition are errors that name the feature.
 *
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_REGEX_H
#define SLUICE_ENGINE_GRAMMAR_REGEX_H

#include "engine/base/status.h"
#include "engine/grammar/expr.h"

enum regex_flag {
    REGEX_SEARCH = 1, // a match anywhere in the text suffices; otherwise the whole text must match
    REGEX_IGNORE_CASE = 2, // for ASCII letters only
    REGEX_DOT_ALL = 4,     // `.` also matches a line feed
    REGEX_UNICODE = 8,     // \d, \w and \s as in Unicode, otherwise as in ECMA-262 (charset.h)
};

struct regex_limits {
    int max_depth;       // nesting of groups
    uint32_t max_repeat; // counts in {m,n}
};

/* The language of the expression, over UTF-8 bytes. ERR_INVALID: it is malformed; or
 * ERR_UNSUPPORTED, ERR_LIMIT. */
enum status regex_language(struct exprs *x, const char *s, size_t n, unsigned flags,
                           struct regex_limits limits, uint32_t *out, struct err *err);

#endif
