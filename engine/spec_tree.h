/* Token trees: several guesses at each position, judged by one forward pass. A tree grows level by
 * level from the draft models' most likely ids (and n-gram lookup, if asked); equal tokens under one
 * parent are one node. Then nodes are chosen over all the trees of the step, best first, and the
 * accepted path is the walk from the root along what the target drew.
 *
 * A node has two places: `fed`, its slot behind the root in the draft models' KV, and `row`, its slot in
 * the target's. Committing a path moves both to where a plain run would have put them.
 *
 * Here is the shape alone: no backend, no plan. step_tree.c makes passes of it.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SPEC_TREE_H
#define SLUICE_ENGINE_SPEC_TREE_H

#include "engine/backend.h"
#include "engine/spec.h"

enum { MAX_TREE_CANDIDATES = 512 };

struct tree_node {
    int32_t token, parent, depth; // parent: index of a node before it
    int32_t fed;  // rows of the draft models before it, the root's included; -1: not fed
    int32_t row;  // in the target's pass, counted from the root's; -1: not chosen
    float logp;   // that the target draws the whole path, as the drafts believe
};

struct spec_tree {
    struct sequence *seq;
    int32_t entry;         // of the step's plan
    int32_t first;         // position of the root, the sequence's last known token
    int32_t depth, most;   // levels it may have, nodes that the plan has room for
    int32_t top_n;         // ids that a draft model tells of a node
    int32_t n_nodes, n_fed, n_rows; // the root is in each
    int32_t n_seen;        // of the fed ones, those of earlier passes
    int32_t looked_up;     // the first node that n-gram lookup gave; -1: none
    int32_t levels;        // depth of the deepest chosen node
    struct tree_node nodes[MAX_TREE_CANDIDATES]; // [0] is the root
    int32_t by_fed[MAX_TREE_NODES], by_row[MAX_TREE_NODES];
};

/* A node of a tree, in the order in which nodes are taken. */
struct tree_pick {
    struct spec_tree *tree;
    int32_t node;
};

/* The trees of one step. */
struct spec_grove {
    int32_t n_trees;
    struct spec_tree *trees;  // [max_trees]
    struct tree_pick *picks;  // [max_trees * MAX_TREE_CANDIDATES]
    int32_t base_rows;   // of the target's pass without nodes
    float spent;         // seconds of draft passes so far, by the cost curve
};

void tree_begin(struct spec_tree *t, struct sequence *seq, int32_t token);

/* The child with this token, made if there is none. -1: no room. */
int32_t tree_add(struct spec_tree *t, int32_t parent, int32_t token, float logp);

/* Adds the k best children of a node that was fed. drawn: what each draft model says. */
void tree_expand(struct spec_tree *t, int32_t node, const struct draw_result *const *drawn,
                 int32_t n_drawn, int32_t k);

/* Fed nodes, the root included, through which every other fed one goes: the past of a draft pass, not
 * more than what earlier passes fed. */
int32_t tree_trunk(const struct spec_tree *t);

/* Chooses which nodes of depth `level` are fed next and gives them places; returns how many. 0: no
 * tree grows on. */
int32_t grove_frontier(const struct spec *sp, struct spec_grove *g, int32_t level);

/* Chooses what is verified, and gives rows: the likeliest path first, so that it is mostly in place
 * already when it is accepted. */
void grove_choose(const struct spec *sp, struct spec_grove *g);

/* The row behind `row` that has this token; -1: none. */
int32_t tree_next(const struct spec_tree *t, int32_t row, int32_t token);

/* Children of a node at `depth`; nodes that a sequence is to have room for; ids that a draft model is
 * to tell: noise may bring any of the likeliest to the front. */
int32_t spec_tree_top_n(const struct spec *sp, const struct sequence *seq);
int32_t spec_tree_children(const struct spec *sp, int32_t depth);
int32_t spec_tree_most(const struct spec *sp, int32_t depth, int32_t n_sequences);

/* After the step: the rows of the path that was right. */
void spec_observe_tree(struct spec *sp, const struct spec_tree *t, const int32_t *path,
                       int32_t n_path);

#endif
