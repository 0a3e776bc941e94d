// SPDX-License-Identifier: Apache-2.0
/* Prefix groups compared with brute force: savings by comparing every pair, groups by recomputing
 * their sums. */
#include "engine/base/clock.h"
#include "server/jobs/prefix_groups.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "test/check.h"

enum { MAX_PROMPTS = 64, MAX_TOKENS = 96 };

static int32_t ids[MAX_PROMPTS][MAX_TOKENS];
static struct group_prompt prompts[MAX_PROMPTS];

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* A few stems that branch repeatedly, so that trees of every depth occur. */
static int32_t draw_prompts(uint32_t seed)
{
    int32_t n = 1 + (int32_t)(next_random(&seed) % MAX_PROMPTS);
    uint32_t alphabet = 1 + next_random(&seed) % 3, spaces = 1 + next_random(&seed) % 2;
    for (int32_t i = 0; i < n; i++) {
        int32_t len = 1 + (int32_t)(next_random(&seed) % MAX_TOKENS), keep = 0;
        if (i > 0 && next_random(&seed) % 4 != 0) {
            int32_t from = (int32_t)(next_random(&seed) % (uint32_t)i);
            keep = (int32_t)(next_random(&seed) % (uint32_t)(prompts[from].n + 1));
            keep = lesser(keep, len);
            memcpy(ids[i], ids[from], (size_t)keep * sizeof ids[0][0]);
        }
        for (int32_t k = keep; k < len; k++) {
            ids[i][k] = (int32_t)(next_random(&seed) % alphabet);
        }
        prompts[i] = (struct group_prompt){.ids = ids[i],
                                           .n = len,
                                           .space = next_random(&seed) % spaces,
                                           .est_output = (int32_t)(next_random(&seed) % 50)};
    }
    return n;
}

/* Tokens that b finds in a cache that holds a: whole blocks, the same space (salt), and
 * never the last token, whose logits are needed. */
static int32_t shares(const struct group_prompt *a, const struct group_prompt *b, int32_t block)
{
    int32_t most = lesser(a->n, b->n) - 1, k = 0;
    while (a->space == b->space && k < most && a->ids[k] == b->ids[k]) {
        k++;
    }
    return a->space == b->space ? k - k % block : 0;
}

/* The tokens computed in this order with a cache that never evicts. */
static int64_t brute_computed(const int32_t *order, int32_t n, int32_t block)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t best = 0;
        for (int32_t k = 0; k < i; k++) {
            int32_t s = shares(&prompts[order[k]], &prompts[order[i]], block);
            best = greater(s, best);
        }
        sum += prompts[order[i]].n - best;
    }
    return sum;
}

/* The groups cover all prompts once, members of a group share its prefix, and the sum of
 * tokens is right. */
static void check_groups(const struct prefix_groups *g, int32_t n, int32_t block)
{
    bool seen[MAX_PROMPTS] = {false};
    int32_t next = 0;
    int64_t tokens = 0;
    REQUIRE(g->n_prompts == n);
    for (int32_t i = 0; i < g->n_groups; i++) {
        const struct prefix_group *group = &g->groups[i];
        REQUIRE(group->first == next && group->n > 0);
        tokens += group->prefix_len;
        for (int32_t k = next; k < next + group->n; k++) {
            int32_t p = g->order[k];
            REQUIRE(p >= 0 && p < n && !seen[p]);
            seen[p] = true;
            REQUIRE(group->prefix_len % block == 0 && group->prefix_len < prompts[p].n);
            REQUIRE(k == next ||
                    shares(&prompts[g->order[next]], &prompts[p], block) >= group->prefix_len);
            tokens += prompts[p].n - group->prefix_len;
        }
        next += group->n;
    }
    REQUIRE(next == n);
    REQUIRE(tokens == g->grouped_tokens);
}

/* Tokens to compute if prompts that begin with the same block are a group, and nothing else is
 * shared. */
static int64_t first_level_tokens(int32_t n, int32_t block)
{
    bool seen[MAX_PROMPTS] = {false};
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t prefix = prompts[i].n, n_members = 0;
        for (int32_t k = i; k < n && !seen[i]; k++) {
            const int32_t common = shares(&prompts[i], &prompts[k], block);
            if (seen[k] || (k > i && common < block)) {
                continue;
            }
            seen[k] = k > i;
            n_members++;
            sum += prompts[k].n;
            prefix = common < prefix ? common : prefix;
        }
        sum -= n_members > 1 ? (int64_t)prefix * (n_members - 1) : 0;
    }
    return sum;
}

/* 2,000 random sets of prompts. The tree's count equals that of brute force, which does not depend
 * on the order. Grouping saves at most that many tokens, and at least as many as grouping by the
 * first block. */
TEST(random_prompts_agree_with_brute_force)
{
    for (uint32_t seed = 1; seed <= 2000; seed++) {
        static const int32_t blocks[] = {1, 4, 16};
        int32_t n = draw_prompts(seed), block = blocks[seed % 3];
        struct prefix_groups g;
        prefix_groups_make(prompts, n, block, GROUP_ORDER_TREE, &g);
        check_groups(&g, n, block);
        int32_t plain[MAX_PROMPTS];
        int64_t logical = 0;
        for (int32_t i = 0; i < n; i++) {
            plain[i] = i;
            logical += prompts[i].n;
        }
        REQUIRE(g.logical_tokens == logical);
        REQUIRE(g.computed_tokens == brute_computed(plain, n, block)); // the same in every order
        REQUIRE(g.grouped_tokens >= g.computed_tokens);
        REQUIRE(g.grouped_tokens <= first_level_tokens(n, block));
        prefix_groups_free(&g);
        prefix_groups_make(prompts, n, block, GROUP_ORDER_RATIO, &g);
        check_groups(&g, n, block);
        for (int32_t i = 1; i < g.n_groups; i++) {
            REQUIRE(g.groups[i - 1].ratio >= g.groups[i].ratio);
        }
        prefix_groups_free(&g);
    }
}

/* Three levels: a stem of 8 tokens, under it branches of `branch` tokens with `members` each. As
 * separate groups, each branch computes the stem again; in one group, each member computes its
 * branch itself. */
static void make_branches(int32_t branch, int32_t n_branches, int32_t members)
{
    for (int32_t i = 0; i < n_branches * members; i++) {
        int32_t n = 0;
        for (; n < 8; n++) {
            ids[i][n] = 7;
        }
        for (; n < 8 + branch; n++) {
            ids[i][n] = 100 + i / members;
        }
        ids[i][n++] = 1000 + i;
        ids[i][n++] = 5;
        prompts[i] = (struct group_prompt){.ids = ids[i], .n = n, .est_output = 10};
    }
}

/* Both cases of the rule: saving 3 * 8 tokens costs 8, so each branch becomes a group; saving 3 * 2
 * would also cost 8, so it does not. */
TEST(a_subtree_becomes_a_group_if_that_saves_tokens)
{
    struct prefix_groups g;
    make_branches(8, 3, 4); // (4 - 1) * 8 saved against 8 again
    prefix_groups_make(prompts, 12, 1, GROUP_ORDER_TREE, &g);
    CHECK_EQ(g.n_groups, 3);
    CHECK_EQ(g.groups[0].prefix_len, 16);
    CHECK_EQ(g.grouped_tokens, 3 * (16 + 4 * 2));
    CHECK_EQ(g.computed_tokens, 8 + 3 * (8 + 4 * 2));
    prefix_groups_free(&g);

    make_branches(2, 3, 4); // (4 - 1) * 2 against 8
    prefix_groups_make(prompts, 12, 1, GROUP_ORDER_TREE, &g);
    CHECK_EQ(g.n_groups, 1);
    CHECK_EQ(g.groups[0].prefix_len, 8);
    CHECK_EQ(g.grouped_tokens, 8 + 12 * 4);
    prefix_groups_free(&g);
}

/* At least one token must be computed, for its logits. */
TEST(equal_prompts_keep_their_order_and_leave_a_token_to_compute)
{
    struct prefix_groups g;
    for (int32_t i = 0; i < 5; i++) {
        for (int32_t k = 0; k < 32; k++) {
            ids[i][k] = k;
        }
        prompts[i] = (struct group_prompt){.ids = ids[i], .n = 32};
    }
    prefix_groups_make(prompts, 5, 16, GROUP_ORDER_RATIO, &g);
    REQUIRE(g.n_groups == 1);
    CHECK_EQ(g.groups[0].prefix_len, 16); // not 32: a block that held the last token
    for (int32_t i = 0; i < 5; i++) {
        CHECK_EQ(g.order[i], i);
    }
    prefix_groups_free(&g);
    prefix_groups_make(NULL, 0, 16, GROUP_ORDER_TREE, &g);
    CHECK_EQ(g.n_groups, 0);
    prefix_groups_free(&g);
}

/* The ratio of expected output to prompt decides the order of groups. */
TEST(groups_with_long_answers_come_first)
{
    struct prefix_groups g;
    for (int32_t i = 0; i < 8; i++) {
        for (int32_t k = 0; k < 16; k++) {
            ids[i][k] = i % 4;
        }
        ids[i][16] = 50 + i;
        ids[i][17] = 1;
        prompts[i] = (struct group_prompt){.ids = ids[i], .n = 18, .est_output = 10 * (i % 4)};
    }
    prefix_groups_make(prompts, 8, 16, GROUP_ORDER_RATIO, &g);
    REQUIRE(g.n_groups == 4);
    for (int32_t i = 0; i < 8; i++) {
        CHECK_EQ(g.order[i] % 4, 3 - i / 2);
    }
    prefix_groups_free(&g);
}

/* 6,400 prompts of 2,200 tokens: the grouping is about linear in their tokens. */
TEST(a_large_job_is_grouped_in_time)
{
    enum { GROUPS = 400, MEMBERS = 16, PREFIX = 2000, OWN = 200, N = GROUPS * MEMBERS };
    int32_t *all = xmalloc((size_t)N * (PREFIX + OWN) * sizeof *all);
    struct group_prompt *many = xcalloc(N, sizeof *many);
    uint32_t seed = 123;
    for (int32_t i = 0; i < N; i++) {
        int32_t *at = all + (size_t)i * (PREFIX + OWN);
        uint32_t stem = (uint32_t)(i % GROUPS) * 77 + 5;
        for (int32_t k = 0; k < PREFIX; k++) {
            at[k] = 1 + (int32_t)(next_random(&stem) % 20000);
        }
        for (int32_t k = PREFIX; k < PREFIX + OWN; k++) {
            at[k] = 1 + (int32_t)(next_random(&seed) % 20000);
        }
        many[i] = (struct group_prompt){.ids = at, .n = PREFIX + OWN, .est_output = 100};
    }
    struct prefix_groups g;
    int64_t start = clock_now_ns();
    prefix_groups_make(many, N, 16, GROUP_ORDER_RATIO, &g);
    double seconds = (double)(clock_now_ns() - start) * 1e-9;
    CHECK_EQ(g.n_groups, GROUPS);
    CHECK_EQ(g.computed_tokens, (int64_t)GROUPS * PREFIX + (int64_t)N * OWN);
    CHECK_EQ(g.grouped_tokens, g.computed_tokens);
    printf("%d prompts of %d tokens: %.3f s\n", N, PREFIX + OWN, seconds);
    CHECK(seconds < 5); // 0.1 s on an idle core; the bound only catches a change of order
    prefix_groups_free(&g);
    free(many);
    free(all);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
