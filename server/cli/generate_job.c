#include "server/cli/generate_job.h"

#include "engine/base/json.h"
#include "engine/tokenizer/detok.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_JOB_BYTES = 1 << 30, MAX_STRING_TOKENS = 1 << 22 };

static enum status out_of_room(struct err *err)
{
    return err_set(err, ERR_NOMEM, "the request is too large");
}

/* ---- reading ------------------------------------------------------------------------------ */

/* An array of ids under `key` into the arena; absent: n stays 0. */
static enum status read_ids(struct arena *a, const struct json *j, const char *key,
                            const int32_t **ids, int32_t *n, struct err *err)
{
    const struct json *list = json_get(j, key);
    if (json_type(list) == JSON_NULL) {
        return OK;
    }
    size_t count = json_count(list);
    int32_t *v = json_is(list, JSON_ARRAY) ? arena_alloc(a, count ? count : 1, sizeof *v) : NULL;
    if (!v) {
        return err_set(err, ERR_INVALID, "%s must be an array of token ids", key);
    }
    size_t i = 0;
    for (const struct json *item = json_first(list); item; item = json_next(item)) {
        int64_t id;
        if (!json_int64(item, &id) || id < 0 || id > INT32_MAX) {
            return err_set(err, ERR_INVALID, "%s[%zu] is not a token id", key, i);
        }
        v[i++] = (int32_t)id;
    }
    *ids = v;
    *n = (int32_t)count;
    return OK;
}

static enum status encode(struct arena *a, const struct generate_context *cx, const char *text,
                          bool add_special, const int32_t **ids, int32_t *n, struct err *err)
{
    if (!cx->tokenizer) {
        return err_set(err, ERR_INVALID, "no text without a tokenizer, only prompt_token_ids: %s",
                       cx->no_tokenizer);
    }
    struct ids list;
    ids_init(&list, MAX_STRING_TOKENS);
    struct text_span span = {.text = text, .n_bytes = strlen(text)};
    struct tokenizer_flags flags = {.add_special = add_special, .parse_special = true};
    enum status st = tokenizer_encode(cx->tokenizer, &span, 1, flags, &list, err);
    int32_t *v = st == OK ? arena_alloc(a, list.n ? list.n : 1, sizeof *v) : NULL;
    if (st == OK && !v) {
        st = out_of_room(err);
    }
    if (st == OK) {
        memcpy(v, list.v ? list.v : v, list.n * sizeof *v);
        *ids = v;
        *n = (int32_t)list.n;
    }
    ids_deinit(&list);
    return st;
}

static enum status read_prompt(struct generate_job *job, const struct generate_context *cx,
                               const struct json *j, struct err *err)
{
    struct engine_request *r = &job->request;
    bool ids = json_type(json_get(j, "prompt_token_ids")) != JSON_NULL;
    enum json_type prompt = json_type(json_get(j, "prompt"));
    if (ids && prompt != JSON_NULL) {
        return err_set(err, ERR_INVALID, "prompt and prompt_token_ids are both there");
    }
    if (prompt == JSON_STRING) {
        return encode(&job->arena, cx, json_get_string(j, "prompt"), true, &r->prompt, &r->n_prompt,
                      err);
    }
    if (prompt != JSON_NULL && prompt != JSON_ARRAY) {
        return err_set(err, ERR_INVALID, "prompt must be a string or an array of token ids");
    }
    TRY(read_ids(&job->arena, j, ids ? "prompt_token_ids" : "prompt", &r->prompt, &r->n_prompt,
                 err));
    if (r->n_prompt == 0) {
        return err_set(err, ERR_INVALID, "prompt or prompt_token_ids is missing or empty");
    }
    return OK;
}

static enum status read_int(const struct json *j, const char *key, int64_t low, int64_t high,
                            int32_t *out, struct err *err)
{
    const struct json *node = json_get(j, key);
    int64_t v;
    if (json_type(node) == JSON_NULL) {
        return OK;
    }
    if (!json_int64(node, &v) || v < low || v > high) {
        return err_set(err, ERR_INVALID, "%s must be an integer from %lld to %lld", key,
                       (long long)low, (long long)high);
    }
    *out = (int32_t)v;
    return OK;
}

static enum status read_float(const struct json *j, const char *key, float *out, struct err *err)
{
    const struct json *node = json_get(j, key);
    if (json_type(node) == JSON_NULL) {
        return OK;
    }
    if (!json_is(node, JSON_NUMBER)) {
        return err_set(err, ERR_INVALID, "%s must be a number", key);
    }
    *out = (float)json_number(node, 0.0);
    return OK;
}

static enum status read_bool(const struct json *j, const char *key, bool *out, struct err *err)
{
    const struct json *node = json_get(j, key);
    if (json_type(node) != JSON_NULL && !json_is(node, JSON_BOOL)) {
        return err_set(err, ERR_INVALID, "%s must be true or false", key);
    }
    *out = json_bool(node, false);
    return OK;
}

/* Any whole number that a double holds; it only has to be the same one again. */
static enum status read_seed(const struct json *j, uint64_t *out, struct err *err)
{
    const struct json *node = json_get(j, "seed");
    int64_t v = 0;
    if (json_type(node) != JSON_NULL && !json_int64(node, &v)) {
        return err_set(err, ERR_INVALID, "seed must be an integer from -2^53 to 2^53");
    }
    *out = (uint64_t)v;
    return OK;
}

/* true, false, or how many others beside the token itself. */
static enum status read_count(const struct json *j, const char *key, bool *on, int32_t *n,
                              struct err *err)
{
    const struct json *node = json_get(j, key);
    if (json_is(node, JSON_BOOL)) {
        *on = json_bool(node, false);
        return OK;
    }
    *on = json_type(node) != JSON_NULL;
    return read_int(j, key, 0, MAX_TOP_LOGPROBS, n, err);
}

static enum status read_bias(struct generate_job *job, const struct json *j, struct err *err)
{
    const struct json *map = json_get(j, "logit_bias");
    if (json_type(map) == JSON_NULL) {
        return OK;
    }
    size_t n = json_count(map);
    struct logit_bias *v = arena_alloc(&job->arena, n ? n : 1, sizeof *v);
    if (!json_is(map, JSON_OBJECT) || !v) {
        return err_set(err, ERR_INVALID, "logit_bias must be an object of token id: bias");
    }
    size_t i = 0;
    for (const struct json *item = json_first(map); item; item = json_next(item), i++) {
        char *end;
        long id = strtol(json_key(item), &end, 10);
        bool is_id = end != json_key(item) && *end == '\0' && id >= 0 && id <= INT32_MAX;
        if (!is_id || !json_is(item, JSON_NUMBER)) {
            return err_set(err, ERR_INVALID, "logit_bias[\"%s\"] is not a bias of a token id",
                           json_key(item));
        }
        v[i] = (struct logit_bias){(int32_t)id, (float)json_number(item, 0.0)};
    }
    job->request.params.bias = v;
    job->request.params.n_bias = (int32_t)n;
    return OK;
}

/* Each bad word is a string, or an array of ids. */
static enum status read_bad_words(struct generate_job *job, const struct generate_context *cx,
                                  const struct json *j, struct err *err)
{
    const struct json *list = json_get(j, "bad_words");
    size_t n = json_count(list), n_tokens = 0;
    if (json_type(list) != JSON_NULL && !json_is(list, JSON_ARRAY)) {
        return err_set(err, ERR_INVALID, "bad_words must be an array of strings or arrays of ids");
    }
    if (n == 0) {
        return OK;
    }
    int32_t *lengths = arena_alloc(&job->arena, n, sizeof *lengths);
    int32_t *tokens = arena_alloc(&job->arena, MAX_BAD_TOKENS, sizeof *tokens);
    if (!lengths || !tokens || n > MAX_BAD_WORDS) {
        return err_set(err, ERR_INVALID, "bad_words: at most %d are supported", MAX_BAD_WORDS);
    }
    size_t i = 0;
    for (const struct json *item = json_first(list); item; item = json_next(item), i++) {
        const int32_t *ids = NULL;
        int32_t n_ids = 0;
        if (json_string(item)) {
            TRY(encode(&job->arena, cx, json_string(item), false, &ids, &n_ids, err));
        } else if (!json_is(item, JSON_ARRAY)) {
            return err_set(err, ERR_INVALID, "bad_words[%zu] is no string and no list of ids", i);
        }
        for (const struct json *id = json_first(item); id; id = json_next(id)) {
            int64_t v;
            if (!json_int64(id, &v) || v < 0 || v > INT32_MAX || n_tokens == MAX_BAD_TOKENS) {
                return err_set(err, ERR_INVALID, "bad_words[%zu] is not a list of ids", i);
            }
            tokens[n_tokens++] = (int32_t)v;
            lengths[i]++;
        }
        if ((size_t)n_ids > MAX_BAD_TOKENS - n_tokens) {
            return err_set(err, ERR_INVALID, "bad_words: over %d tokens together", MAX_BAD_TOKENS);
        }
        memcpy(tokens + n_tokens, ids ? ids : tokens, (size_t)n_ids * sizeof *tokens);
        n_tokens += (size_t)n_ids;
        lengths[i] += n_ids;
    }
    job->request.params.n_bad_words = (int32_t)n;
    job->request.params.bad_word_lengths = lengths;
    job->request.params.bad_word_tokens = tokens;
    return OK;
}

/* The request's own stop ids and, unless ignore_eos, the model's. */
static enum status read_stops(struct generate_job *job, const struct generate_context *cx,
                              const struct json *j, struct err *err)
{
    struct sampling_params *p = &job->request.params;
    TRY(read_ids(&job->arena, j, "stop_token_ids", &p->stop_ids, &p->n_stop_ids, err));
    TRY(read_bool(j, "ignore_eos", &p->ignore_eos, err));
    if (p->ignore_eos) {
        return OK;
    }
    int32_t n = p->n_stop_ids + cx->info->n_eos;
    int32_t *all = arena_alloc(&job->arena, (size_t)(n ? n : 1), sizeof *all);
    if (!all) {
        return out_of_room(err);
    }
    for (int32_t i = 0; i < n; i++) {
        all[i] = i < p->n_stop_ids ? p->stop_ids[i] : cx->info->eos[i - p->n_stop_ids];
    }
    p->stop_ids = all;
    p->n_stop_ids = n;
    return OK;
}

static enum status read_params(struct generate_job *job, const struct generate_context *cx,
                               const struct json *j, struct err *err)
{
    struct sampling_params *p = &job->request.params;
    *p = cx->info->defaults;
    TRY(read_int(j, "max_tokens", 0, INT32_MAX, &p->max_tokens, err));
    TRY(read_int(j, "min_tokens", 0, INT32_MAX, &p->min_tokens, err));
    TRY(read_int(j, "top_k", -1, INT32_MAX, &p->top_k, err));
    p->top_k = p->top_k < 0 ? 0 : p->top_k;
    TRY(read_int(j, "n", 1, 128, &job->request.n, err));
    TRY(read_int(j, "priority", INT32_MIN, INT32_MAX, &job->request.priority, err));
    TRY(read_int(j, "num_speculative_tokens", 0, INT32_MAX, &p->num_speculative_tokens, err));
    TRY(read_float(j, "temperature", &p->temperature, err));
    TRY(read_float(j, "top_p", &p->top_p, err));
    TRY(read_float(j, "min_p", &p->min_p, err));
    TRY(read_float(j, "repetition_penalty", &p->repetition_penalty, err));
    TRY(read_float(j, "frequency_penalty", &p->frequency_penalty, err));
    TRY(read_float(j, "presence_penalty", &p->presence_penalty, err));
    TRY(read_seed(j, &p->seed, err));
    TRY(read_count(j, "logprobs", &p->logprobs, &p->top_logprobs, err));
    TRY(read_count(j, "prompt_logprobs", &p->prompt_logprobs, &p->prompt_top_logprobs, err));
    TRY(read_ids(&job->arena, j, "allowed_token_ids", &p->allowed, &p->n_allowed, err));
    if (p->allowed && p->n_allowed == 0) {
        return err_set(err, ERR_INVALID, "allowed_token_ids is empty");
    }
    if (p->min_tokens > p->max_tokens) {
        return err_set(err, ERR_INVALID, "min_tokens is more than max_tokens");
    }
    TRY(read_bias(job, j, err));
    TRY(read_bad_words(job, cx, j, err));
    return read_stops(job, cx, j, err);
}

/* ---- memory of the answer ------------------------------------------------------------------ */

static struct token_logprobs *alloc_logprobs(struct arena *a, int32_t n, int32_t n_top)
{
    size_t count = (size_t)(n > 0 ? n : 1), tops = count * (size_t)(n_top > 0 ? n_top : 1);
    struct token_logprobs *v = arena_alloc(a, count, sizeof *v);
    int32_t *ids = arena_alloc(a, tops, sizeof *ids);
    float *values = arena_alloc(a, tops, sizeof *values);
    if (!v || !ids || !values) {
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        v[i].top_ids = ids + i * (size_t)n_top;
        v[i].top_logprobs = values + i * (size_t)n_top;
    }
    return v;
}

static enum status alloc_outputs(struct generate_job *job, const struct generate_context *cx,
                                 struct err *err)
{
    struct engine_request *r = &job->request;
    struct sampling_params *p = &r->params;
    int32_t room = cx->info->max_model_len - r->n_prompt;
    p->max_tokens = p->max_tokens < room ? p->max_tokens : room > 0 ? room : 0;
    p->min_tokens = p->min_tokens < p->max_tokens ? p->min_tokens : p->max_tokens;
    r->outputs = arena_alloc(&job->arena, (size_t)r->n, sizeof *r->outputs);
    for (int32_t i = 0; i < r->n && r->outputs; i++) {
        struct engine_output *o = &r->outputs[i];
        o->tokens = arena_alloc(&job->arena, (size_t)p->max_tokens + 1, sizeof *o->tokens);
        o->logprobs =
            p->logprobs ? alloc_logprobs(&job->arena, p->max_tokens, p->top_logprobs) : NULL;
        if (!o->tokens || (p->logprobs && !o->logprobs)) {
            return out_of_room(err);
        }
    }
    if (p->prompt_logprobs) {
        r->prompt_logprobs = alloc_logprobs(&job->arena, r->n_prompt, p->prompt_top_logprobs);
    }
    bool missing = !r->outputs || (p->prompt_logprobs && !r->prompt_logprobs);
    return missing ? out_of_room(err) : OK;
}

static enum status read_pool(struct generate_job *job, const struct generate_context *cx,
                             const struct json *j, struct err *err)
{
    const struct json *node = json_get(j, "pool");
    if (json_type(node) == JSON_NULL) {
        return OK;
    }
    const char *name = json_string(node);
    bool mean = name && strcmp(name, "mean") == 0;
    if (!name || (!mean && strcmp(name, "last") != 0)) {
        return err_set(err, ERR_INVALID, "pool must be \"mean\" or \"last\"");
    }
    job->request.pool = mean ? POOL_MEAN : POOL_LAST;
    job->request.n = 1;
    job->request.pooled =
        arena_alloc(&job->arena, (size_t)cx->info->hidden, sizeof *job->request.pooled);
    return job->request.pooled ? OK : out_of_room(err);
}

/* Other keys are no error, since requests for servers have more of them, but may be misspelt. */
static void note_unknown(struct generate_job *job, const struct json *j)
{
    static const char *const known[] = {
        "prompt", "prompt_token_ids", "max_tokens", "min_tokens", "temperature", "top_k", "top_p",
        "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed", "n",
        "logprobs", "prompt_logprobs", "allowed_token_ids", "logit_bias", "bad_words",
        "stop_token_ids", "ignore_eos", "priority", "num_speculative_tokens", "pool",
    };
    for (const struct json *item = json_first(j); item; item = json_next(item)) {
        size_t i = 0, n = sizeof known / sizeof known[0];
        while (i < n && strcmp(known[i], json_key(item)) != 0) {
            i++;
        }
        if (i == n && !job->unknown[0]) {
            snprintf(job->unknown, sizeof job->unknown, "%s", json_key(item));
        }
    }
}

static enum status read_job(struct generate_job *job, const struct generate_context *cx,
                            const struct json *j, struct err *err)
{
    if (!json_is(j, JSON_OBJECT)) {
        return err_set(err, ERR_INVALID, "a line must be a JSON object");
    }
    job->request.n = 1;
    note_unknown(job, j);
    TRY(read_prompt(job, cx, j, err));
    TRY(read_params(job, cx, j, err));
    TRY(read_pool(job, cx, j, err));
    return alloc_outputs(job, cx, err);
}

void generate_job_init(struct generate_job *job, const struct generate_context *cx,
                       const char *line, size_t n_bytes)
{
    *job = (struct generate_job){0};
    arena_init(&job->arena, MAX_JOB_BYTES);
    struct json *j;
    enum status st = json_parse(line, n_bytes, NULL, &j, &job->error);
    if (st == OK) {
        st = read_job(job, cx, j, &job->error);
        json_free(j);
    }
    job->failed = st != OK;
}

void generate_job_deinit(struct generate_job *job)
{
    arena_deinit(&job->arena);
}

/* ---- writing ------------------------------------------------------------------------------ */

static const char *finish_name(enum finish_reason reason)
{
    static const char *const names[] = {"none", "stop", "length", "cancelled", "error"};
    return names[reason];
}

/* JSON has neither infinities nor NaN, which broken weights give: then the API's least. */
static void put_logprob(struct buf *out, float v)
{
    buf_printf(out, "%.9g", v > -9999.0f ? (double)v : -9999.0);
}

static void put_top(struct buf *out, const struct token_logprobs *l)
{
    buf_putc(out, '[');
    for (int32_t i = 0; i < l->n_top; i++) {
        buf_printf(out, "%s[%d, ", i ? ", " : "", l->top_ids[i]);
        put_logprob(out, l->top_logprobs[i]);
        buf_putc(out, ']');
    }
    buf_putc(out, ']');
}

/* Entries first .. n of both forms; those before `first` are null. */
static void put_logprobs(struct buf *out, const char *key, const char *top_key,
                         const struct token_logprobs *l, int32_t first, int32_t n, bool tops)
{
    buf_printf(out, "\"%s\": [", key);
    for (int32_t i = 0; i < n; i++) {
        buf_puts(out, i ? ", " : "");
        if (i < first) {
            buf_puts(out, "null");
        } else {
            put_logprob(out, l[i].logprob);
        }
    }
    buf_puts(out, "], ");
    if (!tops) {
        return;
    }
    buf_printf(out, "\"%s\": [", top_key);
    for (int32_t i = 0; i < n; i++) {
        buf_puts(out, i ? ", " : "");
        if (i < first) {
            buf_puts(out, "null");
        } else {
            put_top(out, &l[i]);
        }
    }
    buf_puts(out, "], ");
}

static void put_text(struct buf *out, const struct generate_context *cx,
                     const struct engine_output *o)
{
    struct buf text;
    buf_init(&text, MAX_JOB_BYTES);
    struct detok d;
    detok_init(&d, cx->tokenizer, true);
    for (int32_t i = 0; i < o->n_tokens; i++) {
        detok_push(&d, o->tokens[i], &text);
    }
    detok_flush(&d, &text);
    buf_puts(out, "\"text\": ");
    buf_put_json(out, text.data ? text.data : "", text.n_bytes);
    buf_puts(out, ", ");
    buf_deinit(&text);
}

static void put_output(struct buf *out, const struct generate_context *cx,
                       const struct generate_job *job, int32_t sample)
{
    const struct sampling_params *p = &job->request.params;
    const struct engine_output *o = &job->request.outputs[sample];
    buf_puts(out, sample ? ", {\"token_ids\": [" : "{\"token_ids\": [");
    for (int32_t i = 0; i < o->n_tokens; i++) {
        buf_printf(out, "%s%d", i ? ", " : "", o->tokens[i]);
    }
    buf_puts(out, "], ");
    if (p->logprobs) {
        put_logprobs(out, "logprobs", "top_logprobs", o->logprobs, 0, o->n_tokens, true);
    }
    if (cx->tokenizer) {
        put_text(out, cx, o);
    }
    buf_printf(out, "\"finish_reason\": \"%s\"}",
               finish_name((enum finish_reason)o->finish));
}

static void put_error(struct buf *out, const char *text)
{
    buf_puts(out, "{\"error\": ");
    buf_put_json(out, text, strlen(text));
    buf_puts(out, "}\n");
}

void generate_job_print(const struct generate_job *job, const struct generate_context *cx,
                        struct buf *out)
{
    const struct engine_request *r = &job->request;
    if (job->failed || r->error != OK) {
        put_error(out, job->failed ? job->error.text : r->error_text);
        return;
    }
    buf_putc(out, '{');
    if (r->params.prompt_logprobs) {
        put_logprobs(out, "prompt_logprobs", "prompt_top_logprobs", r->prompt_logprobs, 1,
                     r->n_prompt, r->params.prompt_top_logprobs > 0);
    }
    int32_t n_generated = 0;
    if (r->pool != POOL_NONE) {
        buf_puts(out, "\"embedding\": [");
        for (int32_t i = 0; i < cx->info->hidden; i++) {
            double v = isfinite(r->pooled[i]) ? (double)r->pooled[i] : 0.0;
            buf_printf(out, "%s%.9g", i ? ", " : "", v);
        }
        buf_puts(out, "], ");
    } else {
        buf_puts(out, "\"outputs\": [");
        for (int32_t i = 0; i < r->n; i++) {
            put_output(out, cx, job, i);
            n_generated += r->outputs[i].n_tokens;
        }
        buf_puts(out, "], ");
    }
    buf_printf(out, "\"usage\": {\"prompt_tokens\": %d, \"completion_tokens\": %d, "
                    "\"cached_tokens\": %d, \"preemptions\": %d, \"draft_tokens\": %d, "
                    "\"accepted_draft_tokens\": %d}}\n",
               r->n_prompt, n_generated, r->n_cached, r->n_preemptions, r->n_drafts,
               r->n_accepted);
}
