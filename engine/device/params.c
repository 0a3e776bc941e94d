// SPDX-License-Identifier: Apache-2.0
/* Sampling parameters: defaults, and the limits that the samplers of all backends rely on. */
#include "engine/device/params.h"

#include <math.h>

struct sampling_params sampling_params_default(void)
{
    return (struct sampling_params){
        .temperature = 1.0f,
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .max_tokens = 16,
        .num_speculative_tokens = -1,
    };
}

/* Ids are checked once, here, so that samplers may use them as indices. */
static enum status check_ids(const char *name, const int32_t *ids, int32_t n, int32_t max_n,
                             int32_t vocab, struct err *err)
{
    if (n < 0 || n > max_n) {
        return err_set(err, ERR_INVALID, "%s: at most %d entries are supported", name, max_n);
    }
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab) {
            return err_set(err, ERR_INVALID, "%s: %d is not a token id (0 to %d)", name, ids[i],
                           vocab - 1);
        }
    }
    return OK;
}

/* The condition is written so that NaN counts as out of range, too. */
static enum status check_range(const char *name, double v, double low, double high, struct err *err)
{
    if (!(v >= low && v <= high)) {
        return err_set(err, ERR_INVALID, "%s: %g is not between %g and %g", name, v, low, high);
    }
    return OK;
}

/* Lists of ids: their lengths, and that every id is in the vocabulary. */
static enum status check_lists(const struct sampling_params *p, int32_t vocab, struct err *err)
{
    TRY(check_ids("stop_token_ids", p->stop_ids, p->n_stop_ids, MAX_STOP_IDS, vocab, err));
    TRY(check_ids("allowed_token_ids", p->allowed, p->n_allowed, vocab, vocab, err));
    if (p->logprob_ids) {
        TRY(check_ids("logprob_token_ids", p->logprob_ids, p->top_logprobs, vocab, vocab, err));
    }
    if (p->n_bias < 0 || p->n_bias > MAX_BIAS) {
        return err_set(err, ERR_INVALID, "logit_bias: at most %d entries are supported", MAX_BIAS);
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        TRY(check_ids("logit_bias", &p->bias[i].token, 1, 1, vocab, err));
        TRY(check_range("logit_bias", (double)p->bias[i].bias, -100.0, 100.0, err));
    }
    if (p->n_bad_words < 0 || p->n_bad_words > MAX_BAD_WORDS) {
        return err_set(err, ERR_INVALID, "bad_words: at most %d are supported", MAX_BAD_WORDS);
    }
    int32_t n_tokens = 0;
    for (int32_t i = 0; i < p->n_bad_words; i++) {
        if (p->bad_word_lengths[i] < 1 || p->bad_word_lengths[i] > MAX_BAD_TOKENS - n_tokens) {
            return err_set(
                err, ERR_INVALID,
                "bad_words: a word is empty, or all of them have more than %d tokens together",
                MAX_BAD_TOKENS);
        }
        n_tokens += p->bad_word_lengths[i];
    }
    return check_ids("bad_words", p->bad_word_tokens, n_tokens, MAX_BAD_TOKENS, vocab, err);
}

/* The message names the parameter as clients write it. */
enum status sampling_params_check(const struct sampling_params *p, int32_t vocab, struct err *err)
{
    TRY(check_range("temperature", (double)p->temperature, 0.0, (double)MAX_TEMPERATURE, err));
    TRY(check_range("top_k", p->top_k, 0, INT32_MAX, err));
    if (!(p->top_p > 0.0f && p->top_p <= 1.0f)) {
        return err_set(err, ERR_INVALID, "top_p: %g is not in (0, 1]", (double)p->top_p);
    }
    TRY(check_range("min_p", (double)p->min_p, 0.0, 1.0, err));
    if (!(p->repetition_penalty > 0.0f) || !isfinite(p->repetition_penalty)) {
        return err_set(err, ERR_INVALID, "repetition_penalty: %g is not above 0",
                       (double)p->repetition_penalty);
    }
    TRY(check_range("frequency_penalty", (double)p->frequency_penalty, -2.0, 2.0, err));
    TRY(check_range("presence_penalty", (double)p->presence_penalty, -2.0, 2.0, err));
    TRY(check_range("max_tokens", p->max_tokens, 0, INT32_MAX, err));
    TRY(check_range("min_tokens", p->min_tokens, 0, p->max_tokens, err));
    TRY(check_range("top_logprobs", p->top_logprobs, 0, vocab, err));
    TRY(check_range("prompt_logprobs", p->prompt_top_logprobs, 0, vocab, err));
    return check_lists(p, vocab, err);
}
