// SPDX-License-Identifier: Apache-2.0
/* Tracks how many leading blocks of each waiting sequence are in the prefix cache (its cached
 * front), without repeated lookups: a sequence is filed under the hash of the first missing block,
 * and moves on to the next when that block becomes valid. Used to find the waiting sequence with
 * the longest cached front.
 *
 * The tracked length may be too long, since evicted blocks are not reported; before acting on it
 * the caller looks up the sequence's blocks and reports the result (fronts_correct).
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_FRONTS_H
#define SLUICE_ENGINE_SCHEDULE_FRONTS_H

#include "engine/schedule/holdings.h"

struct fronts {
    struct holdings *holdings;
    struct sequence **buckets; // [n_buckets], lists by the hash of the missing block
    uint32_t n_buckets;
    struct sequence **heap; // [max_sequences]: the first is fronts_best
    int32_t n_heap;
};

void fronts_init(struct fronts *f, struct holdings *h, int32_t max_sequences);
void fronts_deinit(struct fronts *f);

/* Called when a sequence starts or stops waiting. Removing one that is not filed has no effect. */
void fronts_add(struct fronts *f, struct sequence *seq);
void fronts_remove(struct fronts *f, struct sequence *seq);

/* Of the waiting sequences with the best priority, the one with the longest cached front; among
 * equals the first in the order. NULL: none is filed. */
struct sequence *fronts_best(const struct fronts *f);

/* Called when a lookup has found that the front has another length. */
void fronts_correct(struct fronts *f, struct sequence *seq, const struct cached_front *front);

/* Called when the sequence's position in the order has changed. */
void fronts_reorder(struct fronts *f, struct sequence *seq);

#endif
