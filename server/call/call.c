/* The life of a call: see api.h. */
#include "server/api/api.h"

#include "engine/base/assert.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/api/log_request.h"
#include "server/call/prepare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_MAX_BYTES = 64 << 20 };

static void on_gone(struct http_request *req, enum http_gone why, void *arg);
static void on_writable(struct http_request *req, void *arg);
static const struct http_events events = {on_gone, on_writable};

static struct reply_error reply_of(const struct api_error *e)
{
    return (struct reply_error){
        .status = e->status,
        .type = e->type,
        .code = e->code,
        .param = e->param[0] ? e->param : NULL,
        .retry_after_s = e->retry_after_s,
        .message = e->message,
        .n_prompt = e->n_prompt,
        .n_context = e->n_context,
    };
}

void reply_api_error(struct http_request *req, const struct api_error *e)
{
    struct reply_error r = reply_of(e);
    api_log(req)->error = e->code;
    reply_error(req, &r);
}

/* ---- the end ---------------------------------------------------------------------------------- */

static void call_free(struct call *c)
{
    *c->link = c->next;
    if (c->next) {
        c->next->link = c->link;
    }
    c->api->n_calls--;
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
    if (c->extra && c->format->forget) {
        c->format->forget(c);
    }
    free(c->extra);
    buf_deinit(&c->chunk_head);
    api_request_deinit(&c->request);
    free(c);
}

/* Both sides have let go? Within engine_drain the memory must outlast the drain. */
static void release(struct call *c)
{
    if (!c->req && !c->preparing && c->n_done == c->n_submitted) {
        if (!c->api->in_drain) {
            call_free(c);
        } else if (!c->dead) {
            c->dead = true;
            c->api->n_dead++;
        }
    }
}

static void free_dead(struct api *a)
{
    for (struct call *c = a->calls, *next; c && a->n_dead > 0; c = next) {
        next = c->next;
        if (c->dead) {
            a->n_dead--;
            call_free(c);
        }
    }
}

static void cancel(struct call *c)
{
    for (size_t i = 0; i < c->n_submitted; i++) {
        if (!c->requests[i].done) {
            engine_cancel(c->api->engine, &c->requests[i]);
        }
    }
}

/* The reply was made: lets the HTTP side go. */
static void let_go(struct call *c)
{
    c->req = NULL;
    http_timer_stop(c->api->http, &c->deadline);
    cancel(c);
    release(c);
}

/* What the log line says of tokens, however the call ends. */
static void log_tokens(struct call *c)
{
    struct api_log *log = api_log(c->req);
    struct call_usage u = call_usage_of(c);
    log->n_output_tokens = u.completion;
    log->n_cached_tokens = u.cached;
}

/* Terminal: the error, in a stream or as the whole reply. Engine work is cancelled. */
static void fail(struct call *c, const struct api_error *e)
{
    struct http_request *req = c->req;
    if (!req) {
        return;
    }
    struct reply_error r = reply_of(e);
    api_log(req)->error = e->code;
    api_log(req)->finish = "error";
    log_tokens(c);
    if (c->streaming && c->format->error && http_stream_head_sent(req)) {
        c->format->error(req, &r);
        reply_stream_end(req, NULL, false);
    } else if (c->streaming) { // or in place of the stream, while its head has not gone out
        reply_stream_end(req, &r, true);
    } else {
        reply_error(req, &r);
    }
    let_go(c);
}

void api_abort_all(struct api *a, const struct api_error *e)
{
    for (struct call *c = a->calls, *next; c; c = next) {
        next = c->next;
        if (c->req && !c->preparing) {
            fail(c, e);
        }
    }
}

/* Nobody listens any more. */
static void give_back(struct call *c)
{
    api_log(c->req)->finish = "cancelled";
    log_tokens(c);
    if (c->streaming) {
        http_stream_end(c->req);
    } else {
        http_reply(c->req, 499, "text/plain", "", 0);
    }
    let_go(c);
}

static void on_gone(struct http_request *req, enum http_gone why, void *arg)
{
    struct call *c = arg;
    (void)req;
    struct metrics *m = &c->api->metrics;
    c->gone = true;
    m->aborted[why == HTTP_GONE_SLOW       ? ABORT_SLOW_READER
               : why == HTTP_GONE_SHUTDOWN ? ABORT_SHUTDOWN
                                           : ABORT_DISCONNECT]++;
    if (c->preparing) {
        return; // the pool still reads the body
    }
    give_back(c);
}

/* ---- deadlines -------------------------------------------------------------------------------- */

static void on_deadline(struct http_timer *timer, void *arg)
{
    struct call *c = arg;
    struct api_error e = {0};
    (void)timer;
    if (!c->req || c->preparing) {
        return;
    }
    if (c->deadline_is_queue && !c->first_token) {
        api_error_set(&e, 503, "queue_timeout", NULL,
                      "The request waited too long for its first token.");
        e.retry_after_s = 5;
        c->api->metrics.rejected[REJECT_DEADLINE]++;
    } else {
        api_error_set(&e, 504, "request_timeout", NULL, "The request took too long.");
        c->api->metrics.aborted[ABORT_DEADLINE]++;
    }
    e.type = "server_error";
    fail(c, &e);
}

static double positive_header(const struct http_request *req, const char *name)
{
    const char *text = http_header(req, name);
    double v = text ? strtod(text, NULL) : 0;
    return v > 0 && v < 864000 ? v : 0;
}

static void start_deadline(struct call *c)
{
    const struct config *config = c->api->config;
    double total = config->request_timeout, queue = config->queue_timeout;
    if (c->request.timeout_s > 0 && c->request.timeout_s < total) {
        total = c->request.timeout_s;
    }
    /* Past its own patience nobody is listening: the SDKs say how much that is. */
    double client = positive_header(c->req, "x-stainless-read-timeout");
    client = client > 0 ? client : positive_header(c->req, "x-stainless-timeout");
    if (client > 0) {
        queue = client < queue ? client : queue;
    }
    c->deadline_is_queue = !c->first_token && queue < total;
    double wait = c->deadline_is_queue ? queue : total;
    double spent = (double)(clock_now_ns() - c->t_start_ns) * 1e-9;
    int64_t ms = (int64_t)ceil((wait - spent) * 1000);
    http_timer_start(c->api->http, &c->deadline, ms > 1 ? ms : 1, on_deadline, c);
}

/* ---- the beginning ---------------------------------------------------------------------------- */

static void start_stream(struct call *c)
{
    c->streaming = true;
    http_stream_begin(c->req, NULL);
    if (c->format->begin) {
        c->format->begin(c);
    }
}

static void log_prompt(struct call *c)
{
    struct api_log *log = api_log(c->req);
    int64_t n = 0;
    for (size_t i = 0; i < c->request.n_prompts; i++) {
        n += c->request.prompts[i].n;
    }
    log->n_prompt_tokens = n;
    snprintf(log->model, sizeof log->model, "%s", c->request.model_name);
}

static void set_id(struct call *c)
{
    snprintf(c->id, sizeof c->id, "%s%s", c->id_prefix, http_request_id(c->req));
}

static void prepared(void *arg)
{
    struct call *c = arg;
    struct api_error e = c->request.error;
    c->preparing = false;
    if (c->gone) {
        give_back(c);
        return;
    }
    if (c->request.n_unknown > 0) {
        c->api->metrics.n_unknown_keys += (uint64_t)c->request.n_unknown;
        log_debug("%d unknown parameters are ignored, such as '%.60s'", c->request.n_unknown,
                  c->request.unknown);
    }
    if (c->request.request_id) {
        http_set_request_id(c->req, c->request.request_id);
    }
    set_id(c);
    if (e.status == 0) {
        log_prompt(c);
        http_body_free(c->req);
        if (c->format->reply) {
            c->format->reply(c);
            let_go(c);
            return;
        }
        if (call_submit(c, &e)) {
            metrics_observe(&c->api->metrics, HIST_N, c->request.n);
            metrics_observe(&c->api->metrics, HIST_MAX_TOKENS, c->requests[0].params.max_tokens);
            start_deadline(c);
            if (c->request.stream) {
                start_stream(c);
            }
            return;
        }
    }
    fail(c, &e);
}

static void work(void *arg)
{
    prepare_request(&((struct call *)arg)->request);
}

/* Whether generation is possible at all right now. */
static bool refuse(struct api *a, struct api_error *e)
{
    e->type = "server_error";
    if (a->load_failed || a->health == HEALTH_DEAD) {
        a->metrics.rejected[REJECT_DEAD]++;
        api_error_set(e, 503, "engine_dead", NULL, "The engine has failed.");
        return true;
    }
    if (!a->ready) {
        a->metrics.rejected[REJECT_LOADING]++;
        e->retry_after_s = 2;
        api_error_set(e, 503, "model_loading", NULL, "The model is still loading.");
        return true;
    }
    return false;
}

void api_start(struct api *a, struct http_request *req, enum api_kind kind,
               const struct call_format *format, const char *id_prefix)
{
    struct api_error e = {0};
    if (refuse(a, &e)) {
        reply_api_error(req, &e);
        return;
    }
    struct call *c = xcalloc(1, sizeof *c);
    const char *retries = http_header(req, "x-stainless-retry-count");
    c->api = a;
    c->req = req;
    c->format = format;
    c->request.kind = kind;
    c->request.model = &a->model;
    c->request.text = http_body(req, &c->request.n_bytes);
    // Knuth's generator: of period 2^64, so that no request meets another's seed.
    c->request.seed = a->next_seed = a->next_seed * 6364136223846793005ULL + 1442695040888963407ULL;
    c->created = clock_wall_sec();
    c->t_start_ns = clock_now_ns();
    buf_init(&c->chunk_head, CHUNK_MAX_BYTES);
    c->id_prefix = id_prefix;
    set_id(c);
    c->next = a->calls;
    c->link = &a->calls;
    if (c->next) {
        c->next->link = &c->next;
    }
    a->calls = c;
    a->n_calls++;
    if (retries && atoi(retries) > 0) {
        api_log(req)->retry_count = (unsigned)atoi(retries);
        a->metrics.client_retries++;
    }
    c->preparing = true;
    http_defer(req, &events, c);
    http_pool_run(a->http, work, prepared, c);
}

/* ---- progress --------------------------------------------------------------------------------- */

static void fail_with_engine(struct call *c, const struct engine_request *r)
{
    struct api_error e = {0};
    if (r->error == ERR_INVALID || r->error == ERR_LIMIT) {
        api_error_set(&e, 400, "invalid_value", NULL, "%s", r->error_text);
    } else if (r->error == ERR_BUSY) {
        e.retry_after_s = 5;
        api_error_set(&e, 503, "server_overloaded", NULL, "%s", r->error_text);
    } else if (r->error == OK || r->error == ERR_CANCELLED) {
        e.type = "server_error";
        api_error_set(&e, 503, "server_draining", NULL, "The server is shutting down.");
    } else {
        e.type = "server_error";
        api_error_set(&e, 500, "internal_error", NULL, "The engine failed: %s", r->error_text);
    }
    fail(c, &e);
}

/* Before the head goes out: what OpenAI's clients log. */
static void put_head_lines(struct call *c, int64_t now_ns)
{
    char text[32];
    if (!c->has_head_lines) {
        c->has_head_lines = true;
        snprintf(text, sizeof text, "%lld",
                 (long long)((now_ns - http_arrived_ns(c->req)) / 1000000));
        http_reply_header(c->req, "openai-processing-ms", text);
        http_reply_header(c->req, "openai-version", "2020-10-01");
    }
}

static void note_first_token(struct call *c, const struct engine_request *r, int64_t now_ns)
{
    c->first_token = true;
    struct api_log *log = api_log(c->req);
    log->first_token_ns = now_ns - http_arrived_ns(c->req);
    log->queued_ns = r->t_scheduled_ns > 0 ? r->t_scheduled_ns - http_arrived_ns(c->req) : -1;
    metrics_observe(&c->api->metrics, HIST_TTFT, (double)log->first_token_ns * 1e-9);
    if (c->deadline_is_queue) {
        start_deadline(c);
    }
}

/* Takes what the engine has made of one request. A stream that is full gets nothing more:
 * on_writable comes back for it, also when the engine is done with the request. */
static void progress(struct call *c, struct engine_request *r, int64_t now_ns)
{
    size_t first = (size_t)(r - c->requests) * (size_t)c->request.n;
    for (size_t i = first; i < first + (size_t)c->request.n; i++) {
        struct call_choice *ch = &c->choices[i];
        if (ch->finish || (c->request.stream && http_stream_is_full(c->req))) {
            continue;
        }
        int32_t before = ch->n_taken;
        bool ended = call_choice_progress(ch, now_ns);
        if (!c->first_token && ch->n_taken > before) {
            note_first_token(c, r, now_ns);
        }
        c->n_finished += ended;
    }
}

/* A whole request of the engine is over. */
static void observe_done(struct call *c, const struct engine_request *r)
{
    struct metrics *m = &c->api->metrics;
    int32_t total = 0, longest = 0;
    for (int32_t i = 0; i < r->n; i++) {
        int32_t n = atomic_load(&r->outputs[i].n_tokens);
        total += n;
        longest = n > longest ? n : longest;
        m->finished[atomic_load(&r->outputs[i].finish)]++;
    }
    metrics_observe(m, HIST_PROMPT_TOKENS, r->n_prompt);
    metrics_observe(m, HIST_PREFILL_COMPUTED, r->n_prompt - r->n_cached);
    metrics_observe(m, HIST_GENERATION_TOKENS, total);
    metrics_observe(m, HIST_MAX_GENERATION_TOKENS, longest);
    metrics_observe(m, HIST_E2E, (double)(clock_now_ns() - c->t_start_ns) * 1e-9);
    if (r->t_scheduled_ns > 0) {
        metrics_observe(m, HIST_QUEUE, (double)(r->t_scheduled_ns - r->t_submit_ns) * 1e-9);
        metrics_observe(m, HIST_INFERENCE, (double)(r->t_done_ns - r->t_scheduled_ns) * 1e-9);
    }
    if (r->t_first_token_ns > 0 && r->t_scheduled_ns > 0) {
        double decode = (double)(r->t_done_ns - r->t_first_token_ns) * 1e-9;
        metrics_observe(m, HIST_PREFILL, (double)(r->t_first_token_ns - r->t_scheduled_ns) * 1e-9);
        metrics_observe(m, HIST_DECODE, decode);
        if (longest > 1) {
            metrics_observe(m, HIST_TPOT, decode / (longest - 1));
        }
    }
}

static void finish_if_complete(struct call *c)
{
    if (c->req && (c->request.pools ? c->n_done == c->n_requests : c->n_finished == c->n_choices)) {
        log_tokens(c);
        api_log(c->req)->finish = c->n_choices > 0 ? c->choices[0].finish : "stop";
        c->format->end(c);
        let_go(c);
    }
}

static void on_event(struct engine_request *r, void *arg)
{
    struct call *c = r->user;
    int64_t now_ns = *(const int64_t *)arg;
    bool done = r->done;
    if (c->req && (done || c->request.stream)) {
        put_head_lines(c, now_ns);
    }
    if (c->req && c->request.generates) {
        progress(c, r, now_ns);
    }
    if (done) {
        c->n_done++;
        observe_done(c, r);
        int32_t finish = atomic_load(&r->outputs[0].finish);
        bool failed = r->error != OK || finish == FINISH_ERROR || finish == FINISH_CANCELLED;
        bool told = true;
        for (int32_t i = 0; i < r->n; i++) {
            size_t index = (size_t)(r - c->requests) * (size_t)r->n + (size_t)i;
            told = told && c->choices[index].finish;
        }
        if (c->req && failed && !told) {
            fail_with_engine(c, r);
            return;
        }
    }
    if (c->req) {
        finish_if_complete(c);
    } else {
        release(c);
    }
}

void api_on_wake(void *arg)
{
    struct api *a = arg;
    int64_t now_ns = clock_now_ns();
    if (a->engine) {
        a->in_drain = true;
        engine_drain(a->engine, on_event, &now_ns);
        a->in_drain = false;
        free_dead(a);
    }
}

static void on_writable(struct http_request *req, void *arg)
{
    struct call *c = arg;
    (void)req;
    int64_t now_ns = clock_now_ns();
    for (size_t i = 0; c->req && i < c->n_requests; i++) {
        progress(c, &c->requests[i], now_ns);
    }
    if (c->req) {
        finish_if_complete(c);
    }
}
