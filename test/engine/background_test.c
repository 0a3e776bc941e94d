// SPDX-License-Identifier: Apache-2.0
/* Background requests beside foreground ones: how long steps are, and when they are planned. */
#include "engine/base/minmax.h"
#include "test/engine/bed.h"

enum { FIRST = 1, N_BACKGROUND = 4, N_PROMPT = 500, N_TOKENS = 4 };

static struct engine_options long_steps(struct bed *b)
{
    struct engine_options o = options_of(b, 16, 400);
    o.max_num_batched_tokens = 2048;
    o.max_model_len = 4096;
    return o;
}

static void submit_background(struct bed *b)
{
    for (int32_t i = FIRST; i < FIRST + N_BACKGROUND; i++) {
        struct test_request *q = make(i, 11 * i, N_PROMPT, N_TOKENS);
        q->r.background = true;
        q->r.priority = 1 << 30;
        submit(b, q);
    }
}

static void check_background(void)
{
    for (int32_t i = FIRST; i < FIRST + N_BACKGROUND; i++) {
        check_sample(i, 0, N_TOKENS);
    }
}

static const struct plan *last_plan(const struct engine *e)
{
    return &e->steps[(e->next_slot + N_STEPS - 1) % N_STEPS].plan;
}

/* Takes turns until the requests are done. Returns the most prompt rows of background requests in a
 * step. */
static int32_t longest_step(struct bed *b, int32_t n_requests)
{
    int32_t most = 0;
    b->control.most_unread = 0;
    for (int32_t turn = 0; turn < 60 && b->n_done < n_requests; turn++) {
        engine_turn(b->e);
        engine_drain(b->e, on_event, b);
        int32_t n = last_plan(b->e)->n_background;
        most = greater(n, most);
    }
    CHECK_EQ(b->n_done, n_requests);
    b->n_done = 0;
    return most;
}

TEST(alone_background_prompts_take_whole_steps_planned_ahead)
{
    struct bed b = {0};
    struct engine_options o = long_steps(&b);
    REQUIRE(start(&b, &o));
    submit_background(&b);
    CHECK_EQ(longest_step(&b, N_BACKGROUND), N_BACKGROUND * N_PROMPT);
    CHECK_EQ(b.control.most_unread, 2);
    check_background();
    stop(&b);
}

TEST(steps_of_the_background_are_short_and_planned_late_after_a_foreground_request)
{
    struct bed b = {0};
    struct engine_options o = long_steps(&b);
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 10, 1));
    run(&b, 1, 20);
    submit_background(&b);
    CHECK_EQ(longest_step(&b, N_BACKGROUND), 512);
    CHECK_EQ(b.control.most_unread, 1);
    check_background();
    stop(&b);
}

TEST(a_foreground_prompt_shares_its_step_with_fewer_background_rows)
{
    struct bed b = {0};
    struct engine_options o = long_steps(&b);
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 10, 1));
    run(&b, 1, 20);
    submit_background(&b);
    engine_turn(b.e);
    engine_turn(b.e);
    submit(&b, make(0, 5, 300, 1)); // while a step is in flight
    engine_turn(b.e);
    CHECK_EQ(last_plan(b.e)->n_foreground, 300); // the very next step
    CHECK_EQ(last_plan(b.e)->n_background, 256);
    run(&b, 1 + N_BACKGROUND, 60);
    check_sample(0, 0, 1);
    check_background();
    stop(&b);
}

TEST(foreground_requests_alone_are_planned_ahead)
{
    struct bed b = {0};
    struct engine_options o = long_steps(&b);
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 10, 20));
    CHECK_EQ(longest_step(&b, 1), 0);
    CHECK_EQ(b.control.most_unread, 2);
    check_sample(0, 0, 20);
    stop(&b);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
