// SPDX-License-Identifier: Apache-2.0
/* Shared by the files of a job: job_answers.c (answers, until they are stored), job_calls.c (calls
 * for lines, and how many fit) and job.c (turns). A file only uses those before it in this list. */
#ifndef SLUICE_SERVER_JOBS_JOB_PRIVATE_H
#define SLUICE_SERVER_JOBS_JOB_PRIVATE_H

#include "engine/engine.h"
#include "server/jobs/answer.h"
#include "server/jobs/job.h"

#include <stdatomic.h>

enum {
    JOB_FETCH = 32, // bodies read per task
    MAX_ANSWER_BYTES = 1 << 30,
};

struct job_call {
    struct call call; // must be first
    struct job *job;
    struct job_member member;
    int64_t n_blocks; // the call's part of job.n_blocks
    char *text;       // the body, until it is prepared
    char id[ANSWER_ID_BYTES];
    struct job_call *next, **link;
};

struct answers {
    struct batch_answer *list;
    size_t n, cap;
};

struct fetched {
    struct job_member member;
    struct buf text;
    enum status st;
};

/* The task that the pool is running. */
enum work { WORK_NONE, WORK_PLAN, WORK_FETCH };

struct job {
    struct job_options options;
    struct job_plan plan;
    int32_t next;        // the next member of the part to fetch
    int32_t *group_live; // running members of each group of the part

    enum work work;
    enum status work_status;
    struct err work_error;
    struct fetched fetched[JOB_FETCH];
    int32_t n_fetched, i_fetched;

    struct job_call *live;
    int32_t n_live, n_live_samples;
    int64_t n_blocks;              // expected blocks of running calls
    int64_t n_ended, ended_output; // samples that ended by themselves, and their tokens

    struct answers pending, kept; // kept: being stored on the pool
    bool keeping, keep_failed;
    enum status keep_status; // like keep_error, owned by the pool while `keeping`
    struct err keep_error;

    bool stopping, planned_all, lost;
    atomic_bool given_up; // set by job_stop; tells the planner to stop
    const char *stop_code;
    char stop_message[256];
    int32_t n_filled; // lines processed after the job was stopped with a reason
    struct err error; // text "": none
    bool in_turn, again;
    struct job_progress progress;
};

static inline const struct engine_info *job_engine_info(const struct job *j)
{
    return engine_info(j->options.calls->engine);
}

/* Something has changed: the current turn takes another step; outside of a turn one is requested.
 */
static inline void job_wake(struct job *j)
{
    if (j->in_turn) {
        j->again = true;
    } else {
        j->options.wake(j->options.arg);
    }
}

/* Runs work on the pool, then done on this thread. */
static inline void job_run(struct job *j, void (*work)(void *arg), void (*done)(void *arg))
{
    struct call_server *calls = j->options.calls;
    if (calls->host->run) {
        calls->host->run(calls, work, done, j);
    } else {
        work(j);
        done(j);
    }
}

/* ---- job_answers.c ---- */

/* Adds the answer of a line; takes ownership of the text. record: NULL if there was no call. */
void job_answer_line(struct job *j, int32_t line, bool failed, struct buf *text,
                     const struct call_record *record);
void job_refuse_line(struct job *j, int32_t line, const char *id, const struct call_error *e);
/* Passes pending answers to `keep`, unless it is running or has failed. */
void job_keep_answers(struct job *j);
/* Stores the rest on this thread, and frees everything. */
void job_answers_deinit(struct job *j);

/* ---- job_calls.c ---- */

bool job_has_room(const struct job *j, const struct job_member *m);
/* Takes ownership of the text. The call may be over on return. */
void job_start_call(struct job *j, struct fetched *f);
/* Called when the part to which the member's group belongs has ended. */
void job_leave_group(struct job_call *jc);

#endif
