// SPDX-License-Identifier: Apache-2.0
/* /v1/chat/completions: one object, or chunks. */
#include "engine/base/optional.h"
#include "server/call/format.h"

#include <string.h>

/* ---- stream -----------------------------------------------------------------------------------
 */

/* Begins a chunk: writes everything up to "delta":{ */
static struct buf *open_chunk(struct call_choice *ch)
{
    struct call *c = ch->call;
    struct buf *b = &c->server->scratch;
    buf_clear(b);
    buf_put(b, c->chunk_head.data, c->chunk_head.n_bytes);
    buf_puts(b, "[{\"index\":");
    buf_put_int(b, ch->index);
    buf_puts(b, ",\"delta\":{");
    return b;
}

/* Ends the delta of a chunk and adds the members that follow it. */
static void close_chunk(struct call_choice *ch, struct buf *b, const char *finish)
{
    buf_puts(b, "},\"logprobs\":");
    if (ch->logprobs.n_bytes > 0) {
        buf_puts(b, "{\"content\":[");
        buf_move(b, &ch->logprobs);
        buf_puts(b, "],\"refusal\":null}");
    } else {
        buf_puts(b, "null");
    }
    call_put_token_ids(b, ch);
    buf_puts(b, ",\"finish_reason\":");
    if (finish) {
        buf_printf(b, "\"%s\"", finish);
    } else {
        buf_puts(b, "null");
    }
}

static void end_chunk(struct call_choice *ch, struct buf *b)
{
    buf_puts(b, "}]");
    call_send_chunk(ch->call, b);
}

/* The first chunk has the role and no text, as in OpenAI's streams. */
static void start_stream(struct call_choice *ch)
{
    struct buf *b = open_chunk(ch);
    const char *content = ch->call->request.llama ? "null" : "\"\"";
    buf_printf(b, "\"role\":\"assistant\",\"content\":%s", content);
    close_chunk(ch, b, NULL);
    call_put_prompt_ids(b, ch->call, ch->request);
    buf_puts(b, "}]");
    call_put_prompt_ids(b, ch->call, ch->request); // as in vLLM, outside the choices, too
    ch->call->untimed = ch->call->request.llama;   // llama.cpp's first chunk has no timings
    call_send_chunk(ch->call, b);
    ch->call->untimed = false;
}

static void tell_prompt(struct call_choice *ch)
{
    struct buf *b = open_chunk(ch);
    close_chunk(ch, b, NULL);
    buf_puts(b, "}]");
    call_put_progress(b, ch);
    call_send_chunk(ch->call, b);
}

/* Begins a delta for the tool call with this index. The deprecated form has only one call. */
static void open_delta_call(struct buf *b, const struct call_choice *ch, int32_t index)
{
    if (ch->call->request.old_calls) {
        buf_puts(b, "\"function_call\":{");
        return;
    }
    buf_puts(b, "\"tool_calls\":[{\"index\":");
    buf_put_int(b, index);
    buf_putc(b, ',');
}

static const char *arguments_key(const struct call_choice *ch)
{
    if (ch->is_custom) {
        return "\"custom\":{\"input\":";
    }
    return "\"function\":{\"arguments\":";
}

void call_put_reasoning(struct buf *b, const struct buf *text)
{
    buf_puts(b, "\"reasoning_content\":");
    buf_put_json(b, text->data, text->n_bytes);
    buf_puts(b, ",\"reasoning\":");
    buf_put_json(b, text->data, text->n_bytes);
}

/* Writes the delta with the pending output; if there are only ids, it is empty. */
static void put_delta(struct buf *b, struct call_choice *ch)
{
    if (ch->arguments.n_bytes > 0) {
        bool old = ch->call->request.old_calls;
        open_delta_call(b, ch, ch->n_calls - 1);
        if (old) {
            buf_puts(b, "\"arguments\":");
        } else {
            buf_puts(b, arguments_key(ch));
        }
        buf_put_json(b, ch->arguments.data, ch->arguments.n_bytes);
        if (old) {
            buf_puts(b, "}");
        } else {
            buf_puts(b, "}}]");
        }
    } else if (ch->reasoning.n_bytes > 0) {
        call_put_reasoning(b, &ch->reasoning);
    } else if (ch->content.n_bytes > 0) {
        buf_puts(b, "\"content\":");
        buf_put_json(b, ch->content.data, ch->content.n_bytes);
    }
    buf_clear(&ch->arguments);
    buf_clear(&ch->reasoning);
    buf_clear(&ch->content);
}

/* If each chunk has usage, the last output is sent with the end, so that no two chunks have equal
 * counts. */
static void pending(struct call_choice *ch)
{
    size_t n = ch->content.n_bytes + ch->reasoning.n_bytes + ch->arguments.n_bytes;
    bool waits = ch->finish && ch->call->request.continuous_usage;
    if (waits || n + ch->ids.n_bytes == 0) {
        return;
    }
    struct buf *b = open_chunk(ch);
    put_delta(b, ch);
    close_chunk(ch, b, NULL);
    end_chunk(ch, b);
}

/* The head is sent with the first token, so that an error before it has its own status. */
static void start(struct call_choice *ch)
{
    const struct request *r = &ch->call->request;
    if (r->stream) {
        start_stream(ch);
    }
    if (r->echoed && r->echoed_bytes > 0) {
        ch->has_content = true;
        buf_put(&ch->content, r->echoed, r->echoed_bytes);
        if (r->stream) {
            ch->pending = PENDING_TEXT;
        }
    }
}

/* The head of a call in either API: tool_calls, or the deprecated function_call. */
static void put_call_head(struct buf *b, const struct call_choice *ch, const char *name,
                          const char *id)
{
    if (!ch->call->request.old_calls) {
        buf_puts(b, "\"id\":");
        buf_put_json(b, id, strlen(id));
        if (ch->is_custom) {
            buf_puts(b, ",\"type\":\"custom\",\"custom\":{");
        } else {
            buf_puts(b, ",\"type\":\"function\",\"function\":{");
        }
    }
    buf_puts(b, "\"name\":");
    buf_put_json(b, name, strlen(name));
    if (ch->is_custom) {
        buf_puts(b, ",\"input\":");
    } else {
        buf_puts(b, ",\"arguments\":");
    }
}

/* A call's name is sent in a chunk of its own; arguments follow as they come. */
static void call(struct call_choice *ch, const char *name, const char *id)
{
    if (!ch->call->request.stream) {
        struct buf *all = &ch->calls;
        if (all->n_bytes) {
            buf_puts(all, ",{");
        } else {
            buf_puts(all, "{");
        }
        put_call_head(all, ch, name, id);
        return;
    }
    struct buf *b = open_chunk(ch);
    open_delta_call(b, ch, ch->n_calls);
    put_call_head(b, ch, name, id);
    if (ch->call->request.old_calls) {
        buf_puts(b, "\"\"}");
    } else {
        buf_puts(b, "\"\"}}]");
    }
    close_chunk(ch, b, NULL);
    end_chunk(ch, b);
}

/* A whole answer collects its calls as text; in a stream they have been sent. */
static void call_end(struct call_choice *ch)
{
    if (!ch->call->request.stream) {
        struct buf *all = &ch->calls;
        buf_put_json(all, or_empty(ch->arguments.data), ch->arguments.n_bytes);
        if (ch->call->request.old_calls) {
            buf_puts(all, "}");
        } else {
            buf_puts(all, "}}");
        }
        buf_clear(&ch->arguments);
    }
}

/* The last chunk of a choice has the rest of its text and its finish reason. */
static void finish(struct call_choice *ch)
{
    struct buf *b = open_chunk(ch);
    put_delta(b, ch);
    close_chunk(ch, b, ch->finish);
    call_put_stop_reason(b, ch);
    buf_puts(b, "}]");
    if (ch->index == 0) {
        call_put_verbose(b, ch->call);
    }
    call_send_chunk(ch->call, b);
}

/* ---- the whole object -------------------------------------------------------------------------
 */

/* If there are calls and no text, content is null, unless the client selected the tool by name. */
void call_put_message(struct buf *b, struct call_choice *ch)
{
    const struct buf *calls = &ch->calls;
    buf_puts(b, "{\"role\":\"assistant\",\"content\":");
    bool named = ch->call->request.is_named && !ch->call->request.old_calls;
    if (!ch->has_content && calls->n_bytes > 0 && !named) {
        buf_puts(b, "null"); // with a named call it is "", as in vLLM
    } else {
        buf_put_json(b, or_empty(ch->content.data), ch->content.n_bytes);
    }
    buf_puts(b, ",\"refusal\":null,\"annotations\":[]");
    if (ch->has_reasoning) {
        buf_putc(b, ',');
        call_put_reasoning(b, &ch->reasoning);
    } else {
        buf_puts(b, ",\"reasoning\":null"); // vLLM's clients read it without a check
    }
    if (calls->n_bytes > 0) {
        bool old = ch->call->request.old_calls;
        if (old) {
            buf_puts(b, ",\"function_call\":");
        } else {
            buf_puts(b, ",\"tool_calls\":[");
        }
        buf_put(b, calls->data, calls->n_bytes);
        if (!old) {
            buf_puts(b, "]");
        }
    } else if (ch->call->request.tool_mode == TOOLS_AUTO && !ch->call->request.old_calls &&
               !ch->call->request.llama) {
        buf_puts(b, ",\"tool_calls\":[]"); // as in vLLM, so that clients can count them
    }
    buf_putc(b, '}');
}

static void put_choice(struct buf *b, struct call_choice *ch)
{
    const struct request *r = &ch->call->request;
    buf_puts(b, "{\"index\":");
    buf_put_int(b, ch->index);
    buf_puts(b, ",\"message\":");
    call_put_message(b, ch);
    buf_puts(b, ",\"logprobs\":");
    if (r->logprobs) {
        buf_puts(b, "{\"content\":[");
        buf_put(b, ch->logprobs.data, ch->logprobs.n_bytes);
        buf_puts(b, "],\"refusal\":null}");
    } else {
        buf_puts(b, "null");
    }
    buf_printf(b, ",\"finish_reason\":\"%s\"", ch->finish);
    call_put_stop_reason(b, ch);
    call_put_prompt_ids(b, ch->call, ch->request);
    call_put_token_ids(b, ch);
    buf_putc(b, '}');
}

/* Usage comes after all choices, in a chunk without any. */
static void end(struct call *c)
{
    if (c->request.stream) {
        call_send_usage(c, "[]");
        call_end_stream(c, true);
        return;
    }
    struct buf body;
    buf_init(&body, (size_t)1 << 30);
    call_put_head(&body, c, "chat.completion");
    for (size_t i = 0; i < c->n_choices; i++) {
        if (i) {
            buf_putc(&body, ',');
        } else {
            buf_putc(&body, '[');
        }
        put_choice(&body, &c->choices[i]);
    }
    buf_putc(&body, ']');
    call_put_usage(&body, c);
    call_put_prompt_logprobs(&body, c, &c->requests[0]);
    call_put_prompt_ids(&body, c, &c->requests[0]);
    call_put_asked_timings(&body, c);
    call_put_metrics(&body, c);
    call_put_verbose(&body, c);
    call_put_transfer(&body, c);
    buf_puts(&body, ",\"service_tier\":\"default\"}");
    call_whole(c, &body);
}

static void begin(struct call *c)
{
    call_put_head(&c->chunk_head, c, "chat.completion.chunk");
}

const struct call_format call_chat_format = {
    .id_prefix = "chatcmpl-",
    .begin = begin,
    .prompt = tell_prompt,
    .start = start,
    .pending = pending,
    .call = call,
    .call_end = call_end,
    .logprob = call_chat_logprob,
    .finish = finish,
    .end = end,
};
