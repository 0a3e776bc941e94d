// SPDX-License-Identifier: Apache-2.0
/* The trees of one step, which grow together and share its rows: what is fed next, and what is
 * verified, is chosen over all of them by what it promises and costs.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SPECULATE_GROVE_H
#define SLUICE_ENGINE_SPECULATE_GROVE_H

#include "engine/speculate/proposer.h"
#include "engine/speculate/tree.h"

/* A node of a tree, in the order in which nodes are taken. */
struct tree_pick {
    struct spec_tree *tree;
    int32_t node;
};

/* The trees of one step. */
struct spec_grove {
    int32_t n_trees;
    struct spec_tree *trees; // [max_trees]
    struct tree_pick *picks; // [max_trees * MAX_TREE_CANDIDATES]
    int32_t base_rows;       // of the target's pass without nodes
    float spent;             // seconds of draft passes so far, by the cost curve
    bool grows;              // by the host
};

/* Chooses which nodes of depth `level` are fed next and gives them places; returns how many. 0: no
 * tree grows on. */
int32_t grove_frontier(const struct spec *sp, struct spec_grove *g, int32_t level);

/* Chooses what is verified, and gives rows: the likeliest path first, so that it is mostly in place
 * already when it is accepted. */
void grove_choose(const struct spec *sp, struct spec_grove *g);

#endif
