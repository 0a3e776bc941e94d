// SPDX-License-Identifier: Apache-2.0
/* Responses in the background: the client gets the id at once and reads the result, or
 * follows the events, later. A call keeps its events; each reader is a listener with its
 * own position in them. */
#include "server/api/background.h"

#include "engine/base/mem.h"
#include "server/api/api_call.h"
#include "server/api/log_request.h"
#include "server/call/format.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 30, PIECE_BYTES = 32 << 10 /* arbitrary */ };

/* A client that follows the events, or waits for the final object. */
struct listener {
    struct http_request *req;
    struct call *call;
    bool wants_end;
    int64_t n_skipped; // events still to be skipped, because the client already has them
    size_t n_sent;     // bytes of the events sent so far
    struct listener *next, **link;
};

struct background {
    struct listener *listeners;
};

static struct background *background_of(const struct call *c)
{
    return api_call_of(c)->background;
}

/* ---- listeners ------------------------------------------------------------------------------- */

/* Unlinks a listener in O(1); its request must have been answered. */
static void forget(struct listener *l)
{
    *l->link = l->next;
    if (l->next) {
        l->next->link = l->link;
    }
    free(l);
}

/* The number of bytes of the first *n_events events, each of which ends with an empty line;
 * *n_events becomes the number of events that `text` does not have. */
size_t background_skip(const char *text, size_t n_bytes, int64_t *n_events)
{
    size_t at = 0;
    for (; *n_events > 0 && at < n_bytes; (*n_events)--) {
        const char *end = memmem(text + at, n_bytes - at, "\n\n", 2);
        at = end ? (size_t)(end - text) + 2 : n_bytes;
    }
    return at;
}

/* The end of the last complete event: pieces end there, because the server may write a comment
 * between two pieces. */
static size_t piece_end(const char *events, size_t from, size_t n_bytes)
{
    size_t at = from + PIECE_BYTES;
    if (at >= n_bytes) {
        return n_bytes;
    }
    const char *end = memmem(events + at, n_bytes - at, "\n\n", 2);
    return end ? (size_t)(end - events) + 2 : n_bytes;
}

/* Sends what a listener has not seen, in pieces, until its socket is full. The last piece is
 * sent even if there is no room, because the events are freed with the call. */
static void feed(struct listener *l, bool is_last)
{
    size_t n;
    const char *events = call_response_events(l->call, &n);
    l->n_sent += background_skip(events + l->n_sent, n - l->n_sent, &l->n_skipped);
    while (l->n_sent < n && (is_last || !http_stream_is_full(l->req))) {
        size_t end = piece_end(events, l->n_sent, n);
        http_stream_write(l->req, events + l->n_sent, end - l->n_sent);
        l->n_sent = end;
    }
}

/* A reader has left; the response continues. */
static void on_gone(struct http_request *req, enum http_gone why, void *arg)
{
    struct listener *l = arg;
    (void)why;
    if (l->wants_end) {
        http_reply(req, 499, "text/plain", "", 0);
    } else {
        http_stream_end(req);
    }
    forget(l);
}

static void on_writable(struct http_request *req, void *arg)
{
    (void)req;
    feed(arg, false);
}

static const struct http_events events = {on_gone, on_writable};

/* wants_end: the request is answered with the result, once it exists. */
static struct listener *listen_to(struct call *c, struct http_request *req, bool wants_end)
{
    struct background *b = background_of(c);
    struct listener *l = xcalloc(1, sizeof *l);
    *l = (struct listener){.req = req, .call = c, .wants_end = wants_end};
    l->next = b->listeners;
    l->link = &b->listeners;
    if (l->next) {
        l->next->link = &l->next;
    }
    b->listeners = l;
    http_defer(req, &events, l);
    return l;
}

void background_follow(struct call *c, struct http_request *req, int64_t after)
{
    struct listener *l = listen_to(c, req, false);
    l->n_skipped = after + 1;
    http_stream_begin(req, NULL);
    feed(l, false);
}

void background_reply(struct call *c, struct http_request *req)
{
    struct buf b;
    buf_init(&b, MAX_BYTES);
    call_put_response(&b, c);
    reply_json(req, 200, &b);
}

/* ---- the sink -------------------------------------------------------------------------------- */

static void begin(struct call *c)
{
    (void)c; // the client that created the response is answered once it is stored
}

/* The response was stored, so it can be read under its id from now on; the first reader is
 * the request that created it. */
static void kept(struct call *c)
{
    struct http_request *req = api_call_take_request(c);
    if (http_is_gone(req)) {
        http_reply(req, 499, "text/plain", "", 0);
        return;
    }
    api_call_put_rates(req, c->tenant);
    if (c->request.wants_events) {
        background_follow(c, req, -1);
    } else {
        background_reply(c, req);
    }
}

static void event(struct call *c, const char *name, const char *json, size_t n_bytes)
{
    (void)name;
    (void)json;
    (void)n_bytes; // feed() reads the event from the call's events
    for (struct listener *l = background_of(c)->listeners; l; l = l->next) {
        if (!l->wants_end) {
            feed(l, false);
        }
    }
}

static bool is_full(const struct call *c)
{
    (void)c;
    return false;
}

static bool is_begun(const struct call *c)
{
    return c->kept;
}

/* Ends the streams of all listeners. Afterwards the call no longer exists. */
static void end(struct call *c, bool done)
{
    (void)done;
    for (struct listener *l = background_of(c)->listeners, *next; l; l = next) {
        next = l->next;
        if (l->wants_end) {
            background_reply(c, l->req);
        } else {
            feed(l, true);
            http_stream_end(l->req);
        }
        forget(l);
    }
}

/* The call failed before the beginning of the response was stored. */
static void error(struct call *c, const struct call_error *e)
{
    struct http_request *req = api_call_take_request(c);
    api_call_put_rates(req, c->tenant);
    reply_error(req, e);
}

static void drop(struct call *c)
{
    http_reply(api_call_take_request(c), 499, "text/plain", "", 0);
}

static const char *id(struct call *c, const char *asked)
{
    (void)asked;
    return http_request_id(api_call_of(c)->req);
}

static void over(struct call *c)
{
    free(background_of(c));
    api_call_over(c);
}

/* The sink of a call without a client. */
static const struct call_sink sink = {
    .id = id,
    .kept = kept,
    .begin = begin,
    .event = event,
    .is_full = is_full,
    .is_begun = is_begun,
    .end = end,
    .error = error,
    .drop = drop,
    .over = over,
};

/* The response continues without its client. */
static void leave(struct call *c, enum call_abort why)
{
    (void)c;
    (void)why;
}

static const struct api_client client = {leave, call_on_room};

void background_take(struct call *c)
{
    api_call_of(c)->client = &client;
    api_call_of(c)->background = xcalloc(1, sizeof(struct background));
    c->sink = &sink;
}

/* ---- from handlers --------------------------------------------------------------------------- */

/* Finds a running response of this owner. */
struct call *background_find(struct api *a, const char *owner, const char *id)
{
    for (struct call *c = a->calls.calls; c; c = c->next) {
        if (c->sink == &sink && c->kept && !c->answered && strcmp(c->id, id) == 0 &&
            strcmp(c->owner, owner) == 0) {
            return c;
        }
    }
    return NULL;
}

void background_cancel(struct call *c, struct http_request *req)
{
    listen_to(c, req, true);
    call_cancel(c);
}
