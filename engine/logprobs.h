// SPDX-License-Identifier: Apache-2.0
/* A token's log-probability and its alternatives, from the result of its draw. Thread: any. */
#ifndef SLUICE_ENGINE_LOGPROBS_H
#define SLUICE_ENGINE_LOGPROBS_H

#include "engine/device/backend.h"
#include "engine/schedule/sequence.h"

/* The alternatives that a request asks for. */
struct logprobs_wanted {
    int32_t n;
    const int32_t *ids; // [n], -1: none, with the log-probability minus infinity; NULL: the
                        // likeliest
};

/* Memory for a row of scores. */
struct logprobs_scratch {
    float *scores;     // [vocab]
    uint32_t *count;   // [vocab], all zero between uses
    uint32_t *allowed; // [mask_words(vocab)]
};

/* What the scores of a draw are made from (scores.h). Ids from n_used on are never drawn. */
struct drawn_row {
    const float *logits; // [vocab]
    int32_t vocab, n_used;
    const uint32_t *mask;       // of the draw; NULL: none
    const struct sequence *seq; // before the drawn token is appended to it
};

/* `row`: the logits of the whole vocabulary, if the draw returned them; else NULL, and the draw
 * has the alternatives. `out` has room for them. */
void logprobs_fill(struct token_logprobs *out, const struct draw_result *d, const float *row,
                   int32_t vocab, const struct logprobs_wanted *wanted);
/* The same for the scores instead of the logits (sampling_params.processed). */
void logprobs_fill_processed(struct token_logprobs *out, const struct draw_result *d,
                             const struct drawn_row *row, const struct logprobs_wanted *wanted,
                             const struct logprobs_scratch *scratch);

#endif
