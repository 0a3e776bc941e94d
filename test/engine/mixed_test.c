// SPDX-License-Identifier: Apache-2.0
/* The number of rows of steps that compute prompts while answers are being decoded. */
#include "engine/base/minmax.h"
#include "test/engine/bed.h"

enum { BUDGET = 2048, MIXED = 24, N_PROMPT = 500 };

static struct engine_options options_for(struct bed *b, int32_t n_mixed)
{
    struct engine_options o = options_of(b, 16, 400);
    o.max_num_batched_tokens = BUDGET;
    o.max_num_mixed_tokens = n_mixed;
    o.max_num_seqs = 128;
    o.max_model_len = 4096;
    return o;
}

static const struct plan *turn(struct bed *b)
{
    engine_turn(b->e);
    engine_drain(b->e, on_event, b);
    return &b->e->steps[(b->e->next_slot + N_STEPS - 1) % N_STEPS].plan;
}

/* Starts `n` answers, whose prompts are computed before the first of them has a token. */
static void start_answers(struct bed *b, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        submit(b, make(i, 3 * i, 10, 100));
    }
    CHECK_EQ(turn(b)->n_rows, 10 * n);
    CHECK_EQ(turn(b)->n_rows, n);
}

/* The rows of the longest of the steps that compute the prompt of request `i`. */
static int32_t longest_step(struct bed *b, int32_t i, int32_t *n_steps)
{
    int32_t left = N_PROMPT, most = 0;
    submit(b, make(i, 7, N_PROMPT, 1));
    for (*n_steps = 0; left > 0 && *n_steps < 100; ++*n_steps) {
        const struct plan *p = turn(b);
        left -= p->n_foreground;
        most = greater(most, p->n_rows);
    }
    CHECK_EQ(left, 0);
    return most;
}

TEST(a_prompt_is_computed_in_short_steps_beside_an_answer)
{
    struct bed b = {0};
    int32_t n_steps;
    struct engine_options o = options_for(&b, MIXED);
    REQUIRE(start(&b, &o));
    start_answers(&b, 1);
    CHECK_EQ(longest_step(&b, 1, &n_steps), MIXED);
    CHECK_EQ(n_steps, (N_PROMPT + MIXED - 2) / (MIXED - 1));
    run(&b, 2, 200);
    check_sample(0, 0, 100);
    check_sample(1, 0, 1);
    stop(&b);
}

TEST(a_prompt_alone_has_the_whole_step)
{
    struct bed b = {0};
    int32_t n_steps;
    struct engine_options o = options_for(&b, MIXED);
    REQUIRE(start(&b, &o));
    CHECK_EQ(longest_step(&b, 0, &n_steps), N_PROMPT);
    CHECK_EQ(n_steps, 1);
    run(&b, 1, 20);
    stop(&b);
}

TEST(many_answers_leave_half_of_the_rows_to_prompts)
{
    enum { N = 30 };
    struct bed b = {0};
    int32_t n_steps;
    struct engine_options o = options_for(&b, MIXED);
    REQUIRE(start(&b, &o));
    start_answers(&b, N);
    CHECK_EQ(longest_step(&b, N, &n_steps), N + MIXED / 2);
    run(&b, N + 1, 400);
    stop(&b);
}

TEST(prompts_without_answers_are_computed_in_whole_steps)
{
    struct bed b = {0};
    struct engine_options o = options_for(&b, MIXED);
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < 2; i++) {
        static float pooled[2][4096];
        struct test_request *q = make(i, 40 * i, N_PROMPT, 0);
        q->r.pool = POOL_LAST;
        q->r.pooled = pooled[i];
        submit(&b, q);
        CHECK_EQ(turn(&b)->n_rows, N_PROMPT); // the first is still in flight
    }
    run(&b, 2, 20);
    stop(&b);
}

TEST(by_default_the_fake_device_has_no_such_limit)
{
    struct bed b = {0};
    int32_t n_steps;
    struct engine_options o = options_for(&b, 0);
    REQUIRE(start(&b, &o));
    start_answers(&b, 1);
    CHECK_EQ(longest_step(&b, 1, &n_steps), N_PROMPT + 1);
    run(&b, 2, 200);
    stop(&b);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
