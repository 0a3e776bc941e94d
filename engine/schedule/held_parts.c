// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/held_parts.h"

#include "engine/base/minmax.h"

/* With recurrent state there are no parts, because a sequence continues only from a boundary. A
 * sequence that waits for the producer of its next block needs none. */
void held_parts_find(const struct holdings *h, const struct sequence *seq,
                     struct cached_front *front)
{
    const struct scheduler_limits *l = h->limits;
    int32_t first = front->n_blocks * l->block_tokens, tokens[MAX_BLOCK_TOKENS];
    // The last token's row is always computed.
    int32_t n = lesser(l->block_tokens, seq->n_known - 1 - first);
    if (l->match_unit >= l->block_tokens || l->state_block > 0 || front->producer >= 0 ||
        n < l->match_unit) {
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = sequence_token(seq, first + i);
    }
    front->part = prefix_cache_closest(&h->cache, front->chain, tokens, n, &n);
    front->n_part = n - n % l->match_unit;
}

void holdings_spare_part(struct holdings *h, struct cached_front *front, int32_t n_blocks)
{
    if (front->n_part > 0 && holdings_available(h) < n_blocks) {
        kv_pool_release(&h->pool, front->part);
        front->n_part = 0;
    }
}

void held_parts_begin(struct holdings *h, const struct sequence *seq,
                      const struct cached_front *front)
{
    if (front->n_part > 0) {
        int32_t to = holdings_blocks(h, seq)[front->n_blocks];
        h->pending_parts[h->n_pending_parts++] = (struct pending_part){seq, {front->part, to}};
        retention_used(&h->retention, front->part, retention_owner(&h->retention, seq->request));
    }
}

void held_parts_drop(struct holdings *h, const struct sequence *seq)
{
    for (int32_t i = h->n_pending_parts - 1; i >= 0; i--) {
        if (h->pending_parts[i].seq == seq) {
            kv_pool_release(&h->pool, h->pending_parts[i].copy.from);
            h->pending_parts[i] = h->pending_parts[--h->n_pending_parts];
        }
    }
}

/* Steps copy before they compute rows, and nothing is allocated after this in the same plan, so the
 * blocks keep their content until then. */
void held_parts_plan(struct holdings *h, struct plan *p)
{
    for (int32_t i = 0; i < h->n_pending_parts; i++) {
        p->copies[p->n_copies++] = h->pending_parts[i].copy;
        kv_pool_release(&h->pool, h->pending_parts[i].copy.from);
    }
    h->n_pending_parts = 0;
}
