// SPDX-License-Identifier: Apache-2.0
/* Combs: how many siblings pay off for a cost curve, where they are placed, what is learnt from
 * results, and when growing trees on the host is better. */
#include "engine/speculate/shape.h"
#include "engine/speculate/spec.h"
#include "engine/speculate/tree.h"
#include "test/check.h"

#include <string.h>

/* A pass of n rows of the model costs 1 + (n - 1) * row, one of the draft 0.02. */
static struct spec open_spec(float row)
{
    struct spec sp;
    struct err err;
    CHECK_EQ(
        spec_init(&sp, "{\"method\":\"tree\",\"model\":\"m\",\"num_speculative_tokens\":8}", &err),
        OK);
    for (int32_t i = 0; i < SPEC_COST_POINTS; i++) {
        sp.costs.target[i] = 1.0f + (float)((1 << i) - 1) * row;
        sp.costs.draft[i] = 0.02f;
    }
    return sp;
}

TEST(siblings_lie_where_spines_end_most_often)
{
    struct spec sp = open_spec(0.01f);
    uint8_t beside[MAX_DRAFTS];
    spec_lay_beside(&sp, 0.5f, 4, 5, beside);
    for (int32_t d = 1; d < 4; d++) { // half of the time a path ends at the first level
        CHECK(beside[d] <= beside[d - 1]);
    }
    CHECK_EQ(beside[0] + beside[1] + beside[2] + beside[3], 5);
    CHECK(beside[0] >= 2 && beside[0] <= sp.options.width - 1);
    spec_lay_beside(&sp, 0.98f, 4, 4, beside); // levels are nearly equal: one sibling for each
    for (int32_t d = 0; d < 4; d++) {
        CHECK_EQ(beside[d], 1);
    }
    spec_lay_beside(&sp, 0.5f, 2, 100, beside); // no more than the tree has room for
    CHECK_EQ(beside[0] + beside[1], 2 * (sp.options.width - 1));
    CHECK_EQ(beside[2], 0);
}

TEST(a_comb_has_siblings_only_where_their_rows_pay)
{
    struct spec free_rows = open_spec(0.0f), dear = open_spec(0.5f), some = open_spec(0.01f);
    struct spec_plan p = spec_plan_comb(&free_rows, 1, 0.6f, 4, 100);
    CHECK_EQ(p.beside, 4 * (free_rows.options.width - 1));
    CHECK_EQ(spec_plan_comb(&dear, 1, 0.6f, 4, 100).beside, 0);
    int32_t unsure = spec_plan_comb(&some, 1, 0.5f, 6, 100).beside;
    CHECK(unsure > 0 && unsure < 6 * (some.options.width - 1));
    CHECK_EQ(spec_plan_comb(&some, 1, 0.99f, 6, 100).beside, 0); // a chain
    CHECK_EQ(spec_plan_comb(&some, 1, 0.5f, 6, 2).beside, 2);
    CHECK(spec_plan_comb(&some, 16, 0.5f, 6, 100).beside <= unsure); // each sibling costs 16 rows
    CHECK_NEAR(p.ends, 1.0 - 0.6 * 0.6 * 0.6 * 0.6, 1e-5);
    struct spec_plan bare = spec_plan_comb(&free_rows, 1, 0.6f, 4, 0);
    CHECK_NEAR(bare.tokens, 1 + 0.6 + 0.36 + 0.216 + 0.1296, 1e-5);
    CHECK(p.tokens > bare.tokens && p.tokens < bare.tokens + 1.0f);
    CHECK_NEAR(bare.seconds, 1.08, 1e-5);
}

TEST(grown_trees_must_pay_for_the_round_trip_to_the_host)
{
    struct spec sp = open_spec(0.01f);
    struct spec_plan unsure = spec_plan_comb(&sp, 1, 0.4f, 4, 100);
    struct spec_plan sure = spec_plan_comb(&sp, 1, 0.99f, 4, 100);
    sp.learnt.grow_gain = 1.0f;
    sp.learnt.grow_seconds = 0.1f;
    CHECK(spec_worth_growing(&sp, &unsure));
    CHECK(!spec_worth_growing(&sp, &sure));
    sp.learnt.grow_seconds = 2.0f;
    CHECK(!spec_worth_growing(&sp, &unsure));
    sp.learnt.grow_seconds = 0.1f;
    sp.learnt.grow_gain = 0.0f;
    CHECK(!spec_worth_growing(&sp, &unsure));
    for (int32_t i = 0; i < 4000; i++) { // in the end, growing is tried again
        spec_forget(&sp.learnt);
    }
    CHECK(spec_worth_growing(&sp, &unsure));
}

static void judge(struct spec *sp, const struct spec_tree *t, struct sequence *seq,
                  const int32_t *path, int32_t n_right, bool cut)
{
    spec_observe(sp, &(struct spec_trial){.trust = &seq->trust,
                                          .seq = seq,
                                          .tree = t,
                                          .n_drafts = t->n_rows - 1,
                                          .path = path,
                                          .n_right = n_right,
                                          .cut = cut});
}

/* A comb of two levels with two siblings each is verified: accepted nodes are learnt from,
 * unreached ones are not. */
TEST(only_verified_nodes_are_learnt_from)
{
    struct spec sp = open_spec(0.01f);
    static struct spec_tree t;
    struct sequence seq = {.trust.doubt = 0.3f};
    const struct draw_result first = {.token = 10, .n_top = 2, .top_ids = {11, 12}},
                             second = {.token = 20, .n_top = 2, .top_ids = {21, 22}};
    tree_begin(&t, &seq, 1);
    memset(t.beside, 0, sizeof t.beside);
    t.beside[0] = t.beside[1] = 2;
    tree_lay_comb(&t, 2);
    CHECK_EQ(t.n_rows, 7);
    CHECK_EQ(t.n_fed, 2); // the root and the first node of the spine
    tree_name_comb(&t, 0, &first);
    tree_name_comb(&t, 1, &second);
    CHECK_EQ(tree_next(&t, 0, 10), 1);
    CHECK_EQ(tree_next(&t, 0, 12), 4);
    CHECK_EQ(tree_next(&t, 1, 21), 5);
    CHECK_EQ(tree_next(&t, 0, 21), -1);
    float before[2] = {sp.learnt.rescue[0], sp.learnt.rescue[1]};
    const int32_t rescued[] = {1, 6};
    judge(&sp, &t, &seq, rescued, 2, false); // the spine's first, then a sibling
    CHECK(sp.learnt.rescue[1] > before[1] && sp.learnt.rescue[0] < before[0]);
    CHECK_NEAR(seq.trust.doubt, 0.3 * 0.9 * 0.9 + 0.1, 1e-5); // the spine: right once, wrong once
    memcpy(before, sp.learnt.rescue, sizeof before);
    seq.trust.doubt = 0.3f;
    const int32_t spine[] = {1};
    judge(&sp, &t, &seq, spine, 1, true); // a stop: the rest was not verified
    CHECK_NEAR(seq.trust.doubt, 0.27, 1e-5);
    CHECK(sp.learnt.rescue[0] == before[0] && sp.learnt.rescue[1] == before[1]);
    judge(&sp, &t, &seq, NULL, 0, false); // nothing was accepted
    CHECK(sp.learnt.rescue[0] < before[0] && sp.learnt.rescue[1] < before[1]);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
