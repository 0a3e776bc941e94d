// SPDX-License-Identifier: Apache-2.0
/* Jobs on an engine that hashes: their lines, and the answers that they have stored. */
#ifndef SLUICE_TEST_JOB_BED_H
#define SLUICE_TEST_JOB_BED_H

#include "server/jobs/batches.h"
#include "server/jobs/job.h"

#include "engine/base/minmax.h"
#include "server/cli/config_load.h"
#include "test/engine/bed.h"

enum { MAX_LINES = 200, BLOCK = 16 };

static int32_t match_unit; // of the engine; 0: its default, a block
static struct config config;
static struct bed bed;
static struct call_server server;
static const struct call_host host = {0};

/* The input of a job, and the answers that it has stored. */
struct bench_job {
    struct buf input;
    struct job_lines lines;
    struct job *job;
    char *texts[MAX_LINES];
    int n_answers[MAX_LINES], n_failed, n_keeps;
    int keep_fails; // number of the next calls of `keep` that fail
    bool woken;
};

/* The input as a job reads it: pieces of at most max_bytes, nothing at the end. */
static inline enum status read_memory(void *arg, int64_t offset, size_t max_bytes, struct buf *out,
                                      struct err *err)
{
    const struct bench_job *b = arg;
    (void)err;
    if (offset < (int64_t)b->input.n_bytes) {
        size_t left = b->input.n_bytes - (size_t)offset;
        buf_put(out, b->input.data + offset, lesser(left, max_bytes));
    }
    return OK;
}

/* Counts the answers of each line. keep_fails makes the next calls fail without storing anything,
 * like a store whose disk is full. */
static inline enum status keep(void *arg, const struct batch_answer *answers, size_t n,
                               struct err *err)
{
    struct bench_job *b = arg;
    b->n_keeps++;
    if (b->keep_fails > 0) {
        b->keep_fails--;
        return err_set(err, ERR_LIMIT, "full");
    }
    for (size_t i = 0; i < n; i++) {
        int64_t line = answers[i].line;
        b->n_answers[line]++;
        b->n_failed += answers[i].failed;
        free(b->texts[line]);
        b->texts[line] = strndup(answers[i].text, answers[i].n_bytes);
    }
    return OK;
}

static inline void wake(void *arg)
{
    ((struct bench_job *)arg)->woken = true;
}

/* ---- the test's server ----------------------------------------------------------------------- */

/* lanes: sequences that run at a time; n_blocks: of the KV pool, BLOCK tokens each. */
static inline bool open_server(int32_t n_blocks, int32_t max_waiting, int32_t lanes)
{
    const char *argv[] = {"serve", "test/golden/llama-3", "--max-num-queued-reqs=1000"};
    struct err err = {""};
    bed = (struct bed){0};
    struct engine_options o = options_of(&bed, BLOCK, n_blocks);
    o.max_num_seqs = lanes;
    o.prefix_match_unit = match_unit;
    o.max_waiting = max_waiting;
    if (!start(&bed, &o) || config_load(&config, 3, (char **)argv, NULL, &err) != OK) {
        CHECK_FAIL("%s", err.text);
        return false;
    }
    call_server_init(&server, &config, &host);
    server.engine = bed.e;
    return call_model_open(&server.model, &config, engine_info(bed.e), &err) == OK;
}

static inline void close_server(void)
{
    engine_stop_all(bed.e);
    call_on_wake(&server);
    CHECK_EQ(server.n_calls, 0);
    engine_close(bed.e);
    call_model_close(&server.model);
    call_server_deinit(&server);
    config_deinit(&config);
}

static inline void begin(struct bench_job *b)
{
    *b = (struct bench_job){0};
    buf_init(&b->input, 1 << 24);
}

/* A line with n_shared ids that are common to its group, followed by ids of its own. */
static inline void add(struct bench_job *b, int number, int group, int n_shared, int n_own,
                       const char *more)
{
    buf_printf(&b->input,
               "{\"custom_id\":\"r%d\",\"method\":\"POST\",\"url\":\"/v1/completions\","
               "\"body\":{\"prompt\":[",
               number);
    for (int i = 0; i < n_shared; i++) {
        buf_printf(&b->input, "%d,", (group * 37 + i * 11) % 250 + 3);
    }
    for (int i = 0; i < n_own; i++) {
        buf_printf(&b->input, "%d%s", (number * 53 + i * 7) % 250 + 3, i + 1 < n_own ? "," : "");
    }
    buf_printf(&b->input, "],\"seed\":7,\"ignore_eos\":true,%s}}\n", more);
}

/* The lines of the input; a line with an error fails the test. */
static inline bool read_lines(struct bench_job *b)
{
    struct job_input in = {read_memory, b};
    struct job_lines_limits limits = {.max_line_bytes = 1 << 20, .max_lines = MAX_LINES};
    struct err err = {""};
    CHECK_EQ(job_lines_read(&in, &limits, &b->lines, &err), OK);
    for (int32_t i = 0; i < b->lines.n_errors; i++) {
        CHECK_FAIL("line %d: %s", (int)b->lines.errors[i].line, b->lines.errors[i].message);
    }
    return b->lines.n_errors == 0;
}

static inline void open_job(struct bench_job *b, enum job_order order)
{
    struct job_options o = {.calls = &server,
                            .input = {read_memory, b},
                            .lines = &b->lines,
                            .order = order,
                            .keep = keep,
                            .wake = wake,
                            .arg = b};
    b->job = job_open(&o);
}

/* Takes up to n turns; true: the job is over. */
static inline bool turns(struct bench_job *b, int n)
{
    for (; n > 0; n--) {
        if (job_turn(b->job)) {
            return true;
        }
        engine_turn(bed.e);
        call_on_wake(&server);
    }
    return false;
}

/* Each line was answered exactly once, with its own custom_id. */
static inline void check_all_once(const struct bench_job *b)
{
    for (int32_t i = 0; i < b->lines.n; i++) {
        CHECK_EQ(b->n_answers[i], 1);
        char want[40]; // texts of hashes may contain NULs
        snprintf(want, sizeof want, "\"custom_id\":\"r%d\",", i);
        CHECK(b->texts[i] && strstr(b->texts[i], want));
    }
}

static inline void end(struct bench_job *b)
{
    job_close(b->job);
    job_lines_deinit(&b->lines);
    buf_deinit(&b->input);
    for (int i = 0; i < MAX_LINES; i++) {
        free(b->texts[i]);
    }
}

/* n_groups x n_members lines that cycle through the groups. */
static inline void add_groups(struct bench_job *b, int n_groups, int n_members, const char *more)
{
    for (int i = 0; i < n_groups * n_members; i++) {
        add(b, i, i % n_groups, 4 * BLOCK, 5 + i % 7, more);
    }
}

/* The text of a line's first answer. */
static inline void copy_text(const struct bench_job *b, int line, char *out, size_t room)
{
    static const char key[] = "\"text\":";
    const char *at = b->texts[line] ? strstr(b->texts[line], key) : NULL;
    const char *stop = at ? strstr(at, ",\"logprobs\"") : NULL;
    snprintf(out, room, "%.*s", stop ? (int)(stop - at) : 0, at ? at : "");
}

#endif
