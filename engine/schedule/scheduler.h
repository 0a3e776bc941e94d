// SPDX-License-Identifier: Apache-2.0
/* Which sequences feed which rows in the next step: pure policy over lists, counts and budgets. No
 * device, clock or I/O: the same state gives the same plan.
 *
 * There are no phases. A sequence is given rows until n_computed reaches what it knows; decode rows
 * come first, then prompt chunks, each in the total order (sequence.h). Short of blocks, a
 * sequence may take those of sequences that come later: they are preempted whole, the last first.
 * Who waits while later ones run takes them before anything is planned. Drafts leave their rows to
 * prompts that come before.
 *
 * The order and the lists are the scheduler's own; what sequences hold is asked of the holdings.
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
    int64_t prefix_queries, prefix_hits, prefix_again; // again: in the cache, and yet to compute
    int64_t foreground;        // n_plans when somebody's request came last; below 0: none did
    struct sequence **victims; // [max_lanes], who would give way to one sequence, the last first

    /* Who waits is overtaken by at most so many computed prompt tokens (overtake.h); 0: by none.
     * The engine's to set, at any time between plans. */
    int64_t overtake_tokens;
    int64_t overtakers; // prompt tokens computed for overtakers so far
    int64_t next_slip;  // below 0, and rising
};

/* All memory is taken here. */
void scheduler_init(struct scheduler *s, const struct scheduler_limits *limits);
void scheduler_deinit(struct scheduler *s);

/* A sequence in waiting for sample `sample` of the request. NULL when all are in use. */
struct sequence *scheduler_add(struct scheduler *s, struct engine_request *r, int32_t sample);

/* The next step; true if it has rows. Moves n_computed, n_flight, n_inflight as if the step had
 * been submitted, so it must be. */
bool scheduler_plan(struct scheduler *s, struct plan *p);

/* Told after the step's results: the entry's tokens were appended to the output already
 * (n_known has grown). Enters full blocks into the cache, drops rows of rejected drafts. */
void scheduler_commit(struct scheduler *s, struct sequence *seq);

/* The sequence has ended: it is not planned again, and freed when no step has it in flight. True
 * if that was so at once. Its request is not looked at any more. */
bool scheduler_retire(struct scheduler *s, struct sequence *seq);

/* A step that had this sequence is over. True if the sequence was freed by it. */
bool scheduler_step_over(struct scheduler *s, struct sequence *seq);

/* Proves the books: order, counts, and what is held. Aborts if not. For tests. */
void scheduler_check(const struct scheduler *s);

#endif
