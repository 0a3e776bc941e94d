// SPDX-License-Identifier: Apache-2.0
/* The shape of token trees: growth, choice over a batch, and the walk. */
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/rng.h"
#include "engine/speculate/grove.h"
#include "engine/speculate/shape.h"
#include "engine/speculate/spec.h"
#include "test/check.h"

enum { TREES = 3, BRANCH = 6 };

struct bed {
    struct spec sp;
    struct spec_grove g;
    struct engine_request requests[TREES];
    struct sequence seqs[TREES];
    struct draw_result draw;
    float sure[TREES]; // how much more likely each id is than the next
    uint64_t seed;
};

/* Trees as the engine begins them: a root (the last known token), no candidates, and a
 * depth and number of nodes from the options. */
static void open_bed(struct bed *b, const char *config, int32_t n_trees)
{
    struct err err;
    *b = (struct bed){.seed = 1};
    CHECK_EQ(spec_init(&b->sp, config, &err), OK);
    b->g.n_trees = n_trees;
    b->g.trees = xcalloc(TREES, sizeof *b->g.trees);
    b->g.picks = xcalloc(TREES * MAX_TREE_CANDIDATES, sizeof *b->g.picks);
    b->g.base_rows = n_trees;
    for (int32_t i = 0; i < n_trees; i++) {
        b->requests[i].params = sampling_params_default();
        b->requests[i].params.temperature = 0.0f;
        b->seqs[i] = (struct sequence){.request = &b->requests[i], .trust.doubt = 0.3f};
        b->sure[i] = 1.0f;
        tree_begin(&b->g.trees[i], &b->seqs[i], 5);
        b->g.trees[i].first = 10;
        b->g.trees[i].depth = b->sp.options.k;
        b->g.trees[i].most = spec_tree_most(&b->sp, b->sp.options.k, n_trees);
    }
}

static void close_bed(struct bed *b)
{
    free(b->g.trees);
    free(b->g.picks);
}

/* Adds made-up children to a node, equal ones for equal paths. */
static void expand(struct bed *b, struct spec_tree *t, int32_t node)
{
    float sum = 0.0f, sure = b->sure[t - b->g.trees];
    struct draw_result *d = &b->draw;
    uint64_t path = b->seed;
    for (int32_t at = node; at > 0; at = t->nodes[at].parent) {
        path = path * 31 + (uint64_t)t->nodes[at].token;
    }
    d->n_top = BRANCH;
    for (int32_t i = 0; i < BRANCH; i++) {
        float u = (float)rng_uniform(rng_bits(path, node, RNG_TEST, (uint32_t)i));
        d->top_ids[i] = (int32_t)(path % 97) + i;
        d->top_logprobs[i] = u - sure * (float)i;
        sum += expf(d->top_logprobs[i]);
    }
    for (int32_t i = 0; i < BRANCH; i++) {
        d->top_logprobs[i] -= logf(sum);
    }
    d->token = d->top_ids[0];
    d->logprob = d->top_logprobs[0];
    const struct draw_result *one = d;
    tree_expand(t, node, &one, 1, spec_tree_children(&b->sp, t->nodes[node].depth));
}

/* Level by level as a draft model would be run: each node in the frontier gets its
 * candidates, then the final nodes are chosen over all trees. */
static void grow(struct bed *b)
{
    for (int32_t i = 0; i < b->g.n_trees; i++) {
        expand(b, &b->g.trees[i], 0);
    }
    for (int32_t level = 1; level < b->sp.options.k && grove_frontier(&b->sp, &b->g, level) > 0;
         level++) {
        for (int32_t i = 0; i < b->g.n_trees; i++) {
            struct spec_tree *t = &b->g.trees[i];
            for (; t->n_seen < t->n_fed; t->n_seen++) {
                expand(b, t, t->by_fed[t->n_seen]);
            }
        }
    }
    grove_choose(&b->sp, &b->g);
}

/* Checks that parents come before children, that each node has a place of its own, and that
 * siblings are different. */
static void check_tree(const struct spec_tree *t)
{
    for (int32_t r = 1; r < t->n_rows; r++) {
        const struct tree_node *n = &t->nodes[t->by_row[r]], *parent = &t->nodes[n->parent];
        CHECK(n->row == r && parent->row >= 0 && parent->row < r);
        CHECK_EQ(n->depth, parent->depth + 1);
        CHECK(n->logp <= parent->logp);
        CHECK_EQ(tree_next(t, parent->row, n->token), r);
        CHECK(n->depth == 1 || parent->fed > 0);
    }
    for (int32_t f = 1; f < t->n_fed; f++) {
        const struct tree_node *n = &t->nodes[t->by_fed[f]];
        CHECK(n->fed == f && t->nodes[n->parent].fed < f);
    }
    CHECK_EQ(tree_next(t, 0, 100000), -1);
}

/* The number of chosen nodes at this depth. */
static int32_t at_depth(const struct spec_tree *t, int32_t depth)
{
    int32_t n = 0;
    for (int32_t r = 1; r < t->n_rows; r++) {
        n += t->nodes[t->by_row[r]].depth == depth;
    }
    return n;
}

/* [1,1,3,1,...]: number of children of each node of a level, as EAGLE's `expansion`; 1 + 1
 * + 3 * 6 nodes and the root. */
TEST(an_expansion_gives_every_node_of_a_level_its_children)
{
    struct bed b;
    open_bed(&b, "{\"method\":\"tree\",\"model\":\"m\",\"expansion\":[1,1,3,1,1,1,1,1]}", 1);
    grow(&b);
    static const int32_t want[] = {1, 1, 3, 3, 3, 3, 3, 3};
    const struct spec_tree *t = b.g.trees;
    check_tree(t);
    CHECK_EQ(t->n_rows, 21);
    for (int32_t d = 0; d < 8; d++) {
        CHECK_EQ(at_depth(t, d + 1), want[d]);
    }
    CHECK_EQ(t->levels, 8);
    close_bed(&b);
}

/* A tree without branches is a chain: each row is the next position, and the trunk (nodes
 * whose keys are already in place) is all of it. */
TEST(an_expansion_of_ones_is_a_chain_and_its_own_past)
{
    struct bed b;
    open_bed(&b, "{\"method\":\"tree\",\"model\":\"m\",\"expansion\":[1,1,1,1]}", 1);
    grow(&b);
    const struct spec_tree *t = b.g.trees;
    check_tree(t);
    for (int32_t r = 1; r < t->n_rows; r++) {
        CHECK_EQ(t->nodes[t->by_row[r]].depth, r);
    }
    CHECK_EQ(t->n_rows, 5);
    CHECK_EQ(t->n_fed, 4);
    CHECK_EQ(tree_trunk(t), 4); // a pass would compute only the new rows
    close_bed(&b);
}

/* The choice is greedy by the product of probabilities on the path: no candidate left out
 * is likelier than one chosen. 199 random trees, from even to peaked distributions. */
TEST(the_nodes_chosen_are_the_likeliest_of_all_candidates)
{
    for (uint64_t seed = 1; seed < 200; seed++) {
        struct bed b;
        open_bed(&b,
                 "{\"method\":\"tree\",\"model\":\"m\",\"num_speculative_tokens\":5,"
                 "\"tree_width\":4,\"tree_nodes\":20,\"fixed\":true}",
                 1);
        b.seed = seed;
        b.sure[0] = 0.2f * (float)(seed % 6);
        grow(&b);
        const struct spec_tree *t = b.g.trees;
        check_tree(t);
        CHECK_EQ(t->n_rows, 21);
        float worst_in = 0.0f, best_out = -INFINITY;
        for (int32_t k = 1; k < t->n_nodes; k++) {
            const struct tree_node *n = &t->nodes[k];
            if (n->row > 0 && n->logp < worst_in) {
                worst_in = n->logp;
            }
            if (n->row < 0 && n->logp > best_out) {
                best_out = n->logp;
            }
        }
        CHECK(worst_in >= best_out);
        int32_t fed_at[MAX_DRAFTS] = {0}; // at most `width` of a level have children
        for (int32_t f = 1; f < t->n_fed; f++) {
            CHECK(++fed_at[t->nodes[t->by_fed[f]].depth] <= 4);
        }
        close_bed(&b);
    }
}

/* Row r of the best path is at slot n_past + r, where accepted tokens belong; so the
 * likeliest outcome needs no moves of keys. */
TEST(the_likeliest_path_lies_in_its_final_slots)
{
    struct bed b;
    open_bed(
        &b, "{\"method\":\"tree\",\"model\":\"m\",\"num_speculative_tokens\":4,\"fixed\":true}", 1);
    grow(&b);
    const struct spec_tree *t = b.g.trees;
    int32_t at = 0;
    for (int32_t row = 1; row <= t->levels; row++) {
        int32_t best = -1;
        for (int32_t k = 1; k < t->n_nodes; k++) {
            bool child = t->nodes[k].parent == at && t->nodes[k].row > 0;
            if (child && (best < 0 || t->nodes[k].logp > t->nodes[best].logp)) {
                best = k;
            }
        }
        if (best < 0) {
            break; // the deepest chosen node is on another path
        }
        CHECK_EQ(t->nodes[best].row, row);
        at = best;
    }
    CHECK(at > 0);
    close_bed(&b);
}

/* The nodes of a batch are shared by expected gain: equal sequences get equal trees, and a
 * confident one takes nodes from uncertain ones. */
TEST(equal_sequences_get_equal_trees_and_a_sure_one_gets_more)
{
    struct bed b;
    static const char *const config = "{\"method\":\"tree\",\"model\":\"m\",\"tree_nodes\":30,"
                                      "\"num_speculative_tokens\":5,\"fixed\":true}";
    open_bed(&b, config, 2);
    grow(&b);
    CHECK_EQ(b.g.trees[0].n_rows, b.g.trees[1].n_rows);
    CHECK_EQ(b.g.trees[0].n_rows + b.g.trees[1].n_rows, 32);
    close_bed(&b);
    open_bed(&b, config, 3);
    b.sure[0] = 4.0f;
    b.sure[1] = b.sure[2] = 0.05f;
    grow(&b);
    for (int32_t i = 0; i < 3; i++) {
        check_tree(&b.g.trees[i]);
    }
    // A tree with certain guesses grows deep, one with uncertain guesses stays shallow and wide.
    CHECK(b.g.trees[0].levels > b.g.trees[1].levels);
    CHECK_EQ(b.g.trees[0].n_rows + b.g.trees[1].n_rows + b.g.trees[2].n_rows, 33);
    close_bed(&b);
}

/* The size is where the expected gain of a row falls below its measured cost: all 30 nodes
 * if rows are free, none if a row costs two passes. */
TEST(trees_are_as_large_as_their_rows_are_worth)
{
    struct bed b;
    int32_t rows[3];
    for (int32_t i = 0; i < 3; i++) {
        open_bed(&b,
                 "{\"method\":\"tree\",\"model\":\"m\",\"tree_nodes\":30,"
                 "\"num_speculative_tokens\":5}",
                 1);
        for (int32_t p = 0; p < SPEC_COST_POINTS; p++) { // a row costs 0, 5 % and 200 % of a pass
            static const float slope[] = {0.0f, 0.05f, 2.0f};
            b.sp.costs.target[p] = 1.0f + slope[i] * (float)((1 << p) - 1);
            b.sp.costs.draft[p] = 0.05f;
        }
        grow(&b);
        check_tree(&b.g.trees[0]);
        rows[i] = b.g.trees[0].n_rows - 1;
        close_bed(&b);
    }
    CHECK_EQ(rows[0], 30);
    CHECK(rows[1] > 0 && rows[1] < 30);
    CHECK_EQ(rows[2], 0);
}

/* The distributions of two draft models are averaged: token 4 gets (0.3 + 0.8) / 2. tree_add takes
 * the greater probability when lookup names a known child. */
TEST(equal_tokens_of_two_drafts_are_one_child)
{
    struct bed b;
    open_bed(&b, "{\"method\":\"tree\",\"model\":[\"m\",\"n\"]}", 1);
    struct draw_result one = {.token = 3,
                              .logprob = logf(0.6f),
                              .n_top = 2,
                              .top_ids = {3, 4},
                              .top_logprobs = {logf(0.6f), logf(0.3f)}};
    struct draw_result two = {.token = 4,
                              .logprob = logf(0.8f),
                              .n_top = 3,
                              .top_ids = {4, 9, 3},
                              .top_logprobs = {logf(0.8f), logf(0.15f), logf(0.05f)}};
    const struct draw_result *both[] = {&one, &two};
    struct spec_tree *t = b.g.trees;
    tree_expand(t, 0, both, 2, 8);
    CHECK_EQ(t->n_nodes, 4);
    CHECK_EQ(t->nodes[1].token, 4);
    CHECK_NEAR(expf(t->nodes[1].logp), 0.55, 1e-4);
    CHECK_EQ(t->nodes[2].token, 3);
    CHECK_NEAR(expf(t->nodes[2].logp), 0.325, 1e-4);
    CHECK_EQ(t->nodes[3].token, 9);
    CHECK_EQ(tree_add(t, 0, 9, -0.1f), 3); // lookup proposes it with a greater probability
    CHECK_NEAR(t->nodes[3].logp, -0.1, 1e-6);
    close_bed(&b);
}

/* NaN and -inf from a broken checkpoint must not violate the tree's invariants. */
TEST(nonsense_from_a_draft_model_still_makes_a_tree)
{
    struct bed b;
    open_bed(&b, "{\"method\":\"tree\",\"model\":\"m\"}", 1);
    struct draw_result d = {.token = 3,
                            .logprob = NAN,
                            .n_top = 4,
                            .top_ids = {3, 3, 7, 7},
                            .top_logprobs = {NAN, -INFINITY, -0.5f, NAN}};
    const struct draw_result *one = &d;
    struct spec_tree *t = b.g.trees;
    tree_expand(t, 0, &one, 1, 4);
    b.requests[0].params.temperature = 1.0f;
    tree_expand(t, 0, &one, 1, 4);
    grove_choose(&b.sp, &b.g);
    check_tree(t);
    CHECK(t->n_rows <= 3);
    close_bed(&b);
}

/* Every malformed option is refused by a message that names speculative-config: types,
 * counts, and products of expansions beyond the limit of nodes. */
TEST(trees_are_configured_or_refused_with_a_reason)
{
    static const char *const bad[] = {
        "{\"method\":\"tree\"}",
        "{\"method\":\"tree\",\"model\":[]}",
        "{\"method\":\"tree\",\"model\":[\"a\",3]}",
        "{\"method\":\"tree\",\"model\":[\"a\",\"b\",\"c\",\"d\"]}",
        "{\"method\":\"draft_model\",\"model\":[\"a\",\"b\"]}",
        "{\"method\":\"tree\",\"model\":\"m\",\"expansion\":[]}",
        "{\"method\":\"tree\",\"model\":\"m\",\"expansion\":\"1,1\"}",
        "{\"method\":\"tree\",\"model\":\"m\",\"expansion\":[4,4,4,4]}",
        "{\"method\":\"tree\",\"model\":\"m\",\"expansion\":[1,0]}",
        "{\"method\":\"tree\",\"model\":\"m\",\"expansion\":[1.5]}",
        "{\"method\":\"tree\",\"model\":\"m\",\"expansion\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}",
        "{\"method\":\"tree\",\"model\":\"m\",\"tree_width\":0}",
        "{\"method\":\"tree\",\"model\":\"m\",\"tree_width\":16,\"num_speculative_tokens\":15}",
        "{\"method\":\"tree\",\"model\":\"m\",\"tree_nodes\":-1}",
        "{\"method\":\"tree\",\"model\":\"m\",\"num_speculative_tokens\":16}",
    };
    struct spec *sp = xcalloc(1, sizeof *sp);
    struct err err;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_EQ(spec_init(sp, bad[i], &err), ERR_INVALID);
        CHECK(strstr(err.text, "speculative-config"));
    }
    CHECK_EQ(spec_init(sp,
                       "{\"method\":\"tree\",\"model\":[\"a\",\"b\"],\"expansion\":[2,2],"
                       "\"num_speculative_tokens\":1}",
                       &err),
             OK);
    CHECK_EQ(sp->options.n_models, 2);
    CHECK_EQ(sp->options.k, 1);
    CHECK_EQ(spec_tree_most(sp, 1, 1), 2);
    free(sp);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
