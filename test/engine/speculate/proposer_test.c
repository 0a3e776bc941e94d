// SPDX-License-Identifier: Apache-2.0
/* Proposers without a scheduler: what they propose for given sequences, and when they propose
 * nothing. */
#include "engine/speculate/spec.h"
#include "test/check.h"

#include <string.h>

enum { N = 3, MAX_LEN = 64 };

struct bed {
    struct spec sp;
    struct engine_request requests[N];
    struct engine_output outputs[N];
    struct sequence seqs[N];
    struct spec_candidate candidates[N];
    struct spec_view v;
    int32_t tokens[N][MAX_LEN];
};

/* N sequences that decode, each with the prompt and one generated token. */
static void open_bed(struct bed *b, const char *config, const int32_t *prompt, int32_t n_prompt,
                     int32_t generated)
{
    struct err err;
    memset(b, 0, sizeof *b);
    CHECK_EQ(spec_init(&b->sp, config, &err), OK);
    spec_open(&b->sp, MAX_LEN);
    b->v = (struct spec_view){
        .n = N, .seqs = b->candidates, .n_running = N, .max_rows = 16, .max_len = MAX_LEN};
    for (int32_t i = 0; i < N; i++) {
        b->tokens[i][0] = generated;
        b->outputs[i].tokens = b->tokens[i];
        b->requests[i] = (struct engine_request){
            .prompt = prompt, .n_prompt = n_prompt, .params = sampling_params_default()};
        b->seqs[i] = (struct sequence){.request = &b->requests[i],
                                       .output = &b->outputs[i],
                                       .state = SEQ_RUNNING,
                                       .n_prompt = n_prompt,
                                       .n_known = n_prompt + 1,
                                       .n_computed = n_prompt,
                                       .max_tokens = 40,
                                       .trust.doubt = -1.0f};
        b->candidates[i] = (struct spec_candidate){.seq = &b->seqs[i],
                                                   .proposal = &b->seqs[i].proposal,
                                                   .trust = &b->seqs[i].trust,
                                                   .ready = true,
                                                   .lag = 1};
    }
}

static void propose(struct bed *b)
{
    spec_consider(&b->sp, &b->v);
    spec_propose(&b->sp, &b->v);
}

static void close_bed(struct bed *b)
{
    spec_close(&b->sp);
}

static const int32_t repeats[] = {5, 6, 7, 8, 9, 6, 7, 3, 5, 6};

#define NGRAM "{\"method\":\"ngram\",\"num_speculative_tokens\":3,\"fixed\":true}"
#define DRAFT "{\"method\":\"draft_model\",\"model\":\"m\",\"num_speculative_tokens\":3}"

TEST(lookup_takes_the_longest_suffix_and_of_equal_ones_the_latest)
{
    static const int32_t known[] = {1, 2, 3, 9, 2, 3, 8, 2, 3, 7, 1, 2, 3};
    int32_t out[MAX_DRAFTS], n = sizeof known / sizeof known[0];
    CHECK_EQ(ngram_find(known, n, 2, 5, 2, out), 2); // 1 2 3 at the beginning
    CHECK(out[0] == 9 && out[1] == 2);
    CHECK_EQ(ngram_find(known, n, 2, 2, 4, out), 4); // 2 3 before the 7
    CHECK(out[0] == 7 && out[3] == 3);
    CHECK_EQ(ngram_find(known, n, 4, 5, 4, out), 0);
    CHECK_EQ(ngram_find(known, 1, 1, 5, 4, out), 0);
    CHECK_EQ(ngram_find(known, 0, 1, 5, 4, out), 0);
}

TEST(lookup_sees_prompt_and_output_as_one)
{
    struct bed b;
    open_bed(&b, NGRAM, repeats, 10, 7); // ... 5 6 | 7, which were followed by 8 9 6
    b.candidates[1].ready = false;       // its newest token is not known
    b.requests[2].params.num_speculative_tokens = 1;
    propose(&b);
    static const int32_t want[] = {8, 9, 6};
    CHECK_EQ(b.seqs[0].proposal.n_drafts, 3);
    CHECK_MEM(b.seqs[0].proposal.drafts, want, sizeof want);
    CHECK(!b.seqs[0].proposal.on_device);
    CHECK_EQ(b.seqs[1].proposal.n_drafts, 0);
    CHECK(b.seqs[1].proposal.waits_for_token);
    CHECK_EQ(b.seqs[2].proposal.n_drafts, 1);
    CHECK_EQ(spec_passes(&b.sp), SPEC_NO_PASSES);
    close_bed(&b);
}

TEST(a_failed_lookup_is_repeated_soon)
{
    struct bed b;
    open_bed(&b, NGRAM, repeats, 10, 50);
    propose(&b);
    CHECK_EQ(b.seqs[0].proposal.n_drafts, 0);
    CHECK_EQ(b.seqs[0].trust.pause, 2);
    b.tokens[0][0] = 7;
    for (int32_t turn = 0; turn < 2; turn++) {
        propose(&b);
        CHECK_EQ(b.seqs[0].proposal.n_drafts, 0);
        CHECK(!b.seqs[0].proposal.waits_for_token);
    }
    propose(&b);
    CHECK_EQ(b.seqs[0].proposal.n_drafts, 3);
    close_bed(&b);
}

TEST(while_too_many_run_nothing_is_proposed_or_fed)
{
    struct bed b;
    open_bed(&b, DRAFT, repeats, 10, 7);
    propose(&b);
    CHECK_EQ(spec_passes(&b.sp), SPEC_CHAIN_PASSES);
    CHECK_EQ(b.seqs[0].proposal.n_drafts, 3);
    b.v.n_running = b.sp.options.max_batch + 1;
    propose(&b);
    CHECK_EQ(spec_passes(&b.sp), SPEC_NO_PASSES);
    CHECK_EQ(b.seqs[0].proposal.n_drafts, 0);
    CHECK_EQ(b.seqs[0].trust.pause, 0); // finding nothing to propose does not count against it
    close_bed(&b);
}

TEST(draft_models_draft_only_where_they_can_catch_up)
{
    struct bed b;
    open_bed(&b, DRAFT, repeats, 10, 7);
    b.candidates[0].lag = -1; // another sequence is computing one of its blocks
    b.candidates[1].lag = 10;
    b.candidates[2].lag = 7; // fits in the 16 rows of the first pass
    propose(&b);
    CHECK_EQ(b.seqs[0].proposal.n_drafts, 0);
    CHECK_EQ(b.seqs[1].proposal.n_drafts, 3);
    CHECK(b.seqs[1].proposal.on_device);
    CHECK_EQ(b.seqs[2].proposal.n_drafts, 0);
    b.candidates[2].lag = 6;
    propose(&b);
    CHECK_EQ(b.seqs[2].proposal.n_drafts, 3);
    close_bed(&b);
}

/* A fourth proposer, outside the table: the minimum that a proposer must provide. */
static void propose_one(struct spec *sp, const struct spec_view *v)
{
    (void)sp;
    for (int32_t i = 0; i < v->n; i++) {
        v->seqs[i].proposal->n_drafts = v->seqs[i].ready && v->seqs[i].depth > 0;
    }
}

static int32_t n_observed;

static void observe_one(struct spec *sp, const struct spec_trial *t)
{
    (void)sp;
    n_observed += t->n_right;
}

TEST(a_row_is_all_that_a_proposer_needs)
{
    static const struct proposer row = {
        .name = "one", .propose = propose_one, .observe = observe_one};
    struct bed b;
    open_bed(&b, NGRAM, repeats, 10, 50);
    spec_close(&b.sp);
    b.sp.proposer = &row;
    spec_open(&b.sp, MAX_LEN);
    propose(&b);
    CHECK_EQ(b.seqs[2].proposal.n_drafts, 1);
    CHECK_EQ(spec_passes(&b.sp), SPEC_NO_PASSES);
    CHECK(!spec_has_trees(&b.sp));
    spec_observe(&b.sp,
                 &(struct spec_trial){
                     .seq = &b.seqs[0], .trust = &b.seqs[0].trust, .n_drafts = 1, .n_right = 1});
    CHECK_EQ(n_observed, 1);
    CHECK_EQ(b.sp.learnt.n_accepted, 1);
    close_bed(&b);
}

/* ---- costs -------------------------------------------------------------------------------- */

TEST(cost_curves_never_fall_and_the_round_trip_is_not_a_pass)
{
    struct spec_costs c = {.target = {4, 3, 5, 6, 7, 8, 9, 0}, .draft = {2, 2, 2, 2, 2, 2, 2, 2}};
    spec_costs_settle(
        &c, &(struct spec_timed_steps){.chain = 5.0f, .n_passes = 4, .with_top_ids = 2.5f}, 2);
    CHECK_EQ(c.target[0], 3.0f);  // more rows never cost less
    CHECK_EQ(c.target[7], 18.0f); // a size that did not fit: twice the cost of the one before
    CHECK_EQ(c.round_trip, 1.0f); // a step of one pass costs 2, each further pass 1
    CHECK_EQ(c.top_ids, 0.5f);
    CHECK_EQ(c.draft[0], 2.0f); // 1 per pass, with two models
    CHECK_EQ(spec_cost(c.target, 1), 3.0f);
    CHECK_EQ(spec_cost(c.target, 3), 4.0f); // between 2 and 4 rows
    CHECK_EQ(spec_cost(c.target, 256), 36.0f);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
