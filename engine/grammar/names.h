// SPDX-License-Identifier: Apache-2.0
/* Names of a grammar's rules, numbered in order of first occurrence.
 *
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_NAMES_H
#define SLUICE_ENGINE_GRAMMAR_NAMES_H

#include <stddef.h>
#include <stdint.h>

struct names {
    struct name {
        const char *s; // points into the source
        size_t n;
    } *v;
    uint32_t n, cap;
    uint32_t *table, table_size;
};

uint32_t names_get(struct names *l, const char *s, size_t n); // adds the name if it is new
void names_deinit(struct names *l);

#endif
