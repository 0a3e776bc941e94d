// SPDX-License-Identifier: Apache-2.0
/* Calls without HTTP, on an engine that hashes; each answer is written to memory. Every sink gets
 * one ending, then `over`, then nothing. */
#include "server/call/format.h"

#include "engine/base/clock.h"
#include "server/cli/config_load.h"
#include "test/engine/bed.h"
#include "test/server/call/failing_append.h"

/* A call and the output that its sink received. The sinks below check the order of their own calls:
 * at most one ending, no events after it, `over` exactly once and last. */
struct taken {
    struct call call; // must be first
    char text[1024];
    struct buf answer; // the whole answer, or the events joined
    struct call_error error;
    int64_t deadline_ms;
    int n_events, n_ends, n_over;
    bool full, is_stream, dropped;
};

static struct taken *of(const struct call *c)
{
    return (struct taken *)c;
}

static const char *id(struct call *c, const char *asked)
{
    CHECK_EQ(of(c)->n_ends, 0);
    return asked ? asked : "line-1";
}

static void ends(struct call *c)
{
    of(c)->n_ends++;
    CHECK_EQ(of(c)->n_ends, 1);
    CHECK_EQ(of(c)->n_over, 0);
}

static void whole(struct call *c, struct buf *json)
{
    ends(c);
    buf_deinit(&of(c)->answer);
    of(c)->answer = *json;
}

static void error(struct call *c, const struct call_error *e)
{
    ends(c);
    of(c)->error = *e;
}

static void drop(struct call *c)
{
    ends(c);
    of(c)->dropped = true;
}

static void over(struct call *c)
{
    CHECK_EQ(of(c)->n_ends, 1);
    of(c)->n_over++;
}

static void begin(struct call *c)
{
    of(c)->is_stream = true;
}

/* Nothing may come after the end. */
static void event(struct call *c, const char *name, const char *json, size_t n_bytes)
{
    (void)name;
    CHECK_EQ(of(c)->n_ends, 0);
    of(c)->n_events++;
    buf_put(&of(c)->answer, json, n_bytes);
    buf_putc(&of(c)->answer, '\n');
}

static bool is_full(const struct call *c)
{
    return of(c)->full;
}

static bool is_begun(const struct call *c)
{
    return of(c)->n_events > 0;
}

static void end(struct call *c, bool done)
{
    (void)done;
    ends(c);
}

/* A line of a batch job gets an answer as a whole or an error; a stream gets events.
 * Functions that a sink lacks are never called for it. */
static const struct call_sink line_sink = {
    .id = id, .whole = whole, .error = error, .drop = drop, .over = over};
static const struct call_sink stream_sink = {.id = id,
                                             .begin = begin,
                                             .event = event,
                                             .is_full = is_full,
                                             .is_begun = is_begun,
                                             .end = end,
                                             .whole = whole,
                                             .error = error,
                                             .drop = drop,
                                             .over = over};

static void set_deadline(struct call *c, int64_t delay_ms)
{
    of(c)->deadline_ms = delay_ms;
}

static const struct call_host host = {.set_deadline = set_deadline};

/* ---- the test's server ----------------------------------------------------------------------- */

static struct config config;
static struct bed bed;
static struct call_server server;
static bool offline; // for all calls that follow

/* The test acts as the loop: turns of the engine and wakes alternate. `max_waiting` limits the
 * engine's queue; offline calls wait for room instead of being refused. */
static bool open_server(int32_t max_waiting, bool are_offline)
{
    const char *argv[] = {"serve", "test/golden/llama-3", "--chat-template",
                          "{% for m in messages %}{{ m.content }}{% endfor %}",
                          "--max-num-queued-reqs=1000"};
    struct err err = {""};
    bed = (struct bed){0};
    struct engine_options o = options_of(&bed, 16, 200);
    o.max_num_seqs = 2;
    o.max_waiting = max_waiting;
    if (!start(&bed, &o) || config_load(&config, 5, (char **)argv, NULL, &err) != OK) {
        CHECK_FAIL("%s", err.text);
        return false;
    }
    offline = are_offline;
    call_server_init(&server, &config, &host);
    server.engine = bed.e;
    enum status st = call_model_open(&server.model, &config, engine_info(bed.e), &err);
    if (st != OK) {
        CHECK_FAIL("%s", err.text);
    }
    return st == OK;
}

/* Checks that no call is left, whatever the test did. */
static void close_server(void)
{
    engine_stop_all(bed.e);
    call_on_wake(&server);
    CHECK_EQ(server.n_calls, 0);
    engine_close(bed.e);
    call_model_close(&server.model);
    call_server_deinit(&server);
    config_deinit(&config);
}

/* The body is copied, because a call refers to its text until it is over. */
static void take_of(struct taken *t, const struct call_sink *sink, enum request_kind kind,
                    const char *body, const char *owner)
{
    *t = (struct taken){.call = {.sink = sink, .offline = offline}};
    buf_init(&t->answer, 1 << 20);
    buf_reserve(&t->answer, 1 << 14); // so that appending to the answer cannot fail
    snprintf(t->call.owner, sizeof t->call.owner, "%s", owner);
    snprintf(t->text, sizeof t->text, "%s", body);
    t->call.request.kind = kind;
    t->call.request.text = t->text;
    t->call.request.n_bytes = strlen(body);
    fails_in = pending_fails;
    pending_fails = 0;
    call_start(&server, &t->call);
}

static void take(struct taken *t, const struct call_sink *sink, enum request_kind kind,
                 const char *body)
{
    take_of(t, sink, kind, body, "");
}

static void turns(int n)
{
    for (int i = 0; i < n; i++) {
        engine_turn(bed.e);
        call_on_wake(&server);
    }
}

/* Takes turns until *n is above `than`, for ten seconds at most. How many turns a step takes
 * depends on threads. */
static void turns_until(const int *n, int than)
{
    for (int64_t end = clock_now_ns() + 10000000000; *n <= than && clock_now_ns() < end;) {
        turns(1);
    }
}

/* Texts of hashes can contain any character, even NUL, so the answer is searched as bytes. */
static bool has(const struct taken *t, const char *part)
{
    return t->answer.data && memmem(t->answer.data, t->answer.n_bytes, part, strlen(part));
}

/* Probes are answered between the pieces. */
TEST(many_ends_at_once_are_taken_in_pieces)
{
    enum { N = 600 };
    struct taken *t = xcalloc(N, sizeof *t);
    REQUIRE(open_server(N, false));
    for (int i = 0; i < N; i++) {
        take(&t[i], &stream_sink, KIND_COMPLETIONS, "{\"prompt\":\"a\",\"stream\":true}");
    }
    CHECK_EQ(server.n_calls, N);
    engine_stop_all(bed.e);
    for (int left = N; left > 0 && check_failures == 0; left = (int)server.n_calls) {
        bool more = call_on_wake(&server);
        CHECK(left - server.n_calls > 0 && left - server.n_calls <= N / 2);
        CHECK_EQ(more, server.n_calls > 0);
    }
    for (int i = 0; i < N; i++) {
        CHECK_EQ(t[i].n_over, 1);
        buf_deinit(&t[i].answer);
    }
    close_server();
    free(t);
}

/* Eight endpoints, one sink: the answer is complete JSON of the endpoint's type, with the id that
 * the client asked for or that of the line. It is a whole answer even if the line asks for a
 * stream. */
TEST(every_endpoint_answers_a_line_whole)
{
    static const struct {
        enum request_kind kind;
        const char *body, *object, *id;
    } cases[] = {
        {KIND_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":4}",
         "\"object\":\"chat.completion\"", "\"id\":\"chatcmpl-line-1\""},
        {KIND_CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":4,\"stream\":true,"
         "\"request_id\":\"mine\"}",
         "\"object\":\"chat.completion\"", "\"id\":\"chatcmpl-mine\""},
        {KIND_COMPLETIONS, "{\"prompt\":[\"a b\",\"c\"],\"max_tokens\":4,\"logprobs\":1}",
         "\"object\":\"text_completion\"", "\"id\":\"cmpl-line-1\""},
        {KIND_RESPONSES, "{\"input\":\"hello\",\"max_output_tokens\":16}",
         "\"object\":\"response\"", "\"id\":\"resp_line-1\""},
        {KIND_MESSAGES, "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}",
         "\"type\":\"message\"", "\"id\":\"msg_line-1\""},
        {KIND_COUNT_TOKENS, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}",
         "{\"input_tokens\":", "}"},
        {KIND_EMBEDDINGS, "{\"input\":[5,6,7]}", "\"object\":\"list\"", "\"embedding\":["},
        {KIND_RESPONSES_INPUT_TOKENS, "{\"input\":\"hello\"}",
         "\"object\":\"response.input_tokens\"", "\"input_tokens\":"},
    };
    REQUIRE(open_server(0, false));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct taken t;
        take(&t, &line_sink, cases[i].kind, cases[i].body);
        turns(40);
        CHECK_STR(t.error.message, "");
        CHECK_EQ(t.n_over, 1);
        CHECK(has(&t, cases[i].object) && has(&t, cases[i].id));
        CHECK(t.answer.n_bytes > 0 && t.answer.data[t.answer.n_bytes - 1] == '}');
        CHECK(t.call.record.n_prompt_tokens > 0);
        buf_deinit(&t.answer);
    }
    close_server();
}

/* An answer of which a part is larger than a part may be ends with an error, at once. */
TEST(an_answer_that_is_too_large_is_an_error)
{
    static const char *const bodies[] = {
        "{\"prompt\":\"a\",\"max_tokens\":40,\"ignore_eos\":true,\"logprobs\":5}",
        "{\"max_tokens\":40,\"ignore_eos\":true,\"logprobs\":5,\"echo\":true,"
        "\"stream\":true,\"prompt\":[5,6,7,8,9,5,6,7,8,9,5,6,7,8,9,5,6,7,8,9,5,6,7,8,9]}"};
    REQUIRE(open_server(0, false));
    server.max_part_bytes = 300;
    for (int i = 0; i < 2; i++) {
        struct taken t;
        take(&t, i ? &stream_sink : &line_sink, KIND_COMPLETIONS, bodies[i]);
        turns_until(&t.n_over, 0);
        CHECK(t.error.status == 400 && strstr(t.error.message, "not fit in memory"));
        CHECK(t.answer.n_bytes == 0 && call_usage_of(&t.call).completion < 40);
        buf_deinit(&t.answer);
    }
    close_server();
}

/* If memory runs out, there is the complete answer or an error, never an answer with a part
 * missing: a buffer that lost bytes must be noticed before the answer is sent. The n-th append
 * fails, for every n that an answer reaches, so that no failure to allocate is left untested. */
TEST(a_failed_allocation_never_shortens_an_answer)
{
    static const struct {
        enum request_kind kind;
        const char *body;
    } cases[] = {
        {KIND_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":4,"
                    "\"seed\":1,\"ignore_eos\":true,\"logprobs\":true"},
        {KIND_COMPLETIONS, "{\"prompt\":\"a b\",\"max_tokens\":4,\"seed\":1,\"ignore_eos\":true,"
                           "\"logprobs\":1"},
        {KIND_RESPONSES, "{\"input\":\"hi\",\"max_output_tokens\":16,\"seed\":1"},
        {KIND_MESSAGES, "{\"max_tokens\":4,\"seed\":1,\"ignore_eos\":true,"
                        "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"},
    };
    if (!can_fail) {
        SKIP("the sanitizers have an allocator of their own");
    }
    REQUIRE(open_server(0, false));
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        const bool streams = i % 2;
        char body[256];
        size_t n_whole = 0;
        snprintf(body, sizeof body, "%s%s}", cases[i / 2].body, streams ? ",\"stream\":true" : "");
        for (int n = 0; n == 0 || fails_in == 0; n++) {
            struct taken t;
            pending_fails = n;
            take(&t, streams ? &stream_sink : &line_sink, cases[i / 2].kind, body);
            turns(40);
            CHECK_EQ(t.n_over, 1);
            if (n == 0) {
                n_whole = t.answer.n_bytes;
            }
            bool told = t.error.status == 503 || has(&t, "memory");
            if (!told && t.answer.n_bytes != n_whole) {
                CHECK_FAIL("append %d of case %d: %zu bytes, not %zu; %d %s", n, (int)i,
                           t.answer.n_bytes, n_whole, t.error.status, t.error.message);
            }
            buf_deinit(&t.answer);
        }
        fails_in = 0;
    }
    close_server();
}

/* The text of a completion as in its JSON, from the whole answer or joined from its events. */
static void text_of(struct taken *t, struct buf *text)
{
    static const char key[] = "\"text\":\"";
    const char *at = t->answer.data, *stop = at + t->answer.n_bytes;
    while (at && (at = memmem(at, (size_t)(stop - at), key, strlen(key)))) {
        for (at += strlen(key); at < stop && *at != '"'; at++) {
            buf_putc(text, *at);
            if (*at == '\\') {
                buf_putc(text, *++at);
            }
        }
    }
    buf_putc(text, '\0');
    buf_deinit(&t->answer);
}

/* A full socket stops events, but not the engine: the text is sent once there is room again. The
 * joined events have the same text as the whole answer for the same seed. */
TEST(a_stream_that_was_full_has_the_text_of_the_whole_answer)
{
    static const char whole_body[] =
        "{\"prompt\":[5,6,7],\"max_tokens\":30,\"seed\":3,\"ignore_eos\":true}";
    static const char body[] =
        "{\"prompt\":[5,6,7],\"max_tokens\":30,\"seed\":3,\"ignore_eos\":true,\"stream\":true}";
    struct taken all, t;
    struct buf want, have;
    REQUIRE(open_server(0, false));
    buf_init(&want, 1 << 16);
    buf_init(&have, 1 << 16);
    take(&all, &line_sink, KIND_COMPLETIONS, whole_body);
    turns(60);
    take(&t, &stream_sink, KIND_COMPLETIONS, body);
    turns(12);
    int n_events = t.n_events;
    t.full = true;
    turns(60);
    CHECK(t.is_stream && n_events > 0);
    CHECK_EQ(t.n_events, n_events);
    CHECK_EQ(t.n_ends, 0); // the engine has finished, and the rest of the text waits
    t.full = false;
    call_on_room(&t.call);
    CHECK_EQ(t.n_over, 1);
    text_of(&all, &want);
    text_of(&t, &have);
    CHECK(want.n_bytes > 1);
    CHECK_STR(have.data, want.data);
    buf_deinit(&want);
    buf_deinit(&have);
    close_server();
}

/* Invalid requests are refused before anything is submitted, exactly once, with the code and member
 * of OpenAI's API. */
TEST(refused_calls_end_at_once_with_a_reason)
{
    struct taken t;
    REQUIRE(open_server(0, false));
    take(&t, &line_sink, KIND_COMPLETIONS, "{\"prompt\":[5],\"max_tokens\":-1}");
    CHECK_EQ(t.error.status, 400);
    CHECK_STR(t.error.param, "max_tokens");
    CHECK_EQ(t.n_over, 1);
    buf_deinit(&t.answer);
    take(&t, &stream_sink, KIND_CHAT, "{");
    CHECK_STR(t.error.code, "json_parse_error");
    CHECK_EQ(t.n_over, 1);
    buf_deinit(&t.answer);
    close_server();
}

static const char one[] = "{\"prompt\":[5,6],\"max_tokens\":6,\"ignore_eos\":true}";

/* A server refuses requests beyond its queue with the configured status; a batch job's requests
 * wait in the order of their lines. A call that leaves while it waits is unlinked from the middle
 * of the queue. */
TEST(a_full_engine_refuses_or_keeps_waiting_in_order)
{
    enum { N = 12 };
    static struct taken t[N];
    REQUIRE(open_server(1, false)); // two run and one waits
    for (int i = 0; i < N; i++) {
        take(&t[i], &line_sink, KIND_COMPLETIONS, one);
        CHECK_EQ(t[i].error.status, i < 3 ? 0 : config.overload_status);
    }
    CHECK_EQ(server.counts.rejected[REJECT_QUEUE_FULL], N - 3);
    turns(40);
    for (int i = 0; i < N; i++) {
        CHECK_EQ(t[i].n_over, 1);
        buf_deinit(&t[i].answer);
    }
    close_server();
    REQUIRE(open_server(1, true));
    for (int i = 0; i < N; i++) {
        take(&t[i], &line_sink, KIND_COMPLETIONS, one);
    }
    CHECK(server.queue == &t[3].call);
    call_gone(&t[4].call, ABORT_DISCONNECT); // while it waits
    CHECK(t[4].dropped && t[4].n_over == 0);
    for (int n_left = N; n_left > 0;) {
        turns(1);
        n_left = 0;
        for (int i = 0; i < N; i++) {
            n_left += t[i].n_over == 0;
            CHECK(i == 0 || i == 4 || i == 5 || t[i - 1].n_over >= t[i].n_over);
        }
    }
    CHECK(server.queue == NULL);
    for (int i = 0; i < N; i++) {
        CHECK_EQ(t[i].error.status, 0);
        buf_deinit(&t[i].answer);
    }
    close_server();
}

/* After a disconnect no event may be written, but the call's memory stays in use until the engine
 * reports the end of the request. */
TEST(a_client_that_left_gets_nothing_and_the_engine_is_freed)
{
    struct taken t;
    REQUIRE(open_server(0, false));
    take(&t, &stream_sink, KIND_COMPLETIONS,
         "{\"prompt\":[5,6],\"max_tokens\":100,\"ignore_eos\":true,\"stream\":true}");
    turns_until(&t.n_events, 0);
    int n_events = t.n_events;
    call_gone(&t.call, ABORT_SLOW_READER);
    CHECK(t.dropped && t.n_over == 0); // the engine still has it
    turns_until(&t.n_over, 0);
    turns(3);
    CHECK(n_events > 0 && t.n_events == n_events && t.n_over == 1);
    CHECK_EQ(server.counts.aborted[ABORT_SLOW_READER], 1);
    CHECK_STR(t.call.record.finish, "cancelled");
    buf_deinit(&t.answer);
    close_server();
}

/* The first token has a deadline, after which the answer is an error. Neither a second deadline nor
 * the end of the request after an abort of all calls ends the call again. */
TEST(a_deadline_ends_a_call_once)
{
    struct taken t;
    REQUIRE(open_server(0, false));
    take(&t, &line_sink, KIND_COMPLETIONS, one);
    CHECK(t.deadline_ms > 0 && t.deadline_ms <= 600000); // for its first token
    turns(2);
    call_on_deadline(&t.call);
    CHECK_EQ(t.error.status, 504);
    CHECK_EQ(t.deadline_ms, -1);
    call_on_deadline(&t.call);
    turns_until(&t.n_over, 0);
    turns(3);
    CHECK_EQ(t.n_over, 1);
    buf_deinit(&t.answer);
    take(&t, &line_sink, KIND_COMPLETIONS, one);
    struct call_error e = {0};
    call_error_set(&e, 503, "server_draining", NULL, "The server is shutting down.");
    call_abort_all(&server, &e);
    CHECK_STR(t.error.code, "server_draining");
    turns_until(&t.n_over, 0);
    turns(3);
    CHECK_EQ(t.n_over, 1);
    buf_deinit(&t.answer);
    close_server();
}

/* ---- work on the pool ------------------------------------------------------------------------ */

/* A pool that runs its jobs when the test says so. */
static struct job {
    void (*work)(void *arg);
    void (*done)(void *arg);
    void *arg;
} jobs[4];
static int n_jobs;

static void run_later(struct call_server *s, void (*work)(void *arg), void (*done)(void *arg),
                      void *arg)
{
    (void)s;
    REQUIRE(n_jobs < 4);
    jobs[n_jobs++] = (struct job){work, done, arg};
}

static const struct call_host pool_host = {.run = run_later, .set_deadline = set_deadline};

static void run_jobs(void)
{
    int n = n_jobs;
    n_jobs = 0;
    for (int i = 0; i < n; i++) {
        jobs[i].work(jobs[i].arg);
        jobs[i].done(jobs[i].arg);
    }
}

static bool is_kept(struct store *store, const char *owner)
{
    struct stored_response r;
    enum status st;
    bool found = store_response_find(store, owner, "resp_line-1", &r, &st, NULL);
    stored_response_deinit(&r);
    return found;
}

/* The store is written on the pool. The client learns of the end only after that, because otherwise
 * a request with `previous_response_id` might not find the response. It is written even if the
 * client has left, since a later turn may refer to it. */
TEST(a_response_is_stored_before_its_end_is_sent_even_without_a_client)
{
    static const char body[] = "{\"input\":\"hello\",\"max_output_tokens\":4}";
    const struct store_options o = {.max_bytes = 16 << 20, .max_file_bytes = 1 << 20};
    struct store *store;
    REQUIRE(store_open(&o, &store, NULL) == OK);
    REQUIRE(open_server(0, false));
    server.host = &pool_host;
    server.store = store;
    for (int leaves = 0; leaves < 2; leaves++) {
        struct taken t;
        const char *owner = leaves ? "ann" : "bob";
        take_of(&t, &line_sink, KIND_RESPONSES, body, owner);
        run_jobs(); // it is read
        turns(40);
        CHECK(n_jobs == 1 && t.n_ends == 0 && !is_kept(store, owner));
        if (leaves) {
            call_gone(&t.call, ABORT_DISCONNECT);
            CHECK(t.dropped && t.n_over == 0);
        }
        run_jobs();
        CHECK_EQ(t.n_over, 1);
        CHECK(is_kept(store, owner));
        CHECK_EQ(has(&t, "\"store\":true"), !leaves);
        buf_deinit(&t.answer);
    }
    close_server();
    store_close(store);
}

TEST(vectors_are_written_on_the_pool)
{
    struct taken t;
    REQUIRE(open_server(0, false));
    server.host = &pool_host;
    take(&t, &line_sink, KIND_EMBEDDINGS, "{\"input\":[5,6,7]}");
    run_jobs();
    turns(40);
    CHECK(n_jobs == 1 && t.n_over == 0);
    run_jobs();
    CHECK(t.n_over == 1 && has(&t, "\"embedding\":["));
    buf_deinit(&t.answer);
    close_server();
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
