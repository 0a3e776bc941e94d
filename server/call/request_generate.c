// SPDX-License-Identifier: Apache-2.0
/* A line of `sluice generate --json`: a completion of one prompt, which may be scored or pooled
 * instead. Read like a server's request, except for a few members: prompts as ids have their own
 * name, `true` requests scores without alternatives, bad words may be ids, and the default of
 * max_tokens does not depend on the model's folder. */
#include "server/call/readers.h"

#include <string.h>

/* true, false, or the number of alternatives to the token itself. */
static void read_count(struct request *r, const char *key, bool *on, int32_t *n)
{
    const struct body_member *m = body_get(&r->body, key);
    int64_t v = 0;
    if (m && json_is(m->node, JSON_BOOL)) {
        *on = json_bool(m->node, false);
        return;
    }
    *on = request_read_share(r, key, &v);
    *n = (int32_t)v;
}

bool read_line_logprobs(struct request *r)
{
    read_count(r, "logprobs", &r->logprobs, &r->n_top);
    return true;
}

bool read_line_prompt_logprobs(struct request *r)
{
    read_count(r, "prompt_logprobs", &r->params.prompt_logprobs, &r->params.prompt_top_logprobs);
    return true;
}

/* Appends a word's ids after those of earlier words. */
static bool put_bad_word(struct request *r, const struct json *word, int32_t *lengths,
                         int32_t *tokens, size_t *n_tokens)
{
    if (!json_is(word, JSON_ARRAY)) {
        return body_wrong_type(&r->error, "bad_words", "either only strings or only arrays of ids",
                               word);
    }
    for (const struct json *item = json_first(word); item; item = json_next(item)) {
        int64_t id;
        if (!json_int64(item, &id) || id < 0 || id > INT32_MAX || *n_tokens == MAX_BAD_TOKENS) {
            return call_error_set(&r->error, 400, "invalid_value", "bad_words",
                                  "Invalid 'bad_words': expected at most %d token ids in all words "
                                  "together.",
                                  MAX_BAD_TOKENS);
        }
        tokens[(*n_tokens)++] = (int32_t)id;
        lengths[r->params.n_bad_words]++;
    }
    r->params.n_bad_words++;
    return true;
}

/* Words as in a server's request, or arrays of ids. */
bool read_line_bad_words(struct request *r)
{
    const struct json *words = NULL;
    size_t n_tokens = 0;
    if (!body_array(&r->body, "bad_words", &words) || !json_is(json_first(words), JSON_ARRAY)) {
        return r->error.status == 0 && read_bad_words(r);
    }
    size_t n = json_count(words);
    if (n > MAX_BAD_WORDS) {
        return call_error_set(&r->error, 400, "array_above_max_length", "bad_words",
                              "Invalid 'bad_words': expected at most %d words.", MAX_BAD_WORDS);
    }
    int32_t *lengths = arena_alloc(&r->arena, n, sizeof lengths[0]);
    int32_t *tokens = arena_alloc(&r->arena, MAX_BAD_TOKENS, sizeof tokens[0]);
    if (!lengths || !tokens) {
        return request_too_large(r);
    }
    r->params.bad_word_lengths = lengths;
    r->params.bad_word_tokens = tokens;
    for (const struct json *word = json_first(words); word; word = json_next(word)) {
        if (!put_bad_word(r, word, lengths, tokens, &n_tokens)) {
            return false;
        }
    }
    return true;
}

bool read_line_prompt(struct request *r)
{
    const struct body_member *ids = body_get(&r->body, "prompt_token_ids");
    if (ids && ids->node && !(json_is(ids->node, JSON_ARRAY) && json_count(ids->node) == 0)) {
        return body_wrong_type(&r->error, "prompt_token_ids", "an array of token ids", ids->node);
    }
    if (ids && body_has(&r->body, "prompt")) {
        return call_error_set(&r->error, 400, "invalid_value", "prompt_token_ids",
                              "'prompt' and 'prompt_token_ids' cannot both be given.");
    }
    return request_read_prompts(r, ids ? "prompt_token_ids" : "prompt", 1);
}

bool read_pool(struct request *r)
{
    static const enum pool_kind kinds[] = {POOL_MEAN, POOL_LAST, POOL_MAX, POOL_FIRST};
    int index;
    if (!body_choice(&r->body, "pool", "mean|last|max|first", &index)) {
        return true;
    }
    r->pools = true;
    r->generates = false;
    const struct engine_info *info = r->model->info;
    r->pooling = info->n_labels > 0 ? info->pooling : kinds[index];
    if (r->pooling == POOL_FIRST && !info->encoder) {
        return call_error_set(&r->error, 400, "unsupported_value", "pool",
                              "Unsupported value: 'pool' may be 'first' only for encoders.");
    }
    return true;
}

/* Defaults differ from the server's so that runs can be repeated. */
void generate_begin(struct request *r)
{
    r->params.seed = r->model->defaults.seed; // the same in each run
    r->output.include_stop = true;            // so that `text` covers all token_ids
    r->max_tokens = r->model->info->defaults.max_tokens;
    r->has_max_tokens = true;
    r->add_special = true;
    const char *name = NULL; // only that of an adapter matters, since there is only one model
    body_string(&r->body, "model", &name);
    call_model_take(r->model, name, false, &r->adapter);
    r->model_name = call_model_name(r->model, NULL, false);
}

bool generate_end(struct request *r)
{
    r->params.logprobs = r->logprobs;
    r->params.top_logprobs = r->n_top;
    r->has_max_tokens |= r->max_is_asked;
    r->max_is_asked = false; // as many as fit
    if (r->pools) {
        r->n = 1;
        r->params.min_tokens = 0;
    }
    return true;
}
