// SPDX-License-Identifier: Apache-2.0
/* A token's log-probability and its alternatives, from the result of its draw. Thread: any. */
#ifndef SLUICE_ENGINE_LOGPROBS_H
#define SLUICE_ENGINE_LOGPROBS_H

#include "engine/device/backend.h"
#include "engine/schedule/request.h"

/* The alternatives that a request asks for. */
struct logprobs_wanted {
    int32_t n;
    const int32_t *ids; // [n], -1: none, with the log-probability minus infinity; NULL: the
                        // likeliest
};

/* `row`: the logits of the whole vocabulary, if the draw returned them; else NULL, and the draw
 * has the alternatives. `out` has room for them. */
void logprobs_fill(struct token_logprobs *out, const struct draw_result *d, const float *row,
                   int32_t vocab, const struct logprobs_wanted *wanted);

#endif
