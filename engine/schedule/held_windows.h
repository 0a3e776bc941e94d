// SPDX-License-Identifier: Apache-2.0
/* The part of the holdings that manages the pages of layers with a window. A row of such a layer
 * sees only the last positions (or those of its chunk), so a block has a page for these layers
 * only while it is of use: a page is held while the planned rows of a sequence see it, or write to
 * it. Then it is idle, and can be found with its block in the prefix cache until its id is
 * reused; the page of a block that is not cached is freed immediately.
 *
 * A page belongs to a block, so it is shared, found and forgotten with the block. While a sequence
 * holds a block that has lost its page, the block does not get another one. So wherever two
 * sequences that share a block see it, their tables name the same page.
 *
 * A sequence reserves as many pages as it can need at a time, and the reservations never exceed
 * the pool. So there is a page whenever one is taken, and only reservations have to be obtained
 * by preemption. Sharing is not counted, because sequences that share their windows now will have
 * separate ones after as many tokens.
 *
 * Does nothing for models without such pages. Internal to the holdings. Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_HELD_WINDOWS_H
#define SLUICE_ENGINE_SCHEDULE_HELD_WINDOWS_H

#include "engine/schedule/kv_pool.h"
#include "engine/schedule/plan.h"

struct holdings;
struct cached_front;

/* The cached block with the same tokens as a sequence's own; uid 0: none. */
struct window_twin {
    uint64_t uid;
    int32_t block;
};

struct held_windows {
    struct kv_pool pages;
    int32_t *page_of;          // [n_blocks]: the block's page; -1: none
    int32_t *block_of;         // [n_pages]
    int32_t *tables;           // [max_lanes, max_blocks_per_lane], as the backend has them
    struct window_twin *twins; // [max_lanes, max_blocks_per_lane]
    int32_t n_reserved;        // by sequences, and one for each pending copy
};

void held_windows_init(struct holdings *h);
void held_windows_deinit(struct holdings *h);

/* The block has entered the prefix cache, or left it. */
void held_windows_entered(struct holdings *h, int32_t block);
void held_windows_gone(struct holdings *h, int32_t block);

/* Sets front->n_blocks. Of the n_matched blocks that holdings_find found, the sequence may begin
 * after this many, because the last of these have the pages that its rows will see. */
void held_windows_find(const struct holdings *h, struct cached_front *front);

/* Hold and release these pages, and that of the partly used block. */
void held_windows_keep_front(struct holdings *h, const struct cached_front *front);
void held_windows_drop_front(struct holdings *h, const struct cached_front *front);
void held_windows_drop_part(struct holdings *h, const struct cached_front *front);

/* Records that the cached block `node` has the tokens of block i of the sequence. */
void held_windows_mark(struct holdings *h, const struct sequence *seq, int32_t i, int32_t node);

/* Makes the page available from which a pending copy will be made, or ends that. */
void held_windows_hold_copy(struct holdings *h, int32_t from, bool is_held);
void held_windows_end_copy(struct holdings *h, int32_t from);

/* The sequence begins after the kept front, or as a sibling of its leader. */
void held_windows_begin(struct holdings *h, struct plan *p, struct sequence *seq,
                        const struct cached_front *front);
void held_windows_fork(struct holdings *h, struct plan *p, struct sequence *seq,
                       const struct sequence *leader);

/* held_windows_shift: releases the pages that the sequence's next n_rows rows neither see nor
 * write. held_windows_reserve: sets its reservation, for which there must be room. */
void held_windows_shift(struct holdings *h, struct sequence *seq, int32_t n_rows);
void held_windows_reserve(struct holdings *h, struct sequence *seq, int32_t n_pages);

/* The sequence's rows have filled its block i. If the prefix cache has a block with the same
 * tokens that has lost its page, this one takes its place. */
void held_windows_replace(struct holdings *h, const struct sequence *seq, int32_t i);

void held_windows_leave(struct holdings *h, struct sequence *seq);

/* sources: the blocks from which pending copies will be made. */
void held_windows_check(const struct holdings *h, const struct sequence *order,
                        const int32_t *sources, int32_t n_sources);

#endif
