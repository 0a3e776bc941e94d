#include "server/call/request.h"

#include "engine/base/json_scan.h"
#include "engine/base/words.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Chosen: a loop that serves all looks for every stop string with each token. */
enum { MAX_STOP_BYTES = 1 << 10 };

bool request_too_large(struct api_request *r)
{
    return api_error_set(&r->error, 413, "request_too_large", NULL, "Request too large.");
}

bool request_refuse(struct api_request *r, const char *const *keys)
{
    for (; *keys; keys++) {
        const struct body_member *m = body_get(&r->body, *keys);
        if (!m) {
            continue;
        }
        bool off = m->node && ((json_is(m->node, JSON_BOOL) && !json_bool(m->node, true)) ||
                               ((json_is(m->node, JSON_ARRAY) || json_is(m->node, JSON_OBJECT)) &&
                                json_count(m->node) == 0));
        if (!off) {
            return api_unsupported(&r->error, *keys);
        }
    }
    return true;
}

bool request_check_n_tools(struct api_request *r, const char *key, size_t n)
{
    enum { MAX_TOOLS = 128 }; // OpenAI's bound
    return n <= MAX_TOOLS
               ? true
               : api_error_set(&r->error, 400, "array_above_max_length", key,
                               "Invalid '%s': array too long. Expected at most %d items, but got "
                               "%zu instead.", key, MAX_TOOLS, n);
}

bool request_check_function(struct api_request *r, const struct json *function, const char *where)
{
    char place[80];
    const char *name = json_get_string(function, "name");
    if (!name || !*name) {
        snprintf(place, sizeof place, "%s.name", where);
        return api_missing(&r->error, place);
    }
    const struct json *parameters = json_get(function, "parameters");
    if (json_type(parameters) != JSON_NULL && !json_is(parameters, JSON_OBJECT)) {
        snprintf(place, sizeof place, "%s.parameters", where);
        return body_wrong_type(&r->error, place, "an object", parameters);
    }
    return true;
}

static bool read_model(struct api_request *r)
{
    const char *name = NULL;
    body_string(&r->body, "model", &name);
    r->model_name = api_model_name(r->model, name);
    if (!r->model_name) {
        return api_error_set(&r->error, 404, "model_not_found", "model",
                             "The model `%.100s` does not exist or you do not have access to it.",
                             name);
    }
    return r->error.status == 0;
}

/* ---- sampling --------------------------------------------------------------------------------- */

static void read_real(struct api_request *r, const char *key, double min, double max, float *v)
{
    double d;
    if (body_real(&r->body, key, min, max, &d)) {
        *v = (float)d;
    }
}

static void read_scalars(struct api_request *r)
{
    struct sampling_params *p = &r->params;
    struct api_body *b = &r->body;
    read_real(r, "temperature", 0, 2, &p->temperature);
    read_real(r, "top_p", 0, 1, &p->top_p);
    read_real(r, "min_p", 0, 1, &p->min_p);
    read_real(r, "frequency_penalty", -2, 2, &p->frequency_penalty);
    read_real(r, "presence_penalty", -2, 2, &p->presence_penalty);
    read_real(r, "repeat_penalty", 1e-3, 1e3, &p->repetition_penalty);
    read_real(r, "repetition_penalty", 1e-3, 1e3, &p->repetition_penalty);
    int64_t v;
    if (body_int(b, "top_k", -1, INT32_MAX, &v)) {
        p->top_k = v < 0 ? 0 : (int32_t)v;
    }
    if (p->top_p <= 0) { // nothing but the most likely token
        p->top_p = 1;
        p->top_k = 1;
    }
    if (body_int(b, "seed", INT64_MIN, INT64_MAX, &v)) {
        p->seed = (uint64_t)v;
    }
    if (body_int(b, "min_tokens", 0, INT32_MAX, &v)) {
        p->min_tokens = (int32_t)v;
    }
    if (body_int(b, "num_speculative_tokens", 0, 128, &v)) {
        p->num_speculative_tokens = (int32_t)v;
    }
    body_bool(b, "ignore_eos", &p->ignore_eos);
}

static bool put_stop(struct api_request *r, const char **stops, size_t *lengths, const char *text)
{
    size_t n = strlen(text);
    if (text[0] == '\0') {
        return api_error_set(&r->error, 400, "invalid_value", "stop",
                             "Invalid 'stop': a stop string must not be empty.");
    }
    if (n > MAX_STOP_BYTES) {
        return api_error_set(&r->error, 400, "string_above_max_length", "stop",
                             "Invalid 'stop': string too long. Expected a stop string of at most %d "
                             "bytes, but got one of %zu bytes instead.", MAX_STOP_BYTES, n);
    }
    lengths[r->output.n_stop] = n;
    stops[r->output.n_stop++] = text;
    return true;
}

static bool read_stop(struct api_request *r)
{
    const struct body_member *m = body_get(&r->body, "stop");
    body_bool(&r->body, "include_stop_str_in_output", &r->output.include_stop);
    if (!m) {
        return true;
    }
    size_t n = json_is(m->node, JSON_ARRAY) ? json_count(m->node) : 1;
    size_t most = (size_t)r->model->config->max_stop;
    if (n > most) {
        return api_error_set(&r->error, 400, "array_above_max_length", "stop",
                             "Invalid 'stop': array too long. Expected at most %zu items, but got "
                             "%zu instead.", most, n);
    }
    if (n > 0 && !r->model->tok) {
        return api_error_set(&r->error, 400, "unsupported_value", "stop",
                             "This model has no tokenizer: 'stop' strings cannot be found; use "
                             "'stop_token_ids'.");
    }
    const char **stops = arena_alloc(&r->arena, n + 1, sizeof stops[0]);
    size_t *lengths = arena_alloc(&r->arena, n + 1, sizeof lengths[0]);
    if (!stops || !lengths) {
        return request_too_large(r);
    }
    r->output.stop = stops;
    r->output.stop_bytes = lengths;
    if (json_is(m->node, JSON_STRING)) {
        return put_stop(r, stops, lengths, json_string(m->node));
    }
    if (!json_is(m->node, JSON_ARRAY)) {
        return body_wrong_type(&r->error, "stop", "a string or an array of strings", m->node);
    }
    for (const struct json *s = json_first(m->node); s; s = json_next(s)) {
        if (!json_is(s, JSON_STRING)) {
            return body_wrong_type(&r->error, "stop", "a string", s);
        }
        if (!put_stop(r, stops, lengths, json_string(s))) {
            return false;
        }
    }
    return true;
}

static bool bad_id(struct api_request *r, const char *key, const char *what)
{
    return api_error_set(&r->error, 400, "invalid_value", key,
                         "Invalid '%s': token id %.40s is out of vocabulary.", key, what);
}

/* An array of ids within the vocabulary; *n is 0 if the member is absent. */
static bool read_ids(struct api_request *r, const char *key, size_t extra, int32_t **ids,
                     int32_t *n)
{
    const struct json *array = NULL;
    *n = 0;
    *ids = NULL;
    if (!body_array(&r->body, key, &array) && r->error.status) {
        return false;
    }
    size_t count = json_count(array);
    if (array && count == 0 && strcmp(key, "allowed_token_ids") == 0) {
        return api_empty(&r->error, key);
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

static bool read_stop_ids(struct api_request *r)
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
        return api_error_set(&r->error, 400, "array_above_max_length", "stop_token_ids",
                             "Invalid 'stop_token_ids': array too long. Expected at most %d items.",
                             MAX_STOP_IDS - info->n_eos);
    }
    r->params.stop_ids = ids;
    r->params.n_stop_ids = n;
    return true;
}

static bool read_bias(struct api_request *r)
{
    const struct json *map = NULL;
    if (!body_object(&r->body, "logit_bias", &map)) {
        return r->error.status == 0;
    }
    size_t n = json_count(map);
    if (n > MAX_BIAS) {
        return api_error_set(&r->error, 400, "array_above_max_length", "logit_bias",
                             "Invalid 'logit_bias': too many entries. Expected at most %d, but got "
                             "%zu instead.", MAX_BIAS, n);
    }
    struct logit_bias *bias = arena_alloc(&r->arena, n + 1, sizeof bias[0]);
    if (!bias) {
        return request_too_large(r);
    }
    for (const struct json *v = json_first(map); v; v = json_next(v)) {
        char *end;
        const char *key = json_key(v);
        long long id = strtoll(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || id < 0 || id >= r->model->info->vocab) {
            return bad_id(r, "logit_bias", key);
        }
        double value = json_number(v, -1000);
        if (!json_is(v, JSON_NUMBER)) {
            return body_wrong_type(&r->error, "logit_bias", "a map of numbers", v);
        }
        if (!(value >= -100 && value <= 100)) {
            return api_error_set(&r->error, 400,
                                 value < 0 ? "decimal_below_min_value" : "decimal_above_max_value",
                                 "logit_bias",
                                 "Invalid 'logit_bias': expected values from -100 to 100.");
        }
        bias[r->params.n_bias++] = (struct logit_bias){(int32_t)id, (float)value};
    }
    r->params.bias = bias;
    return true;
}

/* Each word is banned as it is and with a space in front, as it appears within text. */
static bool read_bad_words(struct api_request *r)
{
    const struct json *words = NULL;
    if (!body_array(&r->body, "bad_words", &words)) {
        return r->error.status == 0;
    }
    if (!r->model->tok || json_count(words) > MAX_BAD_WORDS / 2) {
        return api_error_set(&r->error, 400, "array_above_max_length", "bad_words",
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
        if (!text || !*text) {
            return body_wrong_type(&r->error, "bad_words", "an array of non-empty strings", w);
        }
        for (int spaced = 0; spaced < 2; spaced++) {
            struct ids ids;
            ids_init(&ids, MAX_BAD_TOKENS);
            struct text_span spans[2] = {{" ", spaced ? 1 : 0, true}, {text, strlen(text), true}};
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
                return api_error_set(&r->error, 400, "array_above_max_length", "bad_words",
                                     "Invalid 'bad_words': too many tokens.");
            }
        }
    }
    r->params.n_bad_words = n;
    r->params.bad_word_lengths = lengths;
    r->params.bad_word_tokens = tokens;
    return true;
}

static bool read_limits(struct api_request *r)
{
    int64_t v;
    if (body_int(&r->body, "n", 1, r->model->config->max_n, &v)) {
        r->n = (int32_t)v;
    }
    if (body_int(&r->body, "best_of", 1, INT32_MAX, &v) && v != r->n) {
        return api_error_set(&r->error, 400, "unsupported_value", "best_of",
                             "'best_of' is only supported when it equals 'n'.");
    }
    if (body_int(&r->body, "prompt_logprobs", -1, r->model->config->max_logprobs, &v)) {
        if (v < 0) { // vLLM's word for the whole vocabulary
            return api_error_set(&r->error, 400, "integer_below_min_value", "prompt_logprobs",
                                 "Invalid 'prompt_logprobs': -1 (the whole vocabulary) is not "
                                 "supported by this server. Expected 0 to %lld.",
                                 (long long)r->model->config->max_logprobs);
        }
        r->params.prompt_logprobs = true;
        r->params.prompt_top_logprobs = (int32_t)v;
    }
    int32_t *ids;
    if (!read_ids(r, "allowed_token_ids", 0, &ids, &r->params.n_allowed)) {
        return false;
    }
    r->params.allowed = ids;
    return true;
}

/* ---- the rest --------------------------------------------------------------------------------- */

/* A boolean member of an object that is itself a member; absent and null leave *v alone. */
static bool read_flag(struct api_request *r, const struct json *object, const char *parent,
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

static bool read_stream(struct api_request *r)
{
    const struct json *options = NULL;
    body_bool(&r->body, "stream", &r->stream);
    r->include_usage = r->model->config->enable_force_include_usage;
    if (body_object(&r->body, "stream_options", &options)) {
        if (!r->stream) {
            return api_error_set(&r->error, 400, "invalid_value", "stream_options",
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
    }
    if (r->stream && r->params.prompt_logprobs) {
        return api_error_set(&r->error, 400, "invalid_value", "prompt_logprobs",
                             "'prompt_logprobs' is not available when 'stream' is enabled.");
    }
    return r->error.status == 0;
}

/* Members that change nothing here; of the wrong type they are refused all the same. */
static bool check_without_effect(struct api_request *r)
{
    static const struct {
        const char *key;
        enum json_type type;
        const char *expected;
    } members[] = {
        {"store", JSON_BOOL, "a boolean"},
        {"metadata", JSON_OBJECT, "an object"},
        {"service_tier", JSON_STRING, "a string"},
        {"safety_identifier", JSON_STRING, "a string"},
        {"prompt_cache_key", JSON_STRING, "a string"},
        {"prompt_cache_retention", JSON_STRING, "a string"},
        {"verbosity", JSON_STRING, "a string"},
        {"prediction", JSON_OBJECT, "an object"},
        {"session_id", JSON_STRING, "a string"},
        {"spaces_between_special_tokens", JSON_BOOL, "a boolean"},
    };
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const struct body_member *m = body_get(&r->body, members[i].key);
        if (m && !json_is(m->node, members[i].type)) {
            return body_wrong_type(&r->error, members[i].key, members[i].expected, m->node);
        }
    }
    return true;
}

/* As a header of that name may be: it becomes part of ids, log lines and a header. */
static bool read_request_id(struct api_request *r)
{
    const char *id = NULL;
    if (!body_string(&r->body, "request_id", &id)) {
        return r->error.status == 0;
    }
    if (!words_is_id(id, strlen(id))) {
        return api_error_set(&r->error, 400, "invalid_value", "request_id",
                             "Invalid 'request_id': expected 1 to 128 letters, digits, '.', '_', "
                             "':' or '-'.");
    }
    r->request_id = id;
    return true;
}

static bool read_others(struct api_request *r)
{
    struct api_body *b = &r->body;
    int64_t v;
    int side = 0;
    body_bool(b, "return_token_ids", &r->return_token_ids);
    body_bool(b, "return_tokens_as_token_ids", &r->tokens_as_ids);
    body_bool(b, "skip_special_tokens", &r->output.skip_special);
    r->has_add_special = body_bool(b, "add_special_tokens", &r->add_special);
    body_bool(b, "parse_special", &r->parse_special);
    body_int(b, "truncate_prompt_tokens", -1, INT32_MAX, &r->truncate);
    if (body_choice(b, "truncation_side", "left|right", &side)) {
        r->truncate_left = side == 0;
    }
    if (body_int(b, "priority", INT32_MIN, INT32_MAX, &v)) {
        r->priority = (int32_t)v;
    }
    if (body_string(b, "cache_salt", &r->cache_salt) &&
        (r->cache_salt[0] == '\0' || strlen(r->cache_salt) > MAX_SALT_BYTES)) {
        return api_error_set(&r->error, 400, "invalid_value", "cache_salt",
                             "Invalid 'cache_salt': expected 1 to %d bytes.", MAX_SALT_BYTES);
    }
    body_string(b, "user", &r->user);
    body_real(b, "timeout", 0.001, 864000, &r->timeout_s);
    return r->error.status == 0 && check_without_effect(r) && read_request_id(r);
}

static const char *const refused[] = {
    "use_beam_search",   "structured_outputs", "guided_json",        "guided_regex",
    "guided_choice",     "guided_grammar",     "prompt_embeds",      "kv_transfer_params",
    "logits_processors", "watermark",          "repetition_detection", NULL,
};

static bool read_format(struct api_request *r)
{
    const struct json *format = NULL;
    if (!body_object(&r->body, "response_format", &format)) {
        return r->error.status == 0;
    }
    const char *type = json_get_string(format, "type");
    if (!type) {
        return api_missing(&r->error, "response_format.type");
    }
    if (strcmp(type, "text") != 0) {
        return api_error_set(&r->error, 400, "unsupported_value", "response_format",
                             "Unsupported value: 'response_format' of type '%.40s' is not supported "
                             "by this server; only 'text' is.", type);
    }
    return true;
}

/* What no endpoint knows is ignored and counted, or refused if the operator wants that. */
static bool check_names(struct api_request *r)
{
    static const char known[] =
        "model|messages|prompt|input|suffix|best_of|echo|frequency_penalty|presence_penalty|"
        "logit_bias|logprobs|top_logprobs|max_tokens|max_completion_tokens|n|seed|stop|stream|"
        "stream_options|temperature|top_p|user|top_k|min_p|repetition_penalty|repeat_penalty|"
        "min_tokens|ignore_eos|stop_token_ids|include_stop_str_in_output|skip_special_tokens|"
        "spaces_between_special_tokens|add_special_tokens|truncate_prompt_tokens|truncation_side|"
        "prompt_logprobs|allowed_token_ids|bad_words|return_token_ids|return_tokens_as_token_ids|"
        "response_format|priority|cache_salt|request_id|session_id|timeout|tools|tool_choice|"
        "parallel_tool_calls|functions|function_call|reasoning_effort|chat_template|"
        "chat_template_kwargs|add_generation_prompt|continue_final_message|include_reasoning|"
        "verbosity|prediction|modalities|audio|web_search_options|store|metadata|service_tier|"
        "safety_identifier|prompt_cache_key|prompt_cache_retention|moderation|documents|"
        "num_speculative_tokens|instructions|max_output_tokens|previous_response_id|reasoning|"
        "text|truncation|include|background|conversation|max_tool_calls|context_management|"
        "encoding_format|dimensions|tokens|return_token_strs|normalize|use_activation|content|"
        "add_special|parse_special|with_pieces|use_beam_search|structured_outputs|guided_json|guided_regex|"
        "guided_choice|guided_grammar|prompt_embeds|kv_transfer_params|logits_processors|"
        "watermark|repetition_detection";
    for (size_t i = 0; i < r->body.n_members; i++) {
        if (words_find(known, r->body.members[i].key) >= 0) {
            continue;
        }
        r->unknown = r->unknown ? r->unknown : r->body.members[i].key;
        r->n_unknown++;
        if (r->model->config->strict_parameters) {
            return api_error_set(&r->error, 400, "unknown_parameter", r->body.members[i].key,
                                 "Unknown parameter: '%.60s'.", r->body.members[i].key);
        }
    }
    return true;
}

bool request_read_common(struct api_request *r)
{
    r->n = 1;
    r->params = r->model->defaults;
    r->params.seed = r->seed;
    r->params.num_speculative_tokens = -1;
    r->params.stop_ids = NULL;
    r->params.n_stop_ids = 0;
    r->output.skip_special = true;
    r->output.tok = r->model->tok;
    r->include_reasoning = r->parallel_tool_calls = true;
    r->truncate_left = r->parse_special = true;
    if (!read_model(r) || !check_names(r)) {
        return false;
    }
    read_scalars(r);
    r->output.min_tokens = r->params.min_tokens;
    return r->error.status == 0 && read_stop(r) && read_stop_ids(r) && read_bias(r) &&
           read_limits(r) && read_stream(r) && read_others(r) && read_format(r) &&
           request_refuse(r, refused) && read_bad_words(r);
}

void api_request_deinit(struct api_request *r)
{
    body_close(&r->body);
    json_free(r->own_tools);
    ids_deinit(&r->ids);
    arena_deinit(&r->arena);
}
