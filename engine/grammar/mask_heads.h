// SPDX-License-Identifier: Apache-2.0
/* Heads: the tokens that a long-lived first part of an expression allows. They are found once, for
 * everything that may follow that part.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASK_HEADS_H
#define SLUICE_ENGINE_GRAMMAR_MASK_HEADS_H

#include "engine/grammar/mask_walk.h"

/* The head of an expression, which is computed if it is new. Valid until the next call. NULL: a
 * limit was exceeded. */
const struct head *heads_get(struct masks *m, uint32_t e);

#endif
