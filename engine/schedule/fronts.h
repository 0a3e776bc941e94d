// SPDX-License-Identifier: Apache-2.0
/* How much of each waiting sequence's tokens the prefix cache has, known at all times without
 * looking each of them up again: a sequence is filed under the block that its cached front lacks
 * next, and moves on when that block turns valid. From this: who of those that wait has most in the
 * cache.
 *
 * What is known may be too much, since blocks leave the cache silently; who acts on it looks the
 * sequence up, and says what it found (fronts_correct).
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_FRONTS_H
#define SLUICE_ENGINE_SCHEDULE_FRONTS_H

#include "engine/schedule/holdings.h"

struct fronts {
    struct holdings *holdings;
    struct sequence **buckets; // [n_buckets], lists by the hash of the block that is lacking
    uint32_t n_buckets;
    struct sequence **heap; // [max_sequences]: the first is fronts_best
    int32_t n_heap;
};

void fronts_init(struct fronts *f, struct holdings *h, int32_t max_sequences);
void fronts_deinit(struct fronts *f);

/* A sequence begins to wait, or does so no longer. Nothing is done for one that is not filed. */
void fronts_add(struct fronts *f, struct sequence *seq);
void fronts_remove(struct fronts *f, struct sequence *seq);

/* Of the waiting ones with the first priority the one with the longest cached front, and among
 * equals the first in the order. NULL: none is filed. */
struct sequence *fronts_best(const struct fronts *f);

/* A look-up found another front. */
void fronts_correct(struct fronts *f, struct sequence *seq, const struct cached_front *front);

/* Its place in the order has changed. */
void fronts_reorder(struct fronts *f, struct sequence *seq);

#endif
