// SPDX-License-Identifier: Apache-2.0
/* Bodies of /v1/completions, /v1/embeddings, /tokenize and /detokenize. */
#include "server/call/readers.h"

#include "engine/base/json_scan.h"
#include "engine/base/optional.h"

#include <string.h>

/* Scans to the next string, which the text must have. */
static bool next_text(struct request *r, struct json_scan *sc, struct request_prompt *p)
{
    struct buf text;
    while (json_scan_next(sc) != JSON_TOKEN_STRING) {
    }
    buf_init(&text, sc->text_bytes + 1);
    json_scan_unescape(sc, &text);
    *p = (struct request_prompt){.text_bytes = text.n_bytes};
    if (text.failed) {
        p->text = NULL;
    } else {
        p->text = arena_strndup(&r->arena, or_empty(text.data), text.n_bytes);
    }
    buf_deinit(&text);
    return p->text || request_too_large(r);
}

/* Reads prompts: a text, ids, or a list of either. Ids stay where the scan of the body stored
 * them. */
bool request_read_prompts(struct request *r, const char *key, size_t max_prompts)
{
    const struct body_member *m = body_get(&r->body, key);
    if (!m) {
        return call_error_missing(&r->error, key);
    }
    struct id_list *lists;
    size_t n;
    if (body_id_lists(&r->body, key, max_prompts, &lists, &n)) {
        r->prompts = arena_alloc(&r->arena, n + 1, sizeof r->prompts[0]);
        for (size_t i = 0; r->prompts && i < n; i++) {
            r->prompts[i] = (struct request_prompt){.ids = lists[i].ids, .n = (int32_t)lists[i].n};
        }
        r->n_prompts = n;
        return r->prompts || request_too_large(r);
    }
    if (r->error.status) {
        return false;
    }
    bool list = json_is(m->node, JSON_ARRAY);
    if (!list && !json_is(m->node, JSON_STRING)) {
        return body_wrong_type(&r->error, key, "a string, an array of strings, or token ids",
                               m->node);
    }
    n = list ? json_count(m->node) : 1;
    if (n == 0) {
        return call_error_empty(&r->error, key);
    }
    if (n > max_prompts) {
        return call_error_set(
            &r->error, 400, "array_above_max_length", key,
            "Invalid '%s': array too long. Expected at most %zu items, but got %zu "
            "instead.",
            key, max_prompts, n);
    }
    r->prompts = arena_alloc(&r->arena, n, sizeof r->prompts[0]);
    if (!r->prompts) {
        return request_too_large(r);
    }
    struct json_scan sc; // in step with the tree, because the tree's strings lack U+0000
    json_scan_init(&sc, m->start, m->n_bytes, 8);
    for (const struct json *s = list ? json_first(m->node) : m->node; s;
         s = list ? json_next(s) : NULL) {
        if (json_is(s, JSON_ARRAY) && json_count(s) == 0) {
            return call_error_empty(&r->error, key);
        }
        if (!json_is(s, JSON_STRING)) {
            return body_wrong_type(&r->error, key, "a string", s);
        }
        if (!next_text(r, &sc, &r->prompts[r->n_prompts++])) {
            return false;
        }
    }
    return true;
}

bool request_refuse_empty(struct request *r, const char *key)
{
    for (size_t i = 0; i < r->n_prompts; i++) {
        bool empty;
        if (r->prompts[i].text) {
            empty = r->prompts[i].text_bytes == 0;
        } else {
            empty = r->prompts[i].n == 0;
        }
        if (empty) {
            return call_error_set(&r->error, 400, "invalid_value", key,
                                  "Invalid '%s': it must not be empty.", key);
        }
    }
    return true;
}

/* ---- completions ------------------------------------------------------------------------------
 */

/* Clients send false; it counts as absent. */
bool read_completion_logprobs(struct request *r)
{
    int64_t v;
    const struct body_member *m = body_get(&r->body, "logprobs");
    if (m && json_is(m->node, JSON_BOOL) && !json_bool(m->node, true)) {
        return true;
    }
    if (request_read_share(r, "logprobs", &v)) {
        r->logprobs = true;
        r->n_top = (int32_t)v;
    }
    return true;
}

bool read_prompt(struct request *r)
{
    return request_read_prompts(r, "prompt", (size_t)r->model->config->max_prompts);
}

/* OpenAI's default of 16 tokens, unless the model's configuration has one. */
void completion_begin(struct request *r)
{
    if (r->model->has_default_max_tokens) {
        r->max_tokens = r->model->defaults.max_tokens;
    } else {
        r->max_tokens = 16;
    }
    r->has_max_tokens = true;
    r->add_special = true;
}

/* With echo, logprobs also requests the log probabilities of the prompt. */
bool completion_end(struct request *r)
{
    r->params.logprobs = r->logprobs;
    r->params.top_logprobs = r->n_top;
    if (r->echo && r->logprobs) {
        r->params.prompt_logprobs = true;
        r->params.prompt_top_logprobs = r->n_top;
    }
    if (r->suffix) {
        return request_fill_hole(r);
    }
    return request_refuse_empty(r, "prompt");
}

/* ---- embeddings -------------------------------------------------------------------------------
 */

bool check_dimensions(struct request *r)
{
    const char *key;
    if (r->form == FORM_COHERE_EMBED) {
        key = "output_dimension";
    } else {
        key = "dimensions";
    }
    const int32_t width = r->model->info->pooled_width;
    if (r->dimensions != width) {
        return call_error_set(&r->error, 400, "unsupported_value", key,
                              "This model only supports '%s' of %d.", key, width);
    }
    return true;
}

bool read_embd_normalize(struct request *r)
{
    int64_t v;
    if (!body_int(&r->body, "embd_normalize", -1, INT32_MAX, &v)) {
        return true;
    }
    r->normalize = v == 2;
    if (v == 2 || v == -1) {
        return true;
    }
    return call_error_set(
        &r->error, 400, "unsupported_value", "embd_normalize",
        "Unsupported value: 'embd_normalize' may be 2 (scaled to length 1) or -1 (not scaled).");
}

void embeddings_begin(struct request *r)
{
    r->normalize = r->model->normalize;
    r->add_special = true;
}

bool embeddings_end(struct request *r)
{
    if (r->model->scoring.labels.n > 0) {
        return call_error_set(&r->error, 400, "unsupported_model", "model",
                              "This model is a classifier: it gives scores (/classify, /rerank, "
                              "/score), not embeddings.");
    }
    r->stream = r->params.prompt_logprobs = false; // no token is drawn
    r->params.min_tokens = 0;
    r->n = 1;
    if (r->form & (FORM_EMBEDDINGS | FORM_NATIVE_EMBED)) {
        return true; // empty texts are valid if the tokenizer adds a token: checked later
    }
    const char *key = "input";
    if (r->kind == KIND_COHERE_EMBED) {
        key = "texts";
    } else if (r->kind == KIND_OLLAMA_OLD_EMBED) {
        key = "prompt";
    }
    return request_refuse_empty(r, key);
}

/* ---- the tokenizer ----------------------------------------------------------------------------
 */

static bool no_tokenizer(struct request *r)
{
    return call_error_set(&r->error, 400, "unsupported_model", NULL,
                          "This model has no tokenizer.");
}

/* `content` beside `prompt` has no effect, but must be valid. */
bool read_one_prompt(struct request *r)
{
    const char *unused;
    body_string(&r->body, "content", &unused);
    return r->error.status == 0 && request_read_prompts(r, "prompt", 1);
}

bool read_add_special(struct request *r)
{
    if (!r->has_add_special) {
        body_bool(&r->body, "add_special", &r->add_special);
    }
    return true;
}

/* Two APIs share the route; the member's name tells which. */
void tokenize_begin(struct request *r)
{
    if (body_has(&r->body, "messages")) {
        r->form = FORM_TOKENIZE_CHAT;
        chat_begin(r);
        return;
    }
    r->native_tokens = body_has(&r->body, "content") && !body_has(&r->body, "prompt");
    r->add_special = !r->native_tokens; // llama.cpp's default is false
    if (r->native_tokens) {
        body_rename(&r->body, "content", "prompt"); // llama.cpp's name
    }
}

bool tokenize_end(struct request *r)
{
    bool chat = r->form == FORM_TOKENIZE_CHAT;
    r->stream = false;
    // The answer of apply-template is text, which is not truncated.
    if (r->kind == KIND_APPLY_TEMPLATE) {
        r->truncate = 0;
    }
    return (!chat || chat_end(r)) && (r->model->tok || no_tokenizer(r));
}

bool read_tokens(struct request *r)
{
    struct id_list *lists;
    size_t n;
    const struct body_member *m = body_get(&r->body, "tokens");
    if (!m) {
        return call_error_missing(&r->error, "tokens");
    }
    if (!r->model->tok) {
        return no_tokenizer(r);
    }
    struct id_list none = {NULL, 0};
    if (m->node && (!json_is(m->node, JSON_ARRAY) || json_count(m->node) > 0)) {
        return body_wrong_type(&r->error, "tokens", "an array of integers", m->node);
    }
    if (m->node) {
        lists = &none;
    } else if (m->start[1 + strspn(m->start + 1, " \t\r\n")] == '[') {
        return body_wrong_type(&r->error, "tokens", "an array of integers", NULL);
    } else if (!body_id_lists(&r->body, "tokens", 1, &lists, &n)) {
        if (r->error.status == 0) {
            return body_wrong_type(&r->error, "tokens", "an array of integers", NULL);
        }
        return false;
    }
    for (size_t i = 0; i < lists->n; i++) {
        if (lists->ids[i] >= r->model->info->vocab) {
            return call_error_set(&r->error, 400, "invalid_value", "tokens",
                                  "Invalid 'tokens': token id %d is out of vocabulary.",
                                  lists->ids[i]);
        }
    }
    struct buf text;
    buf_init(&text, 256 << 20);
    tokenizer_decode(r->model->tok, lists->ids, lists->n, false, &text);
    r->detokenized = arena_strndup(&r->arena, or_empty(text.data), text.n_bytes);
    r->detokenized_bytes = text.n_bytes;
    buf_deinit(&text);
    return r->detokenized || request_too_large(r);
}

bool detokenize_end(struct request *r)
{
    r->stream = false;
    return true;
}
