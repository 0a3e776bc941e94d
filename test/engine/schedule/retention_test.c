// SPDX-License-Identifier: Apache-2.0
/* The order in which cached blocks are reused, given owners and their hints. */
#include "engine/schedule/prefix_cache.h"
#include "engine/schedule/retention.h"
#include "test/check.h"

enum { N = 16, SECOND = 1000000000 };

/* Two owners and what their shares are. */
enum { A = 1, C = 2 };
static double shares[3];

static struct kv_pool pool;
static struct prefix_cache cache;
static struct retention retention;

static void gone(void *arg, int32_t block)
{
    retention_gone(arg, block);
}

/* A pool without a scheduler: blocks become idle by hand. */
static void open_all(void)
{
    kv_pool_init(&pool, N, NULL, NULL);
    prefix_cache_init(&cache, &pool, 1, 1);
    retention_init(&retention, &pool.idle);
    cache.on_gone = gone;
    cache.on_gone_arg = &retention;
    shares[A] = shares[C] = 1;
}

static void check_all(void)
{
    kv_pool_check(&pool);
    retention_check(&retention);
}

static void close_all(void)
{
    check_all();
    retention_deinit(&retention);
    prefix_cache_deinit(&cache);
    kv_pool_deinit(&pool);
}

static int32_t number(uint64_t id)
{
    double share = id < 3 ? shares[id] : 1;
    return retention_owner(&retention, &(struct engine_request){.owner = id, .cache_share = share});
}

/* A cached block of an owner, which no sequence holds. Its content is its number. */
static int32_t cached(uint64_t of)
{
    int32_t block = kv_pool_alloc(&pool);
    prefix_cache_insert(&cache, block, prefix_cache_root(&cache, NULL, 0), &block, NODE_VALID, -1);
    retention_entered(&retention, block, number(of));
    kv_pool_release(&pool, block);
    return block;
}

static void use(int32_t block, uint64_t by)
{
    kv_pool_retain(&pool, block);
    retention_used(&retention, block, number(by));
    kv_pool_release(&pool, block);
}

static bool keep(int32_t block, uint64_t by, int32_t priority, int64_t seconds)
{
    return retention_apply(&retention, block, number(by), priority, seconds * SECOND);
}

/* Allocates all blocks, and checks that these are the last n. */
static void check_last(const int32_t *want, int32_t n)
{
    check_all();
    CHECK_EQ(kv_pool_available(&pool), N);
    for (int32_t i = 0; i < N; i++) {
        int32_t block = kv_pool_alloc(&pool);
        if (i >= N - n) {
            CHECK_EQ(block, want[i - (N - n)]);
        }
    }
    CHECK_EQ(retention.n_kept, 0);
}

static void fill(int32_t *blocks, uint64_t of)
{
    for (int32_t i = 0; i < N; i++) {
        blocks[i] = cached(of);
    }
}

/* Kept blocks are reused last, in the order of priority and then of age, when no other block is
 * left. */
TEST(kept_blocks_are_reused_last)
{
    open_all();
    int32_t b[N];
    fill(b, A);
    CHECK(keep(b[0], A, 50, 60) && keep(b[1], A, 5, 60) && keep(b[2], A, 50, 60));
    int32_t want[] = {b[14], b[15], b[1], b[0], b[2]};
    check_last(want, 5);
    close_all();
}

/* A use makes a released block ordinary again. */
TEST(released_blocks_are_reused_first_until_they_are_used_again)
{
    open_all();
    int32_t b[N];
    fill(b, A);
    CHECK(keep(b[9], A, 0, 0) && keep(b[12], A, 0, 0));
    use(b[12], A);
    CHECK_EQ(kv_pool_alloc(&pool), b[9]);
    CHECK_EQ(kv_pool_alloc(&pool), b[0]);
    check_all();
    close_all();
}

/* A block whose keep has ended is reused before the ordinary ones, since it has been idle for
 * longest. */
TEST(a_block_whose_keep_has_expired_is_the_oldest)
{
    open_all();
    int32_t b[N];
    fill(b, A);
    retention_tick(&retention, 5 * (int64_t)SECOND);
    CHECK(keep(b[10], A, 9, 10) && keep(b[8], A, 90, 10) && keep(b[4], A, 9, 20));
    kv_pool_retain(&pool, b[6]); // in use when its time ends
    CHECK(keep(b[6], A, 9, 10));
    retention_tick(&retention, 15 * (int64_t)SECOND - 1);
    check_all();
    CHECK_EQ(retention.n_kept, 4);
    retention_tick(&retention, 15 * (int64_t)SECOND);
    check_all();
    CHECK_EQ(retention.n_kept, 1);
    CHECK_EQ(kv_pool_alloc(&pool), b[10]); // the lower priority before the higher
    CHECK_EQ(kv_pool_alloc(&pool), b[8]);
    CHECK_EQ(kv_pool_alloc(&pool), b[0]);
    retention_tick(&retention, 40 * (int64_t)SECOND);
    CHECK_EQ(retention.n_kept, 0);
    CHECK_EQ(kv_pool_alloc(&pool), b[4]);
    kv_pool_release(&pool, b[6]);
    close_all();
}

/* Both bounds keep one owner from filling the cache with hints. */
TEST(kept_blocks_are_limited_by_the_share_and_to_half_of_all)
{
    open_all();
    int32_t b[N];
    shares[A] = 0.5;
    fill(b, A);
    for (int32_t i = 0; i < 8; i++) {
        CHECK_EQ(keep(b[i], A, 100, 60), i < 4); // half of 8
    }
    CHECK(keep(b[0], A, 20, 60)); // blocks that are kept already may be asked for again
    for (int32_t i = 8; i < N; i++) {
        CHECK_EQ(keep(b[i], C, 100, 60), i < 12); // half of all 16 blocks
    }
    CHECK_EQ(retention.n_kept, N / 2);
    CHECK(keep(b[1], A, 0, 0));
    CHECK(keep(b[5], A, 1, 60)); // releasing b[1] has made room
    close_all();
}

TEST(an_owner_cannot_change_the_hints_of_another)
{
    open_all();
    int32_t b[N];
    fill(b, A);
    CHECK(keep(b[0], A, 3, 60));
    CHECK(keep(b[0], C, 0, 0) && keep(b[0], C, 100, 0)); // accepted, without any effect
    retention_tick(&retention, 30 * (int64_t)SECOND);
    CHECK_EQ(retention.n_kept, 1);
    CHECK(keep(b[5], C, 0, 0)); // the block belongs to A
    use(b[6], C);
    CHECK(keep(b[6], A, 0, 0)); // both use it
    int32_t want[] = {b[14], b[15], b[6], b[0]};
    CHECK_EQ(idle_order_first(&pool.idle), b[1]);
    check_last(want, 4);
    close_all();
}

TEST(an_owner_above_its_share_loses_its_own_oldest_blocks)
{
    open_all();
    int32_t b[N];
    shares[A] = 0.25;
    b[0] = cached(C); // older than all of the other's
    for (int32_t i = 1; i < 8; i++) {
        b[i] = cached(A);
    }
    use(b[1], A); // the newest
    for (int32_t i = 8; i < N; i++) {
        b[i] = cached(C);
    }
    check_all();
    const int32_t want[] = {b[2], b[3], b[4], b[0], b[5], b[6], b[7], b[1]}; // 4 of 16 stay
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        CHECK_EQ(kv_pool_alloc(&pool), want[i]);
    }
    close_all();
}

/* The share given by the latest request applies, also to blocks that are cached already. */
TEST(a_smaller_share_applies_at_once)
{
    open_all();
    int32_t b[N];
    for (int32_t i = 0; i < N; i++) {
        b[i] = cached(i < 4 ? C : A);
    }
    shares[A] = 0;
    number(A);
    CHECK_EQ(kv_pool_alloc(&pool), b[4]);
    CHECK_EQ(kv_pool_alloc(&pool), b[5]);
    check_all();
    close_all();
}

/* There are few places for owners, so one without blocks must not keep its place. */
TEST(an_owner_without_blocks_gives_up_its_place)
{
    open_all();
    cached(A);
    int32_t place = number(A);
    for (uint64_t id = 100; id < 100 + 2 * IDLE_USERS; id++) {
        CHECK(number(id) > 0 && number(id) != place);
    }
    CHECK_EQ(number(A), place);
    prefix_cache_reset(&cache);
    CHECK_EQ(number(100), place);
    CHECK_EQ(number(0), 0);
    close_all();
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
