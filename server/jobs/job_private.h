// SPDX-License-Identifier: Apache-2.0
/* What the files of a job share: job_answers.c (answers, until they are kept), job_calls.c (lines
 * as calls, and how many fit), job.c (its turns). Each knows those before it alone. */
#ifndef SLUICE_SERVER_JOBS_JOB_PRIVATE_H
#define SLUICE_SERVER_JOBS_JOB_PRIVATE_H

#include "server/jobs/answer.h"
#include "server/jobs/job.h"

#include <stdatomic.h>

enum {
    JOB_FETCH = 32, // bodies that are read at once
    MAX_ANSWER_BYTES = 1 << 30,
};

struct job_call {
    struct call call; // first
    struct job *job;
    struct job_member member;
    int64_t n_blocks; // that were counted for it
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

/* What is on the pool. */
enum work { WORK_NONE, WORK_PLAN, WORK_FETCH };

struct job {
    struct job_options options;
    struct job_plan plan;
    int32_t next;        // member of the part that is fetched next
    int32_t *group_live; // members that run, of each group of the part

    enum work work;
    enum status work_status;
    struct err work_error;
    struct fetched fetched[JOB_FETCH];
    int32_t n_fetched, i_fetched;

    struct job_call *live;
    int32_t n_live, n_live_samples;
    int64_t n_blocks;              // that what runs will need
    int64_t n_ended, ended_output; // samples that ended by themselves, and their tokens

    struct answers pending, kept; // kept: with the pool
    bool keeping, keep_failed;
    enum status keep_status; // the pool's while it keeps, as keep_error
    struct err keep_error;

    bool stopping, planned_all, lost;
    atomic_bool given_up; // for the plan: stopping
    const char *stop_code;
    char stop_message[256];
    int32_t n_filled; // lines looked at, of a job that is stopped with a reason
    struct err error; // text "": none
    bool in_turn, again;
    struct job_progress progress;
};

static inline const struct engine_info *job_engine_info(const struct job *j)
{
    return engine_info(j->options.calls->engine);
}

/* Something has happened: within a turn it takes another round, else a turn is asked for. */
static inline void job_wake(struct job *j)
{
    if (j->in_turn) {
        j->again = true;
    } else {
        j->options.wake(j->options.arg);
    }
}

/* On the pool, and back. */
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

/* The answer of a line; takes the text's memory. record: NULL if there was no call. */
void job_answer_line(struct job *j, int32_t line, bool failed, struct buf *text,
                     const struct call_record *record);
void job_refuse_line(struct job *j, int32_t line, const char *id, const struct call_error *e);
/* Hands what there is to `keep`, unless it is at it or has failed. */
void job_keep_answers(struct job *j);
/* The rest, on this thread, and frees all. */
void job_answers_deinit(struct job *j);

/* ---- job_calls.c ---- */

bool job_has_room(const struct job *j, const struct job_member *m);
/* Takes the text. The call may be over when it returns. */
void job_start_call(struct job *j, struct fetched *f);
/* The member's group belongs to a part that is over. */
void job_leave_group(struct job_call *jc);

#endif
