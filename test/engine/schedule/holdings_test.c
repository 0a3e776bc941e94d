/* What sequences hold, without an order: nobody plans here, sequences come and go by hand. */
#include "engine/schedule/holdings.h"
#include "test/check.h"

#include <string.h>

enum { B = 4, BLOCKS = 12, LANES = 4 };

static const struct scheduler_limits limits = {
    .max_rows = 64, .max_out = 64, .max_draws = 64, .max_lanes = LANES, .max_sequences = LANES,
    .max_len = 40, .n_blocks = BLOCKS, .block_tokens = B, .max_blocks_per_lane = 10,
    .prefix_cache = true, .hash_key = 1};

struct bed {
    struct holdings h;
    struct plan p;
    struct engine_request requests[LANES];
    struct sequence seqs[LANES], order;
};

static const int32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};

/* Sequences 0 .. LANES - 1 wait, each with the first n_prompt tokens. */
static void open_bed(struct bed *b, int32_t n_prompt)
{
    memset(b, 0, sizeof *b);
    holdings_init(&b->h, &limits);
    plan_init(&b->p, &limits);
    b->order.prev = b->order.next = &b->order;
    for (int32_t i = 0; i < LANES; i++) {
        b->requests[i] = (struct engine_request){.prompt = prompt, .n_prompt = n_prompt, .n = 1};
        b->seqs[i] = (struct sequence){.request = &b->requests[i], .index = i, .lane = -1,
                                       .n_prompt = n_prompt, .n_known = n_prompt,
                                       .root = prefix_cache_root(&b->h.cache, NULL),
                                       .prev = b->order.prev, .next = &b->order};
        b->order.prev->next = &b->seqs[i];
        b->order.prev = &b->seqs[i];
    }
}

static void close_bed(struct bed *b)
{
    for (int32_t i = 0; i < LANES; i++) {
        if (b->seqs[i].lane >= 0) {
            holdings_leave(&b->h, &b->seqs[i]);
        }
    }
    holdings_check(&b->h, &b->order);
    CHECK_EQ(holdings_available(&b->h), BLOCKS);
    CHECK_EQ(b->h.n_free_lanes, LANES);
    holdings_deinit(&b->h);
    plan_deinit(&b->p);
}

static struct cached_front begin(struct bed *b, int32_t i)
{
    struct cached_front front = holdings_find(&b->h, &b->seqs[i]);
    holdings_keep_front(&b->h, &front);
    holdings_begin(&b->h, &b->p, &b->seqs[i], &front);
    holdings_check(&b->h, &b->order);
    return front;
}

/* All the prompt's rows of a sequence are in the plan. */
static void publish(struct bed *b, int32_t i)
{
    plan_clear(&b->p);
    b->p.entries[b->p.n_entries++] =
        (struct plan_entry){.seq = &b->seqs[i], .n_rows = b->seqs[i].n_prompt};
    holdings_publish(&b->h, &b->p);
}

TEST(what_one_computes_another_waits_for_and_then_shares)
{
    struct bed b;
    open_bed(&b, 14);
    CHECK_EQ(begin(&b, 0).n_blocks, 0);
    CHECK_EQ(b.seqs[0].n_blocks, 4);
    CHECK_EQ(b.p.n_grants, 1);
    CHECK(b.p.grants[0].fresh && b.p.grants[0].n == 4);
    struct cached_front front = holdings_find(&b.h, &b.seqs[1]);
    CHECK_EQ(front.n_blocks, 0);
    CHECK_EQ(front.producer, 0); // pending: by index, whoever that is
    publish(&b, 0);
    front = begin(&b, 1);
    CHECK_EQ(front.n_blocks, 3); // the last two tokens are its own
    CHECK_EQ(front.producer, -1);
    CHECK_MEM(holdings_blocks(&b.h, &b.seqs[1]), holdings_blocks(&b.h, &b.seqs[0]),
              3 * sizeof(int32_t));
    CHECK_EQ(holdings_available(&b.h), BLOCKS - 5);
    close_bed(&b);
}

TEST(what_was_never_computed_is_forgotten_with_its_producer)
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

TEST(a_shared_block_is_reclaimed_with_its_last_holder)
{
    struct bed b;
    open_bed(&b, 14);
    begin(&b, 0);
    publish(&b, 0);
    begin(&b, 1);
    struct sequence *const both[] = {&b.seqs[1], &b.seqs[0]};
    CHECK_EQ(holdings_reclaimable(&b.h, both, 1), 1);
    CHECK_EQ(holdings_reclaimable(&b.h, both, 2), 5);
    CHECK_EQ(holdings_reclaimable(&b.h, both, 1), 1); // counting leaves no trace
    CHECK_EQ(holdings_reclaimable(&b.h, both, 0), 0);
    close_bed(&b);
}

TEST(a_fork_shares_full_blocks_and_copies_the_last_one_a_plan_later)
{
    struct bed b;
    open_bed(&b, 14);
    begin(&b, 0);
    publish(&b, 0);
    REQUIRE(holdings_can_fork(&b.h, &b.seqs[0]));
    holdings_fork(&b.h, &b.p, &b.seqs[1], &b.seqs[0]);
    b.p.forks[b.p.n_forks++] = (struct plan_fork){&b.seqs[1], 0};
    const int32_t *from = holdings_blocks(&b.h, &b.seqs[0]), *to = holdings_blocks(&b.h, &b.seqs[1]);
    CHECK_MEM(to, from, 3 * sizeof *to);
    CHECK(to[3] != from[3]);
    holdings_tell_copies(&b.h, &b.p); // the last rows are not stored before this plan's step
    CHECK_EQ(b.p.n_copies, 0);
    plan_clear(&b.p);
    holdings_tell_copies(&b.h, &b.p);
    CHECK_EQ(b.p.n_copies, 1);
    CHECK(b.p.copies[0].from == from[3] && b.p.copies[0].to == to[3]);
    holdings_fork(&b.h, &b.p, &b.seqs[2], &b.seqs[0]);
    holdings_leave(&b.h, &b.seqs[2]); // its copy goes with it
    plan_clear(&b.p);
    holdings_tell_copies(&b.h, &b.p);
    CHECK_EQ(b.p.n_copies, 0);
    close_bed(&b);
}

TEST(it_grows_by_what_it_lacks_and_tells_the_plan)
{
    struct bed b;
    open_bed(&b, 14);
    begin(&b, 0);
    plan_clear(&b.p);
    CHECK_EQ(holdings_missing(&b.h, &b.seqs[0], 16), 0);
    CHECK_EQ(holdings_missing(&b.h, &b.seqs[0], 17), 1);
    holdings_grow(&b.h, &b.p, &b.seqs[0], 2);
    CHECK_EQ(b.seqs[0].n_blocks, 6);
    REQUIRE(b.p.n_grants == 1);
    CHECK(b.p.grants[0].first == 4 && b.p.grants[0].n == 2 && !b.p.grants[0].fresh);
    plan_drop_grants(&b.p, &b.seqs[1]);
    CHECK_EQ(b.p.n_grants, 1);
    plan_drop_grants(&b.p, &b.seqs[0]);
    CHECK_EQ(b.p.n_grants, 0);
    close_bed(&b);
}

TEST(a_shared_block_gets_draft_kv_from_one_alone)
{
    struct bed b;
    open_bed(&b, 14);
    begin(&b, 0);
    publish(&b, 0);
    begin(&b, 1);
    CHECK_EQ(holdings_draft_rows(&b.h, &b.seqs[0], 14), 14);
    CHECK_EQ(holdings_draft_rows(&b.h, &b.seqs[1], 14), 0); // the other fills what both have
    b.seqs[0].draft_computed = 14;
    holdings_draft_fed(&b.h, &b.seqs[0], 14);
    CHECK_EQ(holdings_draft_rows(&b.h, &b.seqs[1], 14), 2);
    CHECK_EQ(b.seqs[1].draft_computed, 12);
    close_bed(&b);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
