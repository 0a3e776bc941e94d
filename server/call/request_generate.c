/* A line of `sluice generate --json`: a completion of one prompt, which may be scored or pooled instead.
 * It is read as a server's request is, but for the members below: prompts as ids under a name of their
 * own, `true` for scores without alternatives, bad words as ids, any temperature, and a default of
 * tokens that no folder changes. */
#include "server/call/request.h"

#include <float.h>
#include <string.h>

struct own_members {
    double temperature;
    bool has_temperature, logprobs, prompt_logprobs, pools;
    int32_t n_top, n_prompt_top;
    int pooling; // 0: mean
    int32_t n_bad_words;
    int32_t *bad_lengths, *bad_tokens;
};

/* true, false, or how many others beside the token itself. */
static void read_count(struct api_request *r, const char *key, bool *on, int32_t *n)
{
    const struct body_member *m = body_get(&r->body, key);
    int64_t v = 0;
    if (m && json_is(m->node, JSON_BOOL)) {
        *on = json_bool(m->node, false);
        return;
    }
    *on = body_int(&r->body, key, 0, r->model->config->max_logprobs, &v);
    *n = (int32_t)v;
}

static bool read_bad_word(struct api_request *r, const struct json *word, struct own_members *own,
                          size_t *n_tokens)
{
    if (!json_is(word, JSON_ARRAY)) {
        return body_wrong_type(&r->error, "bad_words", "strings alone or arrays of ids alone", word);
    }
    for (const struct json *item = json_first(word); item; item = json_next(item)) {
        int64_t id;
        if (!json_int64(item, &id) || id < 0 || id > INT32_MAX || *n_tokens == MAX_BAD_TOKENS) {
            return api_error_set(&r->error, 400, "invalid_value", "bad_words",
                                 "Invalid 'bad_words': expected at most %d token ids, of all words "
                                 "together.", MAX_BAD_TOKENS);
        }
        own->bad_tokens[(*n_tokens)++] = (int32_t)id;
        own->bad_lengths[own->n_bad_words]++;
    }
    own->n_bad_words++;
    return true;
}

/* Words that are arrays of ids; strings are for the common reader. */
static bool read_bad_words(struct api_request *r, struct own_members *own)
{
    const struct json *words = NULL;
    size_t n_tokens = 0;
    if (!body_array(&r->body, "bad_words", &words)) {
        return r->error.status == 0;
    }
    size_t n = json_count(words);
    if (!json_is(json_first(words), JSON_ARRAY)) {
        return true;
    }
    if (n > MAX_BAD_WORDS) {
        return api_error_set(&r->error, 400, "array_above_max_length", "bad_words",
                             "Invalid 'bad_words': expected at most %d words.", MAX_BAD_WORDS);
    }
    own->bad_lengths = arena_alloc(&r->arena, n, sizeof own->bad_lengths[0]);
    own->bad_tokens = arena_alloc(&r->arena, MAX_BAD_TOKENS, sizeof own->bad_tokens[0]);
    if (!own->bad_lengths || !own->bad_tokens) {
        return request_too_large(r);
    }
    for (const struct json *word = json_first(words); word; word = json_next(word)) {
        if (!read_bad_word(r, word, own, &n_tokens)) {
            return false;
        }
    }
    return true;
}

/* What is read here is hidden from the common reader, whose bounds are others. The model's name is not
 * looked at: there is one. */
static void hide(struct api_body *b, const struct own_members *own)
{
    static const char *const keys[] = {"prompt_token_ids", "pool", "temperature", "prompt_logprobs",
                                       "model"};
    size_t n = 0;
    for (size_t i = 0; i < b->n_members; i++) {
        bool hidden = own->bad_tokens && strcmp(b->members[i].key, "bad_words") == 0;
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            hidden = hidden || strcmp(b->members[i].key, keys[k]) == 0;
        }
        if (!hidden) {
            b->members[n++] = b->members[i];
        }
    }
    b->n_members = n;
}

static bool read_prompt(struct api_request *r)
{
    const struct body_member *ids = body_get(&r->body, "prompt_token_ids");
    if (ids && ids->node && !(json_is(ids->node, JSON_ARRAY) && json_count(ids->node) == 0)) {
        return body_wrong_type(&r->error, "prompt_token_ids", "an array of token ids", ids->node);
    }
    if (ids && body_has(&r->body, "prompt")) {
        return api_error_set(&r->error, 400, "invalid_value", "prompt_token_ids",
                             "'prompt' and 'prompt_token_ids' are both there.");
    }
    return request_read_prompts(r, ids ? "prompt_token_ids" : "prompt", 1);
}

static void apply(struct api_request *r, const struct own_members *own)
{
    struct sampling_params *p = &r->params;
    p->temperature = own->has_temperature ? (float)own->temperature : p->temperature;
    p->seed = body_has(&r->body, "seed") ? p->seed : r->model->defaults.seed; // the same in each run
    p->logprobs = r->logprobs = own->logprobs;
    p->top_logprobs = r->n_top = own->n_top;
    p->prompt_logprobs = own->prompt_logprobs;
    p->prompt_top_logprobs = own->n_prompt_top;
    if (own->bad_tokens) {
        p->n_bad_words = own->n_bad_words;
        p->bad_word_lengths = own->bad_lengths;
        p->bad_word_tokens = own->bad_tokens;
    }
    if (own->pools) {
        r->pools = true;
        r->generates = false;
        r->pooling = own->pooling == 0 ? POOL_MEAN : POOL_LAST;
        r->n = 1;
        p->min_tokens = 0;
    }
}

bool request_read_generate(struct api_request *r)
{
    struct own_members own = {0};
    own.has_temperature = body_real(&r->body, "temperature", 0, FLT_MAX, &own.temperature);
    read_count(r, "logprobs", &own.logprobs, &own.n_top);
    read_count(r, "prompt_logprobs", &own.prompt_logprobs, &own.n_prompt_top);
    own.pools = body_choice(&r->body, "pool", "mean|last", &own.pooling);
    r->max_tokens = r->model->info->defaults.max_tokens;
    body_int(&r->body, "max_tokens", 0, INT32_MAX, &r->max_tokens);
    if (r->error.status != 0 || !read_bad_words(r, &own) || !read_prompt(r)) {
        return false;
    }
    hide(&r->body, &own);
    r->output.include_stop = true; // the text of all token_ids
    if (!request_read_common(r)) {
        return false;
    }
    apply(r, &own);
    r->add_special = r->has_add_special ? r->add_special : true;
    r->has_max_tokens = true; // and not asked for: cut to what fits
    return true;
}
