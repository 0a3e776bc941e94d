// SPDX-License-Identifier: Apache-2.0
/* How well a job uses the engine: the pool is filled by its size, and prompts and decodes overlap.
 */
#include "test/server/jobs/job_bed.h"

enum { SHARED = 4, OWN = 1 + 2 }; // blocks of a group's prefix; of a member and its 20 tokens

/* The smallest number of running calls in a step while lines waited, after the pool has been
 * full. */
static int32_t fewest_running(struct bench_job *b, int32_t full)
{
    struct job_progress p;
    int32_t fewest = INT32_MAX;
    bool was_full = false;
    while (!job_turn(b->job)) {
        job_progress(b->job, &p);
        was_full |= p.n_running >= full;
        if (was_full && p.n_answered + p.n_running < p.n_lines && p.n_running < fewest) {
            fewest = p.n_running;
        }
        engine_turn(bed.e);
        call_on_wake(&server);
    }
    return fewest;
}

/* A job with more lanes than it can use submits what fits into the pool, and no more. The remaining
 * space is less than the next member needs: at most a prefix and its own blocks. Members of two
 * groups run at a time, or of three when one group ends. */
TEST(the_pool_is_filled_by_blocks_and_not_by_a_number_of_requests)
{
    static const int32_t pools[] = {64, 128, 192};
    for (size_t i = 0; i < sizeof pools / sizeof pools[0]; i++) {
        const int32_t room = pools[i] - pools[i] / 32;
        const int32_t least = (room - (SHARED + OWN) - 3 * SHARED) / OWN;
        struct bench_job b;
        struct engine_stats stats;
        REQUIRE(open_server(pools[i], 0, 100));
        begin(&b);
        add_groups(&b, 4, 45, "\"max_tokens\":20");
        REQUIRE(read_lines(&b));
        open_job(&b, JOB_ORDER_GROUPS);
        const int32_t fewest = fewest_running(&b, least);
        CHECK(fewest >= least && fewest <= room / OWN);
        check_all_once(&b);
        engine_stats(bed.e, &stats);
        CHECK_EQ(stats.preemptions, 0);
        end(&b);
        close_server();
    }
}

/* Members share four blocks, and begin with copies of three quarters of a fifth one: such a copy
 * takes a block of each member, which has 92 tokens of prompt and 16 of output in seven blocks. */
TEST(copies_of_parts_of_blocks_count_for_each_member)
{
    struct bench_job b;
    struct engine_stats stats;
    match_unit = 4;
    REQUIRE(open_server(64, 0, 100));
    begin(&b);
    for (int i = 0; i < 120; i++) {
        add(&b, i, i % 4, SHARED * BLOCK + 12, BLOCK, "\"max_tokens\":16");
    }
    REQUIRE(read_lines(&b));
    open_job(&b, JOB_ORDER_GROUPS);
    CHECK(fewest_running(&b, 14) <= 62 / 3);
    check_all_once(&b);
    engine_stats(bed.e, &stats);
    CHECK_EQ(stats.preemptions, 0);
    CHECK_EQ(stats.prefix_hits, (120 - 4) * (SHARED * BLOCK + 12));
    end(&b);
    close_server();
    match_unit = 0;
}

/* The steps of a job on 8 lanes with 96 prompts in 12 groups: three groups decode 60 tokens, the
 * others 2. */
static int64_t steps_of(enum job_order order)
{
    struct bench_job b;
    struct engine_stats stats = {0};
    if (!open_server(400, 0, 8)) {
        return -1;
    }
    begin(&b);
    for (int i = 0; i < 96; i++) {
        const bool is_long = i % 12 >= 9;
        add(&b, i, i % 12, SHARED * BLOCK, 5, is_long ? "\"max_tokens\":60" : "\"max_tokens\":2");
    }
    if (read_lines(&b)) {
        open_job(&b, order);
        CHECK(turns(&b, 4000));
        check_all_once(&b);
        engine_stats(bed.e, &stats);
    }
    end(&b);
    close_server();
    return stats.n_steps;
}

/* If long answers started last, they would run alone at the end. In the order by ratio the job
 * takes fewer steps for the same work. */
TEST(groups_with_long_answers_come_first_and_leave_no_tail)
{
    const int64_t none = steps_of(JOB_ORDER_NONE), ratio = steps_of(JOB_ORDER_RATIO);
    CHECK(ratio > 0 && ratio < none);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
