// SPDX-License-Identifier: Apache-2.0
#include "engine/device/scores.h"

#include <math.h>

static int32_t token_at(const struct score_tokens *k, int32_t i)
{
    return i < k->n_first ? k->first[i] : k->rest[i - k->n_first];
}

/* The repetition penalty counts prompt and answer, the other two only the answer. All entries of
 * `count` are 0 before and after. */
static void penalise(const struct sampling_params *p, const struct score_tokens *k, float *scores,
                     int32_t n_vocab, uint32_t *count)
{
    int32_t n = k->n_first + k->n_rest;
    bool repeats = p->repetition_penalty != 1.0f;
    bool counts = p->frequency_penalty != 0.0f || p->presence_penalty != 0.0f;
    for (int32_t i = 0; repeats && i < n; i++) {
        int32_t t = token_at(k, i);
        if (t >= 0 && t < n_vocab && count[t] == 0) {
            count[t] = 1;
            float s = scores[t];
            scores[t] = s > 0.0f ? s / p->repetition_penalty : s * p->repetition_penalty;
        }
    }
    for (int32_t i = 0; repeats && i < n; i++) {
        int32_t t = token_at(k, i);
        if (t >= 0 && t < n_vocab) {
            count[t] = 0;
        }
    }
    for (int32_t i = k->n_prompt; counts && i < n; i++) {
        int32_t t = token_at(k, i);
        if (t >= 0 && t < n_vocab) {
            count[t]++;
        }
    }
    for (int32_t i = k->n_prompt; counts && i < n; i++) {
        int32_t t = token_at(k, i);
        if (t >= 0 && t < n_vocab && count[t] > 0) {
            float frequency = p->frequency_penalty * (float)count[t];
            scores[t] = scores[t] - frequency;
            scores[t] = scores[t] - p->presence_penalty;
            count[t] = 0;
        }
    }
}

static void ban(float *scores, int32_t token, int32_t n_vocab)
{
    if (token >= 0 && token < n_vocab) {
        scores[token] = -INFINITY;
    }
}

static void ban_words(const struct sampling_params *p, const struct score_tokens *k, float *scores,
                      int32_t n_vocab)
{
    int32_t n = k->n_first + k->n_rest;
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

static void keep_masked(const uint32_t *mask, float *scores, int32_t n_vocab)
{
    for (int32_t t = 0; mask && t < n_vocab; t++) {
        if (!(mask[t / 32] >> (t % 32) & 1)) {
            scores[t] = -INFINITY;
        }
    }
}

void scores_make(float *scores, int32_t n_vocab, const struct sampling_params *p,
                 const struct score_tokens *k, const struct score_masks *masks, enum bans bans,
                 uint32_t *count)
{
    for (int32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token >= 0 && p->bias[i].token < n_vocab) {
            scores[p->bias[i].token] += p->bias[i].bias;
        }
    }
    penalise(p, k, scores, n_vocab, count);
    keep_masked(masks->mask, scores, n_vocab);
    if (bans == NO_BANS) {
        return;
    }
    keep_masked(masks->allowed, scores, n_vocab);
    ban_words(p, k, scores, n_vocab);
    bool too_soon = bans == ALL_BANS && k->n_first + k->n_rest - k->n_prompt < p->min_tokens;
    for (int32_t i = 0; too_soon && i < p->n_stop_ids; i++) {
        ban(scores, p->stop_ids[i], n_vocab);
    }
}

bool scores_are_logits(const struct sampling_params *p, int32_t n_drawn)
{
    return p->n_bias == 0 && p->repetition_penalty == 1.0f && p->frequency_penalty == 0.0f &&
           p->presence_penalty == 0.0f && p->n_allowed == 0 && p->n_bad_words == 0 &&
           (p->n_stop_ids == 0 || n_drawn >= p->min_tokens);
}
