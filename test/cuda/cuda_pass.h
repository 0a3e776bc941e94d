// SPDX-License-Identifier: Apache-2.0
/* Passes for the op tests: some sequences with a past and new rows, over scattered blocks.
 * Thread: the main thread. */
#ifndef SLUICE_TEST_CUDA_PASS_H
#define SLUICE_TEST_CUDA_PASS_H

#include "test/cuda/cuda_pair.h"

enum { MAX_TEST_ROWS = 640 };

struct seq_spec {
    int32_t n_past, n_new;
    bool tree;
};

struct test_pass {
    struct pass pass;
    struct pass_row rows[MAX_TEST_ROWS];
    struct pass_seq seqs[MAX_TEST_ROWS];
    uint64_t tree_mask[MAX_TEST_ROWS * TREE_MASK_WORDS];
    int32_t out_rows[MAX_TEST_ROWS];
    struct pass_draw draws[MAX_TEST_ROWS];
    struct pass_pool pool[32];
};

/* Gives lane i blocks of its own, and pages of windows, in a shuffled order. */
static inline void give_blocks(struct pair *p, int32_t n_lanes, int32_t per_lane)
{
    const int32_t n = n_lanes * per_lane;
    int32_t *ids = xmalloc((size_t)n * sizeof *ids);
    for (int32_t i = 0; i < n; i++) {
        ids[i] = i;
    }
    for (int32_t i = n - 1; i > 0; i--) {
        const int32_t j = (int32_t)(rng_bits(p->seed, i, RNG_TEST, 0) % (uint32_t)(i + 1));
        const int32_t t = ids[i];
        ids[i] = ids[j];
        ids[j] = t;
    }
    for (int b = 0; b < 2; b++) {
        for (int32_t lane = 0; lane < n_lanes; lane++) {
            CHECK_EQ(p->be[b]->ops->lane_blocks(p->be[b], lane, 0, per_lane, ids + lane * per_lane),
                     OK);
        }
        for (int32_t lane = 0; lane < n_lanes && p->limits.n_window_pages > 0; lane++) {
            // those of the next lane, and so in another order
            const int32_t *pages = ids + (lane + 1) % n_lanes * per_lane;
            CHECK_EQ(p->be[b]->ops->lane_pages(p->be[b], lane, 0, per_lane, pages), OK);
        }
    }
    free(ids);
}

/* A random tree: node r's parent is an earlier node or the past; its mask is its ancestors and
 * itself; its position is by depth. */
static inline void make_tree(struct test_pass *t, const struct pass_seq *s, uint64_t seed)
{
    for (int32_t r = 0; r < s->n_rows; r++) {
        int32_t parent = -1;
        if (r != 0) {
            parent = (int32_t)(rng_bits(seed, r, RNG_TEST, 1) % (uint32_t)(r + 1)) - 1;
        }
        uint64_t *mask = t->tree_mask + (s->first_row + r) * TREE_MASK_WORDS;
        memset(mask, 0, TREE_MASK_WORDS * sizeof *mask);
        int32_t depth = 0;
        if (parent >= 0) {
            memcpy(mask, t->tree_mask + (s->first_row + parent) * TREE_MASK_WORDS,
                   TREE_MASK_WORDS * sizeof *mask);
            depth = t->rows[s->first_row + parent].pos - s->n_past + 1;
        }
        mask[r / 64] |= 1ull << (r % 64);
        t->rows[s->first_row + r].pos = s->n_past + depth;
    }
}

/* Rows [begin, end) of each sequence, counted from its first token; lane i is sequence i. */
static inline void pass_of(struct test_pass *t, const struct seq_spec *specs, int32_t n_specs,
                           bool past, uint64_t seed)
{
    memset(&t->pass, 0, sizeof t->pass);
    int32_t n_rows = 0, n_seqs = 0;
    for (int32_t i = 0; i < n_specs; i++) {
        const int32_t n = past ? specs[i].n_past : specs[i].n_new;
        if (n == 0) {
            continue;
        }
        struct pass_seq *s = &t->seqs[n_seqs++];
        *s = (struct pass_seq){.lane = i,
                               .first_row = n_rows,
                               .n_rows = n,
                               .n_past = past ? 0 : specs[i].n_past,
                               .tree = !past && specs[i].tree};
        for (int32_t r = 0; r < n; r++) {
            t->rows[n_rows + r] = (struct pass_row){
                i, (int32_t)(rng_bits(seed, s->n_past + r, RNG_TEST, (uint32_t)i) % 1000),
                s->n_past + r, s->n_past + r};
        }
        n_rows += n;
        if (s->tree) {
            make_tree(t, s, seed);
        }
    }
    t->pass.model = TEST_MODEL;
    t->pass.n_rows = n_rows;
    t->pass.rows = t->rows;
    t->pass.n_seqs = n_seqs;
    t->pass.seqs = t->seqs;
    t->pass.tree_mask = t->tree_mask;
    t->pass.out_rows = t->out_rows;
    t->pass.draws = t->draws;
    t->pass.pool = t->pool;
}

static inline void step_begin(struct pair *p)
{
    for (int b = 0; b < 2; b++) {
        CHECK_EQ(p->be[b]->ops->step_begin(p->be[b], 0), OK);
    }
}

static inline void pass_begin(struct pair *p, const struct test_pass *t)
{
    for (int b = 0; b < 2; b++) {
        struct pass_shape shape;
        CHECK_EQ(p->be[b]->ops->pass_begin(p->be[b], &t->pass, &shape), OK);
        CHECK(shape.issue && shape.n_rows == t->pass.n_rows);
    }
}

static inline void pass_end(struct pair *p)
{
    for (int b = 0; b < 2; b++) {
        CHECK_EQ(p->be[b]->ops->pass_end(p->be[b]), OK);
    }
}

static inline void step_end(struct pair *p, struct pass_results *results) // [2]
{
    for (int b = 0; b < 2; b++) {
        struct pass_results mine[8];
        CHECK_EQ(p->be[b]->ops->step_end(p->be[b]), OK);
        CHECK_EQ(p->be[b]->ops->step_wait(p->be[b], 0, mine, 8), OK);
        if (results) {
            results[b] = mine[0];
        }
    }
}

#endif
