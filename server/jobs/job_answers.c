// SPDX-License-Identifier: Apache-2.0
/* Answers that are not stored yet. The loop's thread adds to `pending`, while the pool stores
 * `kept`; they are exchanged when a write has ended. */
#include "server/jobs/job_private.h"

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>

static void clear_answers(struct answers *a)
{
    for (size_t i = 0; i < a->n; i++) {
        free((char *)a->list[i].text);
    }
    a->n = 0;
}

void job_answer_line(struct job *j, int32_t line, bool failed, struct buf *text,
                     const struct call_record *record)
{
    struct answers *a = &j->pending;
    struct batch_answer one = {
        .line = line, .failed = failed, .text = text->data, .n_bytes = text->n_bytes};
    if (record && record->n_prompt_tokens > 0) {
        one.input_tokens = record->n_prompt_tokens;
        one.cached_tokens = greater(record->n_cached_tokens, 0);
        one.output_tokens = greater(record->n_output_tokens, 0);
    }
    if (a->n == a->cap) {
        a->cap = a->cap ? 2 * a->cap : 64;
        a->list = xrealloc(a->list, a->cap * sizeof *a->list);
    }
    a->list[a->n++] = one;
    j->options.lines->lines[line].is_answered = true;
    j->progress.n_answered++;
    j->progress.n_failed += failed;
    j->progress.prompt_tokens += one.input_tokens;
    j->progress.cached_tokens += one.cached_tokens;
    j->progress.output_tokens += one.output_tokens;
}

void job_refuse_line(struct job *j, int32_t line, const char *id, const struct call_error *e)
{
    struct buf text;
    buf_init(&text, MAX_ANSWER_BYTES);
    answer_put_refusal(&text, id, job_line_id(j->options.lines, line), e);
    job_answer_line(j, line, true, &text, NULL);
}

/* ---- storing answers ------------------------------------------------------------------------- */

static void keep_work(void *arg)
{
    struct job *j = arg;
    j->keep_status = j->options.keep(j->options.arg, j->kept.list, j->kept.n, &j->keep_error);
}

/* After a failure the answers stay in `kept`, and the job waits for job_keep_again. */
static void kept(void *arg)
{
    struct job *j = arg;
    j->keeping = false;
    j->keep_failed = j->keep_status != OK;
    if (!j->keep_failed) {
        clear_answers(&j->kept);
    }
    job_wake(j);
}

/* Starts to store all pending answers, unless a write is in progress. */
void job_keep_answers(struct job *j)
{
    if (j->keeping || j->keep_failed || (j->kept.n == 0 && j->pending.n == 0)) {
        return;
    }
    if (j->kept.n == 0) {
        struct answers empty = j->kept;
        j->kept = j->pending;
        j->pending = empty;
    }
    j->keeping = true;
    job_run(j, keep_work, kept);
}

const struct err *job_keep_error(const struct job *j)
{
    if (!j->keeping && j->keep_failed) {
        return &j->keep_error;
    }
    return NULL;
}

void job_keep_again(struct job *j)
{
    if (!j->keeping) {
        j->keep_failed = false;
        job_wake(j);
    }
}

/* For a job that was deleted: its answers are not needed. */
void job_drop_answers(struct job *j)
{
    if (!j->keeping) {
        clear_answers(&j->kept);
        clear_answers(&j->pending);
        j->keep_failed = false;
        j->n_filled = j->options.lines->n;
    }
}

static void keep_last(struct job *j, const struct answers *a)
{
    struct err err = {""};
    if (a->n > 0 && j->options.keep(j->options.arg, a->list, a->n, &err) != OK) {
        log_error("%zu answers are lost, and will be computed again: %s", a->n, err.text);
    }
}

/* Writes the answers that are not stored yet. If this fails, they will be computed again. */
void job_answers_deinit(struct job *j)
{
    keep_last(j, &j->kept);
    keep_last(j, &j->pending);
    clear_answers(&j->pending);
    clear_answers(&j->kept);
    free(j->pending.list);
    free(j->kept.list);
}
