// SPDX-License-Identifier: Apache-2.0
/* Models with recurrent state: what the prefix cache restores of it, where it is kept, and that no
 * sequence continues from a wrong state. The fake backend knows each state from the tokens. */
#include "test/engine/bed.h"

/* In tokens: the size of a KV block, the size of a block of states, and the distance of regular
 * snapshots in a prompt. */
enum { BLOCK = 16, STATE = 64, EVERY = 512 };

/* A configuration with recurrent and attention layers. */
static struct engine_options hybrid_options(struct bed *b, int32_t n_blocks)
{
    struct engine_options o = options_of(b, BLOCK, n_blocks);
    o.model = "test/engine/hybrid";
    o.max_model_len = 4096;
    return o;
}

/* Runs one request alone, from its arrival to its answer. */
static struct test_request *ask(struct bed *b, int32_t i)
{
    submit(b, &requests[i]);
    run(b, 1, 400);
    check_answer(i);
    return &requests[i];
}

static void finish(struct bed *b)
{
    CHECK_EQ(b->control.n_wrong, 0);
    stop(b);
}

/* From position `at` on the prompt has other tokens than those of `make`. */
static void part_at(int32_t i, int32_t at, int32_t salt)
{
    for (int32_t k = at; k < requests[i].r.n_prompt; k++) {
        requests[i].prompt[k] = (k * 7 + salt) % 300;
    }
}

static int32_t last_boundary(int32_t n)
{
    return n / STATE * STATE;
}

/* ---- what is found ------------------------------------------------------------------------ */

/* Keys are found in blocks of 16, but a state exists only at multiples of 64: the rest up
 * to the found keys is recomputed. The lengths lie on, before and after the boundaries. */
TEST(the_same_prompt_resumes_from_its_last_boundary)
{
    struct bed b = {0};
    struct engine_options o = hybrid_options(&b, 400);
    REQUIRE(start(&b, &o));
    static const int32_t lengths[] = {64, 65, 128, 200, 512, 513, 1000};
    for (int32_t k = 0; k < 7; k++) {
        int32_t n = lengths[k];
        make(0, 31 * k, n, 3);
        CHECK_EQ(ask(&b, 0)->r.n_cached, 0);
        make(1, 31 * k, n, 3);
        CHECK_EQ(ask(&b, 1)->r.n_cached, last_boundary(n - 1));
        CHECK_EQ(requests[1].r.n_recomputed, (n - 1) / BLOCK * BLOCK - last_boundary(n - 1));
        engine_reset_prefix_cache(b.e);
    }
    finish(&b);
}

/* Eight turns of a chat: the state at the last boundary of the previous answer is kept, so
 * a turn recomputes less than one block of states. */
TEST(a_conversation_resumes_where_the_answer_ended)
{
    struct bed b = {0};
    struct engine_options o = hybrid_options(&b, 400);
    REQUIRE(start(&b, &o));
    int32_t n = 150;
    make(0, 0, n, 60);
    ask(&b, 0);
    for (int32_t turn = 1; turn < 8; turn++) {
        struct test_request *q = make(turn, 0, n, 60);
        const struct test_request *before = &requests[turn - 1];
        memcpy(q->prompt, before->prompt, (size_t)before->r.n_prompt * sizeof *q->prompt);
        memcpy(q->prompt + n, before->tokens[0], 60 * sizeof *q->prompt);
        int32_t known = n + 60 - 1; // the last token was not computed
        for (n += 60; n % 100 != 33; n++) {
            q->prompt[n] = n % 300;
        }
        q->r.n_prompt = n;
        CHECK_EQ(ask(&b, turn)->r.n_cached, last_boundary(known));
        CHECK(q->r.n_recomputed < STATE);
    }
    finish(&b);
}

/* Four prompts that differ after 1,300 tokens. The second finds the regular snapshot at
 * 1,024 and computes the branch point, where a snapshot is kept (1,280), and the rest
 * continue from there. */
TEST(a_branch_is_computed_once_and_then_kept)
{
    struct bed b = {0};
    struct engine_options o = hybrid_options(&b, 600);
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < 4; i++) {
        make(i, 0, 1500, 2);
        part_at(i, 1300, i);
        ask(&b, i);
    }
    CHECK_EQ(requests[0].r.n_cached, 0);
    CHECK_EQ(requests[1].r.n_cached, 1024); // a regular snapshot: they are 512 apart
    CHECK_EQ(requests[1].r.n_recomputed, 1296 - 1024);
    CHECK_EQ(requests[2].r.n_cached, 1280);
    CHECK_EQ(requests[2].r.n_recomputed, 1296 - 1280);
    CHECK_EQ(requests[3].r.n_cached, 1280);
    finish(&b);
}

/* Prompts that diverge from one cached prompt at 49 different places: each continues from a
 * snapshot at most 512 tokens before the place. */
TEST(at_most_512_tokens_are_recomputed_wherever_prompts_diverge)
{
    struct bed b = {0};
    struct engine_options o = hybrid_options(&b, 4000);
    o.max_num_batched_tokens = 700; // some boundaries are inside a chunk, some at its end
    REQUIRE(start(&b, &o));
    make(0, 0, 2000, 2);
    ask(&b, 0);
    for (int32_t at = 5, i = 1; at < 2000; at += 41, i++) {
        make(i, 0, 2000, 2);
        part_at(i, at, i);
        CHECK(ask(&b, i)->r.n_recomputed <= EVERY);
        CHECK(requests[i].r.n_cached + requests[i].r.n_recomputed >= at / BLOCK * BLOCK);
    }
    CHECK(b.control.n_keeps > 0);
    finish(&b);
}

/* 64 prompts of about 2,200 tokens, one after another, with 12 different prefixes of `shared`
 * tokens. Returns the number of prompts that found their prefix. */
static int32_t hits_of(int32_t shared)
{
    struct bed b = {0};
    struct engine_options o = hybrid_options(&b, 4000);
    int32_t hits = 0;
    if (!start(&b, &o)) {
        return -1;
    }
    for (int32_t i = 0; i < 64; i++) {
        struct test_request *q = make(i, 17 * (i % 12), 2200, 2);
        q->prompt[0] = i % 12;
        part_at(i, shared, i);
        q->prompt[shared] = 299 - i;
        ask(&b, i);
        hits += q->r.n_cached > 0;
        CHECK(i < 12 || q->r.n_cached >= shared - EVERY);
        CHECK(i < 24 || q->r.n_cached >= last_boundary(shared - BLOCK));
    }
    finish(&b);
    return hits;
}

/* The number of hits must not depend on how the end of the common prefix lies relative to regular
 * snapshots. The second prompt shows where prompts part, and leaves a snapshot there for all later
 * ones. */
TEST(a_shift_of_the_common_beginning_costs_no_hits)
{
    CHECK_EQ(hits_of(1600), 52);
    CHECK_EQ(hits_of(1500), 52);
    CHECK_EQ(hits_of(1537), 52);
}

/* With another salt, or after a reset, neither keys nor states are found, and the reset returns
 * the snapshots' memory. */
TEST(other_salts_and_a_reset_find_nothing)
{
    struct bed b = {0};
    struct engine_options o = hybrid_options(&b, 400);
    REQUIRE(start(&b, &o));
    make(0, 0, 300, 2);
    ask(&b, 0);
    make(1, 0, 300, 2)->r.cache_salt = "another";
    CHECK_EQ(ask(&b, 1)->r.n_cached, 0);
    make(2, 0, 300, 2)->r.cache_salt = "another";
    CHECK_EQ(ask(&b, 2)->r.n_cached, 256);
    struct engine_stats s;
    engine_stats(b.e, &s);
    CHECK(s.n_snapshots_taken > 0);
    engine_reset_prefix_cache(b.e);
    make(3, 0, 300, 2);
    CHECK_EQ(ask(&b, 3)->r.n_cached, 0);
    engine_reset_prefix_cache(b.e);
    for (int32_t i = 0; i < 3; i++) {
        engine_turn(b.e);
    }
    engine_stats(b.e, &s);
    CHECK_EQ(s.n_snapshots_taken, 0);
    finish(&b);
}

/* ---- where memory is short ---------------------------------------------------------------- */

/* Four snapshots only. The snapshot at the branch, used three times, is kept in preference to
 * those of nine long prompts that were used once. */
TEST(a_branch_outlives_prompts_that_come_once)
{
    struct bed b = {0};
    struct engine_options o = hybrid_options(&b, 4000);
    o.state_snapshots = 4;
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < 3; i++) {
        make(i, 0, 700, 2);
        part_at(i, 600, i);
        ask(&b, i);
    }
    for (int32_t i = 3; i < 12; i++) { // others, each with several states of its own
        make(i, 3 * i + 1, 2000, 2);
        part_at(i, 0, 50 * i);
        ask(&b, i);
    }
    make(12, 0, 700, 2);
    part_at(12, 600, 12);
    CHECK(ask(&b, 12)->r.n_cached >= 512);
    struct engine_stats s;
    engine_stats(b.e, &s);
    CHECK_EQ(s.n_snapshots_taken, 4);
    finish(&b);
}

/* Recomputed blocks count as recent, since the following turns need them. */
TEST(recomputed_blocks_are_as_recent_as_the_blocks_after_them)
{
    struct bed b = {0};
    struct engine_options o = hybrid_options(&b, 44);
    REQUIRE(start(&b, &o));
    make(0, 0, 112, 1);
    ask(&b, 0); // 7 blocks, state after 4
    make(1, 0, 330, 1);
    CHECK_EQ(ask(&b, 1)->r.n_cached, 64);
    CHECK_EQ(requests[1].r.n_recomputed, 48);
    make(2, 100, 330, 1); // 21 of 44 blocks: takes what is oldest
    part_at(2, 0, 9);
    ask(&b, 2);
    make(3, 0, 400, 1);
    CHECK_EQ(ask(&b, 3)->r.n_cached, 320);
    finish(&b);
}

/* A sequence is preempted in the middle of its answer, because a more urgent one needs the only
 * lane. Returns the rows computed from then on. */
static int64_t rows_with(int32_t snapshots)
{
    struct bed b = {0};
    struct engine_options o = hybrid_options(&b, 400);
    o.state_snapshots = snapshots;
    o.max_num_seqs = 1;
    if (!start(&b, &o)) {
        return -1;
    }
    make(0, 0, 700, 100)->r.priority = 5;
    submit(&b, &requests[0]);
    for (int32_t i = 0; i < 60; i++) {
        engine_turn(b.e);
    }
    int64_t before = b.control.n_rows;
    submit(&b, make(1, 50, 20, 5));
    run(&b, 2, 400);
    check_answer(0);
    check_answer(1);
    CHECK_EQ(requests[0].r.n_preemptions, 1);
    finish(&b);
    return b.control.n_rows - before;
}

/* Without snapshots (-1) the preempted sequence recomputes its prompt (over 750 rows); with the
 * default number (0) it resumes from its last boundary. */
TEST(a_preempted_sequence_resumes_where_it_stopped)
{
    CHECK(rows_with(-1) > 750);
    CHECK(rows_with(0) < 20 + 5 + STATE + 100);
}

/* mamba_cache_mode none: no snapshot is taken or restored, and no keys are used without
 * their state. */
TEST(no_snapshots_no_hits)
{
    struct bed b = {0};
    struct engine_options o = hybrid_options(&b, 400);
    o.mamba_cache_mode = "none";
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < 2; i++) {
        make(i, 0, 300, 2);
        CHECK_EQ(ask(&b, i)->r.n_cached, 0);
    }
    CHECK_EQ(requests[1].r.n_recomputed, 288);
    CHECK_EQ(b.control.n_state_copies, 0);
    finish(&b);
}

/* ---- siblings, and what would be wrong ----------------------------------------------------- */

/* n = 5: four siblings copy the leader's state after the prompt, wherever the prompt ends
 * relative to a block of states (60 to 300 tokens). */
TEST(siblings_resume_from_their_leader)
{
    struct bed b = {0};
    struct engine_options o = hybrid_options(&b, 400);
    REQUIRE(start(&b, &o));
    static const int32_t lengths[] = {60, 64, 70, 120, 128, 300};
    for (int32_t k = 0; k < 6; k++) {
        make(0, 10 * k, lengths[k], 80)->r.n = 5;
        submit(&b, &requests[0]);
        run(&b, 1, 400);
        for (int32_t s = 0; s < 5; s++) {
            check_sample(0, s, 80);
        }
    }
    CHECK(b.control.n_state_copies >= 6 * 4);
    finish(&b);
}

/* Checks the test itself: a missing copy is noticed. */
TEST(a_lost_copy_is_detected)
{
    for (int32_t lost = 1; lost <= 3;
         lost++) { // the copy from a lane, one of the second text, the copy to a lane
        struct bed b = {.control.lose_copy = lost};
        struct engine_options o = hybrid_options(&b, 400);
        REQUIRE(start(&b, &o));
        for (int32_t i = 0; i < 4; i++) {
            submit(&b, make(i, 50 * (i % 2), 200, 3));
            run(&b, 1, 100);
        }
        CHECK(b.control.n_state_copies >= 4);
        CHECK(b.control.n_wrong > 0);
        stop(&b);
    }
}

/* ---- options ------------------------------------------------------------------------------ */

/* Options that cannot work with recurrent state are refused with the reason. */
static void refuses(const struct engine_options *o, const char *text)
{
    struct engine *e;
    struct err err = {""};
    CHECK(engine_open(o, &e, &err) != OK);
    if (!strstr(err.text, text)) {
        CHECK_FAIL("'%s' is not in '%s'", text, err.text);
    }
}

/* Messages name the option and the value; a draft model's recurrent state is not
 * implemented. */
TEST(what_does_not_fit_is_refused_by_name)
{
    struct bed b = {0};
    struct engine_options o = hybrid_options(&b, 400);
    o.block_size = 48;
    refuses(&o, "block-size is 48: with this model's recurrent state it must divide 64");
    o = hybrid_options(&b, 400);
    o.state_snapshots = 1 << 30;
    refuses(&o, "state-snapshots: 1073741824 of");
    o = hybrid_options(&b, 400);
    o.speculative_config = "{\"method\":\"draft_model\",\"model\":\"test/engine/hybrid\"}";
    refuses(&o, "a draft model with recurrent state (qwen3_5_text) is not supported");
}

/* Recurrent state is memory per sequence whatever its length: the default number of
 * sequences leaves at least three quarters for the cache, an explicit one is respected as
 * long as the cache still fits. */
TEST(sequences_are_as_many_as_their_states_leave_room_for)
{
    struct bed b = {.control.lane_bytes = (size_t)10 << 20};
    struct engine_options o = hybrid_options(&b, 0);
    REQUIRE(start(&b, &o));
    CHECK_EQ(engine_info(b.e)->max_num_seqs, 10); // a quarter of 0.4 GiB
    CHECK(engine_info(b.e)->state_bytes >= (size_t)100 << 20);
    CHECK(engine_info(b.e)->n_snapshots > 0);
    finish(&b);
    o.max_num_seqs = 30; // as asked
    REQUIRE(start(&b, &o));
    CHECK_EQ(engine_info(b.e)->max_num_seqs, 30);
    finish(&b);
    o.max_num_seqs = 60;
    refuses(&o, "no memory for the KV cache");
}

/* -1: "not applicable", unlike 0. */
TEST(a_model_without_state_has_none)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, BLOCK, 400);
    REQUIRE(start(&b, &o));
    make(0, 0, 200, 3);
    CHECK_EQ(ask(&b, 0)->r.n_recomputed, -1);
    CHECK_EQ(engine_info(b.e)->state_bytes, 0);
    CHECK_EQ(b.control.n_state_copies + b.control.n_keeps, 0);
    finish(&b);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
