// SPDX-License-Identifier: Apache-2.0
/* What a vocabulary allows inside a JSON string, found once for all grammars: strings are where
 * answers spend their tokens. Free text (with every escape there is), and text that is counted
 * (with the short escapes and those of control characters), token by token with its number of
 * characters.
 * Thread: any; it does not change. */
#ifndef SLUICE_ENGINE_GRAMMAR_VOCAB_TEXT_H
#define SLUICE_ENGINE_GRAMMAR_VOCAB_TEXT_H

#include "engine/grammar/vocab.h"

enum { TEXT_STEPS = 17 }; // bitmaps for at most 0, 1, 2... characters; the last is for any number

struct vocab_text {
    uint32_t *free_words; // tokens inside free text
    uint32_t *words[TEXT_STEPS];
    struct text_token {
        uint32_t chars; // begun in it
        uint32_t at;    // an id, or a node
    } *inside; // tokens inside counted text of TEXT_STEPS - 1 characters or more, by characters
    uint32_t n_inside;
    struct text_token *ends, *free_ends; // nodes at which a string has just been closed
    uint32_t n_ends, n_free_ends;
};

struct vocab_text *vocab_text_make(const struct grammar_vocab *v);
void vocab_text_free(struct vocab_text *t); // accepts NULL

#endif
