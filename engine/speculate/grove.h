// SPDX-License-Identifier: Apache-2.0
/* The trees of one step, which grow together and share its rows. Which nodes to feed next, and
 * which to verify, is decided over all trees, by expected gain and cost.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SPECULATE_GROVE_H
#define SLUICE_ENGINE_SPECULATE_GROVE_H

#include "engine/speculate/proposer.h"
#include "engine/speculate/tree.h"

/* A node of a tree. The list of picks is in the order in which nodes were chosen. */
struct tree_pick {
    struct spec_tree *tree;
    int32_t node;
};

struct spec_grove {
    int32_t n_trees;
    struct spec_tree *trees; // [max_trees]
    struct tree_pick *picks; // [max_trees * MAX_TREE_CANDIDATES]
    int32_t base_rows;       // rows of the target's pass, not counting tree nodes
    float spent;             // estimated seconds of the draft passes so far
    bool grows;              // the host grows the trees, level by level
};

/* Chooses the nodes of depth `level` to feed next and assigns their slots; returns their number. 0:
 * no tree grows further. */
int32_t grove_frontier(const struct spec *sp, struct spec_grove *g, int32_t level);

/* Chooses the nodes to verify, and assigns their rows. The most likely path comes first, so that
 * few of its slots must be moved if it is accepted. */
void grove_choose(const struct spec *sp, struct spec_grove *g);

#endif
