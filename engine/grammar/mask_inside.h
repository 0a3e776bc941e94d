// SPDX-License-Identifier: Apache-2.0
/* Tokens inside a JSON string whose text is free, or limited only in its number of characters. The
 * vocabulary already has their masks (vocab_text.h).
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASK_INSIDE_H
#define SLUICE_ENGINE_GRAMMAR_MASK_INSIDE_H

#include "engine/grammar/mask_walk.h"
#include "engine/grammar/vocab_text.h"

/* Free text, or text of lo to hi characters. */
struct inside {
    const struct text_tails *tails;
    bool is_free;
    uint32_t lo, hi;
};

bool inside_is(const struct masks *m, uint32_t e, struct inside *in); // whether `e` is such a text

/* Allows the tokens that the vocabulary has for such a text, except those that close the string and
 * continue. */
void inside_allow(struct masks *m, const struct inside *in, struct found *f);

/* Allows all tokens of such a text, given what may follow the string. False: `e` is not such a
 * text. */
bool inside_add(struct masks *m, uint32_t e, uint32_t rest, uint32_t stack, struct found *f);

#endif
