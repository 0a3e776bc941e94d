// SPDX-License-Identifier: Apache-2.0
/* The bodies of vLLM's /pooling and /classify, whose prompts are texts, ids or a conversation, and
 * of Cohere's /v2/embed. */
#include "engine/base/optional.h"
#include "server/call/readers.h"

#include "engine/base/words.h"

#include <string.h>

/* A conversation in place of `input` is one prompt. */
static void pooled_chat_begin(struct request *r)
{
    if (body_has(&r->body, "messages") && !body_has(&r->body, "input")) {
        r->form = FORM_POOL_CHAT;
        r->add_special = false; // the template writes the special tokens
    }
}

void vectors_begin(struct request *r)
{
    embeddings_begin(r);
    pooled_chat_begin(r);
}

/* Requests the probabilities of a classifier's two answers, instead of a vector. */
static void judge(struct request *r)
{
    r->generates = r->model->scoring.judges;
    r->pools = !r->generates;
}

/* ---- classes ------------------------------------------------------------------------------------
 */

void classify_begin(struct request *r)
{
    r->add_special = r->activates = true;
    judge(r);
    pooled_chat_begin(r);
}

bool classify_end(struct request *r)
{
    if (r->model->scoring.labels.n > 0) {
        r->normalize = r->stream = r->params.prompt_logprobs = false;
        r->params.min_tokens = 0;
        r->n = 1;
        return request_refuse_empty(r, "input");
    }
    if (!r->generates) {
        return call_error_set(&r->error, 400, "unsupported_model", "model",
                              "This model does not classify: it has no classification head, and is "
                              "not served as one that answers yes or no (--scoring yes-no).");
    }
    request_ask_each(r, r->model->scoring.answers, 2);
    return request_refuse_empty(r, "input");
}

/* For vectors: whether they are normalized. For a classifier: whether the answer is a
 * probability. */
bool read_use_activation(struct request *r)
{
    bool v;
    if (body_bool(&r->body, "use_activation", &v)) {
        r->normalize = r->activates = v;
    }
    return r->error.status == 0;
}

/* ---- pooling ------------------------------------------------------------------------------------
 */

void pooling_begin(struct request *r)
{
    vectors_begin(r);
    r->activates = true;
    judge(r);
}

bool read_task(struct request *r)
{
    const char *task = NULL;
    if (!body_string(&r->body, "task", &task)) {
        return r->error.status == 0;
    }
    if (strcmp(task, "plugin") == 0) { // in vLLM's words
        return call_error_set(
            &r->error, 400, "unsupported_value", "task",
            "No IOProcessor plugin installed. This server does not load plugins.");
    }
    int which = words_find("embed|classify|token_embed", task);
    const struct scoring *scoring = &r->model->scoring;
    const bool classifies = scoring->labels.n > 0, may = classifies || scoring->judges;
    if (which < 0 || (which == 1 ? !may : classifies)) {
        return call_error_set(&r->error, 400, "unsupported_value", "task",
                              "Unsupported task: '%.40s'. This model supports: %s%s%s.", task,
                              text_if(!classifies, "'embed', 'token_embed'"),
                              text_if(!classifies && may, ", "), text_if(may, "'classify'"));
    }
    r->generates = which == 1 && scoring->judges;
    r->pools = !r->generates;
    if (which == 2) {
        r->pooling = POOL_TOKENS;
    }
    return true;
}

bool pooling_end(struct request *r)
{
    if (r->pools && r->model->scoring.labels.n == 0) {
        return embeddings_end(r);
    }
    return classify_end(r);
}

/* ---- Cohere's -----------------------------------------------------------------------------------
 */

void cohere_begin(struct request *r)
{
    embeddings_begin(r);
    r->truncate = -1;
    r->truncate_right = true;
    r->vector_types = 1u << VECTOR_FLOAT;
}

bool read_embed_texts(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "texts");
    if (m && !json_is(m->node, JSON_ARRAY)) {
        return body_wrong_type(&r->error, "texts", "an array of strings", m->node);
    }
    if (m) {
        r->repeated = arena_strndup(&r->arena, m->start, m->n_bytes);
    } else {
        r->repeated = "";
    }
    if (r->repeated) {
        return request_read_prompts(r, "texts", MAX_INPUTS);
    }
    return request_too_large(r);
}

/* Refuses the member. The served models have no prompts per kind of input, so inputs of different
 * kinds would get the same embedding. */
bool read_input_type(struct request *r)
{
    const char *type = NULL;
    if (!body_string(&r->body, "input_type", &type)) {
        return r->error.status == 0;
    }
    return call_error_set(&r->error, 400, "unsupported_value", "input_type",
                          "Unsupported input_type '%.40s': this model has no prompts for kinds of "
                          "inputs.",
                          type);
}

bool read_vector_types(struct request *r)
{
    const struct json *list = NULL;
    if (!body_array(&r->body, "embedding_types", &list)) {
        return r->error.status == 0;
    }
    unsigned types = 0;
    for (const struct json *t = json_first(list); t; t = json_next(t)) {
        int which = -1;
        if (json_string(t)) {
            which = words_find(VECTOR_TYPES, json_string(t));
        }
        if (which < 0) {
            return call_error_set(&r->error, 400, "invalid_value", "embedding_types",
                                  "Invalid 'embedding_types': supported values are 'float', "
                                  "'binary', 'ubinary' and 'base64'.");
        }
        types |= 1u << which;
    }
    bool bits = types & (1u << VECTOR_BINARY | 1u << VECTOR_UBINARY);
    if (bits && r->model->info->pooled_width % 8 != 0) {
        return call_error_set(
            &r->error, 400, "unsupported_value", "embedding_types",
            "The dimension of embeddings must be a multiple of 8 for binary types, "
            "but is %d.",
            r->model->info->pooled_width);
    }
    if (types) {
        r->vector_types = types;
    }
    return true;
}

bool read_cohere_truncate(struct request *r)
{
    int which = 1;
    int64_t most = 0;
    body_choice(&r->body, "truncate", "NONE|END|START", &which);
    body_int(&r->body, "max_tokens", 1, INT32_MAX, &most);
    r->truncate_right = which == 1;
    int64_t context = r->model->info->max_model_len;
    if (most > 0 && most < context) {
        r->truncate = most;
    } else {
        r->truncate = which == 0 ? 0 : -1;
    }
    return r->error.status == 0;
}
