// SPDX-License-Identifier: Apache-2.0
/* An intrusive list with one lock between threads: any thread pushes, one thread takes the whole
 * list. An item is linked at most once; after a push it belongs to the taker.
 * Thread: push any; take one. */
#ifndef SLUICE_BASE_QUEUE_H
#define SLUICE_BASE_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct queue_link {
    struct queue_link *next;
};

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t not_empty;
    struct queue_link *head, **tail;
    bool woken; // queue_wake was called since the last wait
};

void queue_init(struct queue *q);
void queue_deinit(struct queue *q);

/* True if the queue was empty before, which tells the caller to wake the taker. */
bool queue_push(struct queue *q, struct queue_link *item);

/* Takes the whole list in push order, leaving the queue empty; NULL if it was empty. */
struct queue_link *queue_take_all(struct queue *q);

/* As above, but waits up to timeout_ns for an item or a wake (negative: for ever). */
struct queue_link *queue_wait_all(struct queue *q, int64_t timeout_ns);

/* Ends the current wait, or the next one, without an item. */
void queue_wake(struct queue *q);

#endif
