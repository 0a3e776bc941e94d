// SPDX-License-Identifier: Apache-2.0
/* In which order idle blocks are handed out again: those that were released first, then the
 * ordinary ones, the longest idle first, and those that are kept last, the lowest level first.
 *
 * A block has a user or none. Of a user whose idle blocks are more than it may have, the ordinary
 * ones that were idle the longest count as released. All of it is order alone: whoever needs a
 * block gets one as long as any is idle. Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_IDLE_ORDER_H
#define SLUICE_ENGINE_SCHEDULE_IDLE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

enum {
    IDLE_RELEASED,
    IDLE_ORDINARY,
    IDLE_KEPT, // and above
    IDLE_LEVELS = IDLE_KEPT + 100,
    IDLE_USERS = 256, // chosen; number 0 is nobody
};

struct idle_link {
    int32_t prev, next;
};

struct idle_order {
    int32_t n_blocks, n; // n: idle ones
    int32_t lowest;      // no list of a lower level has any
    uint8_t *level;      // [n_blocks], what it is when it is idle
    uint8_t *listed;     // [n_blocks], the level in whose list it is; IDLE_LEVELS: in none
    uint8_t *user;       // [n_blocks]
    /* Rings, the oldest behind their heads: [n_blocks + level] and [n_blocks + user]. Those of
     * users have ordinary blocks alone. */
    struct idle_link *by_level, *by_user;
    struct {
        int32_t n, most; // n: its idle blocks, those that count as released aside
    } users[IDLE_USERS];
};

void idle_order_init(struct idle_order *o, int32_t n_blocks);
void idle_order_deinit(struct idle_order *o);

static inline bool idle_order_has(const struct idle_order *o, int32_t block)
{
    return o->listed[block] != IDLE_LEVELS;
}

void idle_order_add(struct idle_order *o, int32_t block);
/* It is held again, and ordinary if it was released. */
void idle_order_remove(struct idle_order *o, int32_t block);
/* What it held is gone: ordinary, and nobody's. */
void idle_order_forget(struct idle_order *o, int32_t block);

/* The one to hand out next. There must be one. */
int32_t idle_order_first(struct idle_order *o);

/* An idle block becomes the last of its level. */
void idle_order_set_level(struct idle_order *o, int32_t block, int level);
/* It was kept and is ordinary, the first of them if it is idle: nobody has used it since. */
void idle_order_end_keep(struct idle_order *o, int32_t block);

/* Of a block that is not idle. 0: nobody's. */
void idle_order_set_user(struct idle_order *o, int32_t block, int32_t user);
void idle_order_set_most(struct idle_order *o, int32_t user, int32_t most);

/* The idle blocks of a level, from the newest on; -1: no more. */
int32_t idle_order_newest(const struct idle_order *o, int level);
int32_t idle_order_older(const struct idle_order *o, int32_t block);

/* Proves lists and counts. Aborts if not. For tests. */
void idle_order_check(const struct idle_order *o);

#endif
