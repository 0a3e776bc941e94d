// SPDX-License-Identifier: Apache-2.0
/* The bodies of the two /derender endpoints. First the answers of /inference/v1/generate are read,
 * or one chunk of its stream. Then the request that they answer takes the place of the body,
 * because its members decide how the text is parsed. */
#include "engine/base/words.h"
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

static bool too_long(struct request *r, const char *where)
{
    return call_error_set(&r->error, 400, "array_above_max_length", where,
                          "Invalid '%s': array too long. This model's maximum context length "
                          "(max_model_len) is %d tokens.",
                          where, r->model->info->max_model_len);
}

static bool no_token(struct request *r, const char *where, int64_t id)
{
    return call_error_set(&r->error, 400, "invalid_value", where,
                          "Invalid '%s': %lld is not a token id of this model.", where,
                          (long long)id);
}

/* Appends a list of ids, each in the vocabulary, to `ids`, which has room for the context. */
static bool add_ids(struct request *r, const char *where, const struct json *list, int32_t *ids,
                    int32_t *n)
{
    if (!json_is(list, JSON_ARRAY)) {
        return missing_or_wrong(r, where, "an array of token ids", list);
    }
    if ((int64_t)json_count(list) + *n > r->model->info->max_model_len) {
        return too_long(r, where);
    }
    for (const struct json *v = json_first(list); v; v = json_next(v)) {
        int64_t id;
        if (!json_int64(v, &id)) {
            return body_wrong_type(&r->error, where, "an array of token ids", v);
        }
        if (id < 0 || id >= r->model->info->vocab) {
            return no_token(r, where, id);
        }
        ids[(*n)++] = (int32_t)id;
    }
    return true;
}

/* In a stream the ids follow those of earlier chunks, and there may be none. */
static bool read_ids(struct request *r, const char *where, const struct json *list,
                     struct derendered_choice *c)
{
    char place[96];
    const struct derender *d = r->derender;
    snprintf(place, sizeof place, "%s.token_ids", where);
    const size_t n = json_is(list, JSON_ARRAY) ? json_count(list) : 0;
    if (n + (size_t)c->n > (size_t)r->model->info->max_model_len) {
        return too_long(r, place);
    }
    int32_t *ids = arena_alloc(&r->arena, n + (size_t)c->n + 1, sizeof *ids);
    if (!ids) {
        return request_too_large(r);
    }
    if (c->n > 0) {
        memcpy(ids, c->ids, (size_t)c->n * sizeof *ids);
    }
    c->ids = ids;
    if (d->streams && json_type(list) == JSON_NULL) {
        return true;
    }
    if (!d->streams && json_is(list, JSON_ARRAY) && n == 0) {
        return call_error_empty(&r->error, place);
    }
    return add_ids(r, place, list, c->ids, &c->n);
}

/* "stop_reason": a text or an id. */
static bool read_stop_reason(struct request *r, const char *where, const struct json *choice,
                             struct derendered_choice *c)
{
    const struct json *stop = json_get(choice, "stop_reason");
    int64_t id;
    if (json_type(stop) == JSON_NULL) {
        return true;
    }
    if (!json_is(stop, JSON_STRING) && !json_int64(stop, &id)) {
        char place[128];
        snprintf(place, sizeof place, "%s.stop_reason", where);
        return body_wrong_type(&r->error, place, "a string or an integer", stop);
    }
    c->stop = stop;
    return true;
}

/* As many entries as the context has tokens, each with as many alternatives as the server allows,
 * besides the token itself. */
static bool read_logprobs(struct request *r, const char *where, const struct json *choice,
                          struct derendered_choice *c)
{
    char place[128];
    const struct json *content = json_get(json_get(choice, "logprobs"), "content");
    const int64_t most = r->model->config->max_logprobs;
    if (!json_is(content, JSON_ARRAY)) {
        return true;
    }
    snprintf(place, sizeof place, "%s.logprobs.content", where);
    if (json_count(content) > (size_t)r->model->info->max_model_len) {
        return too_long(r, place);
    }
    for (const struct json *e = json_first(content); e && most >= 0; e = json_next(e)) {
        if (json_count(json_get(e, "top_logprobs")) > (size_t)most + 1) {
            return call_error_set(
                &r->error, 400, "array_above_max_length", place,
                "Invalid '%s': the top_logprobs count exceeds max_logprobs (%lld).", place,
                (long long)most);
        }
    }
    c->logprobs = content;
    r->derender->has_logprobs = true;
    return true;
}

/* Reads one choice of an engine's answer: why it ended, its index, log-probabilities and tokens. */
static bool read_choice(struct request *r, const char *where, const struct json *choice,
                        struct derendered_choice *c)
{
    int64_t index = 0;
    if (!json_is(choice, JSON_OBJECT)) {
        return body_wrong_type(&r->error, where, "an object", choice);
    }
    const struct json *finish = json_get(choice, "finish_reason");
    if (json_type(finish) != JSON_NULL && !json_is(finish, JSON_STRING)) {
        char place[128];
        snprintf(place, sizeof place, "%s.finish_reason", where);
        return body_wrong_type(&r->error, place, "a string", finish);
    }
    c->finish = json_string(finish);
    if (c->finish && !words_is_id(c->finish, strlen(c->finish))) {
        char place[128];
        snprintf(place, sizeof place, "%s.finish_reason", where);
        return call_error_set(&r->error, 400, "invalid_value", place,
                              "Invalid '%s': expected a word.", place);
    }
    if (!c->finish && !r->derender->streams) {
        c->finish = "stop";
    }
    if (json_int64(json_get(choice, "index"), &index) && index >= 0 && index < MAX_SAMPLES) {
        c->index = (int32_t)index;
    }
    return read_stop_reason(r, where, choice, c) && read_logprobs(r, where, choice, c) &&
           read_ids(r, where, json_get(choice, "token_ids"), c);
}

/* Reads an engine's answer. A stream's chunk has at most one choice, and may have none. */
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
    struct derender *d = r->derender;
    const size_t n = json_count(choices), least = !d->streams;
    const size_t most = d->streams ? 1 : MAX_SAMPLES;
    if (n < least || n > most) {
        return call_error_set(&r->error, 400, "invalid_value", place,
                              "Invalid '%s': expected %zu to %zu choices.", place, least, most);
    }
    if (!d->streams) {
        a->choices = arena_alloc(&r->arena, n, sizeof *a->choices);
    }
    if (!a->choices) {
        return request_too_large(r);
    }
    for (const struct json *c = json_first(choices); c; c = json_next(c)) {
        snprintf(place, sizeof place, "%s.choices[%zu]", where, a->n_choices);
        if (!d->streams) {
            a->choices[a->n_choices] = (struct derendered_choice){0};
        }
        if (!read_choice(r, place, c, &a->choices[a->n_choices++])) {
            return false;
        }
    }
    if (!d->id) {
        d->id = json_get_string(answer, "request_id");
    }
    const struct json *transfer = json_get(answer, "kv_transfer_params");
    if (json_is(transfer, JSON_OBJECT)) {
        d->transfer = transfer;
    }
    const struct json *scores = json_get(answer, "prompt_logprobs");
    if (json_is(scores, JSON_ARRAY)) {
        d->prompt_logprobs = scores;
    }
    const struct json *metrics = json_get(answer, "metrics"),
                      *ids = json_get(answer, "prompt_token_ids");
    if (json_is(metrics, JSON_OBJECT)) {
        d->metrics = metrics;
    }
    a->prompt_ids = json_is(ids, JSON_ARRAY) ? ids : NULL;
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
    *r->derender = (struct derender){.n_top = -1};
    return true;
}

/* A chunk takes the place of whole answers. */
static bool is_chunk(const struct request *r)
{
    return body_has(&r->body, "generate_chunk");
}

static bool refuse_both(struct request *r, const char *whole)
{
    return call_error_set(&r->error, 400, "invalid_value", "generate_chunk",
                          "'%s' and 'generate_chunk' cannot both be given.", whole);
}

bool read_generate_response(struct request *r)
{
    const struct json *answer = NULL;
    if (!begin(r)) {
        return false;
    }
    if (is_chunk(r)) {
        return !body_has(&r->body, "generate_response") || refuse_both(r, "generate_response");
    }
    if (!body_object(&r->body, "generate_response", &answer)) {
        return r->error.status == 0 && call_error_missing(&r->error, "generate_response");
    }
    return read_answers(r, &answer, 1, "generate_response", false);
}

bool read_generate_responses(struct request *r)
{
    const struct json *list = NULL;
    if (!begin(r)) {
        return false;
    }
    if (is_chunk(r)) {
        return !body_has(&r->body, "generate_responses") || refuse_both(r, "generate_responses");
    }
    if (!body_array(&r->body, "generate_responses", &list)) {
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
    struct derender *d = r->derender;
    d->has_n_prompt = body_int(&r->body, "prompt_tokens", 0, INT32_MAX, &n);
    if (d->n_answers > 0) {
        d->answers[0].n_prompt = n;
    }
    return r->error.status == 0;
}

/* True if the list has an item for each answer. */
static bool fits_answers(struct request *r, const char *key, const struct json *list)
{
    const size_t n = r->derender->n_answers;
    return json_count(list) == n ||
           call_error_set(&r->error, 400, "invalid_value", key,
                          "Invalid '%s': expected one for each of the %zu responses "
                          "(generate_responses).",
                          key, n);
}

bool read_prompt_counts(struct request *r)
{
    const struct json *counts = NULL;
    struct derender *d = r->derender;
    if (d->streams) {
        return read_prompt_count(r);
    }
    if (!body_array(&r->body, "prompt_tokens", &counts)) {
        return r->error.status == 0;
    }
    if (!fits_answers(r, "prompt_tokens", counts)) {
        return false;
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

/* The text does not depend on the prompt's ids, but a value that is not a prompt is refused. */
static bool check_prompt_ids(struct request *r, const struct json *list)
{
    static const char key[] = "prompt_token_ids";
    int32_t n = 0;
    int32_t *ids = arena_alloc(&r->arena, json_count(list) + 1, sizeof *ids);
    return ids ? add_ids(r, key, list, ids, &n) : request_too_large(r);
}

bool read_prompt_id_list(struct request *r)
{
    struct id_list *lists;
    size_t n;
    const struct body_member *m = body_get(&r->body, "prompt_token_ids");
    if (!m) {
        return true;
    }
    if (m->node && r->form == FORM_DERENDER && !r->derender->streams) {
        const struct json *list = NULL;
        bool good = body_array(&r->body, "prompt_token_ids", &list) &&
                    fits_answers(r, "prompt_token_ids", list);
        for (const struct json *v = json_first(list); good && v; v = json_next(v)) {
            good = json_is(v, JSON_NULL) || check_prompt_ids(r, v);
        }
        return good;
    }
    if (m->node) { // an empty list; the body keeps other lists of ids without a tree
        return check_prompt_ids(r, m->node);
    }
    if (!body_id_lists(&r->body, "prompt_token_ids", MAX_INPUTS, &lists, &n)) {
        return r->error.status == 0 &&
               body_wrong_type(&r->error, "prompt_token_ids", "an array of token ids", NULL);
    }
    const size_t expected = r->form == FORM_DERENDER ? r->derender->n_answers : 1;
    if (n != expected) {
        return call_error_set(&r->error, 400, "invalid_value", "prompt_token_ids",
                              "Invalid 'prompt_token_ids': expected one list for each of the %zu "
                              "responses (generate_responses).",
                              expected);
    }
    for (size_t i = 0; i < n; i++) {
        if (lists[i].n > (size_t)r->model->info->max_model_len) {
            return too_long(r, "prompt_token_ids");
        }
        for (size_t k = 0; k < lists[i].n; k++) {
            if (lists[i].ids[k] >= r->model->info->vocab) {
                return no_token(r, "prompt_token_ids", lists[i].ids[k]);
            }
        }
    }
    return true;
}

static bool keep_request(struct request *r, const char *key)
{
    const struct json *of = NULL;
    if (body_object(&r->body, key, &of)) {
        const struct body_member *m = body_get(&r->body, key);
        r->derender->of = arena_strndup(&r->arena, m->start, m->n_bytes);
        r->derender->of_bytes = m->n_bytes;
        return r->derender->of || request_too_large(r);
    }
    return r->error.status == 0;
}

bool read_chat_request(struct request *r)
{
    return keep_request(r, "chat_request");
}

bool read_completion_request(struct request *r)
{
    return keep_request(r, "completion_request");
}

/* ---- a chunk of a stream ----------------------------------------------------------------------
 */

/* The ids of earlier chunks. */
static bool read_state(struct request *r, struct derendered_choice *c)
{
    const struct json *state = NULL;
    if (!body_object(&r->body, "stream_state", &state)) {
        return r->error.status == 0;
    }
    const struct json *ids = json_get(state, "output_token_ids");
    c->ids = arena_alloc(&r->arena, json_count(ids) + 1, sizeof *c->ids);
    if (!c->ids) {
        return request_too_large(r);
    }
    r->derender->role_sent = json_get_bool(state, "role_sent", false);
    bool good = add_ids(r, "stream_state.output_token_ids", ids, c->ids, &c->n);
    c->n_before = c->n;
    return good;
}

static bool read_usage(struct request *r, const struct json *chunk)
{
    static const char *const keys[] = {"prompt_tokens", "completion_tokens"};
    struct derender *d = r->derender;
    int64_t *const values[] = {&d->n_usage_prompt, &d->n_usage_answer};
    const struct json *usage = json_get(chunk, "usage");
    d->has_usage = json_is(usage, JSON_OBJECT);
    for (int i = 0; i < 2 && d->has_usage; i++) {
        const struct json *v = json_get(usage, keys[i]);
        if (json_type(v) == JSON_NULL) {
            continue;
        }
        if (!json_int64(v, values[i]) || *values[i] < 0 || *values[i] > INT32_MAX) {
            return body_wrong_type(&r->error, "generate_chunk.usage", "counts of tokens", v);
        }
    }
    return true;
}

bool read_generate_chunk(struct request *r)
{
    const struct json *chunk = NULL;
    bool streams = false;
    struct derender *d = r->derender;
    body_bool(&r->body, "stream", &streams);
    if (!body_object(&r->body, "generate_chunk", &chunk)) {
        return r->error.status == 0 &&
               (!streams || call_error_missing(&r->error, "generate_chunk"));
    }
    d->streams = true;
    d->answers = arena_alloc(&r->arena, 1, sizeof *d->answers);
    struct derendered_choice *c = arena_alloc(&r->arena, 1, sizeof *c);
    if (!d->answers || !c) {
        return request_too_large(r);
    }
    *c = (struct derendered_choice){0};
    d->answers[0] = (struct derendered){.choices = c};
    d->n_answers = 1;
    return read_state(r, c) && read_usage(r, chunk) &&
           read_answer(r, "generate_chunk", chunk, &d->answers[0]);
}

/* ---- the request that is answered --------------------------------------------------------------
 */

static bool has_tokenizer(struct request *r)
{
    return r->model->tok || call_error_set(&r->error, 400, "unsupported_value", NULL,
                                           "This model has no tokenizer: ids have no text.");
}

/* Makes the request the body. */
static bool read_request(struct request *r, unsigned form, void (*begin_form)(struct request *r))
{
    struct derender *d = r->derender;
    d->outer = r->body;
    r->body = (struct body){0};
    if (!body_open(&r->body, (char *)d->of, d->of_bytes, &r->arena, &r->error)) {
        return false;
    }
    r->form = form;
    begin_form(r);
    if (!members_read(r)) {
        return false;
    }
    request_end(r);
    return true;
}

/* Text that was sent cannot be cut when a stop string completes in a later chunk. */
static bool check_stop(struct request *r, const char *key)
{
    return !r->derender->streams || r->output.n_stop == 0 ||
           call_error_set(&r->error, 400, "unsupported_value", key,
                          "Stop strings are not supported when chunks are derendered: use whole "
                          "answers, or the output mode 'text' of /inference/v1/generate.");
}

static void settle(struct request *r)
{
    struct derender *d = r->derender;
    r->n = d->streams ? 1 : (int32_t)d->answers[0].n_choices;
    r->stream = r->verbose = r->timings = r->echo = r->stores = r->old_calls = false;
    r->echoed = NULL;
    r->logprobs = d->has_logprobs && !r->hides_metadata;
}

bool derender_end(struct request *r)
{
    struct derender *d = r->derender;
    if (!has_tokenizer(r)) {
        return false;
    }
    if (d->of && !(read_request(r, FORM_COMPLETIONS, completion_begin) &&
                   check_stop(r, "completion_request.stop"))) {
        return false;
    }
    if (d->of && r->logprobs) {
        d->n_top = r->n_top;
    }
    settle(r);
    return true;
}

/* Without the chat the text cannot be parsed, which is an error if the operator named parsers. */
bool derender_chat_end(struct request *r)
{
    struct derender *d = r->derender;
    if (!has_tokenizer(r)) {
        return false;
    }
    if (!d->of && request_names_parser(r)) {
        return call_error_set(&r->error, 400, "missing_required_parameter", "chat_request",
                              "'chat_request' is required, because this server parses calls or "
                              "reasoning.");
    }
    if (d->of && !(read_request(r, FORM_CHAT, chat_begin) && chat_end(r) &&
                   check_stop(r, "chat_request.stop"))) {
        return false;
    }
    if (d->of && r->logprobs) {
        d->n_top = r->n_top;
    }
    settle(r);
    return true;
}
