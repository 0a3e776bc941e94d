// SPDX-License-Identifier: Apache-2.0
/* /derender: whole answers, which format_derender.c writes, or chunks of a stream. The server keeps
 * nothing between chunks. The client sends the ids of all earlier chunks, which are parsed again;
 * what they have yielded is dropped, and the rest is the delta. */
#include "engine/base/optional.h"
#include "server/call/derender.h"
#include "server/call/format.h"

#include <string.h>

/* ---- calls ------------------------------------------------------------------------------------
 */

/* Members of a call's head are in lists[0], those of its function in lists[1]; finished parts are
 * in `calls`. */
static void begin_call(struct call_choice *ch, const char *name, const char *id)
{
    struct buf *head = &ch->lists[0], *function = &ch->lists[1];
    buf_puts(head, ",\"id\":");
    buf_put_json(head, id, strlen(id));
    buf_puts(head, ch->is_custom ? ",\"type\":\"custom\"" : ",\"type\":\"function\"");
    buf_puts(function, "\"name\":");
    buf_put_json(function, name, strlen(name));
    buf_putc(function, ',');
}

static void put_call(struct call_choice *ch)
{
    struct buf *b = &ch->calls, *head = &ch->lists[0], *function = &ch->lists[1];
    if (head->n_bytes + ch->arguments.n_bytes == 0) {
        return;
    }
    buf_puts(b, b->n_bytes ? ",{\"index\":" : "{\"index\":");
    buf_put_int(b, ch->n_calls - 1);
    buf_put(b, head->data, head->n_bytes);
    buf_puts(b, ch->is_custom ? ",\"custom\":{" : ",\"function\":{");
    buf_put(b, function->data, function->n_bytes);
    buf_puts(b, ch->is_custom ? "\"input\":" : "\"arguments\":");
    buf_put_json(b, or_empty(ch->arguments.data), ch->arguments.n_bytes);
    buf_puts(b, "}}");
    buf_clear(head);
    buf_clear(function);
    buf_clear(&ch->arguments);
}

static const struct call_format delta_format = {.call = begin_call, .call_end = put_call};

/* ---- chunks -----------------------------------------------------------------------------------
 */

static void forget_output(struct call_choice *ch)
{
    struct buf *const all[] = {&ch->content, &ch->reasoning, &ch->arguments, &ch->calls,
                               &ch->ids,     &ch->lists[0],  &ch->lists[1],  &ch->lists[2]};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        buf_clear(all[i]);
    }
}

/* Processes the ids of earlier chunks, then the new ones. */
static void take(struct call_choice *ch)
{
    const struct derendered_choice *from = derender_source(ch);
    if (from->n_before > 0) {
        derender_take(ch, from->n_before, false);
        forget_output(ch);
    }
    derender_take(ch, from->n, from->finish != NULL);
}

static void put_end(struct buf *b, struct call_choice *ch)
{
    buf_puts(b, ",\"finish_reason\":");
    if (ch->finish) {
        buf_printf(b, "\"%s\"", ch->finish);
        call_put_stop_reason(b, ch);
    } else {
        buf_puts(b, "null,\"stop_reason\":null");
    }
    call_put_token_ids(b, ch);
}

/* The usage that generate has reported, with the number of prompt tokens that the client gives. */
static void put_usage(struct buf *b, const struct derender *d)
{
    const int64_t n_prompt = d->has_n_prompt ? d->answers[0].n_prompt : d->n_usage_prompt;
    if (!d->has_usage) {
        buf_puts(b, ",\"usage\":null");
        return;
    }
    buf_puts(b, ",\"usage\":{\"prompt_tokens\":");
    buf_put_int(b, n_prompt);
    buf_puts(b, ",\"completion_tokens\":");
    buf_put_int(b, d->n_usage_answer);
    buf_puts(b, ",\"total_tokens\":");
    buf_put_int(b, n_prompt + d->n_usage_answer);
    buf_putc(b, '}');
}

static void put_state(struct buf *b, const struct call *c)
{
    const struct derender *d = c->request.derender;
    const struct derendered_choice *from = d->answers[0].choices;
    buf_puts(b, ",\"stream_state\":{\"output_token_ids\":");
    call_put_ids(b, from->ids, from->n);
    buf_printf(b, ",\"role_sent\":%s}}", bool_word(d->role_sent || c->n_choices > 0));
}

/* What the chunk's tokens added to the message. Only the first delta names the role. */
static void put_delta(struct buf *b, struct call_choice *ch)
{
    const char *comma = "";
    buf_puts(b, ",\"delta\":{");
    if (!ch->call->request.derender->role_sent) {
        buf_puts(b, "\"role\":\"assistant\"");
        comma = ",";
    }
    if (ch->reasoning.n_bytes > 0) {
        buf_puts(b, comma);
        call_put_reasoning(b, &ch->reasoning);
        comma = ",";
    }
    if (ch->content.n_bytes > 0) {
        buf_printf(b, "%s\"content\":", comma);
        buf_put_json(b, ch->content.data, ch->content.n_bytes);
        comma = ",";
    }
    if (ch->calls.n_bytes > 0) {
        buf_printf(b, "%s\"tool_calls\":[", comma);
        buf_put(b, ch->calls.data, ch->calls.n_bytes);
        buf_putc(b, ']');
    }
    buf_putc(b, '}');
}

static void put_chat_choice(struct buf *b, struct call_choice *ch)
{
    take(ch);
    put_call(ch); // the part of a call that goes on
    buf_puts(b, "{\"index\":");
    buf_put_int(b, ch->index);
    put_delta(b, ch);
    buf_puts(b, ",\"logprobs\":");
    if (ch->call->request.logprobs) {
        derender_chat_logprobs(ch);
        buf_puts(b, "{\"content\":[");
        buf_put(b, ch->logprobs.data, ch->logprobs.n_bytes);
        buf_puts(b, "]}");
    } else {
        buf_puts(b, "null");
    }
    put_end(b, ch);
    buf_putc(b, '}');
}

static void put_text_choice(struct buf *b, struct call_choice *ch)
{
    const struct derendered_choice *from = derender_source(ch);
    size_t offset = 0;
    take(ch);
    for (int32_t i = 0; i < from->n_before; i++) {
        offset += call_token_characters(ch->call, from->ids[i]);
    }
    buf_puts(b, "{\"index\":");
    buf_put_int(b, ch->index);
    buf_puts(b, ",\"text\":");
    buf_put_json(b, or_empty(ch->content.data), ch->content.n_bytes);
    buf_puts(b, ",\"logprobs\":");
    if (ch->call->request.logprobs) {
        derender_list_logprobs(ch, offset);
    }
    call_put_list_logprobs(b, ch);
    put_end(b, ch);
    call_put_prompt_ids(b, ch->call, ch->request);
    buf_putc(b, '}');
}

/* Answers with one chunk, and with the state that the next call has to send back. */
static void reply(struct call *c, const char *object,
                  void (*put_choice)(struct buf *b, struct call_choice *ch))
{
    struct buf body;
    const struct derender *d = c->request.derender;
    c->format = &delta_format;
    if (!derender_open(c)) {
        struct call_error e = {0};
        call_error_no_memory(&e);
        c->sink->error(c, &e);
        return;
    }
    buf_init(&body, (size_t)1 << 30);
    buf_puts(&body, "{\"chunk\":");
    call_put_head(&body, c, object);
    buf_putc(&body, '[');
    if (c->n_choices > 0) {
        put_choice(&body, &c->choices[0]);
    }
    buf_putc(&body, ']');
    put_usage(&body, d);
    if (c->request.form == FORM_CHAT) {
        call_put_prompt_ids(&body, c, &c->requests[0]);
    }
    call_put_transfer(&body, c);
    buf_putc(&body, '}');
    put_state(&body, c);
    call_whole(c, &body);
}

static void reply_chat(struct call *c)
{
    if (c->request.derender->streams) {
        reply(c, "chat.completion.chunk", put_chat_choice);
    } else {
        derender_chat_whole(c);
    }
}

static void reply_completions(struct call *c)
{
    if (c->request.derender->streams) {
        reply(c, "text_completion", put_text_choice);
    } else {
        derender_text_whole(c);
    }
}

const struct call_format call_derender_chat_format = {.id_prefix = "chatcmpl-",
                                                      .reply = reply_chat};
const struct call_format call_derender_format = {.id_prefix = "cmpl-", .reply = reply_completions};
