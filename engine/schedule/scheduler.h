// SPDX-License-Identifier: Apache-2.0
/* Decides which sequences feed which rows in the next step: pure policy over lists, counts and
 * budgets. No device, clock or I/O: the same state gives the same plan.
 *
 * There are no separate prefill and decode phases. A sequence gets rows until n_computed reaches
 * its known tokens; decode rows come first, then prompt chunks, each in the total order
 * (sequence.h). If blocks are short, a sequence may preempt later ones, the last first; a preempted
 * sequence loses all its blocks. Waiting sequences may preempt later running ones before anything
 * else is planned. Drafts yield their rows to earlier prompts.
 *
 * The scheduler owns the order and its lists; the holdings know what sequences hold.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_SCHEDULER_H
#define SLUICE_ENGINE_SCHEDULE_SCHEDULER_H

#include "engine/schedule/fronts.h"
#include "engine/schedule/holdings.h"
#include "engine/schedule/plan.h"

struct scheduler {
    struct scheduler_limits limits;
    struct holdings holdings;
    struct fronts fronts;
    struct sequence *sequences, **free_sequences; // [max_sequences]
    int32_t n_free_sequences;
    struct sequence order; // list head: next is the first in order
    int32_t n_running, n_waiting;
    int64_t n_plans, n_preemptions, waiting_tokens;
    // prefix_again: prompt tokens that are cached but must be recomputed
    int64_t prefix_queries, prefix_hits, prefix_again;
    /* Values of n_plans: when the last foreground request arrived, and when a background request
     * last had rows. Below 0: never. */
    int64_t foreground, background;
    struct sequence **victims; // [max_lanes], the sequences to preempt in favour of one sequence,
                               // the last in the order first

    /* A waiting sequence is overtaken by at most this number of computed prompt tokens
     * (overtake.h); 0: never. The engine may set it at any time between plans. */
    int64_t overtake_tokens;
    int64_t overtakers; // prompt tokens computed for overtakers so far
    int64_t next_slip;  // the next value of sequence.slip; below 0, and increasing
};

/* Allocates all memory. */
void scheduler_init(struct scheduler *s, const struct scheduler_limits *limits);
void scheduler_deinit(struct scheduler *s);

/* Adds a waiting sequence for sample `sample` of the request. NULL if all sequences are in use. */
struct sequence *scheduler_add(struct scheduler *s, struct engine_request *r, int32_t sample);

/* Plans the next step; true if it has rows. Updates n_computed, n_flight and n_inflight as if the
 * step had been submitted, so the caller must submit it. */
bool scheduler_plan(struct scheduler *s, struct plan *p);

/* True while foreground requests arrive during background ones. The caller should then plan a step
 * only once the preceding one has ended, so that a new request waits for one step instead of
 * two. */
bool scheduler_plans_late(const struct scheduler *s);

/* Called after the step's results: the entry's tokens have been appended to the output (n_known has
 * grown). Enters full blocks into the cache, drops rows of rejected drafts. */
void scheduler_commit(struct scheduler *s, struct sequence *seq);

/* Called before the sequences of a request are retired because its results are not numbers: blocks
 * that may be the cause leave the cache (holdings_doubt). */
void scheduler_doubt(struct scheduler *s, const struct engine_request *r);

/* The sequence has ended: it is not planned again, and is freed once no step has it in flight. True
 * if it was freed immediately. The scheduler does not access its request any more. */
bool scheduler_retire(struct scheduler *s, struct sequence *seq);

/* Called when a step with this sequence has ended. True if that freed the sequence. */
bool scheduler_step_over(struct scheduler *s, struct sequence *seq);

/* Verifies order, counts and holdings. Aborts on errors. For tests. */
void scheduler_check(const struct scheduler *s);

#endif
