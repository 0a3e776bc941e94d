// SPDX-License-Identifier: Apache-2.0
/* The engine's output for calls: taken at each wake, counted, and passed to the formats. */
#include "engine/engine.h"
#include "server/call/call_private.h"

#include "engine/base/clock.h"
#include "engine/base/minmax.h"
#include "server/call/beams.h"
#include "server/call/format.h"
#include "server/call/shifts.h"
#include "server/call/tenant.h"

/* Fails the call with the HTTP error for the engine's status: the cause is the client, the model or
 * the device. */
static void fail_with_engine(struct call *c, const struct engine_request *r)
{
    struct call_error e = {0};
    if (r->error == ERR_INVALID || r->error == ERR_LIMIT) {
        call_error_set(&e, 400, "invalid_value", NULL, "%s", r->error_text);
    } else if (r->error == ERR_NAN) {
        e.type = "server_error";
        call_error_set(&e, 500, "model_output_invalid", NULL, "The model failed: %s.",
                       r->error_text);
    } else if (r->error == ERR_BUSY) {
        e.retry_after_s = 5;
        call_error_set(&e, 503, "server_overloaded", NULL, "%s", r->error_text);
    } else if (r->error == OK || r->error == ERR_CANCELLED) {
        e.type = "server_error";
        call_error_set(&e, 503, "server_draining", NULL, "The server is shutting down.");
    } else {
        e.type = "server_error";
        call_error_set(&e, 500, "internal_error", NULL, "The engine failed: %s", r->error_text);
    }
    call_fail(c, &e);
}

/* Times are relative to the request's arrival, so they include reading and queueing. */
static void note_first_token(struct call *c, const struct engine_request *r, int64_t now_ns)
{
    struct call_record *record = &c->record;
    c->first_token = true;
    call_stop_waiting(c);
    record->first_token_ns = now_ns - c->t_arrived_ns;
    if (r->t_scheduled_ns > 0) {
        record->queued_ns = r->t_scheduled_ns - c->t_arrived_ns;
    } else {
        record->queued_ns = -1;
    }
    call_observe(c, MEASURE_TTFT, (double)record->first_token_ns * 1e-9);
    if (c->deadline_is_queue) {
        call_start_deadline(c);
    }
}

/* Reports the progress of a prompt: first the cached part, then each computed piece. The whole
 * prompt is always reported before the first token. */
static void tell_prompt(struct call_choice *ch)
{
    struct engine_request *r = ch->request;
    struct call *c = ch->call;
    if (!r->tells_prompt || ch->started || c->sink->is_full(c)) {
        return;
    }
    int32_t n_tokens = atomic_load(&r->outputs[0].n_tokens);
    int32_t n = n_tokens > 0 ? r->n_prompt : atomic_load(&r->n_prefilled);
    if (n > 0 && !ch->told_prompt) {
        ch->told_prompt = true;
        ch->n_prefilled = r->n_cached;
        c->format->prompt(ch);
    }
    if (n > ch->n_prefilled) {
        ch->n_prefilled = n;
        c->format->prompt(ch);
    }
}

/* Fails the call if a part of its answer has reached the limit. */
static bool is_too_large(struct call *c, struct call_choice *ch)
{
    struct call_error e = {0};
    if (!c->cut && !call_choice_is_cut(ch)) {
        return false;
    }
    call_error_answer_too_large(&e);
    call_fail(c, &e);
    return true;
}

/* Takes the engine's output for one request. A sink that is full gets nothing more: call_on_room
 * resumes it, even if the engine has finished the request. */
static void progress(struct call *c, struct engine_request *r, int64_t now_ns)
{
    size_t first = (size_t)(r - c->requests) * (size_t)c->request.n;
    tell_prompt(&c->choices[first]);
    for (size_t i = first; i < first + (size_t)c->request.n; i++) {
        struct call_choice *ch = &c->choices[i];
        if (ch->finish || (c->request.stream && c->sink->is_full(c))) {
            continue;
        }
        int32_t before = ch->n_taken;
        bool ended = call_choice_progress(ch, now_ns);
        if (call_lacks_memory(c) || is_too_large(c, ch)) {
            return;
        }
        if (!c->first_token && ch->n_taken > before) {
            note_first_token(c, r, now_ns);
        }
        c->n_finished += ended;
    }
}

/* Counts a request that the engine has finished. */
static void observe_done(struct call *c, const struct engine_request *r)
{
    struct call_server *s = c->server;
    int32_t total = 0, longest = 0;
    for (int32_t i = 0; i < r->n; i++) {
        int32_t n = atomic_load(&r->outputs[i].n_tokens);
        total += n;
        longest = greater(n, longest);
        s->counts.finished[atomic_load(&r->outputs[i].finish)]++;
    }
    int32_t context = r->n_prompt + longest;
    s->counts.longest_context = greater(context, s->counts.longest_context);
    if (c->tenant) {
        tenant_charge(c->tenant, total, clock_now_ns());
    }
    call_observe(c, MEASURE_PROMPT_TOKENS, r->n_prompt);
    call_observe(c, MEASURE_PREEMPTIONS, r->n_preemptions);
    call_observe(c, MEASURE_PREFILL_COMPUTED, r->n_prompt - r->n_cached);
    call_observe(c, MEASURE_GENERATION_TOKENS, total);
    call_observe(c, MEASURE_MAX_GENERATION_TOKENS, longest);
    call_observe(c, MEASURE_E2E, (double)(clock_now_ns() - c->t_start_ns) * 1e-9);
    if (r->t_scheduled_ns > 0) {
        call_observe(c, MEASURE_QUEUE, (double)(r->t_scheduled_ns - r->t_submit_ns) * 1e-9);
        call_observe(c, MEASURE_INFERENCE, (double)(r->t_done_ns - r->t_scheduled_ns) * 1e-9);
    }
    if (r->t_first_token_ns > 0 && r->t_scheduled_ns > 0) {
        double decode = (double)(r->t_done_ns - r->t_first_token_ns) * 1e-9;
        call_observe(c, MEASURE_PREFILL, (double)(r->t_first_token_ns - r->t_scheduled_ns) * 1e-9);
        call_observe(c, MEASURE_DECODE, decode);
        if (longest > 1) {
            call_observe(c, MEASURE_TPOT, decode / (longest - 1));
        }
    }
}

static void tell_news(struct call *c, int64_t now_ns)
{
    if (!c->has_news && c->sink->first_news) {
        c->sink->first_news(c, now_ns);
    }
    c->has_news = true;
}

/* True if the client knows that all of the request's samples have ended. */
static bool is_told(const struct call *c, const struct engine_request *r)
{
    size_t first = (size_t)(r - c->requests) * (size_t)r->n;
    for (size_t i = first; i < first + (size_t)r->n; i++) {
        if (!c->choices[i].finish) {
            return false;
        }
    }
    return true;
}

/* Takes a request of a beam-search step. The step's results are evaluated after the drain. */
static void on_beam(struct call *c, struct engine_request *r, int64_t now_ns)
{
    if (!r->done) {
        return;
    }
    c->n_done++;
    int32_t finish = atomic_load(&r->outputs[0].finish);
    if (c->answered) {
        call_release(c);
    } else if (r->error != OK || finish == FINISH_ERROR || finish == FINISH_CANCELLED) {
        fail_with_engine(c, r);
    } else {
        beams_take(c, r);
        tell_news(c, now_ns);
        if (!c->first_token) {
            note_first_token(c, r, now_ns);
        }
    }
}

static bool is_over(const struct engine_request *r)
{
    for (int32_t i = 0; i < r->n; i++) {
        if (atomic_load(&r->outputs[i].finish) == FINISH_NONE) {
            return false;
        }
    }
    return true;
}

/* Takes a piece of an answer whose context may shift. The next piece is submitted after the drain.
 */
static void on_piece(struct call *c, struct engine_request *piece, int64_t now_ns)
{
    const bool done = piece->done;
    struct engine_request *r = shifts_take(c, piece);
    c->n_done += done;
    if (done && is_over(r)) {
        observe_done(c, r);
    }
    if (done && !c->answered && piece->error != OK) {
        fail_with_engine(c, piece);
        return;
    }
    if (!c->answered && (done || c->request.stream)) {
        tell_news(c, now_ns);
        progress(c, r, now_ns);
    }
    if (c->answered) {
        call_release(c);
    } else {
        call_finish_if_complete(c);
    }
}

/* Submits the pieces that follow those that have filled their contexts. */
static void go_on(struct call_server *s)
{
    s->in_drain = true; // calls that end now are freed after the loop, which still uses them
    for (struct call *c = s->calls; c && s->n_shift_calls > 0; c = c->next) {
        struct call_error e = {0};
        if (c->shifts && !c->answered && !c->queued && shifts_are_ready(c)) {
            enum status st = call_submit(c, &e);
            if (st != OK && e.status != 0) { // a full queue sets no error: retried later
                call_fail(c, &e);
            }
        }
    }
    s->in_drain = false;
    call_forget_dead(s);
}

/* Called for each request of the engine that has news. A call has several requests if it
 * has several prompts. */
static void on_event(struct engine_request *r, void *arg)
{
    struct call *c = r->user;
    int64_t now_ns = *(const int64_t *)arg;
    bool done = r->done;
    call_watch_memory(c->server);
    if (c->beams) {
        on_beam(c, r, now_ns);
        return;
    }
    if (c->shifts) {
        on_piece(c, r, now_ns);
        return;
    }
    if (!c->answered && (done || c->request.stream)) {
        tell_news(c, now_ns);
    }
    if (!c->answered && c->request.generates) {
        progress(c, r, now_ns);
    }
    if (done) {
        c->n_done++;
        observe_done(c, r);
        int32_t finish = atomic_load(&r->outputs[0].finish);
        bool failed = r->error != OK || finish == FINISH_ERROR || finish == FINISH_CANCELLED;
        if (!c->answered && failed && !is_told(c, r)) {
            fail_with_engine(c, r);
            return;
        }
    }
    if (c->answered) {
        call_release(c);
    } else {
        call_finish_if_complete(c);
    }
}

/* Plans the next steps of a call's beam searches, and delivers the answers of finished ones. */
static void step_beams(struct call *c, int64_t now_ns)
{
    struct call_error e = {0};
    for (struct engine_request *r; (r = beams_step(c)) != NULL;) {
        call_watch_memory(c->server);
        observe_done(c, r);
        progress(c, r, now_ns);
        if (c->answered) {
            return; // it failed, because it lacked memory
        }
    }
    enum status st = beams_submit(c, &e);
    if (st != OK && st != ERR_BUSY) { // ERR_BUSY: the rest is submitted at a later wake
        call_fail(c, &e);
        return;
    }
    call_finish_if_complete(c);
}

static void step_all_beams(struct call_server *s, int64_t now_ns)
{
    s->in_drain = true; // the call is still used below if it ends
    for (struct call *c = s->calls; c && s->n_beam_calls > 0; c = c->next) {
        if (c->beams && !c->answered && !c->queued) {
            step_beams(c, now_ns);
        }
    }
    s->in_drain = false;
    call_forget_dead(s);
}

/* The loop thread's part of a step: takes the engine's events, frees calls that have ended, then
 * submits waiting calls. With thousands of streams, handling all events of a step takes a tenth of
 * a second or more, during which no probe would be answered. So they are handled in pieces, which
 * take 2 ms for plain text. */
bool call_on_wake(struct call_server *s)
{
    enum { PIECE = 256 };
    int64_t now_ns = clock_now_ns();
    if (!s->engine) {
        return false;
    }
    s->in_drain = true;
    bool more = engine_drain_some(s->engine, PIECE, on_event, &now_ns);
    s->in_drain = false;
    step_all_beams(s, now_ns);
    go_on(s);
    call_submit_queued(s);
    return more;
}

/* The client's socket has room again: output that was held back is written now. */
void call_on_room(struct call *c)
{
    struct call_server *s = c->server;
    const bool in_drain = s->in_drain;
    int64_t now_ns = clock_now_ns();
    call_watch_memory(s);
    s->in_drain = true; // the call is still used below if it ends
    for (size_t i = 0; !c->answered && i < c->n_requests; i++) {
        progress(c, &c->requests[i], now_ns);
    }
    if (!c->answered) {
        call_finish_if_complete(c);
    }
    s->in_drain = in_drain;
    if (!in_drain) {
        call_forget_dead(s);
    }
}
