// SPDX-License-Identifier: Apache-2.0
/* Ollama's answers: an object, or one object per line, of which the last has "done" and the
 * statistics. */
#include "server/call/format.h"

#include "engine/base/clock.h"
#include "engine/base/json_scan.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* {"model":..,"created_at":"2026-01-01T00:00:00.000000Z" */
static void put_head(struct buf *b, const struct call *c)
{
    char text[32];
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    buf_puts(b, "{\"model\":");
    buf_put_json(b, c->request.model_name, strlen(c->request.model_name));
    buf_printf(b, ",\"created_at\":\"%s.%06ldZ\"", text, now.tv_nsec / 1000);
}

static void put_ns(struct buf *b, const char *key, int64_t ns)
{
    buf_printf(b, ",\"%s\":%" PRId64, key, greater(ns, 0));
}

/* Writes durations, in nanoseconds as in Ollama's API, and counts. */
static void put_figures(struct buf *b, const struct call *c)
{
    const struct engine_request *q = &c->requests[0];
    struct call_usage u = call_usage_of(c);
    int64_t first = q->t_first_token_ns, begun = q->t_scheduled_ns, now = clock_now_ns();
    put_ns(b, "total_duration", now - c->t_arrived_ns);
    put_ns(b, "load_duration", 0);
    put_ns(b, "prompt_eval_count", u.prompt);
    put_ns(b, "prompt_eval_duration", first > 0 && begun > 0 ? first - begun : 0);
    put_ns(b, "eval_count", u.completion);
    put_ns(b, "eval_duration", first > 0 ? now - first : 0);
}

static bool is_object(const struct buf *text)
{
    struct json_scan sc;
    json_scan_init(&sc, or_empty(text->data), text->n_bytes, JSON_SCAN_MAX_DEPTH);
    return json_scan_next(&sc) == JSON_TOKEN_OBJECT && json_scan_skip(&sc) &&
           json_scan_next(&sc) == JSON_TOKEN_END;
}

/* The text, reasoning and calls so far, as a message or as a response. */
static void put_said(struct buf *b, struct call_choice *ch)
{
    bool chat = ch->call->request.kind == KIND_OLLAMA_CHAT;
    if (chat) {
        buf_puts(b, ",\"message\":{\"role\":\"assistant\",\"content\":");
    } else {
        buf_puts(b, ",\"response\":");
    }
    buf_put_json(b, or_empty(ch->content.data), ch->content.n_bytes);
    if (ch->reasoning.n_bytes > 0) {
        buf_puts(b, ",\"thinking\":");
        buf_put_json(b, ch->reasoning.data, ch->reasoning.n_bytes);
    }
    if (ch->calls.n_bytes > 0) {
        buf_puts(b, ",\"tool_calls\":[");
        buf_put(b, ch->calls.data, ch->calls.n_bytes);
        buf_putc(b, ']');
    }
    if (chat) {
        buf_puts(b, "}");
    }
    if (ch->logprobs.n_bytes > 0) {
        buf_puts(b, ",\"logprobs\":[");
        buf_move(b, &ch->logprobs);
        buf_putc(b, ']');
    }
    buf_clear(&ch->content);
    buf_clear(&ch->reasoning);
    buf_clear(&ch->calls);
}

/* ---- stream ---------------------------------------------------------------------------------- */

static void send_said(struct call_choice *ch)
{
    struct buf *b = &ch->call->server->scratch;
    buf_clear(b);
    put_head(b, ch->call);
    put_said(b, ch);
    buf_puts(b, ",\"done\":false}");
    call_event(ch->call, NULL, b);
}

/* A call is sent as a whole, once it has ended. */
static void pending(struct call_choice *ch)
{
    if (ch->content.n_bytes + ch->reasoning.n_bytes > 0) {
        send_said(ch);
    }
}

/* In Ollama's API, calls have no id, and their arguments are an object. */
static void call(struct call_choice *ch, const char *name, const char *id)
{
    (void)id;
    if (ch->calls.n_bytes) {
        buf_puts(&ch->calls, ",{\"function\":{");
    } else {
        buf_puts(&ch->calls, "{\"function\":{");
    }
    buf_printf(&ch->calls, "\"index\":%d,\"name\":", ch->n_calls);
    buf_put_json(&ch->calls, name, strlen(name));
    buf_puts(&ch->calls, ",\"arguments\":");
}

/* Arguments must be an object; if they were cut off, they are not one. */
static void call_end(struct call_choice *ch)
{
    if (is_object(&ch->arguments)) {
        buf_put(&ch->calls, ch->arguments.data, ch->arguments.n_bytes);
    } else {
        buf_puts(&ch->calls, "{}");
    }
    buf_puts(&ch->calls, "}}");
    buf_clear(&ch->arguments);
    if (ch->call->request.stream) {
        send_said(ch);
    }
}

static void finish(struct call_choice *ch)
{
    (void)ch; // reported at the end
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The last line has the statistics: durations in nanoseconds, and counts. */
static void end(struct call *c)
{
    struct call_choice *ch = &c->choices[0];
    bool length = strcmp(ch->finish, "length") == 0;
    struct buf b;
    buf_init(&b, (size_t)1 << 30);
    put_head(&b, c);
    put_said(&b, ch);
    buf_printf(&b, ",\"done\":true,\"done_reason\":\"%s\"", length ? "length" : "stop");
    put_figures(&b, c);
    buf_putc(&b, '}');
    if (c->request.stream) {
        call_event(c, NULL, &b);
        buf_deinit(&b);
        call_end_stream(c, false);
    } else {
        call_whole(c, &b);
    }
}

const struct call_format call_ollama_format = {
    .id_prefix = "ollama-",
    .pending = pending,
    .call = call,
    .call_end = call_end,
    .logprob = call_chat_logprob,
    .finish = finish,
    .end = end,
};

/* A request without a prompt only checks that the model is loaded. */
static void reply_load(struct call *c)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    put_head(&b, c);
    if (c->request.form == FORM_OLLAMA_CHAT) {
        buf_puts(&b, ",\"message\":{\"role\":\"assistant\",\"content\":\"\"}");
    } else {
        buf_puts(&b, ",\"response\":\"\"");
    }
    buf_puts(&b, ",\"done\":true,\"done_reason\":\"load\"}");
    call_whole(c, &b);
}

const struct call_format call_ollama_load_format = {.id_prefix = "ollama-", .reply = reply_load};

/* ---- embeddings ------------------------------------------------------------------------------ */

static void write_embed(struct call *c, struct buf *b)
{
    int64_t tokens = 0;
    buf_puts(b, "{\"model\":");
    buf_put_json(b, c->request.model_name, strlen(c->request.model_name));
    buf_puts(b, ",\"embeddings\":[");
    for (size_t i = 0; i < c->n_requests; i++) {
        tokens += c->requests[i].n_prompt;
    }
    for (size_t i = 0; i < call_n_vectors(c); i++) {
        if (i) {
            buf_puts(b, ",");
        }
        call_put_vector(b, c, i);
    }
    buf_putc(b, ']');
    put_ns(b, "total_duration", clock_now_ns() - c->t_arrived_ns);
    put_ns(b, "load_duration", 0);
    put_ns(b, "prompt_eval_count", tokens);
    buf_putc(b, '}');
}

const struct call_format call_ollama_embed_format = {.id_prefix = "ollama-", .write = write_embed};

static void write_old_embed(struct call *c, struct buf *b)
{
    buf_puts(b, "{\"embedding\":");
    call_put_vector(b, c, 0);
    buf_putc(b, '}');
}

const struct call_format call_ollama_old_embed_format = {.id_prefix = "ollama-",
                                                         .write = write_old_embed};
