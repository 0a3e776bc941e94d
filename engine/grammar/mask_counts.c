// SPDX-License-Identifier: Apache-2.0
/* A few tokens are stored as a list. Many tokens are stored as a mask, and each bit of their
 * numbers as a plane: a mask of the tokens whose number has this bit. All numbers are compared with
 * a limit one word at a time, so every limit costs the same. */
#include "engine/grammar/mask_counts.h"

#include "engine/base/minmax.h"

enum { BLOCK = 64 }; // number of words that are compared at once

void counts_begin(struct counts *t, const struct grammar_vocab *v)
{
    *t = (struct counts){.list = xcalloc(v->n_words + 1, sizeof *t->list)};
}

static void put_bits(struct counts *t, const struct grammar_vocab *v, struct count c)
{
    uint32_t at = (uint32_t)c.id >> 5, bit = 1u << (c.id & 31);
    t->words[at] |= bit;
    for (uint32_t n = c.n; n > 0; n &= n - 1) {
        t->planes[(size_t)__builtin_ctz(n) * v->n_words + at] |= bit;
    }
}

/* Makes planes for any number, because the largest number is not known yet. */
static void make_planes(struct counts *t, const struct grammar_vocab *v)
{
    t->n_planes = 32;
    t->words = xcalloc(v->n_words, sizeof *t->words);
    t->planes = xcalloc(t->n_planes * v->n_words, sizeof *t->planes);
    while (t->n_list > 0) {
        put_bits(t, v, t->list[--t->n_list]);
    }
}

void counts_put(struct counts *t, const struct grammar_vocab *v, uint32_t n, int32_t id)
{
    struct count c = {n, id};
    t->most = greater(t->most, n);
    if (!t->words && t->n_list < v->n_words) {
        t->list[t->n_list++] = c;
        return;
    }
    if (!t->words) {
        make_planes(t, v);
    }
    put_bits(t, v, c);
}

/* Frees the planes that were not needed. */
void counts_end(struct counts *t, const struct grammar_vocab *v)
{
    if (!t->words) {
        t->list = xrealloc(t->list, (t->n_list + 1) * sizeof *t->list);
        return;
    }
    free(t->list);
    t->list = NULL;
    while (t->n_planes > 0 && !(t->most >> (t->n_planes - 1))) {
        t->n_planes--;
    }
    t->planes = xrealloc(t->planes, (t->n_planes * v->n_words + 1) * sizeof *t->planes);
}

void counts_free(struct counts *t)
{
    free(t->list);
    free(t->words);
    free(t->planes);
    *t = (struct counts){0};
}

size_t counts_bytes(const struct counts *t, const struct grammar_vocab *v)
{
    size_t planes = t->words ? t->n_planes + 1 : 0;
    return t->n_list * sizeof *t->list + planes * v->n_words * sizeof *t->words;
}

/* Finds, in words at .. at + n, the tokens whose number is at most `limit`. Numbers are compared
 * from the highest bit down. */
static void allow_block(const struct counts *t, size_t at, size_t n, size_t n_words, uint32_t limit,
                        uint32_t *out)
{
    uint32_t less[BLOCK] = {0}, equal[BLOCK];
    memset(equal, 0xff, sizeof equal);
    for (uint32_t k = t->n_planes; k-- > 0;) {
        uint32_t plane[BLOCK] = {0}, of_limit = limit >> k & 1 ? UINT32_MAX : 0;
        memcpy(plane, t->planes + k * n_words + at, n * sizeof *plane);
        for (size_t i = 0; i < BLOCK; i++) {
            less[i] |= equal[i] & ~plane[i] & of_limit;
            equal[i] &= ~(plane[i] ^ of_limit);
        }
    }
    for (size_t i = 0; i < n; i++) {
        out[i] |= t->words[at + i] & (less[i] | equal[i]);
    }
}

void counts_allow(const struct counts *t, struct masks *m, uint32_t limit, struct found *f)
{
    size_t n_words = m->vocab->n_words;
    if (t->words && limit >= t->most) {
        allow_words(m, t->words, f);
    } else if (t->words) {
        for (size_t at = 0; at < n_words; at += BLOCK) {
            size_t n = lesser(n_words - at, BLOCK);
            allow_block(t, at, n, n_words, limit, f->words + at);
        }
        f->n_ids = f->max_ids + 1; // too many for a list
    }
    for (uint32_t i = 0; i < t->n_list; i++) {
        if (t->list[i].n <= limit) {
            allow_id(f, t->list[i].id);
        }
    }
}
