// SPDX-License-Identifier: Apache-2.0
/* A step as every rank executes it, identical on all ranks and nodes: plain data. Each node has
 * two, used in turn, because one is planned while the other runs. Which request owns a result is
 * known only on node 0 (engine/step_build.h).
 * Thread: the engine's thread fills it; ranks read it. */
#ifndef SLUICE_ENGINE_CLUSTER_STEP_H
#define SLUICE_ENGINE_CLUSTER_STEP_H

#include "engine/model/model.h"
#include "engine/schedule/plan.h"

/* A lane that starts a sequence, or gets new blocks. */
struct lane_update {
    int32_t lane, first_block, n_blocks;
    const int32_t *blocks;
    bool fresh;
    const int32_t *prompt, *generated;
    int32_t n_prompt, n_generated;
    struct sampling_params params;
};

/* New entries of a lane's table of window pages. */
struct page_update {
    int32_t lane, first, n;
    const int32_t *pages;
};

/* One forward pass of the draft models, with the arrays it needs. */
struct draft_pass {
    struct pass pass;
    struct pass_row *rows;
    struct pass_seq *seqs;
    int32_t *out_rows;
    struct pass_draw *draws;
};

/* Accepted tree paths that the next step moves to their final slots before anything else, while the
 * lanes' tables are unchanged. The tokens in the lane's history and the slots in each KV set are
 * moved. */
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

/* The largest step: sizes of its arrays, and limits for a step received from node 0. */
struct step_sizes {
    const struct scheduler_limits *limits;
    int32_t vocab;
    int32_t n_draft_models, n_draft_passes; // n_draft_passes: per model
    int32_t n_feeding_passes; // how many of n_draft_passes feed known tokens; at least one
    int32_t max_masks;        // number of masks for the target's draws
    bool trees;               // some steps grow draft trees level by level
    int32_t n_adapters;
};

struct step {
    int32_t slot;
    bool begun; // the lane updates, copies and moves have already been applied, before a tree's
                // draft passes
    bool lacks_masks; // received without the masks of its draws, which have not come yet
    const struct tree_moves *moves; // paths accepted in earlier steps
    int32_t n_lanes, n_copies, n_state_copies;
    struct lane_update *lanes; // [2 max_lanes]
    struct block_copy *copies; // [max_lanes]
    int32_t n_page_updates, n_page_copies;
    struct page_update *page_updates; // [max_page_grants]
    struct block_copy *page_copies;   // [max_page_copies], of window pages
    struct state_copy *state_copies;  // [max_state_copies], within the target's state set

    int32_t n_draft_models; // each of them runs the draft passes
    int32_t n_draft_passes;
    struct draft_pass draft[MAX_DRAFTS]; // feeding passes feed known tokens that a draft model has
                                         // not seen yet; each later pass feeds a draft. pass.model
                                         // counts from the first draft model
    struct draft_pass level; // a pass that runs before the rest of the step, for one level of trees
                             // or for masked drafts

    struct pass pass; // the target's
    struct model_outputs want;
    struct pass_row *rows;     // [max_rows]
    struct pass_seq *seqs;     // [max_lanes]
    struct pass_group *groups; // [max_lanes]
    int32_t *out_rows;         // [max_out]
    struct pass_draw *draws;   // [max_draws]
    struct pass_pool *pools;   // [max_lanes]
    struct state_keep *keeps;  // [max_keeps]
    uint32_t *masks;           // [max_masks, mask_words(vocab)]
    int32_t vocab;
};

/* The number of passes that step_execute runs, each with results: the draft models' passes, then
 * the target's. */
static inline int32_t step_n_passes(const struct step *st)
{
    return st->n_draft_models * st->n_draft_passes + 1;
}

void step_init(struct step *st, int32_t slot, const struct step_sizes *sizes);
void step_deinit(struct step *st);

void tree_moves_init(struct tree_moves *m, const struct scheduler_limits *limits);
void tree_moves_deinit(struct tree_moves *m);
void tree_moves_clear(struct tree_moves *m);

#endif
