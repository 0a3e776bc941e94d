// SPDX-License-Identifier: Apache-2.0
/* The holdings' part for the draft models' KV: which blocks have it, and who fills it. */
#include "engine/schedule/holdings.h"

#include "engine/base/minmax.h"

/* The number of rows that this sequence has to compute for the draft models' caches. Another
 * sequence may be computing those in shared blocks. */
int32_t holdings_draft_rows(struct holdings *h, struct sequence *seq, int32_t end)
{
    const int32_t *blocks = holdings_blocks(h, seq);
    int32_t size = h->limits->block_tokens, held = seq->n_blocks * size;
    held = lesser(held, end); // later rows will be this sequence's own
    while (seq->draft_computed % size == 0 && seq->draft_computed + size <= held &&
           h->draft_valid[blocks[seq->draft_computed / size]]) {
        seq->draft_computed += size;
    }
    int32_t reach = seq->draft_computed;
    for (int32_t b = reach / size; reach < held; b++) {
        int32_t *producer = &h->draft_producer[blocks[b]];
        bool shared = h->pool.refs[blocks[b]] > 1 || h->pool.cached[blocks[b]];
        if (shared && *producer >= 0 && *producer != seq->index) {
            end = reach;
            break;
        }
        *producer = seq->index;
        reach = (b + 1) * size;
    }
    return end - seq->draft_computed;
}

/* Marks blocks whose draft KV is complete, for all sequences that share them. */
void holdings_draft_fed(struct holdings *h, struct sequence *seq, int32_t end)
{
    if (seq->lane < 0) {
        return;
    }
    const int32_t *blocks = holdings_blocks(h, seq);
    int32_t size = h->limits->block_tokens;
    for (int32_t b = seq->draft_marked / size; (b + 1) * size <= end; b++) {
        h->draft_valid[blocks[b]] = true;
        if (h->draft_producer[blocks[b]] == seq->index) {
            h->draft_producer[blocks[b]] = -1;
        }
    }
    seq->draft_marked = end / size * size;
}
