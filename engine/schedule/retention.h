// SPDX-License-Identifier: Apache-2.0
/* | The owners of cached blocks, and which blocks are to be kept for some time, or released.
 *
 * An owner is the client whose requests carry one number (engine_request.owner); a block used by
 * two owners belongs to nobody. While others need space, no more than its share of an owner's
 * blocks stays cached; at most half of the share, and at most half of all blocks in total, can be
 * kept. What one owner keeps no other can keep or release, and an owner can only release blocks
 * that are exclusively its own. All of this only determines the order in which idle blocks are
 * reused (idle_order.h): even kept blocks are reused when nothing else is left.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_RETENTION_H
#define SLUICE_ENGINE_SCHEDULE_RETENTION_H

#include "engine/schedule/idle_order.h"
#include "engine/schedule/request.h"

struct retention {
    struct idle_order *idle;
    int64_t now_ns, next_ns; // next: when to check for expired keeps
    int32_t n_kept;
    int16_t *keeper;   // [n_blocks], number of the owner that keeps it; -1: nobody
    int64_t *until_ns; // [n_blocks], for what is kept
    struct {
        uint64_t id;
        int32_t most;             // blocks of its share
        int32_t n_blocks, n_kept; // cached blocks that are exclusively its own; blocks that it
                                  // keeps
    } owners[IDLE_USERS];         // owner 0: everybody without a number, or for whom there was no
                                  // place
};

void retention_init(struct retention *r, struct idle_order *idle);
void retention_deinit(struct retention *r);

/* Advances the time. */
void retention_tick(struct retention *r, int64_t now_ns);

/* The index of a request's owner. It is only stable while the owner has cached blocks, so it must
 * be looked up for each use. */
int32_t retention_owner(struct retention *r, const struct engine_request *q);

void retention_entered(struct retention *r, int32_t block, int32_t owner); // into the cache
void retention_used(struct retention *r, int32_t block, int32_t owner);    // the block is held
void retention_gone(struct retention *r, int32_t block);

/* The priority, 1 to 100, with which the owner wants the block kept for this duration, or 0 to
 * release it. False: the owner may not keep more. */
bool retention_ask(struct retention *r, int32_t block, int32_t owner, int32_t priority,
                   int64_t duration_ns);

/* Verifies the counts. Aborts on errors. For tests. */
void retention_check(const struct retention *r);

#endif
