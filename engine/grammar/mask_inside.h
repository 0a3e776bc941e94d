// SPDX-License-Identifier: Apache-2.0
/* Tokens inside a JSON string whose text is free or counted: the vocabulary has them already
 * (vocab_text.h).
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASK_INSIDE_H
#define SLUICE_ENGINE_GRAMMAR_MASK_INSIDE_H

#include "engine/grammar/mask_walk.h"
#include "engine/grammar/vocab_text.h"

/* Free text, or text of a number of characters. */
struct inside {
    const struct text_tails *tails;
    bool is_free;
    uint32_t lo, hi;
};

bool inside_is(const struct masks *m, uint32_t e, struct inside *in); // whether `e` is such a text

/* What the vocabulary has of it: without tokens that close it and go on. */
void inside_allow(struct masks *m, const struct inside *in, struct found *f);

/* All of it, with what may follow. False: it is no such text. */
bool inside_add(struct masks *m, uint32_t e, uint32_t rest, uint32_t stack, struct found *f);

#endif
