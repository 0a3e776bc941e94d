// SPDX-License-Identifier: Apache-2.0
/* Token trees: several guesses at each position, verified by one forward pass. A tree grows level
 * by level from the draft models' most likely ids (and n-gram lookup, if enabled); equal tokens
 * under one parent are one node. Then the nodes to verify are chosen over all trees of the step,
 * best first (grove.h). The accepted path is the walk from the root along the tokens that the
 * target samples.
 *
 * A node has two places: `fed`, its slot after the root in the draft models' KV, and `row`, its
 * slot in the target's KV. When a path is committed, both move to the slots that a run without
 * drafts would have used.
 *
 * A comb is laid out at once; its tokens are unknown until the step returns them (shape.h).
 *
 * This file knows only the tree itself, no backend and no plan: step_tree.c and step_grow.c build
 * passes from trees.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SPECULATE_TREE_H
#define SLUICE_ENGINE_SPECULATE_TREE_H

#include "engine/device/backend.h"
#include "engine/schedule/sequence.h"

enum { MAX_TREE_CANDIDATES = 512 };

struct tree_node {
    int32_t token, parent, depth; // parent: index of an earlier node
    int32_t fed; // number of rows fed to the draft models before this node, including the root; -1:
                 // not fed
    int32_t row; // in the target's pass, relative to the root's row; -1: not chosen
    float logp;  // the drafts' estimate of the log-probability that the target samples the whole
                 // path to this node
    bool spine;  // this is the root, or the first guess of a parent that is in the spine
};

struct spec_tree {
    const struct sequence *seq;
    int32_t entry;       // index of the entry in the step's plan
    int32_t first;       // position of the root, the sequence's last known token
    int32_t depth, most; // maximum depth, and the maximum number of nodes that the plan allows
    int32_t top_n;       // ids that a draft model returns for a node
    uint8_t children[MAX_DRAFTS];   // maximum number of children of a node, by the node's depth
    int32_t n_nodes, n_fed, n_rows; // each includes the root
    int32_t n_seen;                 // number of nodes fed in earlier passes
    int32_t looked_up;              // index of the first node that n-gram lookup added; -1: none
    int32_t levels;                 // depth of the deepest chosen node
    bool planned; // a comb: beside[d] siblings of the spine's node of depth d + 1 are in the rows
                  // from beside_row[d] on
    uint8_t beside[MAX_DRAFTS]; // from beside_row[d] on
    int32_t beside_row[MAX_DRAFTS];
    struct tree_node nodes[MAX_TREE_CANDIDATES]; // [0] is the root
    int32_t by_fed[MAX_TREE_NODES], by_row[MAX_TREE_NODES];
};

void tree_begin(struct spec_tree *t, const struct sequence *seq, int32_t token);

/* The child with this token, which is added if missing. -1: no space. */
int32_t tree_add(struct spec_tree *t, int32_t parent, int32_t token, float logp);

/* Adds the k best children of a node that was fed. drawn: the results of each draft model. */
void tree_expand(struct spec_tree *t, int32_t node, const struct draw_result *const *drawn,
                 int32_t n_drawn, int32_t k);

/* Adds the children that a node's draw returned, in the order in which verification tries them. */
void tree_expand_drawn(struct spec_tree *t, int32_t node, const struct draw_result *drawn);

/* Lays out a comb of this depth, given t->beside. All its nodes get rows, those of the spine
 * first. */
void tree_lay_comb(struct spec_tree *t, int32_t depth);

/* Fills in the tokens returned by draw number d of the comb's passes: the spine's node of depth d +
 * 1, and its siblings. */
void tree_name_comb(struct spec_tree *t, int32_t d, const struct draw_result *drawn);

/* The number of leading fed nodes, including the root, that are ancestors of all nodes fed after
 * them; at most n_seen. These nodes are the past of the next draft pass. */
int32_t tree_trunk(const struct spec_tree *t);

/* The tokens of the path to a node, without the root; returns their number. */
int32_t tree_path_tokens(const struct spec_tree *t, int32_t node, int32_t tokens[MAX_DRAFTS]);

/* The row of the child of `row` with this token; -1: none. */
int32_t tree_next(const struct spec_tree *t, int32_t row, int32_t token);

#endif
