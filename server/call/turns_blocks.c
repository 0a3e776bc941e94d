// SPDX-License-Identifier: Apache-2.0
/* Reads a turn: a text, or its blocks. */
#include "engine/base/optional.h"
#include "server/call/convert.h"
#include "server/call/turns.h"

#include "engine/base/words.h"

#include <string.h>

#define ROLES "user|assistant|system"

/* A string of the block; NULL: the error is set. */
static const char *string_of(struct turns *t, const struct json *block, const char *field)
{
    const struct json *v = json_get(block, field);
    if (json_type(v) == JSON_NULL) {
        call_error_missing(&t->r->error, turns_where(t, field));
    } else if (!json_is(v, JSON_STRING)) {
        body_wrong_type(&t->r->error, turns_where(t, field), "a string", v);
    }
    return json_string(v);
}

/* The same; an empty string is an error. */
static const char *name_of(struct turns *t, const struct json *block, const char *field)
{
    const char *name = string_of(t, block, field);
    if (name && !*name) {
        call_error_set(&t->r->error, 400, "invalid_value", turns_where(t, field),
                       "Invalid '%s': expected a text that is not empty.", turns_where(t, field));
        return NULL;
    }
    return name;
}

static bool read_text(struct turns *t, const struct json *block, enum turn_role role)
{
    const char *text = string_of(t, block, "text");
    return text && turns_put_text(t, role, text);
}

/* Thinking is passed to templates that support it; its signature is ignored. */
static bool read_thought(struct turns *t, const struct json *block, enum turn_role role)
{
    const char *text = string_of(t, block, "thinking");
    turns_become(t, role);
    if (text) {
        if (t->reasoning.n_bytes) {
            buf_puts(&t->reasoning, "\n");
        }
        buf_puts(&t->reasoning, text);
    }
    return text != NULL;
}

/* Encrypted thinking cannot be read here. */
static bool pass_over(struct turns *t, const struct json *block, enum turn_role role)
{
    turns_become(t, role);
    return name_of(t, block, "data") != NULL;
}

/* Reads a block that calls a tool, and adds it to the message's tool calls. */
static bool read_call(struct turns *t, const struct json *block, enum turn_role role)
{
    const char *id = name_of(t, block, "id");
    const char *name = id ? name_of(t, block, "name") : NULL;
    const struct json *input = json_get(block, "input");
    if (!name) {
        return false;
    }
    if (json_type(input) == JSON_NULL) {
        return call_error_missing(&t->r->error, turns_where(t, "input"));
    }
    if (!json_is(input, JSON_OBJECT)) {
        return body_wrong_type(&t->r->error, turns_where(t, "input"), "an object", input);
    }
    turns_become(t, role);
    if (t->calls.n_bytes) {
        buf_puts(&t->calls, ",");
    }
    buf_puts(&t->calls, "{\"type\":\"function\",\"id\":");
    convert_text(&t->calls, id);
    buf_puts(&t->calls, ",\"function\":{\"name\":");
    convert_text(&t->calls, name);
    buf_puts(&t->calls, ",\"arguments\":");
    convert_node(&t->calls, input);
    buf_puts(&t->calls, "}}");
    return true;
}

static bool unsupported_block(struct turns *t, const char *field, const char *type)
{
    return call_error_set(
        &t->r->error, 400, "unsupported_value", turns_where(t, field),
        "Unsupported value: content blocks of type '%.40s' are not supported: for this model the "
        "server accepts only text, tool calls, their results and thinking.",
        type);
}

/* A string, or blocks of text, as one text. */
static bool put_result(struct turns *t, const struct json *content)
{
    struct buf text;
    bool good = true;
    if (json_type(content) == JSON_NULL || json_is(content, JSON_STRING)) {
        convert_text(&t->out, content && json_string(content) ? json_string(content) : "");
        return true;
    }
    if (!json_is(content, JSON_ARRAY)) {
        return body_wrong_type(&t->r->error, turns_where(t, "content"), "a string or an array",
                               content);
    }
    buf_init(&text, TURNS_MAX_BYTES);
    for (const struct json *b = json_first(content); good && b; b = json_next(b)) {
        const char *type = json_get_string(b, "type"), *part = json_get_string(b, "text");
        if (!type || strcmp(type, "text") != 0) {
            good = unsupported_block(t, "content", or_text(type, "(none)"));
        } else if (!part) {
            good = call_error_missing(&t->r->error, turns_where(t, "content.text"));
        } else {
            if (text.n_bytes) {
                buf_puts(&text, "\n");
            }
            buf_puts(&text, part);
        }
    }
    buf_put_json(&t->out, or_empty(text.data), text.n_bytes);
    good = good && (!text.failed || request_too_large(t->r));
    buf_deinit(&text);
    return good;
}

static bool read_result(struct turns *t, const struct json *block, enum turn_role role)
{
    (void)role;
    const char *id = name_of(t, block, "tool_use_id");
    if (!id) {
        return false;
    }
    turns_flush(t);
    turns_open_message(t, "tool");
    bool good = put_result(t, json_get(block, "content"));
    buf_puts(&t->out, ",\"tool_call_id\":");
    convert_text(&t->out, id);
    buf_putc(&t->out, '}');
    return good;
}

/* Which blocks a turn may have. */
static const struct block {
    const char *type;
    unsigned roles; // bits of the roles whose turns may have it
    bool (*read)(struct turns *t, const struct json *block, enum turn_role role);
} blocks[] = {
    {"text", 1 << ROLE_USER | 1 << ROLE_ASSISTANT | 1 << ROLE_SYSTEM, read_text},
    {"tool_result", 1 << ROLE_USER, read_result},
    {"thinking", 1 << ROLE_ASSISTANT, read_thought},
    {"redacted_thinking", 1 << ROLE_ASSISTANT, pass_over},
    {"tool_use", 1 << ROLE_ASSISTANT, read_call},
};

static bool read_block(struct turns *t, const struct json *block, enum turn_role role)
{
    if (!json_is(block, JSON_OBJECT)) {
        return body_wrong_type(&t->r->error, turns_where(t, ""), "an object", block);
    }
    const char *type = string_of(t, block, "type");
    for (size_t i = 0; type && i < sizeof blocks / sizeof blocks[0]; i++) {
        if (strcmp(blocks[i].type, type) != 0) {
            continue;
        }
        if (!(blocks[i].roles & 1u << role)) {
            return call_error_set(&t->r->error, 400, "invalid_value", turns_where(t, "type"),
                                  "Invalid value: blocks of type '%s' do not belong to role '%s'.",
                                  type, turn_role_names[role]);
        }
        return blocks[i].read(t, block, role);
    }
    return type && unsupported_block(t, "type", type);
}

bool turns_read(struct turns *t, const struct json *turn)
{
    struct call_error *e = &t->r->error;
    const struct json *content = json_get(turn, "content");
    const char *word = json_get_string(turn, "role");
    if (!json_is(turn, JSON_OBJECT)) {
        return body_wrong_type(e, turns_where_turn(t, ""), "an object", turn);
    }
    int role = word ? words_find(ROLES, word) : ROLE_NONE;
    if (!word) {
        return call_error_missing(e, turns_where_turn(t, "role"));
    }
    if (role < 0) {
        return call_error_set(e, 400, "invalid_value", turns_where_turn(t, "role"),
                              "Invalid value: '%.40s'. Supported values are: 'user', 'assistant' "
                              "and 'system'.",
                              word);
    }
    if (json_is(content, JSON_STRING)) {
        return turns_put_text(t, (enum turn_role)role, json_string(content));
    }
    if (json_type(content) == JSON_NULL) {
        return call_error_missing(e, turns_where_turn(t, "content"));
    }
    if (!json_is(content, JSON_ARRAY)) {
        return body_wrong_type(e, turns_where_turn(t, "content"), "a string or an array of blocks",
                               content);
    }
    const bool moves = role == ROLE_SYSTEM && t->r->model->system_first;
    if (!json_first(content) && !moves) { // clients send an empty answer back in this form
        turns_become(t, (enum turn_role)role);
    }
    t->block = 0;
    for (const struct json *b = json_first(content); b; b = json_next(b), t->block++) {
        if (!read_block(t, b, (enum turn_role)role)) {
            return false;
        }
    }
    return true;
}
