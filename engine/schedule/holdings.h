/* What sequences hold: blocks, shared or their own, and lanes; what the draft model's KV has of
 * those blocks; and how the later sequences in the order give theirs up to the earlier ones. The
 * scheduler decides who gets what; this file keeps it right.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_HOLDINGS_H
#define SLUICE_ENGINE_SCHEDULE_HOLDINGS_H

#include "engine/schedule/scheduler.h"

int32_t holdings_blocks_for(const struct scheduler *s, int32_t n_tokens);
/* There must be one: see holdings_make_room. */
int32_t holdings_take_block(struct scheduler *s);
/* Whether the sequence may read what others computed: not where every row's result is asked for. */
bool holdings_reads_cache(const struct scheduler *s, const struct sequence *seq);
/* Blocks at the front of what the sequence knows that are in the cache; *hit gets their ids.
 * *producer: who computes the next one right now, or NULL. At least one token is left. */
int32_t holdings_look_up(const struct scheduler *s, const struct sequence *seq, int32_t *hit,
                         uint64_t *chain, struct sequence **producer);
/* Whether seq may take from the other, which must come later, and the plan not count on it; and
 * taking it all: it waits again. */
bool holdings_may_preempt(const struct scheduler *s, const struct sequence *seq,
                          const struct sequence *other);
void holdings_preempt(struct scheduler *s, struct plan *p, struct sequence *other);
/* Enters blocks [seq->n_entered, end) with the given state, where no equal node is. */
void holdings_enter(struct scheduler *s, struct sequence *seq, int32_t end, enum node_state state);
/* Whether the cache's pending block is being computed by this sequence. */
bool holdings_produces(const struct scheduler *s, const struct sequence *seq, int32_t block);
/* Removes pending copies of forked blocks [first, first + n). */
void holdings_cut_copies(struct scheduler *s, int32_t first, int32_t n);
/* Gives back the lane, and all blocks with what was to be copied into them. */
void holdings_leave(struct scheduler *s, struct sequence *seq);
/* Makes n blocks available to seq, at the cost of later sequences if it must be. Nothing is taken
 * when it would not suffice. */
bool holdings_make_room(struct scheduler *s, struct plan *p, struct sequence *seq, int32_t n);
/* A lane for seq, taken from the last sequence that comes after it if it must be: whether there is
 * one, and it. */
bool holdings_has_lane(const struct scheduler *s, const struct sequence *seq);
int32_t holdings_take_lane(struct scheduler *s, struct plan *p, const struct sequence *seq);
/* Tells the plan of blocks that the lane's table does not have yet; fresh: of the whole table. */
void holdings_grant(struct scheduler *s, struct plan *p, struct sequence *seq, bool fresh);
/* Blocks for the first n_tokens tokens of a running sequence. */
bool holdings_grow(struct scheduler *s, struct plan *p, struct sequence *seq, int32_t n_tokens);
/* Rows of the draft model that the sequence may feed now, up to `end`: fewer when a shared block
 * ahead is being filled by another sequence. Marks those that this one will fill. */
int32_t holdings_draft_rows(struct scheduler *s, struct sequence *seq, int32_t end);
/* The draft model has fed known tokens below `end`. */
void holdings_draft_fed(struct scheduler *s, struct sequence *seq, int32_t end);

#endif
