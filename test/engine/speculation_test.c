// SPDX-License-Identifier: Apache-2.0
/* Speculation of the whole engine on the fake backend: what it gains and costs, and which shape of
 * tree is chosen. Trees themselves: tree_test.c. */
#include "test/engine/bed.h"

/* Accepted drafts are counted by position, too; both counts must agree. */
TEST(accepting_all_drafts_gives_a_bonus_token)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 200);
    o.speculative_config = "{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"fixed\":true,"
                           "\"prompt_lookup_min\":1}";
    REQUIRE(start(&b, &o));
    submit(&b, make(0, 0, 10, 100));
    run(&b, 1, 400);
    struct engine_stats s;
    engine_stats(b.e, &s);
    int64_t sum = 0;
    for (int32_t i = 0; i < 16; i++) {
        sum += s.spec_accepted_per_pos[i];
    }
    CHECK_EQ(sum, s.spec_accepted_tokens);
    CHECK(s.spec_drafts > 0);
    stop(&b);
}

/* 40 requests of 120 tokens, one at a time. Returns tokens per step after the prompts. */
static double synthetic_rate(const char *config)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 4, 200);
    o.max_num_seqs = 1;
    o.speculative_config = config;
    o.synthetic = true;
    if (!start(&b, &o)) {
        return 0.0;
    }
    for (int32_t i = 0; i < 40; i++) {
        struct test_request *q = make(i, 7 * i, 10, 120);
        q->r.params.seed = (uint64_t)i;
        submit(&b, q);
    }
    run(&b, 40, 10000);
    struct engine_stats s;
    engine_stats(b.e, &s);
    CHECK_EQ(s.generated_tokens, 40 * 120);
    stop(&b);
    return (double)(40 * 119) / (double)(s.n_steps - 40);
}

#define SYNTHETIC                                                                                  \
    "{\"method\":\"ngram\",\"num_speculative_tokens\":1,\"fixed\":true,"                           \
    "\"rejection_sample_method\":\"synthetic\",\"synthetic_acceptance_rate\":0.8"

TEST(with_synthetic_acceptance_the_bonus_token_is_all_the_gain)
{
    CHECK_NEAR(synthetic_rate(SYNTHETIC "}"), 1.8, 0.04);
    CHECK_NEAR(synthetic_rate(SYNTHETIC ",\"synthetic_bonus\":false}"), 1.0, 0.0);
}

/* Synthetic acceptance gives wrong text on purpose, so it is only for dummy weights. */
TEST(synthetic_acceptance_is_refused_where_text_is_served)
{
    struct bed b = {0};
    struct err err;
    struct engine_options o = options_of(&b, 4, 200);
    o.speculative_config = SYNTHETIC "}";
    CHECK(engine_open(&o, &b.e, &err) == ERR_INVALID && strstr(err.text, "dummy"));
    o.synthetic = true;
    o.speculative_config = "{\"method\":\"ngram\",\"rejection_sample_method\":\"synthetic\"}";
    CHECK(engine_open(&o, &b.e, &err) == ERR_INVALID && strstr(err.text, "from 0 to 1"));
    o.speculative_config = "{\"method\":\"ngram\",\"rejection_sample_method\":\"probabilistic\"}";
    CHECK(engine_open(&o, &b.e, &err) == ERR_UNSUPPORTED && strstr(err.text, "draft_model"));
    o.speculative_config = "{\"method\":\"ngram\",\"rejection_sample_method\":\"typical\"}";
    CHECK(engine_open(&o, &b.e, &err) == ERR_UNSUPPORTED && strstr(err.text, "typical"));
    o.speculative_config = "{\"method\":\"ngram\",\"synthetic_acceptance_rate\":0.5}";
    CHECK(engine_open(&o, &b.e, &err) == ERR_INVALID);
}

/* The cost of 8 requests: turns, steps, rows, and passes of a draft model. */
struct cost {
    int32_t turns, draft_passes;
    int64_t n_steps, n_rows, n_drafts;
};

/* The cost of eight requests that ask for this many drafts (-1: as configured). */
static struct cost cost_of(const char *config, int32_t asked)
{
    struct bed b = {0};
    struct cost c = {0};
    struct engine_options o = options_of(&b, 4, 400);
    o.max_num_seqs = 4;
    o.speculative_config = config;
    if (!start(&b, &o)) {
        return c;
    }
    for (int32_t i = 0; i < 8; i++) {
        struct test_request *q = make(i, 31 * i, 12 + i, 60);
        q->r.params.num_speculative_tokens = asked;
        submit(&b, q);
    }
    for (; c.turns < 1000 && b.n_done < 8; c.turns++) {
        engine_turn(b.e);
        const struct planned_step *ps = &b.e->steps[(b.e->next_slot + N_STEPS - 1) % N_STEPS];
        c.draft_passes += ps->step.n_draft_passes;
        engine_drain(b.e, on_event, &b);
    }
    struct engine_stats s;
    engine_stats(b.e, &s);
    c.n_steps = s.n_steps;
    c.n_rows = s.n_rows;
    c.n_drafts = s.spec_draft_tokens;
    stop(&b);
    return c;
}

/* A draft model's passes must not run either, not even to fill its cache. */
TEST(speculation_that_a_request_turns_off_costs_nothing)
{
    static const char *const configs[] = {
        "{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"fixed\":true,\"prompt_lookup_min\":"
        "1}",
        "{\"method\":\"draft_model\",\"model\":\"test/golden/llama-tied\","
        "\"num_speculative_tokens\":4,\"fixed\":true}"};
    struct cost plain = cost_of(NULL, -1);
    for (int32_t i = 0; i < 2; i++) {
        struct cost off = cost_of(configs[i], 0), on = cost_of(configs[i], -1);
        CHECK(off.turns == plain.turns && off.n_steps == plain.n_steps);
        CHECK(off.n_rows == plain.n_rows && off.n_drafts == 0 && off.draft_passes == 0);
        CHECK(on.n_rows > plain.n_rows && on.n_drafts > 0); // speculation shows in these counts
        CHECK((on.draft_passes > 0) == (i == 1));
        struct cost one = cost_of(configs[i], 1), many = cost_of(configs[i], 9);
        CHECK(one.n_drafts > 0 && one.n_drafts < on.n_drafts); // a request may lower it
        CHECK_EQ(many.n_drafts, on.n_drafts);                  // and never raise it
    }
}

/* How many steps with a configured tree drafted a chain, a comb, or a tree grown by the host. */
struct shapes {
    int32_t chains, combs, grown;
};

/* Costs are set instead of measured. The answer must be right with every shape. */
static struct shapes shapes_of(bool perfect, float grow_seconds)
{
    struct bed b = {.control = {.perfect = perfect}};
    struct engine_options o = options_of(&b, 4, 200);
    struct shapes n = {0};
    o.speculative_config = "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\"}";
    if (!start(&b, &o)) {
        CHECK_FAIL("no engine");
        return n;
    }
    for (int32_t i = 0; i < SPEC_COST_POINTS; i++) { // 32 rows cost twice as much as one
        b.e->spec.costs.target[i] = 1.0f + (float)((1 << i) - 1) / 31.0f;
        b.e->spec.costs.draft[i] = 0.001f;
    }
    struct test_request *q = make(0, 0, 10, 120);
    submit(&b, q);
    for (int32_t turn = 0; turn < 1000 && b.n_done < 1; turn++) {
        b.e->spec.learnt.grow_seconds = grow_seconds;
        int32_t steps = b.control.n_steps;
        engine_turn(b.e);
        const struct planned_step *ps = &b.e->steps[(b.e->next_slot + N_STEPS - 1) % N_STEPS];
        if (b.control.n_steps > steps && ps->step.n_draft_passes > 1) {
            n.chains += ps->grove.n_trees == 0;
            n.combs += ps->grove.n_trees > 0;
            CHECK_EQ(b.control.n_steps, steps + 1); // one submission, without reading drafts
        } else {
            n.grown += ps->grove.n_trees > 0 && b.control.n_steps > steps + 1;
        }
        engine_drain(b.e, on_event, &b);
    }
    int32_t known[140];
    memcpy(known, q->prompt, 10 * sizeof *known);
    for (int32_t i = 0; i < 120; i++) {
        known[10 + i] = fake_next(known, 10 + i, 0, VOCAB);
        CHECK_EQ(q->tokens[0][i], known[10 + i]);
    }
    stop(&b);
    return n;
}

/* The measured times decide between shapes, so the test sets them. */
TEST(a_tree_is_a_chain_a_comb_or_grown_by_what_is_measured)
{
    struct shapes sure = shapes_of(true, 0.1f); // siblings of the first guess gain nothing
    CHECK(sure.chains > 12 && sure.combs + sure.grown < 10);
    struct shapes costly = shapes_of(false, 10.0f); // a decision of the host costs ten steps
    CHECK(costly.combs > 20 && costly.grown == 0);
    struct shapes cheap = shapes_of(false, 0.0f);
    CHECK(cheap.grown > 20 && cheap.combs + cheap.chains < 10);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
