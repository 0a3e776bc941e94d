/* A plan as flat arrays: what every rank executes, the same on all of them. Two steps exist, used
 * in turn, because one is planned while the other runs.
 * Thread: engine fills it; ranks read it. */
#ifndef SLUICE_ENGINE_STEP_H
#define SLUICE_ENGINE_STEP_H

#include "engine/model/model.h"
#include "engine/cluster/ranks.h"
#include "engine/schedule/scheduler.h"
#include "engine/speculate/tree.h"

/* Whose result a draw is. */
struct draw_owner {
    struct sequence *seq;
    int32_t pos;  // of the row
    bool score;   // a prompt token's log-probability, not a drawn token
    bool verify;  // one of several rows of a sequence whose drafts are judged
};

/* A lane that begins anew, or has new blocks. */
struct lane_update {
    int32_t lane, first_block, n_blocks;
    const int32_t *blocks;
    bool fresh;
    const int32_t *prompt, *generated;
    int32_t n_prompt, n_generated;
    struct sampling_params params;
};

/* One forward of the draft model. Pass 0 feeds what it has not seen yet of every planned sequence,
 * later ones the draft before. */
struct draft_pass {
    struct pass pass;
    struct pass_row *rows;
    struct pass_seq *seqs;
    int32_t *out_rows;
    struct pass_draw *draws;
    struct sequence **owners; // of draws
};

/* Accepted paths of trees that the next step moves to their final slots before anything else, with
 * the lanes' tables as they were: the history of a lane, and the slots in each KV set. */
struct tree_moves {
    int32_t n_paths;
    struct tree_path {
        int32_t lane, first, n;
        int32_t tokens[MAX_DRAFTS + 1];
    } *paths; // [max_lanes]
    int32_t n_moves[1 + MAX_DRAFT_MODELS];
    struct slot_move *moves[1 + MAX_DRAFT_MODELS]; // [max_lanes * MAX_DRAFTS]
};

enum { MAX_STEP_PASSES = MAX_DRAFTS * MAX_DRAFT_MODELS + 1 };

struct step {
    int32_t slot;
    bool begun; // lanes, copies and moves were sent already, before the draft passes of a tree
    int32_t n_draft_models; // each has the draft passes
    int32_t n_draft_passes;
    struct draft_pass draft[MAX_DRAFTS];
    struct draft_feed { // what pass 0 feeds of whom
        struct sequence *seq;
        int32_t first, n;
    } *feeds; // [max_lanes]
    int32_t n_feeds;
    struct spec_grove grove;
    struct draft_pass tree;   // one level of the trees
    struct tree_pick *drawn;  // [max_out], of `tree`: the node whose children a draw tells
    uint64_t *draft_mask;     // [max_rows, TREE_MASK_WORDS], of `tree`
    uint64_t *mask;           // likewise, of the target's pass
    const struct tree_moves *moves; // of the steps before
    /* Other nodes run a level's pass too; NULL: there are none. */
    enum status (*send_level)(const struct step *st, const struct pass *pass, void *arg);
    void *send_arg;
    struct plan plan;
    struct pass pass;
    struct model_outputs want;

    int32_t n_lanes;
    struct lane_update *lanes;   // [2 max_lanes]
    struct pass_row *rows;       // [max_rows]
    struct pass_seq *seqs;       // [max_lanes]
    struct pass_group *groups;   // [max_lanes]
    int32_t *out_rows;           // [max_out]
    struct pass_draw *draws;     // [max_draws]
    struct draw_owner *owners;   // [max_draws]
    struct pass_pool *pools;     // [max_lanes]
    struct sequence **pool_owners; // [max_lanes]
    struct plan_entry *sorted;   // [max_lanes], entries with members of a group side by side
    struct plan_entry *room;     // [max_lanes], for sorting
    struct pass_results results[MAX_STEP_PASSES]; // the drafts' passes, then the target's
};

/* Those that step_execute runs. */
static inline int32_t step_n_passes(const struct step *st)
{
    return st->n_draft_models * st->n_draft_passes + 1;
}

static inline const struct pass_results *step_results(const struct step *st)
{
    return &st->results[step_n_passes(st) - 1];
}

void step_init(struct step *st, int32_t slot, const struct scheduler_limits *limits,
               const struct spec *sp);
void step_deinit(struct step *st);

/* Fills the arrays from st->plan, in this order: lanes; with draft models, their passes
 * (step_draft.c), and trees, if the plan has any, which are grown at once (step_tree.c); then the
 * target's pass. */
void step_build_lanes(struct step *st, struct scheduler *s);
void step_build_draft(struct step *st, struct scheduler *s, const struct spec *sp);
enum status step_grow_trees(struct step *st, struct scheduler *s, struct spec *sp,
                            struct ranks *ranks, int32_t n_vocab_used);
void step_build(struct step *st, struct scheduler *s);

void step_init_draft(struct step *st, const struct scheduler_limits *limits, const struct spec *sp);
void step_deinit_draft(struct step *st);
void step_init_tree(struct step *st, const struct scheduler_limits *limits, const struct spec *sp);
void step_deinit_tree(struct step *st);

/* A tree for every entry of the plan that is to have one. */
void step_plant_trees(struct step *st, const struct spec *sp);

/* The rows of a tree behind its root, with their masks; the draw that belongs to row `row`. */
void step_tree_rows(struct step *st, const struct spec_tree *t, int32_t first_row);
int32_t step_tree_pos(const struct spec_tree *t, int32_t row);
int32_t step_tree_law(const struct spec_tree *t, int32_t row);

/* What the results say of the draft model: ids of the drafts, and how far its KV is right. Called
 * after the sequence's tokens were appended. */
void step_commit_draft_ids(struct step *st);
void step_commit_draft_kv(struct step *st, struct scheduler *s);

/* The tree's path rows [0 .. n_path) was accepted and the sequence goes on: what is to be moved. */
void tree_moves_init(struct tree_moves *m, const struct scheduler_limits *limits);
void tree_moves_deinit(struct tree_moves *m);
void tree_moves_add(struct tree_moves *m, const struct step *st, struct spec_tree *t,
                    const int32_t *path, int32_t n_path);
void tree_moves_clear(struct tree_moves *m);

/* Passes of every draft model on every rank, and their results: they decide what comes next. */
enum status step_run_level(struct step *st, const struct draft_pass *passes, int32_t n_passes,
                           struct ranks *ranks, int32_t n_vocab_used);

/* On one rank: the lanes' news, once per step; a pass; the whole step. */
enum status step_begin_lanes(const struct step *st, struct backend *be);
enum status step_run_pass(const struct pass *pass, struct model *m, struct model_outputs want,
                          int32_t n_vocab_used);
enum status step_run_draft(const struct pass *pass, struct rank *r, int32_t model,
                           int32_t n_vocab_used);
enum status step_execute(const struct step *st, struct rank *r, int32_t n_vocab_used);

#endif
