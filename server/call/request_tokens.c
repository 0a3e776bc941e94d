// SPDX-License-Identifier: Apache-2.0
/* The bodies of /inference/v1/generate and of the two /render endpoints. Members of
 * "sampling_params" in the former are read like members of the body. */
#include "engine/base/minmax.h"
#include "server/call/readers.h"

#include <string.h>

void render_chat_begin(struct request *r)
{
    r->form = FORM_CHAT;
    chat_begin(r);
}

void render_begin(struct request *r)
{
    r->form = FORM_COMPLETIONS;
    completion_begin(r);
}

void tokens_begin(struct request *r)
{
    body_lift(&r->body, "sampling_params");
    r->has_max_tokens = r->model->has_default_max_tokens;
    r->max_tokens = r->model->defaults.max_tokens;
}

bool read_token_ids(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "token_ids");
    if (m && m->node && !(json_is(m->node, JSON_ARRAY) && json_count(m->node) == 0)) {
        return body_wrong_type(&r->error, "token_ids", "an array of token ids", m->node);
    }
    return request_read_prompts(r, "token_ids", 1);
}

bool read_detokenize(struct request *r)
{
    bool wanted = true;
    body_bool(&r->body, "detokenize", &wanted);
    if (wanted || r->output.n_stop == 0) {
        return true;
    }
    return call_error_set(&r->error, 400, "invalid_value", "detokenize",
                          "Stop strings are found in text: 'detokenize' must not be false.");
}

bool tokens_end(struct request *r)
{
    r->return_token_ids = true;
    r->has_max_tokens |= r->max_is_asked;
    if (r->logprobs && r->n_top < 1) {
        r->n_top = 1; // the token itself
    }
    r->params.logprobs = r->logprobs;
    r->params.top_logprobs = r->n_top;
    return true;
}
