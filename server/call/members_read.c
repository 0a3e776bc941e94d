// SPDX-License-Identifier: Apache-2.0
/* Reads a body according to the table of its members. */
#include "server/call/members.h"

#include "engine/base/words.h"
#include "server/call/readers.h"

#include <stdlib.h>
#include <string.h>

/* Stores a choice as its word or, in a field of one byte, as its index. */
static bool keep_choice(struct request *r, const struct member *m, void *at)
{
    int index;
    if (!body_choice(&r->body, m->key, m->choices, &index)) {
        return false;
    }
    if (m->size == sizeof(uint8_t)) { // for two words this can be a bool
        *(uint8_t *)at = (uint8_t)index;
    } else {
        body_string(&r->body, m->key, at);
    }
    return true;
}

/* Stores an integer. Its upper bound may be an option of this server. */
static bool keep_int(struct request *r, const struct member *m, void *at)
{
    const struct config *config = r->model->config;
    int64_t v;
    if (m->is_share ? !request_read_share(r, m->key, &v)
                    : !body_int(&r->body, m->key, m->min, member_max(m, config), &v)) {
        return false;
    }
    if (m->is_within && v > r->model->info->max_model_len) { // in vLLM's words
        r->error.type = "BadRequestError";
        return call_error_set(&r->error, 400, "integer_above_max_value", m->key,
                              "%s value is greater than max_model_len. Please request a smaller "
                              "truncation size.",
                              m->key);
    }
    if (m->size == sizeof(int32_t)) {
        *(int32_t *)at = (int32_t)v;
    } else if (m->size > 0) {
        *(int64_t *)at = v;
    }
    return true;
}

static bool keep_real(struct request *r, const struct member *m, void *at)
{
    double v;
    if (!body_real(&r->body, m->key, m->low, m->high, &v)) {
        return false;
    }
    if (m->size == sizeof(float)) {
        *(float *)at = (float)v;
    } else {
        *(double *)at = v;
    }
    return true;
}

/* Stores a value in its field; members that are only checked have no field. */
static bool keep_value(struct request *r, const struct member *m)
{
    bool kept = m->size > 0, truth;
    const char *text;
    const struct json *node;
    void *at = (char *)r + m->offset;
    switch (m->type) {
    case MEMBER_BOOL: return body_bool(&r->body, m->key, kept ? at : &truth);
    case MEMBER_INT: return keep_int(r, m, at);
    case MEMBER_REAL: return keep_real(r, m, at);
    case MEMBER_CHOICE: return keep_choice(r, m, at);
    case MEMBER_STRING: return body_string(&r->body, m->key, kept ? at : &text);
    case MEMBER_OBJECT: return body_object(&r->body, m->key, &node);
    case MEMBER_ARRAY: return body_array(&r->body, m->key, &node);
    default: return true; // a member of any type is neither checked nor stored
    }
}

/* Compares by meaning: 0 equals 0.0. */
static bool equals(const struct body_member *v, const char *json, size_t n_bytes)
{
    switch (json_type(v->node)) {
    case JSON_NUMBER:
        return strchr("-0123456789", json[0]) && strtod(json, NULL) == json_number(v->node, 0);
    case JSON_ARRAY: return json[0] == '[' && json_count(v->node) == 0;
    case JSON_OBJECT: return json[0] == '{' && json_count(v->node) == 0;
    default: return n_bytes == v->n_bytes && memcmp(json, v->start, n_bytes) == 0;
    }
}

static bool asks_for_nothing(const struct member *m, const struct body_member *v)
{
    for (const char *word = m->off; *word;) {
        size_t n = strcspn(word, "|");
        if (equals(v, word, n)) {
            return true;
        }
        word += n + (word[n] == '|');
    }
    return false;
}

static bool refuse(struct request *r, const struct member *m)
{
    if (!m->why) {
        return call_error_unsupported(&r->error, m->key);
    }
    return call_error_set(&r->error, 400, "unsupported_parameter", m->key,
                          "Unsupported parameter: '%s' is not supported by this server. %s", m->key,
                          m->why);
}

/* A member is read by its own function, or stored; a refused member is accepted only if its value
 * requests nothing. */
static bool read_member(struct request *r, const struct member *m)
{
    if (!(m->forms & r->form) || m->with) {
        return true;
    }
    if (m->read) {
        return m->read(r) && r->error.status == 0;
    }
    const struct body_member *v = body_get(&r->body, m->key);
    if (!v) {
        return true;
    }
    if (!keep_value(r, m)) {
        return false;
    }
    if (m->use == MEMBER_REFUSED) {
        return asks_for_nothing(m, v) || refuse(r, m);
    }
    if (m->flag > 0) {
        *(bool *)((char *)r + m->flag) = true;
    }
    return !m->check || m->check(r);
}

/* U+0000 is accepted in texts, whose readers restore it, and in values that are passed through
 * unread. Names and ids are C strings, so it is refused there. */
static bool check_nuls(struct request *r)
{
    static const char texts[] =
        "prompt|input|content|messages|system|instructions|suffix|query|documents|texts|items|"
        "queries|text_1|text_2|data_1|data_2|input_prefix|input_suffix|input_extra|stop|"
        "stop_sequences|user|metadata|safety_identifier|prompt_cache_key|tools|functions|"
        "bad_words|chat_template_kwargs|instruction|state|questions|previous_input_messages|"
        "cache_salt|logit_bias|reasoning_budget_message|kv_hints|parse_context|chat_request|"
        "completion_request|chat_template|response_format|text|output_config|output_format|format|"
        "json_schema|"
        "structured_outputs|structural_tag|guided_json|guided_choice|guided_regex|"
        "guided_grammar|guided_whitespace_pattern|grammar|ebnf|regex";
    for (size_t i = 0; i < r->body.n_members && r->body.nul.utf8[0]; i++) {
        const struct body_member *m = &r->body.members[i];
        const struct member *known = member_find(m->key, r->form);
        const bool is_read = known && known->use == MEMBER_READ && known->type != MEMBER_CHOICE;
        if (m->has_nul && is_read && words_find(texts, m->key) < 0) {
            return call_error_set(&r->error, 400, "invalid_value", m->key,
                                  "Invalid '%.60s': it contains the character U+0000, which is "
                                  "accepted in texts, but not in names and ids.",
                                  m->key);
        }
    }
    return true;
}

/* An error that quotes the body shows U+FFFD in place of U+0000. */
static bool hide_stand_in(struct request *r)
{
    static const char replacement[] = "\xef\xbf\xbd";
    for (char *at = r->error.message; r->body.nul.utf8[0] && (at = strstr(at, r->body.nul.utf8));) {
        memcpy(at, replacement, 3);
    }
    return false;
}

/* Members unknown to all endpoints are ignored and counted, or rejected if so configured. */
static bool check_names(struct request *r)
{
    unsigned forms = r->form == FORM_GENERATE ? ~0u : ~(unsigned)FORM_GENERATE;
    for (size_t i = 0; i < r->body.n_members; i++) {
        const char *key = r->body.members[i].key;
        if (member_find(key, forms)) {
            continue;
        }
        if (!r->unknown) {
            r->unknown = key;
        }
        r->n_unknown++;
        if (r->model->config->strict_parameters) {
            return call_error_set(&r->error, 400, "unknown_parameter", key,
                                  "Unknown parameter: '%.60s'.", key);
        }
    }
    return true;
}

bool members_read(struct request *r)
{
    /* The first row is the model: the error for an unknown model takes precedence over those for
     * the values of other members. */
    const struct member *m = member_at(0);
    if (!check_nuls(r) || !read_member(r, m) || !check_names(r)) {
        return hide_stand_in(r);
    }
    for (size_t i = 1; (m = member_at(i)) != NULL; i++) {
        if (!read_member(r, m)) {
            return hide_stand_in(r);
        }
    }
    return true;
}
