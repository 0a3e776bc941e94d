/* The plan of a step, which sequences feed which rows, and the limits that it keeps. The scheduler
 * writes it, with what the holdings have to tell; whoever builds the step reads it.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_PLAN_H
#define SLUICE_ENGINE_SCHEDULE_PLAN_H

#include "engine/schedule/sequence.h"

enum { MAX_BLOCK_TOKENS = 256 }; // chosen: 4 times the largest preferred; a stack array's length

struct scheduler_limits {
    int32_t max_rows, max_out, max_draws, max_lanes, max_sequences;
    int32_t max_len, n_blocks, block_tokens, max_blocks_per_lane;
    bool prefix_cache, chunked;
    uint64_t hash_key;
};

/* Rows first .. first + n_rows of a sequence; the last n_drafts of them are drafts. */
struct plan_entry {
    struct sequence *seq;
    int32_t first, n_rows, n_drafts;
    bool draws; // the rows reach the end: a token is drawn (or a vector pooled)
};

/* A sibling whose first token is drawn from the last row of an entry. */
struct plan_fork {
    struct sequence *seq;
    int32_t entry;
};

/* Blocks of a lane that the backend has yet to learn; `fresh`: the lane begins anew. */
struct plan_grant {
    struct sequence *seq;
    int32_t first, n;
    bool fresh;
};

struct plan {
    int32_t n_rows, n_out, n_draws;
    int32_t n_background; // rows of prompts of the background
    int32_t n_entries, n_forks, n_grants, n_copies, n_failed;
    struct plan_entry *entries;  // [max_lanes]
    struct plan_fork *forks;     // [max_lanes]
    struct plan_grant *grants;   // [2 max_lanes]
    struct block_copy *copies;   // [max_lanes]
    struct sequence **failed;    // [max_lanes]: can never run
};

void plan_init(struct plan *p, const struct scheduler_limits *limits);
void plan_deinit(struct plan *p);
void plan_clear(struct plan *p);

/* Fewer drafts for an entry of the plan just made, before it is submitted. */
void plan_trim(struct plan *p, struct plan_entry *entry, int32_t n_drafts);

/* Drops the blocks that the plan so far tells of a sequence, which is preempted while planning. */
void plan_drop_grants(struct plan *p, const struct sequence *seq);

/* Whether the plan forks this sequence from its leader. */
bool plan_forks(const struct plan *p, const struct sequence *seq);

#endif
