// SPDX-License-Identifier: Apache-2.0
/* The bodies of the two /derender endpoints. The answers of /inference/v1/generate are read first;
 * then the chat that they answer takes the place of the body, so that its members decide, as they
 * do for a chat, how the text is parsed. */
#include "server/call/derender.h"
#include "server/call/members.h"
#include "server/call/readers.h"

#include <stdio.h>
#include <string.h>

static bool missing_or_wrong(struct request *r, const char *where, const char *expected,
                             const struct json *got)
{
    return got ? body_wrong_type(&r->error, where, expected, got)
               : call_error_missing(&r->error, where);
}

/* The ids of a choice: at least one, each in the vocabulary. */
static bool read_ids(struct request *r, const char *where, const struct json *list,
                     struct derendered_choice *c)
{
    char place[96];
    snprintf(place, sizeof place, "%s.token_ids", where);
    if (!json_is(list, JSON_ARRAY)) {
        return missing_or_wrong(r, place, "an array of token ids", list);
    }
    const size_t n = json_count(list), most = (size_t)r->model->info->max_model_len;
    if (n == 0) {
        return call_error_empty(&r->error, place);
    }
    if (n > most) {
        return call_error_set(&r->error, 400, "array_above_max_length", place,
                              "Invalid '%s': array too long. This model's maximum context length "
                              "is %zu tokens.",
                              place, most);
    }
    int32_t *ids = arena_alloc(&r->arena, n, sizeof *ids);
    if (!ids) {
        return request_too_large(r);
    }
    for (const struct json *v = json_first(list); v; v = json_next(v)) {
        int64_t id;
        if (!json_int64(v, &id)) {
            return body_wrong_type(&r->error, place, "an array of token ids", v);
        }
        if (id < 0 || id >= r->model->info->vocab) {
            return call_error_set(&r->error, 400, "invalid_value", place,
                                  "Invalid '%s': %lld is not a token id of this model.", place,
                                  (long long)id);
        }
        ids[c->n++] = (int32_t)id;
    }
    c->ids = ids;
    return true;
}

static bool read_choice(struct request *r, const char *where, const struct json *choice,
                        struct derendered_choice *c)
{
    if (!json_is(choice, JSON_OBJECT)) {
        return body_wrong_type(&r->error, where, "an object", choice);
    }
    const struct json *logprobs = json_get(json_get(choice, "logprobs"), "content");
    const struct json *finish = json_get(choice, "finish_reason");
    if (json_type(finish) != JSON_NULL && !json_is(finish, JSON_STRING)) {
        char place[128];
        snprintf(place, sizeof place, "%s.finish_reason", where);
        return body_wrong_type(&r->error, place, "a string", finish);
    }
    c->finish = json_string(finish);
    if (json_is(logprobs, JSON_ARRAY)) {
        c->logprobs = logprobs;
        r->derender->has_logprobs = true;
    }
    return read_ids(r, where, json_get(choice, "token_ids"), c);
}

static bool read_answer(struct request *r, const char *where, const struct json *answer,
                        struct derendered *a)
{
    char place[96];
    const struct json *choices = json_get(answer, "choices");
    if (!json_is(answer, JSON_OBJECT)) {
        return missing_or_wrong(r, where, "an object", answer);
    }
    snprintf(place, sizeof place, "%s.choices", where);
    if (!json_is(choices, JSON_ARRAY)) {
        return missing_or_wrong(r, place, "an array", choices);
    }
    const size_t n = json_count(choices);
    if (n == 0 || n > MAX_SAMPLES) {
        return call_error_set(&r->error, 400, "invalid_value", place,
                              "Invalid '%s': expected 1 to %d choices.", place, MAX_SAMPLES);
    }
    a->choices = arena_alloc(&r->arena, n, sizeof *a->choices);
    if (!a->choices) {
        return request_too_large(r);
    }
    for (const struct json *c = json_first(choices); c; c = json_next(c)) {
        snprintf(place, sizeof place, "%s.choices[%zu]", where, a->n_choices);
        a->choices[a->n_choices] = (struct derendered_choice){0};
        if (!read_choice(r, place, c, &a->choices[a->n_choices++])) {
            return false;
        }
    }
    struct derender *d = r->derender;
    if (!d->id) {
        d->id = json_get_string(answer, "request_id");
    }
    const struct json *transfer = json_get(answer, "kv_transfer_params");
    d->transfer = json_is(transfer, JSON_OBJECT) ? transfer : d->transfer;
    const struct json *scores = json_get(answer, "prompt_logprobs");
    d->prompt_logprobs = json_is(scores, JSON_ARRAY) ? scores : d->prompt_logprobs;
    return true;
}

static bool read_answers(struct request *r, const struct json *const *answers, size_t n,
                         const char *key, bool listed)
{
    struct derender *d = r->derender;
    d->answers = arena_alloc(&r->arena, n, sizeof *d->answers);
    if (!d->answers) {
        return request_too_large(r);
    }
    const struct json *answer = *answers;
    for (; d->n_answers < n; answer = json_next(answer)) {
        char where[64];
        snprintf(where, sizeof where, listed ? "%s[%zu]" : "%s", key, d->n_answers);
        d->answers[d->n_answers] = (struct derendered){0};
        if (!read_answer(r, where, answer, &d->answers[d->n_answers++])) {
            return false;
        }
    }
    return true;
}

static bool begin(struct request *r)
{
    r->derender = arena_alloc(&r->arena, 1, sizeof *r->derender);
    if (!r->derender) {
        return request_too_large(r);
    }
    *r->derender = (struct derender){0};
    return true;
}

bool read_generate_response(struct request *r)
{
    const struct json *answer = NULL;
    if (!begin(r) || !body_object(&r->body, "generate_response", &answer)) {
        return r->error.status == 0 && call_error_missing(&r->error, "generate_response");
    }
    return read_answers(r, &answer, 1, "generate_response", false);
}

bool read_generate_responses(struct request *r)
{
    const struct json *list = NULL;
    if (!begin(r) || !body_array(&r->body, "generate_responses", &list)) {
        return r->error.status == 0 && call_error_missing(&r->error, "generate_responses");
    }
    const size_t n = json_count(list), most = (size_t)r->model->config->max_prompts;
    if (n == 0) {
        return call_error_empty(&r->error, "generate_responses");
    }
    if (n > most) {
        return call_error_set(&r->error, 400, "array_above_max_length", "generate_responses",
                              "Invalid 'generate_responses': array too long. Expected at most %zu "
                              "items.",
                              most);
    }
    const struct json *first = json_first(list);
    return read_answers(r, &first, n, "generate_responses", true);
}

bool read_prompt_count(struct request *r)
{
    int64_t n = 0;
    body_int(&r->body, "prompt_tokens", 0, INT32_MAX, &n);
    if (r->derender && r->derender->n_answers > 0) {
        r->derender->answers[0].n_prompt = n;
    }
    return r->error.status == 0;
}

bool read_prompt_counts(struct request *r)
{
    const struct json *counts = NULL;
    struct derender *d = r->derender;
    if (!body_array(&r->body, "prompt_tokens", &counts)) {
        return r->error.status == 0;
    }
    if (json_count(counts) != d->n_answers) {
        return call_error_set(&r->error, 400, "invalid_value", "prompt_tokens",
                              "Invalid 'prompt_tokens': expected a number for each of the %zu "
                              "responses.",
                              d->n_answers);
    }
    size_t i = 0;
    for (const struct json *v = json_first(counts); v; v = json_next(v), i++) {
        int64_t n;
        if (!json_int64(v, &n) || n < 0 || n > INT32_MAX) {
            return body_wrong_type(&r->error, "prompt_tokens", "an array of integers from 0", v);
        }
        d->answers[i].n_prompt = n;
    }
    return true;
}

bool read_chat_request(struct request *r)
{
    const struct json *chat = NULL;
    if (body_object(&r->body, "chat_request", &chat)) {
        const struct body_member *m = body_get(&r->body, "chat_request");
        r->derender->chat = arena_strndup(&r->arena, m->start, m->n_bytes);
        r->derender->chat_bytes = m->n_bytes;
        return r->derender->chat || request_too_large(r);
    }
    return r->error.status == 0;
}

bool read_completion_request(struct request *r)
{
    const struct json *of = NULL;
    if (body_object(&r->body, "completion_request", &of)) {
        r->output.skip_special = json_get_bool(of, "skip_special_tokens", r->output.skip_special);
    }
    return r->error.status == 0;
}

static bool has_tokenizer(struct request *r)
{
    return r->model->tok || call_error_set(&r->error, 400, "unsupported_value", NULL,
                                           "This model has no tokenizer: ids have no text.");
}

static void settle(struct request *r)
{
    r->n = (int32_t)r->derender->answers[0].n_choices;
    r->stream = r->verbose = r->timings = r->return_token_ids = r->echo = r->stores = false;
    r->echoed = NULL;
    r->logprobs = r->derender->has_logprobs;
}

bool derender_end(struct request *r)
{
    settle(r);
    return has_tokenizer(r);
}

/* Without the chat the text is not parsed. */
bool derender_chat_end(struct request *r)
{
    struct derender *d = r->derender;
    if (!has_tokenizer(r)) {
        return false;
    }
    if (d->chat) {
        d->outer = r->body;
        r->body = (struct body){0};
        if (!body_open(&r->body, (char *)d->chat, d->chat_bytes, &r->arena, &r->error)) {
            return false;
        }
        r->form = FORM_CHAT;
        chat_begin(r);
        if (!members_read(r)) {
            return false;
        }
        request_end(r);
        if (!chat_end(r)) {
            return false;
        }
    }
    settle(r);
    return true;
}
