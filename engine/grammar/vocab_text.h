// SPDX-License-Identifier: Apache-2.0
/* The tokens of a vocabulary that are allowed inside a JSON string, found once for all grammars,
 * because most tokens of an answer are inside strings. There are two kinds: free text, with all
 * escapes, and counted text, with only the short escapes and those of control characters, where
 * each token has its number of characters.
 * Thread: any; it does not change. */
#ifndef SLUICE_ENGINE_GRAMMAR_VOCAB_TEXT_H
#define SLUICE_ENGINE_GRAMMAR_VOCAB_TEXT_H

#include "engine/grammar/vocab.h"

enum { TEXT_STEPS = 17 }; // bitmaps for at most 0, 1, 2... characters; the last is for any number

struct text_token {
    uint32_t chars; // characters of the string that begin in the token
    int32_t id;
};

/* Tokens that close the string, as a trie of their tails, the bytes after the quote: many tokens
 * share few tails. Nodes are in the order of a walk; the root is the empty tail. */
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
    struct text_end { // nodes of the vocabulary's trie where the string is closed and tokens
                      // continue
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
    /* Text with only a minimum of characters becomes free once it has them, even in the middle of a
     * token. These are the tokens that only free text allows, with the number of their characters
     * before the first one that counted text does not allow. */
    struct text_token *late;
    uint32_t n_late;
    struct text_tails late_tails;
};

struct vocab_text *vocab_text_make(const struct grammar_vocab *v);
void vocab_text_free(struct vocab_text *t); // accepts NULL

#endif
