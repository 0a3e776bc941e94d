// SPDX-License-Identifier: Apache-2.0
/* A hashed timer wheel: O(1) to start and stop a timer, which every request does. A slot holds all
 * timers whose tick is congruent to it modulo N_WHEEL; those not yet due are checked again one turn
 * later. */
#include "engine/base/minmax.h"
#include "server/http/private.h"

static void unlink_timer(struct http_server *s, struct http_timer *t)
{
    *t->link = t->next;
    if (t->next) {
        t->next->link = t->link;
    }
    t->link = NULL;
    t->next = NULL;
    s->n_timers--;
}

void http_timer_start(struct http_server *s, struct http_timer *t, int64_t delay_ms,
                      void (*on_due)(struct http_timer *timer, void *arg), void *arg)
{
    if (t->link) {
        unlink_timer(s, t);
    }
    int64_t since = clock_now_ns() - s->tick_base_ns;
    int64_t due = since + greater(delay_ms, 0) * 1000000;
    t->due_tick = due / (TICK_MS * 1000000LL) + 1;
    if (t->due_tick <= s->tick_now) {
        t->due_tick = s->tick_now + 1;
    }
    t->on_due = on_due;
    t->arg = arg;
    struct http_timer **slot = &s->wheel[t->due_tick % N_WHEEL];
    t->next = *slot;
    t->link = slot;
    if (t->next) {
        t->next->link = &t->next;
    }
    *slot = t;
    s->n_timers++;
}

void http_timer_stop(struct http_server *s, struct http_timer *t)
{
    if (t->link) {
        unlink_timer(s, t);
    }
}

/* Callbacks may start and stop any timer, so each due one is removed before its call and the slot
 * is searched again; a restarted timer is due at a later tick. */
static void run_slot(struct http_server *s, int64_t tick)
{
    struct http_timer **slot = &s->wheel[tick % N_WHEEL];
    struct http_timer *due = NULL;
    for (struct http_timer *t = *slot, *next; t; t = next) {
        next = t->next;
        if (t->due_tick <= tick) {
            unlink_timer(s, t);
            t->next = due;
            t->link = &due;
            if (due) {
                due->link = &t->next;
            }
            due = t;
            s->n_timers++;
        }
    }
    while (due) {
        struct http_timer *t = due;
        unlink_timer(s, t);
        t->on_due(t, t->arg);
    }
}

void http_timers_tick(struct http_server *s)
{
    int64_t now = (clock_now_ns() - s->tick_base_ns) / (TICK_MS * 1000000LL);
    while (s->tick_now < now) {
        s->tick_now++;
        run_slot(s, s->tick_now);
    }
}
