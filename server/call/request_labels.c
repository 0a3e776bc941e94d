// SPDX-License-Identifier: Apache-2.0
/* The body of vLLM's /generative_scoring: each item together with the query is a prompt, and the
 * answer is the probability of each label token after it. */
#include "server/call/readers.h"

#include <string.h>

/* The ids of a text or of a list of ids. */
static bool put_ids(struct request *r, const struct request_prompt *p, bool add_special,
                    struct ids *out)
{
    struct text_span span = {p->text, p->text_bytes, false};
    struct tokenizer_flags flags = {.add_special = add_special, .parse_special = r->parse_special};
    for (int32_t i = 0; i < p->n && !p->text; i++) {
        if (!ids_put(out, p->ids[i])) {
            return request_too_large(r);
        }
    }
    if (!p->text) {
        return true;
    }
    if (!r->model->tok) {
        return call_error_set(
            &r->error, 400, "unsupported_value", "query",
            "This model has no tokenizer: 'query' and 'items' must be token ids.");
    }
    return tokenizer_encode(r->model->tok, &span, 1, flags, out, NULL) == OK ||
           request_too_large(r);
}

/* Places the query before each item or, with item_first, after it. */
static bool join(struct request *r, const struct request_prompt *query, struct request_prompt *item)
{
    struct ids ids;
    ids_init(&ids, 16 << 20);
    const struct request_prompt *first = r->item_first ? item : query;
    bool good = put_ids(r, first, r->add_special && first == query, &ids) &&
                put_ids(r, first == item ? query : item, r->add_special && first == item, &ids);
    int32_t *copy = good ? arena_alloc(&r->arena, ids.n + 1, sizeof copy[0]) : NULL;
    if (copy && ids.n > 0) {
        memcpy(copy, ids.v, ids.n * sizeof copy[0]);
    }
    *item = (struct request_prompt){.ids = copy, .n = (int32_t)ids.n};
    ids_deinit(&ids);
    if (good && !copy) {
        return request_too_large(r);
    }
    return good;
}

/* The query is one prompt; items follow. */
bool read_label_query(struct request *r)
{
    if (!request_read_prompts(r, "query", 1) || !request_refuse_empty(r, "query")) {
        return false;
    }
    r->query = r->prompts;
    r->prompts = NULL;
    r->n_prompts = 0;
    return true;
}

bool read_label_items(struct request *r)
{
    return request_read_prompts(r, "items", MAX_INPUTS);
}

/* Ids of the labels, whose probabilities are compared. */
bool read_labels(struct request *r)
{
    struct id_list *lists;
    size_t n;
    const struct body_member *m = body_get(&r->body, "label_token_ids");
    if (!m) {
        return call_error_missing(&r->error, "label_token_ids");
    }
    if (!body_id_lists(&r->body, "label_token_ids", 1, &lists, &n)) {
        bool empty = json_is(m->node, JSON_ARRAY) && json_count(m->node) == 0;
        if (empty) {
            return call_error_empty(&r->error, "label_token_ids");
        }
        return r->error.status == 0 &&
               body_wrong_type(&r->error, "label_token_ids", "an array of token ids", m->node);
    }
    if (lists->n > MAX_LABELS) {
        return call_error_set(&r->error, 400, "array_above_max_length", "label_token_ids",
                              "Invalid 'label_token_ids': array too long. Expected at most %d "
                              "items.",
                              MAX_LABELS);
    }
    for (size_t i = 0; i < lists->n; i++) {
        if (lists->ids[i] >= r->model->info->vocab) {
            return call_error_set(&r->error, 400, "invalid_value", "label_token_ids",
                                  "Invalid 'label_token_ids': token id %d is out of vocabulary.",
                                  lists->ids[i]);
        }
    }
    request_ask_each(r, lists->ids, (int32_t)lists->n);
    return true;
}

void labels_begin(struct request *r)
{
    r->add_special = r->activates = true;
}

/* Joins each item with the query as ids, so that the prompts share a prefix that can be cached. */
bool labels_end(struct request *r)
{
    for (size_t i = 0; i < r->n_prompts; i++) {
        if (!join(r, r->query, &r->prompts[i])) {
            return false;
        }
    }
    return true;
}
