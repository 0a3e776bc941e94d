// SPDX-License-Identifier: Apache-2.0
/* Masks over the vocabulary, found by walking the trie of tokens with the states of the automaton.
 *
 * A state allows the union of the tokens that its items allow. Many items begin with a long-lived
 * part, such as the inside of a string or a repetition. Such an item allows all tokens that stay in
 * this part, independently of what follows the part. These tokens are found once for the part (a
 * "head"), with the nodes of the trie at which the part ends; from these nodes the walk continues
 * with what follows.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASKS_H
#define SLUICE_ENGINE_GRAMMAR_MASKS_H

#include "engine/grammar/mask_walk.h"

void masks_init(struct masks *m, const struct grammar_vocab *vocab, struct automaton *a,
                size_t max_bytes);
void masks_deinit(struct masks *m);
void masks_reset(struct masks *m); // call it when the automaton forgets its states
size_t masks_bytes(const struct masks *m);

/* The mask does not include end ids. If x->failed is set afterwards, `words` has no meaning. */
void masks_get(struct masks *m, uint32_t state, uint32_t *words);

#endif
