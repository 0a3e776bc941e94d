// SPDX-License-Identifier: Apache-2.0
/* Lexer for Lark grammars.
 *
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_LARK_LEX_H
#define SLUICE_ENGINE_GRAMMAR_LARK_LEX_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum lark_kind {
    LARK_END,
    LARK_LINE,     // a line end that ends a statement
    LARK_RULE,     // a name in lower case
    LARK_TERMINAL, // a name in upper case
    LARK_STRING,   // with quotes and flags
    LARK_REGEX,    // with slashes and flags
    LARK_NUMBER,
    LARK_DIRECTIVE, // "%ignore"
    LARK_MARK,      // "::", "..", "->", or a single character
};

struct lark_word {
    enum lark_kind kind;
    const char *s;
    size_t n;
    size_t n_flags; // number of flag characters at the end of s
};

struct lark_lex {
    const char *s;
    size_t n, at;
    int open;              // open brackets
    struct lark_word word; // the current one
    struct err *err;
};

/* Advances to the next word. */
enum status lark_next(struct lark_lex *l);

static inline bool lark_is(const struct lark_lex *l, const char *mark)
{
    size_t n = 0;
    while (mark[n]) {
        n++;
    }
    bool is = l->word.kind == LARK_MARK && l->word.n == n;
    for (size_t i = 0; i < n && is; i++) {
        is = l->word.s[i] == mark[i];
    }
    return is;
}

/* Writes "line N of the grammar: sentence"; returns ERR_INVALID. */
enum status lark_fail(const struct lark_lex *l, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
