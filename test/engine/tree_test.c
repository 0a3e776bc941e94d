// SPDX-License-Identifier: Apache-2.0
/* The promises of token trees, one per test, on the fake backend. */
#include "engine/base/minmax.h"
#include "engine/engine_state.h"
#include "test/check.h"
#include "test/engine/count_malloc.h"
#include "test/engine/fake_backend.h"

enum { VOCAB = 384, MAX_PROMPT = 200, MAX_OUT = 128, N_REQUESTS = 8 };

/* One draft model, and two that vote on each tree. */
#define TREE(more) "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\"," more "}"
#define TWO(more)                                                                                  \
    "{\"method\":\"tree\",\"model\":[\"test/golden/llama-tied\",\"test/golden/llama-3\"]," more "}"

struct test_request {
    struct engine_request r;
    struct engine_output outputs[4];
    int32_t prompt[MAX_PROMPT], tokens[4][MAX_OUT];
};

struct bed {
    struct fake_control control;
    struct engine *e;
    struct engine_options o;
    struct test_request requests[N_REQUESTS];
    int32_t n_done;
};

/* A bed in static memory with perfect drafts; tests that need wrong ones say so. */
static struct bed *start(const char *config, int32_t n_blocks)
{
    static struct bed bed;
    struct bed *b = &bed;
    struct err err;
    *b = (struct bed){.control = {.perfect = true}};
    b->o = (struct engine_options){.model = "test/golden/llama-3",
                                   .load_format = "dummy",
                                   .open_backend = fake_open,
                                   .open_arg = &b->control,
                                   .no_thread = true,
                                   .block_size = 4,
                                   .num_gpu_blocks_override = n_blocks,
                                   .enable_prefix_caching = true,
                                   .enable_chunked_prefill = true,
                                   .max_num_seqs = 8,
                                   .speculative_config = config};
    if (engine_open(&b->o, &b->e, &err) != OK) {
        CHECK_FAIL("open: %s", err.text);
        return NULL;
    }
    b->control.n_wrong = 0;
    return b;
}

static void on_event(struct engine_request *r, void *arg)
{
    struct bed *b = arg;
    b->n_done += r->done;
}

/* Prompts repeat after 50 ids, so lookup has something to find. */
static struct test_request *submit(struct bed *b, int32_t i, int32_t n_prompt, int32_t max_tokens)
{
    struct test_request *q = &b->requests[i];
    struct err err;
    for (int32_t k = 0; k < n_prompt; k++) {
        q->prompt[k] = (7 * i + k) % 50;
    }
    q->r.prompt = q->prompt;
    q->r.n_prompt = n_prompt;
    if (q->r.n == 0) { // unless the test has prepared the request itself
        q->r.params = sampling_params_default();
        q->r.n = 1;
    }
    q->r.params.max_tokens = max_tokens;
    q->r.outputs = q->outputs;
    for (int32_t s = 0; s < 4; s++) {
        q->outputs[s].tokens = q->tokens[s];
    }
    CHECK_EQ(engine_submit(b->e, &q->r, &err), OK);
    return q;
}

static void turn(struct bed *b)
{
    engine_turn(b->e);
    scheduler_check(&b->e->scheduler);
    engine_drain(b->e, on_event, b);
}

/* Takes turns until n requests have ended. Checks all their tokens. */
static void run(struct bed *b, int32_t n)
{
    for (int32_t i = 0; i < 2000 && b->n_done < n; i++) {
        turn(b);
    }
    CHECK_EQ(b->n_done, n);
    CHECK_EQ(b->control.n_wrong, 0);
    for (int32_t i = 0; i < n; i++) {
        const struct test_request *q = &b->requests[i];
        int32_t known[MAX_PROMPT + MAX_OUT], at = q->r.n_prompt;
        memcpy(known, q->prompt, sizeof q->prompt);
        for (int32_t k = 0; k < q->outputs[0].n_tokens; k++) {
            int32_t want = fake_next(known, at, q->r.params.seed, VOCAB);
            CHECK_EQ(q->tokens[0][k], want);
            known[at++] = want;
        }
    }
}

static void stop(struct bed *b)
{
    engine_stop_all(b->e);
    engine_drain(b->e, on_event, b);
    engine_close(b->e);
}

/* With perfect drafts each step emits depth + 1 tokens: 20 steps for 100 tokens after the
 * first, whatever the width of the tree and the number of models. */
TEST(a_draft_that_equals_the_target_gives_depth_plus_one_tokens_a_step)
{
    static const char *const configs[] = {TREE("\"expansion\":[1,1,1,1],\"fixed\":true"),
                                          TREE("\"expansion\":[2,3,1,1],\"fixed\":true"),
                                          TREE("\"num_speculative_tokens\":4,\"fixed\":true"),
                                          TWO("\"num_speculative_tokens\":4,\"fixed\":true")};
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct bed *b = start(configs[i], 100);
        REQUIRE(b);
        submit(b, 0, 10, 1 + 5 * 20);
        run(b, 1);
        CHECK_EQ(b->e->spec.learnt.n_drafts, 20); // one per step
        CHECK_EQ(b->e->spec.learnt.n_accepted, 80);
        CHECK_EQ(b->requests[0].r.n_accepted, 80);
        stop(b);
    }
}

/* A comb is laid out before drafting, so that all its passes are in one submission: its
 * siblings are right where the spine is wrong. With an imperfect draft the accepted path
 * leaves the spine, and its rows must be moved to their final slots. */
TEST(a_comb_is_drafted_in_one_submission)
{
    for (int32_t perfect = 0; perfect < 2; perfect++) {
        struct bed *b = start(TREE("\"num_speculative_tokens\":4,\"tree_width\":3,\"tree_nodes\":9,"
                                   "\"rejection_sample_method\":\"probabilistic\",\"fixed\":true"),
                              100);
        REQUIRE(b);
        b->control.perfect = perfect;
        submit(b, 0, 10, 1 + 5 * 20);
        int32_t n_combs = 0;
        for (int32_t i = 0; i < 2000 && b->n_done < 1; i++) {
            turn(b);
            const struct planned_step *ps = &b->e->steps[(b->e->next_slot + N_STEPS - 1) % N_STEPS];
            for (int32_t k = 0; k < ps->grove.n_trees; k++) {
                const struct spec_tree *t = &ps->grove.trees[k];
                n_combs += t->planned && t->n_rows == 10 && ps->step.n_draft_passes == 4;
            }
        }
        run(b, 1);
        const struct spec *sp = &b->e->spec;
        CHECK(n_combs > 15 && b->control.n_steps == b->e->n_steps); // one submission per step
        CHECK_EQ(sp->learnt.n_accepted + sp->learnt.n_drafts >= 99, true);
        if (perfect) {
            CHECK_EQ(sp->learnt.n_drafts, 20);
            CHECK_EQ(sp->learnt.n_accepted, 80);
        } else { // where the spine is wrong, one of its siblings is right
            CHECK(sp->learnt.n_accepted > sp->learnt.n_drafts && b->control.n_moves > 0);
        }
        stop(b);
    }
}

/* Bookkeeping: tokens emitted = accepted drafts + one for each step, and the histogram of
 * accepted positions sums to the accepted drafts. The /metrics counters come from these. */
TEST(emitted_tokens_are_accepted_ones_and_one_a_step)
{
    struct bed *b =
        start(TREE("\"num_speculative_tokens\":5,\"tree_nodes\":12,\"fixed\":true"), 100);
    REQUIRE(b);
    b->control.perfect = false;
    b->control.garbage = true; // makes accepted paths leave the spine
    submit(b, 0, 10, 100);
    run(b, 1);
    const struct spec *sp = &b->e->spec;
    int64_t sum = 0;
    for (int32_t i = 0; i < MAX_DRAFTS; i++) {
        sum += sp->learnt.accepted_per_pos[i];
    }
    CHECK_EQ(sum, sp->learnt.n_accepted);
    // The first drafts came from the prompt, and the last token alone needs no drafts.
    CHECK(sp->learnt.n_drafts + sp->learnt.n_accepted == 99 ||
          sp->learnt.n_drafts + sp->learnt.n_accepted == 98);
    CHECK(sp->learnt.n_draft_tokens > 6 * sp->learnt.n_drafts &&
          sp->learnt.n_draft_tokens <= 12 * sp->learnt.n_drafts);
    CHECK(2 * sp->learnt.n_accepted > sp->learnt.n_drafts && b->control.n_moves > 0);
    stop(b);
}

/* The draft is right two times out of three, and its second guess is always wrong, so the rest must
 * come from the tree. */
TEST(a_wider_tree_accepts_more_than_a_chain)
{
    int64_t accepted[2];
    for (int32_t i = 0; i < 2; i++) {
        struct bed *b = start(i == 0 ? TREE("\"expansion\":[1,1,1],\"fixed\":true")
                                     : TREE("\"expansion\":[8,8],\"fixed\":true"),
                              100);
        REQUIRE(b);
        b->control.perfect = false;
        b->control.garbage = true; // among 11 ids, in any order
        submit(b, 0, 10, 100);
        run(b, 1);
        accepted[i] = b->e->spec.learnt.n_accepted * 100 / b->e->spec.learnt.n_drafts;
        stop(b);
    }
    CHECK(accepted[1] > accepted[0]);
}

/* For each of the first 12 positions, its token is made the stop id: it is found inside
 * the accepted path, and later accepted tokens are dropped. */
TEST(a_stop_id_inside_the_path_cuts_there)
{
    for (int32_t at = 0; at < 12; at++) {
        struct bed *b = start(TREE("\"expansion\":[1,2,2,1],\"fixed\":true"), 100);
        REQUIRE(b);
        struct test_request *q = &b->requests[0];
        int32_t known[MAX_PROMPT], stop_id = -1, first = 0;
        for (int32_t k = 0; k < 10; k++) {
            known[k] = k;
        }
        for (int32_t k = 0; k <= at; k++) {
            known[10 + k] = stop_id = fake_next(known, 10 + k, 0, VOCAB);
        }
        while (known[10 + first] != stop_id) {
            first++; // the id may occur earlier: then the answer ends there
        }
        q->r.params = sampling_params_default();
        q->r.params.stop_ids = &stop_id;
        q->r.params.n_stop_ids = 1;
        q->r.n = 1;
        submit(b, 0, 10, 50);
        run(b, 1);
        CHECK_EQ(q->outputs[0].n_tokens, first + 1);
        CHECK_EQ(q->outputs[0].finish, FINISH_STOP);
        CHECK_EQ(q->outputs[0].stop_id, stop_id);
        stop(b);
    }
}

/* Depth is limited by the tokens a request may still emit; no work is spent on tokens beyond
 * these. */
TEST(a_tree_never_reaches_beyond_max_tokens)
{
    for (int32_t n = 1; n < 14; n++) {
        struct bed *b = start(TREE("\"num_speculative_tokens\":6,\"fixed\":true"), 100);
        REQUIRE(b);
        submit(b, 0, 9, n);
        run(b, 1);
        CHECK_EQ(b->requests[0].outputs[0].n_tokens, n);
        int64_t n_drafted = b->e->spec.learnt.n_drafts + b->e->spec.learnt.n_accepted;
        CHECK(n_drafted == n - 1 || n_drafted == n - 2); // a single remaining token needs no drafts
        stop(b);
    }
}

/* The server's depth is the maximum; a request that asks for more gets that maximum. */
TEST(a_request_may_only_lower_the_depth)
{
    static const int32_t asked[] = {0, 1, 2, 50}, want[] = {0, 1, 2, 3};
    for (int32_t i = 0; i < 4; i++) {
        struct bed *b = start(TREE("\"expansion\":[2,2,2],\"fixed\":true"), 100);
        REQUIRE(b);
        b->requests[0].r.params = sampling_params_default();
        b->requests[0].r.params.num_speculative_tokens = asked[i];
        b->requests[0].r.n = 1;
        submit(b, 0, 9, 61);
        run(b, 1);
        int64_t steps = b->e->spec.learnt.n_drafts;
        CHECK_EQ(want[i] == 0 ? steps == 0 : b->e->spec.learnt.n_accepted == want[i] * steps, true);
        CHECK_EQ(b->e->spec.learnt.accepted_per_pos[want[i]], 0);
        stop(b);
    }
}

/* Steps mix decode trees, prompt chunks and sequences restored after preemption; 30 blocks
 * of 4 tokens for up to four sequences force all three. */
TEST(prompts_restores_and_trees_share_steps)
{
    struct bed *b =
        start(TREE("\"num_speculative_tokens\":4,\"tree_nodes\":24,\"fixed\":true"), 30);
    REQUIRE(b); // 120 tokens: they preempt each other
    b->control.perfect = false;
    bool mixed = false;
    for (int32_t i = 0; i < 3000 && b->n_done < 4; i++) {
        if (i % 4 == 0 && i < 16) {
            submit(b, i / 4, 15 + 5 * i, 50 - 5 * (i / 4));
        }
        turn(b);
        for (int32_t k = 0; k < N_STEPS; k++) {
            const struct pass *p = &b->e->steps[k].step.pass;
            bool tree = false, chunk = false;
            for (int32_t s = 0; s < p->n_seqs; s++) {
                tree = tree || p->seqs[s].tree;
                chunk = chunk || (!p->seqs[s].tree && p->seqs[s].n_rows > 1);
            }
            mixed = mixed || (tree && chunk);
        }
    }
    run(b, 4);
    CHECK(mixed);
    CHECK(b->e->scheduler.n_preemptions > 0);
    stop(b);
}

/* tree_nodes limits the nodes of all trees of a step together, not of each: otherwise the
 * step would exceed its rows. */
TEST(the_budget_is_that_of_the_step)
{
    struct bed *b =
        start(TREE("\"num_speculative_tokens\":5,\"tree_nodes\":20,\"fixed\":true"), 400);
    REQUIRE(b);
    int32_t most = 0;
    for (int32_t i = 0; i < 6; i++) {
        submit(b, i, 10 + i, 60);
    }
    for (int32_t i = 0; i < 200 && b->n_done < 6; i++) {
        turn(b);
        for (int32_t k = 0; k < N_STEPS; k++) {
            const struct planned_step *ps = &b->e->steps[k];
            int32_t nodes = 0;
            for (int32_t s = 0; s < ps->step.pass.n_seqs; s++) {
                if (ps->step.pass.seqs[s].tree) {
                    nodes += ps->step.pass.seqs[s].n_rows - 1;
                }
            }
            most = greater(nodes, most);
        }
    }
    CHECK_EQ(most, 20);
    run(b, 6);
    stop(b);
}

/* Rejected branches write keys too. The next prompt, which is the first one's text, finds
 * exactly the whole blocks of committed tokens, and its answer continues as the first did. */
TEST(only_what_is_committed_is_found_in_the_cache)
{
    struct bed *b = start(TREE("\"expansion\":[3,3,1],\"fixed\":true"), 200);
    REQUIRE(b);
    b->control.perfect = false;
    submit(b, 0, 21, 60);
    run(b, 1);
    struct test_request *q = &b->requests[1];
    memcpy(q->prompt, b->requests[0].prompt, 21 * sizeof *q->prompt);
    memcpy(q->prompt + 21, b->requests[0].tokens[0], 40 * sizeof *q->prompt);
    int32_t prompt[61];
    memcpy(prompt, q->prompt, sizeof prompt);
    q->r = (struct engine_request){.params = sampling_params_default(), .n = 1};
    struct err err;
    q->r.prompt = prompt;
    q->r.n_prompt = 61;
    q->r.params.max_tokens = 20;
    q->r.outputs = q->outputs;
    q->outputs[0].tokens = q->tokens[0];
    CHECK_EQ(engine_submit(b->e, &q->r, &err), OK);
    for (int32_t i = 0; i < 100 && b->n_done < 2; i++) {
        turn(b);
    }
    CHECK_EQ(q->r.n_cached, 60);
    CHECK_MEM(q->tokens[0], b->requests[0].tokens[0] + 40, 20 * sizeof(int32_t));
    CHECK_EQ(b->control.n_wrong, 0);
    stop(b);
}

/* The draft model's context is shorter than the target's: after 40 tokens the answer goes
 * on without drafts instead of ending. */
TEST(beyond_the_draft_models_context_there_are_no_trees)
{
    struct bed *b = start(TREE("\"num_speculative_tokens\":4,\"fixed\":true"), 100);
    REQUIRE(b);
    b->e->spec.options.draft_max_len = 40;
    submit(b, 0, 10, 100);
    run(b, 1);
    CHECK_EQ(b->requests[0].outputs[0].n_tokens, 100);
    CHECK(b->e->spec.learnt.n_accepted > 15 && b->e->spec.learnt.n_accepted < 30);
    stop(b);
}

/* A tree of 100 nodes needs slots beyond the last position; near max_model_len they must
 * exist, or the tree must shrink. The answer still fills the context to the end. */
TEST(near_the_longest_text_there_is_room_for_a_trees_slots)
{
    struct bed *b = start(TREE("\"num_speculative_tokens\":5,\"tree_nodes\":100,\"tree_width\":8,"
                               "\"fixed\":true"),
                          60);
    REQUIRE(b);
    int32_t longest = b->e->info.max_model_len;
    submit(b, 0, longest - 100, 128);
    run(b, 1);
    CHECK_EQ(b->requests[0].outputs[0].n_tokens, 100);
    CHECK_EQ(b->requests[0].outputs[0].finish, FINISH_LENGTH);
    stop(b);
}

/* Steady state is free of malloc: everything a tree needs is allocated when the engine
 * opens. */
TEST(growing_trees_allocates_nothing)
{
    if (!counts_allocations) {
        SKIP("the sanitizers have their own malloc");
    }
    struct bed *b = start(TWO("\"num_speculative_tokens\":5,\"tree_width\":8,\"tree_nodes\":120,"
                              "\"fixed\":true,\"prompt_lookup_max\":3"),
                          300);
    REQUIRE(b);
    for (int32_t i = 0; i < N_REQUESTS; i++) {
        submit(b, i, 20 + i, 60);
    }
    n_allocations = 0;
    for (int32_t i = 0; i < 300 && b->n_done < N_REQUESTS; i++) {
        counts = true;
        engine_turn(b->e);
        counts = false;
        engine_drain(b->e, on_event, b);
    }
    CHECK_EQ(n_allocations, 0);
    run(b, N_REQUESTS);
    stop(b);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
