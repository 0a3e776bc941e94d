// SPDX-License-Identifier: Apache-2.0
/* N-gram lookup: proposes the tokens that followed the latest earlier occurrence of the text's
 * suffix. It costs no pass. */
#include "engine/speculate/proposer.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

int32_t ngram_find(const int32_t *known, int32_t n, int32_t min_n, int32_t max_n, int32_t k,
                   int32_t *drafts)
{
    int32_t best = 0, best_end = -1, last = n > 0 ? known[n - 1] : -1;
    for (int32_t end = n - 2; end >= 0 && best < max_n; end--) {
        if (known[end] != last) {
            continue;
        }
        int32_t length = 1;
        while (length < max_n && length <= end && known[end - length] == known[n - 1 - length]) {
            length++;
        }
        if (length > best) {
            best = length;
            best_end = end;
        }
    }
    if (best < min_n) {
        return 0;
    }
    int32_t count = lesser(n - 1 - best_end, k);
    memcpy(drafts, known + best_end + 1, (size_t)count * sizeof *drafts);
    return count;
}

void ngram_open(struct spec *sp, int32_t max_len)
{
    sp->known = xcalloc((size_t)max_len, sizeof *sp->known);
}

void ngram_close(struct spec *sp)
{
    free(sp->known);
    sp->known = NULL;
}

/* Joins prompt and output, which are separate arrays, for the search. */
int32_t ngram_look_up(struct spec *sp, const struct sequence *seq, int32_t k, int32_t *drafts)
{
    memcpy(sp->known, seq->request->prompt, (size_t)seq->n_prompt * sizeof *sp->known);
    memcpy(sp->known + seq->n_prompt, seq->output->tokens,
           (size_t)sequence_generated(seq) * sizeof *sp->known);
    return ngram_find(sp->known, seq->n_known, sp->options.min_n, sp->options.max_n, k, drafts);
}

static void propose_for(struct spec *sp, struct spec_candidate *c)
{
    struct proposal *p = c->proposal;
    p->n_drafts = ngram_look_up(sp, c->seq, c->depth, p->drafts);
    p->on_device = false;
    // Synthetic acceptance does not look at the token.
    if (sp->options.rejection == REJECT_SYNTHETIC && p->n_drafts == 0) {
        for (; p->n_drafts < c->depth; p->n_drafts++) {
            p->drafts[p->n_drafts] = sequence_token(c->seq, c->seq->n_known - 1);
        }
    }
    if (p->n_drafts == 0) {
        c->trust->pause = 2; // no match here; the next attempt is after a short pause
    }
}

static void propose(struct spec *sp, const struct spec_view *v)
{
    for (int32_t i = 0; i < v->n; i++) {
        if (v->seqs[i].ready && v->seqs[i].depth > 0) {
            propose_for(sp, &v->seqs[i]);
        }
    }
}

/* prompt_lookup_min and _max are read with the common options, because trees use n-gram lookup as
 * well. */
const struct proposer proposer_ngram = {.name = "ngram",
                                        .open = ngram_open,
                                        .close = ngram_close,
                                        .propose = propose,
                                        .observe = chain_observe};
