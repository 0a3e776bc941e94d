// SPDX-License-Identifier: Apache-2.0
/* The trees of one step, which grow together and share its rows: the nodes to feed next, and those
 * to verify, are chosen over all trees by expected gain and cost.
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
    int32_t base_rows;       // of the target's pass without tree nodes
    float spent;             // seconds of draft passes so far, by the cost curve
    bool grows;              // level by level, by the host
};

/* Chooses the nodes of depth `level` to feed next and assigns their slots; returns their number. 0:
 * no tree grows further. */
int32_t grove_frontier(const struct spec *sp, struct spec_grove *g, int32_t level);

/* Chooses the nodes to verify, and assigns rows: the most likely path first, so that few of its
 * slots must be moved when it is accepted. */
void grove_choose(const struct spec *sp, struct spec_grove *g);

#endif
