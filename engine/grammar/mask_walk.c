// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/mask_walk.h"

/* Walks the trie and the automaton together. `path` holds the state at each depth, so that siblings
 * start from their parent's state. A dead state skips the whole subtree. */
void mask_walk(struct masks *m, uint32_t from, uint32_t state, struct found *f)
{
    const struct grammar_vocab *v = m->vocab;
    uint32_t end = v->v[from].end, seen = 0;
    m->path[v->v[from].depth] = state;
    for (uint32_t i = from + 1; i < end;) {
        const struct vocab_node *node = &v->v[i];
        uint32_t to = step(m->a, m->path[node->depth - 1], node->byte);
        seen++;
        if (to == STATE_DEAD) {
            if (m->a->x->failed) {
                return;
            }
            i = node->end;
            continue;
        }
        allow_node(v, node, f);
        m->path[node->depth] = to;
        i++;
    }
    exprs_spend(m->a->x, seen / 8);
}
