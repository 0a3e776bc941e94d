// SPDX-License-Identifier: Apache-2.0
/* Runs: repetitions with a count, such as [a-z]{0,700} inside a string. Every count that is left
 * is a state, but what a token does in the repetition does not depend on it: each token that stays
 * inside begins some number of rounds, and is allowed if so many are left. So the vocabulary is
 * walked once, in the repetition without a count.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASK_RUNS_H
#define SLUICE_ENGINE_GRAMMAR_MASK_RUNS_H

#include "engine/grammar/mask_walk.h"

/* Allows the tokens of an item that is in a counted repetition, or begins with one. False: it is
 * none, or one that is not worth it, and nothing was allowed. */
bool runs_add(struct masks *m, uint32_t e, uint32_t stack, struct found *f);

#endif
