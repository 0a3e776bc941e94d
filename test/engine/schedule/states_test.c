// SPDX-License-Identifier: Apache-2.0
/* The value of snapshots, and which of them are evicted in favour of others. */
#include "engine/schedule/states.h"

#include "test/check.h"

enum { BLOCKS = 4096 };

static struct states states;

static void open_with(int32_t n)
{
    states_init(&states, n, BLOCKS);
}

static void close_all(void)
{
    states_check(&states, BLOCKS);
    states_deinit(&states);
}

/* Takes a snapshot and marks it as written. */
static int32_t take(int32_t block, int32_t pos, int32_t above, enum state_reason reason)
{
    int32_t slot = states_take(&states, block, pos, above, reason);
    if (slot >= 0) {
        states_release(&states, slot);
    }
    states_check(&states, BLOCKS);
    return slot;
}

/* A branch is where several conversations continue, so it is likely to be used again. */
TEST(a_branch_outlives_steps_that_would_save_more)
{
    open_with(2);
    int32_t branch = take(0, 128, -1, STATE_BRANCH), step = take(1, 512, -1, STATE_STEP);
    CHECK_EQ(take(2, 1024, -1, STATE_STEP), step); // saves 1,024 tokens instead of 512
    CHECK_EQ(states_at(&states, 0), branch);
    CHECK_EQ(states_at(&states, 1), -1);
    CHECK_EQ(take(3, 64, -1, STATE_STEP), -1); // worth less than all others: refused
    CHECK_EQ(states_at(&states, 2), step);
    close_all();
}

/* If the snapshots taken for a reason are never used, later ones of that reason are worth less. */
TEST(reasons_whose_snapshots_are_never_used_lose_value)
{
    open_with(2);
    int32_t step = take(0, 512, -1, STATE_STEP);
    CHECK_EQ(take(1, 512, -1, STATE_END) >= 0, true);
    CHECK_EQ(take(2, 512, -1, STATE_END), step); // ends are more likely to be continued than steps
    for (int32_t i = 3; i < 200; i++) {
        take(i, 512, -1, STATE_END);
    }
    take(200, 512, -1, STATE_STEP); // none of those ends was ever continued
    CHECK(states_at(&states, 200) >= 0);
    take(201, 512, -1, STATE_END);
    CHECK(states_at(&states, 200) >= 0);
    close_all();
}

/* Of two equal snapshots the one that was used is kept, until it has been idle for long.
 */
TEST(used_snapshots_stay_and_idle_ones_are_evicted)
{
    open_with(2);
    int32_t used = take(0, 512, -1, STATE_STEP), idle = take(1, 512, -1, STATE_STEP);
    states_use(&states, used);
    CHECK_EQ(take(2, 512, -1, STATE_STEP), idle);
    CHECK_EQ(states_at(&states, 0), used);
    for (int32_t i = 0; i < 4000; i++) { // `used` becomes old while others are used
        int32_t slot = take(3 + i, 512, -1, STATE_STEP);
        if (slot >= 0) {
            states_use(&states, slot);
        }
    }
    CHECK_EQ(states_at(&states, 0), -1);
    close_all();
}

/* Two snapshots on the same prefix save the same tokens: the second one's value is only
 * what lies between them. */
TEST(snapshots_on_one_prefix_are_worth_the_tokens_between_them)
{
    open_with(3);
    int32_t a = take(0, 512, -1, STATE_STEP), b = take(1, 576, a, STATE_STEP);
    int32_t c = take(2, 1088, b, STATE_STEP);
    CHECK_EQ(take(3, 1600, c, STATE_STEP), b); // b saves only the 64 tokens after a
    CHECK_EQ(states.slots[c].above, a);        // from now on c saves those 64 tokens as well
    states_forget(&states, 0);
    CHECK_EQ(states.slots[c].above, -1);
    close_all();
}

TEST(a_slot_that_is_written_or_read_is_not_given_away)
{
    open_with(1);
    int32_t slot = states_take(&states, 0, 64, -1, STATE_STEP); // held: it is written
    CHECK_EQ(states_take(&states, 1, 4096, -1, STATE_PAUSE), -1);
    states_forget(&states, 0); // its block is gone; the write continues
    CHECK_EQ(states_at(&states, 0), -1);
    CHECK_EQ(states_take(&states, 1, 4096, -1, STATE_PAUSE), -1);
    states_release(&states, slot);
    CHECK_EQ(states_taken(&states), 0);
    CHECK_EQ(take(1, 64, -1, STATE_STEP), slot);
    states_hold(&states, slot);
    CHECK_EQ(take(2, 4096, -1, STATE_PAUSE), -1);
    states_release(&states, slot);
    CHECK_EQ(take(2, 4096, -1, STATE_PAUSE), slot);
    close_all();
}

/* A preempted sequence that resumed has taken back its own snapshot; later it counts as
 * one that ended. */
TEST(a_resumed_sequence_counts_as_one_that_ended)
{
    open_with(2);
    int32_t paused = take(0, 512, -1, STATE_PAUSE);
    states_use(&states, paused);
    CHECK_EQ(states.slots[paused].reason, STATE_END);
    close_all();
}

/* Models with recurrent layers work without snapshots, only slower. */
TEST(without_slots_there_is_nothing_to_find)
{
    open_with(0);
    CHECK_EQ(states_at(&states, 3), -1);
    states_forget(&states, 3);
    CHECK_EQ(states_taken(&states), 0);
    close_all();
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
