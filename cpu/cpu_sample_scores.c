// SPDX-License-Identifier: Apache-2.0
/* The scores of a draw before its temperature: bias, penalties, masks and bans. */
#include "cpu/cpu_sample.h"

#include <math.h>
#include <string.h>

static int32_t token_at(const struct known *k, int32_t i)
{
    return i < k->n_history ? k->history[i] : k->path[i - k->n_history];
}

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

/* The repetition penalty counts prompt and answer, the other two only the answer. All entries of
 * pad->count are 0 before and after. */
static void penalise(const struct sampling_params *p, const struct known *k, int32_t n_prompt,
                     int32_t n_vocab, const struct scratchpad *pad)
{
    int32_t n = k->n_history + k->n_path;
    bool repeats = p->repetition_penalty != 1.0f;
    bool counts = p->frequency_penalty != 0.0f || p->presence_penalty != 0.0f;
    for (int32_t i = 0; repeats && i < n; i++) {
        int32_t t = token_at(k, i);
        if (t >= 0 && t < n_vocab && pad->count[t] == 0) {
            pad->count[t] = 1;
            float s = pad->scores[t];
            pad->scores[t] = s > 0.0f ? s / p->repetition_penalty : s * p->repetition_penalty;
        }
    }
    for (int32_t i = 0; repeats && i < n; i++) {
        int32_t t = token_at(k, i);
        if (t >= 0 && t < n_vocab) {
            pad->count[t] = 0;
        }
    }
    for (int32_t i = n_prompt; counts && i < n; i++) {
        int32_t t = token_at(k, i);
        if (t >= 0 && t < n_vocab) {
            pad->count[t]++;
        }
    }
    for (int32_t i = n_prompt; counts && i < n; i++) {
        int32_t t = token_at(k, i);
        if (t >= 0 && t < n_vocab && pad->count[t] > 0) {
            float frequency = p->frequency_penalty * (float)pad->count[t];
            pad->scores[t] = pad->scores[t] - frequency;
            pad->scores[t] = pad->scores[t] - p->presence_penalty;
            pad->count[t] = 0;
        }
    }
}

static void ban(float *scores, int32_t token, int32_t n_vocab)
{
    if (token >= 0 && token < n_vocab) {
        scores[token] = -INFINITY;
    }
}

static void ban_words(const struct sampling_params *p, const struct known *k, float *scores,
                      int32_t n_vocab)
{
    int32_t n = k->n_history + k->n_path;
    const int32_t *word = p->bad_word_tokens;
    for (int32_t w = 0; w < p->n_bad_words; word += p->bad_word_lengths[w++]) {
        int32_t tail = p->bad_word_lengths[w] - 1, i = 0;
        while (i < tail && tail <= n && token_at(k, n - tail + i) == word[i]) {
            i++;
        }
        if (i == tail) {
            ban(scores, word[tail], n_vocab);
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

static void keep_masked(const uint32_t *mask, float *scores, int32_t n_vocab)
{
    for (int32_t t = 0; mask && t < n_vocab; t++) {
        if (!(mask[t / 32] >> (t % 32) & 1)) {
            scores[t] = -INFINITY;
        }
    }
}

void cpu_make_scores(const struct lane *lane, const struct pass_draw *d, const struct known *k,
                     const float *logits, int32_t n_vocab, const uint32_t *mask, enum bans bans,
                     const struct scratchpad *pad)
{
    const struct sampling_params *p = &lane->params;
    memcpy(pad->scores, logits, (size_t)n_vocab * sizeof *logits);
    for (int32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token >= 0 && p->bias[i].token < n_vocab) {
            pad->scores[p->bias[i].token] += p->bias[i].bias;
        }
    }
    penalise(p, k, d->n_prompt, n_vocab, pad);
    keep_masked(mask, pad->scores, n_vocab); // this is not a ban, so it is never dropped
    if (bans == NO_BANS) {
        return;
    }
    if (p->n_allowed > 0) {
        keep_masked(lane->allowed, pad->scores, n_vocab);
    }
    ban_words(p, k, pad->scores, n_vocab);
    bool too_soon = bans == ALL_BANS && d->pos + 1 - d->n_prompt < p->min_tokens;
    for (int32_t i = 0; too_soon && i < p->n_stop_ids; i++) {
        ban(pad->scores, p->stop_ids[i], n_vocab);
    }
}

bool cpu_is_plain(const struct sampling_params *p, const struct pass_draw *d)
{
    return p->n_bias == 0 && p->repetition_penalty == 1.0f && p->frequency_penalty == 0.0f &&
           p->presence_penalty == 0.0f && p->n_allowed == 0 && p->n_bad_words == 0 &&
           d->mask == 0 && (p->n_stop_ids == 0 || d->pos + 1 - d->n_prompt >= p->min_tokens);
}
