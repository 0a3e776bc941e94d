// SPDX-License-Identifier: Apache-2.0
/* Groups of characters: which kinds of characters occur below a node of the vocabulary's trie. If a
 * language allows all characters of these groups, it allows all tokens below the node, and they
 * need not be walked.
 * Thread: any; the tables do not change. */
#ifndef SLUICE_ENGINE_GRAMMAR_VOCAB_GROUPS_H
#define SLUICE_ENGINE_GRAMMAR_VOCAB_GROUPS_H

#include "engine/grammar/vocab.h"

/* A group is a range of bytes: of ASCII, or of first bytes of longer characters. A node of the trie
 * that begins a character belongs to a group; one that continues a character belongs to its first
 * byte. */
struct vocab_group {
    uint8_t lo, hi;
};
enum {
    VOCAB_N_GROUPS = 58,
    GROUP_BROKEN = 62, // bytes that are not UTF-8
    GROUP_INNER = 63,  // the node is within a character
};
extern const struct vocab_group vocab_groups[VOCAB_N_GROUPS];

/* The range of bytes that may follow the first byte of a character of several bytes, and the
 * character's length. */
struct utf8_lead {
    uint8_t n, lo, hi;
};
struct utf8_lead vocab_lead(uint8_t byte); // n = 0: it begins no such character

/* By node: bits of the groups that occur below it. */
uint64_t *vocab_groups_below(const struct grammar_vocab *v);

#endif
