// SPDX-License-Identifier: Apache-2.0
/* Sets of characters, and their UTF-8 encodings.
 *
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_CHARSET_H
#define SLUICE_ENGINE_GRAMMAR_CHARSET_H

#include "engine/grammar/expr.h"

struct charset {
    struct char_range {
        uint32_t lo, hi;
    } *v;
    size_t n, cap;
};

void charset_deinit(struct charset *s); // accepts a zeroed struct
void charset_add(struct charset *s, uint32_t lo, uint32_t hi);
void charset_add_all(struct charset *s, const struct charset *of);
void charset_invert(struct charset *s);
void charset_sort(struct charset *s);      // sorts and merges
void charset_add_cases(struct charset *s); // adds the other cases of letters

/* An expression for any single character of the set, without surrogates. */
uint32_t charset_expr(struct exprs *x, struct charset *s);

/* Adds \d, \w, \s or a complement of these. With `unicode` they are as in Unicode. Otherwise they
 * are the common subset of Unicode and ECMA-262: \d and \w are ASCII, and their complements exclude
 * the digits and letters of every script. False: there is no such class. */
bool charset_add_escape(struct charset *s, char letter, bool unicode);

/* Adds a general category, or a group of categories, by its name: "L", "Lu", "Nd" etc. False: the
 * name is unknown. */
bool charset_add_category(struct charset *s, const char *name, size_t n);

#endif
