// SPDX-License-Identifier: Apache-2.0
/* The engine's promises, one per test, on the fake backend unless a test says otherwise. */
#include "cpu/cpu.h"
#include "engine/base/clock.h"
#include "engine/base/minmax.h"
#include "test/engine/bed.h"
#include "test/engine/count_malloc.h"

#include <pthread.h>

/* The message must have both lengths, since a client can only shorten its prompt if it
 * knows them. */
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

/* A pool has at least two blocks, even if everything that can run at once fits in one. */
TEST(one_sequence_of_one_block_has_room)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 256, 0);
    o.max_num_seqs = 1;
    o.max_model_len = 200;
    REQUIRE(start(&b, &o));
    CHECK_EQ(engine_info(b.e)->n_blocks, 2);
    submit(&b, make(0, 0, 100, 100));
    run(&b, 1, 300);
    check_answer(0);
    stop(&b);
}

/* Otherwise the client would be told forever that the queue is full. */
TEST(more_samples_than_there_is_room_for_are_refused)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 100);
    o.max_num_seqs = 2;
    o.max_waiting = 3;
    REQUIRE(start(&b, &o));
    struct err err;
    struct test_request *q = make(0, 0, 20, 1);
    q->r.n = 6;
    CHECK_EQ(engine_submit(b.e, &q->r, &err), ERR_INVALID);
    CHECK(strstr(err.text, "6") && strstr(err.text, "5"));
    q->r.n = 5;
    submit(&b, q);
    CHECK_EQ(engine_submit(b.e, &make(1, 0, 20, 1)->r, &err), ERR_BUSY);
    run(&b, 1, 100);
    stop(&b);
}

/* If requests did not wait for a prefix that another one computes, each would compute it; the count
 * of rows would show that. */
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

/* An answer's blocks must enter the cache under the same identity as a prompt's. */
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

/* The last token of an answer is never fed, so a block that ends with it is not complete. */
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

/* The last token's logits are needed, so one block is computed even if all are cached. */
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

/* Salts keep tenants from finding out each other's prompts by the time to the first token. */
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

/* All rows need logits, so the prompt is not read from the cache; its blocks can be found by
 * others. */
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

/* In the last of 4 layers only qkv processes the rows without draws; the other products and the
 * head process the rest. All counts include the backend's padding. */
TEST(rows_without_outputs_stop_in_the_last_layer)
{
    enum { PROMPT = 50, ALL = 4 * 3 + 1, REST = 3 + 1 };
    static struct token_logprobs scores[PROMPT];
    for (int32_t i = 0; i < 4; i++) {
        bool scored = i % 2, chunked = i / 2;
        struct bed b = {0};
        struct engine_options o = options_of(&b, 4, 100);
        o.max_num_seqs = 4;
        o.max_num_batched_tokens = chunked ? 23 : 64;
        REQUIRE(start(&b, &o));
        struct test_request *q = make(0, 0, PROMPT, 1);
        q->r.params.prompt_logprobs = scored;
        q->r.prompt_logprobs = scores;
        submit(&b, q);
        const struct fake_control before = b.control;
        run(&b, 1, 100);
        const int64_t rows = b.control.n_padded_rows - before.n_padded_rows;
        const int64_t out = b.control.n_padded_out - before.n_padded_out;
        CHECK_EQ(b.control.n_steps - before.n_steps, chunked ? 3 : 1);
        CHECK(scored ? out == rows : out < 10);
        CHECK_EQ(b.control.n_multiplied - before.n_multiplied, rows * ALL + out * REST);
        check_answer(0);
        stop(&b);
    }
}

/* A request that is cancelled between its plan and its results leaves no half-written block in the
 * cache. */
TEST(blocks_of_a_cancelled_request_are_complete_or_not_found)
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

/* Requests of another thread, each cancelled right after its submission. */
struct hasty {
    struct bed *b;
    int32_t n;
    _Atomic bool sent;
};

/* A cancel may reach the engine before its thread has seen the request. */
static void *submit_and_cancel(void *arg)
{
    struct hasty *h = arg;
    for (int32_t i = 0; i < h->n; i++) {
        submit(h->b, &requests[i]);
        engine_cancel(h->b->e, &requests[i].r);
    }
    atomic_store(&h->sent, true);
    return NULL;
}

/* Many rounds, since the order of two messages is what matters. */
TEST(a_cancel_right_after_its_submit_is_never_lost)
{
    enum { ROUNDS = 300, N = 16 };
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 2000);
    REQUIRE(start(&b, &o));
    for (int32_t round = 0; round < ROUNDS && check_failures == 0; round++) {
        struct hasty h = {.b = &b, .n = N};
        pthread_t thread;
        for (int32_t i = 0; i < N; i++) {
            make(i, 0, 20, MAX_OUT)->r.n = 8;
        }
        REQUIRE(pthread_create(&thread, NULL, submit_and_cancel, &h) == 0);
        // After the last cancel, steps in flight still end.
        for (int32_t rest = 4; rest > 0; rest -= atomic_load(&h.sent)) {
            engine_turn(b.e);
            engine_drain(b.e, on_event, &b);
        }
        pthread_join(thread, NULL);
        CHECK_EQ(b.n_done, N);
        b.n_done = 0;
    }
    stop(&b);
}

/* A loop with thousands of streams takes their news in pieces; news that arrives meanwhile comes
 * after them. */
TEST(news_in_pieces_begins_with_what_waited_longest)
{
    enum { N = 5 };
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 2000);
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < N; i++) {
        submit(&b, make(i, 0, 20, MAX_OUT));
        engine_cancel(b.e, &requests[i].r);
        engine_turn(b.e);
    }
    CHECK(engine_drain_some(b.e, 2, on_event, &b));
    CHECK_EQ(b.n_done, 2);
    CHECK(requests[0].r.done && requests[1].r.done && !requests[2].r.done);
    submit(&b,
           make(N, 0, 20, MAX_OUT)); // nothing wakes the loop for it, since there is news already
    engine_cancel(b.e, &requests[N].r);
    engine_turn(b.e);
    CHECK(engine_drain_some(b.e, 3, on_event, &b));
    CHECK(requests[N - 1].r.done && !requests[N].r.done);
    CHECK(!engine_drain_some(b.e, 3, on_event, &b));
    CHECK_EQ(b.n_done, N + 1);
    CHECK(!engine_drain_some(b.e, 3, on_event, &b));
    submit(&b, make(0, 0, 20, 4)); // the list is in order
    run(&b, N + 2, 40);
    stop(&b);
}

/* The pool holds the prompt's blocks once, and for each sibling the blocks of its own answer. */
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
        int32_t held = 200 - holdings_available(&b.e->scheduler.holdings).blocks;
        most = greater(held, most);
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

/* Without mixing, a long prompt would stop others' decoding for its whole duration. */
TEST(the_largest_pass_has_room_for_padding)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 200);
    o.max_num_seqs = 4;
    o.max_num_batched_tokens = 61;
    REQUIRE(start(&b, &o));
    CHECK_EQ(b.e->scheduler.limits.max_rows, 61);
    CHECK_EQ(b.e->ranks.rank[0].target.max_rows, 64);
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
            const struct pass *p = &b.e->steps[s].step.pass;
            mixed = mixed || (p->n_seqs == 2 && p->n_rows == 16);
        }
    }
    CHECK(mixed);
    run(&b, 2, 100);
    stop(&b);
}

/* Operators see this message at their first start with a new model. */
TEST(weights_that_do_not_fit_say_what_would_help)
{
    struct bed b = {.control.no_memory = true};
    struct err err;
    struct engine_options o = options_of(&b, 4, 200);
    CHECK(engine_open(&o, &b.e, &err) == ERR_NOMEM);
    CHECK(strstr(err.text, "no memory is left") && strstr(err.text, "--tensor-parallel-size"));
}

/* 20 requests of one to three samples each, every turn counted. */
static void check_allocations(const struct engine_options *o, struct bed *b)
{
    REQUIRE(start(b, o));
    for (int32_t i = 0; i < 20; i++) {
        struct test_request *q = make(i, 10 * (i % 5), 20 + i, 30);
        q->r.n = 1 + i % 3;
        q->r.params.temperature = i % 2 ? 0.8f : 0.0f;
        q->r.params.top_p = i % 4 == 1 ? 0.9f : 1.0f;
        q->r.params.repetition_penalty = i % 4 == 3 ? 1.1f : 1.0f;
        submit(b, q);
    }
    n_allocations = 0;
    for (int32_t turn = 0; turn < 3000 && b->n_done < 20; turn++) {
        counts = true;
        engine_turn(b->e);
        counts = false;
        engine_drain(b->e, on_event, b);
    }
    CHECK_EQ(b->n_done, 20);
    CHECK_EQ(n_allocations, 0);
    CHECK(b->e->scheduler.n_preemptions > 0);
    struct engine_stats s;
    engine_stats(b->e, &s);
    CHECK(!o->speculative_config || s.spec_draft_tokens > 0);
    stop(b);
}

/* The engine's thread must not wait for malloc, and memory must not grow with time. */
TEST(nothing_is_allocated_after_the_start)
{
    if (!counts_allocations) {
        SKIP("the sanitizers have their own malloc");
    }
    counts = true; // proves that the wrappers count
    void *volatile p = malloc(1);
    free(p);
    counts = false;
    CHECK_EQ(n_allocations, 1);
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 60);
    o.max_num_seqs = 6;
    o.max_num_batched_tokens = 32;
    o.speculative_config = "{\"method\":\"ngram\",\"prompt_lookup_min\":1}";
    check_allocations(&o, &b);
}

static enum status open_cpu(const struct backend_options *options, struct backend **out,
                            struct err *err, void *arg)
{
    (void)arg;
    return cpu_open(options, out, err);
}

/* Requests with broken rows end at the first of them; the other requests are not affected. */
TEST(logits_that_are_not_numbers_end_the_request_alone)
{
    struct bed b = {.control.broken_after = 299};
    struct engine_options o = options_of(&b, 16, 40);
    struct engine_stats s;
    o.max_num_seqs = 4;
    if (!start(&b, &o)) {
        return;
    }
    submit(&b, make(0, 290, 10, 20)); // its prompt ends with 299
    struct token_logprobs scores[20] = {0};
    make(1, 295, 20, 5)->r.prompt_logprobs = scores; // contains 299
    requests[1].r.params.prompt_logprobs = true;
    submit(&b, &requests[1]);
    make(2, 290, 10, 20)->r.n = 3;
    submit(&b, &requests[2]);
    submit(&b, make(3, 0, 10, 20));
    run(&b, 4, 200);
    for (int32_t i = 0; i < 3; i++) {
        CHECK_EQ(requests[i].r.error, ERR_NAN);
        CHECK_EQ(requests[i].outputs[0].finish, FINISH_ERROR);
        CHECK_EQ(requests[i].outputs[0].n_tokens, 0);
    }
    CHECK_EQ(requests[3].r.error, OK);
    check_answer(3);
    engine_stats(b.e, &s);
    CHECK_EQ(s.n_corrupted, 3);
    stop(&b);
}

/* Neither the counts nor the number of turns reveals whether another client has sent the guessed
 * prompt. */
TEST(another_salt_learns_nothing_of_a_prompt)
{
    static const char *const salts[] = {"a", "a", "b", "b"};
    int32_t turns[4], cached[4];
    struct bed b = {0};
    struct engine_options o = options_of(&b, 16, 60);
    o.max_num_batched_tokens = 16; // a turn for each block that is computed
    o.max_num_seqs = 4;
    if (!start(&b, &o)) {
        return;
    }
    for (int32_t i = 0; i < 4; i++) {
        struct test_request *q = make(i, 0, 160, 1);
        q->r.cache_salt = salts[i];
        submit(&b, q);
        turns[i] = run(&b, 1, 200);
        cached[i] = q->r.n_cached;
    }
    CHECK_EQ(cached[0], 0);
    CHECK_EQ(cached[2], 0);
    CHECK_EQ(turns[2], turns[0]);
    CHECK_EQ(cached[1], cached[3]);
    CHECK(turns[1] < turns[0] && turns[3] == turns[1]);
    stop(&b);
}

/* Admission decisions need to count what was submitted since the last turn. */
TEST(statistics_know_what_was_submitted_since_the_last_turn)
{
    struct bed b = {0};
    struct engine_stats s;
    struct engine_options o = options_of(&b, 16, 40);
    o.max_num_seqs = 2;
    if (!start(&b, &o)) {
        return;
    }
    for (int32_t i = 0; i < 4; i++) {
        submit(&b, make(i, i * 7, 10, 20));
    }
    engine_stats(b.e, &s);
    CHECK_EQ(s.n_running + s.n_waiting, 0);
    CHECK_EQ(s.n_submitted, 4);
    CHECK_EQ(s.submitted_tokens, 40);
    engine_turn(b.e);
    struct test_request *fifth = make(4, 50, 30, 20);
    fifth->r.n = 3;
    submit(&b, fifth);
    engine_stats(b.e, &s);
    CHECK_EQ(s.n_running, 2);
    CHECK_EQ(s.n_waiting, 2);
    CHECK_EQ(s.n_submitted, 3);
    CHECK_EQ(s.submitted_tokens, 90);
    CHECK_EQ(engine_stats_queued(&s), 5);
    run(&b, 5, 1000);
    engine_stats(b.e, &s);
    CHECK_EQ(s.n_submitted, 0);
    CHECK_EQ(s.submitted_tokens, 0);
    int64_t n_steps = 0;
    for (int32_t i = 0; i < N_STEP_SIZES; i++) {
        n_steps += s.step_sizes[i];
    }
    CHECK_EQ(n_steps, s.n_steps);
    // The prompt of each sample counts, whether it was computed or in the cache.
    CHECK_EQ(s.step_tokens, s.prompt_tokens + s.generated_tokens + 2 * 30);
    stop(&b);
}

/* One thread, because allocations are counted only on the test's own thread. */
TEST(nothing_is_allocated_after_the_start_on_the_cpu)
{
    if (!counts_allocations) {
        SKIP("the sanitizers have their own malloc");
    }
    static const struct {
        const char *model, *config;
    } rows[] = {
        {"llama-3", NULL},
        {"qwen3-moe", "{\"method\":\"ngram\",\"prompt_lookup_min\":1,\"fixed\":true}"},
        {"qwen3-moe",
         "{\"method\":\"draft_model\",\"model\":\"test/golden/llama-3\",\"fixed\":true}"},
        {"deepseek-v3", "{\"method\":\"tree\",\"model\":\"test/golden/llama-3\",\"fixed\":true}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct bed b = {0};
        struct engine_options o = options_of(&b, 16, 14);
        char folder[64];
        snprintf(folder, sizeof folder, "build/golden/%s", rows[i].model);
        o.model = folder;
        o.load_format = "auto";
        o.open_backend = open_cpu;
        o.backend.threads = 1;
        o.max_num_seqs = 6;
        o.max_num_batched_tokens = 32;
        o.speculative_config = rows[i].config;
        check_allocations(&o, &b);
        if (check_failures > 0) {
            printf("%s, %s\n", rows[i].model, rows[i].config ? rows[i].config : "no drafts");
        }
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
