// SPDX-License-Identifier: Apache-2.0
/* The bodies of llama.cpp's own endpoints: /completion, /infill, /embedding and /apply-template. A
 * prompt may mix texts and ids, and is then converted to ids here; this includes prompts of the
 * other embedding endpoints. */
#include "server/call/convert.h"
#include "server/call/post_sampling.h"
#include "server/call/readers.h"

#include "engine/base/json_scan.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <string.h>

enum { MAX_PROMPT_IDS = 16 << 20 };

/* Reads prompts that mix texts and ids, directly from the body's text. */
struct mixed {
    struct request *r;
    const char *key;
    struct json_scan sc;
    struct ids ids; // ids so far of the prompt that is being read
    bool first;     // no part of this prompt has been read yet
};

static bool wrong(struct mixed *m)
{
    return call_error_set(
        &m->r->error, 400, "invalid_type", m->key,
        "Invalid type for '%s': expected a string, token ids, both mixed, or a list "
        "of such.",
        m->key);
}

/* A text. If it begins its prompt, the special tokens that the model expects are put before it. */
static bool put_text(struct mixed *m, const char *text, size_t n_bytes)
{
    struct text_span span = {text, n_bytes, false};
    struct tokenizer_flags flags = {.add_special = m->first && m->r->add_special,
                                    .parse_special = m->r->parse_special};
    m->first = false;
    if (!m->r->model->tok) {
        return call_error_set(&m->r->error, 400, "unsupported_value", m->key,
                              "This model has no tokenizer: '%s' must be token ids.", m->key);
    }
    return tokenizer_encode(m->r->model->tok, &span, 1, flags, &m->ids, NULL) == OK ||
           request_too_large(m->r);
}

static bool put_string(struct mixed *m)
{
    struct buf text;
    buf_init(&text, m->sc.text_bytes + 1);
    json_scan_unescape(&m->sc, &text);
    bool good = put_text(m, or_empty(text.data), text.n_bytes);
    buf_deinit(&text);
    return good;
}

static bool put_id(struct mixed *m)
{
    int64_t id;
    m->first = false;
    if (!body_whole_id(&m->sc, &id)) {
        return wrong(m);
    }
    if (id < 0 || id >= m->r->model->info->vocab) {
        return call_error_set(&m->r->error, 400, "invalid_value", m->key,
                              "Invalid '%s': token id %lld is out of vocabulary.", m->key,
                              (long long)id);
    }
    return ids_put(&m->ids, (int32_t)id) || request_too_large(m->r);
}

/* A text of a tree, in which another character stands for U+0000. */
static bool put_tree_text(struct mixed *m, const char *string)
{
    size_t n_bytes;
    const char *text = body_text(&m->r->body, string, &n_bytes);
    return text ? put_text(m, text, n_bytes) : request_too_large(m->r);
}

/* {"prompt_string": "text"}, and {"content": [{"type": "text", "text": ...}]}. */
static bool put_object(struct mixed *m, const char *text, size_t n_bytes)
{
    struct json *root = NULL;
    struct body *body = &m->r->body;
    char *copy = arena_strndup(&m->r->arena, text, n_bytes);
    if (!copy) {
        return request_too_large(m->r);
    }
    bool good = body_hide_nuls(body, text, n_bytes, copy, n_bytes) &&
                json_parse(copy, n_bytes, NULL, &root, NULL) == OK;
    const char *string = json_get_string(root, "prompt_string");
    const struct json *parts = json_get(root, "content");
    if (json_get(root, "multimodal_data")) {
        call_error_unsupported(&m->r->error, "multimodal_data");
    } else if (string) {
        put_tree_text(m, string);
    } else if (!good || !json_is(parts, JSON_ARRAY) || !json_first(parts)) {
        wrong(m);
    } else {
        struct buf all;
        buf_init(&all, 64 << 20);
        for (const struct json *p = json_first(parts); p; p = json_next(p)) {
            const char *part = json_get_string(p, "text"), *type = json_get_string(p, "type");
            if (!part || !type || strcmp(type, "text") != 0) {
                wrong(m);
            }
            if (part) {
                buf_puts(&all, part);
            }
        }
        put_tree_text(m, or_empty(all.data));
        buf_deinit(&all);
    }
    json_free(root);
    return m->r->error.status == 0;
}

/* Adds the prompt just read to the request's prompts. */
static bool end_prompt(struct mixed *m)
{
    struct request *r = m->r;
    int32_t *ids = arena_alloc(&r->arena, m->ids.n + 1, sizeof ids[0]);
    if (!ids) {
        return request_too_large(r);
    }
    if (m->ids.n > 0) {
        memcpy(ids, m->ids.v, m->ids.n * sizeof ids[0]);
    }
    r->prompts[r->n_prompts++] = (struct request_prompt){.ids = ids, .n = (int32_t)m->ids.n};
    m->ids.n = 0;
    m->first = true;
    return true;
}

/* Reads one value, whose first JSON token has already been scanned. */
static bool put_value(struct mixed *m, enum json_token t)
{
    size_t begin = m->sc.at - 1;
    switch (t) {
    case JSON_TOKEN_STRING: return put_string(m);
    case JSON_TOKEN_NUMBER: return put_id(m);
    case JSON_TOKEN_OBJECT:
        json_scan_skip(&m->sc);
        return put_object(m, m->sc.s + begin, m->sc.at - begin);
    default: return wrong(m);
    }
}

/* True if an array contains a number: then it is one prompt, otherwise each item is one. */
static bool has_number(const struct body_member *v)
{
    struct json_scan sc;
    json_scan_init(&sc, v->start, v->n_bytes, 8);
    json_scan_next(&sc);
    for (enum json_token t; (t = json_scan_next(&sc)) != JSON_TOKEN_ARRAY_END;) {
        if (t == JSON_TOKEN_NUMBER) {
            return true;
        }
        if (t == JSON_TOKEN_ARRAY || t == JSON_TOKEN_OBJECT) {
            json_scan_skip(&sc);
        } else if (t != JSON_TOKEN_STRING) {
            return false;
        }
    }
    return false;
}

static bool put_list(struct mixed *m)
{
    for (enum json_token t; (t = json_scan_next(&m->sc)) != JSON_TOKEN_ARRAY_END;) {
        if (!put_value(m, t)) {
            return false;
        }
    }
    return true;
}

/* A list of prompts, each a text, ids, or a mix. */
static bool put_prompts(struct mixed *m, size_t most)
{
    for (enum json_token t; (t = json_scan_next(&m->sc)) != JSON_TOKEN_ARRAY_END;) {
        if (m->r->n_prompts == most) {
            return call_error_set(&m->r->error, 400, "array_above_max_length", m->key,
                                  "Invalid '%s': array too long. Expected at most %zu items.",
                                  m->key, most);
        }
        bool good = t == JSON_TOKEN_ARRAY ? put_list(m) : put_value(m, t);
        if (!good || !end_prompt(m)) {
            return false;
        }
    }
    return m->r->n_prompts > 0 || call_error_empty(&m->r->error, m->key);
}

static size_t count_commas(const struct body_member *v)
{
    size_t n = 1;
    for (size_t i = 0; i < v->n_bytes; i++) {
        n += v->start[i] == ',';
    }
    return n;
}

/* Plain prompts take the common path; the mixed form needs the scanner. */
bool request_read_mixed(struct request *r, const char *key, size_t most)
{
    const struct body_member *v = body_get(&r->body, key);
    struct mixed m = {.r = r, .key = key, .first = true};
    bool plain = v && v->node && json_is(v->node, JSON_STRING);
    if (!v || plain) {
        return request_read_prompts(r, key, 1);
    }
    size_t room = count_commas(v);
    r->prompts = arena_alloc(&r->arena, lesser(room, most), sizeof r->prompts[0]);
    if (!r->prompts) {
        return request_too_large(r);
    }
    ids_init(&m.ids, MAX_PROMPT_IDS);
    json_scan_init(&m.sc, v->start, v->n_bytes, 16);
    enum json_token t = json_scan_next(&m.sc);
    bool list = t == JSON_TOKEN_ARRAY;
    if (!list && t != JSON_TOKEN_OBJECT) {
        ids_deinit(&m.ids);
        return wrong(&m);
    }
    r->bare_list = list && !has_number(v);
    bool good;
    if (r->bare_list) {
        good = put_prompts(&m, most);
    } else {
        good = (list ? put_list(&m) : put_value(&m, t)) && end_prompt(&m);
    }
    ids_deinit(&m.ids);
    return good;
}

/* ---- completions ----------------------------------------------------------------------------- */

bool read_native_prompt(struct request *r)
{
    return request_read_mixed(r, "prompt", (size_t)r->model->config->max_prompts);
}

/* The number of alternatives per token, which are reported under llama.cpp's names. */
bool read_n_probs(struct request *r)
{
    int64_t v;
    if (request_read_share(r, "n_probs", &v) && v > 0) {
        r->logprobs = true;
        r->n_top = (int32_t)v;
    }
    return true;
}

bool read_response_fields(struct request *r)
{
    const struct json *fields = NULL;
    if (!body_array(&r->body, "response_fields", &fields)) {
        return r->error.status == 0;
    }
    for (const struct json *f = json_first(fields); f; f = json_next(f)) {
        if (!json_string(f)) {
            return body_wrong_type(&r->error, "response_fields", "an array of strings", f);
        }
    }
    r->fields = json_first(fields) ? fields : NULL;
    return true;
}

void native_begin(struct request *r)
{
    r->has_max_tokens = r->model->has_default_max_tokens;
    r->max_tokens = r->model->defaults.max_tokens;
    r->add_special = true;
    if (r->model->config->seed != 0) { // like llama.cpp's --seed, the default of every request
        r->params.seed = (uint64_t)r->model->config->seed;
    }
}

/* For probabilities after the samplers, all alternatives that matter must be logged. */
bool native_end(struct request *r)
{
    r->params.logprobs = r->logprobs;
    r->params.top_logprobs = r->n_top;
    r->has_max_tokens |= r->max_is_asked;
    if (r->params.ignore_eos && !request_ban_ends(r)) {
        return false;
    }
    if (!r->post_sampling || !r->logprobs) {
        return true;
    }
    const int32_t least = post_sampling_needs(&r->params, r->model->info->vocab);
    r->params.top_logprobs = greater(least, r->n_top);
    r->params.processed = true;
    return true;
}

/* ---- a text with a gap ----------------------------------------------------------------------- */

static bool read_file(struct request *r, const struct json *extra, struct fim_file *file)
{
    const char *text = json_get_string(extra, "text"), *name = json_get_string(extra, "filename");
    bool bad_name = json_type(json_get(extra, "filename")) != JSON_NULL && !name;
    if (!text || bad_name) {
        return call_error_set(&r->error, 400, "invalid_type", "input_extra",
                              "Invalid 'input_extra': expected objects with a 'text' and a "
                              "'filename'.");
    }
    if (body_text_has_nul(&r->body, name)) {
        return call_error_set(&r->error, 400, "invalid_value", "input_extra",
                              "Invalid 'input_extra': a filename contains the character U+0000.");
    }
    file->name = or_text(name, "tmp");
    file->text = body_text(&r->body, text, &file->n_bytes);
    return file->text || request_too_large(r);
}

static bool read_files(struct request *r)
{
    const struct json *extra = NULL;
    if (!body_array(&r->body, "input_extra", &extra)) {
        return r->error.status == 0;
    }
    r->files = arena_alloc(&r->arena, json_count(extra) + 1, sizeof r->files[0]);
    if (!r->files) {
        return request_too_large(r);
    }
    for (const struct json *e = json_first(extra); e; e = json_next(e)) {
        if (!read_file(r, e, &r->files[r->n_files++])) {
            return false;
        }
    }
    return true;
}

/* Both sides of the gap are required, but may be empty. */
bool read_hole(struct request *r)
{
    const char *prefix = NULL, *suffix = NULL;
    if (!body_string(&r->body, "input_prefix", &prefix) ||
        !body_string(&r->body, "input_suffix", &suffix)) {
        if (r->error.status == 0) {
            return call_error_missing(&r->error, prefix ? "input_suffix" : "input_prefix");
        }
        return false;
    }
    r->prefix = body_text(&r->body, prefix, &r->prefix_bytes);
    r->suffix = body_text(&r->body, suffix, &r->suffix_bytes);
    if (!r->prefix || !r->suffix) {
        return request_too_large(r);
    }
    if (body_has(&r->body, "prompt")) {
        r->begun = true;
        return read_files(r) && request_read_prompts(r, "prompt", 1);
    }
    r->prompts = arena_alloc(&r->arena, 1, sizeof r->prompts[0]);
    if (!r->prompts) {
        return request_too_large(r);
    }
    r->prompts[0] = (struct request_prompt){.text = ""};
    r->n_prompts = 1;
    return read_files(r);
}

bool infill_end(struct request *r)
{
    return native_end(r) && request_fill_hole(r);
}

/* ---- the rest -------------------------------------------------------------------------------- */

void native_embed_begin(struct request *r)
{
    body_rename(&r->body, "content", "input");
    embeddings_begin(r);
}

/* Whether texts and ids are mixed, within a prompt or in the list of prompts; llama.cpp's objects
 * with texts are read in the same way. */
static bool is_mixed(const struct json *list)
{
    bool text = false, other = false, within = false;
    for (const struct json *item = json_first(list); item; item = json_next(item)) {
        text = text || json_is(item, JSON_STRING);
        within = within || json_is(item, JSON_OBJECT);
        other = other || json_is(item, JSON_NUMBER) || json_is(item, JSON_ARRAY);
        for (const struct json *i = json_first(item); i && !within; i = json_next(i)) {
            within = json_is(item, JSON_ARRAY) && json_is(i, JSON_STRING);
        }
    }
    return within || (text && other);
}

bool read_input(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "input");
    bool ids_first = m && !m->node; // arrays of ids have no tree
    bool mixed;
    if (ids_first) {
        mixed = memchr(m->start, '"', m->n_bytes) != NULL;
    } else {
        mixed = m && (json_is(m->node, JSON_OBJECT) ||
                      (json_is(m->node, JSON_ARRAY) && is_mixed(m->node)));
    }
    if (mixed) {
        return request_read_mixed(r, "input", MAX_INPUTS);
    }
    return request_read_prompts(r, "input", MAX_INPUTS);
}

bool read_mixed_input(struct request *r)
{
    if (body_has(&r->body, "input") && body_has(&r->body, "content")) {
        return call_error_set(&r->error, 400, "invalid_value", "content",
                              "'input' and 'content' cannot both be given.");
    }
    return request_read_mixed(r, "input", MAX_INPUTS);
}

void apply_begin(struct request *r)
{
    r->form = FORM_TOKENIZE_CHAT;
    chat_begin(r);
}
