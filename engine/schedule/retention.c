// SPDX-License-Identifier: Apache-2.0
/* Decides which idle blocks are kept longer, by the hints of requests and the share of the cache
 * that each owner may have. */
#include "engine/schedule/retention.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

enum { LOOK_NS = 1000000000 }; // chosen: keeps expire with a precision of one second

/* A keeper is the owner whose hint keeps the block, until until_ns; -1: none. */
void retention_init(struct retention *r, struct idle_order *idle)
{
    size_t n = (size_t)idle->n_blocks;
    *r = (struct retention){.idle = idle, .next_ns = INT64_MAX};
    r->keeper = xmalloc(n * sizeof *r->keeper);
    memset(r->keeper, 0xFF, n * sizeof *r->keeper);
    r->until_ns = xcalloc(n, sizeof *r->until_ns);
    r->owners[0].most = idle->n_blocks;
}

void retention_deinit(struct retention *r)
{
    free(r->keeper);
    free(r->until_ns);
    *r = (struct retention){0};
}

/* ---- owners --------------------------------------------------------------------------------- */

/* An index may be reassigned if its owner has nothing cached. */
static bool is_vacant(const struct retention *r, int32_t i)
{
    return r->owners[i].n_blocks == 0 && r->owners[i].n_kept == 0;
}

/* Returns 0 if no index is free: such an owner has no share of its own. */
static int32_t place_of(const struct retention *r, uint64_t id)
{
    int32_t vacant = 0;
    for (int32_t i = 1; i < IDLE_USERS; i++) {
        if (r->owners[i].id == id) {
            return i;
        }
        if (vacant == 0 && is_vacant(r, i)) {
            vacant = i;
        }
    }
    return vacant;
}

/* An owner's share is the one stated by its latest request. */
int32_t retention_owner(struct retention *r, const struct engine_request *q)
{
    int32_t i = q->owner > 0 ? place_of(r, q->owner) : 0;
    if (i > 0) {
        r->owners[i].id = q->owner;
        r->owners[i].most = (int32_t)(q->cache_share * (double)r->idle->n_blocks);
        idle_order_set_most(r->idle, i, r->owners[i].most);
    }
    return i;
}

static void set_owner(struct retention *r, int32_t block, int32_t owner)
{
    r->owners[r->idle->user[block]].n_blocks--;
    r->owners[owner].n_blocks++;
    idle_order_set_user(r->idle, block, owner);
}

void retention_entered(struct retention *r, int32_t block, int32_t owner)
{
    r->owners[r->idle->user[block]].n_blocks++;
    set_owner(r, block, owner);
}

void retention_used(struct retention *r, int32_t block, int32_t owner)
{
    if (r->idle->user[block] != owner) {
        set_owner(r, block, 0);
    }
}

/* ---- keeping -------------------------------------------------------------------------------- */

/* Ends the keep of a block that has a keeper: the block becomes ordinary. */
static void end_keep(struct retention *r, int32_t block)
{
    r->owners[r->keeper[block]].n_kept--;
    r->n_kept--;
    r->keeper[block] = -1;
    idle_order_end_keep(r->idle, block);
}

/* The block's content is gone, so its hint ends and its owner's count decreases. */
void retention_gone(struct retention *r, int32_t block)
{
    if (r->keeper[block] >= 0) {
        end_keep(r, block);
    }
    r->owners[r->idle->user[block]].n_blocks--;
}

static bool may_keep(const struct retention *r, int32_t owner)
{
    return r->n_kept < r->idle->n_blocks / 2 && r->owners[owner].n_kept < r->owners[owner].most / 2;
}

/* Only the keeper may end a keep, and only the block's own user may release it. */
static void release(struct retention *r, int32_t block, int32_t owner)
{
    if (r->keeper[block] == owner) {
        end_keep(r, block);
    }
    if (r->keeper[block] < 0 && r->idle->user[block] == owner) {
        idle_order_set_level(r->idle, block, IDLE_RELEASED);
    }
}

/* Returns false if the owner may keep no more blocks. A keep by another owner stays in force. */
bool retention_apply(struct retention *r, int32_t block, int32_t owner, int32_t priority,
                     int64_t duration_ns)
{
    if (priority == 0) {
        release(r, block, owner);
        return true;
    }
    if (r->keeper[block] >= 0 && r->keeper[block] != owner) {
        return true; // the current keeper's setting remains
    }
    if (r->keeper[block] < 0) {
        if (!may_keep(r, owner)) {
            return false;
        }
        r->owners[owner].n_kept++;
        r->n_kept++;
        r->keeper[block] = (int16_t)owner;
    }
    r->until_ns[block] = r->now_ns + duration_ns;
    r->next_ns = lesser(r->until_ns[block], r->next_ns);
    idle_order_set_level(r->idle, block, IDLE_KEPT + priority - 1);
    return true;
}

static bool is_over(const struct retention *r, int32_t block)
{
    return r->keeper[block] >= 0 && r->until_ns[block] <= r->now_ns;
}

/* Ends the keeps in such an order that the ends of prompts are reused before their beginnings. */
static void end_idle_keeps(struct retention *r)
{
    for (int level = IDLE_LEVELS - 1; level >= IDLE_KEPT; level--) {
        for (int32_t b = idle_order_newest(r->idle, level), older; b >= 0; b = older) {
            older = idle_order_older(r->idle, b);
            if (is_over(r, b)) {
                end_keep(r, b);
            }
        }
    }
}

/* Ends expired keeps. Runs at most once every LOOK_NS, because it looks at all blocks. */
void retention_tick(struct retention *r, int64_t now_ns)
{
    r->now_ns = now_ns;
    if (now_ns < r->next_ns) {
        return;
    }
    int64_t next = INT64_MAX;
    end_idle_keeps(r);
    for (int32_t b = 0; b < r->idle->n_blocks; b++) {
        if (is_over(r, b)) { // its keep has expired, but the block is held
            end_keep(r, b);
        }
        if (r->keeper[b] >= 0 && r->until_ns[b] < next) {
            next = r->until_ns[b];
        }
    }
    r->next_ns = greater(now_ns + LOOK_NS, next);
}

/* ---- checks --------------------------------------------------------------------------------- */

/* For tests: no more than half of all blocks are kept. */
void retention_check(const struct retention *r)
{
    int32_t n_kept = 0, of_owners[IDLE_USERS] = {0};
    for (int32_t b = 0; b < r->idle->n_blocks; b++) {
        int32_t keeper = r->keeper[b];
        ASSERT((keeper >= 0) == (r->idle->level[b] >= IDLE_KEPT));
        if (keeper >= 0) {
            of_owners[keeper]++;
            n_kept++;
        }
    }
    ASSERT(n_kept == r->n_kept && n_kept <= r->idle->n_blocks / 2);
    for (int32_t i = 0; i < IDLE_USERS; i++) {
        ASSERT(of_owners[i] == r->owners[i].n_kept && r->owners[i].n_blocks >= 0);
    }
}
