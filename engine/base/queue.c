// SPDX-License-Identifier: Apache-2.0
/* See queue.h. The condition uses the monotonic clock, so a change of the wall clock does not
 * prolong a wait. */
#include "engine/base/queue.h"

#include <stddef.h>
#include <time.h>

void queue_init(struct queue *q)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->not_empty, &attr);
    pthread_condattr_destroy(&attr);
    q->head = NULL;
    q->tail = &q->head;
    q->woken = false;
}

void queue_deinit(struct queue *q)
{
    pthread_cond_destroy(&q->not_empty);
    pthread_mutex_destroy(&q->lock);
}

/* Returns true if the queue was empty: only then may the taker be asleep. */
bool queue_push(struct queue *q, struct queue_link *item)
{
    item->next = NULL;
    pthread_mutex_lock(&q->lock);
    bool was_empty = q->head == NULL;
    *q->tail = item;
    q->tail = &item->next;
    pthread_cond_signal(&q->not_empty);
    pthread_mutex_unlock(&q->lock);
    return was_empty;
}

static struct queue_link *take_locked(struct queue *q)
{
    struct queue_link *list = q->head;
    q->head = NULL;
    q->tail = &q->head;
    return list;
}

struct queue_link *queue_take_all(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    struct queue_link *list = take_locked(q);
    pthread_mutex_unlock(&q->lock);
    return list;
}

/* Takes everything at once, so that one lock serves many items. Returns NULL after the timeout or a
 * wake. */
struct queue_link *queue_wait_all(struct queue *q, int64_t timeout_ns)
{
    struct timespec until;
    if (timeout_ns >= 0) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += timeout_ns / 1000000000;
        until.tv_nsec += timeout_ns % 1000000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
    }
    pthread_mutex_lock(&q->lock);
    int rc = 0;
    while (!q->head && !q->woken && rc == 0) {
        if (timeout_ns < 0) {
            rc = pthread_cond_wait(&q->not_empty, &q->lock);
        } else {
            rc = pthread_cond_timedwait(&q->not_empty, &q->lock, &until);
        }
    }
    struct queue_link *list = take_locked(q);
    q->woken = false;
    pthread_mutex_unlock(&q->lock);
    return list;
}

/* Wakes the taker although there is no item: it has something else to look at, and may be waiting
 * without a timeout. */
void queue_wake(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->woken = true;
    pthread_cond_signal(&q->not_empty);
    pthread_mutex_unlock(&q->lock);
}
