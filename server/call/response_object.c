// SPDX-License-Identifier: Apache-2.0
/* A response and its items as JSON. */
#include "server/call/responses.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"

#include <stdlib.h>
#include <string.h>

struct responses *response_state(struct call *c)
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
void response_forget(struct call *c)
{
    struct responses *s = response_state(c);
    buf_deinit(&s->text);
    buf_deinit(&s->logprobs);
    buf_deinit(&s->items);
    buf_deinit(&s->body);
    buf_deinit(&s->lost);
    buf_deinit(&s->events);
}

void response_put_usage(struct buf *b, const struct call *c)
{
    struct call_usage u = call_usage_of(c);
    buf_puts(b, "{\"input_tokens\":");
    buf_put_int(b, u.prompt);
    buf_puts(b, ",\"input_tokens_details\":{\"cached_tokens\":");
    buf_put_int(b, u.cached);
    call_put_recomputed(b, &u);
    buf_puts(b, ",\"cache_write_tokens\":0},\"output_tokens\":"); // required by the SDK's type
    buf_put_int(b, u.completion);
    buf_puts(b, ",\"output_tokens_details\":{\"reasoning_tokens\":");
    buf_put_int(b, u.reasoning);
    buf_puts(b, "},\"total_tokens\":");
    buf_put_int(b, u.prompt + u.completion);
    buf_putc(b, '}');
}

static bool is_cut(const struct call *c)
{
    return strcmp(c->choices[0].finish, "length") == 0;
}

struct ending response_ending_of(const struct call *c)
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

/* Writes a text with special tokens, and its ids. Where the two disagree, the ids are right. */
static void put_raw(struct buf *b, const struct call *c, const char *key, const char *text,
                    size_t n_bytes, struct ids ids)
{
    struct buf decoded;
    buf_init(&decoded, b->max_bytes);
    if (!text) {
        tokenizer_decode(c->request.model->tok, ids.v, ids.n, false, &decoded);
        text = or_empty(decoded.data);
        n_bytes = decoded.n_bytes;
    }
    buf_printf(b, ",\"%s\":[{\"type\":\"raw_message_tokens\",\"message\":", key);
    buf_put_json(b, text, n_bytes);
    buf_puts(b, ",\"tokens\":");
    call_put_ids(b, ids.v, (int32_t)ids.n);
    buf_puts(b, "}]");
    buf_deinit(&decoded);
}

/* enable_response_messages: what vLLM reports about a finished response. */
static void put_messages(struct buf *b, const struct call *c)
{
    if (!c->request.tells_messages || c->n_requests == 0) {
        return;
    }
    const struct request_prompt *p = &c->request.prompts[0];
    const struct call_choice *ch = &c->choices[0];
    put_raw(b, c, "input_messages", p->text, p->text_bytes,
            (struct ids){.v = (int32_t *)p->ids, .n = (size_t)p->n});
    put_raw(b, c, "output_messages", NULL, 0,
            (struct ids){.v = ch->request->outputs[0].tokens, .n = (size_t)ch->n_taken});
}

void response_put_object(struct buf *b, struct call *c, struct ending e)
{
    const struct responses *s = response_state(c);
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
        response_put_usage(b, c);
        put_messages(b, c);
    } else {
        buf_puts(b, "null");
    }
    buf_putc(b, '}');
}

void response_put(struct buf *b, struct call *c, const char *status)
{
    response_put_object(b, c, (struct ending){status, NULL});
}

void call_put_response(struct buf *b, struct call *c)
{
    const struct buf *body = &response_state(c)->body;
    if (c->closed) {
        buf_put(b, body->data, body->n_bytes);
    } else {
        response_put(b, c, c->first_token ? "in_progress" : "queued");
    }
}

void response_put_text_part(struct buf *b, const struct responses *s)
{
    buf_puts(b, "{\"type\":\"output_text\",\"text\":");
    buf_put_json(b, or_empty(s->text.data), s->text.n_bytes);
    buf_puts(b, ",\"annotations\":[],\"logprobs\":[");
    buf_put(b, s->logprobs.data, s->logprobs.n_bytes);
    buf_puts(b, "]}");
}

void response_put_item(struct buf *b, const struct responses *s, const char *status, bool done)
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
            response_put_text_part(b, s);
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
        if (s->space) {
            buf_puts(b, ",\"namespace\":");
            buf_put_json(b, s->space, strlen(s->space));
        }
        if (custom) {
            buf_puts(b, ",\"input\":");
        } else {
            buf_puts(b, ",\"arguments\":");
        }
        buf_put_json(b, done && s->text.data ? s->text.data : "", done ? s->text.n_bytes : 0);
        buf_putc(b, '}');
    }
}
