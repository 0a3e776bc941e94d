// SPDX-License-Identifier: Apache-2.0
/* What a request whose results are not numbers leaves in the prefix cache: nothing that may break
 * later requests with the same prefix. */
#include "test/engine/bed.h"

/* Runs a request alone, and checks whether it fails and how many of its tokens were cached. */
static void check_one(struct bed *b, struct test_request *q, bool fails, int32_t n_cached)
{
    submit(b, q);
    run(b, 1, 100);
    CHECK_EQ(q->r.error, fails ? ERR_NAN : OK);
    CHECK_EQ(q->r.n_cached, n_cached);
    if (!fails) {
        check_answer((int32_t)(q - requests));
    }
}

/* A fault of the device passes, but what it left in the pages would break every later request with
 * the same prefix. */
TEST(blocks_of_a_request_that_broke_are_computed_again)
{
    for (int32_t n = 1; n <= 3; n++) {
        struct bed b = {.control.broken_after = 299};
        struct engine_options o = options_of(&b, 4, 60);
        REQUIRE(start(&b, &o));
        make(0, 280, 20, 3)->r.n = n;
        check_one(&b, &requests[0], true, 0);
        b.control.broken_after = 0;
        check_one(&b, make(1, 280, 20, 3), false, 0);
        check_one(&b, make(2, 280, 20, 3), false, 16);
        stop(&b);
    }
}

/* Two requests that share blocks and break in the same step: the one that leaves last drops
 * them. */
TEST(blocks_of_requests_that_broke_together_are_computed_again)
{
    struct bed b = {.control.broken_after = 299};
    struct engine_options o = options_of(&b, 4, 60);
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 280, 20, 3));
    submit(&b, make(1, 280, 20, 3));
    run(&b, 2, 100);
    CHECK_EQ(requests[0].r.error, ERR_NAN);
    CHECK_EQ(requests[1].r.error, ERR_NAN);
    b.control.broken_after = 0;
    check_one(&b, make(2, 280, 20, 3), false, 0);
    stop(&b);
}

/* Blocks that many requests share survive a request that breaks only at its end. They do not
 * survive two such requests unless a valid result in between has shown that the blocks are good. */
TEST(blocks_that_gave_results_stay_when_a_request_breaks)
{
    struct bed b = {.control.broken_after = 299};
    struct engine_options o = options_of(&b, 4, 60);
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < 5; i++) {
        struct test_request *q = make(i, 270, 20, i % 2 == 0 ? 1 : 3);
        const bool fails = i % 2 == 1 || i == 4;
        q->prompt[19] = fails ? 299 : 100 + i;
        check_one(&b, q, fails, i == 0 ? 0 : 16);
    }
    check_one(&b, make(5, 270, 20, 3), false, 0);
    stop(&b);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
