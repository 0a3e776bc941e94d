// SPDX-License-Identifier: Apache-2.0
/* The arena: alignment, zeroing, the cap on bytes, and pieces too large for a chunk. A sanitizer
 * reports a chunk that is not freed. */
#include "engine/base/arena.h"

#include "test/check.h"

#include <stdint.h>
#include <string.h>

/* Sizes 1 to 300 cross several chunks. Each piece is filled with a different number after it was
 * checked for zeros, so pieces that overlap show as a wrong first or last byte. */
TEST(pieces_are_zeroed_aligned_and_apart)
{
    struct arena a;
    unsigned char *pieces[300];
    arena_init(&a, 1 << 20);
    for (size_t i = 0; i < 300; i++) {
        pieces[i] = arena_alloc(&a, i + 1, 1);
        REQUIRE(pieces[i] != NULL);
        CHECK_EQ((uintptr_t)pieces[i] % 16, 0);
        for (size_t k = 0; k <= i; k++) {
            REQUIRE(pieces[i][k] == 0);
        }
        memset(pieces[i], (int)(i % 255) + 1, i + 1);
    }
    for (size_t i = 0; i < 300; i++) {
        REQUIRE(pieces[i][0] == i % 255 + 1 && pieces[i][i] == i % 255 + 1);
    }
    arena_deinit(&a);
    CHECK(a.head == NULL);
}

/* The cap is the limit on what an untrusted file can make us allocate, so it counts bytes
 * with their alignment, and a product of sizes that overflows fails instead of wrapping to
 * a small one. */
TEST(the_cap_counts_what_was_handed_out)
{
    struct arena a;
    arena_init(&a, 4096);
    CHECK(arena_alloc(&a, 4097, 1) == NULL);
    CHECK(arena_alloc(&a, SIZE_MAX, 2) == NULL);
    CHECK(arena_alloc(&a, 4000, 1) != NULL);
    CHECK_EQ(a.used_bytes, 4000);
    CHECK(arena_alloc(&a, 97, 1) == NULL); // 112 with its alignment
    CHECK(arena_alloc(&a, 96, 1) != NULL);
    CHECK(arena_alloc(&a, 1, 1) == NULL);
    arena_deinit(&a);
}

/* A piece above the largest chunk size gets a chunk of exactly its size, and filling all of
 * it leaves the string in the chunk before it intact. */
TEST(a_piece_larger_than_any_chunk_is_one_of_its_own)
{
    struct arena a;
    arena_init(&a, 1 << 20);
    char *small = arena_strndup(&a, "abc", 2);
    char *large = arena_alloc(&a, 100000, 1);
    REQUIRE(small && large);
    memset(large, 1, 100000);
    CHECK_STR(small, "ab");
    arena_deinit(&a);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
