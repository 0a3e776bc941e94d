// SPDX-License-Identifier: Apache-2.0
/* The body of Cohere's chat (v2), which is rewritten as the body of a chat. Members that both have
 * in common are left unchanged. */
#include "engine/base/optional.h"
#include "engine/base/words.h"
#include "server/call/convert.h"
#include "server/call/readers.h"

#include <stdio.h>
#include <string.h>

static void put_key(struct buf *b, const char *key)
{
    if (b->n_bytes > 1) {
        buf_putc(b, ',');
    }
    convert_text(b, key);
    buf_putc(b, ':');
}

/* ---- messages ---------------------------------------------------------------------------------
 */

/* The joined texts of the parts of one type; thoughts are a part of their own. */
static void put_parts(struct buf *text, const struct json *content, const char *type)
{
    if (json_string(content) && strcmp(type, "text") == 0) {
        buf_puts(text, json_string(content));
    }
    const struct json *first = json_is(content, JSON_ARRAY) ? json_first(content) : NULL;
    for (const struct json *p = first; p; p = json_next(p)) {
        const char *own = json_get_string(p, "type"), *part = json_get_string(p, type);
        if (own && part && strcmp(own, type) == 0) {
            buf_puts(text, part);
        }
    }
}

/* Other types of parts are left in place, so that they are refused by name. */
static bool has_only_parts(const struct json *content, const char *types)
{
    const struct json *first = json_is(content, JSON_ARRAY) ? json_first(content) : NULL;
    for (const struct json *p = first; p; p = json_next(p)) {
        const char *type = json_get_string(p, "type");
        if (!type || words_find(types, type) < 0) {
            return false;
        }
    }
    return true;
}

/* Thoughts, and the plan before calls, are reasoning. */
static void put_assistant(struct buf *b, const struct json *m)
{
    const struct json *content = json_get(m, "content");
    struct buf text, thoughts;
    buf_init(&text, 64 << 20);
    buf_init(&thoughts, 64 << 20);
    put_parts(&text, content, "text");
    put_parts(&thoughts, content, "thinking");
    if (json_get_string(m, "tool_plan")) {
        buf_puts(&thoughts, json_get_string(m, "tool_plan"));
    }
    buf_puts(b, "{\"role\":\"assistant\",\"content\":");
    if (text.n_bytes > 0) {
        buf_put_json(b, text.data, text.n_bytes);
    } else {
        buf_puts(b, "null");
    }
    if (thoughts.n_bytes > 0) {
        buf_puts(b, ",\"reasoning_content\":");
        buf_put_json(b, thoughts.data, thoughts.n_bytes);
    }
    if (json_type(json_get(m, "tool_calls")) != JSON_NULL) {
        buf_puts(b, ",\"tool_calls\":");
        convert_node(b, json_get(m, "tool_calls"));
    }
    b->failed |= text.failed | thoughts.failed;
    buf_putc(b, '}');
    buf_deinit(&text);
    buf_deinit(&thoughts);
}

/* Documents that a tool has found become texts. */
static void put_tool_part(struct buf *b, const struct json *part)
{
    const struct json *document = json_get(part, "document");
    struct buf text;
    if (!document) {
        convert_node(b, part);
        return;
    }
    buf_init(&text, 64 << 20);
    convert_node(&text, document);
    buf_puts(b, "{\"type\":\"text\",\"text\":");
    buf_put_json(b, or_empty(text.data), text.n_bytes);
    b->failed |= text.failed;
    buf_putc(b, '}');
    buf_deinit(&text);
}

static void put_tool(struct buf *b, const struct json *m)
{
    const struct json *content = json_get(m, "content");
    buf_puts(b, "{\"role\":\"tool\",\"tool_call_id\":");
    convert_node(b, json_get(m, "tool_call_id"));
    buf_puts(b, ",\"content\":");
    if (!json_is(content, JSON_ARRAY)) {
        convert_node(b, content);
    } else {
        buf_putc(b, '[');
        for (const struct json *p = json_first(content); p; p = json_next(p)) {
            buf_puts(b, p == json_first(content) ? "" : ",");
            put_tool_part(b, p);
        }
        buf_putc(b, ']');
    }
    buf_putc(b, '}');
}

static void put_message(struct buf *b, const struct json *m)
{
    const char *role = json_get_string(m, "role");
    const struct json *content = json_get(m, "content");
    if (role && strcmp(role, "assistant") == 0 && has_only_parts(content, "text|thinking")) {
        put_assistant(b, m);
    } else if (role && strcmp(role, "tool") == 0) {
        put_tool(b, m);
    } else {
        convert_node(b, m);
    }
}

static void put_messages(struct buf *b, const struct json *messages)
{
    if (!json_is(messages, JSON_ARRAY)) {
        convert_node(b, messages); // refused with the other errors of messages
        return;
    }
    buf_putc(b, '[');
    for (const struct json *m = json_first(messages); m; m = json_next(m)) {
        buf_puts(b, m == json_first(messages) ? "" : ",");
        put_message(b, m);
    }
    buf_putc(b, ']');
}

/* ---- other members ----------------------------------------------------------------------------
 */

/* {"type": "json_object", "json_schema": SCHEMA} */
static void put_format(struct buf *b, const struct json *format)
{
    const struct json *schema = json_get(format, "json_schema");
    if (!json_is(schema, JSON_OBJECT)) {
        convert_node(b, format);
        return;
    }
    buf_puts(b, "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"answer\",\"schema\":");
    convert_node(b, schema);
    buf_puts(b, "}}");
}

static void put_choice(struct buf *b, const struct json *choice)
{
    static const char *const words[] = {"required", "none"};
    const int which = json_string(choice) ? words_find("REQUIRED|NONE", json_string(choice)) : -1;
    if (which >= 0) {
        convert_text(b, words[which]);
    } else {
        convert_node(b, choice);
    }
}

static void put_thinking(struct buf *b, const struct json *thinking)
{
    const struct json *type = json_get(thinking, "type");
    const struct json *budget = json_get(thinking, "token_budget");
    if (!json_is(thinking, JSON_OBJECT)) {
        convert_node(b, thinking);
        return;
    }
    buf_puts(b, "{\"type\":");
    convert_node(b, type);
    if (json_type(budget) != JSON_NULL) {
        buf_puts(b, ",\"budget_tokens\":");
        convert_node(b, budget);
    }
    buf_putc(b, '}');
}

static const struct {
    const char *key, *chat;                               // its name in a chat
    void (*put)(struct buf *b, const struct json *value); // NULL: unchanged
} renamed[] = {
    {"messages", "messages", put_messages},
    {"response_format", "response_format", put_format},
    {"tool_choice", "tool_choice", put_choice},
    {"thinking", "thinking", put_thinking},
    {"p", "top_p", NULL},
    {"k", "top_k", NULL},
    {"stop_sequences", "stop", NULL},
};

/* Writes a member of the body as a chat has it. */
static void put_member(struct buf *b, const struct body_member *m)
{
    for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++) {
        if (strcmp(m->key, renamed[i].key) == 0) {
            put_key(b, renamed[i].chat);
            if (renamed[i].put) {
                renamed[i].put(b, m->node);
            } else {
                convert_node(b, m->node);
            }
            return;
        }
    }
    put_key(b, m->key);
    convert_node(b, m->node);
}

/* Members that a chat does not have, with the only values that change nothing. False: refused. */
static bool is_dropped(struct request *r, const struct body_member *m, bool *dropped)
{
    const char *word = json_string(m->node);
    *dropped = true;
    if (strcmp(m->key, "citation_options") == 0) { // the model's citations are not parsed
        return true;
    }
    if (strcmp(m->key, "strict_tools") == 0) {
        return !json_bool(m->node, false) || call_error_unsupported(&r->error, "strict_tools");
    }
    if (strcmp(m->key, "safety_mode") == 0) { // a choice between preambles of Cohere's models
        return !word || words_find("CONTEXTUAL|OFF|NONE", word) >= 0 ||
               call_error_unsupported(&r->error, "safety_mode");
    }
    if (strcmp(m->key, "n") == 0) {
        return json_type(m->node) == JSON_NULL || call_error_unsupported(&r->error, "n");
    }
    *dropped = false;
    return true;
}

static bool rewrite(struct request *r, struct buf *b)
{
    buf_putc(b, '{');
    for (size_t i = 0; i < r->body.n_members; i++) {
        const struct body_member *m = &r->body.members[i];
        bool dropped;
        if (!is_dropped(r, m, &dropped)) {
            return false;
        }
        if (!dropped && m->node) { // an array of ids, which has no node, is never a valid member
            put_member(b, m);
        }
    }
    buf_putc(b, '}');
    body_put_nuls_back(&r->body, b);
    return true;
}

void cohere_chat_begin(struct request *r)
{
    struct buf b;
    buf_init(&b, 256 << 20);
    const bool good = rewrite(r, &b);
    char *text = good && !b.failed ? arena_strndup(&r->arena, b.data, b.n_bytes) : NULL;
    const size_t n_bytes = b.n_bytes;
    buf_deinit(&b);
    if (!text) {
        if (good) {
            request_too_large(r);
        }
        return;
    }
    body_close(&r->body);
    r->body = (struct body){0};
    if (body_open(&r->body, text, n_bytes, &r->arena, &r->error)) {
        r->form = FORM_CHAT;
        chat_begin(r);
    }
}
