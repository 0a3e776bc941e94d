// SPDX-License-Identifier: Apache-2.0
/* The tokens of a vocabulary that are allowed inside a JSON string. They are found once for all
 * grammars, because most tokens of an answer are inside strings. There are two kinds of text: free
 * text, with all escapes; and counted text, with only the short escapes and those of control
 * characters, for which the number of characters of each token is known.
 * Thread: any; it does not change. */
#ifndef SLUICE_ENGINE_GRAMMAR_VOCAB_TEXT_H
#define SLUICE_ENGINE_GRAMMAR_VOCAB_TEXT_H

#include "engine/grammar/vocab.h"

/* Number of masks: for at most 0, 1, 2... characters; the last is for any number. */
enum { TEXT_STEPS = 17 };

struct text_token {
    uint32_t chars; // number of characters of the string that begin in the token
    int32_t id;
};

/* Tokens that close the string, as a trie of their tails. A tail is the bytes after the quote; many
 * tokens share few tails. Nodes are in the order of a walk, and the root is the empty tail. */
struct text_tails {
    struct text_tail {
        uint32_t end;      // index of the first tail that is not below this one
        uint32_t first, n; // range in `tokens`: those that have this tail
        uint16_t depth;
        uint8_t byte;
    } *v;
    uint32_t n;
    struct text_token *tokens;
    uint32_t n_tokens, max_chars;
    // Nodes of the vocabulary's trie at which the string is closed while tokens continue.
    struct text_end {
        uint32_t chars, at;
    } *ends;
    uint32_t n_ends;
};

struct vocab_text {
    uint32_t *free_words; // mask: tokens inside free text, and those that close it and have no tail
    struct text_tails free_tails;
    uint32_t *words[TEXT_STEPS]; // masks: tokens inside counted text
    // Tokens with TEXT_STEPS - 1 or more characters, sorted by characters.
    struct text_token *inside;
    uint32_t n_inside;
    uint32_t *closing; // mask: tokens that close counted text and have no tail
    struct text_tails tails;
    /* Text that has only a minimum of characters becomes free once it has reached the minimum, even
     * in the middle of a token. These are the tokens that only free text allows. Each has the
     * number of its characters before the first one that counted text does not allow. */
    struct text_token *late;
    uint32_t n_late;
    struct text_tails late_tails;
};

struct vocab_text *vocab_text_make(const struct grammar_vocab *v);
void vocab_text_free(struct vocab_text *t); // accepts NULL

#endif
