// SPDX-License-Identifier: Apache-2.0
/* Streams that can be resumed, /v1/stream. */
#include "server/api/resume.h"

#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "server/api/api_call.h"
#include "server/api/log_request.h"
#include "server/api/reply.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_STREAMS = 64,    // of all keys together
    MAX_BYTES = 4 << 20, // of one stream; the oldest are dropped
    MAX_ID_BYTES = 512,
    PIECE_BYTES = 32 << 10, // arbitrary
    KEPT_MS = 300 * 1000,
};

/* A client that reads the stream. */
struct reader {
    struct http_request *req;
    struct kept_stream *stream;
    int64_t at; // how much of the stream it has
    struct reader *next, **link;
};

struct kept_stream {
    struct api *api;
    struct call *call; // NULL: it has ended
    char owner[sizeof((struct call *)NULL)->owner];
    char *id, *request_id;
    struct buf bytes;  // the last bytes of the stream
    int64_t n_dropped; // bytes before these
    bool begun;        // the client has the head
    int64_t client_at; // how much of the stream was sent to the client that began it
    struct reader *readers;
    struct http_timer expiry;
    struct kept_stream *next, **link;
};

static struct kept_stream *stream_of(const struct call *c)
{
    return api_call_of(c)->stream;
}

static int64_t end_of(const struct kept_stream *s)
{
    return s->n_dropped + (int64_t)s->bytes.n_bytes;
}

/* ---- readers ----------------------------------------------------------------------------------
 */

static void forget(struct reader *r)
{
    *r->link = r->next;
    if (r->next) {
        r->next->link = r->link;
    }
    free(r);
}

/* The end of the last whole event of a piece: the server may write a comment between two pieces. */
static size_t piece_end(const struct buf *b, size_t from)
{
    const size_t at = from + PIECE_BYTES;
    if (at >= b->n_bytes) {
        return b->n_bytes;
    }
    const char *end = memmem(b->data + at, b->n_bytes - at, "\n\n", 2);
    return end ? (size_t)(end - b->data) + 2 : b->n_bytes;
}

/* Sends what a client does not have yet, until its socket is full or, at the end, all of it. False:
 * a part has been dropped before the client could take it. */
static bool feed(const struct kept_stream *s, struct http_request *req, int64_t *at, bool is_last)
{
    if (*at < s->n_dropped) {
        return false;
    }
    size_t from = (size_t)(*at - s->n_dropped);
    while (from < s->bytes.n_bytes && (is_last || !http_stream_is_full(req))) {
        const size_t to = piece_end(&s->bytes, from);
        http_stream_write(req, s->bytes.data + from, to - from);
        from = to;
    }
    *at = s->n_dropped + (int64_t)from;
    return true;
}

static void feed_reader(struct reader *r)
{
    if (!feed(r->stream, r->req, &r->at, false)) {
        http_stream_end(r->req);
        forget(r);
    }
}

static void feed_all(struct kept_stream *s)
{
    struct http_request *client = s->call ? api_call_of(s->call)->req : NULL;
    if (client && s->begun && !feed(s, client, &s->client_at, false)) {
        http_stream_end(api_call_take_request(s->call));
    }
    for (struct reader *r = s->readers, *next; r; r = next) {
        next = r->next;
        feed_reader(r);
    }
}

static void end_readers(struct kept_stream *s)
{
    for (struct reader *r = s->readers, *next; r; r = next) {
        next = r->next;
        feed(s, r->req, &r->at, true);
        http_stream_end(r->req);
        forget(r);
    }
}

static void on_gone(struct http_request *req, enum http_gone why, void *arg)
{
    (void)why;
    http_stream_end(req);
    forget(arg);
}

static void on_writable(struct http_request *req, void *arg)
{
    (void)req;
    feed_reader(arg);
}

static const struct http_events events = {on_gone, on_writable};

/* ---- streams ----------------------------------------------------------------------------------
 */

static void unlink_stream(struct kept_stream *s)
{
    *s->link = s->next;
    if (s->next) {
        s->next->link = s->link;
    }
    buf_deinit(&s->bytes);
    free(s->id);
    free(s->request_id);
    free(s);
}

static void free_stream(struct kept_stream *s)
{
    end_readers(s);
    http_timer_stop(s->api->http, &s->expiry);
    unlink_stream(s);
}

static void on_expiry(struct http_timer *timer, void *arg)
{
    (void)timer;
    free_stream(arg);
}

static struct kept_stream *find(struct api *a, const char *owner, const char *id)
{
    for (struct kept_stream *s = a->streams; s; s = s->next) {
        if (strcmp(s->id, id) == 0 && strcmp(s->owner, owner) == 0) {
            return s;
        }
    }
    return NULL;
}

/* Ends what runs, and forgets what was kept. */
static void evict(struct kept_stream *s)
{
    if (s->call) {
        call_gone(s->call, ABORT_DISCONNECT); // which frees the stream (drop)
    } else {
        free_stream(s);
    }
}

/* Makes room for one more stream by forgetting the one that has ended first. */
static bool has_room(struct api *a)
{
    struct kept_stream *ended = NULL;
    int n = 0;
    for (struct kept_stream *s = a->streams; s; s = s->next, n++) {
        if (!s->call) {
            ended = s; // new ones are put in front
        }
    }
    if (n >= MAX_STREAMS && ended) {
        free_stream(ended);
        n--;
    }
    return n < MAX_STREAMS;
}

/* Drops the older half of the bytes, in whole events. */
static void drop_old(struct kept_stream *s)
{
    struct buf *b = &s->bytes;
    const size_t from = b->n_bytes / 2;
    const char *end = memmem(b->data + from, b->n_bytes - from, "\n\n", 2);
    const size_t n = end ? (size_t)(end - b->data) + 2 : b->n_bytes;
    memmove(b->data, b->data + n, b->n_bytes - n);
    b->n_bytes -= n;
    s->n_dropped += (int64_t)n;
}

/* ---- the sink ---------------------------------------------------------------------------------
 */

static const char *id(struct call *c, const char *asked)
{
    (void)asked;
    return stream_of(c)->request_id;
}

static void begin(struct call *c)
{
    struct http_request *req = api_call_of(c)->req;
    if (req) {
        api_call_put_rates(req, c->tenant);
        http_stream_begin(req, NULL);
    }
    stream_of(c)->begun = true;
}

static void event(struct call *c, const char *name, const char *json, size_t n_bytes)
{
    struct kept_stream *s = stream_of(c);
    if (name) {
        buf_printf(&s->bytes, "event: %s\n", name);
    }
    buf_puts(&s->bytes, "data: ");
    buf_put(&s->bytes, json, n_bytes);
    buf_puts(&s->bytes, "\n\n");
    feed_all(s);
    if (s->bytes.n_bytes > MAX_BYTES) {
        drop_old(s);
    }
}

static bool is_full(const struct call *c)
{
    (void)c; // what a client cannot take yet is kept
    return false;
}

static bool is_begun(const struct call *c)
{
    return stream_of(c)->bytes.n_bytes > 0;
}

/* The stream can still be read for some time. */
static void end(struct call *c, bool done)
{
    struct kept_stream *s = stream_of(c);
    if (done) {
        event(c, NULL, "[DONE]", 6);
    }
    if (api_call_of(c)->req) {
        struct http_request *req = api_call_take_request(c);
        feed(s, req, &s->client_at, true);
        http_stream_end(req);
    }
    end_readers(s);
    s->call = NULL;
    http_timer_start(s->api->http, &s->expiry, KEPT_MS, on_expiry, s);
}

/* An error before the first event is the whole answer, and there is nothing to keep. */
static void error(struct call *c, const struct call_error *e)
{
    struct kept_stream *s = stream_of(c);
    struct http_request *req = api_call_of(c)->req;
    if (is_begun(c)) {
        struct buf b;
        buf_init(&b, 1 << 16);
        call_error_put(&b, e, CALL_ERROR_LLAMA);
        event(c, NULL, b.data, b.n_bytes);
        buf_deinit(&b);
        end(c, true);
        return;
    }
    if (req) {
        req = api_call_take_request(c);
        reply_stream_end(req, e, true);
    }
    free_stream(s);
}

/* Something else has ended the stream: its client, if it still waits, is told. */
static void drop(struct call *c)
{
    struct kept_stream *s = stream_of(c);
    struct http_request *req = api_call_of(c)->req ? api_call_take_request(c) : NULL;
    if (req && s->begun) {
        http_stream_end(req);
    } else if (req) {
        reply_errorf(req, 400, "cancelled", NULL, "The stream was cancelled.");
    }
    free_stream(s);
}

static const struct call_sink sink = {
    .id = id,
    .begin = begin,
    .event = event,
    .is_full = is_full,
    .is_begun = is_begun,
    .end = end,
    .error = error,
    .drop = drop,
    .over = api_call_over,
};

/* The client has left; the stream continues. */
static void leave(struct call *c, enum call_abort why)
{
    (void)why;
    struct http_request *req = api_call_take_request(c);
    if (stream_of(c)->begun) {
        http_stream_end(req);
    } else {
        http_reply(req, 499, "text/plain", "", 0);
    }
}

static void proceed(struct call *c)
{
    feed_all(stream_of(c));
}

static const struct api_client client = {leave, proceed};

/* A conversation has one stream: a new one takes the place of the one before. */
void resume_take(struct call *c)
{
    struct http_request *req = api_call_of(c)->req;
    struct api *a = (struct api *)c->server;
    const char *conversation = api_call_of(c)->conversation;
    if (!conversation || !c->request.stream) {
        return;
    }
    struct kept_stream *s = find(a, c->owner, conversation);
    if (s) {
        evict(s);
    }
    if (!has_room(a)) {
        return; // a stream like any other
    }
    s = xcalloc(1, sizeof *s);
    s->api = a;
    s->call = c;
    snprintf(s->owner, sizeof s->owner, "%s", c->owner);
    s->id = xstrdup(conversation);
    s->request_id = xstrdup(http_request_id(req));
    buf_init(&s->bytes, 2 * (size_t)MAX_BYTES);
    s->next = a->streams;
    s->link = &a->streams;
    if (s->next) {
        s->next->link = &s->next;
    }
    a->streams = s;
    api_call_of(c)->stream = s;
    api_call_of(c)->client = &client;
    c->sink = &sink;
}

void resume_note(struct api *a, struct call *c)
{
    const char *conversation = http_header(api_call_of(c)->req, "x-conversation-id");
    const size_t n = length_or_0(conversation);
    const bool lines = api_log(api_call_of(c)->req)->form == REPLY_OLLAMA;
    if (a->calls.model.is_llama && !lines && n > 0 && n <= MAX_ID_BYTES) {
        api_call_of(c)->conversation = xstrdup(conversation);
    }
}

/* The front end and its timers no longer exist. */
void resume_close(struct api *a)
{
    struct kept_stream *after;
    for (struct kept_stream *s = a->streams; s; s = after) {
        struct reader *next;
        for (struct reader *r = s->readers; r; r = next) {
            next = r->next;
            forget(r);
        }
        after = s->next;
        unlink_stream(s);
    }
}

/* ---- routes -----------------------------------------------------------------------------------
 */

static const char *conversation_of(struct http_request *req)
{
    const char *id = http_query(req, "conv_id");
    if (!id || !*id) {
        reply_errorf(req, 400, "missing_required_parameter", "conv_id",
                     "Missing required parameter: 'conv_id'.");
        return NULL;
    }
    return id;
}

static bool read_offset(const char *text, int64_t *v)
{
    char *end;
    if (!isdigit((unsigned char)*text)) {
        return false;
    }
    *v = strtoll(text, &end, 10);
    return *end == '\0';
}

/* Sends the bytes from position `from` on, and then what follows. */
void api_stream_resume(struct http_request *req, void *arg)
{
    struct api *a = arg;
    const char *id = conversation_of(req), *text = http_query(req, "from");
    int64_t from = 0;
    if (!id || api_refuses(a, req)) {
        return;
    }
    struct kept_stream *s = find(a, api_log(req)->owner, id);
    if (!s) {
        reply_errorf(req, 404, "not_found", "conv_id",
                     "There is no stream of this conversation, or "
                     "it has expired.");
        return;
    }
    if ((text && *text && !read_offset(text, &from)) || from < s->n_dropped || from > end_of(s)) {
        reply_errorf(req, 400, "invalid_value", "from",
                     "Invalid 'from': expected a position from %lld to %lld, the bytes that are "
                     "kept.",
                     (long long)s->n_dropped, (long long)end_of(s));
        return;
    }
    if (!s->call) {
        http_stream_begin(req, NULL);
        feed(s, req, &from, true);
        http_stream_end(req);
        return;
    }
    struct reader *r = xcalloc(1, sizeof *r);
    *r = (struct reader){
        .req = req, .stream = s, .at = from, .next = s->readers, .link = &s->readers};
    if (r->next) {
        r->next->link = &r->next;
    }
    s->readers = r;
    http_defer(req, &events, r);
    http_stream_begin(req, NULL);
    feed_reader(r);
}

/* The user's "stop". */
void api_stream_delete(struct http_request *req, void *arg)
{
    struct api *a = arg;
    const char *id = conversation_of(req);
    struct kept_stream *s = id ? find(a, api_log(req)->owner, id) : NULL;
    if (s) {
        evict(s);
    }
    if (id) {
        http_reply(req, 204, NULL, "", 0);
    }
}
