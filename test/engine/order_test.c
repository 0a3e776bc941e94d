// SPDX-License-Identifier: Apache-2.0
/* Who gets blocks, lanes and rows: the total order, preemption, restores, and no starvation. */
#include "test/engine/bed.h"

/* Each holds blocks that the other needs: without a total order neither would end. */
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

/* Each preemption costs a recomputation. The number of turns is limited, so a livelock fails. */
TEST(requests_that_preempt_each_other_again_and_again_all_end)
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
    for (int32_t i = 0; i < 3; i++) {
        check_answer(i);
    }
    CHECK(b.e->scheduler.n_preemptions > 0);
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

/* An urgent request takes everything that request 0 holds, and ends. */
static void preempt_all(struct bed *b, int32_t i, int32_t n_prompt)
{
    struct test_request *urgent = make(i, 100 * i, n_prompt, 4);
    urgent->r.priority = -1;
    submit(b, urgent);
    run(b, 1, 200);
    check_answer(i);
}

/* A preempted sequence may be longer than one step's budget, so its restore takes several. */
TEST(a_restore_longer_than_the_budget_completes)
{
    enum { BUDGET = 8, PROMPT = 20, OUT = 60 };
    for (int32_t n = 1; n <= 3; n += 2) {
        struct bed b = {0};
        struct engine_options o = options_of(&b, 4, 60); // 240 tokens; three samples need 200
        o.max_num_batched_tokens = BUDGET;
        o.max_num_seqs = 4;
        REQUIRE(start(&b, &o));
        struct test_request *q = make(0, 0, PROMPT, OUT);
        q->r.n = n;
        submit(&b, q);
        for (int32_t times = 1; times <= 2; times++) {
            run_until(&b, 0, 20 * times);
            CHECK(PROMPT + q->outputs[0].n_tokens > 4 * BUDGET);
            preempt_all(&b, times, 230);
            CHECK_EQ(q->r.n_preemptions, n * times);
        }
        run(&b, 1, 400);
        CHECK_EQ(q->r.n_preemptions, 2 * n);
        for (int32_t s = 0; s < n; s++) {
            check_sample(0, s, OUT);
        }
        CHECK_EQ(b.control.n_wrong, 0);
        stop(&b);
    }
}

/* Runs four samples and stops two of them early, with or without a preemption of the other two.
 * Returns the rows computed; *again is how many of them should be due to the restore. */
static int64_t rows_of_siblings(bool preempted, int64_t *again)
{
    enum { PROMPT = 22, OUT = 30, SIZE = 4 };
    struct bed b = {0};
    struct engine_options o = options_of(&b, SIZE, 40);
    o.max_num_seqs = 6;
    if (!start(&b, &o)) {
        return 0;
    }
    struct test_request *q = make(0, 0, PROMPT, OUT);
    q->r.n = 4;
    submit(&b, q);
    run_until(&b, 0, 15);
    engine_stop(b.e, &q->r, 1);
    engine_stop(b.e, &q->r, 2);
    run_until(&b, 0, 18);
    int32_t n_stopped[4], rows_of_urgent = 155 + 3;
    for (int32_t s = 1; s < 3; s++) {
        n_stopped[s] = q->outputs[s].n_tokens;
        CHECK(q->outputs[s].finish == FINISH_STOP && n_stopped[s] >= 15);
    }
    if (preempted) {
        preempt_all(&b, 1, 155); // all blocks
        // The prompt, its last block again for the second sample, and both samples' fed tokens.
        *again = PROMPT + PROMPT % SIZE + q->outputs[0].n_tokens - 1 + q->outputs[3].n_tokens - 1;
    }
    run(&b, 1, 200);
    CHECK_EQ(q->r.n_preemptions, preempted ? 2 : 0);
    for (int32_t s = 0; s < 4; s++) {
        check_sample(0, s, s % 3 == 0 ? OUT : n_stopped[s]);
    }
    CHECK_EQ(b.control.n_wrong, 0);
    int64_t n_rows = b.control.n_rows - (preempted ? rows_of_urgent : 0);
    stop(&b);
    return n_rows;
}

TEST(siblings_that_have_finished_are_not_restored)
{
    int64_t again = 0, rows = rows_of_siblings(false, &again);
    int64_t extra = rows_of_siblings(true, &again) - rows;
    CHECK_EQ(extra, again);
}

/* The blocks of a preempted sequence stay in the cache until their memory is needed. */
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
    // 69 rows of the first, 41 of the other; the rest was computed twice: a few blocks, not all.
    int64_t twice = b.control.n_rows - 69 - 41;
    CHECK(twice > 0 && twice <= 5 * 4);
    // The restore does not count as a query of the cache, nor its blocks as hits.
    CHECK_EQ(b.e->scheduler.prefix_queries, 40 + 38);
    CHECK_EQ(b.e->scheduler.prefix_hits, 0);
    CHECK_EQ(first->r.n_cached, 0);
    stop(&b);
}

/* An evicted prefix can come back by a restore, not only by a new prompt. */
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
    run_until(&b, 0, 14); // restored without any cached block
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

/* A new request every few turns, whose prompt begins `step` tokens further each time. */
struct stream {
    int32_t every, step, n_prompt, n_out;
};

/* Takes turns until q is done, while a stream of requests from *next on arrives. Returns the number
 * of turns. */
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

/* Preempting a later sequence does not free the blocks that it shares with an earlier one. */
TEST(no_sequence_is_preempted_for_blocks_that_others_also_hold)
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
    struct test_request *between = make(1, 100, 40, 2); // 11 blocks: 3 free ones and 2 are too few
    between->r.priority = -1;
    submit(&b, between);
    run(&b, 3, 200);
    CHECK_EQ(requests[2].r.n_preemptions, 0);
    for (int32_t i = 0; i < 3; i++) {
        check_answer(i);
    }
    stop(&b);
}

/* Requests that share a cached prefix need few blocks, so they could overtake the head of the queue
 * for ever. */
TEST(the_head_of_the_queue_is_not_starved_by_sharers)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 12); // 48 tokens
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 64;
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 25, 10));
    engine_turn(b.e);
    struct test_request *big = make(1, 100, 40, 4); // 11 of the 12 blocks
    submit(&b, big);
    int32_t next = 2; // an endless stream that shares the first's prompt
    CHECK(run_in_stream(&b, big, &next, (struct stream){3, 0, 25, 10}) < 60);
    stop(&b);
}

/* Small later requests take turns, so that one of them is always decoding. */
TEST(a_large_request_is_not_starved_by_small_ones_that_came_later)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 12); // 48 tokens
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 64;
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 12, 12));
    run_until(&b, 0, 3);
    struct test_request *big = make(1, 100, 40, 4); // 11 of the 12 blocks
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

/* The request lacks either a lane or blocks. */
TEST(an_urgent_request_takes_blocks_or_a_lane_at_once)
{
    for (int32_t lanes = 1; lanes < 3; lanes++) { // 1: the lane is missing; 2: the blocks
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

/* The later request computes the prefix of both, but gets no rows. */
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

/* Turns until an urgent prompt has its 4 tokens, while other sequences decode and could fill every
 * step with drafts. */
static int32_t turns_beside_drafts(int32_t n_prompt, int32_t n_beside)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 400);
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 9;
    o.speculative_config = "{\"method\":\"ngram\",\"num_speculative_tokens\":8,\"fixed\":true,"
                           "\"prompt_lookup_min\":1}";
    if (!start(&b, &o)) {
        return INT32_MAX;
    }
    for (int32_t i = 0; i < n_beside; i++) {
        struct test_request *q = make(i, 0, 10, 120);
        q->r.params.seed = (uint64_t)i;
        submit(&b, q);
    }
    run_until(&b, n_beside - 1, 3);
    struct test_request *urgent = make(n_beside, 50, n_prompt, 4);
    urgent->r.priority = -1;
    submit(&b, urgent);
    int32_t turn = 0;
    for (; turn < 400 && !urgent->r.done; turn++) {
        engine_turn(b.e);
        engine_drain(b.e, on_event, &b);
    }
    run(&b, n_beside + 1, 600);
    stop(&b);
    return turn;
}

/* Drafts fill a step only with rows that no more urgent request needs. */
TEST(drafts_leave_rows_to_an_urgent_prompt)
{
    CHECK(turns_beside_drafts(40, 3) < 20);
    for (int32_t n = 2; n < 8;
         n++) { // later decodes must not take the rows that drafts leave to a short prompt
        CHECK(turns_beside_drafts(1, n) < 12);
    }
}

/* Without chunks a prompt needs a step with room for all of it, which short ones would
 * always take. */
TEST(without_chunks_a_long_prompt_is_not_starved_by_short_ones)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 400);
    o.enable_chunked_prefill = false;
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 40;
    o.max_model_len = 100;
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 5, 10));
    submit(&b, make(2, 50, 5, 14));
    run_until(&b, 2, 2);
    submit(&b, make(1, 100, 39, 4)); // with two others decoding, it does not fit into a step
    int32_t next = 3;
    CHECK(run_in_stream(&b, &requests[1], &next, (struct stream){3, 7, 5, 12}) < 40);
    run(&b, next, 400);
    stop(&b);
}

/* A prompt that does not fit into any step is computed in steps of its own, which later requests
 * cannot delay. */
TEST(without_chunks_an_urgent_prompt_longer_than_a_step_runs_at_once)
{
    for (int32_t scored = 0; scored < 2; scored++) { // 1: 150 of its rows need logits
        struct bed b = {0};
        static struct token_logprobs scores[160];
        struct engine_options o = options_of(&b, 4, 400);
        o.enable_chunked_prefill = false;
        o.max_num_seqs = 6;
        o.max_num_batched_tokens = scored ? 200 : 23;
        REQUIRE(start(&b, &o));
        submit(&b, make(0, 0, 10, 120));
        run_until(&b, 0, 3);
        struct test_request *urgent = make(1, 100, 150, 4);
        urgent->r.priority = -1;
        urgent->r.params.prompt_logprobs = scored;
        urgent->r.prompt_logprobs = scores;
        submit(&b, urgent);
        run_until(&b, 1, 4);
        CHECK(requests[0].outputs[0].n_tokens < 12);
        run(&b, 2, 400);
        check_answer(0);
        check_answer(1);
        stop(&b);
    }
}

/* One lane, and in every turn a new request with the best priority. `id` arrived long before them.
 * Returns the turns until it is done, at most max_turns. */
static int32_t turns_beside_urgent_ones(struct bed *b, int32_t id, int64_t age_s, int32_t max_turns)
{
    enum { FIRST_URGENT = 10 };
    requests[id].r.t_submit_ns -= age_s * 1000000000; // the engine has not seen it yet
    int32_t turn = 0;
    while (turn < max_turns && !requests[id].r.done) {
        if (turn < 60) {
            struct test_request *urgent = make(FIRST_URGENT + turn, turn, 4, 3);
            urgent->r.priority = INT32_MIN;
            submit(b, urgent);
        }
        engine_turn(b->e);
        scheduler_check(&b->e->scheduler);
        engine_drain(b->e, on_event, b);
        turn++;
    }
    return turn;
}

/* An older request's advantage grows with time, so that it is eventually served. */
TEST(higher_priority_traffic_starves_no_request)
{
    static const struct {
        int64_t age_s;
        bool is_first;
    } rows[] = {{MAX_ADVANTAGE_S + 1, true}, {1, false}};
    for (int32_t i = 0; i < 2; i++) {
        struct bed b = {0};
        struct engine_options o = options_of(&b, 4, 60);
        o.max_num_seqs = 1;
        o.max_waiting = 80;
        REQUIRE(start(&b, &o));
        struct test_request *q = make(0, 0, 10, 20);
        q->r.priority = INT32_MAX;
        submit(&b, q);
        int32_t turns = turns_beside_urgent_ones(&b, 0, rows[i].age_s, 60);
        CHECK_EQ(turns < 30, rows[i].is_first);
        CHECK_EQ(q->r.n_preemptions > 0, false);
        stop(&b);
    }
}

/* The value is monotonic in the priority and within bounds, so that times and priorities
 * can be added. */
TEST(what_a_priority_is_worth_grows_and_is_bounded)
{
    static const int32_t priorities[] = {INT32_MIN, -1000000, -100, -2, -1,       0,
                                         1,         2,        3,    50, INT32_MAX};
    const int64_t half = (int64_t)MAX_ADVANTAGE_S * 500000000;
    for (size_t i = 0; i < sizeof priorities / sizeof priorities[0]; i++) {
        int64_t worth = priority_worth_ns(priorities[i]);
        CHECK(worth >= -half && worth <= half);
        CHECK(i == 0 || worth > priority_worth_ns(priorities[i - 1]));
    }
    CHECK_EQ(priority_worth_ns(0), 0);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
