// SPDX-License-Identifier: Apache-2.0
/* The part of the holdings that is about recurrent state (backend.h): where texts get snapshots,
 * and what the next steps have to copy for it. Of models without state it has nothing. Inside of
 * the holdings.
 *
 * A lane's own state needs no books: its slot is the lane's number. Snapshots lie behind blocks of
 * the prefix cache that end at boundaries. The state at a boundary is copied from a lane when the
 * rows up to it are submitted and none beyond the next boundary are; where one pass goes past
 * several, it keeps the earlier ones itself (struct state_keep). Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_HELD_STATES_H
#define SLUICE_ENGINE_SCHEDULE_HELD_STATES_H

#include "engine/schedule/plan.h"
#include "engine/schedule/states.h"

struct holdings;
struct cached_front;

/* The cache's node behind which a boundary of a lane's text lies. */
struct state_mark {
    uint64_t uid; // 0: not entered yet
    int32_t block;
};

struct pending_state {
    const struct sequence *seq; // of copies into lanes; NULL: it may be gone
    int32_t lane, slot, pos;
};

struct held_states {
    int32_t block, per_lane; // of the limits; boundaries of a lane's text
    struct states snapshots;
    struct state_mark *marks;                // [max_lanes, per_lane]
    struct pending_state *outs, *ins, *kept; // for the next plan, and of the last one
    int32_t n_outs, n_ins, n_kept;           // [2 max_lanes], [max_lanes], [max_keeps]
};

void held_states_init(struct holdings *h);
void held_states_deinit(struct holdings *h);

/* The block has left the cache. */
void held_states_gone(struct holdings *h, int32_t block);

/* How many of the first n_matched blocks that holdings_find met the sequence may begin behind. */
void held_states_find(const struct holdings *h, struct cached_front *front);

/* Block i of the sequence is that node's, its own or an equal one. */
void held_states_mark(struct holdings *h, const struct sequence *seq, int32_t i, int32_t node);

/* It begins behind that front, whose snapshot is held; a sibling as its leader. */
void held_states_begin(struct holdings *h, struct sequence *seq, const struct cached_front *front);
void held_states_fork(struct holdings *h, const struct sequence *seq,
                      const struct sequence *leader);

/* Snapshots that the rows of a plan's entry pass; that the sequence's known tokens have reached
 * since it had entered `before` blocks; and the last that it leaves. */
void held_states_publish(struct holdings *h, struct plan *p, const struct plan_entry *entry);
void held_states_reached(struct holdings *h, const struct sequence *seq, int32_t n_sure,
                         int32_t before);
void held_states_leave(struct holdings *h, const struct sequence *seq, int32_t n_sure,
                       enum state_reason reason);

/* What is pending goes into the plan: first out of lanes, then from lane to lane, then into lanes.
 * held_states_settle: what the plan before kept is no longer being written. */
void held_states_tell_outs(struct holdings *h, struct plan *p);
void held_states_tell_ins(struct holdings *h, struct plan *p);
void held_states_settle(struct holdings *h);

/* The sequence leaves its lane, and if it was to be given a state it is not. */
void held_states_drop(struct holdings *h, const struct sequence *seq);

void held_states_check(const struct holdings *h);

#endif
