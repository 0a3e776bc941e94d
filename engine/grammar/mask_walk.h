// SPDX-License-Identifier: Apache-2.0
/* How masks are built: finds tokens by walking the vocabulary's trie with the states of the
 * automaton. All files that implement masks.h work on `struct masks`.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASK_WALK_H
#define SLUICE_ENGINE_GRAMMAR_MASK_WALK_H

#include "engine/base/mem.h"
#include "engine/grammar/automaton.h"
#include "engine/grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

enum { MASK_BASES = 2 };

/* Masks that are contained in another mask as a whole; their words belong to the vocabulary or to
 * heads. */
struct mask_bases {
    const uint32_t *words[MASK_BASES];
    uint32_t n; // if above MASK_BASES, not all of them are in `words`
};

/* A mask that is being built: its words, and the ids that it allows in addition to its bases. */
struct found {
    uint32_t *words;
    struct mask_bases bases;
    int32_t *ids;
    uint32_t n_ids, max_ids; // if n_ids is above max_ids, not all are in `ids`
};

struct masks {
    const struct grammar_vocab *vocab;
    struct automaton *a;
    struct mask_slot {
        uint32_t state, newer, older; // newer, older: neighbours in order of use
        uint32_t *words;              // the whole mask; NULL: it consists of `bases` and `ids`
        struct mask_bases bases;      // masks whose ids it includes
        int32_t *ids;                 // further ids that it includes
        uint32_t n_ids;
    } *v;
    uint32_t n, cap, newest, oldest; // slot + 1; 0: none
    uint32_t free;                   // chain through `older`
    size_t bytes, max_bytes;

    struct head {
        uint32_t e;
        bool whole;      // the head has too many ends, so the whole vocabulary is walked
        uint32_t *words; // mask of the tokens that stay in the head or end with it; NULL: they are
                         // in `ids`
        int32_t *ids;    // the same tokens as a list, if they are few
        uint32_t n_ids;
        uint32_t *ends; // nodes of the trie at which the head ends while tokens continue
        uint32_t n_ends;
    } *heads;
    uint32_t n_heads, cap_heads;
    struct mask_run *runs; // mask_shared.h
    uint32_t n_runs, cap_runs;
    // Heads and runs were dropped, so masks made from them must be dropped, too.
    bool shared_dropped;
    struct mask_groups *groups; // the known groups, by state (mask_groups.h)
    uint32_t *path;             // states by depth during a walk
    struct found now, head;     // the mask and the head that are being built
};

static inline void allow_id(struct found *f, int32_t id)
{
    uint32_t bit = 1u << (id & 31), *word = &f->words[id >> 5];
    if (!(*word & bit)) {
        *word |= bit;
        if (f->n_ids < f->max_ids) {
            f->ids[f->n_ids] = id;
        }
        f->n_ids++;
    }
}

/* Allows the tokens at the nodes `from` .. `to` (exclusive) of the trie. */
static inline void allow_nodes(const struct grammar_vocab *v, uint32_t from, uint32_t to,
                               struct found *f)
{
    uint32_t i = v->first[from], end = v->first[to];
    for (; i < end && f->n_ids <= f->max_ids; i++) {
        allow_id(f, v->order[i]);
    }
    for (; i < end; i++) { // too many for a list, so they are not counted
        f->words[v->order[i] >> 5] |= 1u << (v->order[i] & 31);
    }
}

static inline void or_words(uint32_t *words, const uint32_t *more, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        words[i] |= more[i];
    }
}

static inline void allow_words(struct masks *m, const uint32_t *words, struct found *f)
{
    or_words(f->words, words, m->vocab->n_words);
    if (f->bases.n < MASK_BASES) {
        f->bases.words[f->bases.n] = words;
    }
    f->bases.n++;
}

static inline bool is_list(const struct found *f)
{
    return f->n_ids <= f->max_ids && f->bases.n <= MASK_BASES;
}

static inline int32_t *copy_ids(const struct found *f)
{
    int32_t *ids = xmalloc((f->n_ids + 1) * sizeof *ids);
    memcpy(ids, f->ids, f->n_ids * sizeof *ids);
    return ids;
}

static inline uint32_t step(struct automaton *a, uint32_t state, uint8_t byte)
{
    const uint32_t *row = a->v[state].row;
    uint32_t to = row ? row[a->x->class_of[byte]] : 0;
    if (to) {
        return to - 1;
    }
    return automaton_step(a, state, byte);
}

/* Nodes of the trie at which the automaton may end while tokens continue, unless all tokens below
 * them are allowed anyway. */
struct walk_ends {
    uint32_t *v, n, cap, max;
    bool too_many; // more than `max`: the walk was abandoned
};

/* Allows the tokens below the node `from`, at which the automaton is in `state`. If `ends` is not
 * NULL, it collects the ends. */
void mask_walk(struct masks *m, uint32_t from, uint32_t state, struct found *f,
               struct walk_ends *ends);

#endif
