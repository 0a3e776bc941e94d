// SPDX-License-Identifier: Apache-2.0
/* Runs: repetitions with a count, such as [a-z]{0,700} inside a string. Each remaining count is a
 * separate state, but what a token does inside the repetition does not depend on the count: a token
 * that stays inside begins a number of rounds, and is allowed if at least that many are left. So
 * the vocabulary is walked only once, for the repetition without its count.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASK_RUNS_H
#define SLUICE_ENGINE_GRAMMAR_MASK_RUNS_H

#include "engine/grammar/mask_walk.h"

/* Allows the tokens of an item that is in a counted repetition or begins with one. Returns false,
 * and allows nothing, if the item is neither, or if this method does not suit the repetition or is
 * not worth it. */
bool runs_add(struct masks *m, uint32_t e, uint32_t stack, struct found *f);

#endif
