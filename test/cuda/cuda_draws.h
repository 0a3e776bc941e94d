// SPDX-License-Identifier: Apache-2.0
/* Lanes with all kinds of sampling parameters, for tests of the sampler. Thread: the main thread.
 */
#ifndef SLUICE_TEST_CUDA_DRAWS_H
#define SLUICE_TEST_CUDA_DRAWS_H

#include "test/cuda/cuda_pass.h"

#define COUNT(a) (int32_t)(sizeof(a) / sizeof((a)[0]))

enum { N_LANES = 24, MAX_LISTS = 64 };

/* Parameters of lane i. Over the lanes every parameter occurs, some alone and some together. */
static inline struct sampling_params params_of(int32_t i, int32_t *ints, struct logit_bias *bias)
{
    struct sampling_params p = sampling_params_default();
    p.seed = 0x9876543210ull * (uint64_t)(i + 1);
    p.temperature = i % 5 == 0 ? 0.0f : 0.3f + 0.25f * (float)(i % 7);
    p.top_k = i % 3 == 1 ? 1 + 13 * i : 0;
    p.top_p = i % 4 == 2 ? 0.35f + 0.02f * (float)i : 1.0f;
    p.min_p = i % 6 == 3 ? 0.05f : 0.0f;
    p.repetition_penalty = i % 5 == 2 ? 1.3f : 1.0f;
    p.frequency_penalty = i % 7 == 3 ? 0.6f : 0.0f;
    p.presence_penalty = i % 7 == 4 ? -0.4f : 0.0f;
    if (i % 4 == 1) {
        p.n_bias = 9;
        p.bias = bias;
        for (int32_t j = 0; j < 9; j++) {
            bias[j] = (struct logit_bias){(i * 37 + j * 3) % 90, (float)(j % 5) * 2.5f - 4.0f};
        }
        bias[8].token = bias[2].token; // one token occurs twice
    }
    if (i % 6 == 5) {
        p.n_allowed = 12;
        p.allowed = ints;
        for (int32_t j = 0; j < 12; j++) {
            ints[j] = (j * 71 + i) % 1003;
        }
    }
    if (i % 5 == 4) {
        p.n_stop_ids = 3;
        p.min_tokens = 40;
        p.stop_ids = ints + 16;
        for (int32_t j = 0; j < 3; j++) {
            ints[16 + j] = 500 + j;
        }
    }
    if (i % 12 == 11) { // all allowed ids are stop ids
        p.n_stop_ids = p.n_allowed;
        p.stop_ids = p.allowed;
        p.min_tokens = 40;
    }
    if (i % 8 == 6) {
        p.n_bad_words = 3;
        p.bad_word_lengths = ints + 32;
        p.bad_word_tokens = ints + 40;
        const int32_t lengths[] = {1, 2, 3}, tokens[] = {8, 20, 9, 7, 20, 10};
        memcpy(ints + 32, lengths, sizeof lengths);
        memcpy(ints + 40, tokens, sizeof tokens);
    }
    return p;
}

static inline void set_params(struct pair *p, int32_t i, const struct sampling_params *params)
{
    for (int b = 0; b < 2; b++) {
        CHECK_EQ(p->be[b]->ops->lane_params(p->be[b], i, params), OK);
    }
}

#endif
