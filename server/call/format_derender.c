// SPDX-License-Identifier: Apache-2.0
/* The answers of /derender: the ids pass through the same parsers and formats as those that the
 * engine generates. */
#include "engine/base/optional.h"
#include "server/call/derender.h"
#include "server/call/format.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The id N of "token_id:N"; -1 if the token is given as text. */
static int32_t id_of(const struct call *c, const char *token)
{
    static const char prefix[] = "token_id:";
    char *end = NULL;
    if (!token || strncmp(token, prefix, sizeof prefix - 1) != 0) {
        return -1;
    }
    const char *digits = token + sizeof prefix - 1;
    long long id = strtoll(digits, &end, 10);
    bool good = end != digits && *end == '\0' && id >= 0 && id < c->request.model->info->vocab;
    return good ? (int32_t)id : -1;
}

/* A token of a chat's log-probabilities, without its braces. */
static void put_entry(struct buf *b, const struct call *c, const struct json *entry)
{
    const char *token = json_get_string(entry, "token");
    const float logprob = (float)json_number(json_get(entry, "logprob"), -9999.0);
    const int32_t id = id_of(c, token);
    if (id >= 0) {
        call_put_token(b, c, id, logprob);
        return;
    }
    buf_puts(b, "\"token\":");
    buf_put_json(b, or_empty(token), length_or_0(token));
    buf_puts(b, ",\"logprob\":");
    call_put_logprob(b, logprob);
    buf_puts(b, ",\"bytes\":[");
    for (const char *p = token; p && *p; p++) {
        buf_printf(b, "%s%d", p > token ? "," : "", (unsigned char)*p);
    }
    buf_putc(b, ']');
}

static void put_chat_logprobs(struct call_choice *ch, const struct json *content)
{
    struct buf *b = &ch->logprobs;
    for (const struct json *e = json_first(content); e; e = json_next(e)) {
        const struct json *tops = json_get(e, "top_logprobs");
        buf_puts(b, b->n_bytes ? ",{" : "{");
        put_entry(b, ch->call, e);
        buf_puts(b, ",\"top_logprobs\":[");
        for (const struct json *t = json_first(tops); t; t = json_next(t)) {
            buf_puts(b, t == json_first(tops) ? "{" : ",{");
            put_entry(b, ch->call, t);
            buf_putc(b, '}');
        }
        buf_puts(b, "]}");
    }
}

static void put_text(struct buf *b, const struct call *c, const struct json *entry)
{
    const char *token = json_get_string(entry, "token");
    const int32_t id = id_of(c, token);
    if (id >= 0) {
        call_put_token_text(b, c, id);
    } else {
        buf_put_json(b, or_empty(token), length_or_0(token));
    }
}

static void put_pair(struct buf *b, const struct call *c, const struct json *entry)
{
    put_text(b, c, entry);
    buf_putc(b, ':');
    call_put_logprob(b, (float)json_number(json_get(entry, "logprob"), -9999.0));
}

static void put_comma(struct buf *b)
{
    if (b->n_bytes > 0) {
        buf_putc(b, ',');
    }
}

/* The lists of completions. */
static void put_list_logprobs(struct call_choice *ch, const struct json *content)
{
    struct buf *values = &ch->lists[0], *tops = &ch->lists[1], *offsets = &ch->lists[2];
    size_t offset = 0;
    for (const struct json *e = json_first(content); e; e = json_next(e)) {
        const char *token = json_get_string(e, "token");
        const int32_t id = id_of(ch->call, token);
        put_comma(&ch->logprobs);
        put_text(&ch->logprobs, ch->call, e);
        put_comma(values);
        call_put_logprob(values, (float)json_number(json_get(e, "logprob"), -9999.0));
        put_comma(tops);
        buf_putc(tops, '{');
        put_pair(tops, ch->call, e);
        const struct json *others = json_get(e, "top_logprobs");
        for (const struct json *t = json_first(others); t; t = json_next(t)) {
            buf_putc(tops, ',');
            put_pair(tops, ch->call, t);
        }
        buf_putc(tops, '}');
        put_comma(offsets);
        buf_put_int(offsets, (int64_t)offset);
        if (id >= 0) {
            offset += call_token_characters(ch->call, id);
        } else {
            offset += token ? strlen(token) : 0;
        }
    }
}

/* The outputs as the engine would have left them. */
static bool make_choices(struct call *c)
{
    const struct derender *d = c->request.derender;
    size_t n_choices = 0;
    for (size_t i = 0; i < d->n_answers; i++) {
        n_choices += d->answers[i].n_choices;
    }
    struct engine_output *out = mem_try_calloc(n_choices, sizeof *out);
    c->memory = out;
    c->requests = mem_try_calloc(d->n_answers, sizeof *c->requests);
    c->choices = mem_try_calloc(n_choices, sizeof *c->choices);
    if (!out || !c->requests || !c->choices) {
        return false;
    }
    for (size_t i = 0; i < d->n_answers; i++) {
        const struct derendered *a = &d->answers[i];
        struct engine_request *q = &c->requests[c->n_requests++];
        q->n_prompt = (int32_t)a->n_prompt;
        q->n_recomputed = -1;
        q->params = c->request.params;
        q->n = (int32_t)a->n_choices;
        q->outputs = out;
        for (size_t k = 0; k < a->n_choices; k++, out++) {
            const struct derendered_choice *from = &a->choices[k];
            const bool is_short = from->finish && strcmp(from->finish, "length") == 0;
            out->tokens = (int32_t *)from->ids;
            out->stop_id = -1;
            atomic_store(&out->n_tokens, from->n);
            atomic_store(&out->finish, is_short ? FINISH_LENGTH : FINISH_STOP);
            call_choice_init(&c->choices[c->n_choices], c, (int32_t)c->n_choices, q, (int32_t)k);
            c->n_choices++;
        }
    }
    return true;
}

static void reply(struct call *c, const struct call_format *format,
                  void (*put_logprobs)(struct call_choice *ch, const struct json *content))
{
    const struct derender *d = c->request.derender;
    struct call_error e = {0};
    if (d->id) {
        snprintf(c->id, sizeof c->id, "%s", d->id);
    }
    if (!make_choices(c)) {
        call_error_no_memory(&e);
        c->sink->error(c, &e);
        return;
    }
    c->format = format;
    size_t next = 0;
    for (size_t i = 0; i < d->n_answers; i++) {
        for (size_t k = 0; k < d->answers[i].n_choices; k++, next++) {
            struct call_choice *ch = &c->choices[next];
            const struct derendered_choice *from = &d->answers[i].choices[k];
            call_choice_progress(ch, clock_now_ns());
            if (from->finish && ch->n_calls == 0) {
                ch->finish = from->finish; // any word is passed on, such as "abort"
            }
            if (from->logprobs) {
                put_logprobs(ch, from->logprobs);
            }
        }
    }
    format->end(c);
}

static void reply_chat(struct call *c)
{
    reply(c, &call_chat_format, put_chat_logprobs);
}

static void reply_completions(struct call *c)
{
    reply(c, &call_completion_format, put_list_logprobs);
}

const struct call_format call_derender_chat_format = {.id_prefix = "chatcmpl-",
                                                      .reply = reply_chat};
const struct call_format call_derender_format = {.id_prefix = "cmpl-", .reply = reply_completions};
