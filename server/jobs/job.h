// SPDX-License-Identifier: Apache-2.0
/* | A job: the lines of an input, run alongside the engine's other requests and answered once each.
 *
 *     plan a part (pool) -> read bodies (pool) -> calls, in that order -> answers -> keep (pool)
 *
 * A line is submitted if its KV blocks fit in addition to those that all submitted lines are
 * expected to need; a prefix shared by a group is counted once while a member of the group runs.
 * Outputs are assumed to have max_tokens tokens or, once some have ended, the mean length of those.
 * Submitted lines have a lower priority than all interactive requests, which preempt them for
 * blocks and lanes.
 *
 * Every unanswered line gets exactly one answer: a body, an error, or the reason with which the job
 * was stopped. If it is stopped without a reason, the remaining lines stay unanswered, for a later
 * run.
 * Thread: that of the calls, except for what the host's `run` does with `keep` and the input's
 * `read`. */
#ifndef SLUICE_SERVER_JOBS_JOB_H
#define SLUICE_SERVER_JOBS_JOB_H

#include "server/call/call.h"
#include "server/jobs/lines.h"
#include "server/jobs/plan.h"
#include "server/store/store.h"

enum { JOB_PRIORITY = 1 << 30 }; // interactive requests have 0, or the value they request

struct job;

struct job_options {
    struct call_server *calls;
    struct job_input input;
    struct job_lines *lines; // as read by job_lines_read, without errors; the job marks the lines
                             // that it answers
    enum job_order order;
    int n_threads; // number of threads that tokenize; 0: 2

    /* Stores answers; called on the pool, one call at a time. After an error the job keeps the
     * answers and waits for job_keep_again. */
    enum status (*keep)(void *arg, const struct batch_answer *answers, size_t n, struct err *err);
    /* Calls job_turn soon, from a safe place: after call_on_wake, or from a timer. May be called at
     * any moment on the calls' thread. */
    void (*wake)(void *arg);
    void *arg;
};

struct job_progress {
    int32_t n_lines, n_answered; // lines of the input; those with an answer, including n_before
    int32_t n_before, n_failed;  // lines answered before this job; lines that it answered with an
                                 // error
    int32_t n_running;           // calls in progress
    int64_t prompt_tokens, cached_tokens, output_tokens; // totals of the lines that this job has
                                                         // answered
    int64_t planned_tokens, planned_computed;            // see struct job_plan
};

/* Starts with the first job_turn. */
struct job *job_open(const struct job_options *options);

/* Does what can be done now. True: the job is over, and neither the engine nor the pool uses it. */
bool job_turn(struct job *j);

/* Submits no more lines and cancels the running ones. code (static text) and message become the
 * answer of all unanswered lines; if NULL, these stay unanswered. Later calls have no effect. */
void job_stop(struct job *j, const char *code, const char *message);

/* The error with which `keep` failed, to be retried with job_keep_again; NULL: none. */
const struct err *job_keep_error(const struct job *j);
void job_keep_again(struct job *j);
/* Discards answers that could not be stored: those lines stay unanswered. For a job that was
 * stopped. */
void job_drop_answers(struct job *j);

/* Set if the job has ended because the engine did, or because its input could not be read;
 * otherwise NULL. */
const struct err *job_error(const struct job *j);

void job_progress(const struct job *j, struct job_progress *out);

/* For a job that is over, or at least has no call left and nothing on the pool: stores remaining
 * answers on this thread. Accepts NULL. */
void job_close(struct job *j);

#endif
