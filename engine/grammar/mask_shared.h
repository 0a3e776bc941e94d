// SPDX-License-Identifier: Apache-2.0
/* The memory of heads and runs, which the masks of many states share: its size, and how it is
 * freed.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_MASK_SHARED_H
#define SLUICE_ENGINE_GRAMMAR_MASK_SHARED_H

#include "engine/grammar/mask_counts.h"
#include "engine/grammar/mask_walk.h"

/* The nodes of the trie at whose byte an item leaves its run, for one set of bytes that may
 * follow. */
struct run_exits {
    struct byte_set first; // the classes of bytes that what follows may begin with
    struct run_exit {
        uint32_t node, n; // n: number of rounds that have begun before the node
    } *v;
    uint32_t n, cap;
    bool too_many;
};

struct mask_run {
    uint32_t e; // the expression of the run
    bool unfit; // the method of mask_runs.c does not suit it
    bool has_tokens;
    // The tokens that stay in the run, each with the number of rounds that it begins.
    struct counts tokens;
    struct run_exits *exits;
    uint32_t n_exits, cap_exits;
};

size_t head_bytes(const struct masks *m, const struct head *h);
size_t run_bytes(const struct masks *m, const struct mask_run *r);
void heads_free(struct masks *m); // frees all heads
void runs_free(struct masks *m);

/* Frees all heads and runs, even while a mask is being built. */
void mask_shared_drop(struct masks *m);

#endif
