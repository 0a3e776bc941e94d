// SPDX-License-Identifier: Apache-2.0
/* Calls over HTTP: their clock and threads, and the sinks for their answers. */
#include "server/api/api_call.h"
#include "server/api/background.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "server/api/log_request.h"
#include "server/api/resume.h"
#include "server/call/tenant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct api *api_of(struct call_server *s)
{
    return (struct api *)s;
}

/* ---- the host -------------------------------------------------------------------------------- */

/* After the loop has ended there is no pool: the remaining answers are stored immediately. */
static void run_on_pool(struct call_server *s, void (*work)(void *arg), void (*done)(void *arg),
                        void *arg)
{
    if (http_server_state(api_of(s)->http) == HTTP_STOPPED) {
        work(arg);
        done(arg);
    } else {
        http_pool_run(api_of(s)->http, work, done, arg);
    }
}

static void on_due(struct http_timer *timer, void *arg)
{
    (void)timer;
    call_on_deadline(arg);
}

/* A call has one timer; a negative delay stops it. */
static void set_deadline(struct call *c, int64_t delay_ms)
{
    struct http_server *http = api_of(c->server)->http;
    if (delay_ms < 0) {
        http_timer_stop(http, &api_call_of(c)->deadline);
    } else {
        http_timer_start(http, &api_call_of(c)->deadline, delay_ms, on_due, c);
    }
}

static void observe(struct call_server *s, enum call_measure what, double v)
{
    metrics_observe(&api_of(s)->metrics, (int)what, v);
}

const struct call_host api_call_host = {run_on_pool, set_deadline, observe};

/* ---- the sink -------------------------------------------------------------------------------- */

static const char *id(struct call *c, const char *asked)
{
    if (asked) {
        http_set_request_id(api_call_of(c)->req, asked);
    }
    return http_request_id(api_call_of(c)->req);
}

/* The body is no longer needed, so its memory is freed while the engine works. */
static void prepared(struct call *c)
{
    http_body_free(api_call_of(c)->req);
    reply_tell_id(api_call_of(c)->req);
    if (c->request.detached) {
        background_take(c);
    } else {
        resume_take(c);
    }
}

/* Sent in the head: headers that OpenAI's clients log. */
static void put_head_lines(struct call *c, int64_t now_ns)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)((now_ns - c->t_arrived_ns) / 1000000));
    http_reply_header(api_call_of(c)->req, "openai-processing-ms", text);
    http_reply_header(api_call_of(c)->req, "openai-version", "2020-10-01");
}

static void put_state(struct call *c)
{
    api_call_put_rates(api_call_of(c)->req, c->tenant);
    orca_put_header(api_of(c->server), api_call_of(c)->req);
}

static void begin(struct call *c)
{
    put_state(c);
    http_stream_begin(api_call_of(c)->req, NULL);
}

static void event(struct call *c, const char *name, const char *json, size_t n_bytes)
{
    if (name) {
        reply_named_event(api_call_of(c)->req, name, json, n_bytes);
    } else {
        reply_event(api_call_of(c)->req, json, n_bytes);
    }
}

static void begin_lines(struct call *c)
{
    put_state(c);
    http_stream_begin(api_call_of(c)->req, "application/x-ndjson");
}

static void line(struct call *c, const char *name, const char *json, size_t n_bytes)
{
    (void)name;
    reply_line(api_call_of(c)->req, json, n_bytes);
}

static bool is_full(const struct call *c)
{
    return http_stream_is_full(api_call_of(c)->req);
}

static bool is_begun(const struct call *c)
{
    return http_stream_head_sent(api_call_of(c)->req);
}

static void end(struct call *c, bool done)
{
    reply_stream_end(api_call_take_request(c), NULL, done);
}

static void whole(struct call *c, struct buf *json)
{
    put_state(c);
    reply_json(api_call_take_request(c), 200, json);
}

/* If the stream's head has not been sent yet, the error is sent as the reply. */
static void error(struct call *c, const struct call_error *e)
{
    struct http_request *req = api_call_take_request(c);
    if (c->streaming) {
        reply_stream_end(req, e, true);
    } else {
        api_call_put_rates(req, c->tenant);
        reply_error(req, e);
    }
}

/* The client has left. The reply reaches nobody; it ends the request for the front end. */
static void drop(struct call *c)
{
    struct http_request *req = api_call_take_request(c);
    if (c->streaming) {
        http_stream_end(req);
    } else {
        http_reply(req, 499, "text/plain", "", 0);
    }
}

/* The sink of an answer over HTTP. */
static const struct call_sink sink = {
    .id = id,
    .prepared = prepared,
    .first_news = put_head_lines,
    .begin = begin,
    .event = event,
    .is_full = is_full,
    .is_begun = is_begun,
    .end = end,
    .whole = whole,
    .error = error,
    .drop = drop,
    .over = api_call_over,
};

/* The same with one line per event, as in Ollama's streams. */
static const struct call_sink line_sink = {
    .id = id,
    .prepared = prepared,
    .first_news = put_head_lines,
    .begin = begin_lines,
    .event = line,
    .is_full = is_full,
    .is_begun = is_begun,
    .end = end,
    .whole = whole,
    .error = error,
    .drop = drop,
    .over = api_call_over,
};

/* ---- from a handler -------------------------------------------------------------------------- */

/* The reason why the client left decides which counter the call is added to. */
static void on_gone(struct http_request *req, enum http_gone why, void *arg)
{
    static const enum call_abort causes[] = {
        [HTTP_GONE_CLOSED] = ABORT_DISCONNECT,
        [HTTP_GONE_SLOW] = ABORT_SLOW_READER,
        [HTTP_GONE_SHUTDOWN] = ABORT_SHUTDOWN,
    };
    (void)req;
    api_call_of(arg)->client->gone(arg, causes[why]);
}

static void on_writable(struct http_request *req, void *arg)
{
    (void)req;
    api_call_of(arg)->client->room(arg);
}

static const struct api_client client = {call_gone, call_on_room};

static const struct http_events events = {on_gone, on_writable};

/* The value of a header with seconds, up to ten days; 0 if it is missing or invalid. */
static double positive_header(const struct http_request *req, const char *name)
{
    const char *text = http_header(req, name);
    double v = text ? strtod(text, NULL) : 0;
    if (v > 0 && v < 864000) {
        return v;
    }
    return 0;
}

/* Counts retries of OpenAI's SDKs: many of them are a sign of overload. */
static void note_retry(struct api *a, struct http_request *req)
{
    const char *retries = http_header(req, "x-stainless-retry-count");
    if (retries && atoi(retries) > 0) {
        api_log(req)->retry_count = (unsigned)atoi(retries);
        a->metrics.client_retries++;
    }
}

/* The cheapest checks come first: the server's state, then the tenant's limits, then the body. */
void api_start(struct api *a, struct http_request *req, enum request_kind kind)
{
    struct call_error e = {0};
    if (api_refuses(a, req)) {
        return;
    }
    struct tenant *tenant = api_log(req)->tenant;
    if (!tenant_enter(tenant, clock_now_ns(), &e)) {
        a->calls.counts.rejected[REJECT_RATE_LIMIT]++;
        api_call_put_rates(req, tenant);
        reply_error(req, &e);
        return;
    }
    struct api_call *c = xcalloc(1, sizeof *c);
    c->req = req;
    c->client = &client;
    c->call.tenant = tenant_hold(tenant);
    bool lines = api_log(req)->form == REPLY_OLLAMA;
    c->call.sink = lines ? &line_sink : &sink;
    c->call.request.kind = kind;
    c->call.request.text = http_body(req, &c->call.request.n_bytes);
    c->call.t_arrived_ns = http_arrived_ns(req);
    /* The SDKs send their time-out. */
    double read_timeout = positive_header(req, "x-stainless-read-timeout");
    if (read_timeout > 0) {
        c->call.patience_s = read_timeout;
    } else {
        c->call.patience_s = positive_header(req, "x-stainless-timeout");
    }
    snprintf(c->call.owner, sizeof c->call.owner, "%s", api_log(req)->owner);
    note_retry(a, req);
    resume_note(a, &c->call);
    http_defer(req, &events, c);
    call_start(&a->calls, &c->call);
}

const char *api_call_peer(const struct call *c)
{
    bool http = c->sink == &sink || c->sink == &line_sink;
    if (http && api_call_of(c)->req) {
        return http_peer(api_call_of(c)->req);
    }
    return NULL;
}
