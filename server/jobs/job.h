// SPDX-License-Identifier: Apache-2.0
/* A job: the lines of an input, run beside whatever else the engine does, each answered once.
 *
 *     plan a part (pool) -> read bodies (pool) -> calls, in the plan's order -> answers -> keep
 * (pool)
 *
 * A line is submitted when the KV blocks that all submitted ones will probably need leave room for
 * it; a prefix that a group shares is counted once, while a member of the group runs. Outputs are
 * taken to be as long as max_tokens allows, and, once some have ended, as long as those on average.
 * What is submitted has a priority below all interactive requests, which take its blocks and its
 * lane when they need them.
 *
 * Every line that has no answer yet gets exactly one: the body, an error, or, when the job is
 * stopped with a reason, that reason. Stopped without one, it is left for another time. Thread:
 * that of the calls, apart from what the host's `run` does with `keep` and the input's `read`. */
#ifndef SLUICE_SERVER_JOBS_JOB_H
#define SLUICE_SERVER_JOBS_JOB_H

#include "server/call/call.h"
#include "server/jobs/lines.h"
#include "server/jobs/plan.h"
#include "server/store/store.h"

enum { JOB_PRIORITY = 1 << 30 }; // interactive requests have 0, or what they ask for

struct job;

struct job_options {
    struct call_server *calls;
    struct job_input input;
    struct job_lines *lines; // checked, without errors; the job marks those that it answers
    enum job_order order;
    int n_threads; // that plan; 0: 2

    /* Stores answers: on the pool, one call at a time. After an error the job waits for
     * job_keep_again, and loses nothing. */
    enum status (*keep)(void *arg, const struct batch_answer *answers, size_t n, struct err *err);
    /* Calls job_turn soon, from where it is safe: after call_on_wake, or from a timer. Any moment
     * on the calls' thread. */
    void (*wake)(void *arg);
    void *arg;
};

struct job_progress {
    int32_t n_lines, n_answered; // those answered before count
    int32_t n_before, n_failed;  // answered before; answered by this job with an error
    int32_t n_running;           // calls
    int64_t prompt_tokens, cached_tokens, output_tokens; // of what this job has answered
    int64_t planned_tokens, planned_computed;            // see struct job_plan
};

/* Starts with the first job_turn. */
struct job *job_open(const struct job_options *options);

/* Goes on with what can be done now. True: the job is over, and nothing is left of it anywhere. */
bool job_turn(struct job *j);

/* No more lines are submitted and those that run are cancelled. code (static text) and message: the
 * answer of all that have none; NULL: they are left. Later calls do nothing. */
void job_stop(struct job *j, const char *code, const char *message);

/* What `keep` has refused, and may be tried again; NULL: nothing. */
const struct err *job_keep_error(const struct job *j);
void job_keep_again(struct job *j);
/* Gives up what could not be kept: those lines are left. For a job that was stopped. */
void job_drop_answers(struct job *j);

/* The job has ended because the engine did, or its input could not be read; NULL: neither. */
const struct err *job_error(const struct job *j);

void job_progress(const struct job *j, struct job_progress *out);

/* Of a job that is over, or whose calls are and the pool has nothing of: answers that were not kept
 * yet are, by this thread. Accepts NULL. */
void job_close(struct job *j);

#endif
