// SPDX-License-Identifier: Apache-2.0
/* Names, numbered in order of their first use. The strings belong to the source. */
#include "engine/grammar/names.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/grammar/expr.h"

#include <stdlib.h>
#include <string.h>

/* Open addressing. The table is at most half full. */
static uint32_t *slot_of(struct names *l, const char *s, size_t n)
{
    size_t i = hash_bytes(s, n, hash_process_key()) & (l->table_size - 1);
    for (; l->table[i]; i = (i + 1) & (l->table_size - 1)) {
        const struct name *p = &l->v[l->table[i] - 1];
        if (p->n == n && memcmp(p->s, s, n) == 0) {
            break;
        }
    }
    return &l->table[i];
}

/* The number of a name. An unknown name gets a new number. */
uint32_t names_get(struct names *l, const char *s, size_t n)
{
    if (l->n * 2 >= l->table_size) {
        free(l->table);
        l->table_size = l->table_size ? l->table_size * 2 : 64;
        l->table = xcalloc(l->table_size, sizeof *l->table);
        for (uint32_t i = 0; i < l->n; i++) {
            *slot_of(l, l->v[i].s, l->v[i].n) = i + 1;
        }
    }
    uint32_t *slot = slot_of(l, s, n);
    if (!*slot) {
        GROW(l->v, l->n, l->cap);
        l->v[l->n++] = (struct name){s, n};
        *slot = l->n;
    }
    return *slot - 1;
}

void names_deinit(struct names *l)
{
    free(l->v);
    free(l->table);
    *l = (struct names){0};
}
