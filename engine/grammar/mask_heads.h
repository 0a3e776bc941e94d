// SPDX-License-Identifier: Apache-2.0
/* Heads: what a long-lived first part of an expression allows, found once for all that may follow.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASK_HEADS_H
#define SLUICE_ENGINE_GRAMMAR_MASK_HEADS_H

#include "engine/grammar/mask_walk.h"

/* The head of an expression, made if it is new: it holds until the next is asked for. NULL: over a
 * limit. */
const struct head *heads_get(struct masks *m, uint32_t e);

#endif
