/* Which sequences feed which rows in the next step: pure policy over lists, counts and budgets. No
 * device, clock or I/O: the same state gives the same plan.
 *
 * There are no phases. A sequence is given rows until n_computed reaches what it knows; decode rows
 * come first, then prompt chunks, each in the total order (priority, arrival). Short of blocks, a
 * sequence may take those of sequences that come later: they are preempted whole, the last first.
 * Who waits while later ones run takes them before anything is planned. Drafts leave their rows to
 * prompts that come before.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_SCHEDULER_H
#define SLUICE_ENGINE_SCHEDULE_SCHEDULER_H

#include "engine/schedule/prefix_cache.h"
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
    int32_t n_entries, n_forks, n_grants, n_copies, n_failed;
    struct plan_entry *entries;  // [max_lanes]
    struct plan_fork *forks;     // [max_lanes]
    struct plan_grant *grants;   // [2 max_lanes]
    struct block_copy *copies;   // [max_lanes]
    struct sequence **failed;    // [max_lanes]: can never run
};

struct scheduler {
    struct scheduler_limits limits;
    struct kv_pool pool;
    struct prefix_cache cache;
    struct sequence *sequences, **free_sequences; // [max_sequences]
    int32_t n_free_sequences;
    struct sequence order; // list head: next is the first in order
    int32_t *free_lanes, n_free_lanes;
    int32_t *lane_blocks; // [max_lanes, max_blocks_per_lane]
    int32_t n_running, n_waiting;
    int64_t n_plans, n_preemptions, prefix_queries, prefix_hits, waiting_tokens;

    /* The draft model's KV under the same block ids: whether a block has it whole, and which
     * sequence is filling a shared block that lacks it (-1: none). */
    bool *draft_valid;       // [n_blocks]
    int32_t *draft_producer; // [n_blocks]

    struct block_copy *pending_copies; // for the next plan
    struct sequence **pending_for;
    int32_t n_pending_copies;
    int32_t *scratch; // [n_blocks], all zero between calls
    int32_t *hits;    // [max_blocks_per_lane] what a waiting sequence found in the cache
    int32_t *known;   // [max_len], a proposer's room
};

/* All memory is taken here. */
void scheduler_init(struct scheduler *s, const struct scheduler_limits *limits);
void scheduler_deinit(struct scheduler *s);
void plan_init(struct plan *p, const struct scheduler_limits *limits);
void plan_deinit(struct plan *p);

/* A sequence in waiting for sample `sample` of the request. NULL when all are in use. */
struct sequence *scheduler_add(struct scheduler *s, struct engine_request *r, int32_t sample);

/* The next step; true if it has rows. Moves n_computed, n_flight, n_inflight as if the step had
 * been submitted, so it must be. */
bool scheduler_plan(struct scheduler *s, struct plan *p);

/* Fewer drafts for an entry of the plan just made, before it is submitted. */
void scheduler_trim(struct plan *p, struct plan_entry *entry, int32_t n_drafts);

/* Told after the step's results: the entry's tokens were appended to the output already
 * (n_known has grown). Enters full blocks into the cache, drops rows of rejected drafts. */
void scheduler_commit(struct scheduler *s, struct sequence *seq);

/* The sequence has ended: it is not planned again, and freed when no step has it in flight. True
 * if that was so at once. Its request is not looked at any more. */
bool scheduler_retire(struct scheduler *s, struct sequence *seq);

/* A step that had this sequence is over. True if the sequence was freed by it. */
bool scheduler_step_over(struct scheduler *s, struct sequence *seq);

static inline int32_t *scheduler_blocks(struct scheduler *s, const struct sequence *seq)
{
    return s->lane_blocks + (size_t)seq->lane * (size_t)s->limits.max_blocks_per_lane;
}

/* Proves the books: pool, holders, order, lanes. Aborts if not. For tests. */
void scheduler_check(const struct scheduler *s);

#endif
