// SPDX-License-Identifier: Apache-2.0
/* The bodies of /inference/v1/generate and of the two /render endpoints. Members of
 * "sampling_params" in the former are read like members of the body. */
#include "engine/base/optional.h"
#include "engine/base/words.h"
#include "server/call/members.h"
#include "server/call/readers.h"

#include <string.h>

void render_chat_begin(struct request *r)
{
    r->form = FORM_CHAT;
    chat_begin(r);
}

void render_begin(struct request *r)
{
    r->form = FORM_COMPLETIONS;
    completion_begin(r);
}

/* Stored items cannot be rendered: the client has to send the whole conversation. */
void render_response_begin(struct request *r)
{
    static const char *const stored[] = {"previous_response_id", "conversation"};
    r->form = FORM_RESPONSES;
    for (int i = 0; i < 2; i++) {
        if (body_has(&r->body, stored[i])) {
            call_error_unsupported(&r->error, stored[i]);
            return;
        }
    }
    responses_begin(r);
}

void render_message_begin(struct request *r)
{
    r->form = FORM_MESSAGES;
    messages_begin(r);
}

void tokens_begin(struct request *r)
{
    body_lift(&r->body, "sampling_params");
    r->has_max_tokens = r->model->has_default_max_tokens;
    r->max_tokens = r->model->defaults.max_tokens;
}

bool read_token_ids(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "token_ids");
    if (m && m->node && !(json_is(m->node, JSON_ARRAY) && json_count(m->node) == 0)) {
        return body_wrong_type(&r->error, "token_ids", "an array of token ids", m->node);
    }
    return request_read_prompts(r, "token_ids", 1);
}

bool read_detokenize(struct request *r)
{
    bool wanted = true;
    body_bool(&r->body, "detokenize", &wanted);
    if (wanted || (r->output.n_stop == 0 && r->output_mode == OUTPUT_TOKENS)) {
        return true;
    }
    return call_error_set(&r->error, 400, "invalid_value", "detokenize",
                          "Stop strings and the output modes 'text' and 'derender' need text: "
                          "'detokenize' must not be false.");
}

/* Unknown members are errors: one that a newer server has added could change how the text is
 * parsed. */
static bool knows_context(struct request *r)
{
    for (size_t i = 0; i < r->body.n_members; i++) {
        const char *key = r->body.members[i].key;
        if (!member_find(key, FORM_CONTEXT)) {
            return call_error_set(&r->error, 400, "unknown_parameter", "parse_context",
                                  "Unknown parameter: 'parse_context.%.60s'.", key);
        }
    }
    return true;
}

/* The members of the context are read like those of a chat. */
bool read_parse_context(struct request *r)
{
    const struct json *context = NULL;
    if (!body_object(&r->body, "parse_context", &context) || r->output_mode != OUTPUT_DERENDER) {
        return r->error.status == 0;
    }
    const struct body_member *m = body_get(&r->body, "parse_context");
    char *text = arena_strndup(&r->arena, m->start, m->n_bytes);
    if (!text) {
        return request_too_large(r);
    }
    const struct body outer = r->body;
    r->body = (struct body){0};
    bool good = body_open(&r->body, text, m->n_bytes, &r->arena, &r->error) && knows_context(r);
    r->form = FORM_CONTEXT;
    good = good && members_read(r);
    r->form = FORM_TOKENS;
    r->context = r->body;
    r->body = outer;
    return good;
}

bool request_names_parser(const struct request *r)
{
    const struct config *c = r->model->config;
    return words_find("auto|none", c->tool_call_parser) < 0 ||
           words_find("auto|none", c->reasoning_parser) < 0;
}

/* The prompt's text tells whether it has opened the reasoning. */
static bool keep_prompt_text(struct request *r)
{
    struct buf text;
    const struct request_prompt *p = &r->prompts[0];
    buf_init(&text, 256 << 20);
    tokenizer_decode(r->model->tok, p->ids, (size_t)p->n, false, &text);
    r->prompt_text = arena_strndup(&r->arena, or_empty(text.data), text.n_bytes);
    r->prompt_text_bytes = text.n_bytes;
    buf_deinit(&text);
    if (!r->prompt_text) {
        return request_too_large(r);
    }
    r->output.starts_in_reasoning =
        reasoning_is_open(r->output.reasoning, r->prompt_text, r->prompt_text_bytes);
    return true;
}

/* vLLM's prefill stage returns the prompt's ids, so that the next stage need not tokenize the
 * messages. The other members say where keys and values can be fetched; they are refused, because
 * nothing is transferred here. */
bool read_transfer(struct request *r)
{
    static const char place[] = "kv_transfer_params.prompt_token_ids";
    const struct json *transfer = NULL, *ids = NULL;
    if (!body_object(&r->body, "kv_transfer_params", &transfer)) {
        return r->error.status == 0;
    }
    for (const struct json *m = json_first(transfer); m; m = json_next(m)) {
        const char *key = json_key(m);
        if (strcmp(key, "prompt_token_ids") == 0) {
            ids = m;
        } else if (json_type(m) != JSON_NULL && (!json_is(m, JSON_BOOL) || json_bool(m, true))) {
            return call_error_set(&r->error, 400, "unsupported_parameter", "kv_transfer_params",
                                  "Unsupported parameter: 'kv_transfer_params.%.60s': keys and "
                                  "values are not transferred between servers.",
                                  key);
        }
    }
    if (json_type(ids) == JSON_NULL) {
        return true;
    }
    if (!json_is(ids, JSON_ARRAY)) {
        return body_wrong_type(&r->error, place, "an array of token ids", ids);
    }
    if (json_count(ids) == 0) {
        return call_error_empty(&r->error, place);
    }
    int32_t *list = arena_alloc(&r->arena, json_count(ids), sizeof *list);
    if (!list) {
        return request_too_large(r);
    }
    for (const struct json *v = json_first(ids); v; v = json_next(v)) {
        int64_t id;
        if (!json_int64(v, &id)) {
            return body_wrong_type(&r->error, place, "an array of token ids", v);
        }
        if (id < 0 || id >= r->model->info->vocab) {
            return call_error_set(&r->error, 400, "invalid_value", place,
                                  "Invalid '%s': token id %lld is out of vocabulary.", place,
                                  (long long)id);
        }
        list[r->given_prompt.n++] = (int32_t)id;
    }
    r->given_prompt.ids = list;
    return true;
}

bool request_use_given(struct request *r)
{
    r->prompts = arena_alloc(&r->arena, 1, sizeof r->prompts[0]);
    if (!r->prompts) {
        return request_too_large(r);
    }
    r->prompts[0] =
        (struct request_prompt){.ids = r->given_prompt.ids, .n = (int32_t)r->given_prompt.n};
    r->n_prompts = 1;
    return !r->model->tok || keep_prompt_text(r);
}

/* The message is parsed as that of the chat would be. */
static bool parse_message(struct request *r)
{
    if (r->stream) {
        return call_error_set(&r->error, 400, "unsupported_value", "output_mode",
                              "The output mode 'derender' is not available when 'stream' is "
                              "enabled.");
    }
    if (!r->context.root) {
        return !request_names_parser(r) ||
               call_error_set(&r->error, 400, "missing_required_parameter", "parse_context",
                              "The output mode 'derender' needs the 'parse_context' that /render "
                              "returns, because this server parses calls or reasoning.");
    }
    r->output.reasoning = r->model->reasoning;
    request_hide_reasoning(r);
    return keep_prompt_text(r);
}

bool tokens_end(struct request *r)
{
    r->returns_prompt = r->return_token_ids;
    r->return_token_ids = true;
    r->has_max_tokens |= r->max_is_asked;
    r->params.logprobs = r->logprobs;
    r->params.top_logprobs = r->n_top;
    if (!request_check_scores(r)) {
        return false;
    }
    if (r->output_mode == OUTPUT_TOKENS) {
        return true;
    }
    if (!r->model->tok) {
        return call_error_set(&r->error, 400, "unsupported_value", "output_mode",
                              "This model has no tokenizer: its output mode is 'tokens'.");
    }
    return r->output_mode == OUTPUT_TEXT || parse_message(r);
}
