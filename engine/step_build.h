// SPDX-License-Identifier: Apache-2.0
/* A step on node 0, from plan to results: the plan as flat arrays, which is what every rank
 * executes (engine/cluster/step.h), and whose each result is.
 *
 *     step_build.c   lanes' news, groups, rows, draws of the target's pass
 *     step_draft.c   the draft models' passes, and what is learnt of their KV
 *     step_tree.c    rows and masks of trees, and their accepted paths
 *     step_mask.c    what grammars allow each draw, of the target's pass and of draft models'
 *     step_grow.c    trees that are grown level by level, each with a pass of its own
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_STEP_BUILD_H
#define SLUICE_ENGINE_STEP_BUILD_H

#include "engine/cluster/ranks.h"
#include "engine/cluster/step.h"
#include "engine/constraint.h"
#include "engine/schedule/holdings.h"
#include "engine/speculate/grove.h"
#include "engine/speculate/spec.h"

/* Whose result a draw is. */
struct draw_owner {
    struct sequence *seq;
    int32_t pos; // of the row
    bool score;  // a prompt token's log-probability, not a drawn token
    bool verify; // one of several rows of a sequence whose drafts are judged
};

struct planned_step {
    struct plan plan;
    struct step step;
    struct draw_owner *owners;     // [max_draws], of the target's draws
    struct sequence **pool_owners; // [max_lanes]
    bool ungrouped;                // attention is told of no prefixes in common
    struct plan_entry *sorted;     // [max_lanes], entries with members of a group side by side
    struct plan_entry *room;       // [max_lanes], for sorting
    struct draft_feed {            // what the draft models' first pass feeds of whom
        struct sequence *seq;
        int32_t first, n;
    } *feeds; // [max_lanes]
    int32_t n_feeds;
    /* A draft head reads what the target's passes left, so a row can be fed once the one before it
     * is submitted; and the states of drafts are its own guesses: when they are tokens they are fed
     * again. */
    bool reads_target;
    struct sequence **draft_owners[MAX_DRAFTS]; // [max_lanes] each, of the draft passes' draws
    struct spec_grove grove;
    struct tree_pick *drawn; // [max_out], of step.level: the node whose children a draw tells
    uint64_t *level_mask;    // [max_rows, TREE_MASK_WORDS], of step.level
    uint64_t *mask;          // likewise, of the target's pass
    struct constraint *constraints; // the engine's, of all sequences by their index
    int32_t max_masks;
    struct sequence **closed; // [max_lanes]: their grammars allow nothing, or say nothing
    int32_t n_closed;
    struct pass_results results[MAX_STEP_PASSES]; // the drafts' passes, then the target's
};

static inline const struct pass_results *step_results(const struct planned_step *ps)
{
    return &ps->results[step_n_passes(&ps->step) - 1];
}

void planned_step_init(struct planned_step *ps, int32_t slot, const struct step_sizes *sizes);
void planned_step_deinit(struct planned_step *ps);

/* Fill the arrays from ps->plan, in this order: lanes; with draft models, their passes, and the
 * trees that the plan has; trees that the host grows, and drafts that a grammar restricts, are
 * drawn at once; then the target's pass. */
void step_build_lanes(struct planned_step *ps, const struct holdings *h);
void step_build_draft(struct planned_step *ps, struct holdings *h, const struct spec *sp);

/* Where passes of a step that is still being built run. */
struct step_site {
    struct ranks *ranks;
    int32_t n_vocab_used;
    /* Other nodes run them too. */
    enum status (*send_level)(const struct step *st, const struct pass *pass, void *arg);
    void *send_arg;
};
enum status step_grow_trees(struct planned_step *ps, const struct scheduler_limits *limits,
                            struct spec *sp, const struct step_site *site);
/* Chains and combs of which some have a grammar: each draft's mask needs the drafts before it. */
enum status step_draft_masked(struct planned_step *ps, const struct step_site *site);
void step_build(struct planned_step *ps, const struct holdings *h);
/* Then a mask for each draw of a sequence with a grammar. True: some need tokens that are in
 * flight, so the draws wait until these are known; else the masks can be filled at once. */
bool step_reserve_masks(struct planned_step *ps);
void step_fill_masks(struct planned_step *ps);

/* What the results say of the draft models: ids of the drafts; and how far their KV is right,
 * called after the sequences' tokens were appended. */
void step_commit_draft_ids(struct planned_step *ps);
void step_commit_draft_kv(struct planned_step *ps, struct holdings *h);

/* The path rows [0 .. n_path) of the sequence's tree was accepted and it goes on: what is to be
 * moved. */
void tree_moves_add(struct tree_moves *m, const struct planned_step *ps, struct sequence *seq,
                    const int32_t *path, int32_t n_path);

#endif
