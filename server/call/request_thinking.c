// SPDX-License-Identifier: Apache-2.0
/* The limit of an answer's reasoning (engine/thinking.h): how many tokens a request or the server
 * allows, the markers by which the reasoning is recognised, and what is forced when it is over. */
#include "server/call/readers.h"
#include "server/chat/turn.h"

#include "engine/base/optional.h"

#include <string.h>

/* Several names of one number; -1 means no limit. */
static bool read_budget(struct request *r, const char *key)
{
    int64_t v;
    if (body_int(&r->body, key, -1, INT32_MAX, &v)) {
        r->thinking_budget = v;
        r->thinking_param = key;
    }
    return r->error.status == 0;
}

bool read_thinking_token_budget(struct request *r)
{
    return read_budget(r, "thinking_token_budget");
}

bool read_thinking_budget(struct request *r)
{
    return read_budget(r, "thinking_budget");
}

bool read_thinking_budget_tokens(struct request *r)
{
    return read_budget(r, "thinking_budget_tokens");
}

bool read_reasoning_budget(struct request *r)
{
    return read_budget(r, "reasoning_budget");
}

/* Messages' and chat's thinking: {"budget_tokens": n}. */
bool read_budget_tokens(struct request *r, const struct json *thinking)
{
    const struct json *budget = json_get(thinking, "budget_tokens");
    int64_t n;
    if (json_type(budget) == JSON_NULL) {
        return true;
    }
    if (!json_int64(budget, &n) || n < 1 || n > INT32_MAX) {
        return call_error_set(&r->error, 400, "invalid_value", "thinking.budget_tokens",
                              "Invalid 'thinking.budget_tokens': expected an integer above 0.");
    }
    r->thinking_budget = n;
    r->thinking_param = "thinking.budget_tokens";
    return true;
}

bool read_reasoning_budget_message(struct request *r)
{
    const char *message = NULL;
    if (!body_string(&r->body, "reasoning_budget_message", &message)) {
        return r->error.status == 0;
    }
    r->thinking_message = body_text(&r->body, message, &r->thinking_message_bytes);
    return r->thinking_message || request_too_large(r);
}

static int32_t put_marks(const struct request *r, const char *const *texts,
                         struct text_marker *marks, int32_t n)
{
    for (; texts && *texts && n < MAX_THINKING_MARKS; texts++) {
        if (strlen(*texts) <= GRAMMAR_AFTER_MAX) {
            int32_t id = tokenizer_find(r->model->tok, *texts, strlen(*texts));
            marks[n++] = (struct text_marker){*texts, id};
        }
    }
    return n;
}

/* vLLM's --reasoning-config may have the whole text that ends the reasoning. */
static char *configured_end(const struct request *r)
{
    const char *config = r->model->config->reasoning_config;
    struct json *root = NULL;
    char *end = NULL;
    if (config && json_parse(config, strlen(config), NULL, &root, NULL) == OK) {
        const char *text = json_get_string(root, "reasoning_end_str");
        if (!text) {
            text = json_get_string(root, "think_end_str"); // its older name
        }
        end = text ? arena_strndup(&((struct request *)r)->arena, text, strlen(text)) : NULL;
    }
    json_free(root);
    return end;
}

static bool keep_ids(struct request *r, const struct text_span *spans, size_t n_spans,
                     struct token_marker *m)
{
    struct ids ids;
    ids_init(&ids, 1 << 16);
    struct tokenizer_flags flags = {.add_special = false, .parse_special = true};
    enum status st = tokenizer_encode(r->model->tok, spans, n_spans, flags, &ids, NULL);
    int32_t *copy = arena_alloc(&r->arena, ids.n + 1, sizeof *copy);
    if (st == OK && copy) {
        memcpy(copy, ids.v, ids.n * sizeof *copy);
        *m = (struct token_marker){copy, (int32_t)ids.n};
    }
    ids_deinit(&ids);
    return (st == OK && copy && m->n > 0) || request_too_large(r);
}

/* The text that ends the reasoning: a message, if there is one, the model's own marker, and what
 * follows it. */
static bool put_end(struct request *r, const char *close, const char *then, struct token_marker *m)
{
    const char *message = r->thinking_message;
    const char *own = message ? NULL : configured_end(r);
    size_t n_message = r->thinking_message_bytes;
    if (!message) {
        message = or_empty(r->model->config->reasoning_budget_message);
        n_message = strlen(message);
    }
    struct text_span spans[] = {
        {message, n_message, true}, {close, strlen(close), false}, {then, strlen(then), false}};
    if (own && strstr(own, close)) {
        spans[0] = (struct text_span){own, strlen(own), false};
        spans[1].n_bytes = 0;
    }
    return keep_ids(r, spans, 3, m);
}

/* The head of the message that must follow the reasoning: at once if the model may not choose to
 * call a tool, otherwise only if it begins to reason again. */
static const char *last_message(const struct request *r, const struct reasoning_channels *c)
{
    const struct tool_parser *parser = r->model->parser;
    if (r->tool_mode == TOOLS_MUST && parser && parser->writing) {
        return turn_writing(parser, r->model->tok)->call;
    }
    return c->answer;
}

/* Reasoning in channels: it may begin again, for example before a call. */
static bool put_channels(struct request *r, struct thinking_limit *l,
                         const struct reasoning_channels *c)
{
    struct text_span opens = {c->opens, strlen(c->opens), false};
    const char *last = last_message(r, c);
    bool may_call = r->tool_mode == TOOLS_AUTO && r->n_tool_list > 0;
    l->n_closes = put_marks(r, c->closes, l->closes, 0);
    return keep_ids(r, &opens, 1, &l->channel) &&
           put_end(r, c->next, may_call ? "" : last, &l->end) &&
           put_end(r, c->next, last, &l->last_end);
}

static bool put_markers(struct request *r, struct thinking_limit *l)
{
    const struct tool_parser *parser = r->model->parser;
    const struct reasoning_marks *marks = reasoning_marks(r->model->reasoning);
    l->n_opens = put_marks(r, marks->opens, l->opens, 0);
    l->n_closes = put_marks(r, marks->closes, l->closes, 0);
    l->n_closes = put_marks(r, parser ? parser->ends_reasoning : NULL, l->closes, l->n_closes);
    return put_end(r, marks->closes[0], "", &l->end);
}

/* True if the prompt ends inside reasoning that it has opened. */
static bool is_opened(const struct request *r, const struct request_prompt *p)
{
    enum { TAIL = 64 };
    if (r->messages) {
        return r->output.starts_in_reasoning;
    }
    if (p->text) {
        return reasoning_is_open(r->model->reasoning, p->text, p->text_bytes);
    }
    struct buf text;
    buf_init(&text, 1 << 16);
    int32_t first = p->n > TAIL ? p->n - TAIL : 0;
    tokenizer_decode(r->model->tok, p->ids + first, (size_t)(p->n - first), false, &text);
    bool opened = reasoning_is_open(r->model->reasoning, or_empty(text.data), text.n_bytes);
    buf_deinit(&text);
    return opened;
}

static bool has_no_reasoning(struct request *r)
{
    return call_error_set(&r->error, 400, "unsupported_value", r->thinking_param,
                          "Unsupported value: '%s' limits reasoning between two markers; this "
                          "server knows none for this model (--reasoning-parser).",
                          r->thinking_param);
}

bool call_model_limits_reasoning(const struct call_model *m)
{
    const struct reasoning_marks *marks = reasoning_marks(m->reasoning);
    return m->tok && (reasoning_channels(m->reasoning) || (marks->opens[0] && marks->closes[0]));
}

bool request_limit_thinking(struct request *r)
{
    const struct call_model *m = r->model;
    const struct reasoning_channels *channels = reasoning_channels(m->reasoning);
    const bool asked = r->thinking_param != NULL;
    const int64_t most = asked ? r->thinking_budget : m->config->reasoning_budget;
    if (most < 0) {
        return true;
    }
    if (!call_model_limits_reasoning(m)) {
        return !asked || r->thinking_is_hint || has_no_reasoning(r);
    }
    struct err err = {""};
    struct thinking_limit l = {.most = (int32_t)most};
    if (grammars_vocabulary(m->grammars, m->tok, m->info, &l.vocab, &err) != OK) {
        return call_error_no_memory(&r->error);
    }
    r->thinking = arena_alloc(&r->arena, r->n_prompts, sizeof *r->thinking);
    if (!r->thinking) {
        return request_too_large(r);
    }
    if (!(channels ? put_channels(r, &l, channels) : put_markers(r, &l))) {
        return false;
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        r->thinking[i] = l;
        r->thinking[i].opened = is_opened(r, &r->prompts[i]);
    }
    return true;
}

/* Log-probabilities and ids would show the reasoning that the client does not want. */
void request_hide_reasoning(struct request *r)
{
    r->hides_metadata = !r->include_reasoning && r->output.reasoning != REASONING_NONE &&
                        call_model_limits_reasoning(r->model);
    if (r->hides_metadata) {
        r->logprobs = r->return_token_ids = r->params.logprobs = false;
        r->n_top = r->params.top_logprobs = 0;
    }
}
