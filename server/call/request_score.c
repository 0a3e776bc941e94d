// SPDX-License-Identifier: Apache-2.0
/* The bodies of /v1/score and /v1/rerank: pairs of texts. A classifier with one class reads each
 * pair as one prompt. So does a model that answers yes or no, where the log probabilities of both
 * answers are read from the logits after it. With other models, each text becomes a vector. */
#include "engine/base/optional.h"
#include "engine/base/words.h"
#include "server/call/readers.h"

#include <stdio.h>
#include <string.h>

struct texts {
    struct scored_text *items;
    size_t n;
};

/* ---- texts --------------------------------------------------------------------------------------
 */

static bool keep(struct request *r, struct scored_text *t, const char *string)
{
    t->text = body_text(&r->body, string, &t->n_bytes);
    return t->text || request_too_large(r);
}

/* {"content": [{"type": "text", "text": ...}, ...]} as one text. */
static bool keep_parts(struct request *r, struct scored_text *t, const struct json *parts,
                       const char *key)
{
    struct buf all;
    buf_init(&all, 64 << 20);
    bool good = true;
    for (const struct json *p = json_first(parts); good && p; p = json_next(p)) {
        const char *type = json_get_string(p, "type"), *text = json_get_string(p, "text");
        good = text && (!type || strcmp(type, "text") == 0);
        if (good) {
            buf_puts(&all, text);
        }
    }
    if (!good || !json_first(parts)) {
        buf_deinit(&all);
        return call_error_set(&r->error, 400, "unsupported_value", key,
                              "Unsupported value: content parts of '%s' may only be texts.", key);
    }
    const char *copy = NULL;
    if (!all.failed) {
        copy = arena_strndup(&r->arena, all.data, all.n_bytes);
    }
    buf_deinit(&all);
    if (copy) {
        return keep(r, t, copy);
    }
    return request_too_large(r);
}

/* A text, or an object with one. */
static bool keep_text(struct request *r, struct scored_text *t, const struct json *node,
                      const char *key)
{
    const struct json *content = json_get(node, "content");
    const char *text = json_string(node);
    if (!text) {
        text = json_get_string(node, "text");
    }
    if (!text) {
        text = json_string(content);
    }
    if (text) {
        return keep(r, t, text);
    }
    if (json_is(content, JSON_ARRAY)) {
        return keep_parts(r, t, content, key);
    }
    return body_wrong_type(&r->error, key, "a string or an object with a text", node);
}

/* Reads one text or several. False without an error: the member is absent. */
static bool read_texts(struct request *r, const char *key, struct texts *out)
{
    const struct body_member *m = body_get(&r->body, key);
    if (!m) {
        return false;
    }
    bool list = json_is(m->node, JSON_ARRAY);
    size_t n = list ? json_count(m->node) : 1;
    if (n == 0) {
        return call_error_empty(&r->error, key);
    }
    if (n > MAX_INPUTS) {
        return call_error_set(
            &r->error, 400, "array_above_max_length", key,
            "Invalid '%s': array too long. Expected at most %d items, but got %zu "
            "instead.",
            key, MAX_INPUTS, n);
    }
    out->items = arena_alloc(&r->arena, n, sizeof out->items[0]);
    if (!out->items) {
        return request_too_large(r);
    }
    const struct json *v = list ? json_first(m->node) : m->node;
    for (; v; v = list ? json_next(v) : NULL) {
        if (!keep_text(r, &out->items[out->n++], v, key)) {
            return false;
        }
    }
    return true;
}

static void take(struct request *r, const struct texts *queries, const struct texts *documents)
{
    r->queries = queries->items;
    r->n_queries = queries->n;
    r->documents = documents->items;
    r->n_documents = documents->n;
}

/* Checks that the texts are given under one name only: of the names in `all`, the body may have
 * those in `these`. */
static bool only_these(struct request *r, const char *all, const char *these)
{
    for (size_t i = 0; i < r->body.n_members; i++) {
        const char *key = r->body.members[i].key;
        if (words_find(all, key) >= 0 && words_find(these, key) < 0 && body_has(&r->body, key)) {
            return call_error_set(&r->error, 400, "invalid_value", key,
                                  "Invalid '%s': it is also given under another name.", key);
        }
    }
    return true;
}

/* One query; the documents are compared with it. */
bool read_documents(struct request *r)
{
    struct texts query = {NULL, 0}, documents = {NULL, 0};
    if (!read_texts(r, "query", &query)) {
        return r->error.status == 0 && call_error_missing(&r->error, "query");
    }
    if (query.n != 1) {
        return call_error_set(&r->error, 400, "invalid_value", "query",
                              "Invalid 'query': expected one text.");
    }
    r->bare_list = !body_has(&r->body, "documents") && body_has(&r->body, "texts");
    if (r->bare_list && !body_has(&r->body, "return_documents")) { // in TEI's list on request only
        r->returns_documents &= body_has(&r->body, "return_text");
    }
    if (!only_these(r, "documents|texts", r->bare_list ? "texts" : "documents")) {
        return false;
    }
    if (!read_texts(r, r->bare_list ? "texts" : "documents", &documents)) {
        return r->error.status == 0 && call_error_missing(&r->error, "documents");
    }
    take(r, &query, &documents);
    return true;
}

/* Reads both lists of texts, for which vLLM has four pairs of names. */
bool read_score_texts(struct request *r)
{
    static const char *const names[][2] = {
        {"queries", "documents"}, {"queries", "items"}, {"text_1", "text_2"}, {"data_1", "data_2"}};
    struct texts queries = {NULL, 0}, documents = {NULL, 0};
    size_t i = 0, n = sizeof names / sizeof names[0];
    while (i < n && !(body_has(&r->body, names[i][0]) && body_has(&r->body, names[i][1]))) {
        i++;
    }
    if (i == n) {
        bool first = body_has(&r->body, "text_1");
        return call_error_missing(&r->error, first ? "text_2" : "text_1");
    }
    char these[32];
    snprintf(these, sizeof these, "%s|%s", names[i][0], names[i][1]);
    if (!only_these(r, "queries|documents|items|text_1|text_2|data_1|data_2", these) ||
        !read_texts(r, names[i][0], &queries) || !read_texts(r, names[i][1], &documents)) {
        return false;
    }
    if (queries.n != 1 && queries.n != documents.n) {
        return call_error_set(&r->error, 400, "invalid_value", names[i][0],
                              "Invalid '%s': expected one text, or as many as in '%s', which are "
                              "%zu.",
                              names[i][0], names[i][1], documents.n);
    }
    take(r, &queries, &documents);
    return true;
}

/* ---- texts that are too long ----------------------------------------------------------------- */

/* Truncates a text to its first `most` tokens; the result is text again. */
static bool cut(struct request *r, struct scored_text *t, int64_t most)
{
    struct ids ids;
    struct text_span span = {t->text, t->n_bytes, true};
    struct tokenizer_flags flags = {.add_special = false, .parse_special = false};
    ids_init(&ids, (size_t)most + 1);
    enum status st = tokenizer_encode(r->model->tok, &span, 1, flags, &ids, NULL);
    bool good = true;
    if (st == ERR_LIMIT || (st == OK && ids.n > (size_t)most)) {
        struct buf text;
        buf_init(&text, 64 << 20);
        tokenizer_decode(r->model->tok, ids.v, (size_t)most, false, &text);
        t->n_bytes = text.n_bytes;
        if (text.failed) {
            t->text = NULL;
        } else {
            t->text = arena_strndup(&r->arena, or_empty(text.data), text.n_bytes);
        }
        good = t->text || request_too_large(r);
        buf_deinit(&text);
    }
    ids_deinit(&ids);
    return good;
}

/* Texts are truncated by tokens before they are put into a prompt. */
static bool cut_all(struct request *r)
{
    for (size_t i = 0; i < r->n_queries && r->max_query_tokens > 0; i++) {
        if (!cut(r, &r->queries[i], r->max_query_tokens)) {
            return false;
        }
    }
    for (size_t i = 0; i < r->n_documents && r->max_doc_tokens > 0; i++) {
        if (!cut(r, &r->documents[i], r->max_doc_tokens)) {
            return false;
        }
    }
    return true;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static void put_message(struct buf *b, const char *role, const struct scored_text *t)
{
    buf_printf(b, "{\"role\":\"%s\",\"content\":", role);
    buf_put_json(b, t->text, t->n_bytes);
    buf_putc(b, '}');
}

/* The prompt of a pair, with the provenance of its parts. */
static bool render_pair(struct request *r, const char *messages, size_t n_bytes,
                        struct request_prompt *p)
{
    struct err err = {""};
    struct chat_output out;
    struct chat_input in = {.messages_json = messages,
                            .messages_bytes = n_bytes,
                            .kwargs_json = r->kwargs,
                            .kwargs_bytes = r->kwargs_bytes,
                            .raw = true,
                            .local_us = chat_clock_us()};
    if (chat_template_render(r->model->scoring.pair, &in, &out, &err) != OK) {
        return call_error_set(&r->error, 400, "invalid_messages", NULL, "%s", err.text);
    }
    char *text = arena_strndup(&r->arena, out.text, out.n_bytes);
    struct text_span *spans = arena_alloc(&r->arena, out.n_spans + 1, sizeof spans[0]);
    for (size_t i = 0; text && spans && i < out.n_spans; i++) {
        spans[i] = out.spans[i];
        spans[i].text = text + (out.spans[i].text - out.text);
    }
    *p = (struct request_prompt){
        .text = text, .text_bytes = out.n_bytes, .spans = spans, .n_spans = out.n_spans};
    chat_output_deinit(&out);
    return (text && spans) || request_too_large(r);
}

/* A prompt per pair, by the model's template. */
static bool make_pairs(struct request *r)
{
    struct buf messages;
    bool good = true;
    buf_init(&messages, 64 << 20);
    for (size_t i = 0; good && i < r->n_documents; i++) {
        buf_clear(&messages);
        buf_putc(&messages, '[');
        put_message(&messages, "query", &r->queries[r->n_queries == 1 ? 0 : i]);
        buf_putc(&messages, ',');
        put_message(&messages, "document", &r->documents[i]);
        buf_putc(&messages, ']');
        if (!messages.failed) {
            good = render_pair(r, messages.data, messages.n_bytes, &r->prompts[i]);
        } else {
            good = request_too_large(r);
        }
        r->n_prompts++;
    }
    buf_deinit(&messages);
    return good;
}

/* Vectors of texts need no template. */
static bool put_prompt(struct request *r, const struct scored_text *t, const char *key)
{
    if (t->n_bytes == 0) {
        return call_error_set(&r->error, 400, "invalid_value", key,
                              "Invalid '%s': it must not be empty.", key);
    }
    r->prompts[r->n_prompts++] = (struct request_prompt){.text = t->text, .text_bytes = t->n_bytes};
    return true;
}

/* One prompt for each text: the queries, then the documents. */
static bool make_texts(struct request *r)
{
    const char *keys[] = {"query", "documents"};
    for (size_t i = 0; i < r->n_queries; i++) {
        if (!put_prompt(r, &r->queries[i], keys[0])) {
            return false;
        }
    }
    for (size_t i = 0; i < r->n_documents; i++) {
        if (!put_prompt(r, &r->documents[i], keys[1])) {
            return false;
        }
    }
    return true;
}

/* One prompt for each pair, which the tokenizer puts together. */
static bool make_prompts_of_two(struct request *r)
{
    if (r->model->scoring.labels.n > 1) {
        return call_error_set(&r->error, 400, "unsupported_model", "model",
                              "This model classifies texts into %d classes, so it cannot score "
                              "pairs: use /classify.",
                              r->model->scoring.labels.n);
    }
    for (size_t i = 0; i < r->n_documents; i++) {
        const struct scored_text *query = &r->queries[r->n_queries == 1 ? 0 : i];
        const struct scored_text *document = &r->documents[i];
        r->prompts[r->n_prompts++] = (struct request_prompt){.text = query->text,
                                                             .text_bytes = query->n_bytes,
                                                             .second = document->text,
                                                             .second_bytes = document->n_bytes};
    }
    return true;
}

/* Draws one sample per answer from the same logits; each sample is allowed only its own token, so
 * its log-probability is that of the answer. */
void request_ask_each(struct request *r, const int32_t *answers, int32_t n)
{
    r->params = sampling_params_default();
    r->params.temperature = 0;
    r->params.max_tokens = 1;
    r->params.num_speculative_tokens = 0;
    r->params.logprobs = true;
    r->params.allowed = answers;
    r->params.n_allowed = n;
    r->params.allowed_each = true;
    r->n = n;
    r->max_tokens = 1;
    r->has_max_tokens = true;
}

void score_begin(struct request *r)
{
    r->generates = r->model->scoring.judges;
    r->pools = !r->generates;
    r->add_special = r->pools; // a template writes the special tokens
    r->activates = r->returns_documents = true;
}

bool score_end(struct request *r)
{
    size_t n = r->n_queries + r->n_documents;
    if (!r->model->tok) {
        return call_error_set(&r->error, 400, "unsupported_model", "model",
                              "This model has no tokenizer, so it cannot score texts.");
    }
    r->prompts = arena_alloc(&r->arena, n, sizeof r->prompts[0]);
    if (!r->prompts) {
        return request_too_large(r);
    }
    if (!cut_all(r)) {
        return false;
    }
    if (r->model->scoring.labels.n > 0) {
        return make_prompts_of_two(r);
    }
    if (r->pools) {
        return make_texts(r);
    }
    request_ask_each(r, r->model->scoring.answers, 2);
    return make_pairs(r);
}

/* The template's variables: the request's, and the instruction, which is a separate member. */
bool read_instruction(struct request *r)
{
    const char *instruction = NULL;
    const struct json *own = NULL;
    struct buf out;
    bool said = body_string(&r->body, "instruction", &instruction);
    bool has_own = body_object(&r->body, "chat_template_kwargs", &own);
    if (r->error.status != 0 || !(said || has_own)) {
        return r->error.status == 0;
    }
    const struct body_member *kwargs = NULL;
    if (has_own) {
        kwargs = body_get(&r->body, "chat_template_kwargs");
    }
    buf_init(&out, 16 << 20);
    buf_putc(&out, '{');
    if (said) {
        buf_puts(&out, "\"instruction\":");
        size_t n;
        const char *text = body_text(&r->body, instruction, &n);
        buf_put_json(&out, or_empty(text), n);
    }
    const char *open = NULL;
    if (kwargs) {
        open = memchr(kwargs->start, '{', kwargs->n_bytes);
    }
    if (open && json_count(own) > 0) { // the last of equal keys counts
        if (said) {
            buf_puts(&out, ",");
        }
        buf_put(&out, open + 1, kwargs->n_bytes - (size_t)(open + 1 - kwargs->start));
    } else {
        buf_putc(&out, '}');
    }
    if (out.failed) {
        r->kwargs = NULL;
    } else {
        r->kwargs = arena_strndup(&r->arena, out.data, out.n_bytes);
    }
    r->kwargs_bytes = out.n_bytes;
    buf_deinit(&out);
    return r->kwargs || request_too_large(r);
}
