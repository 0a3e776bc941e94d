// SPDX-License-Identifier: Apache-2.0
/* What the scores of a draw depend on (engine/device/scores.h). */
#include "cpu/cpu_sample.h"

#include <string.h>

void cpu_find_known(const struct cpu_backend *cpu, const struct pass_draw *d, struct known *k)
{
    k->history = cpu->lanes[d->lane].history;
    k->n_history = d->pos + 1;
    k->n_path = 0;
    if (d->tree_row < 0) {
        return;
    }
    const struct pass *pass = cpu->pass;
    ASSERT(d->tree_row < pass->n_rows && pass->tree_mask);
    const struct pass_seq *seq = &pass->seqs[cpu->row_seq[d->tree_row]];
    const uint64_t *mask = pass->tree_mask + (int64_t)d->tree_row * TREE_MASK_WORDS;
    k->n_history = seq->n_past;
    for (int32_t i = 0; i < seq->n_rows; i++) {
        if (mask[i / 64] >> (i % 64) & 1) {
            k->path[k->n_path++] = cpu->row_tokens[seq->first_row + i];
        }
    }
}

/* The draw's own mask: NULL if it has none. */
const uint32_t *cpu_mask_of(const struct cpu_backend *cpu, const struct pass_draw *d)
{
    if (d->mask > 0) {
        return cpu->pass->masks + (int64_t)(d->mask - 1) * mask_words(cpu->limits.vocab);
    }
    return NULL;
}

void cpu_make_scores(const struct lane *lane, const struct pass_draw *d, const struct known *k,
                     const float *logits, int32_t n_vocab, const uint32_t *mask, enum bans bans,
                     const struct scratchpad *pad)
{
    const struct sampling_params *p = &lane->params;
    const struct score_tokens tokens = {k->history, k->path, k->n_history, k->n_path, d->n_prompt};
    const struct score_masks masks = {mask, p->n_allowed > 0 ? lane->allowed : NULL};
    memcpy(pad->scores, logits, (size_t)n_vocab * sizeof *logits);
    scores_make(pad->scores, n_vocab, p, &tokens, &masks, bans, pad->count);
}

bool cpu_is_plain(const struct sampling_params *p, const struct pass_draw *d)
{
    return d->mask == 0 && scores_are_logits(p, d->pos + 1 - d->n_prompt);
}
