// SPDX-License-Identifier: Apache-2.0
/* What a request says of the use of its tokens behind its end (struct cache_hint), as wishes for
 * the blocks that it leaves in the cache.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_HINTS_H
#define SLUICE_ENGINE_SCHEDULE_HINTS_H

struct holdings;
struct sequence;

/* The sequence ends: the full blocks of its first n_sure tokens are in the cache. */
void hints_apply(struct holdings *h, const struct sequence *seq, int n_sure);

#endif
