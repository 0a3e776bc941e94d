// SPDX-License-Identifier: Apache-2.0
/* Subtrees of the vocabulary's trie that need not be walked, because a state allows every character
 * that occurs in them, and so do the states after it.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASK_GROUPS_H
#define SLUICE_ENGINE_GRAMMAR_MASK_GROUPS_H

#include "engine/grammar/mask_walk.h"
#include "engine/grammar/vocab_groups.h"

/* What must hold while a text continues with characters of these groups. */
enum groups_rule {
    GROUPS_ALIVE, // the text stays allowed
    GROUPS_SAME,  // all characters are ASCII and lead back to the state
    GROUPS_N_RULES,
};

enum { GROUPS_MIN = 4 }; // chosen: nodes of a subtree for which the groups are looked up

/* The groups (bits, vocab_groups.h) for which the rule does not hold, or is not known to hold, in a
 * state. They are found when the state has occurred often enough. An occurrence counts only if the
 * previous byte led from the state back to itself (`loops`); for other states this is hardly worth
 * it.
 */
uint64_t groups_against(struct masks *m, uint32_t state, enum groups_rule rule, bool loops);

/* The groups (bits) that have bytes of these classes. */
uint64_t groups_of(const struct masks *m, const struct byte_set *classes);
void groups_reset(struct masks *m); // the states are forgotten
void groups_free(struct masks *m);
size_t groups_bytes(const struct masks *m);

/* True if the rule holds for everything below a node at which the automaton is in `state`. */
static inline bool groups_hold(struct masks *m, uint32_t node, uint32_t state,
                               enum groups_rule rule)
{
    const struct grammar_vocab *v = m->vocab;
    if (v->v[node].end - node < GROUPS_MIN) {
        return false;
    }
    bool loops = state == m->path[v->v[node].depth - 1];
    uint64_t against = groups_against(m, state, rule, loops);
    return against != UINT64_MAX && !(v->below[node] & against);
}

#endif
