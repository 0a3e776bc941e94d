// SPDX-License-Identifier: Apache-2.0
/* The member prompt_logprob_token_ids of /inference/v1/generate: for each token of the prompt, ids
 * whose log-probabilities at its place are wanted. */
#include "engine/base/minmax.h"
#include "server/call/readers.h"

static const char key[] = "prompt_logprob_token_ids";

/* Reads the lists from a tree into the form in which the body has long lists of ids. */
static bool list_tree(struct request *r, const struct json *rows, struct id_list *lists)
{
    size_t i = 0;
    for (const struct json *row = json_first(rows); row; row = json_next(row), i++) {
        if (!json_is(row, JSON_ARRAY)) {
            return body_wrong_type(&r->error, key, "an array of arrays of token ids", row);
        }
        int32_t *ids = arena_alloc(&r->arena, json_count(row) + 1, sizeof *ids);
        if (!ids) {
            return request_too_large(r);
        }
        lists[i] = (struct id_list){.ids = ids};
        for (const struct json *v = json_first(row); v; v = json_next(v)) {
            int64_t id;
            if (!json_int64(v, &id)) {
                return body_wrong_type(&r->error, key, "an array of arrays of token ids", v);
            }
            if (id < -1 || id >= r->model->info->vocab) {
                return call_error_set(&r->error, 400, "invalid_value", key,
                                      "Invalid '%s': token id %lld is out of vocabulary.", key,
                                      (long long)id);
            }
            ids[lists[i].n++] = (int32_t)id;
        }
    }
    return true;
}

/* Shorter rows are filled up with -1. */
static bool keep_rows(struct request *r, const struct id_list *lists, size_t n_rows)
{
    const int64_t most = r->model->config->max_logprobs;
    size_t n_ids = 0;
    for (size_t i = 0; i < n_rows; i++) {
        n_ids = greater(lists[i].n, n_ids);
    }
    if (n_ids == 0) {
        return call_error_empty(&r->error, key);
    }
    if (most >= 0 && n_ids > (size_t)most) {
        return call_error_set(&r->error, 400, "array_above_max_length", key,
                              "Invalid '%s': array too long. Expected at most %lld ids for each "
                              "token (--max-logprobs).",
                              key, (long long)most);
    }
    int32_t *all = arena_alloc(&r->arena, n_rows * n_ids, sizeof *all);
    if (!all) {
        return request_too_large(r);
    }
    for (size_t i = 0; i < n_rows; i++) {
        for (size_t k = 0; k < n_ids; k++) {
            all[i * n_ids + k] = k < lists[i].n ? lists[i].ids[k] : -1;
        }
    }
    r->params.prompt_logprob_ids = all;
    r->params.prompt_logprobs = true;
    r->params.prompt_top_logprobs = (int32_t)n_ids;
    r->n_scored = (int32_t)n_rows;
    return true;
}

bool read_scored_ids(struct request *r)
{
    const struct body_member *m = body_get(&r->body, key);
    struct id_list *lists = NULL;
    size_t n_rows = 0;
    if (!m) {
        return true;
    }
    if (r->stream || r->params.prompt_top_logprobs > 0) {
        return call_error_set(&r->error, 400, "invalid_value", key,
                              "'%s' is not available when 'stream' is enabled, or together with "
                              "'prompt_logprobs' above 0.",
                              key);
    }
    if (!m->node) {
        if (body_id_lists(&r->body, key, (size_t)r->model->info->max_model_len, &lists, &n_rows)) {
            return keep_rows(r, lists, n_rows);
        }
        return r->error.status == 0 &&
               body_wrong_type(&r->error, key, "an array of arrays of token ids", NULL);
    }
    if (!json_is(m->node, JSON_ARRAY)) {
        return body_wrong_type(&r->error, key, "an array of arrays of token ids", m->node);
    }
    n_rows = json_count(m->node);
    lists = arena_alloc(&r->arena, n_rows + 1, sizeof *lists);
    if (!lists) {
        return request_too_large(r);
    }
    return list_tree(r, m->node, lists) && keep_rows(r, lists, n_rows);
}

/* Each token after the first one, from prompt_logprob_start on, has a row. */
bool request_check_scores(struct request *r)
{
    const int32_t expected = r->prompts[0].n - 1 - r->params.prompt_logprob_start;
    if (!r->params.prompt_logprob_ids || r->n_scored == expected) {
        return true;
    }
    return call_error_set(&r->error, 400, "invalid_value", key,
                          "Invalid '%s': %d rows were given, but the prompt has %d scored rows.",
                          key, r->n_scored, greater(expected, 0));
}
