// SPDX-License-Identifier: Apache-2.0
/* What sequences hold: lanes; blocks, shared or their own; what the draft models' KV has of those
 * blocks; and snapshots of recurrent state behind some of them. Who gets what is the scheduler's to
 * say, which knows the order: here is what there is, what is in the cache, and who holds how much
 * of it. What the backend must learn of it goes into the plan.
 *
 * Of a sequence the holdings write lane, n_blocks, n_granted, chain, n_entered, branch,
 * draft_computed and draft_marked (draft_computed also moves with the draft passes that a step
 * builds). Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_HOLDINGS_H
#define SLUICE_ENGINE_SCHEDULE_HOLDINGS_H

#include "engine/schedule/held_states.h"
#include "engine/schedule/kv_pool.h"
#include "engine/schedule/plan.h"
#include "engine/schedule/prefix_cache.h"
#include "engine/schedule/retention.h"

/* What a sibling gets of its leader's lane, once the leader's last prompt rows are stored. */
struct pending_fork {
    const struct sequence *seq;
    int32_t from_lane, to_lane, pos; // with recurrent state
    bool has_copy;
    struct block_copy copy;
};

struct holdings {
    const struct scheduler_limits *limits;
    struct kv_pool pool;
    struct prefix_cache cache;
    struct retention retention;
    int32_t *free_lanes, n_free_lanes;
    int32_t *lane_blocks; // [max_lanes, max_blocks_per_lane]

    /* The draft models' KV under the same block ids: whether a block has it whole, and the index of
     * the sequence that is filling a shared block which lacks it (-1: none). */
    bool *draft_valid;       // [n_blocks]
    int32_t *draft_producer; // [n_blocks]

    struct pending_fork *pending_forks; // [max_lanes], for the next plan
    int32_t n_pending_forks;
    struct held_states states;
    int32_t *hits;    // [max_blocks_per_lane], what holdings_find found last
    int32_t *scratch; // [n_blocks], all zero between calls
};

/* All memory is taken here. The limits must outlive the holdings. */
void holdings_init(struct holdings *h, const struct scheduler_limits *limits);
void holdings_deinit(struct holdings *h);

int32_t holdings_blocks_for(const struct holdings *h, int32_t n_tokens);

/* Blocks that could be handed out now; those that giving up n sequences would add, where a shared
 * block counts when its last holder is among them. */
int32_t holdings_available(const struct holdings *h);
int32_t holdings_reclaimable(struct holdings *h, struct sequence *const *seqs, int32_t n);

/* The table of a sequence that has a lane. */
static inline int32_t *holdings_blocks(const struct holdings *h, const struct sequence *seq)
{
    return h->lane_blocks + (size_t)seq->lane * (size_t)h->limits->max_blocks_per_lane;
}

/* ---- to begin, to go on and to leave */

/* What the cache has of the front of a sequence's tokens. At least one token is always left. */
struct cached_front {
    int32_t n_blocks;  // that it may begin behind
    int32_t n_matched; // whose keys and values are there: more, where the state behind them is not
    uint64_t chain;    // uid of the last of these
    int32_t producer;  // index of the sequence that computes the next one right now; -1: nobody
    int32_t snapshot;  // of the state behind the first n_blocks; -1: none is needed
};
struct cached_front holdings_find(struct holdings *h, const struct sequence *seq);

/* The same of keys and values alone; what was found last is still known. */
struct cached_front holdings_match(const struct holdings *h, const struct sequence *seq);

/* How many blocks such a front may have at most: none where the result of every row is asked for.
 * And the tokens of full block i, gathered in `room` where prompt and output meet in it. */
int32_t holdings_most_front(const struct holdings *h, const struct sequence *seq);
const int32_t *holdings_block_tokens(const struct holdings *h, const struct sequence *seq,
                                     int32_t i, int32_t room[MAX_BLOCK_TOKENS]);

/* Of the blocks just found, those that nobody holds: to keep them takes them from what is
 * available. */
int32_t holdings_idle_among(const struct holdings *h, const struct cached_front *front);

/* Holds the blocks just found, with the state behind them, so that nobody is given them before the
 * sequence begins; or lets go of them again. */
void holdings_keep_front(struct holdings *h, const struct cached_front *front);
void holdings_drop_front(struct holdings *h, const struct cached_front *front);

/* A lane, the front that is kept, and new blocks for the rest of what the sequence knows, entered
 * as pending: it computes them. There must be as much. */
void holdings_begin(struct holdings *h, struct plan *p, struct sequence *seq,
                    const struct cached_front *front);

/* Whether there is a lane, and the block for the prompt's last part, for one more sample of the
 * leader's request; and giving them: it shares the full blocks, and gets a copy of the partial one
 * before the next step. */
bool holdings_can_fork(const struct holdings *h, const struct sequence *leader);
void holdings_fork(struct holdings *h, struct plan *p, struct sequence *seq,
                   const struct sequence *leader);

/* Blocks that a running sequence lacks for its first n_tokens tokens, at most 0 if it has them; and
 * n_blocks more for it. There must be as many. */
int32_t holdings_missing(const struct holdings *h, const struct sequence *seq, int32_t n_tokens);
void holdings_grow(struct holdings *h, struct plan *p, struct sequence *seq, int32_t n_blocks);

/* It feeds no more rows here. Of its known tokens the first n_sure have theirs in the lane and in
 * the blocks, and the cache goes on knowing them. */
void holdings_settle(struct holdings *h, struct sequence *seq, int32_t n_sure,
                     enum state_reason reason);

/* Gives back the lane, and all blocks with what was to be copied into them. */
void holdings_leave(struct holdings *h, struct sequence *seq);

/* ---- what the cache knows of them */

/* Rows of its first n_sure tokens are submitted, and all these are known: the cache gets to know
 * what blocks that makes full. */
void holdings_reached(struct holdings *h, struct sequence *seq, int32_t n_sure);

/* The blocks that are whole with the plan's rows turn valid: later steps run behind it in the same
 * order. States that these rows pass get snapshots, and the plan is told. */
void holdings_publish(struct holdings *h, struct plan *p);

/* Forgets every block that nobody holds. */
void holdings_forget_idle(struct holdings *h);

/* Copies for sequences that earlier plans forked go into this one: its step runs behind the one
 * that stored the prompt's last rows, and before their own first rows. So do copies of states,
 * which the lanes have as the steps before leave them. */
void holdings_tell_copies(struct holdings *h, struct plan *p);

/* ---- the draft models' KV */

/* Rows of the draft models that the sequence may feed now, up to `end`: fewer when a shared block
 * ahead is being filled by another sequence. Marks those that this one will fill. */
int32_t holdings_draft_rows(struct holdings *h, struct sequence *seq, int32_t end);
/* The draft models have fed known tokens below `end`. */
void holdings_draft_fed(struct holdings *h, struct sequence *seq, int32_t end);

/* Proves the books, given the list of all sequences: pool, holders, lanes. Aborts if not. For
 * tests. */
void holdings_check(const struct holdings *h, const struct sequence *order);

#endif
