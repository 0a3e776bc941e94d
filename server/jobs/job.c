// SPDX-License-Identifier: Apache-2.0
#include "server/jobs/job_private.h"

#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    FILL = 1024,        // after a stop: answers written per turn for lines that were not run
    MAX_PENDING = 4096, // unstored answers; with more of them no line is submitted
};

/* ---- work on the pool ------------------------------------------------------------------------ */

/* On the pool's thread: plans the next part. */
static void plan_work(void *arg)
{
    struct job *j = arg;
    struct job_plan_options o = {.model = &j->options.calls->model,
                                 .match_unit = job_engine_info(j)->match_unit,
                                 .order = j->options.order,
                                 .n_threads = j->options.n_threads,
                                 .given_up = &j->given_up};
    j->work_status =
        job_plan_next(&j->plan, &o, &j->options.input, j->options.lines, &j->work_error);
}

/* Back on the loop's thread. Running calls of the previous part leave their groups, whose numbers
 * now mean groups of the new part. */
static void planned(void *arg)
{
    struct job *j = arg;
    j->work = WORK_NONE;
    j->next = 0;
    if (j->work_status != OK) {
        j->lost = true;
        j->error = j->work_error;
    } else {
        for (struct job_call *jc = j->live; jc; jc = jc->next) {
            job_leave_group(jc);
        }
        j->planned_all = j->plan.n_members == 0;
        free(j->group_live);
        j->group_live = xcalloc((size_t)j->plan.n_groups + 1, sizeof *j->group_live);
        j->progress.planned_tokens = j->plan.logical_tokens;
        j->progress.planned_computed = j->plan.computed_tokens;
    }
    job_wake(j);
}

/* Reads the bodies of some lines ahead of their submission. */
static void fetch_work(void *arg)
{
    struct job *j = arg;
    for (int32_t i = 0; i < j->n_fetched; i++) {
        struct fetched *f = &j->fetched[i];
        const struct job_line *l = &j->options.lines->lines[f->member.line];
        struct err err = {""};
        buf_init(&f->text, (size_t)l->body_bytes + 1);
        f->st = j->options.input.read(j->options.input.arg, l->body_at, (size_t)l->body_bytes,
                                      &f->text, &err);
    }
}

/* On the loop's thread; the next turn submits them. */
static void fetched(void *arg)
{
    struct job *j = arg;
    j->work = WORK_NONE;
    j->i_fetched = 0;
    job_wake(j);
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* The input could not be read. */
static void refuse_fetched(struct job *j, struct fetched *f)
{
    struct call_error e = {0};
    char new_id[ANSWER_ID_BYTES];
    answer_make_id(new_id);
    call_error_set(&e, 500, "internal_error", NULL, "The line could not be read again.");
    buf_deinit(&f->text);
    job_refuse_line(j, f->member.line, new_id, &e);
}

/* Submits as many lines as the engine has room for. A line that cannot be read is answered with an
 * error. */
static void submit(struct job *j)
{
    while (j->i_fetched < j->n_fetched && !j->lost && j->pending.n < MAX_PENDING) {
        struct fetched *f = &j->fetched[j->i_fetched];
        if (f->st != OK || !f->text.data) {
            refuse_fetched(j, f);
        } else if (job_has_room(j, &f->member)) {
            job_start_call(j, f);
        } else {
            return;
        }
        j->i_fetched++;
    }
}

/* Fetches the next bodies, or plans the next part. */
static void provide(struct job *j)
{
    if (j->work != WORK_NONE || j->i_fetched < j->n_fetched || j->planned_all || j->lost) {
        return;
    }
    j->n_fetched = j->i_fetched = 0;
    if (j->next == j->plan.n_members) {
        j->work = WORK_PLAN;
        job_run(j, plan_work, planned);
        return;
    }
    while (j->n_fetched < JOB_FETCH && j->next < j->plan.n_members) {
        j->fetched[j->n_fetched++] = (struct fetched){.member = j->plan.members[j->next++]};
    }
    j->i_fetched = j->n_fetched; // no body has been fetched yet
    j->work = WORK_FETCH;
    job_run(j, fetch_work, fetched);
}

static void drop_fetched(struct job *j)
{
    for (; j->i_fetched < j->n_fetched; j->i_fetched++) {
        buf_deinit(&j->fetched[j->i_fetched].text);
    }
}

/* After a stop with a reason: answers the lines that were not run. */
static void fill(struct job *j)
{
    struct job_lines *l = j->options.lines;
    for (int n = 0; j->n_filled < l->n && n < FILL; j->n_filled++) {
        if (!l->lines[j->n_filled].is_answered) {
            char new_id[ANSWER_ID_BYTES];
            struct buf text;
            buf_init(&text, MAX_ANSWER_BYTES);
            answer_make_id(new_id);
            answer_put_unmade(&text, new_id, job_line_id(l, j->n_filled), j->stop_code,
                              j->stop_message);
            job_answer_line(j, j->n_filled, true, &text, NULL);
            n++;
        }
    }
}

/* One step of the state machine: submit, fetch, plan or end. Called again whenever
 * something has changed. */
static void step(struct job *j)
{
    if (j->lost) {
        job_stop(j, NULL, NULL);
    }
    if (!j->stopping) {
        submit(j);
        provide(j);
        submit(j);
    } else if (j->work == WORK_NONE) {
        drop_fetched(j);
        bool rests = j->n_live == 0 && j->pending.n == 0 && !j->keeping && j->kept.n == 0;
        if (j->stop_code && rests) {
            fill(j);
        }
    }
    job_keep_answers(j);
}

/* True if no call or work runs, every answer is stored, and nothing is left to do. */
static bool is_over(const struct job *j)
{
    bool has_more = !j->stopping && (!j->planned_all || j->i_fetched < j->n_fetched);
    has_more |= j->stop_code && j->n_filled < j->options.lines->n;
    return !has_more && j->work == WORK_NONE && !j->keeping && j->n_live == 0 &&
           j->pending.n == 0 && j->kept.n == 0;
}

/* A callback that runs within a step sets `again`, so that steps never nest. */
bool job_turn(struct job *j)
{
    if (j->in_turn) {
        j->again = true;
        return false;
    }
    j->in_turn = true;
    do {
        j->again = false;
        step(j);
    } while (j->again);
    j->in_turn = false;
    return is_over(j);
}

/* ---- interface ------------------------------------------------------------------------------- */

/* Lines that already have an answer count as done. */
struct job *job_open(const struct job_options *options)
{
    struct job *j = xcalloc(1, sizeof *j);
    j->options = *options;
    j->progress.n_lines = options->lines->n;
    for (int32_t i = 0; i < options->lines->n; i++) {
        j->progress.n_before += options->lines->lines[i].is_answered;
    }
    j->progress.n_answered = j->progress.n_before;
    return j;
}

/* Cancels running calls and tells planning threads to stop; the job ends when all of these have. */
void job_stop(struct job *j, const char *code, const char *message)
{
    if (j->stopping) {
        return;
    }
    j->stopping = true;
    atomic_store(&j->given_up, true);
    j->stop_code = code;
    if (message) {
        snprintf(j->stop_message, sizeof j->stop_message, "%s", message);
    }
    for (struct job_call *jc = j->live, *next; jc; jc = next) {
        next = jc->next;
        if (!jc->call.answered && !jc->call.gone) {
            call_gone(&jc->call, ABORT_SHUTDOWN);
        }
    }
    job_wake(j);
}

const struct err *job_error(const struct job *j)
{
    return j->error.text[0] ? &j->error : NULL;
}

void job_progress(const struct job *j, struct job_progress *out)
{
    *out = j->progress;
    out->n_running = j->n_live;
}

/* Only after the last call has ended. */
void job_close(struct job *j)
{
    if (j) {
        drop_fetched(j);
        job_answers_deinit(j);
        job_plan_deinit(&j->plan);
        free(j->group_live);
        free(j);
    }
}
