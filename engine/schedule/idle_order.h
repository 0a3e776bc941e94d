// SPDX-License-Identifier: Apache-2.0
/* The order in which idle blocks are reused: released blocks first, then ordinary ones, the longest
 * idle first, then kept ones, from the lowest level up.
 *
 * A block has a user or none. If a user has more idle blocks than allowed, its excess ordinary
 * blocks count as released, those idle for longest first. This only affects the order: an
 * allocation succeeds as long as any block is idle.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_IDLE_ORDER_H
#define SLUICE_ENGINE_SCHEDULE_IDLE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

enum {
    IDLE_RELEASED,
    IDLE_ORDINARY,
    IDLE_KEPT, // and higher levels
    IDLE_LEVELS = IDLE_KEPT + 100,
    IDLE_USERS = 256, // chosen; user 0 means no user
};

struct idle_link {
    int32_t prev, next;
};

struct idle_order {
    int32_t n_blocks, n; // n: number of idle ones
    int32_t lowest;      // the lists of all lower levels are empty
    uint8_t *level;      // [n_blocks], the level that the block has when it is idle
    uint8_t *listed;     // [n_blocks], the level whose list contains it; IDLE_LEVELS: none
    uint8_t *user;       // [n_blocks]
    /* Rings with the oldest block first after the head. Heads are at [n_blocks + level] and
     * [n_blocks + user]. The users' rings contain only ordinary blocks. */
    struct idle_link *by_level, *by_user;
    struct {
        // n: its idle blocks, except those that count as released; most: the limit for n
        int32_t n, most;
    } users[IDLE_USERS];
};

void idle_order_init(struct idle_order *o, int32_t n_blocks);
void idle_order_deinit(struct idle_order *o);

static inline bool idle_order_has(const struct idle_order *o, int32_t block)
{
    return o->listed[block] != IDLE_LEVELS;
}

void idle_order_add(struct idle_order *o, int32_t block);
/* Called when the block is held again; a released block becomes ordinary. */
void idle_order_remove(struct idle_order *o, int32_t block);
/* Called when the block's content is gone: it becomes ordinary, without a user. */
void idle_order_forget(struct idle_order *o, int32_t block);

/* The block to reuse next. There must be one. */
int32_t idle_order_first(struct idle_order *o);

/* Sets the level of a block; an idle block moves to the end of that level's list. */
void idle_order_set_level(struct idle_order *o, int32_t block, int level);
/* Makes a kept block ordinary. If it is idle, it becomes the first ordinary block to be reused,
 * since nobody has used it while it was kept. */
void idle_order_end_keep(struct idle_order *o, int32_t block);

/* Sets the user of a block that is not idle. 0: none. */
void idle_order_set_user(struct idle_order *o, int32_t block, int32_t user);
void idle_order_set_most(struct idle_order *o, int32_t user, int32_t most);

/* Iterates over the idle blocks of a level, newest first; -1: end. */
int32_t idle_order_newest(const struct idle_order *o, int level);
int32_t idle_order_older(const struct idle_order *o, int32_t block);

/* Verifies lists and counts. Aborts on errors. For tests. */
void idle_order_check(const struct idle_order *o);

#endif
