// SPDX-License-Identifier: Apache-2.0
/* What sequences hold: lanes; blocks, shared or exclusive, with and without draft KV; pages of
 * layers with a window; and snapshots of recurrent state. The scheduler, which knows the order,
 * decides who gets what; the holdings know what is available, what is cached, and who holds how
 * much. Updates for the backend go into the plan.
 *
 * The holdings write these members of a sequence: lane, n_blocks, n_granted, chain, n_entered,
 * n_proven, n_begun, branch, page_first, page_end, n_reserved, n_resumed, draft_computed and
 * draft_marked (the draft passes that a step builds
 * also advance draft_computed). Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_HOLDINGS_H
#define SLUICE_ENGINE_SCHEDULE_HOLDINGS_H

#include "engine/device/backend.h"
#include "engine/schedule/held_states.h"
#include "engine/schedule/held_windows.h"
#include "engine/schedule/kv_pool.h"
#include "engine/schedule/plan.h"
#include "engine/schedule/prefix_cache.h"
#include "engine/schedule/retention.h"

/* The copy that a sibling (another sample of the same request) gets from its leader's lane, once
 * the leader's last prompt rows are stored. Until the copy is in a plan, it holds the block to copy
 * from, because the leader may leave before. */
struct pending_fork {
    const struct sequence *seq;
    int32_t from_lane, to_lane, pos; // for recurrent state: lanes and position
    bool has_copy;
    struct block_copy copy;
};

/* An amount of the resources that sequences need besides a lane. */
struct room {
    int32_t blocks, pages; // pages: reservations of window pages
};

static inline bool room_covers(struct room have, struct room need)
{
    return have.blocks >= need.blocks && have.pages >= need.pages;
}

/* The copy of the beginning of a cached block, for a sequence that begins with this plan. The block
 * to copy from is held until the copy is in the plan. */
struct pending_part {
    const struct sequence *seq;
    struct block_copy copy;
};

struct holdings {
    const struct scheduler_limits *limits;
    struct kv_pool pool;
    struct prefix_cache cache;
    struct retention retention;
    int32_t *free_lanes, n_free_lanes;
    int32_t *lane_blocks; // [max_lanes, max_blocks_per_lane]

    /* The draft models' KV uses the same block ids. draft_valid: whether it is complete for a
     * block. draft_producer: the index of the sequence that is filling a shared block (-1:
     * none). */
    bool *draft_valid;       // [n_blocks]
    int32_t *draft_producer; // [n_blocks]

    struct pending_fork *pending_forks; // [max_lanes], copies for the next plan
    int32_t n_pending_forks;
    struct pending_part *pending_parts; // [max_lanes]
    int32_t n_pending_parts;
    struct held_states states;
    struct held_windows windows;
    int32_t *hits;    // [max_blocks_per_lane], the result of the last holdings_find
    int32_t *scratch; // [n_blocks], all zero between calls
};

/* Allocates all memory. The limits must outlive the holdings. */
void holdings_init(struct holdings *h, const struct scheduler_limits *limits);
void holdings_deinit(struct holdings *h);

static inline int32_t holdings_blocks_for(const struct holdings *h, int32_t n_tokens)
{
    return (n_tokens + h->limits->block_tokens - 1) / h->limits->block_tokens;
}

/* holdings_available: what could be allocated now. holdings_reclaimable: what preempting these n
 * sequences would add; a shared block counts if all its holders are among them, with the pending
 * copies for these sequences. */
struct room holdings_available(const struct holdings *h);
struct room holdings_reclaimable(struct holdings *h, struct sequence *const *seqs, int32_t n);

/* The block table of a sequence that has a lane. */
static inline int32_t *holdings_blocks(const struct holdings *h, const struct sequence *seq)
{
    return h->lane_blocks + (size_t)seq->lane * (size_t)h->limits->max_blocks_per_lane;
}

/* Its table of window pages, if there are any. */
static inline int32_t *holdings_pages(const struct holdings *h, const struct sequence *seq)
{
    return h->windows.tables + (size_t)seq->lane * (size_t)h->limits->max_blocks_per_lane;
}

/* ---- begin, continue and leave */

/* The cached front of a sequence's tokens. It always leaves out at least the last token, whose row
 * must be computed to sample from it. */
struct cached_front {
    int32_t n_blocks;  // the sequence may begin after this many blocks
    int32_t n_matched; // number of blocks with cached keys and values; more than n_blocks if the
                       // state after them, or a page that later rows see, is missing
    uint64_t chain;    // uid of the last matched block
    int32_t producer;  // index of the sequence that is computing the next block; -1: none
    int32_t snapshot;  // slot of the state after the first n_blocks; -1: none is needed
    /* The n_part tokens after these blocks are the first ones of the cached block `part`, from
     * which the sequence gets a copy. 0: none. */
    int32_t n_part, part;
};
struct cached_front holdings_find(struct holdings *h, const struct sequence *seq);

/* Finds the front of keys and values only, whether or not states are cached. The result of the last
 * holdings_find stays valid. */
struct cached_front holdings_match(const struct holdings *h, const struct sequence *seq);

/* holdings_most_front: the maximum number of blocks of such a front; 0 if the result of every row
 * is needed. holdings_block_tokens: the tokens of full block i, copied to `room` if the block has
 * both prompt and output tokens. */
int32_t holdings_most_front(const struct holdings *h, const struct sequence *seq);
const int32_t *holdings_block_tokens(const struct holdings *h, const struct sequence *seq,
                                     int32_t i, int32_t room[MAX_BLOCK_TOKENS]);

/* What the sequence needs besides this front. */
struct room holdings_need(const struct holdings *h, const struct sequence *seq,
                          const struct cached_front *front);

/* The number of blocks just found that no sequence holds. Holding them reduces holdings_available
 * by that number. */
int32_t holdings_idle_among(const struct holdings *h, const struct cached_front *front);

/* holdings_keep_front holds the blocks just found, and their state, so that they are not
 * reallocated before the sequence begins; holdings_drop_front releases them. */
void holdings_keep_front(struct holdings *h, const struct cached_front *front);
void holdings_drop_front(struct holdings *h, const struct cached_front *front);

/* Releases the partly used block of a kept front if less than this would be available otherwise:
 * the sequence may need that very block. */
void holdings_spare_part(struct holdings *h, struct cached_front *front, struct room need);

/* Gives the sequence a lane, the kept front, and new blocks for its other known tokens. The new
 * blocks are entered into the cache as pending, because this sequence will compute them. All of
 * these must be available. */
void holdings_begin(struct holdings *h, struct plan *p, struct sequence *seq,
                    const struct cached_front *front);

/* holdings_can_fork: whether a lane, and a block for the partial end of the prompt, are free for
 * one more sample of the leader's request. holdings_fork makes `seq` that sample: it shares the
 * leader's full blocks, and the partial block is copied for it before the next step. */
bool holdings_can_fork(const struct holdings *h, const struct sequence *leader);
void holdings_fork(struct holdings *h, struct plan *p, struct sequence *seq,
                   const struct sequence *leader);

/* holdings_missing: what a running sequence lacks for its first n_tokens tokens, the last of which
 * are the next rows; 0 or less if nothing. holdings_grow allocates it; it must be available. */
struct room holdings_missing(const struct holdings *h, const struct sequence *seq,
                             int32_t n_tokens);
void holdings_grow(struct holdings *h, struct plan *p, struct sequence *seq, int32_t n_tokens);

/* Before a plan: gives up what a running sequence had reserved for the last chunk of its prompt
 * beyond what it is always granted. */
void holdings_narrow(struct holdings *h, struct sequence *seq);

/* How many of the next n_rows rows, all of known tokens, a running sequence has pages for: at least
 * one. Reserves more pages for it if they are available without preemption. */
int32_t holdings_fit_rows(struct holdings *h, struct sequence *seq, int32_t n_rows);

/* The plan has the sequence's next n_rows rows. */
void holdings_plan_rows(struct holdings *h, struct plan *p, struct sequence *seq, int32_t n_rows);

/* Whether the sequence still holds all that a row at this position sees. */
bool holdings_sees(const struct holdings *h, const struct sequence *seq, int32_t pos);

/* Called when the sequence feeds no more rows in this lane. The rows of its first n_sure known
 * tokens are stored, and their full blocks stay in the cache. */
void holdings_settle(struct holdings *h, struct sequence *seq, int32_t n_sure,
                     enum state_reason reason);

/* Releases the lane and all blocks, and cancels pending copies into them. */
void holdings_leave(struct holdings *h, struct sequence *seq);

/* ---- entering blocks into the cache */

/* Called when the rows of the sequence's first n_sure tokens, all known, have been submitted:
 * enters the blocks that they fill. */
void holdings_reached(struct holdings *h, struct sequence *seq, int32_t n_sure);

/* Called when results of the sequence have been committed. Each token sampled since the sequence
 * got its blocks proves the blocks that its row sees. */
void holdings_prove(struct holdings *h, struct sequence *seq);

/* Called when a result of the sequence is not a number: doubts each of its blocks
 * (prefix_cache_doubt), so that those without a proof leave the cache and the same tokens are
 * computed again. */
void holdings_doubt(struct holdings *h, const struct sequence *seq, int64_t now);

/* Marks as valid the blocks that the plan's rows complete, because every later step executes after
 * this one. Snapshots at the state boundaries that these rows cross are added to the plan. */
void holdings_publish(struct holdings *h, struct plan *p);

/* Removes all blocks that nobody holds from the cache. */
void holdings_forget_idle(struct holdings *h);

/* Adds to the plan the copies for sequences that earlier plans forked: this plan's step executes
 * after the one that stored the prompt's last rows, and before the siblings' first rows. Also adds
 * the copies of parts of blocks for sequences that begin with this plan, and the copies of states,
 * which the previous steps have left in the lanes. */
void holdings_plan_copies(struct holdings *h, struct plan *p);

/* ---- the draft models' KV */

/* The number of rows that draft models may feed for the sequence now, up to `end`: fewer if another
 * sequence is filling a shared block. Marks the blocks that this sequence will fill. */
int32_t holdings_draft_rows(struct holdings *h, struct sequence *seq, int32_t end);
/* The draft models have been fed the known tokens below `end`. */
void holdings_draft_fed(struct holdings *h, struct sequence *seq, int32_t end);

/* Verifies the bookkeeping, given the list of all sequences: pool, holders, lanes. Aborts on
 * errors. For tests. */
void holdings_check(const struct holdings *h, const struct sequence *order);

#endif
