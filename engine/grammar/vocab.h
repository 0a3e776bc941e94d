// SPDX-License-Identifier: Apache-2.0
/* The tokens of a vocabulary as a trie, stored in one array in the order of a walk.
 *
 * Thread: any; it does not change. */
#ifndef SLUICE_ENGINE_GRAMMAR_VOCAB_H
#define SLUICE_ENGINE_GRAMMAR_VOCAB_H

#include "engine/grammar/grammar.h"

/* A special token is not text. Its bytes in the trie are VOCAB_MARK, which no text contains, and
 * its id. */
enum { VOCAB_MARK = 0xff, VOCAB_MARK_BYTES = 5 };

struct vocab_node {
    uint32_t end;   // index of the first node that is not below this one
    uint16_t depth; // number of bytes up to and including this node's
    uint8_t byte;
    bool wide; // it has many children; see grammar_vocab.kids
};

struct grammar_vocab {
    const struct tokenizer *tok; // NULL: the vocabulary was made from a list
    int32_t n_ids;
    size_t n_words;       // words in a mask
    struct vocab_node *v; // v[0] is the root
    uint32_t n;
    uint32_t max_depth;
    uint32_t *first; // by node, and v[n]: number of tokens at the nodes before it
    int32_t *order;  // ids in the order of their nodes
    uint64_t *below; // by node: groups of characters below it; vocab_groups.h
    /* The children of wide nodes, next to each other: most states forbid most of them, and finding
     * them in the trie would touch a different part of memory for each. */
    struct vocab_kid {
        uint32_t node;
        uint8_t byte;
        bool is_leaf;
    } *kids;                    // `node` is 0 after the last child of each node
    uint32_t *kids_at;          // by wide node: index of its first child in `kids`
    uint32_t *text_at, *text_n; // by id: its bytes in `text`; a token with 0 bytes is never allowed
    char *text;
    int32_t *special; // ids of the special tokens that have names
    uint32_t n_special;
    char **names;                 // names of the special tokens
    struct vocab_text *in_string; // vocab_text.h
    int32_t *end_ids;
    size_t n_end_ids;
};

/* The ids of the tokens that end at a node are v->order[i], for i from v->first[node] to
 * v->first[node + 1]; -1: no token ends there. */
static inline int32_t vocab_id_at(const struct grammar_vocab *v, uint32_t node)
{
    return v->first[node] < v->first[node + 1] ? v->order[v->first[node]] : -1;
}

/* The special token with the longest name that the text begins with; -1: none. *is_end: it is an
 * end id, which no text contains. vocab_mark: the bytes of a special token in the trie. */
int32_t vocab_special(const struct grammar_vocab *v, const char *s, size_t n, size_t *n_name,
                      bool *is_end);
void vocab_mark(int32_t id, char bytes[VOCAB_MARK_BYTES]);

#endif
