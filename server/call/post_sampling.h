// SPDX-License-Identifier: Apache-2.0
/* llama.cpp's post_sampling_probs: the distribution that a token was drawn from (step 3 of struct
 * sample_args), computed from the raw log-probabilities of the most likely tokens. The result is
 * exact: a request is refused if those log-probabilities do not determine the distribution. Thread:
 * any; touches nothing but its arguments. */
#ifndef SLUICE_SERVER_CALL_POST_SAMPLING_H
#define SLUICE_SERVER_CALL_POST_SAMPLING_H

#include "engine/device/params.h"
#include "server/call/error.h"

struct token_logprobs; // engine/schedule/request.h

struct post_sampling {
    int32_t n; // number of tokens that could be drawn: the first of top_ids; all known ones if no
               // sampler excludes any
    double prob[MAX_TOP_LOGPROBS];
    double drawn; // probability of the drawn token
};

/* False: *e names the settings that would be required. */
bool post_sampling_check(const struct sampling_params *p, bool constrained, struct call_error *e);
/* `lp` belongs to `token`, and has MAX_TOP_LOGPROBS alternatives or the whole vocabulary. */
void post_sampling_of(const struct sampling_params *p, const struct token_logprobs *lp,
                      int32_t token, struct post_sampling *out);

#endif
