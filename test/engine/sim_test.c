// SPDX-License-Identifier: Apache-2.0
/* The engine on the fake backend: thousands of seeded runs of random requests, cancels, stops,
 * deadlines, cleared caches, tiny pools, small steps and faults. Half of them have a model with
 * recurrent state and few snapshots, others one with windows and few pages for them; some have
 * cache hints of several owners. Every right answer is
 * known in advance, and all counts are verified after each turn. SIM_RUNS is the number of runs,
 * SIM_SEED the first seed. */
#include "engine/base/minmax.h"
#include "engine/base/rng.h"
#include "engine/engine_state.h"
#include "test/check.h"
#include "test/engine/fake_backend.h"

enum { MAX_REQUESTS = 12, MAX_N = 4, MAX_OUT = 40, MAX_PROMPT = 60, VOCAB = 384, HIDDEN = 64 };

/* A request and when things happen to it, in turns. */
struct sim_request {
    struct engine_request r;
    struct engine_output outputs[MAX_N];
    int32_t prompt[MAX_PROMPT];
    int32_t tokens[MAX_N][MAX_OUT];
    struct token_logprobs prompt_logprobs[MAX_PROMPT];
    struct cache_hint hints[3];
    float pooled[MAX_PROMPT * HIDDEN];
    int32_t stop_ids[1];
    int32_t submit_turn, cancel_turn, stop_turn, late_turn; // -1: never
    bool submitted, refused, cancelled, stopped, done;
};

/* One run. Everything is drawn from `seed`, so a failure can be repeated with SIM_SEED. */
struct sim {
    uint64_t seed;
    uint32_t n_drawn;
    struct fake_control control;
    struct engine *e;
    struct sim_request requests[MAX_REQUESTS];
    int32_t n_requests, n_done, reset_turn;
    const struct sequence *head; // the first sequence in order, and its progress:
    int32_t head_known, head_computed, head_turns;
};

/* Counts of events, most of them with recurrent states, over all runs. The runs prove something
 * only if every event occurred. */
static struct {
    int64_t copies, keeps, hits, again, preemptions, kept, ended;
    int64_t windows, window_hits, window_again, window_preemptions; // with windows
    int64_t parts;         // of any model: requests whose cached prefix ended inside a block
    int64_t broken, named; // of any model: requests with NaN, and runs that found its layer
} saw;

enum fault { NO_FAULT, DEVICE_IS_LOST, ROWS_ARE_BROKEN };

static uint32_t draw(struct sim *s, uint32_t below)
{
    return rng_bits(s->seed, 0, RNG_TEST, s->n_drawn++) % below;
}

/* A model with recurrent state, short distances between boundaries and few snapshots. */
static void draw_state(struct sim *s, struct engine_options *o)
{
    static const int32_t snapshots[] = {0, -1, 1, 2, 3, 5, 8, 40};
    o->model = "test/engine/hybrid";
    o->state_block = 8 << draw(s, 3);
    o->mamba_block_size = o->state_block * (1 + (int32_t)draw(s, 4));
    o->state_snapshots = snapshots[draw(s, sizeof snapshots / sizeof snapshots[0])];
}

/* A model with windows or chunks, and hardly more pages for them than one sequence can need. Before
 * this, all limits have been drawn. */
static void draw_windows(struct sim *s, struct engine_options *o)
{
    static const struct {
        const char *model;
        int32_t window, chunk;
    } models[] = {{"test/golden/gpt-oss", 24, 0}, {"test/golden-families/llama-4", 0, 32}};
    const int i = (int)draw(s, 2);
    const struct scheduler_limits l = {.max_rows = o->max_num_batched_tokens,
                                       .block_tokens = o->block_size,
                                       .chunked = o->enable_chunked_prefill,
                                       .window = models[i].window,
                                       .window_chunk = models[i].chunk,
                                       .window_rows = 1 + (int32_t)draw(s, 12)};
    o->model = models[i].model;
    o->window_rows = l.window_rows;
    o->window_pages = windows_least_pages(&l) + (int32_t)draw(s, 40) / o->block_size;
}

/* Tiny pools and budgets make preemption and eviction common. */
static struct engine_options options_of(struct sim *s)
{
    static const int32_t tokens[] = {112, 160, 300, 900};
    struct engine_options o = {.model = "test/golden/llama-3",
                               .load_format = "dummy",
                               .open_backend = fake_open,
                               .open_arg = &s->control,
                               .no_thread = true};
    o.block_size = 1 << draw(s, 4);
    o.prefix_match_unit = 1 << draw(s, 4);
    o.prefix_match_unit = lesser(o.prefix_match_unit, o.block_size);
    o.num_gpu_blocks_override = tokens[draw(s, 4)] / o.block_size;
    o.max_num_seqs = 1 + (int32_t)draw(s, 6);
    o.max_num_batched_tokens = o.max_num_seqs + 1 + (int32_t)draw(s, 30);
    o.max_num_mixed_tokens = draw(s, 3) == 0 ? 0 : 1 + (int32_t)draw(s, 20);
    o.max_model_len = MAX_PROMPT + MAX_OUT;
    o.enable_prefix_caching = draw(s, 5) != 0;
    o.enable_chunked_prefill = draw(s, 5) != 0;
    o.prefix_overtake_tokens = draw(s, 3) == 0 ? 0 : 1 << draw(s, 12);
    static const char *const specs[] = {
        NULL,
        "{\"method\":\"ngram\",\"num_speculative_tokens\":3,\"prompt_lookup_min\":1}",
        "{\"method\":\"draft_model\",\"model\":\"test/golden/llama-tied\","
        "\"num_speculative_tokens\":1,\"fixed\":true}",
        "{\"method\":\"draft_model\",\"model\":\"test/golden/llama-tied\","
        "\"num_speculative_tokens\":4,\"disable_by_batch_size\":3}",
        "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\",\"expansion\":[1,1,3,1,1]}",
        "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\",\"expansion\":[3,2,2],"
        "\"num_speculative_tokens\":2,\"fixed\":true}",
        "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\",\"num_speculative_tokens\":4}",
        "{\"method\":\"tree\",\"model\":[\"test/golden/llama-tied\",\"test/golden/llama-3\"],"
        "\"num_speculative_tokens\":5,\"tree_width\":3,\"tree_nodes\":12,\"fixed\":true,"
        "\"prompt_lookup_max\":3,\"prompt_lookup_min\":1}",
        "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\",\"num_speculative_tokens\":5,"
        "\"tree_width\":8,\"tree_nodes\":100,\"fixed\":true}",
        "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\",\"num_speculative_tokens\":4,"
        "\"rejection_sample_method\":\"probabilistic\",\"fixed\":true}",
        "{\"method\":\"tree\",\"model\":\"test/golden/llama-tied\",\"expansion\":[2,1,2],"
        "\"rejection_sample_method\":\"probabilistic\"}"};
    o.speculative_config = specs[draw(s, sizeof specs / sizeof specs[0])];
    s->control.garbage = draw(s, 2) == 0;
    if (draw(s, 2)) {
        draw_state(s, &o);
    } else if (draw(s, 3)) {
        draw_windows(s, &o);
    }
    return o;
}

/* Stop ids among the tokens that the fake backend gives often. */
static void draw_stops(struct sim *s, struct sim_request *q)
{
    struct sampling_params *p = &q->r.params;
    if (draw(s, 3) == 0) {
        q->stop_ids[0] = (int32_t)draw(s, 8);
        p->n_stop_ids = 1;
        p->stop_ids = q->stop_ids;
    }
    if (draw(s, 6) == 0) {
        q->cancel_turn = q->submit_turn + (int32_t)draw(s, 20);
    }
    if (draw(s, 8) == 0) {
        q->stop_turn = q->submit_turn + (int32_t)draw(s, 20);
    }
}

/* Random hints. They affect only the order of blocks in the cache. */
static void draw_hints(struct sim *s, struct sim_request *q)
{
    static const double shares[] = {1, 1, 0.5, 0.1, 0};
    q->r.owner = draw(s, 4);
    q->r.cache_share = shares[draw(s, sizeof shares / sizeof shares[0])];
    q->r.hints = q->hints;
    q->r.n_hints = draw(s, 2) ? (int32_t)draw(s, 4) : 0;
    for (int32_t i = 0; i < q->r.n_hints; i++) {
        struct cache_hint *h = &q->hints[i];
        h->start = (int32_t)draw(s, MAX_PROMPT) - 1;
        if (draw(s, 2)) {
            h->end = INT32_MAX;
        } else {
            h->end = 1 + (int32_t)draw(s, MAX_PROMPT + MAX_OUT);
        }
        if (draw(s, 3)) {
            h->priority = (int32_t)draw(s, MAX_HINT_PRIORITY + 1);
        } else {
            h->priority = 0;
        }
        h->duration_ns = (int64_t)draw(s, 4) * 1000000000;
    }
}

/* Prompts have few different tokens, so that prefixes are shared. */
static void make_request(struct sim *s, int32_t index)
{
    struct sim_request *q = &s->requests[index];
    struct engine_request *r = &q->r;
    *q = (struct sim_request){.cancel_turn = -1, .stop_turn = -1, .late_turn = -1};
    r->n_prompt = 1 + (int32_t)draw(s, MAX_PROMPT - 1);
    // Half of the prompts begin like an earlier one.
    int32_t shared = 0;
    if (index > 0 && draw(s, 2)) {
        shared = (int32_t)draw(s, (uint32_t)r->n_prompt + 1);
    }
    const struct sim_request *like = &s->requests[index > 0 ? draw(s, (uint32_t)index) : 0];
    bool goes_on = index > 0 && draw(s, 3) == 0; // a conversation: the answer, then more
    for (int32_t i = 0; i < r->n_prompt; i++) {
        int32_t at = i - like->r.n_prompt;
        bool answer = goes_on && at >= 0 && at < like->r.params.max_tokens;
        if (answer) {
            q->prompt[i] = fake_next(q->prompt, i, like->r.params.seed, VOCAB);
        } else if ((goes_on || i < shared) && i < like->r.n_prompt) {
            q->prompt[i] = like->prompt[i];
        } else {
            q->prompt[i] = (int32_t)draw(s, 6);
        }
    }
    r->prompt = q->prompt;
    r->params = sampling_params_default();
    r->params.seed = draw(s, 3);
    r->params.max_tokens = 1 + (int32_t)draw(s, MAX_OUT);
    r->n = draw(s, 4) ? 1 : 1 + (int32_t)draw(s, MAX_N);
    r->priority = (int32_t)draw(s, 2);
    r->background = draw(s, 4) == 0;
    r->cache_salt = draw(s, 6) == 0 ? "salt" : NULL;
    q->submit_turn = (int32_t)draw(s, 30);
    draw_stops(s, q);
    draw_hints(s, q);
    if (draw(s, 8) == 0) {
        r->params.prompt_logprobs = true;
        r->prompt_logprobs = q->prompt_logprobs;
        if (!draw(s, 2)) {
            r->params.max_tokens = 0;
        }
    }
    if (draw(s, 10) == 0) {
        static const enum pool_kind kinds[] = {POOL_LAST, POOL_MEAN, POOL_TOKENS};
        r->pool = kinds[draw(s, 3)];
        r->n = 1;
    }
    if (draw(s, 12) == 0) {
        q->late_turn = q->submit_turn + (int32_t)draw(s, 20);
        r->deadline_ns = INT64_MAX;
    }
    r->pooled = q->pooled;
    r->outputs = q->outputs;
    for (int32_t i = 0; i < r->n; i++) {
        q->outputs[i].tokens = q->tokens[i];
    }
}

/* `done` is reported once; after it the owner may free the request. */
static void on_event(struct engine_request *r, void *arg)
{
    struct sim *s = arg;
    struct sim_request *q = (struct sim_request *)r;
    if (r->done) {
        CHECK(!q->done);
        q->done = true;
        s->n_done++;
    }
}

/* The answer is recomputed token by token; it must be equal up to where it ended, whatever
 * happened in between. */
static void check_output(const struct sim_request *q, int32_t sample, bool failed)
{
    const struct engine_output *o = &q->outputs[sample];
    const struct sampling_params *p = &q->r.params;
    int32_t known[MAX_PROMPT + MAX_OUT], n = q->r.n_prompt;
    memcpy(known, q->prompt, sizeof q->prompt);
    int32_t finish = o->finish;
    CHECK(finish != FINISH_NONE);
    bool stopped_by_id = false;
    for (int32_t i = 0; i < o->n_tokens; i++) {
        int32_t want = fake_next(known, n, p->seed + (uint64_t)sample, VOCAB);
        if (o->tokens[i] != want) {
            CHECK_FAIL("sample %d, token %d is %d, expected %d", sample, i, o->tokens[i], want);
            return;
        }
        CHECK(!stopped_by_id);
        known[n++] = want;
        stopped_by_id = p->n_stop_ids && want == p->stop_ids[0];
    }
    CHECK(!stopped_by_id || finish == FINISH_STOP);
    CHECK(finish != FINISH_STOP || stopped_by_id || q->stopped);
    CHECK(finish != FINISH_LENGTH || o->n_tokens == p->max_tokens);
    CHECK(finish != FINISH_CANCELLED || q->cancelled);
    CHECK(finish != FINISH_ERROR || failed);
}

/* Counts of tokens and the reason of the end agree with what was done to the request. */
static void check_request(const struct sim_request *q, bool failed)
{
    const struct engine_request *r = &q->r;
    bool whole = !failed && !q->cancelled && !q->stopped;
    if (q->refused) {
        return;
    }
    if (r->pool != POOL_NONE) {
        for (int32_t i = 0; whole && i < (r->pool == POOL_TOKENS ? r->n_prompt : 1); i++) {
            CHECK(q->pooled[(i + 1) * HIDDEN - 1] == 1.0f); // each pooled row counts 1
        }
        return;
    }
    for (int32_t i = 0; i < r->n; i++) {
        check_output(q, i, failed);
    }
    for (int32_t i = 1; whole && r->params.prompt_logprobs && i < r->n_prompt; i++) {
        CHECK_NEAR(q->prompt_logprobs[i].logprob, fake_logprob(q->prompt, i + 1), 1e-6);
    }
}

/* Whether the request has the token after which rows are broken. */
static bool has_broken(const struct sim *s, const struct sim_request *q)
{
    const int32_t broken = s->control.broken_after;
    bool found = false;
    for (int32_t i = 0; i < q->r.n_prompt; i++) {
        found = found || q->prompt[i] == broken;
    }
    for (int32_t k = 0; k < q->r.n && q->r.pool == POOL_NONE; k++) {
        for (int32_t i = 0; i < q->outputs[k].n_tokens; i++) {
            found = found || q->tokens[k][i] == broken;
        }
    }
    return found;
}

/* A full queue is not a failure: the request is submitted again later. */
static void submit_or_message(struct sim *s, struct sim_request *q, int32_t turn)
{
    struct err err;
    if (!q->submitted && turn >= q->submit_turn) {
        enum status st = engine_submit(s->e, &q->r, &err);
        q->submitted = st != ERR_BUSY;
        q->refused = st != OK && st != ERR_BUSY; // the device is lost
        q->done = q->refused;
        s->n_done += q->refused;
    }
    if (q->submitted && !q->done && turn == q->cancel_turn) {
        q->cancelled = true;
        engine_cancel(s->e, &q->r);
    }
    if (q->submitted && !q->done && turn == q->stop_turn) {
        q->stopped = true;
        engine_stop(s->e, &q->r, 0);
    }
    if (q->submitted && !q->done && turn == q->late_turn) { // the test does not control the clock
        q->r.deadline_ns = s->e->next_deadline_ns = 1;
    }
}

/* The first sequence of the total order makes progress, at the latest when the steps in flight have
 * ended. */
static void watch_head(struct sim *s)
{
    enum { PATIENCE = 2 * N_STEPS }; // 1 has been observed
    const struct sequence *head = s->e->scheduler.order.next;
    if (head == &s->e->scheduler.order || head->state == SEQ_RETIRING || head != s->head ||
        head->n_known != s->head_known || head->n_computed != s->head_computed) {
        s->head = head;
        s->head_known = head->n_known;
        s->head_computed = head->n_computed;
        s->head_turns = 0;
        return;
    }
    s->head_turns++;
    CHECK(s->head_turns < PATIENCE);
}

/* Sometimes lets the clock advance by a second. */
static void pass_time(struct sim *s)
{
    struct retention *r = &s->e->scheduler.holdings.retention;
    int32_t before = r->n_kept;
    saw.kept += before > 0;
    if (draw(s, 8) == 0) {
        retention_tick(r, r->now_ns + 1000000000);
        saw.ended += r->n_kept < before;
    }
}

/* Whoever reads a page that nobody has any more reads nonsense, except that a row that is not a
 * number is computed again before the next step. */
static void poison_free_pages(struct sim *s)
{
    const struct held_windows *w = &s->e->scheduler.holdings.windows;
    struct backend *be = s->e->ranks.rank[0].be;
    for (int32_t page = 0; page < s->e->scheduler.limits.n_pages && !s->e->broken.waits; page++) {
        if (w->pages.refs[page] == 0 && !w->pages.cached[page]) {
            CHECK_EQ(be->ops->poison_pages(be, 1, &page), OK);
        }
    }
}

/* Sends this turn's messages, takes a turn of the engine, and checks all its tables. */
static void take_turn(struct sim *s, int32_t turn)
{
    for (int32_t i = 0; i < s->n_requests; i++) {
        submit_or_message(s, &s->requests[i], turn);
    }
    if (turn == s->reset_turn) {
        engine_reset_prefix_cache(s->e);
    }
    engine_turn(s->e);
    pass_time(s);
    poison_free_pages(s);
    scheduler_check(&s->e->scheduler);
    watch_head(s);
    engine_drain(s->e, on_event, s);
}

/* Runs until all requests have ended; the number of turns is bounded. */
static void run_once(uint64_t seed, enum fault fault)
{
    static struct sim s;
    s = (struct sim){.seed = seed};
    struct engine_options o = options_of(&s);
    int32_t fail_at_step = fault == DEVICE_IS_LOST ? 1 + (int32_t)draw(&s, 40) : 0;
    s.n_requests = 1 + (int32_t)draw(&s, MAX_REQUESTS);
    for (int32_t i = 0; i < s.n_requests; i++) {
        make_request(&s, i);
    }
    s.reset_turn = (int32_t)draw(&s, 100);
    struct err err;
    if (engine_open(&o, &s.e, &err) != OK) {
        CHECK_FAIL("open: %s", err.text);
        return;
    }
    if (fail_at_step > 0) {
        s.control.fail_at_step = s.control.n_steps + fail_at_step;
    } else {
        s.control.fail_at_step = 0;
    }
    if (fault == ROWS_ARE_BROKEN) {
        const struct engine_request *r = &s.requests[draw(&s, (uint32_t)s.n_requests)].r;
        s.control.broken_after = r->prompt[r->n_prompt - 1];
    }
    s.control.n_wrong = s.control.max_rows_seen = 0; // what was measured at the start
    for (int32_t turn = 0; turn < 5000 && s.n_done < s.n_requests; turn++) {
        take_turn(&s, turn);
    }
    CHECK_EQ(s.n_done, s.n_requests);
    for (int32_t i = 0; i < 3; i++) { // commits the steps in flight
        take_turn(&s, 5000);
    }
    bool failed = s.control.fail_at_step > 0 && s.control.n_steps >= s.control.fail_at_step;
    CHECK_EQ(s.control.n_wrong, 0);
    CHECK(s.control.max_rows_seen <= o.max_num_batched_tokens);
    for (int32_t i = 0; i < s.n_requests && s.n_done == s.n_requests; i++) {
        bool late = s.requests[i].r.error == ERR_TIMEOUT;
        bool broken = s.requests[i].r.error == ERR_NAN;
        CHECK(!late || s.requests[i].late_turn >= 0);
        CHECK(!broken || (fault == ROWS_ARE_BROKEN && has_broken(&s, &s.requests[i])));
        check_request(&s.requests[i], failed || late || broken);
        saw.broken += broken;
        saw.parts += s.requests[i].r.n_cached % s.e->info.block_tokens != 0;
    }
    if (s.e->windows.n_pages > 0) {
        const struct scheduler *sch = &s.e->scheduler;
        saw.windows += s.control.n_windows;
        saw.window_hits += sch->prefix_hits;
        saw.window_again += sch->prefix_again;
        saw.window_preemptions += sch->n_preemptions;
    }
    if (s.e->states.block > 0) {
        const struct scheduler *sch = &s.e->scheduler;
        saw.copies += s.control.n_state_copies;
        saw.keeps += s.control.n_keeps;
        saw.hits += sch->prefix_hits;
        saw.again += sch->prefix_again;
        saw.preemptions += sch->n_preemptions;
    }
    CHECK(failed || s.e->scheduler.n_running + s.e->scheduler.n_waiting == 0);
    engine_stop_all(s.e);
    saw.named += s.e->broken.named;
    engine_drain(s.e, on_event, &s);
    engine_close(s.e);
}

/* SIM_RUNS is the number of runs, SIM_SEED the first seed. */
static void run_many(enum fault fault)
{
    const char *runs = getenv("SIM_RUNS"), *from = getenv("SIM_SEED");
    uint64_t first = from ? strtoull(from, NULL, 10) : 1;
    int n = runs ? (int)strtol(runs, NULL, 10) : 400;
    for (int i = 0; i < n; i++) {
        run_once(first + (uint64_t)i, fault);
        if (check_failures > 0) {
            printf("SIM_SEED=%llu\n", (unsigned long long)first + (unsigned long long)i);
            return;
        }
    }
    CHECK(n < 400 || fault != ROWS_ARE_BROKEN || (saw.broken > n / 4 && saw.named > n / 4));
    CHECK(n < 400 || (saw.windows > 0 && saw.window_hits > 0 && saw.window_again > 0 &&
                      saw.window_preemptions > 0));
    CHECK(n < 400 || (saw.copies > 0 && saw.keeps > 0 && saw.hits > 0 && saw.again > 0 &&
                      saw.preemptions > 0 && saw.kept > 0 && saw.ended > 0 && saw.parts > 0));
}

TEST(every_request_ends_once_and_right)
{
    run_many(NO_FAULT);
}

TEST(a_lost_device_ends_every_request)
{
    run_many(DEVICE_IS_LOST);
}

TEST(rows_that_are_not_numbers_end_their_requests_alone)
{
    run_many(ROWS_ARE_BROKEN);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
