// SPDX-License-Identifier: Apache-2.0
#include "server/jobs/batches.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/engine.h"
#include "server/jobs/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Intervals in seconds. */
enum {
    RETRY_S = 5,  // before a retry after an error of the store
    LOOK_S = 5,   // between updates of the store's size
    SWEEP_S = 60, // between deletions of expired data
};

/* The stage of the current batch. */
enum stage { STAGE_NONE, STAGE_LOAD, STAGE_RUN, STAGE_END };

struct waiting {
    char id[STORE_ID_BYTES];
    struct waiting *next;
};

/* One batch runs at a time, in stages: it is loaded on the pool, runs on the loop thread,
 * and ends on the pool. While `working`, the pool owns the members named below. */
struct batches {
    struct batches_options options;
    struct waiting *first, **last;
    bool started, stopping;

    enum stage stage;
    char id[STORE_ID_BYTES]; // id of the current batch; "": none
    bool working;            // while set, the pool owns the following members, up to work_error
    struct stored_batch batch;
    struct job_lines lines;
    struct job *job;
    enum batch_status end; // the batch's final status, as known so far
    bool cancelled;        // batches_cancel was called for the current batch
    enum status work_status;
    struct err work_error;
    int64_t retry_at; // time of the next try_again; 0: nothing to retry
    bool is_logged;   // the error being retried has been logged

    bool looking; // while set, the pool owns `usage`
    int64_t look_at, now;
    int64_t sweep_at; // owned by the pool
    struct store_usage usage;
    enum status usage_status;
    struct batches_counts counts; // of batches that have ended
};

static int64_t now_s(void)
{
    return clock_wall_sec();
}

static void wake(void *arg)
{
    struct batches *b = arg;
    b->options.wake(b->options.arg);
}

static void run(struct batches *b, void (*work)(void *arg), void (*done)(void *arg))
{
    b->options.calls->host->run(b->options.calls, work, done, b);
}

/* ---- waiting batches ------------------------------------------------------------------------- */

void batches_add(struct batches *b, const char *id)
{
    struct waiting *w = xcalloc(1, sizeof *w);
    snprintf(w->id, sizeof w->id, "%s", id);
    *b->last = w;
    b->last = &w->next;
    wake(b);
}

/* Removes a batch from the waiting ones. False if it does not wait. */
static bool take_waiting(struct batches *b, const char *id)
{
    for (struct waiting **at = &b->first; *at; at = &(*at)->next) {
        struct waiting *w = *at;
        if (strcmp(w->id, id) == 0) {
            *at = w->next;
            if (!w->next) {
                b->last = at;
            }
            free(w);
            return true;
        }
    }
    return false;
}

/* ---- loading --------------------------------------------------------------------------------- */

static enum status read_file(void *arg, int64_t offset, size_t max_bytes, struct buf *out,
                             struct err *err)
{
    struct batches *b = arg;
    return store_file_read(b->options.store, b->batch.input_file, offset, max_bytes, out, err);
}

static struct job_input input_of(struct batches *b)
{
    return (struct job_input){read_file, b};
}

/* The batch cannot run: ends it as failed, with the answers that it has. */
static enum status fail_batch(struct batches *b, struct err *err)
{
    struct buf errors;
    buf_init(&errors, 1 << 20);
    job_lines_put_errors(&b->lines, &errors);
    enum status st = store_batch_fail(b->options.store, b->batch.id, errors.data, now_s(), err);
    buf_deinit(&errors);
    b->end = BATCH_FAILED;
    return st;
}

/* Marks the lines that have an answer in the store, so that after a restart the batch continues
 * where the last process ended. */
static enum status mark_answered(struct batches *b, struct err *err)
{
    int32_t n = b->lines.n;
    uint8_t *bits = xcalloc((size_t)n / 8 + 1, 1);
    enum status st = store_batch_answered(b->options.store, b->batch.id, bits, n, err);
    for (int32_t i = 0; i < n; i++) {
        b->lines.lines[i].is_answered = bits[i / 8] & 1u << i % 8;
    }
    free(bits);
    return st;
}

/* On the pool: reads the batch and its lines. If it sets `end` to another status than COMPLETED,
 * there is nothing to run. */
static enum status load(struct batches *b, const char *id, struct err *err)
{
    struct store *store = b->options.store;
    enum status st;
    b->end = BATCH_COMPLETED;
    if (!store_batch_find(store, NULL, id, &b->batch, &st, err)) {
        b->end = BATCH_FAILED; // the batch has been deleted
        return st;
    }
    if (batch_has_ended(b->batch.status)) {
        b->end = b->batch.status;
        return OK;
    }
    if (b->batch.status == BATCH_CANCELLING && b->batch.n_total == 0) { // cancelled before it
                                                                        // started
        b->end = BATCH_CANCELLED;
        return store_batch_finish(store, id, b->end, now_s(), 0, err);
    }
    struct job_lines_limits limits = {b->batch.endpoint, b->options.max_line_bytes,
                                      BATCH_MAX_LINES};
    struct job_input in = input_of(b);
    TRY(job_lines_read(&in, &limits, &b->lines, err));
    if (b->lines.n_errors > 0 || b->lines.n_more_errors > 0) {
        return fail_batch(b, err);
    }
    if (b->batch.status == BATCH_VALIDATING) {
        TRY(store_batch_begin(store, b->batch.id, b->lines.n, b->lines.model, now_s(), err));
        b->batch.n_total = b->lines.n;
    }
    return mark_answered(b, err);
}

/* Releases the current batch, so that the next one can start. */
static void forget(struct batches *b)
{
    stored_batch_deinit(&b->batch);
    job_lines_deinit(&b->lines);
    b->batch = (struct stored_batch){0};
    b->id[0] = '\0';
    b->stage = STAGE_NONE;
    b->cancelled = b->is_logged = false;
    b->look_at = 0;
}

static void load_work(void *arg)
{
    struct batches *b = arg;
    stored_batch_deinit(&b->batch);
    b->work_status = load(b, b->id, &b->work_error);
}

/* The store failed: retry later, and log it only once. */
static void try_later(struct batches *b, const char *what, const struct err *why)
{
    b->retry_at = b->now + RETRY_S;
    if (!b->is_logged) {
        log_error("%s waits: %s: %s", b->id, what, why->text);
    }
    b->is_logged = true;
}

static enum status keep(void *arg, const struct batch_answer *answers, size_t n, struct err *err)
{
    struct batches *b = arg;
    return store_batch_answer(b->options.store, b->batch.id, answers, n, err);
}

/* Starts the job of the current batch. JOB_ORDER_RATIO keeps the engine busy to the end. */
static void start_job(struct batches *b)
{
    struct job_options o = {.calls = b->options.calls,
                            .input = input_of(b),
                            .lines = &b->lines,
                            .order = JOB_ORDER_RATIO,
                            .keep = keep,
                            .wake = wake,
                            .arg = b};
    b->stage = STAGE_RUN;
    b->job = job_open(&o);
    log_info("%s: %d requests, %lld answered before", b->id, b->lines.n,
             (long long)(b->batch.n_completed + b->batch.n_failed));
}

/* Stops the job if the server stops or the batch was cancelled or has expired. Called in each turn.
 */
static void check_job(struct batches *b)
{
    if (b->stopping) {
        job_stop(b->job, NULL, NULL);
    } else if (b->cancelled && b->end == BATCH_COMPLETED) {
        b->end = BATCH_CANCELLED;
        job_stop(b->job, "batch_cancelled", "The batch was cancelled before this request was run.");
    } else if (b->now >= b->batch.expires_at && b->end == BATCH_COMPLETED) {
        b->end = BATCH_EXPIRED;
        job_stop(b->job, "batch_expired",
                 "The completion window of the batch ended before this request was run.");
    }
}

/* Back on the loop thread, after `load`. If the store failed, the batch is loaded again later. */
static void loaded(void *arg)
{
    struct batches *b = arg;
    b->working = false;
    b->cancelled |= b->batch.status == BATCH_CANCELLING;
    if (b->work_status != OK) {
        job_lines_deinit(&b->lines);
        try_later(b, "the batch could not be loaded", &b->work_error);
    } else if (b->end != BATCH_COMPLETED) {
        forget(b); // it has already ended
    } else {
        start_job(b);
    }
    wake(b);
}

static void start_load(struct batches *b)
{
    b->stage = STAGE_LOAD;
    b->working = true;
    run(b, load_work, loaded);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* When the output files expire: as the batch's creator asked, otherwise by the server's retention;
 * 0: never. */
static int64_t files_expire_at(const struct batches *b)
{
    int64_t after;
    if (b->batch.output_expires_s > 0) {
        after = b->batch.output_expires_s;
    } else {
        after = b->options.retention_s;
    }
    if (after > 0) {
        return now_s() + after;
    }
    return 0;
}

/* On the pool. Sets FINALIZING first: from then on the batch cannot be cancelled. */
static void end_work(void *arg)
{
    struct batches *b = arg;
    struct store *store = b->options.store;
    b->work_status = OK;
    if (b->end == BATCH_COMPLETED) {
        bool moved =
            store_batch_move(store, b->batch.id, 1u << BATCH_IN_PROGRESS | 1u << BATCH_FINALIZING,
                             BATCH_FINALIZING, now_s(), &b->work_status, &b->work_error);
        if (!(moved || b->work_status != OK)) {
            b->end = BATCH_CANCELLED; // it was cancelled at the last moment
        }
    }
    if (b->work_status == OK) {
        b->work_status = store_batch_finish(store, b->batch.id, b->end, now_s(), files_expire_at(b),
                                            &b->work_error);
    }
}

static void ended(void *arg)
{
    struct batches *b = arg;
    b->working = false;
    if (b->work_status != OK) {
        try_later(b, "its output files could not be written", &b->work_error);
    } else {
        log_info("%s: %s", b->id, batch_status_names[b->end]);
        forget(b);
    }
    wake(b);
}

static void start_end(struct batches *b)
{
    b->stage = STAGE_END;
    b->working = true;
    run(b, end_work, ended);
}

static void add_progress(struct batches_counts *c, const struct job *j)
{
    struct job_progress p;
    job_progress(j, &p);
    c->n_completed += p.n_answered - p.n_before - p.n_failed;
    c->n_failed += p.n_failed;
    c->prompt_tokens += p.prompt_tokens;
    c->computed_tokens += p.prompt_tokens - p.cached_tokens;
    c->output_tokens += p.output_tokens;
}

static void close_job(struct batches *b)
{
    add_progress(&b->counts, b->job);
    job_close(b->job);
    b->job = NULL;
}

/* ---- cancelling before the turn -------------------------------------------------------------- */

struct cancel {
    struct batches *batches;
    char id[STORE_ID_BYTES];
    enum status st;
    struct err err;
};

static void cancel_work(void *arg)
{
    struct cancel *c = arg;
    c->st =
        store_batch_finish(c->batches->options.store, c->id, BATCH_CANCELLED, now_s(), 0, &c->err);
}

static void cancel_done(void *arg)
{
    struct cancel *c = arg;
    if (c->st != OK) { // the store failed: the batch is ended when its turn comes
        batches_add(c->batches, c->id);
    }
    free(c);
}

void batches_cancel(struct batches *b, const char *id)
{
    if (strcmp(b->id, id) == 0) {
        b->cancelled = true;
        wake(b);
    } else if (take_waiting(b, id)) {
        struct cancel *c = xcalloc(1, sizeof *c);
        c->batches = b;
        snprintf(c->id, sizeof c->id, "%s", id);
        b->options.calls->host->run(b->options.calls, cancel_work, cancel_done, c);
    }
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void take_next(struct batches *b)
{
    struct waiting *w = b->first;
    if (!b->started || b->stopping || !w) {
        return;
    }
    memcpy(b->id, w->id, sizeof b->id);
    b->first = w->next;
    if (!w->next) {
        b->last = &b->first;
    }
    free(w);
    start_load(b);
}

static bool engine_is_ready(const struct batches *b)
{
    struct engine_stats stats;
    engine_stats(b->options.calls->engine, &stats);
    return stats.state == ENGINE_READY;
}

/* The job stopped with an error, for example because the input file cannot be read. Its answers are
 * stored, and the batch is loaded again later for the remaining lines, if there is still an engine.
 */
static void job_failed(struct batches *b)
{
    struct err why = *job_error(b->job);
    close_job(b);
    if (b->stopping || !engine_is_ready(b)) {
        log_error("%s will continue at the next start of the server: %s", b->id, why.text);
        b->stopping = true;
        forget(b);
        return;
    }
    job_lines_deinit(&b->lines);
    b->stage = STAGE_LOAD;
    try_later(b, "it was interrupted", &why);
}

static void run_turn(struct batches *b)
{
    check_job(b);
    if (job_turn(b->job)) {
        if (job_error(b->job)) {
            job_failed(b);
            return;
        }
        close_job(b);
        if (b->stopping) {
            forget(b);
        } else {
            start_end(b);
        }
    } else if (job_keep_error(b->job) && b->retry_at == 0) {
        try_later(b, "its answers could not be stored", job_keep_error(b->job));
    }
}

void batches_turn(struct batches *b)
{
    b->now = now_s();
    if (b->working || b->retry_at > 0) {
        if (b->job && !b->working) {
            job_turn(b->job); // continues its calls
        }
        return;
    }
    if (b->stage == STAGE_NONE) {
        take_next(b);
    } else if (b->stage == STAGE_RUN) {
        run_turn(b);
    }
}

/* Repeats the operation of the store that failed. */
static void try_again(struct batches *b)
{
    b->retry_at = 0;
    if (b->stage == STAGE_LOAD) {
        start_load(b);
    } else if (b->stage == STAGE_END) {
        start_end(b);
    } else if (b->job && job_keep_error(b->job)) {
        job_keep_again(b->job);
    }
}

/* ---- the store's size and expired data ------------------------------------------------------- */

static void look_work(void *arg)
{
    struct batches *b = arg;
    struct err err = {""};
    int64_t now = now_s();
    if (now >= b->sweep_at) {
        int64_t ended_before = 0;
        if (b->options.retention_s > 0) {
            ended_before = now - b->options.retention_s;
        }
        if (store_expire(b->options.store, now, ended_before, &err) != OK) {
            log_warn("expired data cannot be deleted: %s", err.text);
        }
        b->sweep_at = now + SWEEP_S;
    }
    b->usage_status = store_usage(b->options.store, &b->usage, &err);
}

static void looked(void *arg)
{
    struct batches *b = arg;
    b->looking = false;
    if (b->usage_status == OK) {
        b->counts.usage = b->usage;
        b->counts.has_usage = true;
    }
}

void batches_tick(struct batches *b, int64_t now)
{
    b->now = now;
    if (b->retry_at > 0 && now >= b->retry_at && !b->stopping) {
        try_again(b);
    }
    if (now >= b->look_at && !b->looking && !b->stopping) {
        b->look_at = now + LOOK_S;
        b->looking = true;
        run(b, look_work, looked);
    }
    batches_turn(b);
}

/* ---- open and close -------------------------------------------------------------------------- */

struct batches *batches_open(const struct batches_options *options)
{
    struct batches *b = xcalloc(1, sizeof *b);
    b->options = *options;
    b->last = &b->first;
    b->now = now_s();
    return b;
}

struct start {
    struct batches *batches;
    struct stored_batch *list;
    size_t n;
};

static void start_work(void *arg)
{
    struct start *s = arg;
    struct err err = {""};
    if (store_batch_unfinished(s->batches->options.store, &s->list, &s->n, &err) != OK) {
        log_error("batches of an earlier run are not continued: %s", err.text);
    }
}

static void start_done(void *arg)
{
    struct start *s = arg;
    for (size_t i = 0; i < s->n; i++) {
        take_waiting(s->batches, s->list[i].id); // it may have been added while the model was
                                                 // loading
        batches_add(s->batches, s->list[i].id);
        stored_batch_deinit(&s->list[i]);
    }
    s->batches->started = true;
    wake(s->batches);
    free(s->list);
    free(s);
}

void batches_start(struct batches *b)
{
    struct start *s = xcalloc(1, sizeof *s);
    s->batches = b;
    b->options.calls->host->run(b->options.calls, start_work, start_done, s);
}

void batches_stop(struct batches *b)
{
    b->stopping = true;
    b->retry_at = 0;
    wake(b);
}

void batches_count(const struct batches *b, struct batches_counts *out)
{
    *out = b->counts;
    if (b->job) {
        struct job_progress p;
        job_progress(b->job, &p);
        add_progress(out, b->job);
        snprintf(out->id, sizeof out->id, "%s", b->id);
        out->n_total = p.n_lines;
        out->n_done = p.n_answered;
    }
}

void batches_close(struct batches *b)
{
    if (!b) {
        return;
    }
    while (b->first) {
        struct waiting *w = b->first;
        b->first = w->next;
        free(w);
    }
    if (b->job) {
        close_job(b);
    }
    forget(b);
    free(b);
}
