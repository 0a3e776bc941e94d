// SPDX-License-Identifier: Apache-2.0
/* The order in which idle blocks are reused: by level, then by age. Blocks are linked by id into
 * one ring per level and one per user; each ring has a head. */
#include "engine/schedule/idle_order.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

/* Creates empty rings; their heads are at the indices from n_blocks on. */
static struct idle_link *rings(int32_t n_blocks, int32_t n_heads)
{
    struct idle_link *l = xcalloc((size_t)n_blocks + (size_t)n_heads, sizeof *l);
    for (int32_t i = n_blocks; i < n_blocks + n_heads; i++) {
        l[i] = (struct idle_link){i, i};
    }
    return l;
}

/* Inserts i after `after` in its ring. */
static void put(struct idle_link *l, int32_t after, int32_t i)
{
    l[i] = (struct idle_link){after, l[after].next};
    l[l[i].next].prev = i;
    l[after].next = i;
}

static void cut(struct idle_link *l, int32_t i)
{
    l[l[i].prev].next = l[i].next;
    l[l[i].next].prev = l[i].prev;
}

void idle_order_init(struct idle_order *o, int32_t n_blocks)
{
    size_t n = (size_t)n_blocks;
    *o = (struct idle_order){.n_blocks = n_blocks, .lowest = IDLE_LEVELS};
    o->level = xmalloc(n);
    o->listed = xmalloc(n);
    o->user = xcalloc(n, 1);
    memset(o->level, IDLE_ORDINARY, n);
    memset(o->listed, IDLE_LEVELS, n);
    o->by_level = rings(n_blocks, IDLE_LEVELS);
    o->by_user = rings(n_blocks, IDLE_USERS);
    for (int32_t u = 0; u < IDLE_USERS; u++) {
        o->users[u].most = n_blocks;
    }
}

void idle_order_deinit(struct idle_order *o)
{
    free(o->level);
    free(o->listed);
    free(o->user);
    free(o->by_level);
    free(o->by_user);
    *o = (struct idle_order){0};
}

/* ---- list membership ------------------------------------------------------------------------ */

/* A user's ring contains its ordinary blocks, which are released first when its share shrinks. Kept
 * blocks also count towards the share, but are not in the ring. */
static void unlist(struct idle_order *o, int32_t block)
{
    int level = o->listed[block], user = o->user[block];
    cut(o->by_level, block);
    o->users[user].n -= level != IDLE_RELEASED;
    if (level == IDLE_ORDINARY) {
        cut(o->by_user, block);
    }
    o->listed[block] = IDLE_LEVELS;
}

/* Inserts at the end of the level's list, or at its start. */
static void list(struct idle_order *o, int32_t block, int level, bool first)
{
    int32_t head = o->n_blocks + level, user = o->user[block], of_user = o->n_blocks + user;
    put(o->by_level, first ? head : o->by_level[head].prev, block);
    o->users[user].n += level != IDLE_RELEASED;
    if (level == IDLE_ORDINARY) {
        put(o->by_user, first ? of_user : o->by_user[of_user].prev, block);
    }
    o->listed[block] = (uint8_t)level;
    o->lowest = lesser(level, o->lowest);
}

/* A user's blocks beyond its limit count as released, the oldest first. */
static void trim(struct idle_order *o, int32_t user)
{
    int32_t head = o->n_blocks + user;
    while (o->users[user].n > o->users[user].most && o->by_user[head].next != head) {
        int32_t oldest = o->by_user[head].next;
        unlist(o, oldest);
        list(o, oldest, IDLE_RELEASED, false);
    }
}

/* Appends the block to its level as the newest. If its user now has more than its share, the user's
 * oldest blocks become released. */
void idle_order_add(struct idle_order *o, int32_t block)
{
    ASSERT(!idle_order_has(o, block));
    list(o, block, o->level[block], false);
    o->n++;
    trim(o, o->user[block]);
}

/* A released block that is used again becomes ordinary. */
void idle_order_remove(struct idle_order *o, int32_t block)
{
    ASSERT(idle_order_has(o, block));
    unlist(o, block);
    o->n--;
    if (o->level[block] == IDLE_RELEASED) {
        o->level[block] = IDLE_ORDINARY;
    }
}

void idle_order_forget(struct idle_order *o, int32_t block)
{
    ASSERT(!idle_order_has(o, block));
    o->level[block] = IDLE_ORDINARY;
    o->user[block] = 0;
}

/* No level below `lowest` has blocks, so the search starts there and goes up. */
int32_t idle_order_first(struct idle_order *o)
{
    ASSERT(o->n > 0);
    while (o->by_level[o->n_blocks + o->lowest].next == o->n_blocks + o->lowest) {
        o->lowest++;
    }
    return o->by_level[o->n_blocks + o->lowest].next;
}

/* ---- levels of blocks ----------------------------------------------------------------------- */

/* An idle block moves to the ring of its new level. For a held block the level is only recorded. */
static void set_level(struct idle_order *o, int32_t block, int level, bool first)
{
    o->level[block] = (uint8_t)level;
    if (idle_order_has(o, block)) {
        unlist(o, block);
        list(o, block, level, first);
        trim(o, o->user[block]);
    }
}

void idle_order_set_level(struct idle_order *o, int32_t block, int level)
{
    ASSERT(level >= 0 && level < IDLE_LEVELS);
    set_level(o, block, level, false);
}

void idle_order_end_keep(struct idle_order *o, int32_t block)
{
    ASSERT(o->level[block] >= IDLE_KEPT);
    set_level(o, block, IDLE_ORDINARY, true);
}

void idle_order_set_user(struct idle_order *o, int32_t block, int32_t user)
{
    ASSERT(!idle_order_has(o, block) && user >= 0 && user < IDLE_USERS);
    o->user[block] = (uint8_t)user;
}

void idle_order_set_most(struct idle_order *o, int32_t user, int32_t most)
{
    o->users[user].most = most;
    trim(o, user);
}

int32_t idle_order_newest(const struct idle_order *o, int level)
{
    int32_t newest = o->by_level[o->n_blocks + level].prev;
    return newest < o->n_blocks ? newest : -1;
}

int32_t idle_order_older(const struct idle_order *o, int32_t block)
{
    int32_t older = o->by_level[block].prev;
    return older < o->n_blocks ? older : -1;
}

/* ---- checks --------------------------------------------------------------------------------- */

/* For tests: rings are consistent, and all counts are right. */
void idle_order_check(const struct idle_order *o)
{
    int32_t n = 0, n_ordinary = 0, of_users[IDLE_USERS] = {0};
    for (int level = 0; level < IDLE_LEVELS; level++) {
        for (int32_t b = idle_order_newest(o, level); b >= 0; b = idle_order_older(o, b)) {
            ASSERT(o->listed[b] == level && level >= o->lowest);
            ASSERT(o->level[b] == level || level == IDLE_RELEASED);
            ASSERT(o->by_level[o->by_level[b].prev].next == b);
            of_users[o->user[b]] += level != IDLE_RELEASED;
            n_ordinary += level == IDLE_ORDINARY;
            n++;
        }
    }
    for (int32_t u = 0; u < IDLE_USERS; u++) {
        int32_t head = o->n_blocks + u;
        for (int32_t b = o->by_user[head].next; b != head; b = o->by_user[b].next) {
            ASSERT(o->user[b] == u && o->listed[b] == IDLE_ORDINARY);
            n_ordinary--;
        }
        ASSERT(of_users[u] == o->users[u].n);
        ASSERT(o->users[u].n <= o->users[u].most || o->by_user[head].next == head);
    }
    ASSERT(n == o->n && n_ordinary == 0);
}
