// SPDX-License-Identifier: Apache-2.0
/* POST /predict: Vertex AI's envelope of several requests, as llama.cpp accepts it. Each instance
 * is a separate call; they run one after another, and the answer has their answers in order. The
 * first error is the answer to the whole request. */
#include "engine/base/optional.h"
#include "server/api/api_call.h"

#include "engine/base/clock.h"
#include "engine/base/json_scan.h"
#include "engine/base/mem.h"
#include "server/api/log_request.h"
#include "server/call/slice.h"
#include "server/call/tenant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWERS_MAX_BYTES = 1 << 30 };

struct prediction {
    struct api *api;
    struct http_request *req; // NULL: it has been answered
    struct call *call;        // the running one; NULL: none
    struct slice_items items; // the instances, in the body
    struct buf answers;
    size_t n;
    bool gone;
};

/* A call of a prediction; the call must be first, as for other calls over HTTP. */
struct part {
    struct api_call call;
    struct prediction *of;
    char *text;
};

static struct prediction *prediction_of(const struct call *c)
{
    return ((struct part *)c)->of;
}

static void free_prediction(struct prediction *p)
{
    buf_deinit(&p->answers);
    free(p);
}

static void fail(struct prediction *p, const struct call_error *e)
{
    struct http_request *req = p->req;
    p->req = NULL;
    reply_error(req, e);
}

/* ---- an instance -------------------------------------------------------------------------------
 */

static const char *id(struct call *c, const char *asked)
{
    (void)asked;
    return http_request_id(prediction_of(c)->req);
}

/* The answer is kept; the next instance begins when this call is over. */
static void whole(struct call *c, struct buf *json)
{
    struct prediction *p = prediction_of(c);
    buf_puts(&p->answers, text_if(p->n++, ","));
    buf_put(&p->answers, json->data, json->n_bytes);
    buf_deinit(json);
    api_log(p->req)->call = c->record;
}

static void error(struct call *c, const struct call_error *e)
{
    fail(prediction_of(c), e);
}

static void drop(struct call *c)
{
    struct prediction *p = prediction_of(c);
    struct http_request *req = p->req;
    p->req = NULL;
    http_reply(req, 499, "text/plain", "", 0);
}

static void run_next(struct prediction *p);

static void over(struct call *c)
{
    struct part *part = (struct part *)c;
    struct prediction *p = part->of;
    tenant_leave(c->tenant);
    tenant_drop(c->tenant);
    free(part->text);
    free(part);
    p->call = NULL;
    run_next(p);
}

static bool is_full(const struct call *c)
{
    (void)c;
    return false;
}

static const struct call_sink part_sink = {
    .id = id,
    .is_full = is_full,
    .is_begun = is_full,
    .whole = whole,
    .error = error,
    .drop = drop,
    .over = over,
};

/* An instance may name one of llama.cpp's routes; without a name its members tell the kind. False:
 * the name is unknown. */
static bool kind_of(struct slice instance, enum request_kind *kind)
{
    static const struct {
        const char *name;
        enum request_kind kind;
    } formats[] = {
        {"\"chatCompletions\"", KIND_CHAT},
        {"\"completions\"", KIND_COMPLETIONS},
        {"\"completion\"", KIND_NATIVE},
        {"\"embeddings\"", KIND_EMBEDDINGS},
        {"\"embedding\"", KIND_NATIVE_EMBED},
        {"\"messages\"", KIND_MESSAGES},
        {"\"rerank\"", KIND_RERANK},
        {"\"infill\"", KIND_INFILL},
        {"\"tokenize\"", KIND_TOKENIZE},
        {"\"detokenize\"", KIND_DETOKENIZE},
        {"\"applyTemplate\"", KIND_APPLY_TEMPLATE},
    };
    struct slice format = slice_at(instance, "@requestFormat");
    for (size_t i = 0; format.s && i < sizeof formats / sizeof formats[0]; i++) {
        if (strlen(formats[i].name) == format.n &&
            memcmp(formats[i].name, format.s, format.n) == 0) {
            *kind = formats[i].kind;
            return true;
        }
    }
    *kind = KIND_INVOCATIONS;
    return !format.s;
}

/* Makes a call of one instance. Its sink collects the answer instead of sending it. */
static void start(struct prediction *p, struct slice instance)
{
    struct call_error e = {0};
    struct tenant *tenant = api_log(p->req)->tenant;
    enum request_kind kind;
    if (!kind_of(instance, &kind)) {
        call_error_set(
            &e, 400, "unsupported_value", "@requestFormat",
            "Unsupported value: '@requestFormat' must be one of 'chatCompletions', 'completions', "
            "'completion', 'embeddings', 'embedding', 'messages', 'rerank', 'infill', "
            "'tokenize', 'detokenize' and 'applyTemplate'.");
        fail(p, &e);
        return;
    }
    if (!tenant_enter(tenant, clock_now_ns(), &e)) {
        p->api->calls.counts.rejected[REJECT_RATE_LIMIT]++;
        fail(p, &e);
        return;
    }
    struct part *part = xcalloc(1, sizeof *part);
    struct call *c = &part->call.call;
    part->of = p;
    part->text = malloc(instance.n + 1);
    if (!part->text) {
        call_error_no_memory(&e);
        tenant_leave(tenant);
        free(part);
        fail(p, &e);
        return;
    }
    memcpy(part->text, instance.s, instance.n);
    part->text[instance.n] = '\0';
    c->tenant = tenant_hold(tenant);
    c->sink = &part_sink;
    c->request.kind = kind;
    c->request.text = part->text;
    c->request.n_bytes = instance.n;
    c->t_arrived_ns = http_arrived_ns(p->req);
    snprintf(c->owner, sizeof c->owner, "%s", api_log(p->req)->owner);
    p->call = c;
    call_start(&p->api->calls, c);
}

/* Starts the next instance or, after the last one, replies with the answers. */
static void run_next(struct prediction *p)
{
    struct slice instance = {NULL, 0};
    if (p->req) {
        instance = slice_next(&p->items);
    }
    if (instance.s) {
        start(p, instance);
    } else if (p->req) {
        struct buf body;
        struct http_request *req = p->req;
        p->req = NULL;
        buf_init(&body, ANSWERS_MAX_BYTES);
        buf_puts(&body, "{\"predictions\":[");
        buf_put(&body, p->answers.data, p->answers.n_bytes);
        buf_puts(&body, "]}");
        if (body.failed || p->answers.failed) {
            buf_deinit(&body);
            reply_errorf(req, 503, "out_of_memory", NULL, "Out of memory for the answers.");
        } else {
            reply_json(req, 200, &body);
        }
    }
    if (!p->req && !p->call) {
        free_prediction(p);
    }
}

/* ---- the request -------------------------------------------------------------------------------
 */

static void on_gone(struct http_request *req, enum http_gone why, void *arg)
{
    struct prediction *p = arg;
    (void)req;
    if (p->call) {
        call_gone(p->call, why == HTTP_GONE_SHUTDOWN ? ABORT_SHUTDOWN : ABORT_DISCONNECT);
    }
}

static const struct http_events events = {on_gone, NULL};

/* True if the text is one JSON object. */
static bool is_object(const char *text, size_t n_bytes)
{
    struct json_scan sc;
    enum json_token t, first;
    json_scan_init(&sc, text, n_bytes, JSON_SCAN_MAX_DEPTH);
    for (first = t = json_scan_next(&sc); t != JSON_TOKEN_END && t != JSON_TOKEN_ERROR;) {
        t = json_scan_next(&sc);
    }
    return t == JSON_TOKEN_END && first == JSON_TOKEN_OBJECT;
}

void api_predict(struct http_request *req, void *arg)
{
    struct api *a = arg;
    size_t n_bytes = 0;
    const char *text = http_body(req, &n_bytes);
    if (api_refuses(a, req)) {
        return;
    }
    if (!text || !is_object(text, n_bytes)) {
        reply_errorf(req, 400, "json_parse_error", NULL, "The body must be a JSON object.");
        return;
    }
    struct slice list = slice_at((struct slice){text, n_bytes}, "instances");
    if (!list.s || list.n == 0 || list.s[0] != '[') {
        reply_errorf(req, 400, list.s ? "invalid_type" : "missing_required_parameter", "instances",
                     "Missing or invalid parameter: 'instances' must be an array of requests.");
        return;
    }
    struct prediction *p = xcalloc(1, sizeof *p);
    p->api = a;
    p->req = req;
    buf_init(&p->answers, ANSWERS_MAX_BYTES);
    slice_items(&p->items, list);
    http_defer(req, &events, p);
    run_next(p);
}
