// SPDX-License-Identifier: Apache-2.0
/* vLLM's /v1/chat/completions/render and /v1/completions/render: a prompt's token ids, with all
 * that /inference/v1/generate needs to continue from them (format_tokens.c). */
#include "engine/base/optional.h"
#include "server/call/format.h"

#include <stdio.h>
#include <string.h>

static void put_ids_member(struct buf *b, const struct request *r, const char *key,
                           const int32_t *ids, int32_t n)
{
    if (body_has(&r->body, key)) {
        buf_printf(b, ",\"%s\":", key);
        call_put_ids(b, ids, n);
    }
}

/* Messages call stop strings stop_sequences. */
static void put_stop_sequences(struct buf *b, const struct request *r)
{
    if (r->form != FORM_MESSAGES || r->output.n_stop == 0) {
        return;
    }
    buf_puts(b, ",\"stop\":[");
    for (size_t i = 0; i < r->output.n_stop; i++) {
        buf_puts(b, text_if(i > 0, ","));
        buf_put_json(b, r->output.stop[i], r->output.stop_bytes[i]);
    }
    buf_putc(b, ']');
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
        "logprob_token_ids",
        "thinking_token_budget",
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
    if (is_chat && r->logprobs) { // a count in sampling_params, a flag and a count in a chat
        buf_printf(b, ",\"logprobs\":%d", r->n_top);
    }
    put_stop_sequences(b, r);
    put_ids_member(b, r, "stop_token_ids", r->params.stop_ids, r->params.n_stop_ids);
    put_ids_member(b, r, "allowed_token_ids", r->params.allowed, r->params.n_allowed);
    buf_putc(b, '}');
}

static void put_member(struct buf *b, const struct request *r, const char *key, const char *absent)
{
    const struct body_member *m = body_get(&r->body, key);
    buf_printf(b, ",\"%s\":", key);
    if (m && m->node) {
        call_put_node(b, m->node);
    } else {
        buf_puts(b, absent);
    }
}

/* The choice of a message, or the function_call of a chat with functions, in the words of chats. */
static void put_other_choice(struct buf *b, const struct request *r, const char *key)
{
    static const char *const words[] = {"\"none\"", "\"auto\"", "\"required\""};
    const struct body_member *m = body_get(&r->body, key);
    const char *name = m ? json_get_string(m->node, "name") : NULL;
    buf_puts(b, ",\"tool_choice\":");
    if (r->tool_mode == TOOLS_MUST && name) {
        buf_puts(b, "{\"type\":\"function\",\"function\":{\"name\":");
        buf_put_json(b, name, strlen(name));
        buf_puts(b, "}}");
    } else {
        buf_puts(b, words[r->tool_mode]);
    }
}

/* How the answer to a chat is parsed. */
static void put_context(struct buf *b, const struct request *r)
{
    if (!(r->form & (FORM_CHAT | FORM_MESSAGES))) {
        buf_puts(b, ",\"parse_context\":null");
        return;
    }
    const struct body_member *tools = body_get(&r->body, "tools");
    buf_puts(b, ",\"parse_context\":{\"tools\":");
    if (r->form == FORM_CHAT && r->tools_json && !r->old_calls) { // custom tools among them
        call_put_node(b, tools->node);
    } else if (r->tools) { // as the template gets them
        buf_put(b, r->tools, r->tools_bytes);
    } else {
        buf_puts(b, "null");
    }
    if (r->form == FORM_MESSAGES) {
        put_other_choice(b, r, "tool_choice");
    } else if (r->old_calls) {
        put_other_choice(b, r, "function_call");
    } else {
        put_member(b, r, "tool_choice", r->tools_json ? "\"auto\"" : "\"none\"");
    }
    buf_printf(b, ",\"parallel_tool_calls\":%s,\"include_reasoning\":%s",
               bool_word(r->parallel_tool_calls), bool_word(r->include_reasoning));
    buf_puts(b, ",\"chat_template_kwargs\":");
    if (r->kwargs) {
        buf_put(b, r->kwargs, r->kwargs_bytes);
    } else {
        buf_puts(b, "{}");
    }
    if (r->continue_final_message) { // the answer then begins without reasoning
        buf_puts(b, ",\"continue_final_message\":true");
    }
    buf_printf(b, ",\"history_tool_call_cnt\":%d}", r->n_past_calls);
}

static void put_offsets(struct buf *b, const struct request_prompt *p)
{
    buf_puts(b, ",\"token_offsets\":");
    if (!p->offsets) {
        buf_puts(b, "null");
        return;
    }
    for (int32_t i = 0; i < p->n; i++) {
        buf_printf(b, "%s[%d,%d]", i > 0 ? "," : "[", p->offsets[2 * i], p->offsets[2 * i + 1]);
    }
    buf_puts(b, p->n > 0 ? "]" : "[]");
}

/* Writes what another server needs to generate: ids, sampling parameters and features. */
static void put_rendered(struct buf *b, const struct call *c, size_t i)
{
    const struct request *r = &c->request;
    buf_puts(b, "{\"request_id\":");
    if (r->n_prompts > 1) { // each has an id of its own
        char id[sizeof c->id + 24];
        const int n = snprintf(id, sizeof id, "%s-%zu", c->id, i);
        buf_put_json(b, id, (size_t)n);
    } else {
        buf_put_json(b, c->id, strlen(c->id));
    }
    buf_puts(b, ",\"model\":");
    buf_put_json(b, r->model_name, strlen(r->model_name));
    buf_puts(b, ",\"token_ids\":");
    call_put_ids(b, r->prompts[i].ids, r->prompts[i].n);
    put_offsets(b, &r->prompts[i]);
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
    buf_puts(b, ",\"return_token_ids\":");
    buf_puts(b, bool_word(r->return_token_ids));
    put_context(b, r);
    buf_printf(b, ",\"priority\":%d,\"cache_salt\":", r->priority);
    const struct body_member *salt = body_get(&r->body, "cache_salt");
    if (salt) {
        buf_put(b, salt->start, salt->n_bytes);
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
const struct call_format call_render_response_format = {.id_prefix = "resp_",
                                                        .reply = reply_rendered_chat};
const struct call_format call_render_format = {.id_prefix = "cmpl-",
                                               .reply = reply_rendered_prompts};
