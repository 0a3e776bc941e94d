// SPDX-License-Identifier: Apache-2.0
/* How calls end: with an answer, an error or a deadline, or because the client has left; and when
 * their memory is freed. */
#include "engine/engine.h"
#include "server/call/call_private.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "server/call/beams.h"
#include "server/call/format.h"
#include "server/call/shifts.h"
#include "server/call/tenant.h"

#include <math.h>
#include <stdlib.h>

enum { PATIENCE_MARGIN_S = 2 /* arbitrary */ };

void call_stop_waiting(struct call *c)
{
    if (c->tenant) {
        c->tenant->n_waiting -= c->n_waiting;
    }
    c->n_waiting = 0;
}

/* Tells the owner that the call is over; the owner may free it. */
static void forget(struct call *c)
{
    *c->link = c->next;
    if (c->next) {
        c->next->link = c->link;
    }
    c->server->n_calls--;
    for (size_t i = 0; i < c->n_choices; i++) {
        call_choice_deinit(&c->choices[i]);
    }
    for (size_t i = 0; i < c->n_requests; i++) {
        free(c->requests[i].prompt_logprobs);
        free(c->requests[i].pooled);
    }
    beams_close(c);
    shifts_close(c);
    free(c->choices);
    free(c->requests);
    free(c->memory);
    free(c->salt);
    free(c->not_kept);
    free(c->why);
    if (c->extra && c->format->forget) {
        c->format->forget(c);
    }
    free(c->extra);
    buf_deinit(&c->chunk_head);
    buf_deinit(&c->written);
    request_deinit(&c->request);
    c->sink->over(c);
}

/* A call is freed when no pool job, no queue and no request in the engine refers to it. During a
 * drain of the engine it is only marked, since the loop over its events still uses it. */
void call_release(struct call *c)
{
    if (c->answered && !c->preparing && !c->saving && !c->queued && c->n_done == c->n_submitted) {
        if (!c->server->in_drain) {
            forget(c);
        } else if (!c->dead) {
            c->dead = true;
            c->next_dead = c->server->dead;
            c->server->dead = c;
        }
    }
}

/* Frees the calls that ended in the last drain. */
void call_forget_dead(struct call_server *s)
{
    while (s->dead) {
        struct call *c = s->dead;
        s->dead = c->next_dead;
        forget(c);
    }
}

static void cancel(struct call *c)
{
    if (c->beams) {
        beams_cancel(c);
        return;
    }
    if (c->shifts) {
        shifts_cancel(c);
        return;
    }
    for (size_t i = 0; i < c->n_submitted; i++) {
        if (!c->requests[i].done) {
            engine_cancel(c->server->engine, &c->requests[i]);
        }
    }
}

static void set_deadline(struct call *c, int64_t delay_ms)
{
    if (c->server->host->set_deadline && !c->offline) {
        c->server->host->set_deadline(c, delay_ms);
    }
}

void call_let_go(struct call *c)
{
    c->answered = true;
    call_stop_waiting(c);
    set_deadline(c, -1);
    cancel(c);
    call_release(c);
}

/* Records the token counts for the log, however the call ends. */
static void record_tokens(struct call *c)
{
    struct call_usage u = call_usage_of(c);
    c->record.n_output_tokens = u.completion;
    c->record.n_cached_tokens = u.cached;
}

/* What precedes the end of an answer and would hold up the loop: a long answer is written, or a
 * response stored. */
static void prepare_end(void *arg)
{
    struct call *c = arg;
    if (c->format->write) {
        buf_init(&c->written, (size_t)1 << 30);
        c->format->write(c, &c->written);
    } else {
        c->format->save(c);
    }
}

/* Back on the calls' thread. The client may have left meanwhile. */
static void on_prepared(void *arg)
{
    struct call *c = arg;
    call_watch_memory(c->server);
    c->saving = false;
    if (c->answered) {
        call_release(c);
        return;
    }
    if (c->format->write) {
        struct buf body = c->written;
        c->written = (struct buf){0};
        call_whole(c, &body);
    } else {
        c->format->end(c);
    }
    call_let_go(c);
}

/* The answer ends once it has been prepared on the pool; its deadline no longer applies. */
static void start_end(struct call *c)
{
    c->saving = true;
    set_deadline(c, -1);
    if (c->server->host->run) {
        c->server->host->run(c->server, prepare_end, on_prepared, c);
    } else {
        prepare_end(c);
        on_prepared(c);
    }
}

/* Ends a background response, whose client may have left: the output so far is stored with its
 * final status. */
void call_end_kept(struct call *c)
{
    if (c->saving) {
        return;
    }
    for (size_t i = 0; i < c->n_choices; i++) { // no more tokens are taken
        if (!c->choices[i].finish) {
            c->choices[i].finish = "cancelled";
        }
    }
    cancel(c);
    record_tokens(c);
    if (c->ending == CALL_FAILED) {
        c->record.finish = "error";
    } else {
        c->record.finish = "cancelled";
    }
    c->closed = true;
    c->format->close(c);
    start_end(c);
}

void call_cancel(struct call *c)
{
    if (!c->answered && c->kept && c->ending == CALL_ANSWERED && !c->closed) {
        c->ending = CALL_CANCELLED;
        call_end_kept(c);
    }
}

/* Ends the call with an error: the client gets it as the status or, in a stream, as an event, and
 * the engine's work is cancelled. Later failures have no effect. */
void call_fail(struct call *c, const struct call_error *e)
{
    if (c->answered || c->closed) {
        return;
    }
    if (c->kept || c->saving) {
        c->ending = CALL_FAILED;
        if (!c->why) {
            c->why = xstrdup(e->message);
        }
        c->record.error = e->code;
        call_end_kept(c);
        return;
    }
    c->record.error = e->code;
    c->record.finish = "error";
    record_tokens(c);
    if (c->streaming && c->format->error && c->sink->is_begun(c)) {
        c->format->error(c, e);
        c->sink->end(c, false);
    } else {
        c->sink->error(c, e);
    }
    call_let_go(c);
}

void call_abort_all(struct call_server *s, const struct call_error *e)
{
    for (struct call *c = s->calls, *next; c; c = next) {
        next = c->next;
        if (!c->preparing) {
            call_fail(c, e);
        }
    }
}

void call_watch_memory(struct call_server *s)
{
    s->n_lost = buf_n_lost();
}

/* Called before anything is sent. If a buffer ran out of memory, part of the answer is missing, so
 * the call fails. */
bool call_lacks_memory(struct call *c)
{
    if (buf_n_lost() == c->server->n_lost) {
        return false;
    }
    struct call_error e = {0};
    call_error_no_memory(&e);
    call_fail(c, &e);
    return true;
}

void call_give_back(struct call *c)
{
    c->record.finish = "cancelled";
    record_tokens(c);
    c->sink->drop(c);
    call_let_go(c);
}

void call_gone(struct call *c, enum call_abort why)
{
    c->gone = true;
    c->server->counts.aborted[why] += !c->offline;
    if (!c->preparing) { // otherwise the pool is still reading the body
        call_give_back(c);
    }
}

/* A call is complete when every sample has ended; pooled prompts have no samples. */
void call_finish_if_complete(struct call *c)
{
    bool complete;
    if (c->request.pools) {
        complete = c->n_done == c->n_requests;
    } else {
        complete = c->n_finished == c->n_choices;
    }
    if (!complete || c->answered || c->saving) {
        return;
    }
    record_tokens(c);
    if (c->n_choices > 0) {
        c->record.finish = c->choices[0].finish;
    } else {
        c->record.finish = "stop";
    }
    if (c->format->close) {
        c->format->close(c);
    }
    if (!c->kept && call_lacks_memory(c)) {
        return;
    }
    c->closed = true;
    if (c->format->write || (c->format->save && c->request.stores)) {
        start_end(c);
    } else {
        c->format->end(c);
        call_let_go(c);
    }
}

/* ---- deadlines --------------------------------------------------------------------------------
 */

/* A request that still waits for its first token fails with 503, a running one with 504. */
void call_on_deadline(struct call *c)
{
    struct call_error e = {0};
    if (c->answered || c->preparing) {
        return;
    }
    if (c->deadline_is_queue && !c->first_token) {
        call_error_set(&e, 503, "queue_timeout", NULL,
                       "The request waited too long for its first token.");
        e.retry_after_s = 5;
        c->server->counts.rejected[REJECT_DEADLINE]++;
    } else {
        call_error_set(&e, 504, "request_timeout", NULL, "The request took too long.");
        c->server->counts.aborted[ABORT_DEADLINE]++;
    }
    e.type = "server_error";
    call_fail(c, &e);
}

/* Sets the deadline for the first token, if one is configured, and after that token the deadline
 * for the whole request. A shorter timeout in the request takes precedence. */
void call_start_deadline(struct call *c)
{
    const struct config *config = c->server->config;
    double total = config->request_timeout, queue = config->queue_timeout;
    if (c->request.timeout_s > 0 && c->request.timeout_s < total) {
        total = c->request.timeout_s;
    }
    /* A client with a time-out of its own does not wait longer for a whole answer. The margin lets
     * it see its own timeout before our error. */
    double patience = c->patience_s + PATIENCE_MARGIN_S;
    if (c->patience_s > 0 && !c->request.stream && patience < queue) {
        queue = patience;
    }
    c->deadline_is_queue = !c->first_token && queue < total && !c->request.detached;
    double wait = c->deadline_is_queue ? queue : total;
    double spent = (double)(clock_now_ns() - c->t_start_ns) * 1e-9;
    int64_t ms = (int64_t)ceil((wait - spent) * 1000);
    set_deadline(c, greater(ms, 1));
}
