// SPDX-License-Identifier: Apache-2.0
/* The owners of cached blocks, and which blocks are to be kept for some time or released.
 *
 * An owner is the client whose requests carry one number (engine_request.owner); a block used by
 * two owners belongs to nobody. While others need space, an owner's blocks stay cached only up to
 * its share. An owner can keep at most half of its share, and all owners together at most half of
 * all blocks. What one owner keeps no other can keep or release, and an owner can only release
 * blocks that are exclusively its own. All of this only determines the order in which idle blocks
 * are reused (idle_order.h): even kept blocks are reused when nothing else is left.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_RETENTION_H
#define SLUICE_ENGINE_SCHEDULE_RETENTION_H

#include "engine/schedule/idle_order.h"
#include "engine/schedule/request.h"

struct retention {
    struct idle_order *idle;
    int64_t now_ns, next_ns; // next_ns: when to check for expired keeps
    int32_t n_kept;
    int16_t *keeper;   // [n_blocks], index of the owner that keeps the block; -1: none
    int64_t *until_ns; // [n_blocks], end of the keep
    struct {
        uint64_t id;
        int32_t most; // its share, in blocks
        // Cached blocks that are exclusively its own; blocks that it keeps.
        int32_t n_blocks, n_kept;
    } owners[IDLE_USERS]; // owner 0: requests without an owner, and owners for whom no index was
                          // free
};

void retention_init(struct retention *r, struct idle_order *idle);
void retention_deinit(struct retention *r);

/* Advances the time. */
void retention_tick(struct retention *r, int64_t now_ns);

/* The index of a request's owner. It is stable only while the owner has cached blocks, so it must
 * be looked up for each use. */
int32_t retention_owner(struct retention *r, const struct engine_request *q);

void retention_entered(struct retention *r, int32_t block, int32_t owner);
void retention_used(struct retention *r, int32_t block, int32_t owner); // the block is held
void retention_gone(struct retention *r, int32_t block);

/* Keeps the block for this duration with a priority of 1 to 100, or releases it with priority 0.
 * False: the owner may not keep more blocks. */
bool retention_apply(struct retention *r, int32_t block, int32_t owner, int32_t priority,
                     int64_t duration_ns);

/* Verifies the counts. Aborts on errors. For tests. */
void retention_check(const struct retention *r);

#endif
