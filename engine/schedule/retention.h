// SPDX-License-Identifier: Apache-2.0
/* Whose the cached blocks are, and which of them somebody asked to keep for a time, or not to keep.
 *
 * An owner is whoever sends requests under one number; a block that two of them use is nobody's.
 * Of what an owner's requests leave behind, no more than its share stays in the cache as long as
 * others have use for the room; up to half of the share may be kept, and half of all blocks in all.
 * What somebody keeps no other can keep or release, and nobody can release what is not his alone.
 * All this is the order in which idle blocks are handed out (idle_order.h), and nothing else: what
 * is kept is handed out, too, when nothing else is left.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_RETENTION_H
#define SLUICE_ENGINE_SCHEDULE_RETENTION_H

#include "engine/schedule/idle_order.h"
#include "engine/schedule/request.h"

struct retention {
    struct idle_order *idle;
    int64_t now_ns, next_ns; // next: when to look again for what is kept no longer
    int32_t n_kept;
    int16_t *keeper;   // [n_blocks], number of the owner that keeps it; -1: nobody
    int64_t *until_ns; // [n_blocks], for what is kept
    struct {
        uint64_t id;
        int32_t most;             // blocks of its share
        int32_t n_blocks, n_kept; // cached ones that are its alone; that it keeps
    } owners[IDLE_USERS];         // owner 0 is everybody who has no number, or got no place
};

void retention_init(struct retention *r, struct idle_order *idle);
void retention_deinit(struct retention *r);

/* Time goes on. */
void retention_tick(struct retention *r, int64_t now_ns);

/* The number of a request's owner. It stays the owner's while blocks are, so it is asked for anew
 * with each use. */
int32_t retention_owner(struct retention *r, const struct engine_request *q);

void retention_entered(struct retention *r, int32_t block, int32_t owner); // into the cache
void retention_used(struct retention *r, int32_t block, int32_t owner);    // it is held
void retention_gone(struct retention *r, int32_t block);

/* How strongly the owner wants the block to be there for so long from now on: 1 to 100, or 0 where
 * it has no more use for it. False: it may keep no more. */
bool retention_ask(struct retention *r, int32_t block, int32_t owner, int32_t priority,
                   int64_t duration_ns);

/* Proves the counts. Aborts if not. For tests. */
void retention_check(const struct retention *r);

#endif
