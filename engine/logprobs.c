// SPDX-License-Identifier: Apache-2.0
#include "engine/logprobs.h"

#include "engine/base/minmax.h"
#include "engine/device/scores.h"

#include <math.h>
#include <string.h>

/* True if entry a comes after entry b in the answer: it is less likely, or equally likely with a
 * higher id. */
static bool is_after(const struct token_logprobs *t, int32_t a, int32_t b)
{
    if (t->top_logprobs[a] != t->top_logprobs[b]) {
        return t->top_logprobs[a] < t->top_logprobs[b];
    }
    return t->top_ids[a] > t->top_ids[b];
}

static void swap(struct token_logprobs *t, int32_t a, int32_t b)
{
    float value = t->top_logprobs[a];
    int32_t id = t->top_ids[a];
    t->top_logprobs[a] = t->top_logprobs[b];
    t->top_ids[a] = t->top_ids[b];
    t->top_logprobs[b] = value;
    t->top_ids[b] = id;
}

/* The first n entries are a heap whose first entry comes last in the answer. */
static void sift(struct token_logprobs *t, int32_t at, int32_t n)
{
    for (int32_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && is_after(t, child + 1, child)) {
            child++;
        }
        if (!is_after(t, child, at)) {
            return;
        }
        swap(t, at, child);
        at = child;
    }
}

/* The likeliest of a row in order. The lists of the answer are the heap itself. */
static void take_likeliest(struct token_logprobs *t, const float *row, int32_t vocab, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        t->top_ids[i] = i;
        t->top_logprobs[i] = row[i];
    }
    for (int32_t i = n / 2 - 1; i >= 0; i--) {
        sift(t, i, n);
    }
    for (int32_t i = n; i < vocab && n > 0; i++) {
        if (row[i] > t->top_logprobs[0]) { // an equal one has a higher id than any in the heap
            t->top_ids[0] = i;
            t->top_logprobs[0] = row[i];
            sift(t, 0, n);
        }
    }
    for (int32_t i = n - 1; i > 0; i--) {
        swap(t, 0, i);
        sift(t, 0, i);
    }
}

static void take_row(struct token_logprobs *out, const float *row, int32_t vocab,
                     const struct logprobs_wanted *wanted)
{
    if (wanted->ids) {
        out->n_top = wanted->n;
        for (int32_t i = 0; i < out->n_top; i++) {
            const int32_t id = wanted->ids[i];
            out->top_ids[i] = id;
            out->top_logprobs[i] = id < 0 ? -INFINITY : row[id];
        }
        return;
    }
    out->n_top = lesser(wanted->n, vocab);
    take_likeliest(out, row, vocab, out->n_top);
}

void logprobs_fill(struct token_logprobs *out, const struct draw_result *d, const float *row,
                   int32_t vocab, const struct logprobs_wanted *wanted)
{
    out->logprob = d->logprob;
    if (row) {
        take_row(out, row, vocab, wanted);
        for (int32_t i = 0; i < out->n_top; i++) {
            out->top_logprobs[i] -= d->log_total;
        }
        return;
    }
    out->n_top = d->n_top;
    for (int32_t i = 0; i < d->n_top && out->top_ids; i++) {
        out->top_ids[i] = d->top_ids[i];
        out->top_logprobs[i] = d->top_logprobs[i];
    }
}

static float greatest(const float *v, int32_t n)
{
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        max = v[i] > max ? v[i] : max;
    }
    return max;
}

/* The bit set of allowed ids. */
static const uint32_t *allowed_of(const struct sampling_params *p, int32_t vocab, uint32_t *bits)
{
    if (p->n_allowed == 0) {
        return NULL;
    }
    memset(bits, 0, (size_t)mask_words(vocab) * sizeof *bits);
    for (int32_t i = 0; i < p->n_allowed; i++) {
        bits[p->allowed[i] / 32] |= 1u << (p->allowed[i] % 32);
    }
    return bits;
}

/* Makes the scores that the token was drawn from. Returns the greatest of them. */
static float make_scores(const struct drawn_row *row, const struct logprobs_scratch *scratch)
{
    const struct sequence *seq = row->seq;
    const struct sampling_params *p = &seq->request->params;
    const struct score_tokens tokens = {.first = seq->request->prompt,
                                        .n_first = seq->n_prompt,
                                        .rest = seq->output->tokens,
                                        .n_rest = sequence_generated(seq),
                                        .n_prompt = seq->n_prompt};
    const struct score_masks masks = {row->mask, allowed_of(p, row->vocab, scratch->allowed)};
    float max = -INFINITY;
    for (int bans = ALL_BANS; bans >= NO_BANS && !(max > -INFINITY); bans--) {
        memcpy(scratch->scores, row->logits, (size_t)row->n_used * sizeof *row->logits);
        scores_make(scratch->scores, row->n_used, p, &tokens, &masks, (enum bans)bans,
                    scratch->count);
        max = greatest(scratch->scores, row->n_used);
    }
    return max;
}

void logprobs_fill_processed(struct token_logprobs *out, const struct draw_result *d,
                             const struct drawn_row *row, const struct logprobs_wanted *wanted,
                             const struct logprobs_scratch *scratch)
{
    const float max = make_scores(row, scratch);
    double total = 0;
    for (int32_t i = 0; i < row->n_used; i++) {
        total += exp((double)scratch->scores[i] - (double)max);
    }
    for (int32_t i = row->n_used; i < row->vocab; i++) {
        scratch->scores[i] = -INFINITY;
    }
    struct draw_result processed = *d;
    processed.log_total = max + (float)log(total);
    processed.logprob = scratch->scores[d->token] - processed.log_total;
    logprobs_fill(out, &processed, scratch->scores, row->vocab, wanted);
}
