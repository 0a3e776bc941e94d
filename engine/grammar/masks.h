// SPDX-License-Identifier: Apache-2.0
/* Masks over the vocabulary: the trie of tokens walked with the states of the automaton.
 * * What a state allows is the union of what its items allow, and an item that begins with
 * a long-lived part (the inside of a string, a repetition) allows, whatever comes after
 * it, all tokens that stay in this part: these are found once for the part (a head), with
 * the nodes of the trie at which it ends; from there on the walk goes on with what
 * follows. Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASKS_H
#define SLUICE_ENGINE_GRAMMAR_MASKS_H

#include "engine/grammar/mask_walk.h"

void masks_init(struct masks *m, const struct grammar_vocab *vocab, struct automaton *a,
                size_t max_bytes);
void masks_deinit(struct masks *m);
void masks_reset(struct masks *m); // the automaton has forgotten its states
size_t masks_bytes(const struct masks *m);

/* Without end ids. x->failed may be set: `words` then means nothing. */
void masks_get(struct masks *m, uint32_t state, uint32_t *words);

#endif
