// SPDX-License-Identifier: Apache-2.0
/* The part of the holdings that manages recurrent state (backend.h): where sequences take
 * snapshots, and which copies the next steps have to make. Does nothing for models without state.
 * Internal to the holdings.
 *
 * A lane's own state needs no bookkeeping: its slot is the lane's number. Snapshots belong to
 * blocks of the prefix cache that end at boundaries. The state at a boundary is copied from a lane
 * when the rows up to it have been submitted and none beyond the next boundary have; if one pass
 * crosses several boundaries, the pass itself stores the earlier ones (struct state_keep).
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_HELD_STATES_H
#define SLUICE_ENGINE_SCHEDULE_HELD_STATES_H

#include "engine/schedule/plan.h"
#include "engine/schedule/states.h"

struct holdings;
struct cached_front;

/* The prefix cache's node at a boundary of a lane's text. */
struct state_mark {
    uint64_t uid; // 0: not in the cache yet
    int32_t block;
};

struct pending_state {
    const struct sequence *seq; // for copies into lanes; NULL: the sequence may no longer exist
    int32_t lane, slot, pos;
};

struct held_states {
    int32_t block, per_lane; // positions between boundaries; number of boundaries in a lane's text
    struct states snapshots;
    struct state_mark *marks;                // [max_lanes, per_lane]
    struct pending_state *outs, *ins, *kept; // copies for the next plan (outs, ins), and snapshots
                                             // that the last plan stored (kept)
    int32_t n_outs, n_ins, n_kept;           // at most 2 max_lanes, max_lanes and max_keeps
};

void held_states_init(struct holdings *h);
void held_states_deinit(struct holdings *h);

/* Called when the block has been evicted from the cache. */
void held_states_gone(struct holdings *h, int32_t block);

/* Sets front->n_blocks. Of the n_matched blocks that holdings_find found, the sequence may resume
 * after this many, because a snapshot follows them. */
void held_states_find(const struct holdings *h, struct cached_front *front);

/* Records that block i of the sequence is the block of this node, or has the same tokens as it. */
void held_states_mark(struct holdings *h, const struct sequence *seq, int32_t i, int32_t node);

/* held_states_begin: the sequence begins after this front, on whose snapshot the caller has a hold.
 * held_states_fork: a sibling begins with its leader's state. */
void held_states_begin(struct holdings *h, struct sequence *seq, const struct cached_front *front);
void held_states_fork(struct holdings *h, const struct sequence *seq,
                      const struct sequence *leader);

/* Take snapshots. held_states_publish: at the boundaries that the rows of a plan's entry cross.
 * held_states_reached: at the last boundary that the sequence's known tokens have reached, unless
 * they had reached it when only `before` blocks were in the cache. held_states_leave: at the last
 * boundary, when the sequence leaves its lane. */
void held_states_publish(struct holdings *h, struct plan *p, const struct plan_entry *entry);
void held_states_reached(struct holdings *h, const struct sequence *seq, int32_t n_sure,
                         int32_t before);
void held_states_leave(struct holdings *h, const struct sequence *seq, int32_t n_sure,
                       enum state_reason reason);

/* Move pending copies into the plan: first those out of lanes, then (by the caller) those from lane
 * to lane, then those into lanes. held_states_settle: the snapshots stored by the previous plan are
 * complete. */
void held_states_plan_outs(struct holdings *h, struct plan *p);
void held_states_plan_ins(struct holdings *h, struct plan *p);
void held_states_settle(struct holdings *h);

/* Cancels a pending copy into the lane of a sequence that leaves it. */
void held_states_drop(struct holdings *h, const struct sequence *seq);

void held_states_check(const struct holdings *h);

#endif
