/* Token trees: several guesses at each position, judged by one forward pass. A tree grows level by
 * level from the draft models' most likely ids (and n-gram lookup, if asked); equal tokens under
 * one parent are one node. Then nodes are chosen over all the trees of the step, best first, and
 * the accepted path is the walk from the root along what the target drew.
 *
 * A node has two places: `fed`, its slot behind the root in the draft models' KV, and `row`, its
 * slot in the target's. Committing a path moves both to where a plain run would have put them.
 *
 * A comb is laid out at once, its tokens unknown until the step's results tell them (spec_shape.c).
 *
 * Here is the shape alone: no backend, no plan. step_tree.c makes passes of it.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SPECULATE_TREE_H
#define SLUICE_ENGINE_SPECULATE_TREE_H

#include "engine/device/backend.h"
#include "engine/speculate/spec.h"

enum { MAX_TREE_CANDIDATES = 512 };

struct tree_node {
    int32_t token, parent, depth; // parent: index of a node before it
    int32_t fed;  // rows of the draft models before it, the root's included; -1: not fed
    int32_t row;  // in the target's pass, counted from the root's; -1: not chosen
    float logp;   // that the target draws the whole path, as the drafts believe
    bool spine;   // the first guess, as the first guesses before it
};

struct spec_tree {
    struct sequence *seq;
    int32_t entry;         // of the step's plan
    int32_t first;         // position of the root, the sequence's last known token
    int32_t depth, most;   // levels it may have, nodes that the plan has room for
    int32_t top_n;         // ids that a draft model tells of a node
    uint8_t children[MAX_DRAFTS]; // of a node, by depth, at most
    int32_t n_nodes, n_fed, n_rows; // the root is in each
    int32_t n_seen;        // of the fed ones, those of earlier passes
    int32_t looked_up;     // the first node that n-gram lookup gave; -1: none
    int32_t levels;        // depth of the deepest chosen node
    bool planned;          // a comb: beside[d] siblings of the spine's node of depth d + 1, in rows
    uint8_t beside[MAX_DRAFTS]; // from beside_row[d] on
    int32_t beside_row[MAX_DRAFTS];
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
    bool grows;          // by the host
};

void tree_begin(struct spec_tree *t, struct sequence *seq, int32_t token);

/* The child with this token, made if there is none. -1: no room. */
int32_t tree_add(struct spec_tree *t, int32_t parent, int32_t token, float logp);

/* Adds the k best children of a node that was fed. drawn: what each draft model says. */
void tree_expand(struct spec_tree *t, int32_t node, const struct draw_result *const *drawn,
                 int32_t n_drawn, int32_t k);

/* Adds the children that a node's draw gave, in their order: the order in which they are tried. */
void tree_expand_drawn(struct spec_tree *t, int32_t node, const struct draw_result *drawn);

/* A comb of this depth, with t->beside set; its nodes have rows, the spine's first. */
void tree_lay_comb(struct spec_tree *t, int32_t depth);

/* Draw number d of the comb's passes: the token of the spine's node of depth d + 1, and its
 * siblings'. */
void tree_name_comb(struct spec_tree *t, int32_t d, const struct draw_result *drawn);

/* Fed nodes, the root included, through which every other fed one goes: the past of a draft pass,
 * not more than what earlier passes fed. */
int32_t tree_trunk(const struct spec_tree *t);

/* Chooses which nodes of depth `level` are fed next and gives them places; returns how many. 0: no
 * tree grows on. */
int32_t grove_frontier(const struct spec *sp, struct spec_grove *g, int32_t level);

/* Chooses what is verified, and gives rows: the likeliest path first, so that it is mostly in place
 * already when it is accepted. */
void grove_choose(const struct spec *sp, struct spec_grove *g);

/* The row behind `row` that has this token; -1: none. */
int32_t tree_next(const struct spec_tree *t, int32_t row, int32_t token);

/* Children of a node at `depth`; nodes that a sequence is to have room for; ids that a draft model
 * is to tell: noise may bring any of the likeliest to the front. */
int32_t spec_tree_top_n(const struct spec *sp, const struct sequence *seq);
int32_t spec_tree_children(const struct spec *sp, int32_t depth);
int32_t spec_tree_most(const struct spec *sp, int32_t depth, int32_t n_sequences);

/* After the step: the rows of the path that was right; `cut`: what comes behind was not judged. */
void spec_observe_tree(struct spec *sp, const struct spec_tree *t, const int32_t *path,
                       int32_t n_path, bool cut);

/* ---- spec_shape.c */

/* Of one of n sequences, or summed over them: siblings beside the spine, expected tokens, seconds
 * of the step, and how often the spine ends early. */
struct spec_plan {
    int32_t beside;
    float tokens, seconds, ends;
};

void spec_shape_init(struct spec *sp);

/* A comb of `depth` for one of n such sequences, whose drafts are accepted with this probability
 * each, with the number of siblings, at most `most`, that gives the most tokens per second. */
struct spec_plan spec_plan_comb(const struct spec *sp, int32_t n, float acceptance, int32_t depth,
                                int32_t most);

/* Where n siblings lie: beside[d] for the spine's node of depth d + 1. */
void spec_lay_beside(const struct spec *sp, float acceptance, int32_t depth, int32_t n,
                     uint8_t *beside);

/* Whether trees grown by the host promise more tokens per second than the combs `all`. */
bool spec_worth_growing(const struct spec *sp, const struct spec_plan *all);

void spec_learn_tree(struct spec *sp, const struct spec_tree *t, const int32_t *path,
                     int32_t n_path, bool cut);
void spec_learn_seconds(struct spec *sp, float grown, float planned);
void spec_forget(struct spec *sp); // a step without grown trees

#endif
