// SPDX-License-Identifier: Apache-2.0
/* The sampler draws the CPU's tokens from the CPU's logits, for every parameter. */
#include "test/cuda/cuda_draws.h"

/* With `ties` many logits are equal, and the lowest id must win on both backends. */
static struct pair_tensor make_logits(struct pair *p, int32_t n_rows, int32_t vocab, float scale,
                                      bool ties)
{
    struct pair_tensor t = tensor_make(p, n_rows, vocab, DT_F32);
    float *values = xmalloc((size_t)n_rows * (size_t)vocab * sizeof(float));
    const uint64_t seed = p->seed++;
    for (int32_t i = 0; i < n_rows * vocab; i++) {
        const float x = random_float(seed, i, scale, DT_F32);
        values[i] = ties ? roundf(2.0f * x) / 2.0f : x;
    }
    tensor_put(p, &t, values);
    free(values);
    return t;
}

/* Tokens must be equal, log-probabilities nearly equal. */
static void compare_draws(const struct pass_results *r, const char *what)
{
    CHECK_EQ(r[CPU].n_draws, r[GPU].n_draws);
    for (int32_t i = 0; i < r[CPU].n_draws; i++) {
        const struct draw_result *a = &r[CPU].draws[i], *g = &r[GPU].draws[i];
        if (a->token != g->token) {
            CHECK_FAIL("%s: draw %d is %d, not %d", what, i, g->token, a->token);
        }
        if (!(fabsf(a->logprob - g->logprob) <= 2e-5f * (1.0f + fabsf(a->logprob)))) {
            CHECK_FAIL("%s: draw %d has log-probability %g, not %g", what, i, g->logprob,
                       a->logprob);
        }
        if (!(fabsf(a->log_total - g->log_total) <= 2e-5f * (1.0f + fabsf(a->log_total)))) {
            CHECK_FAIL("%s: draw %d has the total %g, not %g", what, i, g->log_total, a->log_total);
        }
        CHECK_EQ(a->n_top, g->n_top);
        for (int32_t j = 0; j < a->n_top && j < g->n_top; j++) {
            CHECK_EQ(a->top_ids[j], g->top_ids[j]);
            CHECK_NEAR(a->top_logprobs[j], g->top_logprobs[j], 2e-4);
        }
    }
}

/* Two masks over the vocabulary: a third of the ids, and three ids. */
static const uint32_t *make_masks(int32_t vocab)
{
    static uint32_t words[2 * (128256 + 31) / 32 + 2];
    const int32_t n = mask_words(vocab);
    memset(words, 0, sizeof words);
    for (int32_t i = 0; i < vocab; i++) {
        words[i / 32] |= (uint32_t)(rng_bits(5, i, RNG_TEST, 0) % 3 == 0) << (i % 32);
    }
    for (int32_t i = 1; i < 4; i++) {
        words[n + vocab / 5 * i / 32] |= 1u << (vocab / 5 * i % 32);
    }
    return words;
}

/* A pass of N_LANES sequences, every third of which is a tree, with a draw for each row. Returns
 * the number of rows. */
static int32_t sample_draws(struct test_pass *t, enum draw_kind kind)
{
    struct seq_spec specs[N_LANES];
    for (int32_t i = 0; i < N_LANES; i++) {
        specs[i] = (struct seq_spec){50 + i, i % 3 == 0 ? 9 : 2, i % 3 == 0};
    }
    pass_of(t, specs, N_LANES, false, 77);
    int32_t n = 0;
    for (int32_t i = 0; i < N_LANES; i++) {
        for (int32_t r = 0; r < specs[i].n_new; r++, n++) {
            t->rows[n].token %= 90; // penalties then concern likely ids
            t->out_rows[n] = n;
            t->draws[n] = (struct pass_draw){
                .out_row = n,
                .lane = i,
                .pos = t->rows[n].pos,
                .n_prompt = 30,
                .kind = (uint8_t)kind,
                .keep = !specs[i].tree && r == specs[i].n_new - 1,
                .noise = n % 2 == 0,
                .logprobs = n % 2 == 1,
                .top_n = n % 4 == 1 ? n % 21 : 0,
                .tree_row = specs[i].tree ? n : -1,
                .mask = n % 5 < 3 ? n % 5 : 0,
            };
        }
    }
    t->pass.n_out = t->pass.n_draws = n;
    return n;
}

/* A lane for each combination of parameters: penalties, bans, bias, top-k, top-p, min-p,
 * masks. */
static void sample_case(int32_t vocab, int32_t used, float scale, bool ties, enum draw_kind kind)
{
    static struct test_pass t;
    static int32_t ints[N_LANES][MAX_LISTS];
    static struct logit_bias bias[N_LANES][MAX_LISTS];
    struct pair p;
    struct backend_limits limits = pair_limits();
    limits.vocab = vocab;
    limits.max_masks = 2;
    REQUIRE(pair_open(&p, DT_F32, false, &limits));
    const int32_t n = sample_draws(&t, kind);
    t.pass.n_masks = 2;
    t.pass.masks = make_masks(vocab);
    struct pair_tensor logits = make_logits(&p, n, vocab, scale, ties);
    step_begin(&p);
    int32_t history[128];
    for (int32_t i = 0; i < N_LANES; i++) {
        const struct sampling_params s = params_of(i, ints[i], bias[i]);
        set_params(&p, i, &s);
        for (int32_t j = 0; j < 128; j++) {
            history[j] = (int32_t)(rng_bits(3, j, RNG_TEST, (uint32_t)i) % 60);
        }
        for (int b = 0; b < 2; b++) {
            CHECK_EQ(p.be[b]->ops->lane_tokens(p.be[b], i, 0, 128, history), OK);
        }
    }
    pass_begin(&p, &t);
    struct sample_args a = {.n_out = n, .n_draws = n, .n_vocab_used = used};
    BOTH(&p, sample, a, a.logits = logits.t[b]);
    pass_end(&p);
    struct pass_results r[2];
    step_end(&p, r);
    char what[96];
    snprintf(what, sizeof what, "vocab %d scale %g ties %d kind %d", vocab, (double)scale, ties,
             kind);
    compare_draws(r, what);

    /* Kept tokens are in both backends' histories: a later pass scores them. */
    step_begin(&p);
    for (int32_t i = 0; i < n; i++) {
        t.draws[i].kind = DRAW_SCORE;
        t.draws[i].keep = false;
    }
    pass_begin(&p, &t);
    BOTH(&p, sample, a, a.logits = logits.t[b]);
    pass_end(&p);
    step_end(&p, r);
    compare_draws(r, "scores after keeping");
    pair_close(&p);
}

/* Vocabularies around the sizes at which the kernel works differently. */
TEST(draws_agree)
{
    NEED_GPU();
    for (int ties = 0; ties < 2; ties++) {
        sample_case(1003, 1003, 2.0f, ties, DRAW_SAMPLE);
        sample_case(1003, 997, 6.0f, ties, DRAW_SAMPLE);
        sample_case(32000, 31999, 3.0f, ties, DRAW_SAMPLE);
        sample_case(128256, 128256, 3.0f, ties, DRAW_SAMPLE);
        sample_case(1003, 1003, 2.0f, ties, DRAW_DRAFT);
    }
}

/* Top-k, top-p and min-p in many strengths, which keep from one id to all of them. */
static struct sampling_params cut_params(int32_t i)
{
    static const int32_t top_k[] = {0, 50, 1, 20, 96, 0, 128, 2, 700, 5000};
    static const float top_p[] = {0.95f, 1.0f, 0.5f, 0.999f, 1e-6f, 0.8f, 0.9999999f};
    static const float temperature[] = {0.7f, 1.0f, 0.05f, 1.9f};
    struct sampling_params p = sampling_params_default();
    p.seed = 0x123456789ull * (uint64_t)(i + 1);
    p.top_k = top_k[i % COUNT(top_k)];
    p.top_p = top_p[i % COUNT(top_p)];
    p.temperature = temperature[i % COUNT(temperature)];
    p.min_p = i % 9 == 8 ? 0.1f : 0.0f;
    return p;
}

/* Cuts of n_lanes lanes with `each` draws, under several parameters. The fewer draws, the more
 * blocks share one. Every third draw has a mask. */
static void cut_case(int32_t vocab, int32_t n_lanes, int32_t each, float scale, bool ties)
{
    static struct test_pass t;
    struct seq_spec specs[N_LANES];
    struct pair p;
    struct backend_limits limits = pair_limits();
    limits.vocab = vocab;
    limits.max_masks = 2;
    REQUIRE(pair_open(&p, DT_F32, false, &limits));
    for (int32_t i = 0; i < n_lanes; i++) {
        specs[i] = (struct seq_spec){20 + i, each, false};
    }
    pass_of(&t, specs, n_lanes, false, 80);
    const int32_t n = n_lanes * each;
    for (int32_t i = 0; i < n; i++) {
        t.out_rows[i] = i;
        t.draws[i] = (struct pass_draw){.out_row = i,
                                        .lane = i / each,
                                        .pos = t.rows[i].pos,
                                        .tree_row = -1,
                                        .mask = i % 3 == 2 ? 1 + i % 2 : 0};
    }
    t.pass.n_out = t.pass.n_draws = n;
    t.pass.n_masks = 2;
    t.pass.masks = make_masks(vocab);
    struct pair_tensor logits = make_logits(&p, n, vocab, scale, ties);
    for (int32_t round = 0; round * n_lanes < 70; round++) {
        step_begin(&p);
        for (int32_t i = 0; i < n_lanes; i++) {
            const struct sampling_params s = cut_params(round * n_lanes + i);
            set_params(&p, i, &s);
        }
        pass_begin(&p, &t);
        struct sample_args a = {.n_out = n, .n_draws = n, .n_vocab_used = vocab};
        BOTH(&p, sample, a, a.logits = logits.t[b]);
        pass_end(&p);
        struct pass_results r[2];
        step_end(&p, r);
        char what[96];
        snprintf(what, sizeof what, "cuts: vocab %d lanes %d round %d scale %g", vocab, n_lanes,
                 round, (double)scale);
        compare_draws(r, what);
    }
    pair_close(&p);
}

/* Rows that are flat, usual and steep, so that the kept ids are few or many. */
TEST(cuts_agree_for_every_number_of_draws)
{
    NEED_GPU();
    static const int32_t lanes[] = {1, 3, N_LANES, N_LANES}, each[] = {1, 1, 1, 2};
    for (int i = 0; i < 4; i++) {
        cut_case(1003, lanes[i], each[i], 3.0f, false);
        cut_case(5001, lanes[i], each[i], 0.01f, false);
        cut_case(128256, lanes[i], each[i], 2.5f, false);
        cut_case(128256, lanes[i], each[i], 4.0f, true);
    }
}

/* Drafts whose distributions are kept, then their acceptance tests under other logits: both times
 * the GPU draws the CPU's tokens, and some of these are the drafts. */
static void law_case(int32_t vocab, int32_t used, float scale, float likeness)
{
    enum { EACH = 4, N = N_LANES * EACH };
    static struct test_pass t;
    static int32_t ints[N_LANES][MAX_LISTS];
    static struct logit_bias bias[N_LANES][MAX_LISTS];
    struct pair p;
    struct backend_limits limits = pair_limits();
    limits.vocab = vocab;
    limits.max_laws = N;
    REQUIRE(pair_open(&p, DT_F32, false, &limits));
    struct seq_spec specs[N_LANES];
    for (int32_t i = 0; i < N_LANES; i++) {
        specs[i] = (struct seq_spec){50 + i, EACH, false};
    }
    pass_of(&t, specs, N_LANES, false, 78);
    for (int32_t n = 0; n < N; n++) {
        t.out_rows[n] = n;
        t.draws[n] = (struct pass_draw){.out_row = n,
                                        .lane = n / EACH,
                                        .pos = t.rows[n].pos,
                                        .n_prompt = 30,
                                        .kind = DRAW_DRAFT,
                                        .keep = true,
                                        .noise = true,
                                        .tree_row = -1,
                                        .law = 1 + n};
    }
    t.pass.n_out = t.pass.n_draws = N;
    struct pair_tensor draft = make_logits(&p, N, vocab, scale, false);
    struct pair_tensor other = make_logits(&p, N, vocab, scale, false);
    float *from = tensor_get(&p, &draft, CPU), *to = tensor_get(&p, &other, CPU);
    for (int64_t i = 0; i < (int64_t)N * vocab; i++) {
        to[i] = likeness * from[i] + (1.0f - likeness) * to[i];
    }
    tensor_put(&p, &other, to);
    free(from);
    free(to);
    struct pass_results r[2];
    int32_t drafts[N], n_accepted = 0;
    for (int32_t turn = 0; turn < 2; turn++) {
        step_begin(&p);
        for (int32_t i = 0; turn == 0 && i < N_LANES; i++) {
            const struct sampling_params s = params_of(i, ints[i], bias[i]);
            set_params(&p, i, &s);
        }
        for (int32_t n = 0; turn == 1 && n < N; n++) {
            drafts[n] = r[CPU].draws[n].token;
            t.draws[n].kind = DRAW_SAMPLE;
            t.draws[n].keep = false;
        }
        pass_begin(&p, &t);
        struct sample_args args = {.n_out = N, .n_draws = N, .n_vocab_used = used};
        BOTH(&p, sample, args, args.logits = turn == 0 ? draft.t[b] : other.t[b]);
        pass_end(&p);
        step_end(&p, r);
        compare_draws(r, turn == 0 ? "drafts" : "judged drafts");
    }
    for (int32_t n = 0; n < N; n++) {
        n_accepted += r[CPU].draws[n].token == drafts[n];
    }
    CHECK(n_accepted > 0 && n_accepted < N);
    pair_close(&p);
}

enum { KIDS = 4, TREE_ROWS = KIDS + 2 };

/* A pass of N_LANES trees: a root with KIDS children, and a grandchild. Each root draws its
 * children. */
static void sibling_draws(struct test_pass *t)
{
    static const int32_t depth[TREE_ROWS] = {0, 1, 2, 1, 1, 1};
    struct seq_spec specs[N_LANES];
    for (int32_t i = 0; i < N_LANES; i++) {
        specs[i] = (struct seq_spec){50 + i, TREE_ROWS, true};
    }
    pass_of(t, specs, N_LANES, false, 79);
    for (int32_t i = 0; i < N_LANES; i++) {
        const int32_t root = i * TREE_ROWS;
        for (int32_t r = 0; r < TREE_ROWS; r++) { // row 2 is the grandchild, a child of the first
            uint64_t *mask = t->tree_mask + (size_t)(root + r) * TREE_MASK_WORDS;
            mask[0] = 1u | 1u << r | (r == 2 ? 2u : 0u);
            mask[1] = 0;
            t->rows[root + r].pos = 50 + i + depth[r];
            t->rows[root + r].token %= 90;
        }
        t->out_rows[i] = root;
        t->draws[i] = (struct pass_draw){.out_row = i,
                                         .lane = i,
                                         .pos = 50 + i,
                                         .n_prompt = 30,
                                         .kind = DRAW_DRAFT,
                                         .noise = true,
                                         .tree_row = root,
                                         .law = 1 + i,
                                         .more = KIDS - 1};
    }
    t->pass.n_out = t->pass.n_draws = N_LANES;
}

/* The children are drawn without replacement, then tried in turn under other logits. */
static void sibling_case(int32_t vocab, int32_t used, float scale, float likeness)
{
    static struct test_pass t;
    static int32_t ints[N_LANES][MAX_LISTS];
    static struct logit_bias bias[N_LANES][MAX_LISTS];
    struct pair p;
    struct backend_limits limits = pair_limits();
    limits.vocab = vocab;
    limits.max_laws = N_LANES;
    REQUIRE(pair_open(&p, DT_F32, false, &limits));
    sibling_draws(&t);
    struct pair_tensor draft = make_logits(&p, N_LANES, vocab, scale, false);
    struct pair_tensor other = make_logits(&p, N_LANES, vocab, scale, false);
    float *from = tensor_get(&p, &draft, CPU), *to = tensor_get(&p, &other, CPU);
    for (int64_t i = 0; i < (int64_t)N_LANES * vocab; i++) {
        to[i] = likeness * from[i] + (1.0f - likeness) * to[i];
    }
    tensor_put(&p, &other, to);
    free(from);
    free(to);
    struct pass_results r[2];
    int32_t kids[N_LANES][KIDS], n_first = 0, n_later = 0;
    for (int32_t turn = 0; turn < 2; turn++) {
        step_begin(&p);
        for (int32_t i = 0; turn == 0 && i < N_LANES; i++) {
            const struct sampling_params s = params_of(i, ints[i], bias[i]);
            set_params(&p, i, &s);
        }
        for (int32_t i = 0; turn == 1 && i < N_LANES; i++) {
            const struct draw_result *d = &r[CPU].draws[i];
            static const int32_t rows[KIDS] = {1, 3, 4, 5};
            for (int32_t k = 0; k < KIDS; k++) {
                kids[i][k] = k == 0 ? d->token : d->top_ids[k - 1];
                t.rows[i * TREE_ROWS + rows[k]].token = kids[i][k];
            }
            t.draws[i].kind = DRAW_SAMPLE;
            t.draws[i].more = 0;
        }
        pass_begin(&p, &t);
        struct sample_args args = {.n_out = N_LANES, .n_draws = N_LANES, .n_vocab_used = used};
        BOTH(&p, sample, args, args.logits = turn == 0 ? draft.t[b] : other.t[b]);
        pass_end(&p);
        step_end(&p, r);
        for (int32_t i = 0; i < N_LANES; i++) {
            const struct draw_result *a = &r[CPU].draws[i], *g = &r[GPU].draws[i];
            CHECK_EQ(a->token, g->token);
            CHECK_EQ(a->n_top, g->n_top);
            CHECK_EQ(a->n_top, turn == 0 ? KIDS - 1 : 0);
            CHECK_MEM(a->top_ids, g->top_ids, (size_t)a->n_top * sizeof *a->top_ids);
        }
    }
    for (int32_t i = 0; i < N_LANES; i++) {
        n_first += r[CPU].draws[i].token == kids[i][0];
        for (int32_t k = 1; k < KIDS; k++) {
            n_later += r[CPU].draws[i].token == kids[i][k] && kids[i][k] != kids[i][0];
        }
    }
    CHECK(n_first > 0 && n_later > 0 && n_first + n_later < N_LANES);
    pair_close(&p);
}

/* Drafts that are siblings in a tree are drawn without replacement. */
TEST(laws_of_siblings_and_their_trials_agree)
{
    NEED_GPU();
    sibling_case(1003, 1003, 2.0f, 0.6f);
    sibling_case(1003, 997, 3.0f, 0.3f);
    sibling_case(32000, 31999, 3.0f, 0.7f);
    sibling_case(128256, 128256, 3.0f, 0.7f);
}

/* Distributions of drafts, and their acceptance tests. */
TEST(laws_and_judgements_agree)
{
    NEED_GPU();
    law_case(1003, 1003, 2.0f, 0.8f);
    law_case(1003, 997, 4.0f, 0.5f);
    law_case(32000, 31999, 3.0f, 0.9f);
    law_case(128256, 128256, 2.0f, 0.95f);
}

/* If every token is banned, the bans are dropped; a row with NaN is an error. */
TEST(bans_of_everything_are_dropped_and_nan_is_reported)
{
    NEED_GPU();
    static struct test_pass t;
    struct pair p;
    const struct backend_limits limits = pair_limits();
    REQUIRE(pair_open(&p, DT_F32, false, &limits));
    const struct seq_spec specs[] = {{3, 1, false}, {3, 1, false}};
    pass_of(&t, specs, 2, false, 5);
    t.out_rows[1] = 1;
    for (int32_t i = 0; i < 2; i++) {
        t.draws[i] = (struct pass_draw){.out_row = i, .lane = i, .pos = 3, .tree_row = -1};
    }
    t.pass.n_out = t.pass.n_draws = 2;
    struct pair_tensor logits = make_logits(&p, 2, limits.vocab, 2.0f, false);
    float *values = tensor_get(&p, &logits, CPU);
    for (int32_t i = 0; i < limits.vocab; i++) {
        if (i % 2) {
            values[limits.vocab + i] = NAN;
        }
    }
    tensor_put(&p, &logits, values);
    struct sampling_params s = sampling_params_default();
    const int32_t only = 7, word = 7, length = 1;
    s.n_allowed = 1;
    s.allowed = &only;
    s.n_bad_words = 1;
    s.bad_word_lengths = &length;
    s.bad_word_tokens = &word;
    step_begin(&p);
    set_params(&p, 0, &s);
    s = sampling_params_default();
    s.top_p = 0.9f;
    set_params(&p, 1, &s);
    pass_begin(&p, &t);
    struct sample_args a = {.n_out = 2, .n_draws = 2, .n_vocab_used = limits.vocab};
    BOTH(&p, sample, a, a.logits = logits.t[b]);
    pass_end(&p);
    struct pass_results r[2];
    step_end(&p, r);
    CHECK_EQ(r[CPU].draws[0].token, r[GPU].draws[0].token);
    CHECK(!r[CPU].draws[0].broken && !r[GPU].draws[0].broken);
    CHECK(r[CPU].draws[1].broken && r[GPU].draws[1].broken);
    free(values);
    pair_close(&p);
}

/* Quotients that overflow, vanish or lose digits: no token that could win is skipped. */
TEST(draws_at_extreme_temperatures_agree)
{
    NEED_GPU();
    static const float temperatures[] = {1.2e-38f, 1e-30f, 1e-3f, 0.1f,   1.0f,
                                         9.0f,     1e3f,   1e30f, 3.3e38f};
    enum { N = sizeof temperatures / sizeof temperatures[0] };
    static struct test_pass t;
    struct pair p;
    struct backend_limits limits = pair_limits();
    limits.vocab = 32001;
    REQUIRE(pair_open(&p, DT_F32, false, &limits));
    struct seq_spec specs[N];
    for (int32_t i = 0; i < N; i++) {
        specs[i] = (struct seq_spec){3, 1, false};
        t.out_rows[i] = i;
        t.draws[i] = (struct pass_draw){.out_row = i, .lane = i, .pos = 3, .tree_row = -1};
    }
    pass_of(&t, specs, N, false, 6);
    t.pass.n_out = t.pass.n_draws = N;
    struct pair_tensor logits = make_logits(&p, N, limits.vocab, 3.0f, false);
    for (uint64_t seed = 0; seed < 8; seed++) {
        step_begin(&p);
        for (int32_t i = 0; i < N; i++) {
            struct sampling_params s = sampling_params_default();
            s.temperature = temperatures[i];
            s.seed = 1000 * seed + (uint64_t)i;
            set_params(&p, i, &s);
        }
        pass_begin(&p, &t);
        struct sample_args a = {.n_out = N, .n_draws = N, .n_vocab_used = limits.vocab};
        BOTH(&p, sample, a, a.logits = logits.t[b]);
        pass_end(&p);
        struct pass_results r[2];
        step_end(&p, r);
        compare_draws(r, "extreme temperatures");
    }
    pair_close(&p);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
