// SPDX-License-Identifier: Apache-2.0
/* A step on node 0, from plan to results: the plan as flat arrays, which every rank executes
 * (engine/cluster/step.h), and the owners of the results.
 *
 *     step_build.c   lane updates, groups, rows and draws of the target's pass
 *     step_draft.c   the draft models' passes, and the state of their KV
 *     step_tree.c    rows and masks of trees, and their accepted paths
 *     step_mask.c    grammar masks for the draws of the target's and the draft models' passes
 *     step_grow.c    trees grown level by level, one pass per level
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_STEP_BUILD_H
#define SLUICE_ENGINE_STEP_BUILD_H

#include "engine/cluster/ranks.h"
#include "engine/cluster/step.h"
#include "engine/constraint.h"
#include "engine/schedule/holdings.h"
#include "engine/speculate/grove.h"
#include "engine/speculate/spec.h"

struct draw_owner {
    struct sequence *seq;
    int32_t pos; // position of the row
    bool score;  // a prompt token's log-probability, not a drawn token
    bool verify; // one of several rows of a sequence whose drafts are verified
};

struct planned_step {
    struct plan plan;
    struct step step;
    struct draw_owner *owners; // [max_draws], for the target's draws
    struct pool_owner {
        struct sequence *seq;
        int32_t pos;           // of the result's last row
    } *pool_owners;            // [max_pools]
    bool ungrouped;            // do not tell attention about shared prefixes
    bool bidirectional;        // as in struct pass
    struct plan_entry *sorted; // [max_lanes], entries with the members of a group adjacent
    struct plan_entry *room;   // [max_lanes], for sorting
    struct draft_feed {        // the tokens that the draft models' first pass feeds, per
                               // sequence
        struct sequence *seq;
        // chain: number of drafts that follow, each drawn from the one before it
        int32_t first, n, chain;
    } *feeds; // [max_lanes]
    int32_t n_feeds;
    /* Set for a draft head that reads hidden states from the target's passes: a row can be fed once
     * the row before it has been submitted. While it drafts, the head reads hidden states that it
     * computed itself. Once drafts are accepted, their rows are fed again with the target's
     * states. */
    bool reads_target;
    struct sequence **draft_owners[MAX_DRAFTS]; // [max_lanes] each, for the draft passes' draws
    struct spec_grove grove;
    struct tree_pick *drawn; // [max_out], for step.level: the node whose children each draw returns
    uint64_t *level_mask;    // [max_rows, TREE_MASK_WORDS], for step.level
    uint64_t *mask;          // [max_rows, TREE_MASK_WORDS], for the target's pass
    struct constraint *constraints; // the engine's, indexed by sequence.index
    int32_t max_masks;
    struct sequence **closed; // [max_lanes]: sequences whose grammar allows no token, or has failed
    int32_t n_closed;
    // Results of the draft passes, then of the target's pass.
    struct pass_results results[MAX_STEP_PASSES];
};

static inline const struct pass_results *step_results(const struct planned_step *ps)
{
    return &ps->results[step_n_passes(&ps->step) - 1];
}

/* A sequence's rows in a pass; n_past: how many it has before them. */
static inline struct pass_seq step_seq(const struct sequence *seq, int32_t first_row,
                                       int32_t n_rows, int32_t n_past, bool tree)
{
    return (struct pass_seq){.lane = seq->lane,
                             .first_row = first_row,
                             .n_rows = n_rows,
                             .n_past = n_past,
                             .tree = tree,
                             .second = seq->request->second,
                             .adapter = seq->request->adapter};
}

void planned_step_init(struct planned_step *ps, int32_t slot, const struct step_sizes *sizes);
void planned_step_deinit(struct planned_step *ps);

/* These fill the arrays from ps->plan, in this order: lanes; with draft models, their passes and
 * the plan's trees (trees grown by the host, and drafts restricted by a grammar, are drawn
 * immediately); then the target's pass. */
void step_build_lanes(struct planned_step *ps, const struct holdings *h);
void step_build_draft(struct planned_step *ps, struct holdings *h, const struct spec *sp);

/* The ranks and nodes that run passes of a step that is still being built. */
struct step_site {
    struct ranks *ranks;
    int32_t n_vocab_used;
    /* Sends the pass to the other nodes, which run it as well. */
    enum status (*send_level)(const struct step *st, const struct pass *pass, void *arg);
    void *send_arg;
};
enum status step_grow_trees(struct planned_step *ps, const struct scheduler_limits *limits,
                            struct spec *sp, const struct step_site *site);
/* For chains and combs in which some sequences have a grammar: each draft's mask depends on the
 * drafts before it. */
enum status step_draft_masked(struct planned_step *ps, const struct step_site *site);
void step_build(struct planned_step *ps, const struct holdings *h);
/* After step_build: reserves a mask for each draw of a sequence with a grammar. True: some masks
 * depend on tokens in flight, so the draws wait until these are known. False: the masks can be
 * filled in now. */
bool step_reserve_masks(struct planned_step *ps);
void step_fill_masks(struct planned_step *ps);

/* Read the draft models' results. step_commit_draft_ids: the ids of the drafts.
 * step_commit_draft_kv: records how far the draft models' KV is valid; called after the tokens have
 * been appended to the sequences. */
void step_commit_draft_ids(struct planned_step *ps);
void step_commit_draft_kv(struct planned_step *ps, struct holdings *h);

/* Records what must be moved after rows path[0 .. n_path) of the sequence's tree were accepted and
 * the sequence continues. */
void tree_moves_add(struct tree_moves *m, const struct planned_step *ps, struct sequence *seq,
                    const int32_t *path, int32_t n_path);

#endif
