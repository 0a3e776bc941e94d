// SPDX-License-Identifier: Apache-2.0
/* Layers with a window of 24 positions, which have pages of their own: when pages are released,
 * what the cache can still find, and small numbers of pages. The fake backend checks every slot in
 * every row's window. */
#include "test/engine/bed.h"

enum { BLOCK = 4, WINDOW = 24, ROWS = 16 };

static struct engine_options windowed(struct bed *b, int32_t n_blocks, int32_t n_pages)
{
    struct engine_options o = options_of(b, BLOCK, n_blocks);
    o.model = "test/golden/gpt-oss";
    o.window_pages = n_pages;
    o.prefix_match_unit = BLOCK;
    o.max_num_seqs = 4;
    o.max_num_batched_tokens = ROWS;
    o.max_model_len = 400;
    return o;
}

/* Pages that sequences hold. */
static int32_t held(const struct bed *b)
{
    const struct kv_pool *p = &b->e->scheduler.holdings.windows.pages;
    return p->n_blocks - kv_pool_available(p);
}

static void turn_once(struct bed *b)
{
    engine_turn(b->e);
    scheduler_check(&b->e->scheduler);
    engine_drain(b->e, on_event, b);
}

static void turn(struct bed *b, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        turn_once(b);
    }
}

/* Serves the request and returns the most pages held at a time. */
static int32_t serve(struct bed *b, int32_t i)
{
    int32_t most = 0;
    submit(b, &requests[i]);
    for (int32_t k = 0; k < 1000 && b->n_done < 1; k++) {
        turn_once(b);
        most = greater(most, held(b));
    }
    CHECK_EQ(b->n_done, 1);
    b->n_done = 0;
    check_answer(i);
    return most;
}

/* Makes request i like request `like` up to `shared`. */
static void make_like(int32_t i, int32_t like, int32_t shared, int32_t n_prompt, int32_t max_tokens)
{
    make(i, 31 * i, n_prompt, max_tokens);
    memcpy(requests[i].prompt, requests[like].prompt, (size_t)shared * sizeof(int32_t));
}

TEST(a_sequence_holds_the_pages_of_its_window_only)
{
    static struct bed b;
    struct engine_options o = windowed(&b, 100, 40);
    REQUIRE(start(&b, &o));
    CHECK_EQ(engine_info(b.e)->n_window_pages, 40);
    make(0, 1, 300, 40);
    const int32_t most = serve(&b, 0);
    // what a chunk sees and writes, and not the 85 blocks of the text
    CHECK(most >= WINDOW / BLOCK && most <= (WINDOW + ROWS) / BLOCK + 1);
    CHECK_EQ(held(&b), 0);
    make_like(1, 0, 300, 300, 40); // its last window is still there
    serve(&b, 1);
    CHECK_EQ(requests[1].r.n_cached, 296);
    CHECK_EQ(requests[1].r.n_recomputed, 0);
    CHECK_EQ(b.control.n_wrong, 0);
    stop(&b);
}

/* The pages where B leaves A's text are gone. B computes the front again, in the same blocks, and
 * its end is kept longer than what only passed by. */
TEST(a_front_that_lost_its_pages_is_computed_again_once)
{
    static struct bed b;
    struct engine_options o = windowed(&b, 200, 24);
    REQUIRE(start(&b, &o));
    make(0, 1, 300, 20);
    serve(&b, 0);
    for (int32_t i = 1; i <= 2; i++) {
        make_like(i, 0, 100, 220, 20);
        serve(&b, i);
        CHECK_EQ(requests[i].r.n_cached, i == 1 ? 0 : 100);
        CHECK_EQ(requests[i].r.n_recomputed, i == 1 ? 100 : 0);
    }
    CHECK_EQ(b.control.n_wrong, 0);
    stop(&b);
}

/* The same while A still decodes and so holds the blocks: B's blocks take their places in the
 * cache. */
TEST(blocks_with_pages_replace_held_ones_without)
{
    static struct bed b;
    struct engine_options o = windowed(&b, 400, 30);
    REQUIRE(start(&b, &o));
    make(0, 1, 240, 120);
    submit(&b, &requests[0]);
    turn(&b, 25); // the prompt, and the beginning of the answer
    for (int32_t i = 1; i <= 3; i++) {
        make_like(i, 0, 100, 130, 8);
        submit(&b, &requests[i]);
        turn(&b, 25);
        check_answer(i);
        CHECK_EQ(requests[i].r.n_cached, i == 1 ? 0 : 100);
    }
    CHECK_EQ(b.n_done, 3);
    b.n_done = 0;
    while (!requests[0].r.done) {
        turn_once(&b);
    }
    check_answer(0);
    CHECK_EQ(b.control.n_wrong, 0);
    stop(&b);
}

/* A begins far behind what it shares with B, whose window lies in the shared part. Attention may
 * read that part through A's table, which then must name B's pages. */
TEST(a_group_may_read_the_table_of_any_member)
{
    static struct bed b;
    struct engine_options o = windowed(&b, 200, 120);
    REQUIRE(start(&b, &o));
    make(0, 1, 200, 4);
    serve(&b, 0);
    make(3, 200, 300, 4); // leaves other pages in the tables
    serve(&b, 3);
    make_like(1, 0, 200, 200, 100);
    make_like(2, 0, 96, 97, 60);
    submit(&b, &requests[1]);
    submit(&b, &requests[2]);
    run(&b, 2, 500);
    CHECK_EQ(requests[1].r.n_cached, 196);
    CHECK_EQ(requests[2].r.n_cached, 96);
    check_answer(1);
    check_answer(2);
    CHECK_EQ(b.control.n_wrong, 0);
    stop(&b);
}

/* A chunk is as large as the pages that are left allow, but these stay available to others. */
TEST(a_prompt_gets_pages_that_are_left)
{
    static struct bed b;
    struct engine_options o = windowed(&b, 200, 40);
    o.window_rows = 4;
    o.max_num_batched_tokens = 120;
    REQUIRE(start(&b, &o));
    make(0, 1, 300, 100);
    submit(&b, &requests[0]);
    engine_turn(b.e); // alone it gets whole steps
    CHECK_EQ(b.e->scheduler.order.next->n_computed, 120);
    for (int32_t i = 1; i < 4; i++) {
        make(i, 50 * i, 280, 60);
        submit(&b, &requests[i]);
    }
    run(&b, 4, 500);
    for (int32_t i = 0; i < 4; i++) {
        check_answer(i);
        CHECK_EQ(requests[i].r.n_preemptions, 0); // four windows fit, if nobody keeps more
    }
    CHECK_EQ(b.control.n_wrong, 0);
    stop(&b);
}

/* The answer's window is still growing while the chunks of a later prompt take all other pages. */
TEST(a_growing_answer_preempts_no_prompt)
{
    static struct bed b;
    struct engine_options o = windowed(&b, 200, 36);
    o.window_rows = 4;
    o.max_num_batched_tokens = 120;
    REQUIRE(start(&b, &o));
    make(0, 1, 5, 60);
    make(1, 7, 390, 5);
    submit(&b, &requests[0]);
    engine_turn(b.e);
    submit(&b, &requests[1]);
    run(&b, 2, 500);
    check_answer(0);
    check_answer(1);
    CHECK_EQ(requests[1].r.n_preemptions, 0);
    CHECK_EQ(b.control.n_wrong, 0);
    stop(&b);
}

/* With the fewest pages possible, sequences run one after the other or preempt each other, and all
 * of them end. */
TEST(the_fewest_pages_suffice)
{
    for (int32_t n_more = 0; n_more <= 12; n_more += 3) {
        static struct bed b;
        b = (struct bed){0};
        const struct scheduler_limits l = {.max_rows = ROWS,
                                           .block_tokens = BLOCK,
                                           .chunked = true,
                                           .window = WINDOW,
                                           .window_rows = ROWS};
        struct engine_options o = windowed(&b, 160, windows_least_pages(&l) + n_more);
        REQUIRE(start(&b, &o));
        for (int32_t i = 0; i < 6; i++) {
            make(i, 40 * i, 20 + 50 * i, 30);
            requests[i].r.n = i % 3 == 2 ? 3 : 1;
            submit(&b, &requests[i]);
        }
        run(&b, 6, 3000);
        for (int32_t i = 0; i < 6; i++) {
            for (int32_t s = 0; s < requests[i].r.n; s++) {
                check_sample(i, s, 30);
            }
        }
        CHECK_EQ(b.control.n_wrong, 0);
        CHECK_EQ(held(&b), 0);
        stop(&b);
    }
}

TEST(fewer_pages_are_refused)
{
    static struct bed b;
    const struct scheduler_limits l = {.max_rows = ROWS,
                                       .block_tokens = BLOCK,
                                       .chunked = true,
                                       .window = WINDOW,
                                       .window_rows = ROWS};
    struct engine_options o = windowed(&b, 100, windows_least_pages(&l) - 1);
    struct err err;
    CHECK_EQ(engine_open(&o, &b.e, &err), ERR_INVALID);
    CHECK(strstr(err.text, "window-pages") != NULL);
    o.disable_hybrid_kv_cache_manager = true;
    REQUIRE(start(&b, &o));
    CHECK_EQ(engine_info(b.e)->n_window_pages, 0);
    make(0, 1, 300, 20);
    submit(&b, &requests[0]);
    run(&b, 1, 500);
    check_answer(0);
    stop(&b);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
