// SPDX-License-Identifier: Apache-2.0
/* The output head leaves only what draws read, and the best logits of bands for greedy ones: all
 * draws take the tokens that the whole logits give. */
#include "engine/base/minmax.h"
#include "test/cuda/cuda_coded.h"
#include "test/cuda/cuda_draws.h"

/* One pass over the head's rows: draws of all kinds, or the same draws with log-probabilities,
 * which need all logits. Rows of the null lane pad the pass; the last out row has no draw. */
static void head_pass(struct pair *p, struct test_pass *t, struct linear_args head,
                      struct logits_args *logits, bool logprobs, struct draw_result *results)
{
    struct backend *be = p->be[GPU];
    struct pass_shape shape;
    for (int32_t i = 0; i < t->pass.n_draws; i++) {
        t->draws[i].logprobs = logprobs || i % 7 == 3;
    }
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    CHECK_EQ(be->ops->pass_begin(be, &t->pass, &shape), OK);
    struct logit_bests bests = {.n_bands = 0};
    head.bests = &bests;
    CHECK_EQ(be->ops->linear(be, &head), OK);
    CHECK_EQ(be->ops->logits(be, logits), OK);
    const struct sample_args sample = {.logits = logits->logits,
                                       .n_out = t->pass.n_out,
                                       .n_draws = t->pass.n_draws,
                                       .n_vocab_used = logits->vocab,
                                       .bests = bests};
    CHECK_EQ(be->ops->sample(be, &sample), OK);
    CHECK_EQ(be->ops->pass_end(be), OK);
    CHECK_EQ(be->ops->step_end(be), OK);
    struct pass_results mine[4];
    CHECK_EQ(be->ops->step_wait(be, 0, mine, 4), OK);
    CHECK_EQ(mine[0].n_draws, t->pass.n_draws);
    memcpy(results, mine[0].draws, (size_t)mine[0].n_draws * sizeof *results);
}

/* Random; every fifth row is zero, and so are its logits. */
static struct pair_tensor head_input(struct pair *p, int32_t n_rows, int32_t width)
{
    struct pair_tensor x = tensor_random(p, n_rows, width, width + 8, 1.0f);
    float *values = tensor_get(p, &x, CPU);
    for (int32_t r = 2; r < n_rows; r += 5) {
        memset(values + (size_t)r * (size_t)x.stride, 0, (size_t)width * sizeof *values);
    }
    tensor_put(p, &x, values);
    free(values);
    return x;
}

enum { HEAD_WIDTH = 96, CODED_WIDTH = 512 };

/* Makes a pass of n_out rows with draws of several kinds, in the reverse order of the rows. */
static void head_draws(struct test_pass *t, int32_t n_out)
{
    struct seq_spec specs[N_LANES] = {{0}};
    for (int32_t i = 0; i < n_out; i++) {
        specs[i % N_LANES].n_past = 50;
        specs[i % N_LANES].n_new++;
    }
    pass_of(t, specs, lesser(n_out, N_LANES), false, 80);
    for (int32_t n = 0; n < n_out; n++) {
        t->out_rows[n] = n;
        t->draws[n] = (struct pass_draw){.out_row = n_out - 1 - n,
                                         .lane = t->rows[n].lane,
                                         .pos = t->rows[n].pos,
                                         .n_prompt = 30,
                                         .kind = n % 11 == 5 ? DRAW_DRAFT : DRAW_SAMPLE,
                                         .noise = n % 2 == 0,
                                         .top_n = n % 14 == 3 ? 5 : 0,
                                         .tree_row = -1};
    }
    t->pass.n_out = n_out;
    t->pass.n_draws = n_out > 1 ? n_out - 1 : 1;
}

/* Lanes with even numbers draw greedily. */
static void head_params(struct pair *p)
{
    static int32_t ints[N_LANES][MAX_LISTS];
    static struct logit_bias bias[N_LANES][MAX_LISTS];
    step_begin(p);
    for (int32_t i = 0; i < N_LANES; i++) {
        struct sampling_params s = params_of(i, ints[i], bias[i]);
        if (i % 2 == 0) {
            s = sampling_params_default();
            s.temperature = 0.0f;
        }
        set_params(p, i, &s);
    }
    step_end(p, NULL);
}

/* Compares the draws `got` with those of `whole`, for which all logits were kept. Returns the
 * number of rows whose logits were not kept. */
static int32_t check_head_draws(const struct test_pass *t, int32_t vocab, const float *left,
                                const float *all, const struct draw_result *got,
                                const struct draw_result *whole)
{
    int32_t n_skipped = 0;
    for (int32_t i = 0; i < t->pass.n_draws; i++) {
        const size_t row = (size_t)t->draws[i].out_row * (size_t)vocab;
        CHECK_EQ(got[i].token, whole[i].token);
        if (t->draws[i].lane % 2 == 0) {
            int32_t best = 0;
            for (int32_t f = 1; f < vocab; f++) {
                if (all[row + (size_t)f] > all[row + (size_t)best]) {
                    best = f;
                }
            }
            CHECK_EQ(got[i].token, best);
        }
        if (isnan(left[row])) {
            n_skipped++;
        } else {
            CHECK_MEM(all + row, left + row, (size_t)vocab * sizeof *all);
        }
    }
    return n_skipped;
}

/* Whether the device can run head.cu and four_head.cu: "NVIDIA H200", "NVIDIA GH200 480GB". */
static bool is_hopper(struct pair *p)
{
    struct backend_facts facts;
    CHECK_EQ(p->be[GPU]->ops->facts(p->be[GPU], &facts), OK);
    return strstr(facts.device, " H") || strstr(facts.device, " GH");
}

/* f: the format of a weight that stays quantised; NULL: it has 16 bits. */
static struct pair_weight head_weight(struct pair *p, const struct format *f, int32_t vocab,
                                      int32_t width)
{
    if (!f) {
        return weight_make(p, WEIGHT_LINEAR, p->dtype, 1, vocab, width, false, 0.1f);
    }
    struct weight_part whole = make_tensor(f, vocab, width);
    struct pair_weight w = open_parts(p, WEIGHT_LINEAR, &whole, 1, 1, false);
    free_tensor(&whole);
    return w;
}

/* The head keeps only what greedy draws need. They and the other draws of the pass must take the
 * tokens that the logits give. */
static void head_case(int32_t n_out, int32_t vocab, enum dtype dtype, const struct format *f,
                      bool may_skip)
{
    const int32_t width = f ? CODED_WIDTH : HEAD_WIDTH;
    static struct test_pass t;
    static struct draw_result got[MAX_TEST_ROWS], whole[MAX_TEST_ROWS];
    struct pair p;
    struct backend_limits limits = pair_limits();
    limits.vocab = vocab;
    REQUIRE(pair_open(&p, dtype, false, &limits));
    head_draws(&t, n_out);
    struct pair_weight w = head_weight(&p, f, vocab, width);
    struct pair_tensor x = head_input(&p, n_out, width);
    struct pair_tensor logits = tensor_poisoned(&p, n_out, vocab, DT_F32);
    const struct linear_args head = {.weight = w.w[GPU],
                                     .x = x.t[GPU],
                                     .y = logits.t[GPU],
                                     .n_rows = n_out,
                                     .head = true,
                                     .n_drawn = vocab};
    struct logits_args args = {.local = logits.t[GPU],
                               .logits = logits.t[GPU],
                               .n_out = n_out,
                               .vocab = vocab,
                               .scale = 1.0f};
    head_params(&p);
    head_pass(&p, &t, head, &args, false, got);
    float *left = tensor_get(&p, &logits, GPU);
    head_pass(&p, &t, head, &args, true, whole);
    float *all = tensor_get(&p, &logits, GPU);
    const int32_t n_skipped = check_head_draws(&t, vocab, left, all, got, whole);
    if (may_skip && is_hopper(&p)) {
        CHECK(n_skipped > t.pass.n_draws / 4);
    } else {
        CHECK_EQ(n_skipped, 0);
    }
    free(left);
    free(all);
    pair_close(&p);
}

struct head_rows {
    int32_t rows;
    bool may_skip; // whether gemm_head_takes allows it
};

/* Separate tests, since a race checker takes minutes for each. */
static void head_cases(const struct head_rows *cases, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const enum dtype dtype = i % 2 == 0 ? DT_F16 : DT_BF16;
        head_case(cases[i].rows, 40000 + 2 * i, dtype, NULL, cases[i].may_skip);
        head_case(cases[i].rows, 33600 + 2 * i, dtype, NULL, cases[i].may_skip); // in wide bands
    }
}

TEST(greedy_draws_of_few_rows_take_what_the_head_leaves)
{
    NEED_GPU();
    static const struct head_rows cases[] = {{1, false}, {15, false}, {16, true}};
    head_cases(cases, COUNT(cases));
}

TEST(greedy_draws_of_64_rows_take_what_the_head_leaves)
{
    NEED_GPU();
    static const struct head_rows cases[] = {{64, true}, {65, true}};
    head_cases(cases, COUNT(cases));
}

TEST(greedy_draws_of_128_rows_take_what_the_head_leaves)
{
    NEED_GPU();
    static const struct head_rows cases[] = {{100, true}, {128, true}, {129, false}};
    head_cases(cases, COUNT(cases));
}

TEST(greedy_draws_of_208_rows_take_what_the_head_leaves)
{
    NEED_GPU();
    static const struct head_rows cases[] = {{208, false}, {209, true}};
    head_cases(cases, COUNT(cases));
}

TEST(greedy_draws_of_256_rows_take_what_the_head_leaves)
{
    NEED_GPU();
    static const struct head_rows cases[] = {{256, true}, {257, false}};
    head_cases(cases, COUNT(cases));
}

/* Enough features for a pair of tile rows for each warp of 132 multiprocessors. */
TEST(greedy_draws_take_what_a_quantised_head_leaves)
{
    NEED_GPU();
    static const struct head_rows cases[] = {{1, true}, {3, true}, {8, true}, {9, false}};
    for (int32_t i = 0; i < COUNT(formats); i++) {
        const struct format *f = &formats[i];
        const bool is_int = f->values == DT_U4 && f->block_cols == 128 && !f->has_order;
        for (int32_t c = 0; c < COUNT(cases) && (is_int || f->scales == DT_E8M0); c++) {
            head_case(cases[c].rows, 67584 + 32 * c + 20, DT_BF16, f, cases[c].may_skip);
        }
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
