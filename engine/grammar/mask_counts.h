// SPDX-License-Identifier: Apache-2.0
/* Tokens that have one number each, and masks of the tokens whose number is at most a given limit.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASK_COUNTS_H
#define SLUICE_ENGINE_GRAMMAR_MASK_COUNTS_H

#include "engine/grammar/mask_walk.h"

struct counts {
    uint32_t most; // the largest of the numbers
    struct count {
        uint32_t n;
        int32_t id;
    } *list; // used if there are few tokens; otherwise words and planes are
    uint32_t n_list;
    uint32_t *words;  // mask of all tokens
    uint32_t *planes; // plane k: mask of the tokens whose number has bit k set
    uint32_t n_planes;
};

/* Call counts_put once for each token, between counts_begin and counts_end. */
void counts_begin(struct counts *t, const struct grammar_vocab *v);
void counts_put(struct counts *t, const struct grammar_vocab *v, uint32_t n, int32_t id);
void counts_end(struct counts *t, const struct grammar_vocab *v);
void counts_free(struct counts *t);
size_t counts_bytes(const struct counts *t, const struct grammar_vocab *v);

/* Allows the tokens whose number is at most `limit`. */
void counts_allow(const struct counts *t, struct masks *m, uint32_t limit, struct found *f);

#endif
