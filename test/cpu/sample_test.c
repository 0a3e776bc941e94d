// SPDX-License-Identifier: Apache-2.0
/* Sampling: the order of penalties and bans, the exact sets of top-k, top-p and min-p, the
 * distribution by chi-square, seeds, log-probabilities, and equal tokens from all kernel tables.
 * For drafts see sample_law_test.c. */
#include "engine/base/exact.h"
#include "test/device/op_sampler.h"

enum { VOCAB = 50 };

/* A step with one draw. */
static struct draw_result draw_once(struct sampler *s, const struct sampling_params *p, int32_t pos,
                                    int32_t n_prompt)
{
    s->rig.ops->step_begin(s->rig.be, 0);
    s->rig.in_step = true;
    s->rig.ops->lane_params(s->rig.be, 0, p);
    add_draw(s,
             (struct pass_draw){
                 .pos = pos, .n_prompt = n_prompt, .tree_row = -1, .logprobs = true, .top_n = 5});
    return run_draws(s)[0];
}

static void set_history(struct sampler *s, const int32_t *tokens, int32_t n)
{
    s->rig.ops->lane_tokens(s->rig.be, 0, 0, n, tokens);
}

/* Which tokens 400 seeds draw at temperature 1. */
static void drawn_set(struct sampler *s, struct sampling_params p, int32_t pos, int32_t *counts)
{
    memset(counts, 0, (size_t)s->vocab * sizeof *counts);
    for (uint64_t seed = 0; seed < 400; seed++) {
        p.seed = seed * 1000003u;
        counts[draw_once(s, &p, pos, 1).token]++;
    }
}

/* Equal logits are common with quantised weights; the choice must be the same everywhere. */
OP_TEST(greedy_takes_the_lowest_of_equal_ids)
{
    float logits[VOCAB] = {0};
    struct sampler s;
    logits[31] = logits[17] = logits[44] = 3.0f;
    open_sampler(&s, backend, logits, VOCAB);
    struct sampling_params p = sampling_params_default();
    p.temperature = 0.0f;
    CHECK_EQ(draw_once(&s, &p, 0, 1).token, 17);
    op_close(&s.rig);
}

/* NaN logits come from broken weights or an overflow. The draw reports them, and its token is in
 * the vocabulary nevertheless. */
OP_TEST(nan_logits_are_reported)
{
    static const struct {
        float value;
        int32_t first, n;
        bool broken;
    } rows[] = {
        {NAN, 3, 1, true},           {NAN, VOCAB - 1, 1, true},        {INFINITY, 40, 1, true},
        {-INFINITY, 0, VOCAB, true}, {-INFINITY, 1, VOCAB - 1, false}, {-NAN, 0, VOCAB, true}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        float logits[VOCAB] = {0};
        struct sampler s;
        for (int32_t k = 0; k < rows[i].n; k++) {
            logits[rows[i].first + k] = rows[i].value;
        }
        open_sampler(&s, backend, logits, VOCAB);
        struct sampling_params p = sampling_params_default();
        for (int32_t turn = 0; turn < 2; turn++) {
            p.temperature = (float)turn;
            struct draw_result r = draw_once(&s, &p, 0, 1);
            CHECK_EQ(r.broken, rows[i].broken);
            CHECK(r.token >= 0 && r.token < VOCAB);
        }
        op_close(&s.rig);
    }
}

static int32_t draw_masked(struct sampler *s, const struct sampling_params *p,
                           const uint32_t *masks, int32_t mask)
{
    s->rig.ops->step_begin(s->rig.be, 0);
    s->rig.in_step = true;
    s->rig.ops->lane_params(s->rig.be, 0, p);
    s->pass.pass.masks = masks;
    s->pass.pass.n_masks = 2;
    add_draw(s, (struct pass_draw){.n_prompt = 1, .tree_row = -1, .mask = mask});
    int32_t token = run_draws(s)[0].token;
    s->pass.pass.n_masks = 0;
    return token;
}

/* The lists of a lane's parameters may be freed once the lane has them: on a node that receives its
 * steps from another node, they are part of a message. */
OP_TEST(a_lane_keeps_its_lists)
{
    float logits[VOCAB] = {[1] = 9.0f, [2] = 8.0f, [3] = 7.0f, [4] = 6.0f, [5] = 5.0f, [6] = 4.0f};
    int32_t stops[] = {1}, allowed[] = {6, 5, 4, 3, 1}, lengths[] = {1}, words[] = {3, 3};
    struct logit_bias bias[] = {{5, 1.5f}}; // 5 then comes between 3 and 4
    struct sampling_params p = sampling_params_default();
    p.temperature = 0.0f;
    p.min_tokens = 9;
    p.n_stop_ids = p.n_bias = p.n_bad_words = 1;
    p.stop_ids = stops;
    p.bias = bias;
    p.bad_word_lengths = lengths;
    p.bad_word_tokens = words;
    p.n_allowed = 5;
    p.allowed = allowed;
    struct sampler s;
    open_sampler(&s, backend, logits, VOCAB);
    s.rig.ops->step_begin(s.rig.be, 0);
    s.rig.in_step = true;
    CHECK_EQ(s.rig.ops->lane_params(s.rig.be, 0, &p), OK);
    stops[0] = 5;
    lengths[0] = 2; // the word would be "3 3"
    bias[0] = (struct logit_bias){6, 50.0f};
    memset(allowed, 0, sizeof allowed);
    for (int32_t turn = 0; turn < 2; turn++) {
        add_draw(&s, (struct pass_draw){.n_prompt = 1, .tree_row = -1});
        CHECK_EQ(run_draws(&s)[0].token, 5);
    }
    op_close(&s.rig);
}

/* A mask wins over everything else, because the grammar's text must stay valid. */
OP_TEST(a_mask_is_never_dropped)
{
    float logits[VOCAB] = {[7] = 9.0f, [11] = 5.0f, [40] = 3.0f, [41] = 2.0f};
    const uint32_t masks[] = {1u << 7 | 1u << 11, 0, 0, 1u << 8 | 1u << 9}; // {7, 11}, {40, 41}
    const int32_t stops[] = {40, 41}, seven[] = {7};
    struct sampler s;
    open_sampler(&s, backend, logits, VOCAB);
    struct sampling_params d = sampling_params_default(), p;
    d.temperature = 0.0f;
    CHECK_EQ(draw_masked(&s, &d, masks, 0), 7);
    CHECK_EQ(draw_masked(&s, &d, masks, 1), 7);
    CHECK_EQ(draw_masked(&s, &d, masks, 2), 40);
    p = d; // min_tokens forbids stop ids, but the mask leaves nothing else
    p.stop_ids = stops;
    p.n_stop_ids = 2;
    p.min_tokens = 5;
    CHECK_EQ(draw_masked(&s, &p, masks, 2), 40);
    p = d; // bans and mask together leave nothing: only the mask counts
    p.allowed = seven;
    p.n_allowed = 1;
    CHECK_EQ(draw_masked(&s, &p, masks, 2), 40);
    p = d;
    p.temperature = 1e6f; // any seed
    for (p.seed = 0; p.seed < 200; p.seed++) {
        int32_t token = draw_masked(&s, &p, masks, 2);
        CHECK(token == 40 || token == 41);
    }
    op_close(&s.rig);
}

/* The order changes results: penalties, then bias, then bans.
 */
OP_TEST(penalties_bias_and_bans_in_their_order)
{
    float logits[VOCAB] = {[1] = 4.0f, [2] = 3.9f, [3] = 3.5f, [4] = -1.0f, [5] = 3.0f};
    int32_t history[] = {1, 2, 1, 1, 4, 9};
    struct sampler s;
    open_sampler(&s, backend, logits, VOCAB);
    set_history(&s, history, 6);
    struct sampling_params d = sampling_params_default(), p;
    d.temperature = 0.0f;

    p = d; // 1 and 2 are in the history: 4 / 1.2 = 3.33, 3.9 / 1.2 = 3.25, each once
    p.repetition_penalty = 1.2f;
    CHECK_EQ(draw_once(&s, &p, 5, 1).token, 3);
    p.repetition_penalty = 1.13f; // 3.5398, 3.451
    CHECK_EQ(draw_once(&s, &p, 5, 1).token, 1);

    p = d; // counts only the output: after 2 prompt tokens, token 1 counts twice and token 2 not at
           // all
    p.frequency_penalty = 0.3f;
    CHECK_EQ(draw_once(&s, &p, 5, 2).token, 2);
    p.frequency_penalty = 0.04f;
    CHECK_EQ(draw_once(&s, &p, 5, 2).token, 1);
    p.presence_penalty = 0.05f;
    CHECK_EQ(draw_once(&s, &p, 5, 2).token, 2);
    CHECK_EQ(draw_once(&s, &p, 5, 6).token, 1); // no output yet

    p = d; // the bias comes before the repetition penalty
    struct logit_bias bias[] = {{1, -100.0f}, {20, 5.0f}};
    p.n_bias = 2;
    p.bias = bias;
    CHECK_EQ(draw_once(&s, &p, 5, 1).token, 20);

    p = d; // stop ids are banned until min_tokens: of 6 tokens, 3 are generated
    int32_t stops[] = {1};
    p.n_stop_ids = 1;
    p.stop_ids = stops;
    p.min_tokens = 4;
    CHECK_EQ(draw_once(&s, &p, 5, 3).token, 2);
    p.min_tokens = 3;
    CHECK_EQ(draw_once(&s, &p, 5, 3).token, 1);

    p = d; // only these, in any order and twice
    int32_t allowed[] = {5, 3, 5};
    p.n_allowed = 3;
    p.allowed = allowed;
    CHECK_EQ(draw_once(&s, &p, 5, 1).token, 3);

    p = d; // the words "4 9 1", "9 2 8" and "2": 1 is banned after the last tokens, 2 always
    int32_t lengths[] = {3, 3, 1}, words[] = {4, 9, 1, 9, 2, 8, 2};
    p.n_bad_words = 3;
    p.bad_word_lengths = lengths;
    p.bad_word_tokens = words;
    CHECK_EQ(draw_once(&s, &p, 5, 1).token, 3);

    p = d; // all are banned, so the bans are ignored
    int32_t only[] = {1}, one[] = {1}, word[] = {1};
    p.n_allowed = 1;
    p.allowed = only;
    p.n_bad_words = 1;
    p.bad_word_lengths = one;
    p.bad_word_tokens = word;
    CHECK_EQ(draw_once(&s, &p, 5, 1).token, 1);
    op_close(&s.rig);
}

/* If all bans together leave no token, the ban of the stop ids (min_tokens) is dropped first.
 */
OP_TEST(if_all_is_banned_the_ban_of_stop_ids_is_dropped_first)
{
    float logits[VOCAB] = {[1] = 4.0f, [2] = 3.9f, [3] = 3.5f, [5] = 3.0f};
    struct sampler s;
    open_sampler(&s, backend, logits, VOCAB);
    struct sampling_params p = sampling_params_default();
    p.temperature = 0.0f;
    p.min_tokens = 40;
    int32_t stops[] = {5, 3, 60}, allowed[] = {5, 3};
    p.n_stop_ids = 3;
    p.stop_ids = stops;
    p.n_allowed = 2;
    p.allowed = allowed;
    CHECK_EQ(draw_once(&s, &p, 5, 1).token, 3);
    int32_t one[] = {1}, word[] = {3}; // bad words and allowed ids apply together
    p.n_bad_words = 1;
    p.bad_word_lengths = one;
    p.bad_word_tokens = word;
    CHECK_EQ(draw_once(&s, &p, 5, 1).token, 5);
    p.n_allowed = 1;
    allowed[0] = 3; // this one is always banned, so the bans are ignored
    CHECK_EQ(draw_once(&s, &p, 5, 1).token, 1);
    p.n_bad_words = 0;
    p.temperature = 1.0f;
    for (uint64_t seed = 1; seed < 20; seed++) {
        p.seed = seed;
        CHECK_EQ(draw_once(&s, &p, 5, 1).token, 3);
    }
    op_close(&s.rig);
}

/* Penalties of a row of a tree count the tokens on its path, but not its siblings. */
OP_TEST(a_tree_rows_path_counts_as_history)
{
    float logits[VOCAB] = {[1] = 4.0f, [2] = 3.9f, [3] = 3.5f};
    int32_t history[] = {9, 9, 9};
    struct sampler s;
    open_sampler(&s, backend, logits, VOCAB);
    struct sampling_params p = sampling_params_default();
    p.temperature = 0.0f;
    p.presence_penalty = 1.0f;
    s.rig.ops->step_begin(s.rig.be, 0);
    s.rig.in_step = true;
    s.rig.ops->lane_params(s.rig.be, 0, &p);
    set_history(&s, history, 3);
    /* Nodes: 0 is token 1; 1 (token 2) and 2 (token 3) hang on it. */
    op_add_seq(&s.pass, 0, 3, 3);
    s.pass.seqs[0].tree = true;
    s.pass.pass.tree_mask = s.pass.mask;
    s.pass.mask[0] = 1;
    s.pass.mask[TREE_MASK_WORDS] = 3;
    s.pass.mask[2 * TREE_MASK_WORDS] = 5;
    for (int32_t i = 0; i < 3; i++) {
        s.pass.rows[i].token = i + 1;
        s.pass.rows[i].pos = i == 0 ? 3 : 4;
    }
    for (int32_t i = 0; i < 3; i++) {
        add_draw(&s, (struct pass_draw){.pos = s.pass.rows[i].pos, .n_prompt = 3, .tree_row = i});
    }
    const struct draw_result *r = run_draws(&s);
    CHECK_EQ(r[0].token, 2); // the path has token 1
    CHECK_EQ(r[1].token, 3); // the path has tokens 1 and 2
    CHECK_EQ(r[2].token, 2); // the path has tokens 1 and 3
    op_close(&s.rig);
}

/* The sets that remain, with ties at the threshold. */
OP_TEST(top_k_top_p_and_min_p_keep_exact_sets)
{
    float logits[VOCAB];
    int32_t counts[VOCAB];
    struct sampler s;
    for (int32_t i = 0; i < VOCAB; i++) {
        logits[i] = -30.0f;
    }
    /* Shares 0.4, 0.2, 0.2, 0.1, 0.1 of ids 10, 40, 20, 30, 5. */
    logits[10] = logf(4.0f);
    logits[40] = logits[20] = logf(2.0f);
    logits[30] = logits[5] = 0.0f;
    open_sampler(&s, backend, logits, VOCAB);
    static const struct {
        int32_t top_k;
        float top_p, min_p;
        int32_t n, ids[5];
    } cases[] = {
        {2, 1.0f, 0.0f, 2, {10, 20}}, // 20 and 40 tie, so the lower id is kept
        {4, 1.0f, 0.0f, 4, {10, 20, 40, 5}},
        {0, 0.55f, 0.0f, 2, {10, 20}}, // 0.4 + 0.2
        {0, 0.39f, 0.0f, 1, {10}},
        {0, 0.65f, 0.0f, 3, {10, 20, 40}},
        {0, 1e-6f, 0.0f, 1, {10}},
        {0, 1.0f, 0.3f, 3, {10, 20, 40}},
        {3, 0.7f, 0.0f, 2, {10, 20}}, // shares of the 0.8 that top-k leaves: 0.5 + 0.25
        {3, 0.76f, 0.0f, 3, {10, 20, 40}},
        {1, 1.0f, 0.0f, 1, {10}},
        {0, 0.95f, 0.24f, 5, {10, 20, 40, 5, 30}},
        {0, 0.85f, 0.24f, 4, {10, 20, 40, 5}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sampling_params p = sampling_params_default();
        p.top_k = cases[c].top_k;
        p.top_p = cases[c].top_p;
        p.min_p = cases[c].min_p;
        drawn_set(&s, p, 0, counts);
        int32_t total = 0;
        for (int32_t i = 0; i < cases[c].n; i++) {
            if (counts[cases[c].ids[i]] == 0) {
                CHECK_FAIL("case %zu: %d is never drawn", c, cases[c].ids[i]);
            }
            total += counts[cases[c].ids[i]];
        }
        CHECK_EQ(total, 400);
    }
    op_close(&s.rig);
}

/* Chi-square of 20,000 draws over seeds against the softmax; 0.9999 quantiles. */
OP_TEST(draws_follow_the_softmax)
{
    enum { N = 20000, KINDS = 12 };
    float logits[KINDS];
    int32_t counts[KINDS];
    struct sampler s;
    for (int32_t i = 0; i < KINDS; i++) {
        logits[i] = op_normal() * 1.5f;
    }
    open_sampler(&s, backend, logits, KINDS);
    static const float temperatures[] = {1.0f, 0.7f, 1.6f};
    for (int32_t c = 0; c < 3; c++) {
        struct sampling_params p = sampling_params_default();
        double share[KINDS], sum = 0.0, chi = 0.0;
        p.temperature = temperatures[c];
        p.top_k = c == 2 ? 6 : 0;
        memset(counts, 0, sizeof counts);
        int32_t left = 0;
        for (int32_t i = 0; i < KINDS; i++) {
            int32_t above = 0;
            for (int32_t j = 0; j < KINDS; j++) {
                above += logits[j] > logits[i];
            }
            if (p.top_k == 0 || above < p.top_k) {
                share[i] = exp((double)logits[i] / (double)p.temperature);
            } else {
                share[i] = 0.0;
            }
            sum += share[i];
            left += share[i] > 0.0;
        }
        s.rig.ops->step_begin(s.rig.be, 0);
        s.rig.in_step = true;
        for (int32_t i = 0; i < N; i += 50) { // the position varies too
            p.seed = (uint64_t)i;
            s.rig.ops->lane_params(s.rig.be, 0, &p);
            for (int32_t j = 0; j < 50; j++) {
                add_draw(&s, (struct pass_draw){.pos = j, .n_prompt = 1, .tree_row = -1});
            }
            const struct draw_result *r = run_draws(&s);
            for (int32_t j = 0; j < 50; j++) {
                counts[r[j].token]++;
            }
        }
        for (int32_t i = 0; i < KINDS; i++) {
            double e = N * share[i] / sum;
            if (share[i] > 0.0) {
                chi += (counts[i] - e) * (counts[i] - e) / e;
            } else {
                chi += counts[i] * 1e9;
            }
        }
        CHECK(chi < (left == KINDS ? 37.4 : 25.7)); // 11 and 5 degrees of freedom
    }
    op_close(&s.rig);
}

OP_TEST(kept_draws_enter_the_history_and_scores_read_it)
{
    float logits[VOCAB];
    struct sampler s;
    double sum = 0.0;
    for (int32_t i = 0; i < VOCAB; i++) {
        logits[i] = op_normal();
        sum += exp((double)logits[i]);
    }
    open_sampler(&s, backend, logits, VOCAB);
    struct sampling_params p = sampling_params_default();
    s.rig.ops->step_begin(s.rig.be, 0);
    s.rig.in_step = true;
    s.rig.ops->lane_params(s.rig.be, 0, &p);
    add_draw(&s, (struct pass_draw){.pos = 4, .n_prompt = 1, .tree_row = -1, .keep = true});
    int32_t token = run_draws(&s)[0].token;
    add_draw(&s, (struct pass_draw){.pos = 4, .kind = DRAW_SCORE, .tree_row = -1, .top_n = 3});
    struct draw_result r = run_draws(&s)[0];
    CHECK_EQ(r.token, token);
    CHECK_NEAR(r.logprob, (double)logits[token] - log(sum), 1e-5);
    CHECK_EQ(r.n_top, 3);
    for (int32_t i = 0; i < 3; i++) {
        int32_t above = 0;
        for (int32_t j = 0; j < VOCAB; j++) {
            above += logits[j] > logits[r.top_ids[i]];
        }
        CHECK_EQ(above, i);
        CHECK_NEAR(r.top_logprobs[i], (double)logits[r.top_ids[i]] - log(sum), 1e-5);
    }
    op_close(&s.rig);
}

/* Every set of kernels draws what the scalar one draws, and noise follows exact.h. */
TEST(all_kernels_draw_the_same_tokens)
{
    enum { N = 5003 };
    float *logits = op_random(N, 2.0f);
    static const char *const names[] = {"scalar", "avx2", "avx512", "cpu"};
    int32_t first[60];
    for (size_t b = 0; b < 4; b++) {
        if (!op_kernels(names[b])) {
            continue;
        }
        struct sampler s;
        open_sampler(&s, names[b], logits, N);
        for (int32_t i = 0; i < 60; i++) {
            struct sampling_params p = sampling_params_default();
            p.seed = 0x123456789ABCDEFu * (uint64_t)(i + 1);
            p.temperature = i % 3 == 0 ? 1.0f : 1.7f;
            p.top_p = i % 4 == 1 ? 0.8f : 1.0f;
            p.top_k = i % 5 == 2 ? 40 : 0;
            p.min_p = i % 7 == 3 ? 0.05f : 0.0f;
            int32_t token = draw_once(&s, &p, 1000 + i, 1).token;
            if (b == 0) {
                first[i] = token;
            }
            CHECK_EQ(token, first[i]);
        }
        op_close(&s.rig);
    }
    free(logits);
}

TEST(noise_is_minus_log_of_minus_log)
{
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t bits; // both ends of the range, then random numbers
        if (i < 1000) {
            bits = i;
        } else if (i < 2000) {
            bits = ~(i - 1000);
        } else {
            bits = op_bits();
        }
        double t = ((double)~bits + 0.5) / 4294967296.0, u = rng_uniform(bits);
        double e = u > 0.5 ? -log1p(-t) : -log(u);
        if (!(fabs((double)gumbel_noise(bits) + log(e)) < 3e-6)) {
            CHECK_FAIL("bits %u: %g instead of %g", bits, (double)gumbel_noise(bits), -log(e));
        }
    }
    for (float x = -86.9f; x <= 0.0f; x += 0.01f) {
        CHECK_NEAR((double)exact_exp(x) / exp((double)x), 1.0, 4e-7);
    }
    CHECK(exact_exp(0.0f) == 1.0f && exact_exp(-INFINITY) == 0.0f && exact_exp(NAN) == 0.0f);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
