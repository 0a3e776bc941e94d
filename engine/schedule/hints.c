// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/hints.h"

#include "engine/schedule/holdings.h"

/* The hinted priority for tokens [first, end); -1: no hint. Everything before a kept token is kept
 * as well, because the token could not be found otherwise. A block is released only if a hint
 * releases all of it. */
static int32_t hinted_priority(const struct sequence *seq, int32_t first, int32_t end,
                               int64_t *duration_ns)
{
    const struct engine_request *q = seq->request;
    int32_t priority = -1;
    for (int32_t i = 0; i < q->n_hints; i++) {
        const struct cache_hint *hint = &q->hints[i];
        int32_t from = hint->start == HINT_OUTPUT ? seq->n_prompt : hint->start;
        bool covers;
        if (hint->priority > 0) {
            covers = first < hint->end;
        } else {
            covers = first >= from && end <= hint->end;
        }
        if (covers && hint->priority > priority) {
            priority = hint->priority;
            *duration_ns = hint->duration_ns;
        }
    }
    return priority;
}

void hints_apply(struct holdings *h, const struct sequence *seq, int n_sure)
{
    int32_t size = h->limits->block_tokens, n = n_sure / size, room[MAX_BLOCK_TOKENS];
    if (seq->request->n_hints == 0 || !h->limits->prefix_cache) {
        return;
    }
    int32_t owner = retention_owner(&h->retention, seq->request);
    uint64_t chain = seq->root;
    // False after a block that is not kept: later blocks could not be found without it.
    bool may_keep = true;
    for (int32_t i = 0; i < n; i++) {
        int64_t duration_ns = 0;
        int32_t priority = hinted_priority(seq, i * size, (i + 1) * size, &duration_ns);
        int32_t block = prefix_cache_find(&h->cache, chain, holdings_block_tokens(h, seq, i, room));
        if (block < 0) {
            return;
        }
        chain = h->cache.nodes[block].uid;
        if (priority == 0 || (priority > 0 && may_keep)) {
            may_keep &= retention_apply(&h->retention, block, owner, priority, duration_ns);
        }
    }
}
