// SPDX-License-Identifier: Apache-2.0
/* The life of a call: see call.h. */
#include "server/call/call.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/call/format.h"
#include "server/call/prepare.h"
#include "server/call/tenant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_MAX_BYTES = 64 << 20, PATIENCE_MARGIN_S = 2 /* chosen */ };

static const struct call_format *const formats[N_REQUEST_KINDS] = {
    [KIND_CHAT] = &call_chat_format,
    [KIND_COMPLETIONS] = &call_completion_format,
    [KIND_EMBEDDINGS] = &call_embedding_format,
    [KIND_RESPONSES] = &call_response_format,
    [KIND_RESPONSES_INPUT_TOKENS] = &call_input_tokens_format,
    [KIND_MESSAGES] = &call_message_format,
    [KIND_COUNT_TOKENS] = &call_count_format,
    [KIND_TOKENIZE] = &call_tokens_format,
    [KIND_DETOKENIZE] = &call_text_format,
    [KIND_SCORE] = &call_score_format,
    [KIND_RERANK] = &call_rerank_format,
    [KIND_OLLAMA_CHAT] = &call_ollama_format,
    [KIND_OLLAMA_GENERATE] = &call_ollama_format,
    [KIND_OLLAMA_EMBED] = &call_ollama_embed_format,
    [KIND_OLLAMA_LOAD] = &call_ollama_load_format,
    [KIND_CHAT_BATCH] = &call_chat_format,
    [KIND_LABELS] = &call_labels_format,
    [KIND_CLASSIFY] = &call_classify_format,
    [KIND_POOLING] = &call_pooling_format,
    [KIND_COHERE_EMBED] = &call_cohere_format,
    [KIND_NATIVE] = &call_native_format,
    [KIND_INFILL] = &call_native_format,
    [KIND_NATIVE_EMBED] = &call_native_embed_format,
    [KIND_APPLY_TEMPLATE] = &call_apply_format,
    [KIND_TOKENS] = &call_token_format,
    [KIND_RENDER] = &call_render_format,
    [KIND_RENDER_CHAT] = &call_render_chat_format,
    [KIND_CHAT_INPUT_TOKENS] = &call_input_tokens_format,
    [KIND_INVOCATIONS] = &call_chat_format, // until its kind is known
};

/* ---- the end ----------------------------------------------------------------------------------
 */

/* The call counts in its tenant's share of the queue until its first token. */
static void stop_waiting(struct call *c)
{
    if (c->tenant) {
        c->tenant->n_waiting -= c->n_waiting;
    }
    c->n_waiting = 0;
}

/* Its memory is its owner's again. */
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
    request_deinit(&c->request);
    c->sink->over(c);
}

/* Both sides have let go? Within engine_drain the memory must outlast the drain. */
static void release(struct call *c)
{
    if (c->answered && !c->preparing && !c->saving && !c->queued && c->n_done == c->n_submitted) {
        if (!c->server->in_drain) {
            forget(c);
        } else if (!c->dead) {
            c->dead = true;
            c->server->n_dead++;
        }
    }
}

static void forget_dead(struct call_server *s)
{
    for (struct call *c = s->calls, *next; c && s->n_dead > 0; c = next) {
        next = c->next;
        if (c->dead) {
            s->n_dead--;
            forget(c);
        }
    }
}

static void cancel(struct call *c)
{
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

/* The sink has had its answer. */
static void let_go(struct call *c)
{
    c->answered = true;
    stop_waiting(c);
    set_deadline(c, -1);
    cancel(c);
    release(c);
}

/* What the log says of tokens, however the call ends. */
static void record_tokens(struct call *c)
{
    struct call_usage u = call_usage_of(c);
    c->record.n_output_tokens = u.completion;
    c->record.n_cached_tokens = u.cached;
}

static void start_save(struct call *c);

/* Ends an answer that is kept, with what there is of it; now, or when its beginning is stored. */
static void end_kept(struct call *c)
{
    if (c->saving) {
        return;
    }
    for (size_t i = 0; i < c->n_choices; i++) { // nothing more is taken of any
        c->choices[i].finish = c->choices[i].finish ? c->choices[i].finish : "cancelled";
    }
    cancel(c);
    record_tokens(c);
    c->record.finish = c->ending == CALL_FAILED ? "error" : "cancelled";
    c->closed = true;
    c->format->close(c);
    start_save(c);
}

void call_cancel(struct call *c)
{
    if (!c->answered && c->kept && c->ending == CALL_ANSWERED && !c->closed) {
        c->ending = CALL_CANCELLED;
        end_kept(c);
    }
}

/* Ends the answer with an error, in a stream or as the whole. Engine work is cancelled. */
static void fail(struct call *c, const struct call_error *e)
{
    if (c->answered || c->closed) {
        return;
    }
    if (c->kept || c->saving) {
        c->ending = CALL_FAILED;
        c->why = c->why ? c->why : xstrdup(e->message);
        c->record.error = e->code;
        end_kept(c);
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
    let_go(c);
}

void call_abort_all(struct call_server *s, const struct call_error *e)
{
    for (struct call *c = s->calls, *next; c; c = next) {
        next = c->next;
        if (!c->preparing) {
            fail(c, e);
        }
    }
}

/* What is made of calls from here on, on this thread, is to lack nothing for want of memory. */
static void watch_memory(struct call_server *s)
{
    s->n_lost = buf_n_lost();
}

static bool lacks_memory(struct call *c)
{
    if (buf_n_lost() == c->server->n_lost) {
        return false;
    }
    struct call_error e = {0};
    call_error_no_memory(&e);
    fail(c, &e);
    return true;
}

/* Nobody listens any more. */
static void give_back(struct call *c)
{
    c->record.finish = "cancelled";
    record_tokens(c);
    c->sink->drop(c);
    let_go(c);
}

void call_gone(struct call *c, enum call_abort why)
{
    c->gone = true;
    c->server->counts.aborted[why] += !c->offline;
    if (!c->preparing) { // else the pool still reads the body
        give_back(c);
    }
}

/* ---- deadlines --------------------------------------------------------------------------------
 */

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
    fail(c, &e);
}

static void start_deadline(struct call *c)
{
    const struct config *config = c->server->config;
    double total = config->request_timeout, queue = config->queue_timeout;
    if (c->request.timeout_s > 0 && c->request.timeout_s < total) {
        total = c->request.timeout_s;
    }
    /* Past it nobody is listening to an answer that comes as a whole. The client is to see its own
     * timeout, so it is waited for a little longer. */
    double patience = c->patience_s + PATIENCE_MARGIN_S;
    if (c->patience_s > 0 && !c->request.stream && patience < queue) {
        queue = patience;
    }
    c->deadline_is_queue = !c->first_token && queue < total && !c->request.detached;
    double wait = c->deadline_is_queue ? queue : total;
    double spent = (double)(clock_now_ns() - c->t_start_ns) * 1e-9;
    int64_t ms = (int64_t)ceil((wait - spent) * 1000);
    set_deadline(c, ms > 1 ? ms : 1);
}

/* ---- the beginning ----------------------------------------------------------------------------
 */

static void start_stream(struct call *c)
{
    c->streaming = true;
    c->sink->begin(c);
    if (c->format->begin) {
        c->format->begin(c);
    }
}

static void record_prompt(struct call *c)
{
    c->record.n_prompt_tokens = 0;
    for (size_t i = 0; i < c->request.n_prompts; i++) {
        c->record.n_prompt_tokens += c->request.prompts[i].n;
    }
}

static void set_id(struct call *c, const char *asked)
{
    snprintf(c->id, sizeof c->id, "%s%s", c->format->id_prefix, c->sink->id(c, asked));
}

static void enqueue(struct call *c)
{
    struct call_server *s = c->server;
    c->queued = true;
    *s->queue_tail = c;
    s->queue_tail = &c->next_queued;
}

/* On the pool: what says that there is such an answer, before its client is told. */
static void record(void *arg)
{
    struct call *c = arg;
    struct err err = {""};
    if (c->format->record(c, &err) != OK) {
        c->not_kept = xstrdup(err.text);
    }
}

static void finish_if_complete(struct call *c);

static void on_recorded(void *arg)
{
    struct call *c = arg;
    watch_memory(c->server);
    c->saving = false;
    if (c->not_kept) {
        struct call_error e = {0};
        call_error_set(&e, 507, "storage_full", NULL,
                       "The response cannot be kept, so it does not run in the background: %s",
                       c->not_kept);
        c->ending = CALL_ANSWERED;
        fail(c, &e);
        return;
    }
    c->kept = true;
    c->sink->kept(c);
    if (c->ending != CALL_ANSWERED) {
        end_kept(c);
    } else {
        finish_if_complete(c);
    }
}

static void start_record(struct call *c)
{
    c->saving = true;
    if (c->server->host->run) {
        c->server->host->run(c->server, record, on_recorded, c);
    } else {
        record(c);
        on_recorded(c);
    }
}

/* To the engine, or behind those that wait for it. False: *e says why not. */
static bool submit(struct call *c, struct call_error *e)
{
    if (!call_make_requests(c, e)) {
        return false;
    }
    enum status st = c->offline && c->server->queue ? ERR_BUSY : call_submit(c, e);
    if (st == ERR_BUSY && e->status == 0) {
        enqueue(c);
        return true;
    }
    return st == OK;
}

/* Those that found the engine full, in the order in which they came. */
static void submit_queued(struct call_server *s)
{
    while (s->queue) {
        struct call *c = s->queue;
        struct call_error e = {0};
        enum status st = c->answered ? OK : call_submit(c, &e);
        if (st == ERR_BUSY && e.status == 0) {
            return;
        }
        s->queue = c->next_queued;
        if (!s->queue) {
            s->queue_tail = &s->queue;
        }
        c->queued = false;
        if (c->answered) {
            release(c);
        } else if (st != OK) {
            fail(c, &e);
        }
    }
}

static void take_prepared(struct call *c)
{
    struct call_error e = c->request.error;
    if (e.status == 0) {
        record_prompt(c);
        if (c->sink->prepared) {
            c->sink->prepared(c);
        }
        if (c->format->reply) {
            c->format->reply(c);
            let_go(c);
            return;
        }
        if (submit(c, &e)) {
            if (c->tenant) {
                c->n_waiting = (int64_t)c->n_requests * c->request.n;
                c->tenant->n_waiting += c->n_waiting;
            }
            call_observe(c, MEASURE_N, c->request.n);
            call_observe(c, MEASURE_MAX_TOKENS, c->requests[0].params.max_tokens);
            start_deadline(c);
            if (c->request.stream) {
                start_stream(c);
            }
            if (lacks_memory(c)) {
                return;
            }
            if (c->request.detached) {
                start_record(c);
            }
            return;
        }
    }
    fail(c, &e);
}

static void on_prepared(void *arg)
{
    struct call *c = arg;
    watch_memory(c->server);
    c->preparing = false;
    if (c->request.kind != c->kind) { // the body said which
        c->format = formats[c->request.kind];
    }
    if (c->gone) {
        give_back(c);
        return;
    }
    if (c->request.n_unknown > 0) {
        c->server->counts.n_unknown_keys += (uint64_t)c->request.n_unknown;
        log_debug("%d unknown parameters are ignored, such as '%.60s'", c->request.n_unknown,
                  c->request.unknown);
    }
    if (c->request.n_stripped_lines > 0 && !c->server->told_stripped) {
        c->server->told_stripped = true;
        log_info(
            "lines of system prompts are taken out, as --strip-prompt-lines says; this is said "
            "once");
    }
    c->request.stream = c->request.stream && c->format->finish && c->sink->begin;
    set_id(c, c->request.request_id);
    take_prepared(c);
}

static void prepare(void *arg)
{
    struct request *r = &((struct call *)arg)->request;
    const uint64_t n_lost = buf_n_lost();
    prepare_request(r);
    if (buf_n_lost() != n_lost) {
        r->error = (struct call_error){0};
        call_error_no_memory(&r->error);
    }
}

void call_start(struct call_server *s, struct call *c)
{
    c->server = s;
    c->kind = c->request.kind;
    c->format = c->format ? c->format : formats[c->kind];
    c->record = CALL_RECORD_NONE;
    c->request.model = &s->model;
    c->request.store = c->offline ? NULL : s->store;
    c->request.owner = c->owner;
    // Knuth's generator: of period 2^64, so that no request meets another's seed.
    c->request.seed = s->next_seed = s->next_seed * 6364136223846793005ULL + 1442695040888963407ULL;
    c->created = clock_wall_sec();
    c->t_start_ns = clock_now_ns();
    buf_init(&c->chunk_head, CHUNK_MAX_BYTES);
    set_id(c, NULL);
    c->next = s->calls;
    c->link = &s->calls;
    if (c->next) {
        c->next->link = &c->next;
    }
    s->calls = c;
    s->n_calls++;
    c->preparing = true;
    if (s->host->run) {
        s->host->run(s, prepare, on_prepared, c);
    } else {
        prepare(c);
        on_prepared(c);
    }
}

/* ---- progress ---------------------------------------------------------------------------------
 */

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
    fail(c, &e);
}

static void note_first_token(struct call *c, const struct engine_request *r, int64_t now_ns)
{
    struct call_record *record = &c->record;
    c->first_token = true;
    stop_waiting(c);
    record->first_token_ns = now_ns - c->t_arrived_ns;
    record->queued_ns = r->t_scheduled_ns > 0 ? r->t_scheduled_ns - c->t_arrived_ns : -1;
    call_observe(c, MEASURE_TTFT, (double)record->first_token_ns * 1e-9);
    if (c->deadline_is_queue) {
        start_deadline(c);
    }
}

/* What the cache had of a prompt, then each piece; all of it before the first token. */
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

/* Takes what the engine has made of one request. A sink that is full gets nothing more:
 * call_on_room comes back for it, also when the engine is done with the request. */
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
        if (lacks_memory(c)) {
            return;
        }
        if (!c->first_token && ch->n_taken > before) {
            note_first_token(c, r, now_ns);
        }
        c->n_finished += ended;
    }
}

/* A whole request of the engine is over. */
static void observe_done(struct call *c, const struct engine_request *r)
{
    struct call_server *s = c->server;
    int32_t total = 0, longest = 0;
    for (int32_t i = 0; i < r->n; i++) {
        int32_t n = atomic_load(&r->outputs[i].n_tokens);
        total += n;
        longest = n > longest ? n : longest;
        s->counts.finished[atomic_load(&r->outputs[i].finish)]++;
    }
    int32_t context = r->n_prompt + longest;
    s->counts.longest_context =
        context > s->counts.longest_context ? context : s->counts.longest_context;
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

static void save(void *arg)
{
    struct call *c = arg;
    c->format->save(c);
}

/* Meanwhile its client may have gone. */
static void on_saved(void *arg)
{
    struct call *c = arg;
    watch_memory(c->server);
    c->saving = false;
    if (c->answered) {
        release(c);
        return;
    }
    c->format->end(c);
    let_go(c);
}

static void start_save(struct call *c)
{
    c->saving = true;
    set_deadline(c, -1);
    if (c->server->host->run) {
        c->server->host->run(c->server, save, on_saved, c);
    } else {
        save(c);
        on_saved(c);
    }
}

static void finish_if_complete(struct call *c)
{
    bool complete = c->request.pools ? c->n_done == c->n_requests : c->n_finished == c->n_choices;
    if (!complete || c->answered || c->saving) {
        return;
    }
    record_tokens(c);
    c->record.finish = c->n_choices > 0 ? c->choices[0].finish : "stop";
    if (c->format->close) {
        c->format->close(c);
    }
    if (!c->kept && lacks_memory(c)) {
        return;
    }
    c->closed = true;
    if (c->format->save && c->request.stores) {
        start_save(c);
    } else {
        c->format->end(c);
        let_go(c);
    }
}

static void tell_news(struct call *c, int64_t now_ns)
{
    if (!c->has_news && c->sink->first_news) {
        c->sink->first_news(c, now_ns);
    }
    c->has_news = true;
}

/* Whether the client has been told the end of each of the request's samples. */
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

static void on_event(struct engine_request *r, void *arg)
{
    struct call *c = r->user;
    int64_t now_ns = *(const int64_t *)arg;
    bool done = r->done;
    watch_memory(c->server);
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
        release(c);
    } else {
        finish_if_complete(c);
    }
}

void call_on_wake(struct call_server *s)
{
    int64_t now_ns = clock_now_ns();
    if (s->engine) {
        s->in_drain = true;
        engine_drain(s->engine, on_event, &now_ns);
        s->in_drain = false;
        forget_dead(s);
        submit_queued(s);
    }
}

void call_on_room(struct call *c)
{
    struct call_server *s = c->server;
    const bool in_drain = s->in_drain;
    int64_t now_ns = clock_now_ns();
    watch_memory(s);
    s->in_drain = true; // a call that ends is looked at once more
    for (size_t i = 0; !c->answered && i < c->n_requests; i++) {
        progress(c, &c->requests[i], now_ns);
    }
    if (!c->answered) {
        finish_if_complete(c);
    }
    s->in_drain = in_drain;
    if (!in_drain) {
        forget_dead(s);
    }
}
