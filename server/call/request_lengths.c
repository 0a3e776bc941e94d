// SPDX-License-Identifier: Apache-2.0
/* The members that limit an answer's length, under the names that servers give them. */
#include "server/call/readers.h"

#include <string.h>

/* A negative number means: as many tokens as fit. */
static void limit(struct request *r, int64_t n)
{
    r->max_is_asked = n >= 0;
    r->has_max_tokens = n >= 0;
    if (n >= 0) {
        r->max_tokens = n;
    }
}

/* A limit that is reduced to what fits. With `may_be_none` 0 means that the prompt is evaluated,
 * and nothing generated. */
static bool read_predict(struct request *r, const char *key, bool may_be_none)
{
    int64_t v;
    if (!body_int(&r->body, key, -2, INT32_MAX, &v)) {
        return true;
    }
    if (v == 0 && !may_be_none) {
        return call_error_set(&r->error, 400, "integer_below_min_value", key,
                              "Invalid '%s': integer below minimum value. Expected a value >= 1, "
                              "or -1 for as many as fit, but got 0 instead.",
                              key);
    }
    limit(r, v);
    r->max_shrinks = v >= 0;
    return true;
}

bool read_n_predict(struct request *r)
{
    return read_predict(r, "n_predict", false);
}

bool read_native_predict(struct request *r)
{
    return read_predict(r, "n_predict", true);
}

bool read_native_max(struct request *r)
{
    return read_predict(r, "max_tokens", true);
}

bool read_num_predict(struct request *r)
{
    return read_predict(r, "num_predict", false);
}

/* llama.cpp's clients send -1 for as many tokens as fit. */
static int64_t least(const struct request *r, int64_t otherwise)
{
    return r->llama || r->model->is_llama ? -1 : otherwise;
}

bool read_max_tokens(struct request *r)
{
    int64_t v;
    if (body_int(&r->body, "max_tokens", least(r, 1), INT32_MAX, &v)) {
        limit(r, v);
    }
    return true;
}

/* null: as many tokens as fit. */
bool read_completion_max(struct request *r)
{
    const struct body_member *max = NULL;
    int64_t v;
    for (size_t i = 0; i < r->body.n_members; i++) {
        if (strcmp(r->body.members[i].key, "max_tokens") == 0) {
            max = &r->body.members[i];
        }
    }
    if (max && max->node && json_type(max->node) == JSON_NULL) {
        r->has_max_tokens = false;
    }
    if (body_int(&r->body, "max_tokens", least(r, !r->echo), INT32_MAX, &v)) {
        limit(r, v);
    }
    return true;
}
