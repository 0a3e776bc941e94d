// SPDX-License-Identifier: Apache-2.0
/* Sampling parameters of a request, and the limits of one sequence: plain data, the same for both
 * backends. The code that fills in the struct checks the ranges (sampling_params_check).
 * Thread: plain data. Compiles as C11 and C++17. */
#ifndef SLUICE_ENGINE_DEVICE_PARAMS_H
#define SLUICE_ENGINE_DEVICE_PARAMS_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MAX_TOP_LOGPROBS = 20, // OpenAI's limit; for more, the whole row of logits is read
    MAX_SAMPLES = 128,     // OpenAI's limit of n
    MAX_STOP_IDS = 64,     // chosen; for the model's and the request's ids together
    MAX_EOS = 16,          // chosen; further end-of-text ids in a model's config are ignored
    MAX_BIAS = 1024,       // entries of logit_bias
    MAX_BAD_TOKENS = 1024, // number of ids of all bad words together
    MAX_BAD_WORDS = 256,   // chosen
};

/* Chosen as in other servers; a score divided by a much smaller number would overflow a float. */
#define MIN_TEMPERATURE 1e-5f
/* Chosen: far beyond the point where all tokens are equally likely, yet quotients still fit a
 * float. */
#define MAX_TEMPERATURE 1e30f

/* What a request for embeddings gets: the last or the first hidden state of its prompt, the mean of
 * all, the largest value of each element, or each of them. */
enum pool_kind { POOL_NONE, POOL_LAST, POOL_MEAN, POOL_TOKENS, POOL_FIRST, POOL_MAX };

struct logit_bias {
    int32_t token;
    float bias; // -100 to 100
};

struct sampling_params {
    float temperature;        // below MIN_TEMPERATURE: greedy
    int32_t top_k;            // 0: off
    float top_p;              // (0, 1]; 1: off
    float min_p;              // [0, 1]; 0: off
    float repetition_penalty; // > 0; 1: off; counts prompt and output
    float frequency_penalty;  // [-2, 2]; counts output only
    float presence_penalty;   // [-2, 2]; counts output only
    uint64_t seed;
    int32_t max_tokens; // tokens to generate; 0: only score the prompt
    int32_t min_tokens; // no stop id is drawn before this many
    bool ignore_eos;    // eos ids do not stop (stop_ids still do)
    bool logprobs;      // for each generated token, with top_logprobs alternatives
    bool prompt_logprobs;
    int32_t top_logprobs;        // 0 to the vocabulary's size
    int32_t prompt_top_logprobs; // as top_logprobs, for prompt tokens

    /* The lists belong to the request's arena and live as long as the request. */
    int32_t n_stop_ids;
    const int32_t *stop_ids; // the request's own and, unless ignore_eos, the model's eos ids
    int32_t n_bias;
    const struct logit_bias *bias;
    int32_t n_allowed; // 0: all are allowed
    const int32_t *allowed;
    bool allowed_each;   // sample i may only draw allowed[i], to score several known answers
    int32_t n_bad_words; // banned sequences of ids
    const int32_t *bad_word_lengths; // [n_bad_words]
    const int32_t *bad_word_tokens;  // concatenated
    int32_t num_speculative_tokens;  // maximum number of drafts per step; -1: the engine's setting
    /* For prompt tokens: [rows][prompt_top_logprobs] alternatives, where row 0 belongs to the token
     * after prompt_logprob_start, and -1 stands for none; NULL: the likeliest. */
    const int32_t *prompt_logprob_ids;
    int32_t prompt_logprob_start;
    const int32_t *logprob_ids; // [top_logprobs], the alternatives to report, in this order; NULL:
                                // the likeliest
    bool processed; // log-probabilities and alternatives of generated tokens are those of the
                    // scores (scores.h) instead of the logits
};

/* Temperature 1, everything else off, max_tokens 16, seed 0. */
struct sampling_params sampling_params_default(void);

/* Checks ranges, and that every id is in [0, vocab). ERR_INVALID with the parameter's name in the
 * text. */
enum status sampling_params_check(const struct sampling_params *p, int32_t vocab, struct err *err);

#ifdef __cplusplus
}
#endif
#endif
