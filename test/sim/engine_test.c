/* The engine's promises one by one, on the backend that hashes: each test decides one capability. */
#include "engine/base/clock.h"
#include "engine/engine_state.h"
#include "test/check.h"
#include "test/sim/count_malloc.h"
#include "test/sim/fake_backend.h"

enum { VOCAB = 384, MAX_REQUESTS = 80, MAX_PROMPT = 2100, MAX_OUT = 128 };

struct test_request {
    struct engine_request r;
    struct engine_output outputs[8];
    int32_t prompt[MAX_PROMPT], tokens[8][MAX_OUT];
};

struct bed {
    struct fake_control control;
    struct engine *e;
    int32_t n_done;
};

static struct test_request requests[MAX_REQUESTS];

static struct engine_options options_of(struct bed *b, int32_t block, int32_t n_blocks)
{
    return (struct engine_options){.model_dir = "test/golden/llama-3", .dummy_weights = true,
                                   .open_backend = fake_open, .open_arg = &b->control,
                                   .no_thread = true, .block_size = block, .n_blocks = n_blocks};
}

static bool start(struct bed *b, const struct engine_options *o)
{
    struct err err;
    enum status st = engine_open(o, &b->e, &err);
    if (st != OK) {
        CHECK_FAIL("open: %s", err.text);
    }
    return st == OK;
}

static void on_event(struct engine_request *r, void *arg)
{
    struct bed *b = arg;
    b->n_done += r->done;
}

/* Takes turns until n requests are done, at most max_turns; returns the turns taken. */
static int32_t run(struct bed *b, int32_t n, int32_t max_turns)
{
    int32_t turn = 0;
    for (; turn < max_turns && b->n_done < n; turn++) {
        engine_turn(b->e);
        scheduler_check(&b->e->scheduler);
        engine_drain(b->e, on_event, b);
    }
    CHECK_EQ(b->n_done, n);
    b->n_done = 0;
    return turn;
}

static void stop(struct bed *b)
{
    engine_stop_all(b->e);
    engine_drain(b->e, on_event, b);
    engine_close(b->e);
}

/* Prompt tokens first, first + 1, ... (of 300 ids). */
static struct test_request *make(int32_t i, int32_t first, int32_t n_prompt, int32_t max_tokens)
{
    struct test_request *q = &requests[i];
    memset(q, 0, sizeof *q);
    for (int32_t k = 0; k < n_prompt; k++) {
        q->prompt[k] = (first + k) % 300;
    }
    q->r.prompt = q->prompt;
    q->r.n_prompt = n_prompt;
    q->r.params = sampling_params_default();
    q->r.params.max_tokens = max_tokens;
    q->r.n = 1;
    q->r.outputs = q->outputs;
    for (int32_t s = 0; s < 8; s++) {
        q->outputs[s].tokens = q->tokens[s];
    }
    return q;
}

static void submit(struct bed *b, struct test_request *q)
{
    struct err err;
    enum status st = engine_submit(b->e, &q->r, &err);
    if (st != OK) {
        CHECK_FAIL("submit: %s", err.text);
    }
}

static void check_answer(int32_t i)
{
    const struct test_request *q = &requests[i];
    int32_t known[MAX_PROMPT + MAX_OUT], n = q->r.n_prompt;
    memcpy(known, q->prompt, sizeof q->prompt);
    CHECK_EQ(q->outputs[0].n_tokens, q->r.params.max_tokens);
    for (int32_t k = 0; k < q->outputs[0].n_tokens; k++, n++) {
        CHECK_EQ(q->tokens[0][k], fake_next(known, n, 0, VOCAB));
        known[n] = q->tokens[0][k];
    }
}

TEST(two_requests_that_do_not_fit_together_both_end)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 10); // 40 tokens; each needs 30
    o.max_num_batched_tokens = 20;
    o.max_num_seqs = 4;
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 10, 20));
    submit(&b, make(1, 100, 10, 20));
    CHECK(run(&b, 2, 200) < 80);
    CHECK_EQ(requests[0].outputs[0].n_tokens, 20);
    CHECK_EQ(requests[1].outputs[0].n_tokens, 20);
    stop(&b);
}

TEST(a_prompt_that_can_never_fit_is_refused_with_both_lengths)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 10);
    REQUIRE(start(&b, &o));
    struct err err;
    CHECK_EQ(engine_submit(b.e, &make(0, 0, 60, 1)->r, &err), ERR_INVALID);
    CHECK(strstr(err.text, "60") && strstr(err.text, "40"));
    stop(&b);
}

TEST(a_restore_longer_than_the_budget_completes)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 30); // 120 tokens
    o.max_num_batched_tokens = 8;
    o.max_num_seqs = 3;
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < 3; i++) {
        submit(&b, make(i, 100 * i, 20, 60)); // 80 each: preempted again and again
    }
    run(&b, 3, 3000);
    int32_t known[80];
    for (int32_t i = 0; i < 3; i++) {
        CHECK_EQ(requests[i].outputs[0].n_tokens, 60);
        memcpy(known, requests[i].prompt, 20 * sizeof *known);
        memcpy(known + 20, requests[i].tokens[0], 60 * sizeof *known);
        CHECK_EQ(known[79], fake_next(known, 79, 0, VOCAB));
    }
    CHECK(b.e->scheduler.n_preemptions > 0);
    stop(&b);
}

TEST(many_requests_with_one_unseen_prefix_compute_it_once)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 16, 1000);
    o.max_model_len = 4096;
    o.max_num_seqs = 64;
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < 64; i++) {
        struct test_request *q = make(i, 0, 2001, 1);
        q->prompt[2000] = i;
        submit(&b, q);
    }
    run(&b, 64, 200);
    CHECK(b.control.n_rows <= 2001 + 63 + 16);
    CHECK(b.e->scheduler.prefix_hits >= 63 * 2000);
    stop(&b);
}

TEST(a_second_turn_hits_the_first_ones_prompt_and_answer)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 100);
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 21, 30));
    run(&b, 1, 100);
    struct test_request *q = make(1, 0, 61, 1);
    memcpy(q->prompt + 21, requests[0].tokens[0], 30 * sizeof *q->prompt);
    submit(&b, q);
    run(&b, 1, 100);
    CHECK_EQ(q->r.n_cached, (21 + 30 - 1) / 4 * 4);
    stop(&b);
}

/* The last token of an answer was never fed, so a block that ends with it is not there. */
TEST(a_block_whose_last_token_was_not_computed_is_not_found)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 100);
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 21, 31)); // 52 tokens: 13 blocks
    run(&b, 1, 100);
    struct test_request *q = make(1, 0, 61, 3);
    memcpy(q->prompt + 21, requests[0].tokens[0], 31 * sizeof *q->prompt);
    submit(&b, q);
    run(&b, 1, 100);
    CHECK_EQ(q->r.n_cached, 48);
    CHECK_EQ(b.control.n_wrong, 0);
    check_answer(1);
    stop(&b);
}

TEST(a_full_hit_still_computes_one_block)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 100);
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < 2; i++) {
        submit(&b, make(i, 0, 20, 3));
        run(&b, 1, 100);
    }
    CHECK_EQ(requests[0].r.n_cached, 0);
    CHECK_EQ(requests[1].r.n_cached, 16);
    CHECK_MEM(requests[0].tokens[0], requests[1].tokens[0], 3 * sizeof(int32_t));
    stop(&b);
}

TEST(two_salts_never_share)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 100);
    REQUIRE(start(&b, &o));
    static const char *const salts[] = {"a", "b", "a", NULL};
    static const int32_t hits[] = {0, 0, 16, 0};
    for (int32_t i = 0; i < 4; i++) {
        struct test_request *q = make(i, 0, 20, 1);
        q->r.cache_salt = salts[i];
        submit(&b, q);
        run(&b, 1, 100);
        CHECK_EQ(q->r.n_cached, hits[i]);
    }
    stop(&b);
}

/* Takes turns until request i has n tokens. */
static void run_until(struct bed *b, int32_t i, int32_t n)
{
    for (int32_t turn = 0; turn < 200 && requests[i].outputs[0].n_tokens < n; turn++) {
        engine_turn(b->e);
        engine_drain(b->e, on_event, b);
    }
    CHECK(requests[i].outputs[0].n_tokens >= n);
}

/* What a preempted sequence leaves stays findable until somebody needs its room. */
TEST(a_restore_finds_what_was_not_needed_by_others)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 20); // 80 tokens
    REQUIRE(start(&b, &o));
    struct test_request *first = make(0, 0, 40, 30);
    submit(&b, first);
    run_until(&b, 0, 12);                              // 13 or 14 blocks
    struct test_request *urgent = make(1, 100, 38, 4); // 11 blocks: four more than are free
    urgent->r.priority = -1;
    submit(&b, urgent);
    run(&b, 2, 200);
    CHECK_EQ(first->r.n_preemptions, 1);
    check_answer(0);
    check_answer(1);
    // 69 rows of the first, 41 of the other, and what was computed twice: a few blocks, not all.
    int64_t twice = b.control.n_rows - 69 - 41;
    CHECK(twice > 0 && twice <= 5 * 4);
    // The restore is no look-up of a request, and its finds are no hits.
    CHECK_EQ(b.e->scheduler.prefix_queries, 40 + 38);
    CHECK_EQ(b.e->scheduler.prefix_hits, 0);
    CHECK_EQ(first->r.n_cached, 0);
    stop(&b);
}

/* It need not be a new prompt that brings an evicted prefix back. */
TEST(an_evicted_prefix_comes_back_with_the_sequence_that_is_restored)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 16); // 64 tokens
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 20, 30));
    run_until(&b, 0, 8);
    struct test_request *urgent = make(1, 100, 58, 6); // all 16 blocks
    urgent->r.priority = -1;
    submit(&b, urgent);
    run_until(&b, 1, 6);
    CHECK_EQ(requests[0].r.n_preemptions, 1);
    run_until(&b, 0, 14); // restored: nothing of it was left
    CHECK(b.control.n_rows >= 20 + 8 + 58 + 5 + 20 + 8);
    struct test_request *late = make(2, 0, 24, 4); // begins with the first's prompt
    late->prompt[20] = 299;
    submit(&b, late);
    run(&b, 3, 200);
    CHECK_EQ(late->r.n_cached, 20);
    check_answer(0);
    check_answer(2);
    stop(&b);
}

/* Logits of all its rows are wanted, so it reads nothing from the cache; others may read its. */
TEST(a_scored_prompt_is_computed_whole_and_found_by_others)
{
    struct bed b = {0};
    static struct token_logprobs scores[40];
    struct engine_options o = options_of(&b, 4, 100);
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < 3; i++) {
        struct test_request *q = make(i, 0, 20, 2);
        q->r.params.prompt_logprobs = i < 2;
        q->r.prompt_logprobs = scores;
        submit(&b, q);
        int64_t before = b.control.n_rows;
        run(&b, 1, 100);
        CHECK_EQ(q->r.n_cached, i < 2 ? 0 : 16);
        CHECK_EQ(b.control.n_rows - before, i < 2 ? 21 : 5);
        check_answer(i);
    }
    stop(&b);
}

/* A request that is cancelled between its plan and its results leaves nothing half-written. */
TEST(what_a_cancelled_request_was_computing_is_right_or_not_found)
{
    for (int32_t turns = 0; turns < 8; turns++) {
        struct bed b = {0};
        struct engine_options o = options_of(&b, 4, 100);
        o.max_num_seqs = 4;
        o.max_num_batched_tokens = 10;
        REQUIRE(start(&b, &o));
        submit(&b, make(0, 0, 41, 4));
        for (int32_t i = 0; i < turns; i++) {
            engine_turn(b.e);
        }
        engine_cancel(b.e, &requests[0].r);
        submit(&b, make(1, 0, 41, 4));
        run(&b, 2, 200);
        check_answer(1);
        CHECK(requests[1].r.n_cached <= 10 * turns);
        CHECK_EQ(b.control.n_wrong, 0);
        stop(&b);
    }
}

/* Another request every so many turns, whose prompt begins `step` further each time. */
struct stream {
    int32_t every, step, n_prompt, n_out;
};

/* Takes turns until q is done while a stream of requests from *next on comes in; returns them. */
static int32_t run_in_stream(struct bed *b, const struct test_request *q, int32_t *next,
                             struct stream s)
{
    int32_t turn = 0;
    for (; turn < 400 && !q->r.done; turn++) {
        if (turn % s.every == 0 && *next < MAX_REQUESTS) {
            submit(b, make(*next, s.step * *next, s.n_prompt, s.n_out));
            ++*next;
        }
        engine_turn(b->e);
        scheduler_check(&b->e->scheduler);
        engine_drain(b->e, on_event, b);
    }
    return turn;
}

/* What the later one shares with the earlier one would not become free with it. */
TEST(nobody_is_preempted_for_blocks_that_others_hold_too)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 16);
    REQUIRE(start(&b, &o));
    struct test_request *first = make(0, 0, 32, 12); // 11 blocks in the end
    first->r.priority = -2;
    submit(&b, first);
    run_until(&b, 0, 1);
    submit(&b, make(2, 0, 33, 6)); // shares 8 of them, and has 2 of its own
    run_until(&b, 2, 1);
    struct test_request *between = make(1, 100, 40, 2); // 11: 3 free and 2 are too few
    between->r.priority = -1;
    submit(&b, between);
    run(&b, 3, 200);
    CHECK_EQ(requests[2].r.n_preemptions, 0);
    for (int32_t i = 0; i < 3; i++) {
        check_answer(i);
    }
    stop(&b);
}

TEST(the_head_of_the_queue_is_not_starved_by_sharers)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 12); // 48 tokens
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 64;
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 25, 10));
    engine_turn(b.e);
    struct test_request *big = make(1, 100, 40, 4); // 11 blocks of 12
    submit(&b, big);
    int32_t next = 2; // an endless stream that shares the first's prompt
    CHECK(run_in_stream(&b, big, &next, (struct stream){3, 0, 25, 10}) < 60);
    stop(&b);
}

/* Small requests that came later take turns, so that one of them always decodes. */
TEST(a_large_request_is_not_starved_by_small_ones_that_came_later)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 12); // 48 tokens
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 64;
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 12, 12));
    run_until(&b, 0, 3);
    struct test_request *big = make(1, 100, 40, 4); // 11 blocks of 12
    submit(&b, big);
    int32_t next = 2;
    CHECK(run_in_stream(&b, big, &next, (struct stream){8, 11, 12, 12}) < 30);
    check_answer(1);
    run(&b, next, 400);
    for (int32_t i = 2; i < next; i++) {
        check_answer(i);
    }
    stop(&b);
}

TEST(an_urgent_request_takes_blocks_or_a_lane_at_once)
{
    for (int32_t lanes = 1; lanes < 3; lanes++) { // one: the lane is short, two: the blocks are
        struct bed b = {0};
        struct engine_options o = options_of(&b, 4, lanes == 1 ? 100 : 14);
        o.max_num_seqs = lanes;
        REQUIRE(start(&b, &o));
        submit(&b, make(0, 0, 20, 25));
        run_until(&b, 0, 5);
        struct test_request *urgent = make(1, 100, 30, 4);
        urgent->r.priority = -1;
        submit(&b, urgent);
        run_until(&b, 1, 4);
        CHECK_EQ(requests[0].r.n_preemptions, 1);
        CHECK(requests[0].outputs[0].n_tokens < 12);
        run(&b, 2, 200);
        check_answer(0);
        check_answer(1);
        stop(&b);
    }
}

/* The later one computes the prefix of both, and gets no rows. */
TEST(an_urgent_request_does_not_wait_for_the_rows_of_a_late_one)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 400);
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 16;
    REQUIRE(start(&b, &o));
    struct test_request *late = make(0, 0, 150, 4);
    late->r.priority = 5;
    submit(&b, late);
    engine_turn(b.e);
    int32_t next = 3;
    for (int32_t i = 1; i < 3; i++) {
        submit(&b, make(next, 70 + 11 * next, 40, 1));
        next++;
    }
    engine_turn(b.e);
    struct test_request *urgent = make(1, 0, 150, 4); // the same prompt
    urgent->r.priority = -1;
    submit(&b, urgent);
    CHECK(run_in_stream(&b, urgent, &next, (struct stream){2, 11, 40, 1}) < 30);
    run(&b, next - 1, 600);
    check_answer(0);
    check_answer(1);
    stop(&b);
}

/* Three that decode could fill every step with what they guess. */
TEST(drafts_leave_rows_to_an_urgent_prompt)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 400);
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 9;
    o.speculative_config = "{\"method\":\"ngram\",\"num_speculative_tokens\":8,\"fixed\":true,"
                           "\"prompt_lookup_min\":1}";
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < 3; i++) {
        struct test_request *q = make(i, 0, 10, 100);
        q->r.params.seed = (uint64_t)i;
        submit(&b, q);
    }
    run_until(&b, 2, 3);
    struct test_request *urgent = make(3, 50, 40, 4);
    urgent->r.priority = -1;
    submit(&b, urgent);
    int32_t turn = 0;
    for (; turn < 400 && !urgent->r.done; turn++) {
        engine_turn(b.e);
        engine_drain(b.e, on_event, &b);
    }
    CHECK(turn < 20);
    run(&b, 4, 600);
    stop(&b);
}

TEST(without_chunks_a_long_prompt_is_not_starved_by_short_ones)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 400);
    o.no_chunked_prefill = true;
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 40;
    o.max_model_len = 100;
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 5, 10));
    submit(&b, make(2, 50, 5, 14));
    run_until(&b, 2, 2);
    submit(&b, make(1, 100, 39, 4)); // with two decoding it does not fit a step
    int32_t next = 3;
    CHECK(run_in_stream(&b, &requests[1], &next, (struct stream){3, 7, 5, 12}) < 40);
    run(&b, next, 400);
    stop(&b);
}

TEST(siblings_store_the_prompt_once_and_draw_each_their_own)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 200);
    REQUIRE(start(&b, &o));
    struct test_request *q = make(0, 0, 42, 40);
    q->r.n = 8;
    submit(&b, q);
    int32_t most = 0;
    for (int32_t turn = 0; turn < 200 && b.n_done < 1; turn++) {
        engine_turn(b.e);
        int32_t held = 200 - kv_pool_available(&b.e->scheduler.pool);
        most = held > most ? held : most;
        engine_drain(b.e, on_event, &b);
    }
    CHECK(most <= 11 + 8 * (1 + 40 / 4));
    CHECK(b.control.n_rows <= 42 + 8 * 41);
    bool differ = false;
    for (int32_t s = 0; s < 8; s++) {
        CHECK_EQ(q->tokens[s][0], fake_next(q->prompt, 42, (uint64_t)s, VOCAB));
        differ = differ || q->tokens[s][0] != q->tokens[0][0];
    }
    CHECK(differ);
    stop(&b);
}

TEST(prompt_chunks_and_decodes_share_steps)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 200);
    o.max_num_seqs = 4;
    o.max_num_batched_tokens = 16;
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 4, 40));
    for (int32_t i = 0; i < 3; i++) {
        engine_turn(b.e);
    }
    submit(&b, make(1, 50, 100, 2));
    bool mixed = false;
    for (int32_t turn = 0; turn < 40; turn++) {
        engine_turn(b.e);
        for (int32_t s = 0; s < N_STEPS; s++) {
            const struct pass *p = &b.e->steps[s].pass;
            mixed = mixed || (p->n_seqs == 2 && p->n_rows == 16);
        }
    }
    CHECK(mixed);
    run(&b, 2, 100);
    stop(&b);
}

TEST(a_full_accept_gives_the_bonus_token)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 200);
    o.speculative_config = "{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"fixed\":true,"
                           "\"prompt_lookup_min\":1}";
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 10, 100));
    run(&b, 1, 400);
    struct engine_stats s;
    engine_stats(b.e, &s);
    int64_t sum = 0;
    for (int32_t i = 0; i < 16; i++) {
        sum += s.spec_accepted_per_pos[i];
    }
    CHECK_EQ(sum, s.spec_accepted_tokens);
    CHECK(s.spec_drafts > 0);
    stop(&b);
}

/* 40 requests of 120 tokens, one at a time; tokens per step behind the prompts. */
static double synthetic_rate(const char *config)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 200);
    o.max_num_seqs = 1;
    o.speculative_config = config;
    o.synthetic = true;
    if (!start(&b, &o)) {
        return 0.0;
    }
    for (int32_t i = 0; i < 40; i++) {
        struct test_request *q = make(i, 7 * i, 10, 120);
        q->r.params.seed = (uint64_t)i;
        submit(&b, q);
    }
    run(&b, 40, 10000);
    struct engine_stats s;
    engine_stats(b.e, &s);
    CHECK_EQ(s.generated_tokens, 40 * 120);
    stop(&b);
    return (double)(40 * 119) / (double)(s.n_steps - 40);
}

#define SYNTHETIC                                                                                  \
    "{\"method\":\"ngram\",\"num_speculative_tokens\":1,\"fixed\":true,"                             \
    "\"rejection_sample_method\":\"synthetic\",\"synthetic_acceptance_rate\":0.8"

TEST(with_synthetic_acceptance_the_bonus_token_is_all_the_gain)
{
    CHECK_NEAR(synthetic_rate(SYNTHETIC "}"), 1.8, 0.04);
    CHECK_NEAR(synthetic_rate(SYNTHETIC ",\"synthetic_bonus\":false}"), 1.0, 0.0);
}

TEST(synthetic_acceptance_is_refused_where_text_is_served)
{
    struct bed b = {0};
    struct err err;
    struct engine_options o = options_of(&b, 4, 200);
    o.speculative_config = SYNTHETIC "}";
    CHECK(engine_open(&o, &b.e, &err) == ERR_INVALID && strstr(err.text, "dummy"));
    o.synthetic = true;
    o.speculative_config = "{\"method\":\"ngram\",\"rejection_sample_method\":\"synthetic\"}";
    CHECK(engine_open(&o, &b.e, &err) == ERR_INVALID && strstr(err.text, "from 0 to 1"));
    o.speculative_config = "{\"method\":\"ngram\",\"rejection_sample_method\":\"probabilistic\"}";
    CHECK(engine_open(&o, &b.e, &err) == ERR_UNSUPPORTED && strstr(err.text, "draft_model"));
    o.speculative_config = "{\"method\":\"ngram\",\"rejection_sample_method\":\"typical\"}";
    CHECK(engine_open(&o, &b.e, &err) == ERR_UNSUPPORTED && strstr(err.text, "typical"));
    o.speculative_config = "{\"method\":\"ngram\",\"synthetic_acceptance_rate\":0.5}";
    CHECK(engine_open(&o, &b.e, &err) == ERR_INVALID);
}

/* What 8 requests cost: turns, steps, rows, and passes of a draft model. */
struct cost {
    int32_t turns, draft_passes;
    int64_t n_steps, n_rows, n_drafts;
};

static struct cost cost_of(const char *config, int32_t asked)
{
    struct bed b = {0};
    struct cost c = {0};
    struct engine_options o = options_of(&b, 4, 400);
    o.max_num_seqs = 4;
    o.speculative_config = config;
    if (!start(&b, &o)) {
        return c;
    }
    for (int32_t i = 0; i < 8; i++) {
        struct test_request *q = make(i, 31 * i, 12 + i, 60);
        q->r.params.num_speculative_tokens = asked;
        submit(&b, q);
    }
    for (; c.turns < 1000 && b.n_done < 8; c.turns++) {
        engine_turn(b.e);
        const struct step *st = &b.e->steps[(b.e->next_slot + N_STEPS - 1) % N_STEPS];
        c.draft_passes += st->n_draft_passes;
        engine_drain(b.e, on_event, &b);
    }
    struct engine_stats s;
    engine_stats(b.e, &s);
    c.n_steps = s.n_steps;
    c.n_rows = s.n_rows;
    c.n_drafts = s.spec_draft_tokens;
    stop(&b);
    return c;
}

TEST(speculation_that_a_request_turns_off_costs_nothing)
{
    static const char *const configs[] = {
        "{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"fixed\":true,\"prompt_lookup_min\":1}",
        "{\"method\":\"draft_model\",\"model\":\"test/golden/llama-tied\","
        "\"num_speculative_tokens\":4,\"fixed\":true}"};
    struct cost plain = cost_of(NULL, -1);
    for (int32_t i = 0; i < 2; i++) {
        struct cost off = cost_of(configs[i], 0), on = cost_of(configs[i], -1);
        CHECK(off.turns == plain.turns && off.n_steps == plain.n_steps);
        CHECK(off.n_rows == plain.n_rows && off.n_drafts == 0 && off.draft_passes == 0);
        CHECK(on.n_rows > plain.n_rows && on.n_drafts > 0); // the measure sees speculation
        CHECK((on.draft_passes > 0) == (i == 1));
        struct cost one = cost_of(configs[i], 1), many = cost_of(configs[i], 9);
        CHECK(one.n_drafts > 0 && one.n_drafts < on.n_drafts); // a request may lower it
        CHECK_EQ(many.n_drafts, on.n_drafts);                  // and never raise it
    }
}

/* What a step with a tree configured was: a chain, a comb, or grown by the host. */
struct shapes {
    int32_t chains, combs, grown;
};

static struct shapes shapes_of(bool perfect, float grow_seconds)
{
    struct bed b = {.control = {.perfect = perfect}};
    struct engine_options o = options_of(&b, 4, 200);
    struct shapes n = {0};
    o.speculative_config = "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\"}";
    if (!start(&b, &o)) {
        CHECK_FAIL("no engine");
        return n;
    }
    for (int32_t i = 0; i < SPEC_COST_POINTS; i++) { // 32 rows cost twice as much as one
        b.e->spec.target_cost[i] = 1.0f + (float)((1 << i) - 1) / 31.0f;
        b.e->spec.draft_cost[i] = 0.001f;
    }
    struct test_request *q = make(0, 0, 10, 120);
    submit(&b, q);
    for (int32_t turn = 0; turn < 1000 && b.n_done < 1; turn++) {
        b.e->spec.grow_seconds = grow_seconds;
        int32_t steps = b.control.n_steps;
        engine_turn(b.e);
        const struct step *st = &b.e->steps[(b.e->next_slot + N_STEPS - 1) % N_STEPS];
        if (b.control.n_steps > steps && st->n_draft_passes > 1) {
            n.chains += st->grove.n_trees == 0;
            n.combs += st->grove.n_trees > 0;
            CHECK_EQ(b.control.n_steps, steps + 1); // no look in between
        } else {
            n.grown += st->grove.n_trees > 0 && b.control.n_steps > steps + 1;
        }
        engine_drain(b.e, on_event, &b);
    }
    int32_t known[140];
    memcpy(known, q->prompt, 10 * sizeof *known);
    for (int32_t i = 0; i < 120; i++) {
        known[10 + i] = fake_next(known, 10 + i, 0, VOCAB);
        CHECK_EQ(q->tokens[0][i], known[10 + i]);
    }
    stop(&b);
    return n;
}

TEST(a_tree_is_a_chain_a_comb_or_grown_by_what_is_measured)
{
    struct shapes sure = shapes_of(true, 0.1f); // nothing is to be won beside the first guess
    CHECK(sure.chains > 12 && sure.combs + sure.grown < 10);
    struct shapes dear = shapes_of(false, 10.0f); // the host's look costs ten steps
    CHECK(dear.combs > 20 && dear.grown == 0);
    struct shapes cheap = shapes_of(false, 0.0f);
    CHECK(cheap.grown > 20 && cheap.combs + cheap.chains < 10);
}

TEST(nothing_is_allocated_after_the_start)
{
    if (!counts_allocations) {
        SKIP("the sanitizers have their own malloc");
    }
    counts = true; // the wrappers do count
    void *volatile p = malloc(1);
    free(p);
    counts = false;
    CHECK_EQ(n_allocations, 1);
    n_allocations = 0;
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 60);
    o.max_num_seqs = 6;
    o.max_num_batched_tokens = 32;
    o.speculative_config = "{\"method\":\"ngram\",\"prompt_lookup_min\":1}";
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < 20; i++) {
        struct test_request *q = make(i, 10 * (i % 5), 20 + i, 30);
        q->r.n = 1 + i % 3;
        submit(&b, q);
    }
    for (int32_t turn = 0; turn < 3000 && b.n_done < 20; turn++) {
        counts = true;
        engine_turn(b.e);
        counts = false;
        engine_drain(b.e, on_event, &b);
    }
    CHECK_EQ(b.n_done, 20);
    CHECK_EQ(n_allocations, 0);
    stop(&b);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
