// SPDX-License-Identifier: Apache-2.0
/* The prefix cache alone: identities of blocks, salts and the order of reuse. */
#include "engine/schedule/prefix_cache.h"

#include "test/check.h"

enum { B = 4, N = 8 };

static struct kv_pool pool;
static struct prefix_cache cache;

static void open_with(uint64_t key)
{
    kv_pool_init(&pool, N, NULL, NULL);
    prefix_cache_init(&cache, &pool, B, key);
}

static void close_all(void)
{
    prefix_cache_deinit(&cache);
    kv_pool_deinit(&pool);
}

static const int32_t one[B] = {1, 2, 3, 4}, two[B] = {1, 2, 3, 5};

/* A block's identity depends on its tokens and on everything before them, even if all hashes
 * collide. */
static void check_identity(uint64_t key)
{
    open_with(key);
    uint64_t root = prefix_cache_root(&cache, NULL, 0), salted = prefix_cache_root(&cache, "s", 0);
    int32_t a = kv_pool_alloc(&pool), b = kv_pool_alloc(&pool), c = kv_pool_alloc(&pool);
    uint64_t uid = prefix_cache_insert(&cache, a, root, one, NODE_VALID, -1);
    prefix_cache_insert(&cache, b, uid, one, NODE_VALID, -1);
    prefix_cache_insert(&cache, c, salted, one, NODE_VALID, -1);
    CHECK_EQ(prefix_cache_find(&cache, root, one), a);
    CHECK_EQ(prefix_cache_find(&cache, uid, one), b);
    CHECK_EQ(prefix_cache_find(&cache, salted, one), c);
    CHECK_EQ(prefix_cache_find(&cache, root, two), -1);
    CHECK_EQ(prefix_cache_find(&cache, uid, two), -1);
    close_all();
}

/* Salts count up to MAX_SALT_BYTES; a longer one gets a root that nobody else has. */
TEST(salts_are_compared_up_to_their_last_byte)
{
    open_with(1);
    static char a[MAX_SALT_BYTES + 2], b[MAX_SALT_BYTES + 2];
    memset(a, 'x', MAX_SALT_BYTES);
    memcpy(b, a, sizeof b);
    uint64_t root = prefix_cache_root(&cache, a, 0);
    CHECK_EQ(prefix_cache_root(&cache, b, 0), root);
    b[MAX_SALT_BYTES - 1] = 'y';
    CHECK(prefix_cache_root(&cache, b, 0) != root);
    b[MAX_SALT_BYTES - 1] = b[MAX_SALT_BYTES] = 'x'; // too long: each use has a different root
    uint64_t longer = prefix_cache_root(&cache, b, 0);
    CHECK(longer != root && prefix_cache_root(&cache, b, 0) != longer);
    CHECK_EQ(prefix_cache_root(&cache, a, 0), root);
    close_all();
}

TEST(identity_is_parent_and_exact_tokens)
{
    check_identity(77);
}

TEST(equal_hashes_are_not_equal_blocks)
{
    check_identity(0); // every hash is the same
}

/* The least recently used block is reused first, and its entry is gone afterwards. */
TEST(the_longest_idle_block_is_reused_first_and_forgotten)
{
    open_with(5);
    uint64_t root = prefix_cache_root(&cache, NULL, 0);
    int32_t blocks[N];
    for (int32_t i = 0; i < N; i++) {
        int32_t tokens[B] = {i, i, i, i};
        blocks[i] = kv_pool_alloc(&pool);
        prefix_cache_insert(&cache, blocks[i], root, tokens, NODE_VALID, -1);
    }
    for (int32_t i = N - 1; i >= 0; i--) { // tails first
        kv_pool_release(&pool, blocks[i]);
    }
    kv_pool_check(&pool);
    CHECK_EQ(kv_pool_available(&pool), N);
    kv_pool_retain(&pool, blocks[N - 1]);
    CHECK_EQ(kv_pool_alloc(&pool), blocks[N - 2]);
    int32_t gone[B] = {N - 2, N - 2, N - 2, N - 2}, kept[B] = {N - 1, N - 1, N - 1, N - 1};
    CHECK_EQ(prefix_cache_find(&cache, root, gone), -1);
    CHECK_EQ(prefix_cache_find(&cache, root, kept), blocks[N - 1]);
    kv_pool_check(&pool);
    prefix_cache_reset(&cache);
    CHECK_EQ(pool.idle.n, 0);
    kv_pool_check(&pool);
    close_all();
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}

static int32_t closest(uint64_t parent, const int32_t tokens[B], int32_t *n_equal)
{
    return prefix_cache_closest(&cache, parent, tokens, B, n_equal);
}

/* Whatever the hashes, only children of that parent count, and only once they are valid. */
static void check_closest(uint64_t key)
{
    open_with(key);
    uint64_t root = prefix_cache_root(&cache, NULL, 0), salted = prefix_cache_root(&cache, "s", 0);
    static const int32_t far[B] = {1, 2, 9, 9}, none[B] = {7, 2, 3, 4};
    int32_t a = kv_pool_alloc(&pool), b = kv_pool_alloc(&pool), c = kv_pool_alloc(&pool), n;
    prefix_cache_insert(&cache, a, root, one, NODE_PENDING, 0);
    prefix_cache_insert(&cache, b, root, far, NODE_VALID, -1);
    prefix_cache_insert(&cache, c, salted, one, NODE_VALID, -1);
    CHECK_EQ(closest(root, two, &n), b);
    CHECK_EQ(n, 2);
    prefix_cache_validate(&cache, a);
    CHECK_EQ(closest(root, two, &n), a);
    CHECK_EQ(n, 3);
    CHECK_EQ(closest(root, none, &n), -1);
    CHECK_EQ(n, 0);
    prefix_cache_remove(&cache, a);
    CHECK_EQ(closest(root, two, &n), b);
    prefix_cache_remove(&cache, b);
    CHECK_EQ(closest(root, two, &n), -1);
    CHECK_EQ(closest(salted, two, &n), c);
    close_all();
}

TEST(the_closest_block_has_the_most_equal_tokens)
{
    check_closest(77);
    check_closest(0);
}
