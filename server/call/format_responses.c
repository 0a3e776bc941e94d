// SPDX-License-Identifier: Apache-2.0
/* /v1/responses: one object, or its event stream; kept for later unless the request says no. */
#include "server/call/format.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "server/call/items.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL, ITEM_CUSTOM };

struct responses {
    int64_t sequence;
    int32_t n_items; // begun
    bool begun;      // the first events of the stream are sent
    enum item open;
    char item_id[40], call_id[80], name[TOOL_NAME_MAX_BYTES + 1];
    struct buf text;     // of the open item
    struct buf logprobs; // of the open message
    struct buf items;    // the finished ones, joined by commas
    struct buf body;     // at the end: the whole object
    struct buf lost;     // what it becomes if the server ends before it has
    struct buf events;   // of one that runs in the background, framed: for who comes later
    size_t n_told;       // bytes of them that may be read: not the last one before it is stored
};

static struct responses *state(struct call *c)
{
    if (!c->extra) {
        struct responses *s = xcalloc(1, sizeof *s);
        buf_init(&s->text, (size_t)256 << 20);
        buf_init(&s->logprobs, (size_t)256 << 20);
        buf_init(&s->items, (size_t)512 << 20);
        buf_init(&s->body, (size_t)1 << 30);
        buf_init(&s->lost, (size_t)1 << 30);
        buf_init(&s->events, (size_t)1 << 30);
        c->extra = s;
    }
    return c->extra;
}

/* The struct itself is freed with the call. */
static void forget(struct call *c)
{
    struct responses *s = state(c);
    buf_deinit(&s->text);
    buf_deinit(&s->logprobs);
    buf_deinit(&s->items);
    buf_deinit(&s->body);
    buf_deinit(&s->lost);
    buf_deinit(&s->events);
}

/* ---- objects ----------------------------------------------------------------------------------
 */

static void put_usage(struct buf *b, const struct call *c)
{
    struct call_usage u = call_usage_of(c);
    buf_puts(b, "{\"input_tokens\":");
    buf_put_int(b, u.prompt);
    buf_puts(b, ",\"input_tokens_details\":{\"cached_tokens\":");
    buf_put_int(b, u.cached);
    call_put_recomputed(b, &u);
    buf_puts(b, ",\"cache_write_tokens\":0},\"output_tokens\":"); // the SDK's type wants it
    buf_put_int(b, u.completion);
    buf_puts(b, ",\"output_tokens_details\":{\"reasoning_tokens\":");
    buf_put_int(b, u.reasoning);
    buf_puts(b, "},\"total_tokens\":");
    buf_put_int(b, u.prompt + u.completion);
    buf_putc(b, '}');
}

/* The status by which a client knows that there is no more to come, and why it is so. */
struct ending {
    const char *status, *error; // error: a failure's sentence; or NULL
};

static bool is_cut(const struct call *c)
{
    return strcmp(c->choices[0].finish, "length") == 0;
}

static struct ending ending_of(const struct call *c)
{
    switch (c->ending) {
    case CALL_FAILED: return (struct ending){"failed", c->why};
    case CALL_CANCELLED: return (struct ending){"cancelled", NULL};
    default: return (struct ending){is_cut(c) ? "incomplete" : "completed", NULL};
    }
}

static void put_error(struct buf *b, const char *message)
{
    if (message) {
        buf_puts(b, "{\"code\":\"server_error\",\"message\":");
        buf_put_json(b, message, strlen(message));
        buf_putc(b, '}');
    } else {
        buf_puts(b, "null");
    }
}

static void put_id_or_null(struct buf *b, const char *id)
{
    if (id) {
        buf_put_json(b, id, strlen(id));
    } else {
        buf_puts(b, "null");
    }
}

static void put_object(struct buf *b, struct call *c, struct ending e)
{
    const struct responses *s = state(c);
    const char *status = e.status;
    bool over = strcmp(status, "in_progress") != 0 && strcmp(status, "queued") != 0;
    bool cut = strcmp(status, "incomplete") == 0;
    buf_puts(b, "{\"id\":");
    buf_put_json(b, c->id, strlen(c->id));
    buf_puts(b, ",\"object\":\"response\",\"created_at\":");
    buf_put_int(b, c->created);
    buf_printf(b, ",\"status\":\"%s\",\"background\":%s,\"error\":", status,
               bool_word(c->request.detached));
    put_error(b, e.error);
    buf_printf(b, ",\"incomplete_details\":%s",
               cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    buf_puts(b, ",\"completed_at\":");
    if (strcmp(status, "completed") == 0) {
        buf_put_int(b, clock_wall_sec());
    } else {
        buf_puts(b, "null");
    }
    buf_puts(b, ",\"model\":");
    buf_put_json(b, c->request.model_name, strlen(c->request.model_name));
    buf_puts(b, ",\"output\":[");
    buf_put(b, s->items.data, s->items.n_bytes);
    buf_puts(b, "],\"previous_response_id\":");
    put_id_or_null(b, c->request.previous);
    if (c->request.conversation) {
        buf_puts(b, ",\"conversation\":{\"id\":");
        put_id_or_null(b, c->request.conversation);
        buf_putc(b, '}');
    }
    buf_puts(b, ",\"service_tier\":\"default\",\"prompt_cache_diagnostics\":null");
    buf_puts(b, c->request.repeated);
    buf_puts(b, ",\"usage\":");
    if (over) {
        put_usage(b, c);
    } else {
        buf_puts(b, "null");
    }
    buf_putc(b, '}');
}

static void put_response(struct buf *b, struct call *c, const char *status)
{
    put_object(b, c, (struct ending){status, NULL});
}

void call_put_response(struct buf *b, struct call *c)
{
    const struct buf *body = &state(c)->body;
    if (c->closed) {
        buf_put(b, body->data, body->n_bytes);
    } else {
        put_response(b, c, c->first_token ? "in_progress" : "queued");
    }
}

static void put_text_part(struct buf *b, const struct responses *s)
{
    buf_puts(b, "{\"type\":\"output_text\",\"text\":");
    buf_put_json(b, or_empty(s->text.data), s->text.n_bytes);
    buf_puts(b, ",\"annotations\":[],\"logprobs\":[");
    buf_put(b, s->logprobs.data, s->logprobs.n_bytes);
    buf_puts(b, "]}");
}

/* The open item; `done`: with all that it holds. */
static void put_item(struct buf *b, const struct responses *s, const char *status, bool done)
{
    buf_puts(b, "{\"id\":");
    buf_put_json(b, s->item_id, strlen(s->item_id));
    buf_printf(b, ",\"status\":\"%s\",", status);
    if (s->open == ITEM_REASONING) {
        buf_puts(b, "\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (done) {
            buf_puts(b, "{\"type\":\"reasoning_text\",\"text\":");
            buf_put_json(b, or_empty(s->text.data), s->text.n_bytes);
            buf_putc(b, '}');
        }
        buf_puts(b, "]}");
    } else if (s->open == ITEM_MESSAGE) {
        buf_puts(b, "\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        if (done) {
            put_text_part(b, s);
        }
        buf_puts(b, "]}");
    } else {
        bool custom = s->open == ITEM_CUSTOM;
        if (custom) {
            buf_puts(b, "\"type\":\"custom_tool_call\",\"call_id\":");
        } else {
            buf_puts(b, "\"type\":\"function_call\",\"call_id\":");
        }
        buf_put_json(b, s->call_id, strlen(s->call_id));
        buf_puts(b, ",\"name\":");
        buf_put_json(b, s->name, strlen(s->name));
        if (custom) {
            buf_puts(b, ",\"input\":");
        } else {
            buf_puts(b, ",\"arguments\":");
        }
        buf_put_json(b, done && s->text.data ? s->text.data : "", done ? s->text.n_bytes : 0);
        buf_putc(b, '}');
    }
}

/* ---- events -----------------------------------------------------------------------------------
 */

static struct buf *event(struct call *c, const char *type)
{
    struct buf *b = &c->server->scratch;
    buf_clear(b);
    buf_printf(b, "{\"type\":\"%s\",\"sequence_number\":", type);
    buf_put_int(b, state(c)->sequence++);
    return b;
}

static void keep_event(struct call *c, const char *type, const struct buf *b)
{
    struct buf *log = &state(c)->events;
    buf_printf(log, "event: %s\ndata: ", type);
    buf_put(log, b->data, b->n_bytes);
    buf_puts(log, "\n\n");
}

const char *call_response_events(struct call *c, size_t *n_bytes)
{
    const struct responses *s = state(c);
    *n_bytes = s->n_told;
    return s->events.data;
}

static void send(struct call *c, const char *type, struct buf *b)
{
    struct responses *s = state(c);
    buf_putc(b, '}');
    if (c->request.detached) {
        keep_event(c, type, b);
        s->n_told = s->events.n_bytes;
    }
    call_event(c, type, b);
}

static void send_response(struct call *c, const char *type, const char *status)
{
    struct buf *b = event(c, type);
    buf_puts(b, ",\"response\":");
    put_response(b, c, status);
    send(c, type, b);
}

/* ,"item_id":..,"output_index":..[,"content_index":0] */
static void put_place(struct buf *b, const struct responses *s, bool content)
{
    buf_puts(b, ",\"item_id\":");
    buf_put_json(b, s->item_id, strlen(s->item_id));
    buf_puts(b, ",\"output_index\":");
    buf_put_int(b, s->n_items - 1);
    if (content) {
        buf_puts(b, ",\"content_index\":0");
    }
}

static void send_item(struct call *c, const char *type, const char *status, bool done)
{
    struct responses *s = state(c);
    struct buf *b = event(c, type);
    buf_puts(b, ",\"output_index\":");
    buf_put_int(b, s->n_items - 1);
    buf_puts(b, ",\"item\":");
    put_item(b, s, status, done);
    send(c, type, b);
}

static void send_part(struct call *c, const char *type)
{
    struct buf *b = event(c, type);
    put_place(b, state(c), true);
    buf_puts(b, ",\"part\":");
    put_text_part(b, state(c));
    send(c, type, b);
}

static void open_item(struct call *c, enum item kind)
{
    static const char *const prefixes[] = {"", "rs_", "msg_", "fc_", "ctc_"};
    struct responses *s = state(c);
    s->open = kind;
    s->n_items++;
    call_make_id(c, prefixes[kind], s->item_id);
    buf_clear(&s->text);
    buf_clear(&s->logprobs);
    if (c->request.stream) {
        send_item(c, "response.output_item.added", "in_progress", false);
        if (kind == ITEM_MESSAGE) {
            send_part(c, "response.content_part.added");
        }
    }
}

static void send_text_done(struct call *c, const char *type, const char *key, bool content)
{
    struct responses *s = state(c);
    struct buf *b = event(c, type);
    put_place(b, s, content);
    buf_printf(b, ",\"%s\":", key);
    buf_put_json(b, or_empty(s->text.data), s->text.n_bytes);
    if (s->open == ITEM_MESSAGE) {
        buf_puts(b, ",\"logprobs\":[");
        buf_put(b, s->logprobs.data, s->logprobs.n_bytes);
        buf_putc(b, ']');
    } else if (s->open == ITEM_CALL) {
        buf_puts(b, ",\"name\":");
        buf_put_json(b, s->name, strlen(s->name));
    }
    send(c, type, b);
}

static void close_item(struct call *c, const char *status)
{
    struct responses *s = state(c);
    if (s->open == ITEM_NONE) {
        return;
    }
    if (c->request.stream) {
        if (s->open == ITEM_REASONING) {
            send_text_done(c, "response.reasoning_text.done", "text", true);
        } else if (s->open == ITEM_MESSAGE) {
            send_text_done(c, "response.output_text.done", "text", true);
            send_part(c, "response.content_part.done");
        } else if (s->open == ITEM_CALL) {
            send_text_done(c, "response.function_call_arguments.done", "arguments", false);
        } else {
            send_text_done(c, "response.custom_tool_call_input.done", "input", false);
        }
        send_item(c, "response.output_item.done", status, true);
    }
    if (s->items.n_bytes) {
        buf_puts(&s->items, ",");
    }
    put_item(&s->items, s, status, true);
    s->open = ITEM_NONE;
}

/* One that runs in the background waits before it begins. */
static void begin(struct call *c)
{
    struct responses *s = state(c);
    if (c->request.detached) {
        put_response(&s->body, c, "queued");
        put_object(&s->lost, c,
                   (struct ending){"failed", "The server ended before the response had."});
        send_response(c, "response.created", "queued");
        send_response(c, "response.queued", "queued");
    }
}

static void start(struct call_choice *ch)
{
    struct call *c = ch->call;
    struct responses *s = state(c);
    if (s->begun) {
        return;
    }
    s->begun = true;
    if (c->request.stream && !c->request.detached) {
        send_response(c, "response.created", "in_progress");
    }
    if (c->request.stream) {
        send_response(c, "response.in_progress", "in_progress");
    }
}

static void prompt(struct call_choice *ch)
{
    struct call *c = ch->call;
    start(ch);
    struct buf *b = event(c, "response.in_progress");
    buf_puts(b, ",\"response\":");
    put_response(b, c, "in_progress");
    call_put_progress(b, ch);
    send(c, "response.in_progress", b);
}

static void take_logprobs(struct call_choice *ch, struct buf *into)
{
    if (ch->logprobs.n_bytes > 0) {
        if (into->n_bytes) {
            buf_puts(into, ",");
        }
        buf_put(into, ch->logprobs.data, ch->logprobs.n_bytes);
    }
}

static void send_delta(struct call_choice *ch, const struct buf *text)
{
    struct call *c = ch->call;
    struct responses *s = state(c);
    static const char *const types[] = {
        [ITEM_REASONING] = "response.reasoning_text.delta",
        [ITEM_MESSAGE] = "response.output_text.delta",
        [ITEM_CALL] = "response.function_call_arguments.delta",
        [ITEM_CUSTOM] = "response.custom_tool_call_input.delta",
    };
    const char *type = types[s->open];
    struct buf *b = event(c, type);
    put_place(b, s, s->open < ITEM_CALL);
    buf_puts(b, ",\"delta\":");
    buf_put_json(b, text->data, text->n_bytes);
    if (s->open == ITEM_MESSAGE) {
        buf_puts(b, ",\"logprobs\":[");
        buf_put(b, ch->logprobs.data, ch->logprobs.n_bytes);
        buf_putc(b, ']');
    }
    call_put_asked_timings(b, c);
    send(c, type, b);
}

/* Text of one kind, whole or a piece of it, goes to its item. */
static void add(struct call_choice *ch, enum item kind, struct buf *text)
{
    struct responses *s = state(ch->call);
    if (text->n_bytes == 0) {
        return;
    }
    if (s->open != kind) {
        close_item(ch->call, "completed");
        open_item(ch->call, kind);
    }
    if (kind == ITEM_MESSAGE) {
        take_logprobs(ch, &s->logprobs);
    }
    buf_put(&s->text, text->data, text->n_bytes);
    if (ch->call->request.stream) {
        send_delta(ch, text);
    }
    buf_clear(text);
    buf_clear(&ch->logprobs);
}

static enum item call_item(const struct call_choice *ch)
{
    return ch->is_custom ? ITEM_CUSTOM : ITEM_CALL;
}

static void pending(struct call_choice *ch)
{
    if (ch->pending == PENDING_TEXT) {
        add(ch, ITEM_MESSAGE, &ch->content);
    } else if (ch->pending == PENDING_REASONING) {
        add(ch, ITEM_REASONING, &ch->reasoning);
    } else {
        add(ch, call_item(ch), &ch->arguments);
    }
}

static void call(struct call_choice *ch, const char *name, const char *id)
{
    struct call *c = ch->call;
    struct responses *s = state(c);
    close_item(c, "completed");
    snprintf(s->name, sizeof s->name, "%s", name);
    snprintf(s->call_id, sizeof s->call_id, "%s", id);
    open_item(c, call_item(ch));
}

static void call_end(struct call_choice *ch)
{
    add(ch, call_item(ch), &ch->arguments);
}

static void finish(struct call_choice *ch)
{
    (void)ch; // the end says it
}

/* "response.completed" and the like, with the whole. */
static void put_end(struct call *c)
{
    const struct buf *body = &state(c)->body;
    char type[40];
    snprintf(type, sizeof type, "response.%s", ending_of(c).status);
    struct buf *b = event(c, type);
    buf_puts(b, ",\"response\":");
    buf_put(b, body->data, body->n_bytes);
    call_put_asked_timings(b, c);
    if (c->request.detached) { // it is told when it is stored
        buf_putc(b, '}');
        keep_event(c, type, b);
    } else {
        send(c, type, b);
    }
}

static void close_answer(struct call *c)
{
    struct responses *s = state(c);
    const struct ending e = ending_of(c);
    if (s->n_items == 0 && c->ending == CALL_ANSWERED) {
        open_item(c, ITEM_MESSAGE); // an empty answer is a message all the same
    }
    close_item(c, strcmp(e.status, "completed") == 0 ? e.status : "incomplete");
    buf_clear(&s->body);
    put_object(&s->body, c, e);
    if (c->request.detached) {
        put_end(c);
    }
}

/* A buffer of the same memory: what is stored is only read. */
static struct buf view(const char *bytes, size_t n_bytes)
{
    return (struct buf){.data = (char *)bytes, .n_bytes = n_bytes};
}

/* What is stored of it; its memory is the call's. */
static struct stored_response stored_of(struct call *c)
{
    const struct request *r = &c->request;
    const struct responses *s = state(c);
    const int64_t life = (int64_t)c->server->config->data_retention;
    struct stored_response stored = {
        .created_at = c->created,
        .expires_at = life > 0 ? c->created + life : 0,
        .input = view(r->items, r->items_bytes),
        .body = view(s->body.data, s->body.n_bytes),
        .background = r->detached,
    };
    snprintf(stored.id, sizeof stored.id, "%s", c->id);
    snprintf(stored.previous, sizeof stored.previous, "%s", or_empty(r->previous));
    return stored;
}

/* What its conversation gets: the input and the output. */
static bool add_items(struct call *c, struct stored_item **items, size_t *n)
{
    const struct request *r = &c->request;
    const struct buf *output = &state(c)->items;
    bool good = items_take_text(r->items, r->items_bytes, items, n) &&
                items_take_text(output->data, output->n_bytes, items, n);
    if (!good) {
        log_warn("a response is not added to its conversation: it is too large, or has the "
                 "character U+0000");
    }
    return good;
}

/* On the pool. An answer that cannot be kept is an answer all the same. */
static void save(struct call *c)
{
    const struct responses *s = state(c);
    struct stored_response stored = stored_of(c);
    struct err err = {""};
    stored.output = view(s->items.data, s->items.n_bytes);
    stored.events = view(s->events.data, s->events.n_bytes);
    if (s->body.failed || s->items.failed) {
        return; // nor does the client get it
    }
    struct stored_item *items = NULL;
    if (c->request.conversation && add_items(c, &items, &stored.n_items)) {
        snprintf(stored.conversation, sizeof stored.conversation, "%s", c->request.conversation);
        stored.items = items;
    }
    if (store_response_put(c->request.store, c->request.owner, &stored, &err) != OK) {
        log_warn("a response is not kept: %s", err.text);
    }
    stored_items_free(items, stored.n_items);
}

/* On the pool, while tokens may come: nothing that they change is read. */
static enum status record(struct call *c, struct err *err)
{
    const struct responses *s = state(c);
    struct stored_response stored = stored_of(c);
    stored.lost = view(s->lost.data, s->lost.n_bytes);
    if (s->body.failed || s->lost.failed) {
        return err_set(err, ERR_NOMEM, "no memory");
    }
    return store_response_put(c->request.store, c->request.owner, &stored, err);
}

static void end(struct call *c)
{
    struct buf *body = &state(c)->body;
    if (!c->request.stream) {
        struct buf whole = *body;
        *body = (struct buf){0};
        call_whole(c, &whole); // takes the memory
        return;
    }
    if (!c->request.detached) {
        put_end(c);
    }
    state(c)->n_told = state(c)->events.n_bytes;
    call_end_stream(c, false);
}

/* The Responses API names its events; flat for the specification, nested for the SDKs. */
static void send_error_event(struct call *c, const struct call_error *e)
{
    struct buf nested, b;
    buf_init(&nested, 1 << 16);
    buf_init(&b, 1 << 16);
    call_error_put(&nested, e, CALL_ERROR_OPENAI); // {"error":{...}}
    buf_puts(&b, "{\"type\":\"error\",\"code\":");
    buf_put_json(&b, or_empty(e->code), length_or_0(e->code));
    buf_puts(&b, ",\"message\":");
    buf_put_json(&b, e->message, strlen(e->message));
    buf_puts(&b, ",\"param\":null,");
    buf_put(&b, nested.data + 1, nested.n_bytes - 1);
    call_event(c, "error", &b);
    buf_deinit(&nested);
    buf_deinit(&b);
}

const struct call_format call_response_format = {
    .id_prefix = "resp_",
    .begin = begin,
    .prompt = prompt,
    .start = start,
    .pending = pending,
    .in_order = true,
    .call = call,
    .call_end = call_end,
    .logprob = call_chat_logprob,
    .finish = finish,
    .close = close_answer,
    .save = save,
    .record = record,
    .end = end,
    .error = send_error_event,
    .forget = forget,
};

static void reply_input_tokens(struct call *c)
{
    struct buf body;
    buf_init(&body, 1 << 10);
    buf_printf(&body, "{\"object\":\"response.input_tokens\",\"input_tokens\":%d}",
               c->request.prompts[0].n);
    call_whole(c, &body);
}

const struct call_format call_input_tokens_format = {.id_prefix = "resp_",
                                                     .reply = reply_input_tokens};
