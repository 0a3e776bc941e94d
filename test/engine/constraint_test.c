// SPDX-License-Identifier: Apache-2.0
/* Requests with a grammar on the fake backend: each token is the one that the mask of the text
 * before it gives, whatever happens to the sequence. */
#include "engine/base/clock.h"
#include "engine/base/wire.h"
#include "engine/device/ops.h"
#include "test/engine/bed.h"

/* Ids 0 to 255 are single bytes, 256 and up the words below, and two ids end a text. */
enum { END = 380, OTHER_END = 382, N_WORDS = VOCAB / 32 };

/* A vocabulary whose tokens are known by their text; `without` lists bytes that no token
 * spells. */
static struct grammar_vocab *make_vocab(const char *without)
{
    static const char *const words[] = {"{\"",  "\":",  "true", "ab", "ba",
                                        "\": ", ", \"", "}}",   "12"};
    static char bytes[256];
    static const int32_t ends[] = {END, OTHER_END};
    struct grammar_token tokens[VOCAB] = {{NULL, 0, false}};
    for (int32_t i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        bool known = i != 0 && !strchr(without, i);
        tokens[i] = (struct grammar_token){&bytes[i], known, false};
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        tokens[256 + i] = (struct grammar_token){words[i], strlen(words[i]), false};
    }
    struct grammar_vocab *v = NULL;
    struct err err;
    CHECK_EQ(grammar_vocab_make(tokens, VOCAB, ends, 2, &v, &err), OK);
    return v;
}

/* With a small max_table_bytes, masks are computed when they are needed instead of in advance. */
static struct grammar *compile(const struct grammar_vocab *v, enum grammar_kind kind,
                               const char *text, size_t max_table_bytes)
{
    struct grammar_source source = {.kind = kind, .text = text, .n_bytes = strlen(text)};
    struct grammar_limits limits = {.max_table_bytes = max_table_bytes};
    struct grammar *g = NULL;
    struct err err = {""};
    if (grammar_compile(&source, &limits, v, &g, &err) != OK) {
        CHECK_FAIL("%s: %s", text, err.text);
    }
    return g;
}

/* Sample s of a request, token by token, against the masks of a separate grammar. */
static void check_text(const struct test_request *q, int32_t s, struct grammar *own)
{
    const struct engine_output *o = &q->outputs[s];
    int32_t known[MAX_PROMPT + MAX_OUT], n = q->r.n_prompt;
    memcpy(known, q->prompt, sizeof q->prompt);
    struct grammar_state state = grammar_start(own);
    bool ended = false;
    for (int32_t k = 0; k < o->n_tokens; k++, n++) {
        uint32_t mask[N_WORDS];
        CHECK(!ended);
        CHECK_EQ(grammar_mask(own, state, mask), OK);
        int32_t next = fake_next(known, n, q->r.params.seed + (uint64_t)s, VOCAB);
        CHECK_EQ(q->tokens[s][k], fake_allowed(next, mask, VOCAB));
        known[n] = q->tokens[s][k];
        ended = grammar_is_end(own, known[n]);
        CHECK(ended || grammar_advance_token(own, &state, known[n]) == OK);
    }
    CHECK_EQ(o->finish, ended ? FINISH_STOP : FINISH_LENGTH);
    CHECK(ended || o->n_tokens == q->r.params.max_tokens);
}

struct source {
    enum grammar_kind kind;
    const char *text;
    // bytes of tables that hold the states of each text, but not of all texts; 0: no limit
    size_t little;
};
static const struct source sources[] = {
    {GRAMMAR_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"},\"b\":{"
     "\"type\":\"array\",\"items\":{\"enum\":[\"ab\",\"ba\",12]},\"maxItems\":6}},"
     "\"required\":[\"a\",\"b\"],\"additionalProperties\":false}",
     0},
    {GRAMMAR_REGEX, "(ab|ba){3,40}c", 0},
    {GRAMMAR_REGEX, "a{0,60}", 0},
    {GRAMMAR_GBNF, "root ::= \"12\" (root | \"x\") \"ab\"", 10 << 10},
};
enum { N_SOURCES = sizeof sources / sizeof sources[0] };

/* Three of four requests have a grammar, and those of one source share it. The expected texts come
 * from `own`, compiled without a limit on its tables, so a limit on the shared one must not change
 * anything. `sometimes`: the fourth request has no grammar. */
static void run_mixed(const struct engine_options *o, struct bed *b, bool with_little,
                      bool sometimes)
{
    enum { N = 40 };
    struct grammar_vocab *v = make_vocab("");
    struct grammar *shared[N_SOURCES], *own[N_SOURCES];
    for (int32_t i = 0; i < N_SOURCES; i++) {
        shared[i] =
            compile(v, sources[i].kind, sources[i].text, with_little ? sources[i].little : 0);
        own[i] = compile(v, sources[i].kind, sources[i].text, 0);
    }
    REQUIRE(start(b, o));
    for (int32_t i = 0; i < N; i++) {
        struct test_request *q = make(i, i % 3 * 7, 3 + i * 5 % 60, 12 + i % 5 * 9);
        q->r.params.seed = (uint64_t)i * (uint64_t)i;
        q->r.n = 1 + i % 4;
        if (i % 4 == 3 && sometimes) {
            q->r.grammar = NULL;
        } else {
            q->r.grammar = shared[i / 4 % N_SOURCES];
        }
        q->r.params.ignore_eos = i % 2;
        submit(b, q);
    }
    run(b, N, 60000);
    CHECK_EQ(b->control.n_wrong, 0);
    CHECK(b->control.n_masked > 0);
    for (int32_t i = 0; i < N; i++) {
        for (int32_t s = 0; s < requests[i].r.n; s++) {
            if (requests[i].r.grammar) {
                check_text(&requests[i], s, own[i / 4 % N_SOURCES]);
            } else {
                check_sample(i, s, requests[i].r.params.max_tokens);
            }
        }
    }
    stop(b);
    uint32_t n_emptied = 0;
    for (int32_t i = 0; i < N_SOURCES; i++) {
        n_emptied += grammar_start(shared[i]).epoch - grammar_start(own[i]).epoch;
        grammar_free(shared[i]);
        grammar_free(own[i]);
    }
    CHECK(!with_little || n_emptied > 0);
    grammar_vocab_free(v);
}

/* With plenty of blocks nothing is preempted. n_waited counts passes that started before
 * their masks were there: constrained rows must not make the engine wait for the mask. */
TEST(all_texts_are_in_their_languages)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 16, 400);
    run_mixed(&o, &b, false, true);
    CHECK(b.control.n_waited > 40); // constrained rows do not keep steps from overlapping
}

/* Two nodes, each with one rank. Ranks wait for each other in the sums of a real model; here node 0
 * waits, so that the other one is at most a few steps behind. */
static struct backend_ops paced[2];
static const struct backend_ops *real[2];
static _Atomic int32_t n_paced[2];

static enum status begin_paced(struct backend *be, int32_t slot)
{
    const struct timespec moment = {0, 20000};
    int64_t end = clock_now_ns() + 20 * 1000000000LL;
    int32_t n = ++n_paced[be->rank];
    while (be->rank == 0 && n > n_paced[1] + 2) {
        if (clock_now_ns() > end) {
            return ERR_TIMEOUT;
        }
        nanosleep(&moment, NULL);
    }
    return real[be->rank]->step_begin(be, slot);
}

static enum status open_paced(const struct backend_options *options, struct backend **out,
                              struct err *err, void *arg)
{
    TRY(fake_open(options, out, err, arg));
    int32_t rank = options->rank;
    real[rank] = (*out)->ops;
    paced[rank] = *real[rank];
    paced[rank].step_begin = begin_paced;
    (*out)->ops = &paced[rank];
    return OK;
}

static struct engine_options options_of_node(struct bed *b)
{
    struct engine_options o = options_of(b, 16, 400);
    o.open_backend = open_paced;
    o.tensor_parallel_size = 2;
    return o;
}

/* A node that executes the steps of node 0, on a thread of its own. */
struct follower {
    struct node_place place;
    struct bed b;
    enum status st;
    struct err err;
};

static void *follow(void *arg)
{
    struct follower *f = arg;
    struct engine_options o = options_of_node(&f->b);
    f->st = nodes_open(&f->place, "", &o.nodes, &f->err);
    if (f->st == OK) {
        f->st = engine_open(&o, &f->b.e, &f->err);
    }
    if (f->st == OK) {
        f->st = engine_follow(f->b.e, &f->err);
    }
    engine_close(f->b.e);
    nodes_close(o.nodes);
    return NULL;
}

static struct node_place first_place(void)
{
    struct node_place p = {
        .n_nodes = 2, .leader = "127.0.0.1", .bind = "127.0.0.1", .join_timeout_s = 60};
    struct err err;
    int listener = -1;
    CHECK_EQ(wire_listen(p.bind, 0, &listener, &p.port, &err), OK);
    wire_close(&listener);
    return p;
}

/* Other nodes get the masks after the pass that waits for them, and issue the same draws. */
TEST(another_node_issues_the_same_draws)
{
    struct follower f = {.place = first_place()};
    struct bed b = {0};
    struct engine_options o = options_of_node(&b);
    struct err err;
    struct node_place here = f.place;
    pthread_t thread;
    f.place.node = 1;
    REQUIRE(pthread_create(&thread, NULL, follow, &f) == 0);
    CHECK_EQ(nodes_open(&here, "", &o.nodes, &err), OK);
    run_mixed(&o, &b, false, true);
    nodes_close(o.nodes);
    pthread_join(thread, NULL);
    if (f.st != OK) {
        CHECK_FAIL("the other node: %s", f.err.text);
    }
    CHECK_EQ(f.b.control.n_wrong, 0);
    CHECK_EQ(f.b.control.n_masked, b.control.n_masked);
    CHECK_EQ(f.b.control.n_waited, b.control.n_waited);
    CHECK(f.b.control.n_waited > 40);
}

/* 14 blocks for 12 sequences: sequences are preempted and recomputed, so that grammar
 * states must be restored to the right place. */
TEST(preemption_and_chunks_change_nothing)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 16, 14);
    o.max_num_batched_tokens = 24;
    o.max_num_seqs = 12;
    o.max_model_len = 200;
    run_mixed(&o, &b, false, true);
}

/* Lookup copies text of the prompt, which the grammar often forbids; drafts must be cut
 * where they leave the language, and some must still be accepted. */
TEST(drafts_of_lookup_stay_inside_the_grammar)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 16, 60);
    o.speculative_config = "{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"fixed\":true,"
                           "\"prompt_lookup_min\":1}";
    run_mixed(&o, &b, false, true);
    int64_t accepted = 0;
    for (int32_t i = 0; i < 40; i++) {
        if (requests[i].r.grammar) {
            accepted += requests[i].r.n_accepted;
        }
    }
    CHECK(accepted > 0);
}

/* Tables that are too small for these grammars are emptied and rebuilt while requests hold states
 * in them. The epoch counts that; it must have moved. */
TEST(tables_that_are_emptied_change_nothing)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 16, 400);
    run_mixed(&o, &b, true, false);
}

/* A grammar with one token at each place: all drafts are right for every proposer, and draft models
 * are not run. */
static void run_forced(const char *speculative, int64_t most_wrong)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 16, 100);
    struct grammar_vocab *v = make_vocab("");
    struct grammar *g = compile(v, GRAMMAR_REGEX, "[xy]zwvutsrq(x|pon)mlkjihg", 0);
    o.speculative_config = speculative;
    REQUIRE(start(&b, &o));
    struct test_request *q = make(0, 0, 5, 40);
    q->r.grammar = g;
    submit(&b, q);
    run(&b, 1, 500);
    CHECK_EQ(q->outputs[0].finish, FINISH_STOP);
    CHECK_EQ(q->tokens[0][3], 'v');
    CHECK(q->r.n_accepted >= 10);
    CHECK(q->r.n_drafts - q->r.n_accepted <= most_wrong); // wrong at the choices and the end
    stop(&b);
    grammar_free(g);
    grammar_vocab_free(v);
}

/* At most two tokens are possible at the first position and at the branch, one elsewhere. The
 * limits on wrong drafts grow with the number of drafts a method proposes at such places. */
TEST(forced_text_is_drafted)
{
    run_forced("{\"method\":\"ngram\",\"num_speculative_tokens\":5,\"fixed\":true}", 0);
    run_forced("{\"method\":\"draft_model\",\"model\":\"test/golden/llama-3\","
               "\"num_speculative_tokens\":5,\"fixed\":true}",
               5);
    run_forced("{\"method\":\"tree\",\"model\":\"test/golden/llama-3\","
               "\"num_speculative_tokens\":5,\"fixed\":true,\"tree_nodes\":10}",
               25);
}

/* Drafts are masked along their own paths, so that no draft is lost to the grammar: before masking
 * a third of them is wrong. */
static void check_drafts(void)
{
    int64_t n[2] = {0}, right[2] = {0};
    for (int32_t i = 0; i < 40; i++) {
        bool free = !requests[i].r.grammar;
        n[free] += requests[i].r.n_drafts;
        right[free] += requests[i].r.n_accepted;
    }
    CHECK(n[0] > 100 && n[1] > 0);
    CHECK(right[0] * 2 > n[0]);
}

/* A draft model's tokens are masked on the device along its own path; `perfect` is off, so
 * at least half of the drafts being accepted shows that the mask is applied while
 * drafting. */
TEST(drafts_of_the_device_stay_inside_the_grammar)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 16, 200);
    o.speculative_config = "{\"method\":\"draft_model\",\"model\":\"test/golden/llama-3\","
                           "\"num_speculative_tokens\":3,\"fixed\":true}";
    run_mixed(&o, &b, false, true);
    check_drafts();
}

/* Fixed combs (one branch a level), fans, trees grown by probability, and lookup beside a
 * tree: each branch needs a grammar state of its own. */
TEST(combs_and_grown_trees_stay_inside_the_grammar)
{
#define TREE "{\"method\":\"tree\",\"model\":\"test/golden/llama-3\",\"num_speculative_tokens\":3"
    static const char *const configs[] = {
        TREE ",\"fixed\":true,\"expansion\":[1,1,1]}",
        TREE ",\"fixed\":true,\"expansion\":[3,2,1]}",
        TREE ",\"fixed\":true,\"tree_width\":3,\"tree_nodes\":12}",
        TREE ",\"fixed\":true,\"prompt_lookup_max\":3}",
    };
#undef TREE
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        struct bed b = {0};
        struct engine_options o = options_of(&b, 16, 200);
        o.speculative_config = configs[i];
        run_mixed(&o, &b, false, true);
        int64_t n = 0;
        for (int32_t k = 0; k < 40; k++) {
            if (requests[k].r.grammar) {
                n += requests[k].r.n_accepted;
            }
        }
        CHECK(n > 0);
    }
}

/* Text up to the marker (one token, or spelled out); after it the grammar applies from its start.
 */
static void run_after(const char *speculative)
{
    enum { N = 24, AFTER = 300, MARK_3 = 93, MARK_5 = 155, MARK_6 = 186 };
    uint32_t text[(VOCAB + 31) / 32];
    struct bed b = {0};
    struct engine_options o = options_of(&b, 16, 40);
    struct grammar_vocab *v = make_vocab("");
    const struct source *source = &sources[1];
    struct grammar *g = compile(v, source->kind, source->text, 0);
    struct grammar *own = compile(v, source->kind, source->text, 0);
    o.speculative_config = speculative;
    grammar_mask_text(v, text);
    REQUIRE(start(&b, &o));
    for (int32_t i = 0; i < N; i++) {
        struct test_request *q = make(i, i * 3, 4 + i, 60);
        q->r.params.seed = (uint64_t)i * 7;
        q->r.grammar = g;
        q->r.grammar_after = "\x5d\x9b"; // without end ids the fake draws these for 3 and 5
        q->r.grammar_after_id = i % 2 ? MARK_6 : AFTER;
        submit(&b, q);
    }
    run(&b, N, 60000);
    CHECK_EQ(b.control.n_wrong, 0);
    int32_t n_begun = 0;
    for (int32_t i = 0; i < N; i++) {
        const struct test_request *q = &requests[i];
        const int32_t *t = q->tokens[0], n = q->outputs[0].n_tokens;
        int32_t known[MAX_PROMPT + MAX_OUT], first = 0;
        bool begun = false;
        memcpy(known, q->prompt, sizeof q->prompt);
        for (; first < n && !begun; first++) {
            int32_t free = fake_next(known, q->r.n_prompt + first, q->r.params.seed, VOCAB);
            CHECK_EQ(t[first], fake_allowed(free, text, VOCAB));
            known[q->r.n_prompt + first] = t[first];
            begun = t[first] == q->r.grammar_after_id ||
                    (first > 0 && t[first - 1] == MARK_3 && t[first] == MARK_5);
        }
        n_begun += begun;
        struct grammar_state state = grammar_start(own);
        for (int32_t k = first; k < n; k++) {
            bool end = grammar_is_end(own, t[k]);
            CHECK(end ? grammar_may_end(own, state) && k == n - 1
                      : grammar_advance_token(own, &state, t[k]) == OK);
        }
        CHECK(begun || q->outputs[0].finish == FINISH_LENGTH);
    }
    CHECK(n_begun > N / 3);
    stop(&b);
    grammar_free(g);
    grammar_free(own);
    grammar_vocab_free(v);
}

/* The marker is either one special id (300) or two tokens that spell it; the text before it may be
 * any, but does not end the answer. */
TEST(a_grammar_may_begin_after_a_marker)
{
    run_after(NULL);
    run_after("{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"fixed\":true,"
              "\"prompt_lookup_min\":1}");
}

/* No token of this vocabulary spells z: after "ab" nothing is allowed. The request fails
 * with a message, and its neighbour is answered as if alone. */
TEST(where_nothing_is_allowed_the_request_ends)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 16, 100);
    struct grammar_vocab *v = make_vocab("z");
    struct grammar *g = compile(v, GRAMMAR_REGEX, "abz", 0);
    REQUIRE(start(&b, &o));
    struct test_request *q = make(0, 0, 5, 20);
    q->r.grammar = g;
    q->r.n = 2;
    submit(&b, q);
    submit(&b, make(1, 0, 5, 20));
    run(&b, 2, 500);
    CHECK_EQ(q->outputs[0].finish, FINISH_ERROR);
    CHECK_EQ(q->outputs[1].finish, FINISH_ERROR);
    CHECK(q->outputs[0].n_tokens <= 2);
    CHECK(strstr(q->r.error_text, "allows no token") != NULL);
    check_answer(1);
    stop(&b);
    grammar_free(g);
    grammar_vocab_free(v);
}

/* min_tokens forbids end tokens, but after "ab" the grammar allows nothing else. Without
 * precedence for the grammar the mask would be empty. */
TEST(min_tokens_yield_to_a_text_that_is_complete)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 16, 100);
    static const int32_t stops[] = {END, OTHER_END};
    struct grammar_vocab *v = make_vocab("");
    struct grammar *g = compile(v, GRAMMAR_REGEX, "ab", 0);
    struct grammar *own = compile(v, GRAMMAR_REGEX, "ab", 0);
    REQUIRE(start(&b, &o));
    struct test_request *q = make(0, 0, 5, 20);
    q->r.grammar = g;
    q->r.params.min_tokens = 10;
    q->r.params.stop_ids = stops;
    q->r.params.n_stop_ids = 2;
    submit(&b, q);
    run(&b, 1, 500);
    check_text(q, 0, own);
    CHECK_EQ(q->outputs[0].finish, FINISH_STOP);
    stop(&b);
    grammar_free(g);
    grammar_free(own);
    grammar_vocab_free(v);
}

/* Masks have one bit for each id, so a grammar compiled for one token cannot constrain a
 * model with 384. */
TEST(a_grammar_of_another_vocabulary_is_refused)
{
    struct bed b = {0};
    struct engine_options o = options_of(&b, 16, 100);
    const struct grammar_token token = {"a", 1, false};
    const int32_t end = 1;
    struct grammar_vocab *v;
    struct err err;
    REQUIRE(grammar_vocab_make(&token, 1, &end, 0, &v, &err) == OK);
    struct grammar *g = compile(v, GRAMMAR_REGEX, "a", 0);
    REQUIRE(start(&b, &o));
    struct test_request *q = make(0, 0, 5, 20);
    q->r.grammar = g;
    CHECK_EQ(engine_submit(b.e, &q->r, &err), ERR_INVALID);
    stop(&b);
    grammar_free(g);
    grammar_vocab_free(v);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
