// SPDX-License-Identifier: Apache-2.0
/* Pairs of a rule and a value of its parameter, in a hash table, in the order in which they were
 * added. */
#include "engine/grammar/lark_calls.h"

#include "engine/base/mem.h"

#include <stdlib.h>

enum { CALLS_MAX = 20000 };

void lark_calls_deinit(struct lark_calls *c)
{
    free(c->v);
    free(c->table);
    *c = (struct lark_calls){0};
}

static uint32_t *slot_of(struct lark_calls *c, uint32_t name, uint64_t value)
{
    size_t i =
        (size_t)((value ^ (uint64_t)name << 40) * 0x9e3779b97f4a7c15u >> 33) & (c->table_size - 1);
    for (; c->table[i]; i = (i + 1) & (c->table_size - 1)) {
        const struct lark_call *p = &c->v[c->table[i] - 1];
        if (p->name == name && p->value == value) {
            break;
        }
    }
    return &c->table[i];
}

bool lark_calls_add(struct lark_calls *c, struct rules *rules, uint32_t name, uint64_t value,
                    uint32_t *rule)
{
    if (c->n * 2 >= c->table_size) {
        free(c->table);
        c->table_size = c->table_size ? c->table_size * 2 : 64;
        c->table = xcalloc(c->table_size, sizeof *c->table);
        for (uint32_t i = 0; i < c->n; i++) {
            *slot_of(c, c->v[i].name, c->v[i].value) = i + 1;
        }
    }
    uint32_t *slot = slot_of(c, name, value);
    if (!*slot) {
        if (c->n == CALLS_MAX) {
            return false;
        }
        GROW(c->v, c->n, c->cap);
        c->v[c->n++] = (struct lark_call){name, value, rules_add(rules)};
        *slot = c->n;
    }
    *rule = c->v[*slot - 1].rule;
    return true;
}

/* Entries are removed in the reverse of the order in which they were added, so that the search for
 * another entry never stops at a gap. */
void lark_calls_forget(struct lark_calls *c, uint32_t n)
{
    while (c->n > n) {
        const struct lark_call *last = &c->v[c->n - 1];
        *slot_of(c, last->name, last->value) = 0;
        c->n--;
    }
}
