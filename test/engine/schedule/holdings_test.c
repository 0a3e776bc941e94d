// SPDX-License-Identifier: Apache-2.0
/* What sequences hold. There is no scheduler here: sequences come and go by hand. */
#include "engine/schedule/holdings.h"
#include "test/check.h"

#include <string.h>

enum { B = 4, BLOCKS = 12, LANES = 4 };

static const struct scheduler_limits limits = {.max_rows = 64,
                                               .max_out = 64,
                                               .max_draws = 64,
                                               .max_lanes = LANES,
                                               .max_sequences = LANES,
                                               .max_len = 40,
                                               .n_blocks = BLOCKS,
                                               .block_tokens = B,
                                               .match_unit = B,
                                               .max_blocks_per_lane = 10,
                                               .prefix_cache = true,
                                               .hash_key = 1};

/* Holdings with their lanes, and the plan that they write to. */
struct bed {
    struct holdings h;
    struct plan p;
    struct engine_request requests[LANES];
    struct sequence seqs[LANES], order;
};

static const int32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};

/* Sequences 0 .. LANES - 1 wait, each with the first n_prompt tokens. */
static void open_with(struct bed *b, const struct scheduler_limits *l, int32_t n_prompt)
{
    memset(b, 0, sizeof *b);
    holdings_init(&b->h, l);
    plan_init(&b->p, l);
    b->order.prev = b->order.next = &b->order;
    for (int32_t i = 0; i < LANES; i++) {
        b->requests[i] = (struct engine_request){.prompt = prompt, .n_prompt = n_prompt, .n = 1};
        b->seqs[i] = (struct sequence){.request = &b->requests[i],
                                       .index = i,
                                       .lane = -1,
                                       .n_prompt = n_prompt,
                                       .n_known = n_prompt,
                                       .root = prefix_cache_root(&b->h.cache, NULL, 0),
                                       .prev = b->order.prev,
                                       .next = &b->order};
        b->order.prev->next = &b->seqs[i];
        b->order.prev = &b->seqs[i];
    }
}

static void open_bed(struct bed *b, int32_t n_prompt)
{
    open_with(b, &limits, n_prompt);
}

/* Everything has returned to the pool when all have left; otherwise something leaks. */
static void close_bed(struct bed *b)
{
    for (int32_t i = 0; i < LANES; i++) {
        if (b->seqs[i].lane >= 0) {
            holdings_leave(&b->h, &b->seqs[i]);
        }
    }
    holdings_check(&b->h, &b->order);
    CHECK_EQ(holdings_available(&b->h).blocks, BLOCKS);
    CHECK_EQ(b->h.n_free_lanes, LANES);
    holdings_deinit(&b->h);
    plan_deinit(&b->p);
}

/* Begins a sequence as the scheduler does: finds its prefix, keeps the blocks, and gives it a
 * lane. */
static struct cached_front begin(struct bed *b, int32_t i)
{
    struct cached_front front = holdings_find(&b->h, &b->seqs[i]);
    holdings_keep_front(&b->h, &front);
    holdings_begin(&b->h, &b->p, &b->seqs[i], &front);
    holdings_check(&b->h, &b->order);
    return front;
}

/* Publishes a plan that has all rows of a sequence's prompt. */
static void publish(struct bed *b, int32_t i)
{
    plan_clear(&b->p);
    b->p.entries[b->p.n_entries++] =
        (struct plan_entry){.seq = &b->seqs[i], .n_rows = b->seqs[i].n_prompt};
    holdings_publish(&b->h, &b->p);
}

/* The second sequence neither computes nor allocates the shared blocks, and waits until
 * they are computed. */
TEST(a_sequence_waits_for_blocks_that_another_computes)
{
    struct bed b;
    open_bed(&b, 14);
    CHECK_EQ(begin(&b, 0).n_blocks, 0);
    CHECK_EQ(b.seqs[0].n_blocks, 4);
    CHECK_EQ(b.p.n_grants, 1);
    CHECK(b.p.grants[0].fresh && b.p.grants[0].n == 4);
    struct cached_front front = holdings_find(&b.h, &b.seqs[1]);
    CHECK_EQ(front.n_blocks, 0);
    CHECK_EQ(front.producer, 0); // sequence 0 computes the block and has not published it
    publish(&b, 0);
    front = begin(&b, 1);
    CHECK_EQ(front.n_blocks, 3); // the last two tokens are its own
    CHECK_EQ(front.producer, -1);
    CHECK_MEM(holdings_blocks(&b.h, &b.seqs[1]), holdings_blocks(&b.h, &b.seqs[0]),
              3 * sizeof(int32_t));
    CHECK_EQ(holdings_available(&b.h).blocks, BLOCKS - 5);
    close_bed(&b);
}

/* Blocks that were promised by a producer that left must not be found by others. */
TEST(blocks_never_computed_are_forgotten_with_their_producer)
{
    struct bed b;
    open_bed(&b, 14);
    begin(&b, 0);
    holdings_leave(&b.h, &b.seqs[0]);
    struct cached_front front = holdings_find(&b.h, &b.seqs[1]);
    CHECK_EQ(front.n_blocks, 0);
    CHECK_EQ(front.producer, -1);
    begin(&b, 1);
    publish(&b, 1);
    holdings_leave(&b.h, &b.seqs[1]);
    CHECK_EQ(holdings_find(&b.h, &b.seqs[0]).n_blocks, 3); // idle, and found
    holdings_forget_idle(&b.h);
    CHECK_EQ(holdings_find(&b.h, &b.seqs[0]).n_blocks, 0);
    close_bed(&b);
}

/* Reference counts, observed through the number of blocks that a preemption would give back. */
TEST(a_shared_block_is_reclaimed_with_its_last_holder)
{
    struct bed b;
    open_bed(&b, 14);
    begin(&b, 0);
    publish(&b, 0);
    begin(&b, 1);
    struct sequence *const both[] = {&b.seqs[1], &b.seqs[0]};
    CHECK_EQ(holdings_reclaimable(&b.h, both, 1).blocks, 1);
    CHECK_EQ(holdings_reclaimable(&b.h, both, 2).blocks, 5);
    CHECK_EQ(holdings_reclaimable(&b.h, both, 1).blocks, 1); // counting changes nothing
    CHECK_EQ(holdings_reclaimable(&b.h, both, 0).blocks, 0);
    close_bed(&b);
}

/* The last block is copied in the next plan, because this plan's rows still write to it. */
TEST(a_fork_shares_full_blocks_and_copies_the_last_one_a_plan_later)
{
    struct bed b;
    open_bed(&b, 14);
    begin(&b, 0);
    publish(&b, 0);
    REQUIRE(holdings_can_fork(&b.h, &b.seqs[0]));
    holdings_fork(&b.h, &b.p, &b.seqs[1], &b.seqs[0]);
    b.p.forks[b.p.n_forks++] = (struct plan_fork){&b.seqs[1], 0};
    const int32_t *from = holdings_blocks(&b.h, &b.seqs[0]),
                  *to = holdings_blocks(&b.h, &b.seqs[1]);
    CHECK_MEM(to, from, 3 * sizeof *to);
    CHECK(to[3] != from[3]);
    holdings_plan_copies(&b.h, &b.p); // the last rows are not stored before this plan's step
    CHECK_EQ(b.p.n_copies, 0);
    plan_clear(&b.p);
    holdings_plan_copies(&b.h, &b.p);
    CHECK_EQ(b.p.n_copies, 1);
    CHECK(b.p.copies[0].from == from[3] && b.p.copies[0].to == to[3]);
    holdings_fork(&b.h, &b.p, &b.seqs[2], &b.seqs[0]);
    holdings_leave(&b.h, &b.seqs[2]); // the pending copy is dropped with it
    plan_clear(&b.p);
    holdings_plan_copies(&b.h, &b.p);
    CHECK_EQ(b.p.n_copies, 0);
    close_bed(&b);
}

/* A plan tells the backend only the new blocks. */
TEST(a_sequence_takes_only_missing_blocks_and_reports_them)
{
    struct bed b;
    open_bed(&b, 14);
    begin(&b, 0);
    plan_clear(&b.p);
    CHECK_EQ(holdings_missing(&b.h, &b.seqs[0], 16).blocks, 0);
    CHECK_EQ(holdings_missing(&b.h, &b.seqs[0], 17).blocks, 1);
    holdings_grow(&b.h, &b.p, &b.seqs[0], 24);
    CHECK_EQ(b.seqs[0].n_blocks, 6);
    REQUIRE(b.p.n_grants == 1);
    CHECK(b.p.grants[0].first == 4 && b.p.grants[0].n == 2 && !b.p.grants[0].fresh);
    plan_drop_grants(&b.p, &b.seqs[1]);
    CHECK_EQ(b.p.n_grants, 1);
    plan_drop_grants(&b.p, &b.seqs[0]);
    CHECK_EQ(b.p.n_grants, 0);
    close_bed(&b);
}

/* Draft models have KV of their own for the same blocks; it is computed once. */
TEST(draft_kv_of_a_shared_block_is_computed_once)
{
    struct bed b;
    open_bed(&b, 14);
    begin(&b, 0);
    publish(&b, 0);
    begin(&b, 1);
    CHECK_EQ(holdings_draft_rows(&b.h, &b.seqs[0], 14), 14);
    CHECK_EQ(holdings_draft_rows(&b.h, &b.seqs[1], 14), 0); // sequence 0 fills the shared blocks
    b.seqs[0].draft_computed = 14;
    holdings_draft_fed(&b.h, &b.seqs[0], 14);
    CHECK_EQ(holdings_draft_rows(&b.h, &b.seqs[1], 14), 2);
    CHECK_EQ(b.seqs[1].draft_computed, 12);
    close_bed(&b);
}

/* ---- parts of blocks ---------------------------------------------------------------------- */

static struct scheduler_limits with_units_of(int32_t n_tokens)
{
    struct scheduler_limits l = limits;
    l.match_unit = n_tokens;
    return l;
}

/* Sequence 0's 14 tokens are computed; sequence 1 has `other` after the first ones. */
static void open_parted(struct bed *b, const struct scheduler_limits *l, const int32_t *other,
                        int32_t n)
{
    open_with(b, l, 14);
    begin(b, 0);
    publish(b, 0);
    plan_clear(&b->p);
    b->requests[1].prompt = other;
    b->seqs[1].n_prompt = b->seqs[1].n_known = n;
}

/* Tokens 8 and 9 of the third block are equal, and a unit is two tokens. */
static const int32_t parts_in_third[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 0, 0};

TEST(a_prefix_that_ends_inside_a_block_is_copied_in_the_plan_that_begins)
{
    struct bed b;
    const struct scheduler_limits l = with_units_of(2);
    open_parted(&b, &l, parts_in_third, 14);
    int32_t from = holdings_blocks(&b.h, &b.seqs[0])[2];
    struct cached_front front = begin(&b, 1);
    CHECK_EQ(front.n_blocks, 2);
    CHECK_EQ(front.n_part, 2); // three tokens are equal
    CHECK_EQ(front.part, from);
    int32_t to = holdings_blocks(&b.h, &b.seqs[1])[2];
    CHECK(to != from);
    holdings_leave(&b.h, &b.seqs[0]);
    CHECK_EQ(holdings_available(&b.h).blocks,
             BLOCKS - 5); // the pending copy still holds its source
    holdings_plan_copies(&b.h, &b.p);
    REQUIRE(b.p.n_copies == 1);
    CHECK(b.p.copies[0].from == from && b.p.copies[0].to == to);
    CHECK_EQ(holdings_available(&b.h).blocks, BLOCKS - 4);
    close_bed(&b);
}

TEST(a_part_is_whole_units_and_leaves_out_the_last_token)
{
    struct bed b;
    for (int32_t unit = 1; unit <= B; unit++) {
        const struct scheduler_limits l = with_units_of(unit);
        open_parted(&b, &l, parts_in_third, 14);
        CHECK_EQ(holdings_find(&b.h, &b.seqs[1]).n_part, unit < B ? 3 / unit * unit : 0);
        b.seqs[1].n_known = 10; // one token after the second block, and the last
        CHECK_EQ(holdings_find(&b.h, &b.seqs[1]).n_part, unit == 1);
        b.requests[1].params.prompt_logprobs = 1; // reads nothing from the cache
        CHECK_EQ(holdings_find(&b.h, &b.seqs[1]).n_part, 0);
        close_bed(&b);
    }
}

/* The blocks that both use are nobody's, but the copied one stays its owner's. */
TEST(a_copied_block_keeps_its_owner)
{
    struct bed b;
    const struct scheduler_limits l = with_units_of(1);
    open_with(&b, &l, 14);
    for (int32_t i = 0; i < 2; i++) {
        b.requests[i].owner = 10 + (uint64_t)i;
        b.requests[i].cache_share = 1;
    }
    begin(&b, 0);
    publish(&b, 0);
    int32_t own[3], owner = retention_owner(&b.h.retention, &b.requests[0]);
    memcpy(own, holdings_blocks(&b.h, &b.seqs[0]), sizeof own);
    b.requests[1].prompt = parts_in_third;
    CHECK_EQ(begin(&b, 1).part, own[2]);
    CHECK_EQ(b.h.pool.idle.user[own[1]], 0);
    CHECK_EQ(b.h.pool.idle.user[own[2]], owner);
    CHECK(owner != 0);
    close_bed(&b);
}

TEST(a_pending_copy_ends_with_its_sequence)
{
    struct bed b;
    const struct scheduler_limits l = with_units_of(1);
    open_parted(&b, &l, parts_in_third, 14);
    CHECK_EQ(begin(&b, 1).n_part, 3);
    holdings_leave(&b.h, &b.seqs[1]);
    holdings_plan_copies(&b.h, &b.p);
    CHECK_EQ(b.p.n_copies, 0);
    close_bed(&b);
}

/* Copies of one step are made in any order, so the block that a sibling's copy reads must not
 * become the one that another copy writes, even if the leader has left by then. */
TEST(no_copy_writes_what_another_copy_of_the_plan_reads)
{
    struct bed b;
    const struct scheduler_limits l = with_units_of(1);
    open_parted(&b, &l, parts_in_third, 14);
    b.requests[2] = b.requests[0];
    holdings_fork(&b.h, &b.p, &b.seqs[2], &b.seqs[0]);
    holdings_check(&b.h, &b.order);
    int32_t partial = holdings_blocks(&b.h, &b.seqs[0])[3];
    holdings_leave(&b.h, &b.seqs[0]);
    plan_clear(&b.p);
    CHECK_EQ(begin(&b, 1).n_part, 3);
    holdings_plan_copies(&b.h, &b.p);
    REQUIRE(b.p.n_copies == 2);
    CHECK_EQ(b.p.copies[0].from, partial);
    for (int32_t i = 0; i < 2; i++) {
        CHECK(b.p.copies[i].from != b.p.copies[!i].to);
    }
    close_bed(&b);
}

/* A sibling that leaves gives up its hold on the leader's last block, and counts as a holder when
 * blocks are reclaimed. */
TEST(a_pending_fork_holds_the_block_that_it_copies)
{
    struct bed b;
    open_bed(&b, 14);
    begin(&b, 0);
    publish(&b, 0);
    holdings_fork(&b.h, &b.p, &b.seqs[1], &b.seqs[0]);
    struct sequence *both[] = {&b.seqs[0], &b.seqs[1]};
    CHECK_EQ(holdings_reclaimable(&b.h, both, 2).blocks, 5);
    CHECK_EQ(holdings_reclaimable(&b.h, both, 1).blocks, 0);
    holdings_leave(&b.h, &b.seqs[0]);
    CHECK_EQ(holdings_available(&b.h).blocks, BLOCKS - 5);
    holdings_leave(&b.h, &b.seqs[1]);
    CHECK_EQ(holdings_available(&b.h).blocks, BLOCKS);
    close_bed(&b);
}

/* The block to copy from may be among the last that are available. */
TEST(no_part_is_held_if_its_block_is_needed)
{
    struct bed b;
    const struct scheduler_limits l = with_units_of(1);
    open_parted(&b, &l, parts_in_third, 14);
    holdings_leave(&b.h, &b.seqs[0]);
    struct cached_front front = holdings_find(&b.h, &b.seqs[1]);
    holdings_keep_front(&b.h, &front);
    holdings_spare_part(&b.h, &front, (struct room){.blocks = BLOCKS - 3});
    CHECK_EQ(front.n_part, 3);
    holdings_spare_part(&b.h, &front, (struct room){.blocks = BLOCKS - 2});
    CHECK_EQ(front.n_part, 0);
    CHECK_EQ(holdings_available(&b.h).blocks, BLOCKS - 2);
    holdings_drop_front(&b.h, &front);
    close_bed(&b);
}

/* ---- recurrent state ---------------------------------------------------------------------- */

/* Boundaries every 4 tokens, wanted every 8. */
static struct scheduler_limits with_state(int32_t n_snapshots)
{
    struct scheduler_limits l = limits;
    l.state_block = B;
    l.state_interval = 2 * B;
    l.n_snapshots = n_snapshots;
    return l;
}

/* Plans and submits rows [first, end) of a sequence. */
static void compute(struct bed *b, int32_t i, int32_t first, int32_t end)
{
    plan_clear(&b->p);
    b->p.entries[b->p.n_entries++] =
        (struct plan_entry){.seq = &b->seqs[i], .first = first, .n_rows = end - first};
    b->seqs[i].n_computed = end;
    holdings_plan_copies(&b->h, &b->p);
    holdings_publish(&b->h, &b->p);
}

static bool copies(const struct plan *p, int32_t i, int32_t from, int32_t to, int32_t pos)
{
    const struct state_copy *c = &p->state_copies[i];
    return i < p->n_state_copies && c->from == from && c->to == to && c->pos == pos;
}

/* Snapshots are taken at boundaries that rows pass; the last one is copied out of the
 * lane. */
TEST(states_that_rows_pass_are_kept_and_the_last_is_copied_a_plan_later)
{
    struct bed b;
    const struct scheduler_limits l = with_state(8);
    open_with(&b, &l, 14);
    begin(&b, 0);
    compute(&b, 0, 0, 14);
    REQUIRE(b.p.n_keeps == 1); // the regular one at 8; the last one, at 12, is still in the lane
    CHECK(b.p.keeps[0].lane == b.seqs[0].lane && b.p.keeps[0].pos == 8);
    CHECK_EQ(b.p.n_state_copies, 0);
    plan_clear(&b.p);
    holdings_plan_copies(&b.h, &b.p);
    holdings_publish(&b.h, &b.p);
    struct cached_front front = begin(&b, 1);
    CHECK_EQ(front.n_matched, 3);
    CHECK_EQ(front.n_blocks, 3);
    CHECK_EQ(b.p.n_state_copies, 1);
    int32_t slot = LANES + front.snapshot;
    CHECK(copies(&b.p, 0, b.seqs[0].lane, slot, 12));
    holdings_plan_copies(&b.h, &b.p);
    CHECK(copies(&b.p, 1, slot, b.seqs[1].lane, 12));
    close_bed(&b);
}

/* The order of copies within a plan matters when one lane is source and destination. */
TEST(copies_out_of_lanes_come_before_copies_into_them)
{
    struct bed b;
    const struct scheduler_limits l = with_state(8);
    open_with(&b, &l, 14);
    begin(&b, 0);
    compute(&b, 0, 0, 14);
    compute(&b, 0, 14, 14);
    holdings_fork(&b.h, &b.p, &b.seqs[1], &b.seqs[0]);
    int32_t lane = b.seqs[0].lane, other = b.seqs[1].lane;
    b.seqs[0].n_known = b.seqs[0].n_computed = 12;
    holdings_forget_idle(&b.h);
    struct states *s = &b.h.states.snapshots; // as if the prompt's state had been evicted
    states_forget(s, holdings_blocks(&b.h, &b.seqs[0])[2]);
    holdings_settle(&b.h, &b.seqs[0], 12, STATE_END);
    holdings_leave(&b.h, &b.seqs[0]);
    plan_clear(&b.p);
    begin(&b, 2); // takes the lane that has just been left
    CHECK_EQ(b.seqs[2].lane, lane);
    holdings_plan_copies(&b.h, &b.p);
    REQUIRE(b.p.n_state_copies == 3);
    CHECK(copies(&b.p, 0, lane, b.p.state_copies[0].to, 12));
    CHECK(copies(&b.p, 1, lane, other, 14));
    CHECK(copies(&b.p, 2, b.p.state_copies[0].to, lane, 12));
    close_bed(&b);
}

/* A row beyond the known ones may have ended the block, and then the lane's record
 * includes it. */
TEST(a_record_that_rows_have_passed_is_not_copied)
{
    struct bed b;
    const struct scheduler_limits l = with_state(8);
    open_with(&b, &l, 14);
    begin(&b, 0);
    b.seqs[0].n_computed = 16; // one row beyond the known ones has ended the block
    holdings_settle(&b.h, &b.seqs[0], 14, STATE_END);
    holdings_plan_copies(&b.h, &b.p);
    CHECK_EQ(b.p.n_state_copies, 0);
    b.seqs[0].n_computed = 15;
    holdings_settle(&b.h, &b.seqs[0], 14, STATE_END);
    holdings_plan_copies(&b.h, &b.p);
    CHECK_EQ(b.p.n_state_copies, 1);
    close_bed(&b);
}

/* Blocks may be cached without their state. Their rows are then computed again, into the same
 * blocks. */
TEST(blocks_without_their_state_are_computed_again_where_they_are)
{
    struct bed b;
    const struct scheduler_limits l = with_state(1);
    open_with(&b, &l, 14);
    begin(&b, 0);
    compute(&b, 0, 0, 14);
    compute(&b, 0, 14, 14);
    int32_t blocks[4];
    memcpy(blocks, holdings_blocks(&b.h, &b.seqs[0]), sizeof blocks);
    holdings_leave(&b.h, &b.seqs[0]);
    states_forget(&b.h.states.snapshots, blocks[1]); // after 8 tokens, the only one
    struct cached_front front = begin(&b, 1);
    CHECK_EQ(front.n_blocks, 0);
    CHECK_EQ(front.n_matched, 3);
    CHECK_MEM(holdings_blocks(&b.h, &b.seqs[1]), blocks, 3 * sizeof *blocks);
    CHECK_EQ(holdings_find(&b.h, &b.seqs[2]).producer, 1); // others wait for it
    b.seqs[1].n_computed = 6; // the second block is half overwritten and no longer valid
    holdings_leave(&b.h, &b.seqs[1]);
    CHECK_EQ(holdings_find(&b.h, &b.seqs[2]).n_matched, 0); // the first was not published
    close_bed(&b);
}

TEST(a_sequence_that_leaves_early_leaves_cached_blocks_as_they_were)
{
    struct bed b;
    const struct scheduler_limits l = with_state(1);
    open_with(&b, &l, 14);
    begin(&b, 0);
    compute(&b, 0, 0, 14);
    compute(&b, 0, 14, 14);
    int32_t second = holdings_blocks(&b.h, &b.seqs[0])[1];
    holdings_leave(&b.h, &b.seqs[0]);
    states_forget(&b.h.states.snapshots, second);
    begin(&b, 1);
    holdings_leave(&b.h, &b.seqs[1]);
    CHECK_EQ(holdings_find(&b.h, &b.seqs[2]).n_matched, 3);
    close_bed(&b);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
