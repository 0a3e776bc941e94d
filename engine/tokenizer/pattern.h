// SPDX-License-Identifier: Apache-2.0
/* The state of the translation of one pattern, shared by pattern.c and pattern_class.c. Private to
 * this folder.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_TOKENIZER_PATTERN_H
#define SLUICE_ENGINE_TOKENIZER_PATTERN_H

#include "engine/tokenizer/regex.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_GROUPS = 64 };

struct translator {
    const char *p;
    size_t n, i;
    struct buf *out;
    size_t atom; // where the last atom starts in out
    bool has_atom, caseless;
    uint32_t last_literal; // to detect two letters that fold to one
    int class_depth, n_groups;
    struct {
        size_t start;
        bool caseless;
    } groups[MAX_GROUPS];
    struct err *err;
};

/* ERR_UNSUPPORTED: at the current byte the pattern has `what`, which is not supported. */
enum status pattern_refuse(struct translator *t, const char *what);

/* The byte `ahead` bytes after the current one; NUL after the end. */
static inline char pattern_peek(const struct translator *t, size_t ahead)
{
    return t->i + ahead < t->n ? t->p[t->i + ahead] : '\0';
}

/* Called at a backslash. If it starts a shorthand class (\s \W \h \p{..}), appends an expression
 * for one of its characters and advances. */
enum status pattern_read_shorthand(struct translator *t, struct buf *out, bool *is);

/* Called at a backslash. If it starts a character given as a number or a letter, reads the
 * character and advances. */
enum status pattern_read_escape(struct translator *t, uint32_t *cp, bool *is);

/* Called at '['. Appends an expression for one character of the class. */
enum status pattern_read_class(struct translator *t, struct buf *out);

#endif
