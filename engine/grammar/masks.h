// SPDX-License-Identifier: Apache-2.0
/* Masks over the vocabulary: the trie of tokens walked with the states of the automaton.
 *
 * What a state allows is the union of what its items allow, and an item that begins with a
 * long-lived part (the inside of a string, a repetition) allows, whatever comes behind, all tokens
 * that stay in this part: these are found once for the part (a head), with the nodes of the trie at
 * which it ends; from there on the walk goes on with what follows.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASKS_H
#define SLUICE_ENGINE_GRAMMAR_MASKS_H

#include "engine/grammar/automaton.h"
#include "engine/grammar/vocab.h"

enum { MASK_BASES = 2 };

/* Masks that others have all of: words of the vocabulary, or of heads. */
struct mask_bases {
    const uint32_t *words[MASK_BASES];
    uint32_t n; // more than there is room for: not all are here
};

/* A mask in the making: its words, and the ids in them that no base brought. */
struct found {
    uint32_t *words;
    struct mask_bases bases;
    int32_t *ids;
    uint32_t n_ids, max_ids; // more than max_ids: not all are in `ids`
};

struct masks {
    const struct grammar_vocab *vocab;
    struct automaton *a;
    struct mask_slot {
        uint32_t state, newer, older; // the list of use
        uint32_t *words;              // all of them, or
        struct mask_bases bases;      // all of these, and
        int32_t *ids;                 // these ids
        uint32_t n_ids;
    } *v;
    uint32_t n, cap, newest, oldest; // slot + 1; 0: none
    uint32_t free;                   // chain through `older`
    size_t bytes, max_bytes;

    struct head {
        uint32_t e;
        bool whole;      // too many ends: not worth it
        uint32_t *words; // tokens that stay in it, or end with it; or
        int32_t *ids;    // the same where they are few
        uint32_t n_ids;
        uint32_t *ends; // nodes with more behind them
        uint32_t n_ends;
    } *heads;
    uint32_t n_heads, cap_heads;
    uint32_t *path;         // states by depth, for the walk
    struct found now, head; // the mask and the head that are being made
};

void masks_init(struct masks *m, const struct grammar_vocab *vocab, struct automaton *a,
                size_t max_bytes);
void masks_deinit(struct masks *m);
void masks_reset(struct masks *m); // the automaton has forgotten its states
size_t masks_bytes(const struct masks *m);

/* Without end ids. x->failed may be set: `words` then means nothing. */
void masks_get(struct masks *m, uint32_t state, uint32_t *words);

#endif
