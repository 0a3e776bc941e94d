// SPDX-License-Identifier: Apache-2.0
/* vLLM's split of a request in two: /v1/chat/completions/render and /v1/completions/render return a
 * prompt's token ids, and /inference/v1/generate continues from ids and returns ids. */
#include "engine/base/optional.h"
#include "server/call/format.h"

#include <string.h>

/* ---- render -----------------------------------------------------------------------------------
 */

static void put_ids_member(struct buf *b, const struct request *r, const char *key,
                           const int32_t *ids, int32_t n)
{
    if (body_has(&r->body, key)) {
        buf_printf(b, ",\"%s\":", key);
        call_put_ids(b, ids, n);
    }
}

/* Writes "sampling_params" with the sampling members of the request, as given. The server that
 * receives the ids sets defaults for the others. */
static void put_sampling(struct buf *b, const struct request *r)
{
    static const char *const keys[] = {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "frequency_penalty",
        "n",
        "min_tokens",
        "presence_penalty",
        "stop",
        "ignore_eos",
        "repetition_penalty",
        "logit_bias",
        "bad_words",
        "skip_special_tokens",
        "logprobs",
        "prompt_logprobs",
        "include_stop_str_in_output",
        "response_format",
        "structured_outputs",
    };
    bool is_chat = r->form == FORM_CHAT;
    buf_puts(b, "{\"max_tokens\":");
    if (r->has_max_tokens) {
        buf_put_int(b, r->max_tokens);
    } else {
        buf_puts(b, "null");
    }
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const struct body_member *m = body_get(&r->body, keys[i]);
        if (m && m->node && !(is_chat && strcmp(keys[i], "logprobs") == 0)) {
            buf_printf(b, ",\"%s\":", keys[i]);
            call_put_node(b, m->node);
        }
    }
    if (is_chat && r->logprobs) { // sampling_params have one count, a chat has a flag and a count
        buf_printf(b, ",\"logprobs\":%d", r->n_top);
    }
    put_ids_member(b, r, "stop_token_ids", r->params.stop_ids, r->params.n_stop_ids);
    put_ids_member(b, r, "allowed_token_ids", r->params.allowed, r->params.n_allowed);
    buf_putc(b, '}');
}

/* Writes what another server needs to generate: ids, sampling parameters and features. */
static void put_rendered(struct buf *b, const struct call *c, size_t i)
{
    const struct request *r = &c->request;
    buf_puts(b, "{\"request_id\":");
    buf_put_json(b, c->id, strlen(c->id));
    buf_puts(b, ",\"model\":");
    buf_put_json(b, r->model_name, strlen(r->model_name));
    buf_puts(b, ",\"token_ids\":");
    call_put_ids(b, r->prompts[i].ids, r->prompts[i].n);
    buf_puts(b, ",\"sampling_params\":");
    put_sampling(b, r);
    const struct body_member *stream = body_get(&r->body, "stream");
    bool streams = stream && json_bool(stream->node, false);
    buf_printf(b, ",\"stream\":%s,\"stream_options\":", bool_word(streams));
    if (streams && r->include_usage) {
        buf_printf(b, "{\"include_usage\":true,\"continuous_usage_stats\":%s}",
                   bool_word(r->continuous_usage));
    } else {
        buf_puts(b, "null");
    }
    buf_printf(b, ",\"priority\":%d,\"cache_salt\":", r->priority);
    if (r->cache_salt) {
        buf_put_json(b, r->cache_salt, strlen(r->cache_salt));
    } else {
        buf_puts(b, "null");
    }
    buf_putc(b, '}');
}

static void reply_rendered_chat(struct call *c)
{
    struct buf body;
    buf_init(&body, (size_t)1 << 30);
    put_rendered(&body, c, 0);
    call_whole(c, &body);
}

/* One object per prompt. */
static void reply_rendered_prompts(struct call *c)
{
    struct buf body;
    buf_init(&body, (size_t)1 << 30);
    for (size_t i = 0; i < c->request.n_prompts; i++) {
        if (i) {
            buf_putc(&body, ',');
        } else {
            buf_putc(&body, '[');
        }
        put_rendered(&body, c, i);
    }
    buf_putc(&body, ']');
    call_whole(c, &body);
}

const struct call_format call_render_chat_format = {.id_prefix = "chatcmpl-",
                                                    .reply = reply_rendered_chat};
const struct call_format call_render_format = {.id_prefix = "cmpl-",
                                               .reply = reply_rendered_prompts};

/* ---- generate ---------------------------------------------------------------------------------
 */

/* Ids since the last chunk, with their log-probabilities. */
static void put_choice(struct buf *b, struct call_choice *ch)
{
    buf_puts(b, "{\"index\":");
    buf_put_int(b, ch->index);
    buf_puts(b, ",\"logprobs\":");
    if (ch->call->request.logprobs) {
        buf_puts(b, "{\"content\":[");
        buf_put(b, ch->logprobs.data, ch->logprobs.n_bytes);
        buf_puts(b, "]}");
        buf_clear(&ch->logprobs);
    } else {
        buf_puts(b, "null");
    }
    buf_puts(b, ",\"finish_reason\":");
    if (ch->finish) {
        buf_printf(b, "\"%s\"", ch->finish);
        call_put_stop_reason(b, ch);
    } else {
        buf_puts(b, "null");
    }
    call_put_token_ids(b, ch);
    buf_putc(b, '}');
}

static void put_head(struct buf *b, const struct call *c)
{
    buf_puts(b, "{\"request_id\":");
    buf_put_json(b, c->id, strlen(c->id));
    buf_puts(b, ",\"choices\":");
}

static void begin(struct call *c)
{
    put_head(&c->chunk_head, c);
}

/* Chunks share a buffer, since only one is made at a time. */
static void put_chunk(struct call_choice *ch)
{
    struct call *c = ch->call;
    struct buf *b = &c->server->scratch;
    buf_clear(b);
    buf_clear(&ch->content);
    buf_put(b, c->chunk_head.data, c->chunk_head.n_bytes);
    buf_putc(b, '[');
    put_choice(b, ch);
    buf_putc(b, ']');
    call_send_chunk(c, b);
}

static void pending(struct call_choice *ch)
{
    if (!ch->finish && ch->ids.n_bytes > 0) { // the last ids are sent with the last chunk
        put_chunk(ch);
    }
}

/* Never called: without texts no parser runs. */
static void no_call(struct call_choice *ch, const char *name, const char *id)
{
    (void)ch;
    (void)name;
    (void)id;
}

static void end(struct call *c)
{
    if (c->request.stream) {
        call_send_usage(c, "[]");
        call_end_stream(c, true);
        return;
    }
    struct buf body;
    buf_init(&body, (size_t)1 << 30);
    put_head(&body, c);
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
    buf_puts(&body, ",\"kv_transfer_params\":null}");
    call_whole(c, &body);
}

const struct call_format call_token_format = {
    .id_prefix = "generate-tokens-",
    .begin = begin,
    .pending = pending,
    .call = no_call,
    .logprob = call_chat_logprob,
    .finish = put_chunk,
    .end = end,
};
