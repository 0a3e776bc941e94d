// SPDX-License-Identifier: Apache-2.0
/* Cache hints and shares of the cache through the whole engine: they have their effect, and they do
 * not harm others. */
#include "test/engine/bed.h"

/* With its answer a prompt has 8 full blocks and a part of one. */
enum { BLOCK = 8, BLOCKS = 32, PROMPT = 64 };

static const int64_t minute_ns = 60 * INT64_C(1000000000);

static struct bed b;

static bool begin(void)
{
    b = (struct bed){0};
    struct engine_options o = options_of(&b, BLOCK, BLOCKS);
    return start(&b, &o);
}

static struct test_request *ask(int32_t first, int32_t n_prompt, uint64_t owner, double share)
{
    struct test_request *q = make(0, first, n_prompt, 4);
    q->r.owner = owner;
    q->r.cache_share = share;
    return q;
}

/* Runs a request. Returns how many tokens of its prompt were in the cache. */
static int32_t finish(struct test_request *q, const struct cache_hint *hint)
{
    q->r.hints = hint;
    q->r.n_hints = hint != NULL;
    submit(&b, q);
    run(&b, 1, 500);
    check_answer(0);
    CHECK_EQ(q->r.error, OK);
    return q->r.n_cached;
}

/* Prompts of other owners, which together need more blocks than there are. */
static void traffic(uint64_t owner, double share, const struct cache_hint *hint)
{
    for (int32_t i = 0; i < 12; i++) {
        finish(ask(100 + 7 * i, PROMPT, owner, share), hint);
    }
}

/* How many tokens of a prompt are still cached after the traffic of others has filled the cache. */
static int32_t cached_after_traffic(const struct cache_hint *hint)
{
    if (!begin()) {
        return -1;
    }
    CHECK_EQ(finish(ask(0, PROMPT, 1, 1), hint), 0);
    traffic(2, 1, NULL);
    int32_t n = finish(ask(0, PROMPT, 1, 1), NULL);
    stop(&b);
    return n;
}

/* Cases: no hint, a hint for the whole prompt, one for its beginning, and one that has expired. */
TEST(a_kept_prompt_survives_other_traffic)
{
    struct cache_hint all = {.end = INT32_MAX, .priority = 1, .duration_ns = minute_ns};
    struct cache_hint front = {.start = 8, .end = 17, .priority = 1, .duration_ns = minute_ns};
    struct cache_hint ended = {.end = INT32_MAX, .priority = 100, .duration_ns = 0};
    CHECK_EQ(cached_after_traffic(NULL), 0);
    CHECK_EQ(cached_after_traffic(&all), PROMPT - BLOCK); // one token is always computed
    CHECK_EQ(cached_after_traffic(&front), 24); // the hinted blocks and the one before them
    CHECK_EQ(cached_after_traffic(&ended), 0);
}

/* With priority 0 a prompt's blocks are reused first, although they are the latest. */
TEST(a_released_prompt_makes_room_before_older_ones)
{
    struct cache_hint release = {.end = INT32_MAX, .priority = 0};
    for (int i = 0; i < 2; i++) {
        REQUIRE(begin());
        finish(ask(0, PROMPT, 1, 1), NULL);
        finish(ask(200, 2 * PROMPT, 1, 1), i ? &release : NULL);
        finish(ask(50, PROMPT, 1, 1), NULL);
        finish(ask(90, PROMPT, 1, 1), NULL);
        CHECK_EQ(finish(ask(0, PROMPT, 1, 1), NULL) > 0, i == 1);
        stop(&b);
    }
}

/* HINT_OUTPUT begins with the first block that has no token of the prompt. */
TEST(the_answer_is_kept_or_released_separately_from_the_prompt)
{
    struct cache_hint output = {
        .start = HINT_OUTPUT, .end = INT32_MAX, .priority = 0, .duration_ns = minute_ns};
    REQUIRE(begin());
    struct test_request *q = ask(0, 60, 1, 1);
    q->r.params.max_tokens = 40; // 7 full blocks of prompt, one of both, 4 of the answer
    finish(q, &output);
    const struct idle_order *idle = &b.e->scheduler.holdings.pool.idle;
    int32_t n_released = 0;
    for (int32_t k = idle_order_newest(idle, IDLE_RELEASED); k >= 0;
         k = idle_order_older(idle, k)) {
        n_released++;
    }
    CHECK_EQ(n_released, 4);
    stop(&b);
}

/* An owner who asks to keep everything, at the highest priority for the longest time. */
static const struct cache_hint greedy = {
    .end = INT32_MAX, .priority = MAX_HINT_PRIORITY, .duration_ns = INT64_C(3600000000000)};

TEST(kept_blocks_never_prevent_a_request_from_running)
{
    REQUIRE(begin());
    traffic(2, 1, &greedy);
    CHECK(b.e->scheduler.holdings.retention.n_kept == BLOCKS / 2);
    int32_t most = (BLOCKS - 1) * BLOCK; // the prompt needs the kept blocks, too
    CHECK_EQ(finish(ask(0, most, 1, 1), NULL), 0);
    CHECK_EQ(b.e->scheduler.n_preemptions, 0);
    CHECK(b.e->scheduler.holdings.retention.n_kept <= 2);
    stop(&b);
}

/* One client must not be able to keep the whole cache. */
TEST(keeping_leaves_others_half_of_the_cache)
{
    REQUIRE(begin());
    traffic(2, 1, &greedy);
    for (int turn = 0; turn < 3; turn++) {
        CHECK_EQ(finish(ask(0, PROMPT, 1, 1), NULL), turn ? PROMPT - BLOCK : 0);
        finish(ask(150 + 20 * turn, 30, 2, 1), &greedy);
    }
    stop(&b);
}

/* A share limits what one owner's idle blocks take from others. */
TEST(a_share_of_the_cache_protects_the_others)
{
    for (int i = 0; i < 2; i++) {
        REQUIRE(begin());
        finish(ask(0, PROMPT, 1, 1), NULL);
        traffic(2, i ? 0.5 : 1, NULL);
        CHECK_EQ(finish(ask(0, PROMPT, 1, 1), NULL), i ? PROMPT - BLOCK : 0);
        stop(&b);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
