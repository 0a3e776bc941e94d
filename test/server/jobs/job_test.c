// SPDX-License-Identifier: Apache-2.0
/* Jobs on an engine that hashes: whatever happens, each line gets exactly one answer or stays
 * unanswered.
 */
#include "test/server/jobs/job_bed.h"

/* ---- tests ------------------------------------------------------------------------------ */

/* If prompts with a common prefix run one after the other, each prefix is computed once, even if
 * the pool holds only a quarter of all prefixes. The plan forecasts the computed tokens exactly: 12
 * groups of 8 save 7 prefixes each. */
TEST(each_prefix_is_computed_once_in_every_order_that_brings_it_together)
{
    static const enum job_order orders[] = {JOB_ORDER_SORTED, JOB_ORDER_GROUPS, JOB_ORDER_RATIO};
    static const int32_t pools[] = {12, 24, 48}; // a quarter, half and all of the prefixes' blocks
    for (size_t i = 0; i < 9; i++) {
        struct bench_job b;
        struct job_progress p;
        REQUIRE(open_server(pools[i / 3], 0, 2));
        begin(&b);
        add_groups(&b, 12, 8, "\"max_tokens\":4");
        REQUIRE(read_lines(&b));
        open_job(&b, orders[i % 3]);
        CHECK(turns(&b, 4000));
        check_all_once(&b);
        job_progress(b.job, &p);
        CHECK_EQ(p.n_answered, 96);
        CHECK_EQ(b.n_failed, 0);
        CHECK_EQ(p.prompt_tokens, p.planned_tokens);
        CHECK_EQ(p.prompt_tokens - p.cached_tokens, p.planned_computed);
        CHECK_EQ(p.planned_tokens - p.planned_computed, 12 * 7 * 4 * BLOCK);
        end(&b);
        close_server();
    }
}

/* The control: in the order of arrival the same pool computes over twice as much, so the
 * test above cannot pass merely because the pool is too large. */
TEST(arrival_order_computes_more_where_the_pool_is_small)
{
    struct bench_job b;
    struct job_progress p;
    REQUIRE(open_server(20, 0, 2));
    begin(&b);
    add_groups(&b, 12, 8, "\"max_tokens\":4");
    REQUIRE(read_lines(&b));
    open_job(&b, JOB_ORDER_NONE);
    CHECK(turns(&b, 4000));
    check_all_once(&b);
    job_progress(b.job, &p);
    CHECK(p.prompt_tokens - p.cached_tokens > 2 * p.planned_computed);
    end(&b);
    close_server();
}

/* Text depends on the line alone, not on its neighbours, the order or the cache. */
TEST(an_answer_does_not_depend_on_other_lines)
{
    struct bench_job all, one;
    char want[512], have[512];
    REQUIRE(open_server(60, 0, 4));
    begin(&all);
    add_groups(&all, 5, 6, "\"max_tokens\":12");
    REQUIRE(read_lines(&all));
    open_job(&all, JOB_ORDER_RATIO);
    CHECK(turns(&all, 2000));
    for (int i = 0; i < 30; i += 7) {
        begin(&one);
        add(&one, i, i % 5, 4 * BLOCK, 5 + i % 7, "\"max_tokens\":12");
        REQUIRE(read_lines(&one));
        open_job(&one, JOB_ORDER_NONE);
        CHECK(turns(&one, 200));
        copy_text(&one, 0, want, sizeof want);
        copy_text(&all, i, have, sizeof have);
        CHECK(want[0] != '\0');
        CHECK_STR(have, want);
        end(&one);
    }
    end(&all);
    close_server();
}

/* A parameter, a model, and a length that are invalid: three different errors, nine answers. */
TEST(a_bad_line_gets_its_error_and_does_not_stop_the_job)
{
    struct bench_job b;
    REQUIRE(open_server(24, 0, 2));
    begin(&b);
    for (int i = 0; i < 12; i++) {
        const char *more = i == 3 ? "\"max_tokens\":-1" : "\"max_tokens\":4";
        add(&b, i, 0, i == 5 ? 100 * BLOCK : 2 * BLOCK, 3, i == 7 ? "\"model\":\"nobody\"" : more);
    }
    REQUIRE(read_lines(&b));
    open_job(&b, JOB_ORDER_GROUPS);
    CHECK(turns(&b, 1000));
    check_all_once(&b);
    CHECK_EQ(b.n_failed, 3); // lines 3, 5 (longer than the pool) and 7
    CHECK(b.texts[7] && strstr(b.texts[7], "\"status_code\":404"));
    CHECK(b.texts[3] && strstr(b.texts[3], "\"status_code\":400"));
    end(&b);
    close_server();
}

/* Cancelled after 0, 3, 6, ... turns: lines that run, wait, or are unread get the reason
 * as their answer. */
TEST(a_job_stopped_with_a_reason_answers_every_line_once)
{
    for (int at = 0; at < 60; at += 3) {
        struct bench_job b;
        REQUIRE(open_server(40, 0, 3));
        begin(&b);
        add_groups(&b, 4, 6, "\"max_tokens\":10");
        REQUIRE(read_lines(&b));
        open_job(&b, JOB_ORDER_RATIO);
        if (!turns(&b, at)) {
            job_stop(b.job, "batch_cancelled", "Cancelled.");
            CHECK(turns(&b, 100));
        }
        check_all_once(&b);
        CHECK(at > 0 || b.n_failed == 24);
        CHECK(b.n_failed == 0 || at < 59);
        end(&b);
        close_server();
    }
}

/* After a shutdown, lines without an answer stay open, and a later job on the same lines answers
 * exactly those. */
TEST(a_job_stopped_without_a_reason_can_be_continued)
{
    for (int at = 0; at < 50; at += 7) {
        struct bench_job b;
        REQUIRE(open_server(40, 0, 3));
        begin(&b);
        add_groups(&b, 4, 6, "\"max_tokens\":10");
        REQUIRE(read_lines(&b));
        open_job(&b, JOB_ORDER_RATIO);
        bool over = turns(&b, at);
        int n_before = 0;
        if (!over) {
            job_stop(b.job, NULL, NULL);
            CHECK(turns(&b, 100));
        }
        for (int i = 0; i < 24; i++) {
            CHECK_EQ(b.n_answers[i], b.lines.lines[i].is_answered);
            n_before += b.n_answers[i];
        }
        job_close(b.job);
        open_job(&b, JOB_ORDER_RATIO);
        CHECK(turns(&b, 1000));
        check_all_once(&b);
        struct job_progress p;
        job_progress(b.job, &p);
        CHECK_EQ(p.n_before, n_before);
        end(&b);
        close_server();
    }
}

/* After the device fails, the job ends with an error of its own; no line is blamed. */
TEST(a_failing_engine_ends_the_job_and_lines_without_answers_are_left)
{
    for (int at = 1; at < 40; at += 6) {
        struct bench_job b;
        REQUIRE(open_server(40, 0, 3));
        bed.control.fail_at_step = at;
        begin(&b);
        add_groups(&b, 4, 6, "\"max_tokens\":10");
        REQUIRE(read_lines(&b));
        open_job(&b, JOB_ORDER_RATIO);
        CHECK(turns(&b, 500));
        CHECK(job_error(b.job) != NULL);
        CHECK_EQ(b.n_failed, 0);
        int n = 0;
        for (int i = 0; i < 24; i++) {
            CHECK_EQ(b.n_answers[i], b.lines.lines[i].is_answered);
            n += b.n_answers[i];
        }
        CHECK(n < 24);
        end(&b);
        close_server();
    }
}

/* Queues of one, pools smaller than a prefix, more lanes than blocks: these only make the job
 * slower. */
TEST(a_full_queue_and_a_tiny_pool_only_make_it_slower)
{
    static const struct {
        int32_t n_blocks, max_waiting, lanes;
    } beds[] = {{40, 1, 1}, {8, 1, 4}, {7, 0, 8}, {400, 1, 2}};
    for (size_t i = 0; i < sizeof beds / sizeof beds[0]; i++) {
        struct bench_job b;
        REQUIRE(open_server(beds[i].n_blocks, beds[i].max_waiting, beds[i].lanes));
        begin(&b);
        add_groups(&b, 5, 8, "\"max_tokens\":6");
        REQUIRE(read_lines(&b));
        open_job(&b, JOB_ORDER_RATIO);
        CHECK(turns(&b, 8000));
        check_all_once(&b);
        CHECK_EQ(b.n_failed, 0);
        end(&b);
        close_server();
    }
}

/* Each failure of `keep` stops the job until it is told to try again; the answers wait
 * meanwhile. */
TEST(answers_that_cannot_be_stored_are_retried_and_none_is_lost)
{
    struct bench_job b;
    REQUIRE(open_server(60, 0, 4));
    begin(&b);
    add_groups(&b, 4, 10, "\"max_tokens\":5");
    REQUIRE(read_lines(&b));
    b.keep_fails = 5;
    open_job(&b, JOB_ORDER_GROUPS);
    int n_tries = 0;
    while (!turns(&b, 300) && n_tries < 20) {
        CHECK(job_keep_error(b.job) != NULL);
        CHECK_STR(job_keep_error(b.job) ? job_keep_error(b.job)->text : "", "full");
        job_keep_again(b.job);
        n_tries++;
    }
    CHECK_EQ(n_tries, 5);
    check_all_once(&b);
    end(&b);
    close_server();
}

/* Prompts with different salts must not share prefixes; n samples of one prompt do. */
TEST(samples_share_a_prefix_and_salts_do_not)
{
    struct bench_job b;
    struct job_progress p;
    REQUIRE(open_server(60, 0, 8));
    begin(&b);
    for (int i = 0; i < 8; i++) { // the same prefix under two salts
        add(&b, i, 0, 4 * BLOCK, 3,
            i % 2 ? "\"max_tokens\":3,\"n\":3,\"cache_salt\":\"a\""
                  : "\"max_tokens\":3,\"cache_salt\":\"b\"");
    }
    REQUIRE(read_lines(&b));
    open_job(&b, JOB_ORDER_GROUPS);
    CHECK(turns(&b, 400));
    check_all_once(&b);
    job_progress(b.job, &p);
    CHECK_EQ(b.n_failed, 0);
    CHECK_EQ(p.planned_tokens - p.planned_computed, 6 * 4 * BLOCK);
    CHECK_EQ(p.output_tokens, 4 * 3 + 4 * 9);
    end(&b);
    close_server();
}

/* Prompts of whole blocks: their last token is always computed, so equal prompts share one
 * block less than they have. */
TEST(equal_prompts_and_prompts_that_are_a_prefix)
{
    struct bench_job b;
    struct job_progress p;
    REQUIRE(open_server(60, 0, 1));
    begin(&b);
    for (int i = 0; i < 6; i++) {
        buf_printf(&b.input,
                   "{\"custom_id\":\"r%d\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                   "\"body\":{\"prompt\":[",
                   i);
        int n = i < 3 ? 4 * BLOCK : 2 * BLOCK + i; // whole blocks: the last token is not shared
        for (int k = 0; k < n; k++) {
            buf_printf(&b.input, "%s%d", k ? "," : "", k + 5);
        }
        buf_puts(&b.input, "],\"max_tokens\":2,\"temperature\":0,\"ignore_eos\":true}}\n");
    }
    REQUIRE(read_lines(&b));
    open_job(&b, JOB_ORDER_GROUPS);
    CHECK(turns(&b, 400));
    check_all_once(&b);
    job_progress(b.job, &p);
    CHECK_EQ(p.prompt_tokens - p.cached_tokens, p.planned_computed);
    end(&b);
    close_server();
}

/* ---- together with online traffic ------------------------------------------------------------ */

/* An online request with a sink that notes its end. */
struct online {
    struct call call;
    char text[256];
    bool over, good;
};

static const char *online_id(struct call *c, const char *asked)
{
    (void)c;
    return asked ? asked : "x";
}

static void online_whole(struct call *c, struct buf *json)
{
    ((struct online *)c)->good = true;
    buf_deinit(json);
}

static void online_error(struct call *c, const struct call_error *e)
{
    (void)c;
    CHECK_FAIL("%s", e->message);
}

static void online_drop(struct call *c)
{
    (void)c;
}

static void online_over(struct call *c)
{
    ((struct online *)c)->over = true;
}

/* The number of steps from a request's start to its end, while other calls run. */
static int64_t steps_of_online(struct bench_job *b)
{
    static const struct call_sink sink = {.id = online_id,
                                          .whole = online_whole,
                                          .error = online_error,
                                          .drop = online_drop,
                                          .over = online_over};
    static struct online q;
    struct engine_stats before, after;
    engine_stats(bed.e, &before);
    q = (struct online){.call = {.sink = &sink}};
    snprintf(q.text, sizeof q.text, "{\"prompt\":[5,6,7],\"max_tokens\":3,\"ignore_eos\":true}");
    q.call.request.kind = KIND_COMPLETIONS;
    q.call.request.text = q.text;
    q.call.request.n_bytes = strlen(q.text);
    call_start(&server, &q.call);
    for (int i = 0; i < 100 && !q.over; i++) {
        CHECK(!b->job || !job_turn(b->job));
        engine_turn(bed.e);
        call_on_wake(&server);
    }
    CHECK(q.over && q.good);
    engine_stats(bed.e, &after);
    return after.n_steps - before.n_steps;
}

/* Online requests have priority: with a job that occupies everything, a request takes no more steps
 * than alone, except for the step in progress. */
TEST(a_request_passes_a_job_that_holds_every_lane_and_block)
{
    struct bench_job b;
    REQUIRE(open_server(24, 0, 3));
    begin(&b);
    const int64_t alone = steps_of_online(&b);
    add_groups(&b, 6, 5, "\"max_tokens\":60");
    REQUIRE(read_lines(&b));
    open_job(&b, JOB_ORDER_RATIO);
    CHECK(!turns(&b, 20));
    const int64_t beside = steps_of_online(&b);
    CHECK(alone > 0 && beside <= alone + 1); // the step in progress ends first
    CHECK(turns(&b, 8000));
    check_all_once(&b);
    end(&b);
    close_server();
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Empty lines are skipped, and the last line may lack its end. body_at and body_bytes delimit the
 * JSON of the body. */
TEST(lines_are_read_the_same_however_the_input_is_cut)
{
    struct bench_job b;
    begin(&b);
    add_groups(&b, 3, 10, "\"max_tokens\":1");
    buf_puts(&b.input, "\r\n  \n");
    add(&b, 30, 0, 2, 2, "\"max_tokens\":1");
    b.input.n_bytes--; // the last line has no end
    REQUIRE(read_lines(&b));
    CHECK_EQ(b.lines.n, 31);
    for (int i = 0; i < 31; i++) {
        const struct job_line *l = &b.lines.lines[i];
        char want[16];
        snprintf(want, sizeof want, "r%d", i);
        CHECK_STR(job_line_id(&b.lines, i), want);
        CHECK(b.input.data[l->body_at] == '{' &&
              b.input.data[l->body_at + l->body_bytes - 1] == '}');
    }
    end(&b);
}

/* A line of 3 MB of spaces is skipped in pieces, not read into memory; lines beyond the
 * limit are counted, not kept. */
TEST(a_line_that_is_too_long_is_an_error_and_is_not_buffered)
{
    struct bench_job b;
    struct job_input in = {read_memory, &b};
    struct job_lines_limits limits = {.max_line_bytes = 1000, .max_lines = 2};
    begin(&b);
    add(&b, 0, 0, 2, 2, "\"max_tokens\":1");
    for (int i = 0; i < 3000000; i++) {
        buf_putc(&b.input, ' ');
    }
    CHECK_EQ(job_lines_read(&in, &limits, &b.lines, NULL), OK);
    REQUIRE(b.lines.n_errors == 1);
    CHECK_STR(b.lines.errors[0].code, "request_too_large");
    CHECK_EQ(b.lines.errors[0].line, 2);
    job_lines_deinit(&b.lines);
    buf_clear(&b.input);
    for (int i = 0; i < 3; i++) {
        add(&b, i, 0, 2, 2, "\"max_tokens\":1");
    }
    CHECK_EQ(job_lines_read(&in, &limits, &b.lines, NULL), OK);
    REQUIRE(b.lines.n_errors == 1);
    CHECK_STR(b.lines.errors[0].code, "too_many_requests");
    end(&b);
}

/* ---- batches --------------------------------------------------------------------------------- */

static enum status make_batch(struct store *s, const char *text, int64_t expires_at,
                              struct stored_batch *batch)
{
    struct store_upload *u;
    struct stored_file f = {.purpose = "batch", .created_at = 1};
    TRY(store_upload_begin(s, &u, NULL));
    TRY(store_upload_write(u, text, strlen(text), NULL));
    TRY(store_upload_end(u, "", &f, NULL));
    *batch = (struct stored_batch){
        .endpoint = "/v1/completions", .window = "24h", .created_at = 1, .expires_at = expires_at};
    snprintf(batch->input_file, sizeof batch->input_file, "%s", f.id);
    return store_batch_create(s, batch, NULL);
}

/* A pool that runs its work at once, on the caller. */
static void run_now(struct call_server *s, void (*work)(void *arg), void (*done)(void *arg),
                    void *arg)
{
    (void)s;
    work(arg);
    done(arg);
}

/* A batch that has expired before any line was run: each line's error is in the error file, and
 * there is no output file. */
TEST(a_batch_whose_window_has_ended_expires_and_each_line_says_so)
{
    static const struct call_host with_pool = {.run = run_now};
    struct bench_job b;
    struct store_options so = {.max_bytes = 64 << 20, .max_file_bytes = 8 << 20};
    struct store *store;
    struct stored_batch made, found;
    enum status st;
    REQUIRE(open_server(60, 0, 4));
    server.host = &with_pool;
    if (store_open(&so, &store, NULL) == ERR_UNSUPPORTED) {
        close_server();
        return; // built without SQLite
    }
    begin(&b);
    add_groups(&b, 2, 4, "\"max_tokens\":4");
    REQUIRE(make_batch(store, b.input.data, 1000, &made) == OK); // long ago
    struct batches_options o = {
        .store = store, .calls = &server, .max_line_bytes = 1 << 20, .wake = wake, .arg = &b};
    struct batches *batches = batches_open(&o);
    batches_start(batches);
    for (int i = 0; i < 50; i++) {
        batches_turn(batches);
        engine_turn(bed.e);
        call_on_wake(&server);
    }
    REQUIRE(store_batch_find(store, NULL, made.id, &found, &st, NULL));
    CHECK_EQ(found.status, BATCH_EXPIRED);
    CHECK_EQ(found.n_total, 8);
    CHECK_EQ(found.n_failed, 8);
    CHECK(found.error_file[0] && !found.output_file[0]);
    stored_batch_deinit(&found);
    batches_close(batches);
    store_close(store);
    end(&b);
    close_server();
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
