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

struct text_token {
    uint32_t chars; // of the string, begun in it
    int32_t id;
};

/* Tokens that close the string, as a trie of what they have after the quote: these tails are few,
 * whatever the tokens begin with. In the order of a walk; the root is the empty tail. */
struct text_tails {
    struct text_tail {
        uint32_t end;      // the first that is not below this one
        uint32_t first, n; // in `tokens`: those with this tail
        uint16_t depth;
        uint8_t byte;
    } *v;
    uint32_t n;
    struct text_token *tokens;
    uint32_t n_tokens, max_chars;
    struct text_end { // nodes of the vocabulary at which it is closed and that go on
        uint32_t chars, at;
    } *ends;
    uint32_t n_ends;
};

struct vocab_text {
    uint32_t *free_words; // tokens inside free text, and those that close it and have no tail
    struct text_tails free_tails;
    uint32_t *words[TEXT_STEPS]; // tokens inside counted text
    struct text_token *inside;   // those of TEXT_STEPS - 1 characters or more, by characters
    uint32_t n_inside;
    uint32_t *closing; // tokens that close counted text and have no tail
    struct text_tails tails;
    /* Text of at least some characters is free once it has them, also within a token: tokens that
     * free text alone has, with their characters before what the other does not have. */
    struct text_token *late;
    uint32_t n_late;
    struct text_tails late_tails;
};

struct vocab_text *vocab_text_make(const struct grammar_vocab *v);
void vocab_text_free(struct vocab_text *t); // accepts NULL

#endif
