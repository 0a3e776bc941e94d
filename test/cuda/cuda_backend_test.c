// SPDX-License-Identifier: Apache-2.0
/* The host side: opening without a device, limits, staging of large updates, graphs, and two steps
 * in flight. */
#include "test/cuda/cuda_pass.h"

#define COUNT(a) (int32_t)(sizeof(a) / sizeof((a)[0]))

/* The message is shown to users, so it must not be empty. */
TEST(without_a_device_opening_says_why)
{
    if (cuda_device_count() > 0) {
        SKIP("this machine has a CUDA device");
    }
    const struct backend_options o = {.n_ranks = 1, .dtype = DT_BF16};
    struct backend *be = NULL;
    struct err err = {""};
    CHECK(cuda_open(&o, &be, &err) != OK);
    CHECK(be == NULL);
    CHECK(strlen(err.text) > 10);
}

/* Code runs on later minor versions of the same major version; "90a" runs on 9.0 only. */
TEST(a_build_runs_on_the_devices_it_has_code_for)
{
#ifdef SLUICE_CUDA
    CHECK(cuda_arch_runs("80 90a", 80));
    CHECK(cuda_arch_runs("80 90a", 86));
    CHECK(cuda_arch_runs("80  90a ", 90));
    CHECK(cuda_arch_runs("86 89", 89));
    CHECK(!cuda_arch_runs("80", 90));
    CHECK(!cuda_arch_runs("80 90", 90)); // Hopper's kernels are empty without the "a"
    CHECK(!cuda_arch_runs("86", 80));
    CHECK(!cuda_arch_runs("80 90a", 100));
    CHECK(!cuda_arch_runs("100", 80));
    CHECK(!cuda_arch_runs("", 80));
    CHECK(!cuda_arch_runs("native", 80));
#else
    SKIP("built without CUDA");
#endif
}

/* The message has the device's number, since that is usually a mistyped option. */
TEST(a_missing_device_is_refused)
{
    NEED_GPU();
    const struct backend_options o = {.n_ranks = 1, .dtype = DT_BF16, .device = 99};
    struct backend *be = NULL;
    struct err err = {""};
    CHECK_EQ(cuda_open(&o, &be, &err), ERR_INVALID);
    CHECK(strstr(err.text, "99"));
}

/* Wrong arguments of the engine are refused before they reach the device, where they would
 * overwrite other memory. */
TEST(bad_calls_are_refused)
{
    NEED_GPU();
    struct pair p;
    const struct backend_limits limits = pair_limits();
    REQUIRE(pair_open(&p, DT_BF16, false, &limits));
    struct backend *be = p.be[GPU];
    const int32_t one = 1, far = limits.n_blocks;
    CHECK_EQ(be->ops->step_begin(be, 9), ERR_INVALID);
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    CHECK_EQ(be->ops->lane_tokens(be, limits.max_lanes, 0, 1, &one), ERR_INVALID);
    CHECK_EQ(be->ops->lane_tokens(be, 0, 1 << 20, 1, &one), ERR_INVALID);
    CHECK_EQ(be->ops->lane_blocks(be, 0, 0, 1, &far), ERR_INVALID);
    CHECK_EQ(be->ops->lane_pages(be, 0, 0, 1, &one), ERR_INVALID); // there are none
    static struct test_pass t;
    const struct seq_spec specs[] = {{0, 4, false}};
    struct pass_shape shape;
    pass_of(&t, specs, 1, false, 1);
    t.rows[2].lane = -1;
    CHECK_EQ(be->ops->pass_begin(be, &t.pass, &shape), ERR_INVALID);
    t.rows[2].lane = 0;
    t.rows[3].slot_pos = limits.max_blocks_per_lane * limits.block_tokens;
    CHECK_EQ(be->ops->pass_begin(be, &t.pass, &shape), ERR_INVALID);
    t.rows[3].slot_pos = 3;
    CHECK_EQ(be->ops->pass_begin(be, &t.pass, &shape), OK);
    CHECK_EQ(be->ops->pass_end(be), OK);
    CHECK_EQ(be->ops->step_end(be), OK);
    pair_close(&p);
}

enum { N_SCORED = 8 }; // lanes whose tokens are scored

/* Ends the step with scores of the first lanes' tokens at pos. A score reads the history, so it
 * returns the token that was written there. */
static void score_history(struct pair *p, int32_t vocab, const int32_t *pos, int32_t *tokens)
{
    struct backend *be = p->be[GPU];
    static struct test_pass t;
    const struct seq_spec specs[] = {{0, 1, false}};
    pass_of(&t, specs, 1, false, 1);
    for (int32_t i = 0; i < N_SCORED; i++) {
        t.draws[i] =
            (struct pass_draw){.lane = i, .pos = pos[i] - 1, .kind = DRAW_SCORE, .tree_row = -1};
    }
    t.pass.n_out = 1;
    t.pass.n_draws = N_SCORED;
    t.out_rows[0] = 0;
    struct pair_tensor logits = tensor_random(p, 1, vocab, vocab, 1.0f);
    logits.t[GPU].dtype = DT_F32;
    CHECK_EQ(be->ops->alloc(be, (size_t)vocab * 4, &logits.t[GPU].mem), OK);
    struct pass_shape shape;
    CHECK_EQ(be->ops->pass_begin(be, &t.pass, &shape), OK);
    const struct sample_args a = {
        .logits = logits.t[GPU], .n_out = 1, .n_draws = N_SCORED, .n_vocab_used = vocab};
    CHECK_EQ(be->ops->sample(be, &a), OK);
    CHECK_EQ(be->ops->pass_end(be), OK);
    CHECK_EQ(be->ops->step_end(be), OK);
    struct pass_results r;
    CHECK_EQ(be->ops->step_wait(be, 0, &r, 1), OK);
    for (int32_t i = 0; i < N_SCORED; i++) {
        tokens[i] = r.draws[i].token;
    }
}

/* More than the staging memory holds, in one step. */
TEST(large_updates_arrive_whole)
{
    NEED_GPU();
    struct backend_limits limits = pair_limits();
    limits.max_len = 1 << 20;
    struct pair p;
    REQUIRE(pair_open(&p, DT_BF16, false, &limits));
    struct backend *be = p.be[GPU];
    int32_t *tokens = xmalloc((size_t)limits.max_len * sizeof *tokens);
    int32_t pos[N_SCORED], got[N_SCORED];
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    for (int32_t lane = 0; lane < N_SCORED; lane++) {
        for (int32_t i = 0; i < limits.max_len; i++) {
            tokens[i] = (i * 7 + lane) % limits.vocab;
        }
        CHECK_EQ(be->ops->lane_tokens(be, lane, 0, limits.max_len, tokens), OK);
        pos[lane] = 130000 * (lane + 1) - 1;
    }
    score_history(&p, limits.vocab, pos, got);
    for (int32_t i = 0; i < N_SCORED; i++) {
        CHECK_EQ(got[i], (pos[i] * 7 + i) % limits.vocab);
    }
    free(tokens);
    pair_close(&p);
}

/* This happens if a lane's request ends with tokens in flight and the next request takes the lane
 * in the same step. */
TEST(of_two_updates_the_later_one_wins)
{
    NEED_GPU();
    /* The long updates together exceed the staging memory. */
    enum { LONG = 5 * 65536 + 60000, SHORT = 10 };
    struct backend_limits limits = pair_limits();
    limits.max_len = LONG;
    struct pair p;
    REQUIRE(pair_open(&p, DT_BF16, false, &limits));
    struct backend *be = p.be[GPU];
    int32_t *tokens = xmalloc(LONG * sizeof *tokens);
    int32_t pos[N_SCORED], got[N_SCORED];
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    for (int32_t later = 0; later < 2; later++) {
        for (int32_t i = 0; i < LONG; i++) {
            tokens[i] = 1 + later;
        }
        for (int32_t lane = 0; lane < N_SCORED; lane++) {
            pos[lane] = LONG - SHORT - 1000 * lane;
            CHECK_EQ(
                be->ops->lane_tokens(be, lane, later ? pos[lane] : 0, later ? SHORT : LONG, tokens),
                OK);
        }
    }
    score_history(&p, limits.vocab, pos, got);
    for (int32_t i = 0; i < N_SCORED; i++) {
        CHECK_EQ(got[i], 2);
    }
    free(tokens);
    pair_close(&p);
}

/* A toy model: the next token's logits are the head times the embedding of the last. */
struct toy {
    struct pair p;
    struct pair_weight embed, head;
    struct pair_tensor x, out, logits;
    int32_t n_issued;
};

/* A model of one embedding and one product; with a graph of this size the ops are not
 * issued again. */
static void toy_pass(struct toy *m, int b, const struct pass *pass)
{
    struct backend *be = m->p.be[b];
    struct pass_shape shape;
    CHECK_EQ(be->ops->pass_begin(be, pass, &shape), OK);
    if (shape.issue) {
        m->n_issued += b == GPU;
        const struct embed_args e = {m->embed.w[b], m->x.t[b], shape.n_rows, .scale = 1.0f};
        CHECK_EQ(be->ops->embed(be, &e), OK);
        const struct gather_args g = {m->x.t[b], m->out.t[b], shape.n_out, m->p.limits.hidden};
        CHECK_EQ(be->ops->gather(be, &g), OK);
        const struct linear_args l = {.weight = m->head.w[b],
                                      .x = m->out.t[b],
                                      .y = m->logits.t[b],
                                      .n_rows = shape.n_out,
                                      .head = true};
        CHECK_EQ(be->ops->linear(be, &l), OK);
        const struct sample_args s = {.logits = m->logits.t[b],
                                      .n_out = shape.n_out,
                                      .n_draws = shape.n_draws,
                                      .n_vocab_used = m->p.limits.vocab};
        CHECK_EQ(be->ops->sample(be, &s), OK);
    }
    CHECK_EQ(be->ops->pass_end(be), OK);
}

/* A step's pass: each sequence's last token draws the next one, after rows without draws. */
static void toy_rows(struct test_pass *t, int32_t n, int32_t step, int32_t n_each)
{
    const int32_t last = step + n_each - 1; // position
    memset(&t->pass, 0, sizeof t->pass);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t r = 0; r < n_each; r++) {
            const int32_t pos = step + r, token = pos < last ? 100 * r + i : -1;
            t->rows[i * n_each + r] = (struct pass_row){i, token, pos, pos};
        }
        t->seqs[i] = (struct pass_seq){i, i * n_each, n_each, step, false, 0, 0};
        t->out_rows[i] = (i + 1) * n_each - 1;
        t->draws[i] =
            (struct pass_draw){.out_row = i, .lane = i, .pos = last, .keep = true, .tree_row = -1};
    }
    t->pass.n_rows = n * n_each;
    t->pass.n_seqs = t->pass.n_out = t->pass.n_draws = n;
    t->pass.rows = t->rows;
    t->pass.seqs = t->seqs;
    t->pass.out_rows = t->out_rows;
    t->pass.draws = t->draws;
}

/* Decodes with two steps in flight and a changing batch; returns the tokens of the backend. */
static void toy_decode(struct toy *m, int b, int32_t n_steps, int32_t n_each, int32_t *tokens)
{
    struct backend *be = m->p.be[b];
    const int32_t n_lanes = m->p.limits.max_lanes;
    int32_t counts[2] = {0, 0};
    for (int32_t step = 0; step <= n_steps; step++) {
        if (step < n_steps) {
            static struct test_pass t;
            const int32_t n = counts[step % 2] = n_lanes - step % 5; // between buckets
            CHECK_EQ(be->ops->step_begin(be, step % 2), OK);
            if (step == 0) {
                for (int32_t i = 0; i < n_lanes; i++) {
                    struct sampling_params s = sampling_params_default();
                    s.seed = (uint64_t)i;
                    s.temperature = i % 2 ? 0.8f : 0.0f;
                    CHECK_EQ(be->ops->lane_params(be, i, &s), OK);
                    int32_t start[64] = {0};
                    start[n_each - 1] = i;
                    CHECK_EQ(be->ops->lane_tokens(be, i, 0, 64, start), OK);
                }
            }
            toy_rows(&t, n, step, n_each);
            toy_pass(m, b, &t.pass);
            CHECK_EQ(be->ops->step_end(be), OK);
        }
        if (step > 0) { // waits for the step before, while this one runs
            struct pass_results r;
            CHECK_EQ(be->ops->step_wait(be, (step - 1) % 2, &r, 1), OK);
            CHECK(be->ops->step_done(be, (step - 1) % 2));
            CHECK_EQ(r.n_draws, counts[(step - 1) % 2]);
            for (int32_t i = 0; i < n_lanes; i++) {
                if (i < r.n_draws) {
                    tokens[(step - 1) * n_lanes + i] = r.draws[i].token;
                } else {
                    tokens[(step - 1) * n_lanes + i] = -1;
                }
            }
        }
    }
}

/* Steps of several sizes in two slots: graphs are replayed, and their results must be
 * those of issued ops. */
static void replay_case(int32_t n_each)
{
    enum { STEPS = 40 };
    struct toy m;
    memset(&m, 0, sizeof m);
    const struct backend_limits limits = pair_limits();
    REQUIRE(pair_open(&m.p, DT_F32, true, &limits));
    m.embed = weight_make(&m.p, WEIGHT_EMBED, DT_F32, 1, limits.vocab, limits.hidden, false, 1.0f);
    m.head = weight_make(&m.p, WEIGHT_LINEAR, DT_F32, 1, limits.vocab, limits.hidden, false, 0.5f);
    m.x = tensor_poisoned(&m.p, limits.max_rows, limits.hidden, DT_F32);
    m.out = tensor_poisoned(&m.p, limits.max_out_rows, limits.hidden, DT_F32);
    m.logits = tensor_poisoned(&m.p, limits.max_out_rows, limits.vocab, DT_F32);
    int32_t *tokens[2] = {NULL, NULL};
    for (int b = FIRST; b <= GPU; b++) {
        tokens[b] = xcalloc(STEPS * (size_t)limits.max_lanes, sizeof(int32_t));
        toy_decode(&m, b, STEPS, n_each, tokens[b]);
    }
    CHECK(m.n_issued <= 6); // ops are issued twice for each bucket
    for (int32_t i = 0; COMPARED && i < STEPS * limits.max_lanes; i++) {
        if (tokens[CPU][i] != tokens[GPU][i]) {
            CHECK_FAIL("%d rows each: step %d lane %d: %d, not %d", n_each, i / limits.max_lanes,
                       i % limits.max_lanes, tokens[GPU][i], tokens[CPU][i]);
        }
    }
    free(tokens[CPU]);
    free(tokens[GPU]);
    pair_close(&m.p);
}

TEST(graphs_replay_the_issued_ops)
{
    NEED_GPU();
    replay_case(1);
    replay_case(3); // three times as many rows as draws, in other buckets
}

/* Captured passes are padded to buckets. Buffers have the length of the limits, not of a bucket. */
TEST(no_bucket_is_longer_than_the_limit)
{
    NEED_GPU();
    struct pair p;
    struct backend_limits limits = pair_limits();
    limits.max_rows = limits.max_out_rows = 100;
    REQUIRE(pair_open(&p, DT_F32, true, &limits));
    struct pair_weight embed =
        weight_make(&p, WEIGHT_EMBED, DT_F32, 1, limits.vocab, limits.hidden, false, 1.0f);
    struct pair_tensor x = tensor_poisoned(&p, limits.max_rows, limits.hidden, DT_F32);
    struct backend *be = p.be[GPU];
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    static struct test_pass t;
    for (int32_t n = 95; n <= 98; n++) { // 96 is a bucket; the next one exceeds the limit
        pass_of(&t, &(struct seq_spec){.n_new = n}, 1, false, 1);
        t.pass.model = n % 2;
        struct pass_shape shape;
        CHECK_EQ(be->ops->pass_begin(be, &t.pass, &shape), OK);
        CHECK_EQ(shape.n_rows, n <= 96 ? 96 : 100);
        if (shape.issue) {
            const struct embed_args e = {embed.w[GPU], x.t[GPU], shape.n_rows, .scale = 1.0f};
            CHECK_EQ(be->ops->embed(be, &e), OK);
        }
        CHECK_EQ(be->ops->pass_end(be), OK);
    }
    CHECK_EQ(be->ops->step_end(be), OK);
    struct pass_results r;
    CHECK_EQ(be->ops->step_wait(be, 0, &r, 1), OK);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
