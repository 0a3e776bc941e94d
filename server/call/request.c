// SPDX-License-Identifier: Apache-2.0
/* Members that several bodies have: the model, stop strings and ids, penalties, streaming;
 * and the beginning and end of a request. */
#include "engine/schedule/request.h"
#include "server/call/adapters.h"
#include "server/call/derender.h"
#include "server/call/readers.h"

#include "engine/base/minmax.h"
#include "engine/base/words.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An arbitrary limit, which is low because the loop, which serves all requests, searches for each
 * stop string after each token. */
enum { MAX_STOP_BYTES = 1 << 10 };

bool request_too_large(struct request *r)
{
    return call_error_set(&r->error, 413, "request_too_large", NULL, "Request too large.");
}

/* OpenAI's limit, for tools of all APIs. */
bool request_check_n_tools(struct request *r, const char *key, size_t n)
{
    enum { MAX_TOOLS = 128 }; // OpenAI's limit
    if (n <= MAX_TOOLS) {
        return true;
    }
    return call_error_set(&r->error, 400, "array_above_max_length", key,
                          "Invalid '%s': array too long. Expected at most %d items, but got "
                          "%zu instead.",
                          key, MAX_TOOLS, n);
}

/* The model's name is looked up before anything else is read. */
bool read_model(struct request *r)
{
    const char *name = NULL;
    body_string(&r->body, "model", &name);
    bool tagged = (r->form & (FORM_OLLAMA_CHAT | FORM_OLLAMA_GENERATE | FORM_OLLAMA_EMBED)) != 0;
    r->model_name = call_model_take(r->model, name, tagged, &r->adapter);
    if (!r->model_name) {
        return call_error_set(&r->error, 404, "model_not_found", "model",
                              "The model `%.100s` does not exist or you do not have access to it.",
                              name);
    }
    return r->error.status == 0;
}

/* ---- sampling ---------------------------------------------------------------------------------
 */

bool check_top_k(struct request *r)
{
    r->params.top_k = greater(0, r->params.top_k);
    return true;
}

/* As in vLLM, llama.cpp and Ollama, a seed of -1 asks for a random one. */
bool check_seed(struct request *r)
{
    if (r->params.seed == UINT64_MAX) {
        r->params.seed = r->seed;
    }
    return true;
}

/* An empty string would end every answer at once. */
static bool put_stop(struct request *r, const char *key, const char **stops, size_t *lengths,
                     const char *text)
{
    size_t n;
    text = body_text(&r->body, text, &n);
    if (!text) {
        return request_too_large(r);
    }
    if (n == 0) {
        return call_error_set(&r->error, 400, "invalid_value", key,
                              "Invalid '%s': a stop string must not be empty.", key);
    }
    if (n > MAX_STOP_BYTES) {
        return call_error_set(&r->error, 400, "string_above_max_length", key,
                              "Invalid '%s': string too long. Expected a stop string of at most %d "
                              "bytes, but got one of %zu bytes instead.",
                              key, MAX_STOP_BYTES, n);
    }
    lengths[r->output.n_stop] = n;
    stops[r->output.n_stop++] = text;
    return true;
}

/* A string or an array of them, limited in number and length. */
static bool read_stops(struct request *r, const char *key)
{
    const struct body_member *m = body_get(&r->body, key);
    if (!m) {
        return true;
    }
    size_t n = json_is(m->node, JSON_ARRAY) ? json_count(m->node) : 1;
    size_t most = (size_t)r->model->config->max_stop;
    if (n > most) {
        return call_error_set(&r->error, 400, "array_above_max_length", key,
                              "Invalid '%s': array too long. Expected at most %zu items, but got "
                              "%zu instead.",
                              key, most, n);
    }
    if (n > 0 && !r->model->tok) {
        return call_error_set(&r->error, 400, "unsupported_value", key,
                              "This model has no tokenizer: '%s' strings cannot be found; use "
                              "'stop_token_ids'.",
                              key);
    }
    const char **stops = arena_alloc(&r->arena, n + 1, sizeof stops[0]);
    size_t *lengths = arena_alloc(&r->arena, n + 1, sizeof lengths[0]);
    if (!stops || !lengths) {
        return request_too_large(r);
    }
    r->output.stop = stops;
    r->output.stop_bytes = lengths;
    if (json_is(m->node, JSON_STRING)) {
        return put_stop(r, key, stops, lengths, json_string(m->node));
    }
    if (!json_is(m->node, JSON_ARRAY)) {
        return body_wrong_type(&r->error, key, "a string or an array of strings", m->node);
    }
    for (const struct json *s = json_first(m->node); s; s = json_next(s)) {
        if (!json_is(s, JSON_STRING)) {
            return body_wrong_type(&r->error, key, "a string", s);
        }
        if (!put_stop(r, key, stops, lengths, json_string(s))) {
            return false;
        }
    }
    return true;
}

bool read_stop(struct request *r)
{
    return read_stops(r, "stop");
}

bool read_stop_sequences(struct request *r)
{
    return read_stops(r, "stop_sequences");
}

static bool bad_id(struct request *r, const char *key, const char *what)
{
    return call_error_set(&r->error, 400, "invalid_value", key,
                          "Invalid '%s': token id %.40s is out of vocabulary.", key, what);
}

/* An array of ids within the vocabulary; *n is 0 if the member is absent. */
static bool read_ids(struct request *r, const char *key, size_t extra, int32_t **ids, int32_t *n)
{
    const struct json *array = NULL;
    *n = 0;
    *ids = NULL;
    if (!body_array(&r->body, key, &array) && r->error.status) {
        return false;
    }
    size_t count = json_count(array);
    if (array && count == 0 && strcmp(key, "allowed_token_ids") == 0) {
        return call_error_empty(&r->error, key);
    }
    *ids = arena_alloc(&r->arena, count + extra + 1, sizeof **ids);
    if (!*ids) {
        return request_too_large(r);
    }
    for (const struct json *v = json_first(array); v; v = json_next(v)) {
        int64_t id;
        if (!json_int64(v, &id)) {
            return body_wrong_type(&r->error, key, "an array of token ids", v);
        }
        if (id < 0 || id >= r->model->info->vocab) {
            char text[32];
            snprintf(text, sizeof text, "%" PRId64, id);
            return bad_id(r, key, text);
        }
        (*ids)[(*n)++] = (int32_t)id;
    }
    return true;
}

/* The model's own end tokens are added, unless ignore_eos. */
bool read_stop_ids(struct request *r)
{
    const struct engine_info *info = r->model->info;
    int32_t *ids, n;
    if (!read_ids(r, "stop_token_ids", (size_t)info->n_eos, &ids, &n)) {
        return false;
    }
    if (!r->params.ignore_eos) {
        for (int32_t i = 0; i < info->n_eos; i++) {
            ids[n++] = info->eos[i];
        }
    }
    if (n > MAX_STOP_IDS) {
        return call_error_set(
            &r->error, 400, "array_above_max_length", "stop_token_ids",
            "Invalid 'stop_token_ids': array too long. Expected at most %d items.",
            MAX_STOP_IDS - info->n_eos);
    }
    r->params.stop_ids = ids;
    r->params.n_stop_ids = n;
    return true;
}

/* Each word is banned as given and with a leading space, as it appears within text. */
bool read_bad_words(struct request *r)
{
    const struct json *words = NULL;
    if (!body_array(&r->body, "bad_words", &words)) {
        return r->error.status == 0;
    }
    if (!r->model->tok || json_count(words) > MAX_BAD_WORDS / 2) {
        return call_error_set(&r->error, 400, "array_above_max_length", "bad_words",
                              "Invalid 'bad_words': expected at most %d words.", MAX_BAD_WORDS / 2);
    }
    int32_t *lengths = arena_alloc(&r->arena, MAX_BAD_WORDS, sizeof lengths[0]);
    int32_t *tokens = arena_alloc(&r->arena, MAX_BAD_TOKENS, sizeof tokens[0]);
    if (!lengths || !tokens) {
        return request_too_large(r);
    }
    int32_t n = 0, n_tokens = 0;
    for (const struct json *w = json_first(words); w; w = json_next(w)) {
        const char *text = json_string(w);
        size_t n_bytes;
        if (!text || !*text) {
            return body_wrong_type(&r->error, "bad_words", "an array of non-empty strings", w);
        }
        text = body_text(&r->body, text, &n_bytes);
        if (!text) {
            return request_too_large(r);
        }
        for (int spaced = 0; spaced < 2; spaced++) {
            struct ids ids;
            ids_init(&ids, MAX_BAD_TOKENS);
            struct text_span spans[2] = {{" ", spaced, true}, {text, n_bytes, true}};
            enum status st = tokenizer_encode(r->model->tok, spans, 2,
                                              (struct tokenizer_flags){false, false}, &ids, NULL);
            bool fits = st == OK && n_tokens + (int32_t)ids.n <= MAX_BAD_TOKENS;
            if (fits && ids.n > 0) {
                memcpy(tokens + n_tokens, ids.v, ids.n * sizeof tokens[0]);
                n_tokens += (int32_t)ids.n;
                lengths[n++] = (int32_t)ids.n;
            }
            ids_deinit(&ids);
            if (!fits) {
                return call_error_set(&r->error, 400, "array_above_max_length", "bad_words",
                                      "Invalid 'bad_words': too many tokens.");
            }
        }
    }
    r->params.n_bad_words = n;
    r->params.bad_word_lengths = lengths;
    r->params.bad_word_tokens = tokens;
    return true;
}

bool read_allowed(struct request *r)
{
    int32_t *ids;
    bool good = read_ids(r, "allowed_token_ids", 0, &ids, &r->params.n_allowed);
    r->params.allowed = ids;
    return good;
}

static bool has_penalties(const struct request *r)
{
    const struct sampling_params *p = &r->params;
    return p->repetition_penalty != 1 || p->frequency_penalty != 0 || p->presence_penalty != 0;
}

/* The last tokens that penalties consider; 0 turns them off. */
bool read_repeat_window(struct request *r)
{
    struct sampling_params *p = &r->params;
    int64_t v;
    if (!body_int(&r->body, "repeat_last_n", -1, INT32_MAX, &v) || v == -1 || !has_penalties(r)) {
        return true;
    }
    if (v == 0) {
        p->repetition_penalty = 1;
        p->frequency_penalty = p->presence_penalty = 0;
    } else {
        r->repeat_window = v;
    }
    return true;
}

/* Penalties always cover the whole text, so a window is refused unless no answer to this prompt
 * exceeds it. Where nothing is generated, the answer may fill the context. */
bool request_check_window(struct request *r, const struct request_prompt *p)
{
    const bool counts_prompt = r->params.repetition_penalty != 1;
    int64_t most = r->generates ? p->max_tokens : r->model->info->max_model_len - p->n;
    if (counts_prompt) {
        most += p->n;
    }
    if (r->repeat_window == 0 || most <= r->repeat_window) {
        return true;
    }
    return call_error_set(&r->error, 400, "unsupported_value", "repeat_last_n",
                          "Unsupported value: penalties consider the whole text, here up to %lld "
                          "tokens; 'repeat_last_n' may be at least that, -1, or 0 to turn them "
                          "off.",
                          (long long)most);
}

/* llama.cpp can leave line ends out of penalties; here that is possible only without penalties. */
bool read_penalize_nl(struct request *r)
{
    bool v;
    if (!body_bool(&r->body, "penalize_nl", &v) || v || !has_penalties(r)) {
        return true;
    }
    return call_error_set(
        &r->error, 400, "unsupported_value", "penalize_nl",
        "Unsupported value: penalties apply to all tokens; 'penalize_nl' may only "
        "be true.");
}

/* best_of must be 1 or n: with other values, answers would have to be discarded. */
bool check_best_of(struct request *r)
{
    if (r->best_of == 1 || r->best_of == r->n) {
        return true;
    }
    return call_error_set(&r->error, 400, "unsupported_value", "best_of",
                          "'best_of' is only supported when it is 1 or equals 'n'.");
}

/* A number of log-probabilities, at most the vocabulary's size; -1 stands for all. */
bool request_read_share(struct request *r, const char *key, int64_t *v)
{
    const int64_t vocab = r->model->info->vocab, most = r->model->config->max_logprobs;
    const bool any = most < 0 || most >= vocab;
    if (!body_int(&r->body, key, -1, any ? INT32_MAX : most, v)) {
        return false;
    }
    if (*v < 0 && !any) {
        return call_error_set(&r->error, 400, "integer_below_min_value", key,
                              "Invalid '%s': -1 asks for the log probabilities of the whole "
                              "vocabulary, which this server gives only with --max-logprobs -1. "
                              "Expected a value from 0 to %lld.",
                              key, (long long)most);
    }
    if (*v < 0 || *v > vocab) {
        *v = vocab;
    }
    return true;
}

/* The tokens replace the likeliest ones as alternatives. */
bool read_logprob_ids(struct request *r)
{
    const int64_t most = r->model->config->max_logprobs;
    int32_t *ids, n = 0;
    if (!read_ids(r, "logprob_token_ids", 0, &ids, &n)) {
        return false;
    }
    if (n > 0 && most >= 0 && n > most) {
        return call_error_set(&r->error, 400, "array_above_max_length", "logprob_token_ids",
                              "Invalid 'logprob_token_ids': array too long. Expected at most %lld "
                              "ids (--max-logprobs), but got %d instead.",
                              (long long)most, n);
    }
    if (n > 0) {
        r->logprobs = true;
        r->n_top = n;
        r->params.logprob_ids = ids;
    }
    return true;
}

bool check_prompt_logprobs(struct request *r)
{
    r->params.prompt_logprobs = true;
    return true;
}

/* ---- other members --------------------------------------------------------------------------- */

/* A boolean member of an object that is itself a member; if absent or null *v is unchanged. */
static bool read_flag(struct request *r, const struct json *object, const char *parent,
                      const char *key, bool *v)
{
    const struct json *node = json_get(object, key);
    char where[96];
    if (json_type(node) == JSON_NULL) {
        return true;
    }
    if (!json_is(node, JSON_BOOL)) {
        snprintf(where, sizeof where, "%s.%s", parent, key);
        return body_wrong_type(&r->error, where, "a boolean", node);
    }
    *v = json_bool(node, false);
    return true;
}

/* stream_options without stream is an error, as in OpenAI's API. */
bool read_stream_options(struct request *r)
{
    const struct json *options = NULL;
    bool forced = r->model->config->enable_force_include_usage; // in every chunk, as in vLLM
    r->include_usage = r->continuous_usage = forced;
    if (body_object(&r->body, "stream_options", &options)) {
        if (!r->stream) {
            return call_error_set(&r->error, 400, "invalid_value", "stream_options",
                                  "The 'stream_options' parameter is only allowed when 'stream' is "
                                  "enabled.");
        }
        bool usage = false;
        if (!read_flag(r, options, "stream_options", "include_usage", &usage) ||
            !read_flag(r, options, "stream_options", "continuous_usage_stats",
                       &r->continuous_usage)) {
            return false;
        }
        r->include_usage |= usage;
        r->continuous_usage &= r->include_usage; // has no effect on its own, as in vLLM
        r->continuous_usage |= forced;
    }
    if (r->stream && r->params.prompt_logprobs) {
        return call_error_set(&r->error, 400, "invalid_value", "prompt_logprobs",
                              "'prompt_logprobs' is not available when 'stream' is enabled.");
    }
    return r->error.status == 0;
}

/* request_id follows the rules for the header, since it becomes part of ids, log lines and a
 * header. */
bool check_request_id(struct request *r)
{
    if (!words_is_id(r->request_id, strlen(r->request_id))) {
        return call_error_set(&r->error, 400, "invalid_value", "request_id",
                              "Invalid 'request_id': expected 1 to 128 letters, digits, '.', '_', "
                              "':' or '-'.");
    }
    return true;
}

/* Salts are C strings that are only compared, so U+0000 becomes two bytes that no UTF-8 contains.
 */
static bool encode_nuls(struct request *r)
{
    size_t n;
    const char *text = body_text(&r->body, r->cache_salt, &n);
    if (text == r->cache_salt) {
        return true;
    }
    char *to = text ? arena_alloc(&r->arena, 2 * n + 1, 1) : NULL;
    if (!to) {
        return request_too_large(r);
    }
    r->cache_salt = to;
    for (size_t i = 0; i < n; i++) {
        if (text[i]) {
            *to++ = text[i];
        } else {
            *to++ = '\xc0';
            *to++ = '\x80';
        }
    }
    *to = '\0';
    return true;
}

bool check_salt(struct request *r)
{
    if (!encode_nuls(r)) {
        return false;
    }
    size_t n = strlen(r->cache_salt);
    if (n > 0 && n <= MAX_SALT_BYTES) {
        return true;
    }
    return call_error_set(&r->error, 400, "invalid_value", "cache_salt",
                          "Invalid 'cache_salt': expected 1 to %d bytes.", MAX_SALT_BYTES);
}

/* Defaults, before the members are read. */
void request_begin(struct request *r)
{
    r->n = 1;
    r->params = r->model->defaults;
    r->params.seed = r->seed;
    r->params.num_speculative_tokens = -1;
    r->length_penalty = 1;
    r->thinking_budget = -1;
    r->n_keep = r->model->config->context_keep;
    r->params.stop_ids = NULL;
    r->params.n_stop_ids = 0;
    r->output.skip_special = true;
    r->output.tok = r->model->tok;
    r->include_reasoning = r->parallel_tool_calls = true;
    r->parse_special = true;
    r->tokens_as_ids = r->model->config->return_tokens_as_token_ids;
    r->verbose = r->model->config->verbose;
}

/* Completes the parameters. Some clients send a top_p of 0 for greedy sampling. */
void request_end(struct request *r)
{
    if (r->params.top_p <= 0) { // only the most likely token
        r->params.top_p = 1;
        r->params.top_k = 1;
    }
    r->output.min_tokens = r->params.min_tokens;
}

/* Also releases the grammar and the adapter, which requests share. */
void request_deinit(struct request *r)
{
    if (r->grammar) {
        grammars_give(r->model->grammars, r->grammar);
    }
    if (r->adapter > 0) {
        call_adapters_give(r->model->adapters, r->adapter);
    }
    body_close(&r->body);
    body_close(&r->context);
    if (r->derender) {
        body_close(&r->derender->outer);
    }
    json_free(r->own_tools);
    json_free(r->flat_tools);
    ids_deinit(&r->ids);
    arena_deinit(&r->arena);
}
