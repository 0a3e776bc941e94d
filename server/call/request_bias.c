// SPDX-License-Identifier: Apache-2.0
/* The member logit_bias: OpenAI's map of ids, and llama.cpp's list of pairs, where a text stands
 * for all of its tokens, and `false` bans a token. */
#include "engine/base/optional.h"
#include "server/call/readers.h"

#include <stdlib.h>
#include <string.h>

enum { NEVER = -100 };

struct biases {
    struct request *r;
    struct logit_bias *list; // [MAX_BIAS], in the arena
};

static bool too_many(struct request *r)
{
    return call_error_set(&r->error, 400, "array_above_max_length", "logit_bias",
                          "Invalid 'logit_bias': too many entries. Expected at most %d.", MAX_BIAS);
}

static bool bad_id(struct request *r, const char *text)
{
    return call_error_set(&r->error, 400, "invalid_value", "logit_bias",
                          "Invalid 'logit_bias': '%.40s' is not a token id.", text);
}

static bool is_id(const char *key)
{
    return *key && strspn(key, "0123456789") == strlen(key);
}

/* Names all keys that are not ids. */
static bool bad_keys(struct request *r, const struct json *map)
{
    struct buf names;
    size_t n_bad = 0;
    buf_init(&names, 4096);
    for (const struct json *v = json_first(map); v; v = json_next(v)) {
        if (!is_id(json_key(v))) {
            buf_printf(&names, "%s'%.40s'", text_if(n_bad++, ", "), json_key(v));
        }
    }
    call_error_set(&r->error, 400, "invalid_value", "logit_bias",
                   n_bad == 1 ? "Invalid 'logit_bias': %s is not a token id."
                              : "Invalid 'logit_bias': %.160s are not token ids.",
                   or_empty(names.data));
    buf_deinit(&names);
    return false;
}

/* In vLLM's words, which its clients look for. */
static bool out_of_vocabulary(struct request *r, int64_t id)
{
    return call_error_set(&r->error, 400, "invalid_value", "logit_bias",
                          "token_id(s) [%lld] in logit_bias contain out-of-vocab token ids. "
                          "Vocabulary size: %d",
                          (long long)id, r->model->info->vocab);
}

static bool put(struct biases *b, int32_t id, double value)
{
    int32_t n = b->r->params.n_bias;
    if (n == MAX_BIAS) {
        return too_many(b->r);
    }
    b->list[n] = (struct logit_bias){id, (float)value};
    b->r->params.n_bias++;
    return true;
}

/* Adds the bias to each token of a text. */
static bool put_text(struct biases *b, const char *text, double value)
{
    struct ids ids;
    struct text_span span = {.is_input = true};
    span.text = body_text(&b->r->body, text, &span.n_bytes);
    struct tokenizer_flags flags = {.add_special = false, .parse_special = false};
    if (!b->r->model->tok) {
        return bad_id(b->r, text);
    }
    if (!span.text) {
        return request_too_large(b->r);
    }
    ids_init(&ids, MAX_BIAS + 1);
    tokenizer_encode(b->r->model->tok, &span, 1, flags, &ids, NULL);
    bool good = true;
    for (size_t i = 0; good && i < ids.n; i++) {
        good = put(b, ids.v[i], value);
    }
    ids_deinit(&ids);
    return good;
}

/* false: never drawn (llama.cpp). */
static bool read_value(struct request *r, const struct json *v, double *value)
{
    bool never =
        json_is(v, JSON_BOOL) && !json_bool(v, true) && (r->form & (FORM_NATIVE | FORM_INFILL));
    if (!never && !json_is(v, JSON_NUMBER)) {
        return body_wrong_type(&r->error, "logit_bias", "a map of numbers", v);
    }
    *value = never ? NEVER : json_number(v, 0);
    if (!(*value >= -100 && *value <= 100)) {
        return call_error_set(
            &r->error, 400, *value < 0 ? "decimal_below_min_value" : "decimal_above_max_value",
            "logit_bias", "Invalid 'logit_bias': expected values from -100 to 100.");
    }
    return true;
}

/* A key of the map: an id in digits, or with llama.cpp a text. */
static bool read_key(struct biases *b, const char *key, const struct json *v)
{
    double value;
    long long id = strtoll(key, NULL, 10);
    bool digits = is_id(key);
    if (digits && id >= b->r->model->info->vocab) {
        return out_of_vocabulary(b->r, id);
    }
    return read_value(b->r, v, &value) &&
           (digits ? put(b, (int32_t)id, value) : put_text(b, key, value));
}

/* [id or text, number or false] */
static bool read_pair(struct biases *b, const struct json *pair)
{
    const struct json *what = json_first(pair);
    const struct json *v = NULL;
    if (what && json_is(pair, JSON_ARRAY)) {
        v = json_next(what);
    }
    int64_t id;
    double value;
    if (!v) {
        return body_wrong_type(&b->r->error, "logit_bias", "a list of pairs", pair);
    }
    if (json_string(what)) {
        return read_value(b->r, v, &value) && put_text(b, json_string(what), value);
    }
    if (!json_int64(what, &id)) {
        return bad_id(b->r, "of a pair");
    }
    if (id < 0 || id >= b->r->model->info->vocab) {
        return out_of_vocabulary(b->r, id);
    }
    return read_value(b->r, v, &value) && put(b, (int32_t)id, value);
}

/* With llama.cpp's ignore_eos, end tokens are banned; other servers may draw them and continue. */
bool request_ban_ends(struct request *r)
{
    const struct engine_info *info = r->model->info;
    struct logit_bias *list = arena_alloc(&r->arena, MAX_BIAS, sizeof list[0]);
    if (!list) {
        return request_too_large(r);
    }
    if (r->params.n_bias > 0) {
        memcpy(list, r->params.bias, (size_t)r->params.n_bias * sizeof list[0]);
    }
    struct biases b = {.r = r, .list = list};
    for (int32_t i = 0; i < info->n_eos; i++) {
        if (!put(&b, info->eos[i], NEVER)) {
            return false;
        }
    }
    r->params.bias = list;
    return true;
}

/* Reads a map or a list of pairs, with at most MAX_BIAS tokens. */
bool read_bias(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "logit_bias");
    struct biases b = {.r = r};
    if (!m) {
        return true;
    }
    bool list = json_is(m->node, JSON_ARRAY) && (r->form & (FORM_NATIVE | FORM_INFILL));
    if (!list && !json_is(m->node, JSON_OBJECT)) {
        return body_wrong_type(&r->error, "logit_bias", "an object", m->node);
    }
    if (json_count(m->node) > MAX_BIAS) {
        return too_many(r);
    }
    b.list = arena_alloc(&r->arena, MAX_BIAS, sizeof b.list[0]);
    if (!b.list) {
        return request_too_large(r);
    }
    for (const struct json *v = json_first(m->node); v; v = json_next(v)) {
        if (!list && !(r->form & (FORM_NATIVE | FORM_INFILL)) && !is_id(json_key(v))) {
            return bad_keys(r, m->node);
        }
        if (!(list ? read_pair(&b, v) : read_key(&b, json_key(v), v))) {
            return false;
        }
    }
    r->params.bias = b.list;
    return true;
}
