// SPDX-License-Identifier: Apache-2.0
/* Applies a request's hints about the later use of its tokens (struct cache_hint) to the blocks
 * that the request leaves in the cache.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_HINTS_H
#define SLUICE_ENGINE_SCHEDULE_HINTS_H

struct holdings;
struct sequence;

/* Called when the sequence ends: the full blocks of its first n_sure tokens are in the cache. */
void hints_apply(struct holdings *h, const struct sequence *seq, int n_sure);

#endif
