/* A plan as flat arrays: what every rank executes, the same on all of them. Two steps exist, used in
 * turn, because one is planned while the other runs.
 * Thread: engine fills it; ranks read it. */
#ifndef SLUICE_ENGINE_STEP_H
#define SLUICE_ENGINE_STEP_H

#include "engine/model.h"
#include "engine/scheduler.h"

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

struct step {
    int32_t slot;
    int32_t n_draft_passes;
    struct draft_pass draft[MAX_DRAFTS];
    struct draft_feed { // what pass 0 feeds of whom
        struct sequence *seq;
        int32_t first, n;
    } *feeds; // [max_lanes]
    int32_t n_feeds;
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
    struct pass_results results[MAX_DRAFTS + 1]; // the draft's passes, then the target's
};

static inline const struct pass_results *step_results(const struct step *st)
{
    return &st->results[st->n_draft_passes];
}

/* max_drafts 0: no draft model. */
void step_init(struct step *st, int32_t slot, const struct scheduler_limits *limits,
               int32_t max_drafts);
void step_deinit(struct step *st);

/* Fills the arrays from st->plan; with `draft`, also the draft model's passes (step_draft.c). */
void step_build(struct step *st, struct scheduler *s, bool draft);
void step_build_draft(struct step *st, struct scheduler *s);
void step_init_draft(struct step *st, const struct scheduler_limits *limits, int32_t max_drafts);
void step_deinit_draft(struct step *st);

/* What the results say of the draft model: ids of the drafts, and how far its KV is right. Called
 * after the sequence's tokens were appended. */
void step_commit_draft_ids(struct step *st);
void step_commit_draft_kv(struct step *st, struct scheduler *s);

/* Issues the whole step on one rank. */
enum status step_execute(const struct step *st, struct model *target, struct model *draft,
                         int32_t n_vocab_used);

#endif
