// SPDX-License-Identifier: Apache-2.0
/* Alternatives taken from a whole row of logits, against a plain search. */
#include "engine/logprobs.h"
#include "test/check.h"

#include <math.h>
#include <stdlib.h>

enum { VOCAB = 257 };

struct lists {
    int32_t ids[VOCAB];
    float values[VOCAB];
};

static float row[VOCAB];

/* Few different values, so that many are equal, and some impossible ids. */
static void make_row(uint32_t seed)
{
    for (int32_t i = 0; i < VOCAB; i++) {
        seed = seed * 1664525u + 1013904223u;
        row[i] = (seed >> 24) % 7 == 0 ? -INFINITY : (float)((seed >> 20) % 40) - 20.0f;
    }
}

/* The number of ids that come before this one. */
static int32_t rank_of(int32_t id)
{
    int32_t n = 0;
    for (int32_t i = 0; i < VOCAB; i++) {
        n += row[i] > row[id] || (row[i] == row[id] && i < id);
    }
    return n;
}

TEST(likeliest_come_in_order)
{
    static struct lists lists;
    const int32_t counts[] = {0, 1, 2, 21, 64, VOCAB - 1, VOCAB, VOCAB + 9};
    for (uint32_t seed = 1; seed < 40; seed++) {
        make_row(seed);
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            struct token_logprobs out = {.top_ids = lists.ids, .top_logprobs = lists.values};
            struct draw_result d = {.token = 3, .logprob = -1.5f, .log_total = 2.25f};
            struct logprobs_wanted wanted = {.n = counts[c]};
            logprobs_fill(&out, &d, row, VOCAB, &wanted);
            CHECK(out.n_top == (counts[c] < VOCAB ? counts[c] : VOCAB) && out.logprob == -1.5f);
            for (int32_t i = 0; i < out.n_top; i++) {
                CHECK(rank_of(out.top_ids[i]) == i);
                CHECK(out.top_logprobs[i] == row[out.top_ids[i]] - 2.25f);
            }
        }
    }
}

TEST(listed_ids_keep_their_order)
{
    static struct lists lists;
    static const int32_t ids[] = {200, 3, 3, 0, VOCAB - 1};
    make_row(7);
    struct token_logprobs out = {.top_ids = lists.ids, .top_logprobs = lists.values};
    struct draw_result d = {.token = 9, .logprob = -4.0f, .log_total = -1.0f};
    struct logprobs_wanted wanted = {5, ids};
    logprobs_fill(&out, &d, row, VOCAB, &wanted);
    CHECK(out.n_top == 5 && out.logprob == -4.0f);
    for (int32_t i = 0; i < 5; i++) {
        CHECK(out.top_ids[i] == ids[i] && out.top_logprobs[i] == row[ids[i]] + 1.0f);
    }
}

TEST(a_draw_s_own_alternatives_are_copied)
{
    static struct lists lists;
    struct token_logprobs out = {.top_ids = lists.ids, .top_logprobs = lists.values};
    struct draw_result d = {
        .logprob = -0.5f, .n_top = 2, .top_ids = {4, 6}, .top_logprobs = {-0.5f, -2.0f}};
    struct logprobs_wanted wanted = {.n = 2};
    logprobs_fill(&out, &d, NULL, VOCAB, &wanted);
    CHECK(out.n_top == 2 && out.top_ids[1] == 6 && out.top_logprobs[1] == -2.0f);
}

/* The scores are those of the definition in ops.h, written out naively. */
TEST(processed_ones_are_those_of_the_scores)
{
    static int32_t prompt[] = {1, 2, 2, 5}, tokens[] = {2, 7, 7, 9};
    static struct lists lists;
    static float scores[VOCAB];
    static uint32_t count[VOCAB], allowed[VOCAB / 32 + 1], mask[VOCAB / 32 + 1];
    static const struct logit_bias bias = {11, 3.5f};
    static const int32_t stop[] = {13}, word[] = {7, 9, 17}, length = 3;
    struct engine_request request = {.prompt = prompt};
    struct engine_output output = {.tokens = tokens};
    struct sequence seq = {.request = &request, .output = &output, .n_prompt = 4, .n_known = 8};
    const struct logprobs_scratch scratch = {scores, count, allowed};
    const struct drawn_row drawn = {row, VOCAB, 200, mask, &seq};
    request.params = sampling_params_default();
    request.params.repetition_penalty = 1.5f;
    request.params.frequency_penalty = 0.5f;
    request.params.presence_penalty = 0.25f;
    request.params.bias = &bias;
    request.params.n_bias = 1;
    request.params.stop_ids = stop;
    request.params.n_stop_ids = 1;
    request.params.min_tokens = 5;
    request.params.bad_word_tokens = word;
    request.params.bad_word_lengths = &length;
    request.params.n_bad_words = 1;
    for (int32_t i = 0; i < VOCAB; i++) {
        row[i] = (float)(i % 23) - 9.5f;
        mask[i / 32] |= (uint32_t)(i != 19) << (i % 32);
    }
    double want[VOCAB], total = 0;
    for (int32_t i = 0; i < VOCAB; i++) {
        const int n = (i == 2) + 2 * (i == 7) + (i == 9);
        double s = (double)row[i] + (i == 11 ? 3.5 : 0);
        if (i == 1 || i == 2 || i == 5 || i == 7 || i == 9) {
            s = s > 0 ? s / 1.5 : s * 1.5;
        }
        s -= 0.5 * n + (n > 0 ? 0.25 : 0);
        const bool never = i == 13 || i == 17 || i == 19 || i >= 200;
        want[i] = never ? -INFINITY : s;
        total += never ? 0 : exp(s);
    }
    struct token_logprobs out = {.top_ids = lists.ids, .top_logprobs = lists.values};
    const struct draw_result d = {.token = 7, .logprob = -99.0f, .log_total = 99.0f};
    const struct logprobs_wanted all = {.n = VOCAB};
    logprobs_fill_processed(&out, &d, &drawn, &all, &scratch);
    CHECK(fabs((double)out.logprob - (want[7] - log(total))) < 1e-4);
    for (int32_t i = 0; i < VOCAB; i++) {
        const double w = want[out.top_ids[i]] - log(total);
        CHECK((isinf(w) && isinf(out.top_logprobs[i])) ||
              fabs((double)out.top_logprobs[i] - w) < 1e-4);
        CHECK_EQ(count[i], 0);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
