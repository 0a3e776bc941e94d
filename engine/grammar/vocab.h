/* The tokens of a vocabulary as a trie, in one array in the order of a walk.
 *
 * Thread: any; it does not change. */
#ifndef SLUICE_ENGINE_GRAMMAR_VOCAB_H
#define SLUICE_ENGINE_GRAMMAR_VOCAB_H

#include "engine/grammar/grammar.h"

struct vocab_node {
    uint32_t end;   // the first node that is not below this one
    int32_t id;     // a token that ends here; -1: none
    uint16_t depth; // bytes to here
    uint8_t byte;
    bool more; // other tokens have the same bytes: vocab.same
};

struct grammar_vocab {
    int32_t n_ids;
    size_t n_words;       // of a mask
    struct vocab_node *v; // v[0] is the root
    uint32_t n;
    uint32_t max_depth;
    int32_t *same;              // by id: the next token with the same bytes; -1
    uint32_t *text_at, *text_n; // of each id's bytes, 0 bytes: never allowed
    char *text;
    struct vocab_text *in_string; // vocab_text.h
    int32_t *end_ids;
    size_t n_end_ids;
};

#endif
