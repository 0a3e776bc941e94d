// SPDX-License-Identifier: Apache-2.0
/* Cached prefixes that end inside a block: how many tokens are found, and that the answers are
 * right. */
#include "test/engine/bed.h"

enum { BLOCK = 16, UNIT = 4 };

static struct engine_options unit_options(struct bed *b, int32_t unit, int32_t n_blocks)
{
    struct engine_options o = options_of(b, BLOCK, n_blocks);
    o.prefix_match_unit = unit;
    return o;
}

/* Makes request i with n tokens, the first n_same of which are those of request 0. */
static struct test_request *like_first(int32_t i, int32_t n_same, int32_t n, int32_t max_tokens)
{
    struct test_request *q = make(i, 100 + i, n, max_tokens);
    memcpy(q->prompt, requests[0].prompt, (size_t)n_same * sizeof *q->prompt);
    return q;
}

/* Runs one request alone; returns how many of its tokens were cached. */
static int32_t cached(struct bed *b, int32_t i)
{
    submit(b, &requests[i]);
    run(b, 1, 400);
    check_answer(i);
    return requests[i].r.n_cached;
}

/* Request 0 fills three blocks: 40 tokens of the prompt, and 11 of its 12 output tokens. */
static bool start_filled(struct bed *b, const struct engine_options *o)
{
    if (!start(b, o)) {
        return false;
    }
    make(0, 0, 40, 12);
    CHECK_EQ(cached(b, 0), 0);
    return true;
}

static void finish(struct bed *b)
{
    CHECK_EQ(b->control.n_wrong, 0);
    stop(b);
}

/* The last token's row is computed again, so 39 of the 40 tokens may be found. */
TEST(a_prompt_is_found_in_whole_units)
{
    for (int32_t unit = 1; unit <= BLOCK; unit *= 2) {
        struct bed b = {0};
        struct engine_options o = unit_options(&b, unit, 60);
        REQUIRE(start_filled(&b, &o));
        like_first(1, 40, 40, 3);
        CHECK_EQ(cached(&b, 1), 32 + 7 / unit * unit);
        like_first(2, 22, 50, 3);
        CHECK_EQ(cached(&b, 2), 16 + 6 / unit * unit);
        like_first(3, 7, 50, 3);
        CHECK_EQ(cached(&b, 3), 7 / unit * unit);
        finish(&b);
    }
}

/* Whatever proposes drafts: the models' own keys of the copied block are computed again. */
TEST(a_copied_block_has_no_draft_keys)
{
    static const char *const specs[] = {
        "{\"method\":\"draft_model\",\"model\":\"test/golden/llama-tied\","
        "\"num_speculative_tokens\":3,\"fixed\":true}",
        "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\",\"num_speculative_tokens\":4,"
        "\"fixed\":true}"};
    for (int32_t i = 0; i < 2; i++) {
        struct bed b = {.control.perfect = true};
        struct engine_options o = unit_options(&b, UNIT, 60);
        o.speculative_config = specs[i];
        REQUIRE(start_filled(&b, &o));
        like_first(1, 22, 50, 30);
        CHECK_EQ(cached(&b, 1), 20);
        like_first(2, 40, 40, 30);
        CHECK_EQ(cached(&b, 2), 36);
        CHECK(b.e->spec.learnt.n_accepted > 0);
        finish(&b);
    }
}

/* Both copies are in the first plan, and read the same block. */
TEST(two_sequences_copy_from_one_block_in_one_plan)
{
    struct bed b = {0};
    struct engine_options o = unit_options(&b, UNIT, 60);
    REQUIRE(start_filled(&b, &o));
    like_first(1, 22, 50, 5);
    like_first(2, 26, 50, 5);
    submit(&b, &requests[1]);
    submit(&b, &requests[2]);
    const struct plan *p = &b.e->steps[b.e->next_slot].plan;
    engine_turn(b.e);
    REQUIRE(p->n_copies == 2);
    CHECK_EQ(p->copies[0].from, p->copies[1].from);
    CHECK(p->copies[0].to != p->copies[1].to);
    run(&b, 2, 400);
    check_answer(1);
    check_answer(2);
    CHECK_EQ(requests[1].r.n_cached, 20);
    CHECK_EQ(requests[2].r.n_cached, 24);
    finish(&b);
}

/* The leader begins with a part of a block, which its siblings then get from it: in the same block
 * if the prompt ends there, else shared. */
TEST(siblings_share_what_their_leader_copied)
{
    static const int32_t lengths[] = {27, 32, 41};
    for (int32_t k = 0; k < 3; k++) {
        struct bed b = {0};
        struct engine_options o = unit_options(&b, UNIT, 60);
        REQUIRE(start_filled(&b, &o));
        like_first(1, 22, lengths[k], 9)->r.n = 4;
        CHECK_EQ(cached(&b, 1), 20);
        for (int32_t s = 1; s < 4; s++) {
            check_sample(1, s, 9);
        }
        finish(&b);
    }
}

/* A request that needs every block gets them all: the block that it would copy from is given up.
 * With one more block the copy is made. */
TEST(a_part_takes_no_block_that_its_request_needs)
{
    for (int32_t n_blocks = 4; n_blocks <= 5; n_blocks++) {
        struct bed b = {0};
        struct engine_options o = unit_options(&b, UNIT, n_blocks);
        REQUIRE(start_filled(&b, &o));
        like_first(1, 22, 57, 4);
        CHECK_EQ(cached(&b, 1), n_blocks == 4 ? 16 : 20);
        finish(&b);
    }
}

/* A running sequence holds the block to copy from, and the pool has room for both or for one: then
 * the second waits. */
TEST(a_held_block_can_be_copied)
{
    for (int32_t n_blocks = 4; n_blocks <= 9; n_blocks++) {
        struct bed b = {0};
        struct engine_options o = unit_options(&b, UNIT, n_blocks);
        REQUIRE(start(&b, &o));
        make(0, 0, 40, 24);
        like_first(1, 22, 50, 14);
        submit(&b, &requests[0]);
        engine_turn(b.e);
        submit(&b, &requests[1]);
        run(&b, 2, 400);
        check_answer(0);
        check_answer(1);
        CHECK_EQ(requests[1].r.n_cached, n_blocks == 4 ? 16 : 20); // alone it needs four
        finish(&b);
    }
}

TEST(nothing_is_copied_for_other_salts_or_scored_prompts)
{
    static struct token_logprobs scores[50];
    struct bed b = {0};
    struct engine_options o = unit_options(&b, 1, 60);
    REQUIRE(start_filled(&b, &o));
    like_first(1, 40, 50, 3)->r.cache_salt = "another tenant";
    CHECK_EQ(cached(&b, 1), 0);
    struct test_request *q = like_first(2, 40, 50, 3);
    q->r.params.prompt_logprobs = 1;
    q->r.prompt_logprobs = scores;
    CHECK_EQ(cached(&b, 2), 0);
    like_first(3, 40, 50, 3);
    CHECK_EQ(cached(&b, 3), 40);
    engine_reset_prefix_cache(b.e);
    engine_turn(b.e);
    like_first(3, 40, 50, 3);
    CHECK_EQ(cached(&b, 3), 0);
    finish(&b);
}

/* Only a named unit must divide a block. States belong to boundaries, so with them the unit is a
 * block. */
TEST(a_unit_divides_a_block)
{
    struct bed b = {0};
    struct err err;
    struct engine *e;
    struct engine_options o = unit_options(&b, 3, 60);
    CHECK_EQ(engine_open(&o, &e, &err), ERR_INVALID);
    CHECK_STR(err.text, "prefix-match-unit: 3 does not divide a block of 16 tokens");
    static const struct {
        int32_t block, unit;
    } cases[] = {{64, 16}, {16, 16}, {8, 8}, {24, 24}, {48, 16}};
    for (int32_t i = 0; i < 5; i++) {
        o.block_size = cases[i].block;
        o.prefix_match_unit = 0;
        REQUIRE(start(&b, &o));
        CHECK_EQ(b.e->info.match_unit, cases[i].unit);
        stop(&b);
    }
    o.model = "test/engine/hybrid";
    o.block_size = 64;
    o.prefix_match_unit = UNIT;
    REQUIRE(start(&b, &o));
    CHECK_EQ(b.e->info.match_unit, 64);
    stop(&b);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
