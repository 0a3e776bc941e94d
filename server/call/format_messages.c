// SPDX-License-Identifier: Apache-2.0
/* /v1/messages: one message of blocks, or its event stream; and the count of its tokens. */
#include "server/call/format.h"

#include "engine/base/hash.h"
#include "engine/base/json_scan.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL };

/* The state of an answer. Output of one kind forms a block; one block is open at a time. */
struct message {
    enum block open;
    int32_t n_blocks; // number of blocks begun
    char tool_id[80], tool[TOOL_NAME_MAX_BYTES + 1];
    struct buf text;   // text of the open block
    struct buf blocks; // the finished blocks of an answer that is not streamed, joined by commas
};

static struct message *state(struct call *c)
{
    if (!c->extra) {
        struct message *m = xcalloc(1, sizeof *m);
        buf_init(&m->text, (size_t)256 << 20);
        buf_init(&m->blocks, (size_t)512 << 20);
        c->extra = m;
    }
    return c->extra;
}

/* The struct itself is freed with the call. */
static void forget(struct call *c)
{
    buf_deinit(&state(c)->text);
    buf_deinit(&state(c)->blocks);
}

/* ---- objects --------------------------------------------------------------------------------- */

/* "usage":{...}: input_tokens excludes tokens that were read from the cache. No tokens are reported
 * as written to the cache, since that costs nothing here. */
static void put_usage(struct buf *b, const struct call *c)
{
    struct call_usage u = call_usage_of(c);
    buf_puts(b, "\"usage\":{\"input_tokens\":");
    buf_put_int(b, u.prompt - u.cached);
    buf_puts(b, ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    buf_put_int(b, u.cached);
    buf_puts(b, ",\"output_tokens\":");
    buf_put_int(b, u.completion);
    buf_puts(b, ",\"output_tokens_details\":{\"thinking_tokens\":");
    buf_put_int(b, u.reasoning);
    buf_puts(b, "}}");
}

/* "stop_reason":..,"stop_sequence":.. of a choice that has ended, or nulls. */
static void put_stop(struct buf *b, const struct call_choice *ch)
{
    const struct request *r = &ch->call->request;
    const char *reason = "end_turn";
    const char *sequence = NULL;
    size_t n_bytes = 0;
    if (!ch->finish) {
        buf_puts(b, "\"stop_reason\":null,\"stop_sequence\":null");
        return;
    }
    if (strcmp(ch->finish, "tool_calls") == 0) {
        reason = "tool_use";
    } else if (strcmp(ch->finish, "length") == 0) {
        if (ch->n_taken < r->max_tokens) {
            reason = "model_context_window_exceeded";
        } else {
            reason = "max_tokens";
        }
    } else if (ch->output.stopped) {
        reason = "stop_sequence";
        sequence = r->output.stop[ch->output.stop_index];
        n_bytes = r->output.stop_bytes[ch->output.stop_index];
    }
    buf_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (sequence) {
        buf_put_json(b, sequence, n_bytes);
    } else {
        buf_puts(b, "null");
    }
}

/* The message: complete, or empty at the start of a stream. */
static void put_message(struct buf *b, struct call *c)
{
    const struct message *m = state(c);
    buf_puts(b, "{\"id\":");
    buf_put_json(b, c->id, strlen(c->id));
    buf_puts(b, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    buf_put_json(b, c->request.model_name, strlen(c->request.model_name));
    buf_puts(b, ",\"content\":[");
    buf_put(b, m->blocks.data, m->blocks.n_bytes);
    buf_puts(b, "],");
    put_stop(b, &c->choices[0]);
    buf_putc(b, ',');
    put_usage(b, c);
    buf_putc(b, '}');
}

/* Clients discard thinking that has no signature, and return it if it has one. The signature is
 * never verified. */
static void put_signature(struct buf *b, const struct message *m)
{
    uint64_t sum = hash_bytes(or_empty(m->text.data), m->text.n_bytes, 0);
    buf_printf(b, "\"signature\":\"%016" PRIx64 "\"", sum);
}

static bool is_object(const struct buf *text)
{
    struct json_scan sc;
    json_scan_init(&sc, or_empty(text->data), text->n_bytes, JSON_SCAN_MAX_DEPTH);
    return json_scan_next(&sc) == JSON_TOKEN_OBJECT && json_scan_skip(&sc) &&
           json_scan_next(&sc) == JSON_TOKEN_END;
}

/* The open block, empty or with its full content. If the text of a call was cut off, its input is
 * an empty object, because it has to be an object. */
static void put_block(struct buf *b, const struct message *m, bool filled)
{
    const char *text = filled && m->text.n_bytes ? m->text.data : "";
    size_t n_bytes = filled ? m->text.n_bytes : 0;
    if (m->open == BLOCK_TOOL) {
        buf_puts(b, "{\"type\":\"tool_use\",\"id\":");
        buf_put_json(b, m->tool_id, strlen(m->tool_id));
        buf_puts(b, ",\"name\":");
        buf_put_json(b, m->tool, strlen(m->tool));
        buf_puts(b, ",\"input\":");
        if (filled && is_object(&m->text)) {
            buf_put(b, text, n_bytes);
        } else {
            buf_puts(b, "{}");
        }
    } else if (m->open == BLOCK_TEXT) {
        buf_puts(b, "{\"type\":\"text\",\"text\":");
        buf_put_json(b, text, n_bytes);
    } else {
        buf_puts(b, "{\"type\":\"thinking\",\"thinking\":");
        buf_put_json(b, text, n_bytes);
        buf_putc(b, ',');
        if (filled) {
            put_signature(b, m);
        } else {
            buf_puts(b, "\"signature\":\"\"");
        }
    }
    buf_putc(b, '}');
}

/* ---- events ---------------------------------------------------------------------------------- */

static struct buf *event(struct call *c, const char *type)
{
    struct buf *b = &c->server->scratch;
    buf_clear(b);
    buf_printf(b, "{\"type\":\"%s\"", type);
    return b;
}

static void send(struct call *c, const char *type, struct buf *b)
{
    buf_putc(b, '}');
    call_event(c, type, b);
}

/* An event of the open block. */
static struct buf *block_event(struct call *c, const char *type)
{
    struct buf *b = event(c, type);
    buf_puts(b, ",\"index\":");
    buf_put_int(b, state(c)->n_blocks - 1);
    return b;
}

/* A piece of the open block. */
static void send_delta(struct call *c, const struct buf *text)
{
    static const char *const names[] = {
        [BLOCK_THINKING] = "\"thinking_delta\",\"thinking\"",
        [BLOCK_TEXT] = "\"text_delta\",\"text\"",
        [BLOCK_TOOL] = "\"input_json_delta\",\"partial_json\"",
    };
    struct buf *b = block_event(c, "content_block_delta");
    buf_printf(b, ",\"delta\":{\"type\":%s:", names[state(c)->open]);
    buf_put_json(b, text->data, text->n_bytes);
    buf_putc(b, '}');
    send(c, "content_block_delta", b);
}

static void send_signature(struct call *c)
{
    struct buf *b = block_event(c, "content_block_delta");
    buf_puts(b, ",\"delta\":{\"type\":\"signature_delta\",");
    put_signature(b, state(c));
    buf_putc(b, '}');
    send(c, "content_block_delta", b);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* A block begins with content_block_start; its index is the number of blocks before it. */
static void open_block(struct call *c, enum block kind)
{
    struct message *m = state(c);
    m->open = kind;
    m->n_blocks++;
    buf_clear(&m->text);
    if (c->request.stream) {
        struct buf *b = block_event(c, "content_block_start");
        buf_puts(b, ",\"content_block\":");
        put_block(b, m, false);
        send(c, "content_block_start", b);
    }
}

/* Ends the open block. A streamed thinking block ends with its signature. */
static void close_block(struct call *c)
{
    struct message *m = state(c);
    if (m->open == BLOCK_NONE) {
        return;
    }
    if (c->request.stream) {
        if (m->open == BLOCK_THINKING) {
            send_signature(c);
        }
        send(c, "content_block_stop", block_event(c, "content_block_stop"));
    } else {
        if (m->blocks.n_bytes) {
            buf_puts(&m->blocks, ",");
        }
        put_block(&m->blocks, m, true);
    }
    m->open = BLOCK_NONE;
}

/* Adds text of one kind, complete or a piece of it, to its block. */
static void add(struct call *c, enum block kind, struct buf *text)
{
    struct message *m = state(c);
    if (text->n_bytes == 0) {
        return;
    }
    if (m->open != kind) {
        close_block(c);
        open_block(c, kind);
    }
    if (!c->request.stream || kind == BLOCK_THINKING) { // the signature covers the whole block
        buf_put(&m->text, text->data, text->n_bytes);
    }
    if (c->request.stream) {
        send_delta(c, text);
    }
    buf_clear(text);
}

/* Text of a different kind closes the open block. */
static void pending(struct call_choice *ch)
{
    if (ch->pending == PENDING_TEXT) {
        add(ch->call, BLOCK_TEXT, &ch->content);
    } else if (ch->pending == PENDING_REASONING) {
        add(ch->call, BLOCK_THINKING, &ch->reasoning);
    } else {
        add(ch->call, BLOCK_TOOL, &ch->arguments);
    }
}

static void call(struct call_choice *ch, const char *name, const char *id)
{
    struct message *m = state(ch->call);
    close_block(ch->call);
    snprintf(m->tool, sizeof m->tool, "%s", name);
    snprintf(m->tool_id, sizeof m->tool_id, "%s", id);
    open_block(ch->call, BLOCK_TOOL);
}

static void call_end(struct call_choice *ch)
{
    add(ch->call, BLOCK_TOOL, &ch->arguments);
}

/* ---- the whole answer ------------------------------------------------------------------------ */

/* message_start has the usage of the prompt; a ping follows, as in Anthropic's streams. */
static void start(struct call_choice *ch)
{
    struct call *c = ch->call;
    if (c->request.stream) {
        struct buf *b = event(c, "message_start");
        buf_puts(b, ",\"message\":");
        put_message(b, c);
        send(c, "message_start", b);
        send(c, "ping", event(c, "ping"));
    }
}

static void finish(struct call_choice *ch)
{
    (void)ch; // reported at the end
}

/* The reason and the usage come in message_delta, before message_stop. */
static void end(struct call *c)
{
    close_block(c);
    if (!c->request.stream) {
        struct buf body;
        buf_init(&body, (size_t)1 << 30);
        put_message(&body, c);
        call_whole(c, &body);
        return;
    }
    struct buf *b = event(c, "message_delta");
    buf_puts(b, ",\"delta\":{");
    put_stop(b, &c->choices[0]);
    buf_puts(b, "},");
    put_usage(b, c);
    send(c, "message_delta", b);
    send(c, "message_stop", event(c, "message_stop"));
    call_end_stream(c, false);
}

static void send_error_event(struct call *c, const struct call_error *e)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    call_error_put_typed(&b, e, c->sink->id(c, NULL));
    call_event(c, "error", &b);
    buf_deinit(&b);
}

const struct call_format call_message_format = {
    .id_prefix = "msg_",
    .call_prefix = "toolu_",
    .start = start,
    .pending = pending,
    .in_order = true,
    .call = call,
    .call_end = call_end,
    .finish = finish,
    .end = end,
    .error = send_error_event,
    .forget = forget,
};

static void reply_count(struct call *c)
{
    struct buf body;
    buf_init(&body, 1 << 10);
    buf_printf(&body, "{\"input_tokens\":%d}", c->request.prompts[0].n);
    call_whole(c, &body);
}

const struct call_format call_count_format = {.id_prefix = "msg_", .reply = reply_count};
