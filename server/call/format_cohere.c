// SPDX-License-Identifier: Apache-2.0
/* Answers of Cohere's chat (v2): a message of blocks and calls, or its event stream. */
#include "server/call/format.h"

#include "engine/base/mem.h"
#include "engine/base/optional.h"

#include <string.h>

enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_CALL };

/* The state of an answer. Output of one kind forms a block; one block is open at a time. */
struct message {
    enum block open;
    int32_t n_blocks;          // texts and thoughts begun
    struct buf text;           // of the open block, unless it is streamed
    struct buf content, calls; // what has ended, joined by commas, unless it is streamed
};

static struct message *state(struct call *c)
{
    if (!c->extra) {
        struct message *m = xcalloc(1, sizeof *m);
        buf_init(&m->text, (size_t)256 << 20);
        buf_init(&m->content, (size_t)512 << 20);
        buf_init(&m->calls, (size_t)512 << 20);
        c->extra = m;
    }
    return c->extra;
}

/* The struct itself is freed with the call. */
static void forget(struct call *c)
{
    struct message *m = state(c);
    buf_deinit(&m->text);
    buf_deinit(&m->content);
    buf_deinit(&m->calls);
}

/* ---- what both forms have ---------------------------------------------------------------------
 */

static const char *reason_of(const struct call_choice *ch)
{
    if (strcmp(ch->finish, "tool_calls") == 0) {
        return "TOOL_CALL";
    }
    if (strcmp(ch->finish, "length") == 0) {
        return "MAX_TOKENS";
    }
    return ch->output.stopped ? "STOP_SEQUENCE" : "COMPLETE";
}

static void put_counts(struct buf *b, const char *key, const struct call_usage *u)
{
    buf_printf(b, "\"%s\":{\"input_tokens\":", key);
    buf_put_int(b, u->prompt);
    buf_puts(b, ",\"output_tokens\":");
    buf_put_int(b, u->completion);
    buf_puts(b, "},");
}

static void put_usage(struct buf *b, const struct call *c)
{
    const struct call_usage u = call_usage_of(c);
    buf_puts(b, "\"usage\":{");
    put_counts(b, "billed_units", &u);
    put_counts(b, "tokens", &u);
    buf_puts(b, "\"cached_tokens\":");
    buf_put_int(b, u.cached);
    buf_putc(b, '}');
}

/* Each token is an entry of its own. */
static void note_logprob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                         size_t n_chars_before)
{
    struct buf *b = &ch->logprobs;
    size_t n_bytes = 0;
    const struct tokenizer *tok = ch->call->request.model->tok;
    const char *piece = tok ? tokenizer_piece(tok, token, &n_bytes) : NULL;
    (void)n_chars_before;
    buf_puts(b, b->n_bytes > 0 ? ",{\"text\":" : "{\"text\":");
    buf_put_json(b, or_empty(piece), n_bytes);
    buf_printf(b, ",\"token_ids\":[%d],\"logprobs\":[", token);
    call_put_logprob(b, lp->logprob);
    buf_puts(b, "]}");
}

/* ---- events -----------------------------------------------------------------------------------
 */

static struct buf *event(struct call *c, const char *type, int32_t index)
{
    struct buf *b = &c->server->scratch;
    buf_clear(b);
    buf_printf(b, "{\"type\":\"%s\"", type);
    if (index >= 0) {
        buf_printf(b, ",\"index\":%d", index);
    }
    return b;
}

static void send(struct call *c, struct buf *b)
{
    buf_putc(b, '}');
    call_event(c, NULL, b);
}

static const char *block_name(enum block kind)
{
    return kind == BLOCK_THINKING ? "thinking" : "text";
}

static void send_piece(struct call *c, const struct buf *text, int32_t call_index)
{
    const struct message *m = state(c);
    struct buf *b;
    if (m->open == BLOCK_CALL) {
        b = event(c, "tool-call-delta", call_index);
        buf_puts(b, ",\"delta\":{\"message\":{\"tool_calls\":{\"function\":{\"arguments\":");
        buf_put_json(b, text->data, text->n_bytes);
        buf_puts(b, "}}}}");
    } else {
        b = event(c, "content-delta", m->n_blocks - 1);
        buf_printf(b, ",\"delta\":{\"message\":{\"content\":{\"%s\":", block_name(m->open));
        buf_put_json(b, text->data, text->n_bytes);
        buf_puts(b, "}}}");
    }
    send(c, b);
}

/* ---- blocks -----------------------------------------------------------------------------------
 */

/* Ends the open block or call: in a stream by its event, otherwise by adding it to the message's
 * JSON. */
static void close_block(struct call_choice *ch)
{
    struct call *c = ch->call;
    struct message *m = state(c);
    const bool is_call = m->open == BLOCK_CALL;
    if (m->open == BLOCK_NONE) {
        return;
    }
    if (c->request.stream && is_call) {
        send(c, event(c, "tool-call-end", ch->n_calls - 1));
    } else if (c->request.stream) {
        send(c, event(c, "content-end", m->n_blocks - 1));
    } else if (is_call) { // its head has been written
        buf_put_json(&m->calls, or_empty(m->text.data), m->text.n_bytes);
        buf_puts(&m->calls, "}}");
    } else {
        const char *name = block_name(m->open);
        buf_printf(&m->content, "%s{\"type\":\"%s\",\"%s\":", text_if(m->content.n_bytes > 0, ","),
                   name, name);
        buf_put_json(&m->content, m->text.data, m->text.n_bytes);
        buf_putc(&m->content, '}');
    }
    buf_clear(&m->text);
    m->open = BLOCK_NONE;
}

static void open_block(struct call_choice *ch, enum block kind)
{
    struct call *c = ch->call;
    struct message *m = state(c);
    close_block(ch);
    m->open = kind;
    m->n_blocks++;
    if (c->request.stream) {
        struct buf *b = event(c, "content-start", m->n_blocks - 1);
        const char *name = block_name(kind);
        buf_printf(b, ",\"delta\":{\"message\":{\"content\":{\"type\":\"%s\",\"%s\":\"\"}}}", name,
                   name);
        send(c, b);
    }
}

/* Adds text to the open block, which is of its kind. */
static void add(struct call_choice *ch, struct buf *text)
{
    if (text->n_bytes > 0 && ch->call->request.stream) {
        send_piece(ch->call, text, ch->n_calls - 1);
    } else if (text->n_bytes > 0) {
        buf_put(&state(ch->call)->text, text->data, text->n_bytes);
    }
    buf_clear(text);
}

static void pending(struct call_choice *ch)
{
    const bool is_thought = ch->pending == PENDING_REASONING;
    const enum block kind = is_thought ? BLOCK_THINKING : BLOCK_TEXT;
    struct buf *text = is_thought ? &ch->reasoning : &ch->content;
    if (ch->pending != PENDING_TEXT && !is_thought) {
        add(ch, &ch->arguments);
        return;
    }
    if (text->n_bytes > 0 && state(ch->call)->open != kind) {
        open_block(ch, kind);
    }
    add(ch, text);
}

static void put_call_head(struct buf *b, const char *name, const char *id)
{
    buf_puts(b, "{\"id\":");
    buf_put_json(b, id, strlen(id));
    buf_puts(b, ",\"type\":\"function\",\"function\":{\"name\":");
    buf_put_json(b, name, strlen(name));
    buf_puts(b, ",\"arguments\":");
}

static void call(struct call_choice *ch, const char *name, const char *id)
{
    struct call *c = ch->call;
    struct message *m = state(c);
    close_block(ch);
    m->open = BLOCK_CALL;
    if (c->request.stream) {
        struct buf *b = event(c, "tool-call-start", ch->n_calls);
        buf_puts(b, ",\"delta\":{\"message\":{\"tool_calls\":");
        put_call_head(b, name, id);
        buf_puts(b, "\"\"}}}}");
        send(c, b);
    } else {
        buf_puts(&m->calls, text_if(m->calls.n_bytes > 0, ","));
        put_call_head(&m->calls, name, id);
    }
}

static void call_end(struct call_choice *ch)
{
    add(ch, &ch->arguments);
    close_block(ch);
}

/* ---- the answer -------------------------------------------------------------------------------
 */

static void start(struct call_choice *ch)
{
    struct call *c = ch->call;
    if (!c->request.stream) {
        return;
    }
    struct buf *b = event(c, "message-start", -1);
    buf_puts(b, ",\"id\":");
    buf_put_json(b, c->id, strlen(c->id));
    buf_puts(b, ",\"delta\":{\"message\":{\"role\":\"assistant\",\"content\":[],\"tool_plan\":\"\","
                "\"tool_calls\":[],\"citations\":[]}}");
    send(c, b);
}

static void finish(struct call_choice *ch)
{
    (void)ch; // reported at the end
}

static void put_message(struct buf *b, struct call *c)
{
    const struct message *m = state(c);
    buf_puts(b, "\"message\":{\"role\":\"assistant\",\"content\":[");
    if (m->content.n_bytes > 0) {
        buf_put(b, m->content.data, m->content.n_bytes);
    } else if (m->calls.n_bytes == 0) { // clients expect a text
        buf_puts(b, "{\"type\":\"text\",\"text\":\"\"}");
    }
    buf_putc(b, ']');
    if (m->calls.n_bytes > 0) {
        buf_puts(b, ",\"tool_calls\":[");
        buf_put(b, m->calls.data, m->calls.n_bytes);
        buf_putc(b, ']');
    }
    buf_puts(b, "},");
}

static void reply_whole(struct call *c)
{
    const struct call_choice *ch = &c->choices[0];
    struct buf body;
    buf_init(&body, (size_t)1 << 30);
    buf_puts(&body, "{\"id\":");
    buf_put_json(&body, c->id, strlen(c->id));
    buf_printf(&body, ",\"finish_reason\":\"%s\",", reason_of(ch));
    put_message(&body, c);
    put_usage(&body, c);
    if (c->request.logprobs) {
        buf_puts(&body, ",\"logprobs\":[");
        buf_put(&body, ch->logprobs.data, ch->logprobs.n_bytes);
        buf_putc(&body, ']');
    }
    buf_putc(&body, '}');
    call_whole(c, &body);
}

static void end(struct call *c)
{
    close_block(&c->choices[0]);
    if (!c->request.stream) {
        reply_whole(c);
        return;
    }
    struct buf *b = event(c, "message-end", -1);
    buf_puts(b, ",\"id\":");
    buf_put_json(b, c->id, strlen(c->id));
    buf_printf(b, ",\"delta\":{\"finish_reason\":\"%s\",", reason_of(&c->choices[0]));
    put_usage(b, c);
    buf_putc(b, '}');
    send(c, b);
    call_end_stream(c, true);
}

const struct call_format call_cohere_chat_format = {
    .id_prefix = "chat_",
    .start = start,
    .pending = pending,
    .in_order = true,
    .logprob = note_logprob,
    .call = call,
    .call_end = call_end,
    .finish = finish,
    .end = end,
    .forget = forget,
};
