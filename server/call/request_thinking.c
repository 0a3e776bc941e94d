// SPDX-License-Identifier: Apache-2.0
/* The limit of an answer's reasoning (engine/thinking.h): how many tokens a request or the server
 * allows, the markers by which the reasoning is recognised, and what is forced when it is over. */
#include "server/call/readers.h"

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

bool read_reasoning_budget_message(struct request *r)
{
    body_string(&r->body, "reasoning_budget_message", &r->thinking_message);
    return r->error.status == 0;
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

/* The text that ends the reasoning: a message, if there is one, and the model's own marker. */
static bool put_end(struct request *r, struct thinking_limit *l, const char *close)
{
    const char *message = r->thinking_message;
    const char *own = message ? NULL : configured_end(r);
    if (!message) {
        message = r->model->config->reasoning_budget_message;
    }
    struct text_span spans[] = {{or_empty(message), strlen(or_empty(message)), true},
                                {close, strlen(close), false}};
    if (own && strstr(own, close)) {
        spans[0] = (struct text_span){own, strlen(own), false};
        spans[1].n_bytes = 0;
    }
    struct ids ids;
    ids_init(&ids, 1 << 16);
    struct tokenizer_flags flags = {.add_special = false, .parse_special = true};
    enum status st = tokenizer_encode(r->model->tok, spans, 2, flags, &ids, NULL);
    int32_t *copy = arena_alloc(&r->arena, ids.n + 1, sizeof *copy);
    if (st == OK && copy) {
        memcpy(copy, ids.v, ids.n * sizeof *copy);
        l->end = copy;
        l->n_end = (int32_t)ids.n;
    }
    ids_deinit(&ids);
    return (st == OK && copy && l->n_end > 0) || request_too_large(r);
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

bool request_limit_thinking(struct request *r)
{
    const struct call_model *m = r->model;
    const struct reasoning_marks *marks = reasoning_marks(m->reasoning);
    const bool asked = r->thinking_param != NULL;
    const int64_t most = asked ? r->thinking_budget : m->config->reasoning_budget;
    if (most < 0) {
        return true;
    }
    if (!m->tok || !marks->opens[0] || !marks->closes[0]) {
        return !asked || has_no_reasoning(r);
    }
    struct err err = {""};
    struct thinking_limit l = {.most = (int32_t)most};
    if (grammars_vocabulary(m->grammars, m->tok, m->info, &l.vocab, &err) != OK) {
        return call_error_no_memory(&r->error);
    }
    l.n_opens = put_marks(r, marks->opens, l.opens, 0);
    l.n_closes = put_marks(r, marks->closes, l.closes, 0);
    l.n_closes = put_marks(r, m->parser ? m->parser->ends_reasoning : NULL, l.closes, l.n_closes);
    r->thinking = arena_alloc(&r->arena, r->n_prompts, sizeof *r->thinking);
    if (!r->thinking || !put_end(r, &l, marks->closes[0])) {
        return request_too_large(r);
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        r->thinking[i] = l;
        r->thinking[i].opened = is_opened(r, &r->prompts[i]);
    }
    return true;
}
