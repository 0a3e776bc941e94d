// SPDX-License-Identifier: Apache-2.0
/* llama.cpp's post_sampling_probs: the distribution that a token was drawn from (step 3 of struct
 * sample_args), computed from the log-probabilities of the scores (sampling_params.processed).
 * These are read for as many of the most likely tokens as are needed, which may be the whole
 * vocabulary.
 * Thread: any; touches nothing but its arguments. */
#ifndef SLUICE_SERVER_CALL_POST_SAMPLING_H
#define SLUICE_SERVER_CALL_POST_SAMPLING_H

#include "engine/device/params.h"
#include "server/call/error.h"

struct token_logprobs; // engine/schedule/request.h

struct post_sampling {
    int32_t n;          // tokens that could be drawn: the leading top_ids
    double temperature; // 0: greedy
    double total;       // sum of the tokens' weights relative to the likeliest token's
    double drawn;       // the probability of the drawn token
};

/* The number of alternatives that determine the distribution. */
int32_t post_sampling_needs(const struct sampling_params *p, int32_t vocab);
/* `lp` belongs to `token`, and has that many alternatives. */
void post_sampling_of(const struct sampling_params *p, const struct token_logprobs *lp,
                      int32_t token, struct post_sampling *out);
/* The probability of alternative i < n. */
double post_sampling_prob(const struct post_sampling *s, const struct token_logprobs *lp,
                          int32_t i);

#endif
