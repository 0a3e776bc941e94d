// SPDX-License-Identifier: Apache-2.0
/* A mask in the making, and a step of the walk: what the files of masks.h share.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASKS_FOUND_H
#define SLUICE_ENGINE_GRAMMAR_MASKS_FOUND_H

#include "engine/base/mem.h"
#include "engine/grammar/masks.h"

#include <stdlib.h>
#include <string.h>

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

static inline void allow_node(const struct grammar_vocab *v, const struct vocab_node *node,
                              struct found *f)
{
    if (node->id < 0) {
        return;
    }
    allow_id(f, node->id);
    for (int32_t id = node->more ? v->same[node->id] : -1; id >= 0; id = v->same[id]) {
        allow_id(f, id);
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
    return to ? to - 1 : automaton_step(a, state, byte);
}

/* Allows what is below a node, read from a state. */
void masks_walk(struct masks *m, uint32_t from, uint32_t state, struct found *f);

/* Drops all masks that are kept. */
void masks_drop(struct masks *m);

#endif
