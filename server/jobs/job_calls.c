// SPDX-License-Identifier: Apache-2.0
#include "server/jobs/job_private.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

/* Once this many samples have ended, the mean of their lengths predicts the others. */
enum { LEARNED = 8 };

/* ---- the sink -------------------------------------------------------------------------------- */

static struct job_call *of(const struct call *c)
{
    return (struct job_call *)c;
}

static const char *id(struct call *c, const char *asked)
{
    (void)asked; // a line is identified by its custom_id
    return of(c)->id;
}

static void prepared(struct call *c)
{
    c->request.priority = JOB_PRIORITY;
    c->request.background = true;
    free(of(c)->text);
    of(c)->text = NULL;
}

static void whole(struct call *c, struct buf *json)
{
    struct job_call *jc = of(c);
    struct job *j = jc->job;
    struct buf text;
    buf_init(&text, MAX_ANSWER_BYTES);
    answer_put_body(&text, jc->id, job_line_id(j->options.lines, jc->member.line), json->data,
                    json->n_bytes);
    if (json->failed || text.failed) {
        struct call_error e = {0};
        buf_deinit(&text);
        call_error_set(&e, 500, "internal_error", NULL, "The answer is too large.");
        job_refuse_line(j, jc->member.line, jc->id, &e);
    } else {
        job_answer_line(j, jc->member.line, false, &text, &c->record);
        j->n_ended += jc->member.n_samples;
        j->ended_output += greater(c->record.n_output_tokens, 0);
    }
    buf_deinit(json);
}

/* True if the engine failed rather than the line, which may succeed in a later run. */
static bool is_end_of_engine(const struct call *c, const struct call_error *e)
{
    struct engine_stats stats;
    if (e->status < 500) {
        return false;
    }
    engine_stats(c->server->engine, &stats);
    return stats.state != ENGINE_READY || strcmp(e->code, "server_draining") == 0 ||
           strcmp(e->code, "engine_dead") == 0;
}

static void error(struct call *c, const struct call_error *e)
{
    struct job_call *jc = of(c);
    if (!is_end_of_engine(c, e)) {
        job_refuse_line(jc->job, jc->member.line, jc->id, e);
    } else if (!jc->job->lost) {
        jc->job->lost = true;
        err_set(&jc->job->error, ERR_DEVICE, "%s", e->message);
    }
}

/* The call no longer counts as a member of its group. With the last one, the group's shared blocks
 * are no longer counted either. */
void job_leave_group(struct job_call *jc)
{
    struct job *j = jc->job;
    struct job_member *m = &jc->member;
    if (m->group >= 0 && --j->group_live[m->group] == 0) {
        j->n_blocks -= m->n_shared / job_engine_info(j)->block_tokens;
    }
    m->group = -1;
}

static void drop(struct call *c)
{
    (void)c; // the job is being stopped: its line stays unanswered
}

static void over(struct call *c)
{
    struct job_call *jc = of(c);
    struct job *j = jc->job;
    *jc->link = jc->next;
    if (jc->next) {
        jc->next->link = jc->link;
    }
    j->n_live--;
    j->n_live_samples -= jc->member.n_samples;
    j->n_blocks -= jc->n_blocks;
    job_leave_group(jc);
    free(jc->text);
    free(jc);
    job_wake(j);
}

static const struct call_sink sink = {
    .id = id, .prepared = prepared, .whole = whole, .error = error, .drop = drop, .over = over};

/* ---- admission ------------------------------------------------------------------------------- */

static int64_t blocks_of(int64_t n_tokens, int32_t block_tokens)
{
    return (n_tokens + block_tokens - 1) / block_tokens;
}

/* The blocks that a member is expected to need, without the whole blocks that its group shares; a
 * partly shared block is copied for each member. */
static int64_t own_blocks(const struct job *j, const struct job_member *m, int32_t block_tokens)
{
    int64_t output = m->max_output / m->n_samples;
    if (j->n_ended >= LEARNED && j->ended_output / j->n_ended < output) {
        output = j->ended_output / j->n_ended + 1;
    }
    int32_t shared = m->n_shared - m->n_shared % block_tokens;
    return blocks_of(m->n_prompt - shared, block_tokens) +
           m->n_samples * blocks_of(output, block_tokens);
}

/* True if the member fits into memory with the running calls. In addition, at most a quarter more
 * samples than lanes are submitted, so that a lane that becomes free has its next sample; more
 * would only wait in the engine's queue. */
bool job_has_room(const struct job *j, const struct job_member *m)
{
    const struct engine_info *info = job_engine_info(j);
    int64_t reserve = info->n_blocks / 32;
    int64_t need = own_blocks(j, m, info->block_tokens);
    if (m->group >= 0 && j->group_live[m->group] == 0) {
        need += m->n_shared / info->block_tokens;
    }
    if (j->n_live == 0) {
        return true; // nothing else runs: the engine decides whether it fits
    }
    int32_t lanes = info->max_num_seqs + info->max_num_seqs / 4 + 1;
    return !j->options.calls->queue && j->n_live_samples + m->n_samples <= lanes &&
           j->n_blocks + need <= info->n_blocks - reserve;
}

/* ---- starting calls -------------------------------------------------------------------------- */

/* Counts the blocks that the line is expected to need; the first running member of a group also
 * counts the shared prefix. */
void job_start_call(struct job *j, struct fetched *f)
{
    struct job_call *jc = xcalloc(1, sizeof *jc);
    const struct engine_info *info = job_engine_info(j);
    jc->job = j;
    jc->member = f->member;
    jc->text = f->text.data;
    answer_make_id(jc->id);
    jc->n_blocks = own_blocks(j, &f->member, info->block_tokens);
    j->n_blocks += jc->n_blocks;
    if (jc->member.group >= 0 && j->group_live[jc->member.group]++ == 0) {
        j->n_blocks += jc->member.n_shared / info->block_tokens;
    }
    jc->next = j->live;
    jc->link = &j->live;
    if (jc->next) {
        jc->next->link = &jc->next;
    }
    j->live = jc;
    j->n_live++;
    j->n_live_samples += jc->member.n_samples;
    jc->call.sink = &sink;
    jc->call.offline = true;
    jc->call.t_arrived_ns = clock_now_ns();
    jc->call.request.kind = (enum request_kind)j->options.lines->lines[f->member.line].kind;
    jc->call.request.text = jc->text;
    jc->call.request.n_bytes = f->text.n_bytes;
    f->text = (struct buf){0};
    call_start(j->options.calls, &jc->call); // it may already be over
}
