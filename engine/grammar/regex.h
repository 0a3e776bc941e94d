// SPDX-License-Identifier: Apache-2.0
/* Regular expressions as JSON Schema (ECMA-262), Rust's regex crate and Lark have them in common:
 * alternatives, groups (named or not), classes, repetition (lazy or not: the language is the same),
 * anchors, flags i and s. `.` is any character but a line feed. Lookaround, backreferences, word
 * boundaries, atomic groups and possessive repetition are refused by name.
 *
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_REGEX_H
#define SLUICE_ENGINE_GRAMMAR_REGEX_H

#include "engine/base/status.h"
#include "engine/grammar/expr.h"

enum regex_flag {
    REGEX_SEARCH = 1, // a match anywhere in the text will do; else all of the text has to match
    REGEX_IGNORE_CASE = 2, // of ASCII letters
    REGEX_DOT_ALL = 4,     // `.` is a line feed too
    REGEX_UNICODE = 8,     // \d, \w and \s as Unicode has them, else as in ECMA-262 (charset.h)
};

struct regex_limits {
    int max_depth;       // of groups
    uint32_t max_repeat; // in {m,n}
};

/* The language of the expression, over the bytes of UTF-8. ERR_INVALID: not well-formed;
 * ERR_UNSUPPORTED; ERR_LIMIT. */
enum status regex_language(struct exprs *x, const char *s, size_t n, unsigned flags,
                           struct regex_limits limits, uint32_t *out, struct err *err);

#endif
