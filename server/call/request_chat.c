// SPDX-License-Identifier: Apache-2.0
/* The body of /v1/chat/completions. Messages go to the template as the client wrote them; here
 * they are only checked. */
#include "server/call/readers.h"

#include "engine/base/optional.h"
#include "engine/base/words.h"
#include "server/call/convert.h"

#include <stdio.h>
#include <string.h>

enum { MAX_MESSAGES = 4096 /* arbitrary */ };

static const char *at(char *text, size_t n_bytes, size_t message, const char *field)
{
    snprintf(text, n_bytes, "messages[%zu]%s%s", message, text_if(*field, "."), field);
    return text;
}

/* Sets the error for a field that is not a string. */
static bool no_string(struct request *r, const struct json *object, const char *field,
                      const char *where)
{
    const struct json *v = json_get(object, field);
    if (json_type(v) == JSON_NULL) {
        return call_error_missing(&r->error, where);
    }
    return body_wrong_type(&r->error, where, "a string", v);
}

/* A part of a message's content: text only. Images and the like are refused by their
 * type's name. */
static bool check_part(struct request *r, const struct json *part, size_t index, size_t k)
{
    char where[80];
    const char *type = json_get_string(part, "type");
    int n = snprintf(where, sizeof where, "messages[%zu].content[%zu]", index, k);
    if (!json_is(part, JSON_OBJECT)) {
        return body_wrong_type(&r->error, where, "an object", part);
    }
    if (!type) {
        snprintf(where + n, sizeof where - (size_t)n, ".type");
        return no_string(r, part, "type", where);
    }
    bool text = strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0 ||
                strcmp(type, "output_text") == 0;
    if (strcmp(type, "refusal") != 0 && !text) {
        return call_error_text_only(&r->error, at(where, sizeof where, index, "content"),
                                    "content parts", type);
    }
    const char *field = text ? "text" : "refusal";
    if (!json_get_string(part, field)) {
        snprintf(where + n, sizeof where - (size_t)n, ".%s", field);
        return no_string(r, part, field, where);
    }
    return true;
}

/* content may be null only if there are calls or reasoning. */
static bool check_content(struct request *r, const struct json *m, const char *role, size_t index)
{
    char where[64];
    const struct json *content = json_get(m, "content");
    bool assistant = strcmp(role, "assistant") == 0;
    if (json_is(content, JSON_STRING)) {
        return true;
    }
    if (json_type(content) == JSON_NULL) {
        bool filled = assistant && (json_get(m, "tool_calls") || json_get(m, "function_call") ||
                                    json_get(m, "reasoning") || json_get(m, "refusal") ||
                                    json_get(m, "reasoning_content"));
        bool empty = assistant || strcmp(role, "function") == 0;
        if (filled || (empty && content)) {
            return true;
        }
        return call_error_missing(&r->error, at(where, sizeof where, index, "content"));
    }
    if (!json_is(content, JSON_ARRAY)) {
        return body_wrong_type(&r->error, at(where, sizeof where, index, "content"),
                               "a string or an array of content parts", content);
    }
    size_t k = 0;
    for (const struct json *part = json_first(content); part; part = json_next(part)) {
        if (!check_part(r, part, index, k++)) {
            return false;
        }
    }
    return true;
}

/* Arguments are text or an object; that they are valid JSON is not required, since a model
 * wrote them. */
static bool check_call(struct request *r, const struct json *call, size_t index, size_t k)
{
    char where[80];
    const struct json *function = json_get(call, "function"), *custom = json_get(call, "custom");
    const struct json *arguments = json_get(function, "arguments");
    int n = snprintf(where, sizeof where, "messages[%zu].tool_calls[%zu]", index, k);
    if (!json_is(call, JSON_OBJECT)) {
        return body_wrong_type(&r->error, where, "an object", call);
    }
    if (custom && !function) { // chat/messages.c converts it to a function call
        bool whole = json_get_string(custom, "name") && json_get_string(custom, "input");
        snprintf(where + n, sizeof where - (size_t)n, ".custom");
        return whole || call_error_set(&r->error, 400, "invalid_value", where,
                                       "Invalid '%s': expected 'name' and 'input'.", where);
    }
    if (!json_get_string(function, "name")) {
        snprintf(where + n, sizeof where - (size_t)n, ".function.name");
        return no_string(r, function, "name", where);
    }
    snprintf(where + n, sizeof where - (size_t)n, ".function.arguments");
    if (!arguments) {
        return call_error_missing(&r->error, where);
    }
    if (!json_is(arguments, JSON_STRING) && !json_is(arguments, JSON_OBJECT)) {
        return body_wrong_type(&r->error, where, "a string", arguments);
    }
    return true;
}

/* The older form of a call, which chat/old_calls.c converts. */
static bool check_old_call(struct request *r, const struct json *m, size_t index)
{
    char where[64];
    const struct json *call = json_get(m, "function_call");
    if (json_type(call) == JSON_NULL) {
        return true;
    }
    if (!json_get_string(call, "name") || !json_get_string(call, "arguments")) {
        at(where, sizeof where, index, "function_call");
        return call_error_set(&r->error, 400, "invalid_value", where,
                              "Invalid '%s': expected 'name' and 'arguments', both strings.",
                              where);
    }
    return true;
}

/* Earlier calls must be well-formed, because templates read them without checks. */
static bool check_calls(struct request *r, const struct json *m, size_t index)
{
    char where[64];
    const struct json *calls = json_get(m, "tool_calls");
    if (!check_old_call(r, m, index)) {
        return false;
    }
    if (json_type(calls) == JSON_NULL) {
        r->n_past_calls += json_type(json_get(m, "function_call")) != JSON_NULL;
        return true;
    }
    if (!json_is(calls, JSON_ARRAY)) {
        return body_wrong_type(&r->error, at(where, sizeof where, index, "tool_calls"), "an array",
                               calls);
    }
    size_t k = 0;
    for (const struct json *c = json_first(calls); c; c = json_next(c), k++) {
        if (!check_call(r, c, index, k)) {
            return false;
        }
        r->n_past_calls++;
    }
    return true;
}

bool chat_is_role(const char *role)
{
    size_t n = strspn(role, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return n > 0 && role[n] == '\0';
}

/* Sets the error for a role, which lists the roles that all templates know. */
static bool bad_role(struct request *r, size_t index, const char *role)
{
    char where[64];
    return call_error_set(&r->error, 400, "invalid_value", at(where, sizeof where, index, "role"),
                          "Invalid value: '%.40s'. Supported values are: 'developer', 'system', "
                          "'user', 'assistant', 'tool' and 'function', and other roles that the "
                          "model's chat template supports.",
                          role);
}

/* A template may skip messages whose role it does not know, as on other servers. A template that
 * accepts any role writes it into the text. */
bool chat_check_roles(struct request *r, const struct json *messages, const char *text,
                      size_t n_bytes)
{
    size_t i = 0;
    for (const struct json *p = json_first(messages); p; p = json_next(p), i++) {
        const char *role = json_get_string(p, "role");
        if (words_find("developer|system|user|assistant|tool|function", role) < 0 &&
            !memmem(text, n_bytes, role, strlen(role))) {
            return bad_role(r, i, role);
        }
    }
    return true;
}

/* A member that is a string, if it exists. */
static bool check_text(struct request *r, const struct json *m, size_t index, const char *key)
{
    char where[64];
    const struct json *v = json_get(m, key);
    return json_type(v) == JSON_NULL || json_is(v, JSON_STRING) ||
           body_wrong_type(&r->error, at(where, sizeof where, index, key), "a string", v);
}

/* Every error names the message by its index. */
static bool check_messages(struct request *r, const struct json *messages)
{
    size_t n = json_count(messages), i = 0;
    if (n == 0) {
        return call_error_empty(&r->error, "messages");
    }
    if (n > MAX_MESSAGES) {
        return call_error_set(&r->error, 400, "array_above_max_length", "messages",
                              "Invalid 'messages': array too long. Expected at most %d items.",
                              MAX_MESSAGES);
    }
    for (const struct json *m = json_first(messages); m; m = json_next(m), i++) {
        char where[64];
        if (!json_is(m, JSON_OBJECT)) {
            return body_wrong_type(&r->error, at(where, sizeof where, i, ""), "an object", m);
        }
        const char *role = json_get_string(m, "role");
        if (!role) {
            if (json_get(m, "role")) {
                return body_wrong_type(&r->error, at(where, sizeof where, i, "role"), "a string",
                                       json_get(m, "role"));
            }
            return call_error_missing(&r->error, at(where, sizeof where, i, "role"));
        }
        if (!chat_is_role(role)) {
            return bad_role(r, i, role);
        }
        if (strcmp(role, "tool") == 0 && !json_get_string(m, "tool_call_id")) {
            return check_text(r, m, i, "tool_call_id") &&
                   call_error_missing(&r->error, at(where, sizeof where, i, "tool_call_id"));
        }
        if (!check_text(r, m, i, "name") || !check_content(r, m, role, i) ||
            !check_calls(r, m, i)) {
            return false;
        }
    }
    return true;
}

/* The text of the list is kept unchanged, since the template reads it. */
bool read_messages(struct request *r)
{
    const struct json *messages = NULL;
    if (!body_array(&r->body, "messages", &messages)) {
        return r->error.status == 0 && call_error_missing(&r->error, "messages");
    }
    const struct body_member *member = body_get(&r->body, "messages");
    r->messages = member->start;
    r->messages_bytes = member->n_bytes;
    return check_messages(r, messages);
}

/* Keeps one of several conversations, with its own text. */
static bool keep_chat(struct request *r, const struct json *messages)
{
    struct buf text;
    if (!json_is(messages, JSON_ARRAY)) {
        return body_wrong_type(&r->error, "messages", "an array of arrays", messages);
    }
    if (!check_messages(r, messages)) {
        return false;
    }
    buf_init(&text, 64 << 20);
    convert_node(&text, messages);
    body_put_nuls_back(&r->body, &text);
    const char *copy = NULL;
    if (!text.failed) {
        copy = arena_strndup(&r->arena, text.data, text.n_bytes);
    }
    r->chats[r->n_chats++] =
        (struct request_chat){.messages = messages, .text = copy, .n_bytes = text.n_bytes};
    buf_deinit(&text);
    return copy || request_too_large(r);
}

/* vLLM's batch: a list of conversations, each with an answer of its own. */
bool read_chats(struct request *r)
{
    const struct json *list = NULL;
    size_t most = (size_t)r->model->config->max_prompts;
    if (!body_array(&r->body, "messages", &list)) {
        return r->error.status == 0 && call_error_missing(&r->error, "messages");
    }
    size_t n = json_count(list);
    if (n == 0) {
        return call_error_empty(&r->error, "messages");
    }
    if (n > most) {
        return call_error_set(&r->error, 400, "array_above_max_length", "messages",
                              "Invalid 'messages': array too long. Expected at most %zu items.",
                              most);
    }
    r->chats = arena_alloc(&r->arena, n, sizeof r->chats[0]);
    if (!r->chats) {
        return request_too_large(r);
    }
    for (const struct json *m = json_first(list); m; m = json_next(m)) {
        if (!keep_chat(r, m)) {
            return false;
        }
    }
    r->messages = r->chats[0].text;
    r->messages_bytes = r->chats[0].n_bytes;
    return true;
}

/* ---- the template's variables -----------------------------------------------------------------
 */

/* Appends the members of an object, given as JSON text. */
static void put_members(struct buf *out, const char *object, size_t n_bytes)
{
    const char *end = object + n_bytes;
    while (object < end && *object != '{') {
        object++;
    }
    while (end > object && *--end != '}') {
    }
    const char *p = object + 1;
    while (p < end && strchr(" \t\r\n", *p)) {
        p++;
    }
    if (p < end) {
        if (out->n_bytes > 1) {
            buf_puts(out, ",");
        }
        buf_put(out, p, (size_t)(end - p));
    }
}

static bool is_text(const struct json *node)
{
    return json_is(node, JSON_STRING);
}

/* Reads the object `reasoning` of the Responses API, which some chat clients also send. */
bool read_reasoning(struct request *r)
{
    static const char *const others[] = {"max_tokens", "enabled", "exclude"};
    const struct json *reasoning = NULL;
    if (!body_object(&r->body, "reasoning", &reasoning)) {
        return true;
    }
    for (int i = 0; i < 3; i++) { // members of other servers
        if (json_type(json_get(reasoning, others[i])) != JSON_NULL) {
            char where[40];
            snprintf(where, sizeof where, "reasoning.%s", others[i]);
            return call_error_unsupported(&r->error, where);
        }
    }
    const struct json *given = json_get(reasoning, "effort");
    const char *effort = json_string(given);
    if (!effort && json_type(given) != JSON_NULL) {
        return body_wrong_type(&r->error, "reasoning.effort", "a string", given);
    }
    if (effort && words_find("none|minimal|low|medium|high|xhigh", effort) < 0) {
        return call_error_set(&r->error, 400, "invalid_value", "reasoning.effort",
                              "Invalid value: '%.40s'. Supported values are: 'none', 'minimal', "
                              "'low', 'medium', 'high' and 'xhigh'.",
                              effort);
    }
    if (effort) {
        r->effort = effort;
    }
    return true;
}

/* Anthropic's and other servers' switch for thinking. */
bool read_thinking(struct request *r)
{
    const struct json *thinking = NULL;
    if (!body_object(&r->body, "thinking", &thinking) || json_count(thinking) == 0) {
        return true;
    }
    const char *type = json_get_string(thinking, "type");
    int which = type ? words_find("disabled|enabled", type) : -1;
    if (which < 0) {
        return call_error_set(&r->error, 400, "invalid_value", "thinking.type",
                              "Invalid 'thinking.type': supported values are 'enabled' and "
                              "'disabled'.");
    }
    r->thinks = which == 1;
    r->has_thinks = true;
    return !r->thinks || read_budget_tokens(r, thinking);
}

/* The template's word for the effort; the operator can configure a word for each effort. */
static const char *mapped_effort(struct request *r)
{
    const char *map = r->model->config->reasoning_effort_map, *word = NULL;
    struct json *root = NULL;
    if (map && json_parse(map, strlen(map), NULL, &root, NULL) == OK) {
        word = json_get_string(root, r->effort);
        if (word) {
            word = arena_strndup(&r->arena, word, strlen(word));
        } else {
            word = NULL;
        }
    }
    json_free(root);
    return word ? word : r->effort;
}

/* Writes the template's variables as JSON text: the server's defaults, those set by the members for
 * reasoning, documents, and the client's own. Later ones override earlier ones. */
bool read_template_variables(struct request *r)
{
    const struct json *own = NULL;
    const char *defaults = r->model->config->default_chat_template_kwargs;
    struct buf out;
    buf_init(&out, 16 << 20);
    buf_putc(&out, '{');
    if (defaults) {
        put_members(&out, defaults, strlen(defaults));
    }
    if (r->effort) {
        const char *word = mapped_effort(r);
        if (out.n_bytes > 1) {
            buf_puts(&out, ",\"reasoning_effort\":");
        } else {
            buf_puts(&out, "\"reasoning_effort\":");
        }
        buf_put_json(&out, word, strlen(word));
        buf_printf(&out, ",\"enable_thinking\":%s", strcmp(word, "none") == 0 ? "false" : "true");
    }
    if (r->has_thinks) { // the last of equal keys counts
        if (out.n_bytes > 1) {
            buf_puts(&out, ",");
        }
        if (r->thinks) {
            buf_puts(&out, "\"enable_thinking\":true");
        } else {
            buf_puts(&out, "\"enable_thinking\":false");
        }
    }
    const struct body_member *documents = body_get(&r->body, "documents");
    if (documents) {
        if (out.n_bytes > 1) {
            buf_puts(&out, ",\"documents\":");
        } else {
            buf_puts(&out, "\"documents\":");
        }
        buf_put(&out, documents->start, documents->n_bytes);
    }
    if (body_object(&r->body, "chat_template_kwargs", &own)) {
        const struct body_member *m = body_get(&r->body, "chat_template_kwargs");
        if (json_get(own, "chat_template")) {
            buf_deinit(&out);
            return call_error_unsupported(&r->error, "chat_template_kwargs.chat_template");
        }
        put_members(&out, m->start, m->n_bytes);
    }
    bool empty = out.n_bytes == 1;
    buf_putc(&out, '}');
    if (!empty) {
        r->kwargs = arena_strndup(&r->arena, out.data, out.n_bytes);
        r->kwargs_bytes = out.n_bytes;
    }
    bool good = !out.failed && (empty || r->kwargs);
    buf_deinit(&out);
    if (good) {
        return r->error.status == 0;
    }
    return request_too_large(r);
}

/* Reads the client's chat template. It is code that runs on the server, so the operator must allow
 * it. */
bool read_chat_template(struct request *r)
{
    const struct body_member *own = body_get(&r->body, "chat_template");
    if (own && !r->model->config->trust_request_chat_template) {
        return call_error_unsupported(&r->error, "chat_template");
    }
    if (own && !is_text(own->node)) {
        return body_wrong_type(&r->error, "chat_template", "a string", own->node);
    }
    if (!own) {
        return true;
    }
    r->request_template = body_text(&r->body, json_string(own->node), &r->request_template_bytes);
    return r->request_template || request_too_large(r);
}

/* continue_final_message and add_generation_prompt exclude each other: together they would end the
 * prompt twice. */
bool check_continue(struct request *r)
{
    if (r->continue_final_message && r->add_generation_prompt) {
        if (body_has(&r->body, "add_generation_prompt")) {
            return call_error_set(&r->error, 400, "invalid_value", "continue_final_message",
                                  "Cannot set both 'add_generation_prompt' and "
                                  "'continue_final_message' to true.");
        }
        r->add_generation_prompt = false;
    }
    return true;
}

/* "modalities" may name text alone. */
bool read_modalities(struct request *r)
{
    const struct json *list = NULL;
    body_array(&r->body, "modalities", &list);
    for (const struct json *m = json_first(list); m; m = json_next(m)) {
        if (!is_text(m) || strcmp(json_string(m), "text") != 0) {
            return call_error_set(&r->error, 400, "unsupported_value", "modalities",
                                  "Unsupported value: 'modalities' other than 'text' are not "
                                  "supported by this server.");
        }
    }
    return r->error.status == 0;
}

/* As in OpenAI's API. */
bool check_top_logprobs(struct request *r)
{
    if (r->logprobs || r->n_top == 0) {
        return true;
    }
    return call_error_set(&r->error, 400, "invalid_value", "top_logprobs",
                          "The 'top_logprobs' parameter is only allowed when 'logprobs' is "
                          "enabled.");
}

void chat_begin(struct request *r)
{
    r->has_max_tokens = r->model->has_default_max_tokens;
    r->max_tokens = r->model->defaults.max_tokens;
    r->add_generation_prompt = true;
    r->add_special = false; // the template writes the special tokens that the model expects
}

/* With echo, an answer begins with the text that the client has begun for the assistant. */
static bool find_echo(struct request *r)
{
    const struct json *last = NULL;
    const struct body_member *messages = r->chats ? NULL : body_get(&r->body, "messages");
    for (const struct json *m = messages ? json_first(messages->node) : NULL; m; m = json_next(m)) {
        last = m;
    }
    const char *role = json_get_string(last, "role");
    const struct json *content = json_get(last, "content");
    if (!r->echo || !role || strcmp(role, "assistant") != 0) {
        return true;
    }
    struct buf text;
    buf_init(&text, 64 << 20);
    if (json_string(content)) {
        buf_puts(&text, json_string(content));
    }
    bool parts = json_is(content, JSON_ARRAY);
    for (const struct json *p = parts ? json_first(content) : NULL; p; p = json_next(p)) {
        const char *part = json_get_string(p, "text");
        if (p != json_first(content)) {
            buf_puts(&text, "\n");
        }
        if (part) {
            buf_puts(&text, part);
        }
    }
    const char *copy = arena_strndup(&r->arena, or_empty(text.data), text.n_bytes);
    bool good = copy && !text.failed;
    buf_deinit(&text);
    if (good) {
        r->echoed = body_text(&r->body, copy, &r->echoed_bytes);
    } else {
        r->echoed = NULL;
    }
    return r->echoed || request_too_large(r);
}

bool chat_end(struct request *r)
{
    if (!find_echo(r) || (r->llama && !request_continue_as_llama(r))) {
        return false;
    }
    r->params.logprobs = r->logprobs;
    r->params.top_logprobs = r->n_top;
    r->has_max_tokens |= r->max_is_asked;
    r->output.reasoning = r->model->reasoning;
    request_hide_reasoning(r);
    r->parallel_tool_calls &= !r->old_calls;
    return true;
}
