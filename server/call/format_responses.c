// SPDX-License-Identifier: Apache-2.0
/* /v1/responses: one object, or its event stream; stored, unless the request has "store": false. */
#include "server/call/responses.h"

#include "engine/base/optional.h"

#include <stdio.h>
#include <string.h>

static struct buf *event(struct call *c, const char *type)
{
    struct buf *b = &c->server->scratch;
    buf_clear(b);
    buf_printf(b, "{\"type\":\"%s\",\"sequence_number\":", type);
    buf_put_int(b, response_state(c)->sequence++);
    return b;
}

static void keep_event(struct call *c, const char *type, const struct buf *b)
{
    struct buf *log = &response_state(c)->events;
    buf_printf(log, "event: %s\ndata: ", type);
    buf_put(log, b->data, b->n_bytes);
    buf_puts(log, "\n\n");
}

const char *call_response_events(struct call *c, size_t *n_bytes)
{
    const struct responses *s = response_state(c);
    *n_bytes = s->n_told;
    return s->events.data;
}

static void send(struct call *c, const char *type, struct buf *b)
{
    struct responses *s = response_state(c);
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
    response_put(b, c, status);
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
    struct responses *s = response_state(c);
    struct buf *b = event(c, type);
    buf_puts(b, ",\"output_index\":");
    buf_put_int(b, s->n_items - 1);
    buf_puts(b, ",\"item\":");
    response_put_item(b, s, status, done);
    send(c, type, b);
}

static void send_part(struct call *c, const char *type)
{
    struct buf *b = event(c, type);
    put_place(b, response_state(c), true);
    buf_puts(b, ",\"part\":");
    response_put_text_part(b, response_state(c));
    send(c, type, b);
}

static void open_item(struct call *c, enum item kind)
{
    static const char *const prefixes[] = {"", "rs_", "msg_", "fc_", "ctc_"};
    struct responses *s = response_state(c);
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
    struct responses *s = response_state(c);
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

/* Sends the events that end the open item, the innermost first, and keeps the item for the
 * response object. */
static void close_item(struct call *c, const char *status)
{
    struct responses *s = response_state(c);
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
    response_put_item(&s->items, s, status, true);
    s->open = ITEM_NONE;
}

/* Begins the answer. A background response is first "queued". */
static void begin(struct call *c)
{
    struct responses *s = response_state(c);
    if (c->request.detached) {
        response_put(&s->body, c, "queued");
        response_put_object(
            &s->lost, c,
            (struct ending){"failed", "The server stopped before the response was complete."});
        send_response(c, "response.created", "queued");
        send_response(c, "response.queued", "queued");
    }
}

static void start(struct call_choice *ch)
{
    struct call *c = ch->call;
    struct responses *s = response_state(c);
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
    response_put(b, c, "in_progress");
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
    struct responses *s = response_state(c);
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

/* Adds text of one kind, complete or a piece of it, to its item. */
static void add(struct call_choice *ch, enum item kind, struct buf *text)
{
    struct responses *s = response_state(ch->call);
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
    struct responses *s = response_state(c);
    close_item(c, "completed");
    const struct request_namespaced *spaced = request_namespaced(&c->request, name);
    s->space = spaced ? spaced->space : NULL;
    snprintf(s->name, sizeof s->name, "%s", spaced ? spaced->name : name);
    snprintf(s->call_id, sizeof s->call_id, "%s", id);
    open_item(c, call_item(ch));
}

static void call_end(struct call_choice *ch)
{
    add(ch, call_item(ch), &ch->arguments);
}

static void finish(struct call_choice *ch)
{
    (void)ch; // reported at the end
}

/* "response.completed" or another final event, with the whole response. */
static void put_end(struct call *c)
{
    const struct buf *body = &response_state(c)->body;
    char type[40];
    snprintf(type, sizeof type, "response.%s", response_ending_of(c).status);
    struct buf *b = event(c, type);
    buf_puts(b, ",\"response\":");
    buf_put(b, body->data, body->n_bytes);
    call_put_asked_timings(b, c);
    if (c->request.detached) { // sent once the response is stored
        buf_putc(b, '}');
        keep_event(c, type, b);
    } else {
        send(c, type, b);
    }
}

static void close_answer(struct call *c)
{
    struct responses *s = response_state(c);
    const struct ending e = response_ending_of(c);
    if (s->n_items == 0 && c->ending == CALL_ANSWERED) {
        open_item(c, ITEM_MESSAGE); // an empty answer is still a message
    }
    // a stop string or token that cuts off a call completes the response, but not the call
    const bool is_cut =
        c->choices[0].output.cut && (s->open == ITEM_CALL || s->open == ITEM_CUSTOM);
    const bool whole = strcmp(e.status, "completed") == 0 && !is_cut;
    close_item(c, whole ? e.status : "incomplete");
    buf_clear(&s->body);
    response_put_object(&s->body, c, e);
    if (c->request.detached) {
        put_end(c);
    }
}

static void end(struct call *c)
{
    struct buf *body = &response_state(c)->body;
    if (!c->request.stream) {
        struct buf whole = *body;
        *body = (struct buf){0};
        call_whole(c, &whole); // takes ownership of the buffer's memory
        return;
    }
    if (!c->request.detached) {
        put_end(c);
    }
    response_state(c)->n_told = response_state(c)->events.n_bytes;
    call_end_stream(c, false);
}

/* The Responses API names its events. The event has the error twice: flat, as the specification
 * says, and nested, as the SDKs expect it. */
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
    .save = response_save,
    .record = response_record,
    .end = end,
    .error = send_error_event,
    .forget = response_forget,
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
