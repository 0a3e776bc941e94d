// SPDX-License-Identifier: Apache-2.0
/* The input of /v1/responses: items become chat messages. */
#include "engine/base/optional.h"
#include "server/call/convert.h"
#include "server/call/items.h"
#include "server/call/readers.h"
#include "server/chat/turn.h"

#include "engine/base/words.h"

#include <stdio.h>
#include <string.h>

enum { MAX_BYTES = 64 << 20 };

/* Converts items to chat messages. Several items may become one assistant message: its reasoning,
 * text and calls. */
struct messages {
    struct request *r;
    struct buf out;              // text of the array
    struct buf calls;            // tool calls of an unfinished assistant message
    struct buf reasoning;        // reasoning of the assistant message, until that has begun
    bool open;                   // text of the assistant message has been written
    size_t index;                // of the current input item
    struct buf items;            // the input's items, to be stored
    const struct json *referred; // the stored items for the references not yet converted
    char place[64];              // path of that item, for errors
};

/* Messages are written one after another into the array. */
static void open_message(struct messages *m, const char *role)
{
    if (m->out.n_bytes > 1) {
        buf_puts(&m->out, ",{\"role\":");
    } else {
        buf_puts(&m->out, "{\"role\":");
    }
    convert_text(&m->out, role);
}

/* Writes the reasoning once, with the first part of its message. */
static void put_reasoning(struct messages *m)
{
    if (m->reasoning.n_bytes > 0) {
        buf_puts(&m->out, ",\"reasoning_content\":");
        buf_put_json(&m->out, m->reasoning.data, m->reasoning.n_bytes);
        buf_clear(&m->reasoning);
    }
}

/* Consecutive calls form one assistant message, together with the text before them: they were one
 * answer. */
static void end_turn(struct messages *m)
{
    if (m->calls.n_bytes > 0) {
        if (!m->open) {
            open_message(m, "assistant");
            buf_puts(&m->out, ",\"content\":null");
            put_reasoning(m);
        }
        buf_puts(&m->out, ",\"tool_calls\":[");
        buf_put(&m->out, m->calls.data, m->calls.n_bytes);
        buf_putc(&m->out, ']');
        buf_clear(&m->calls);
        m->open = true;
    }
    if (m->open) {
        buf_puts(&m->out, "}");
    }
    m->open = false;
}

static const char *where(struct messages *m, const char *field)
{
    snprintf(m->place, sizeof m->place, "input[%zu]%s%s", m->index, text_if(*field, "."), field);
    return m->place;
}

/* A string, or parts that contain text. */
static bool put_content(struct messages *m, const struct json *content, const char *field)
{
    struct call_error *e = &m->r->error;
    if (json_is(content, JSON_STRING)) {
        convert_text(&m->out, json_string(content));
        return true;
    }
    if (!content) {
        return call_error_missing(e, where(m, field));
    }
    if (!json_is(content, JSON_ARRAY)) {
        return body_wrong_type(e, where(m, field), "a string or an array", content);
    }
    buf_putc(&m->out, '[');
    int n = 0;
    for (const struct json *part = json_first(content); part; part = json_next(part)) {
        const char *type = json_get_string(part, "type");
        const char *text = json_get_string(part, "text");
        if (!text) {
            text = json_get_string(part, "refusal");
        }
        bool known = type && (strcmp(type, "input_text") == 0 || strcmp(type, "text") == 0 ||
                              strcmp(type, "output_text") == 0 || strcmp(type, "refusal") == 0);
        if (!known) {
            return call_error_text_only(e, where(m, field), "content parts",
                                        or_text(type, "(none)"));
        }
        if (!text) {
            char place[64];
            snprintf(place, sizeof place, "%s[%d].text", field, n);
            return call_error_missing(e, where(m, place));
        }
        if (n++) {
            buf_puts(&m->out, ",{\"type\":\"text\",\"text\":");
        } else {
            buf_puts(&m->out, "{\"type\":\"text\",\"text\":");
        }
        convert_text(&m->out, text);
        buf_putc(&m->out, '}');
    }
    buf_putc(&m->out, ']');
    return true;
}

/* The role decides which kinds of content are allowed. */
static bool put_message(struct messages *m, const struct json *item)
{
    const char *role = json_get_string(item, "role");
    if (!role) {
        return call_error_missing(&m->r->error, where(m, "role"));
    }
    if (words_find("user|assistant|system|developer", role) < 0) {
        return call_error_set(&m->r->error, 400, "invalid_value", where(m, "role"),
                              "Invalid value: '%.40s'. Supported values are: 'user', 'assistant', "
                              "'system' and 'developer'.",
                              role);
    }
    end_turn(m);
    open_message(m, role);
    if (strcmp(role, "assistant") == 0) {
        put_reasoning(m);
        m->open = true;
    }
    buf_clear(&m->reasoning);
    buf_puts(&m->out, ",\"content\":");
    bool good = put_content(m, json_get(item, "content"), "content");
    if (!m->open) {
        buf_puts(&m->out, "}");
    }
    return good;
}

/* A call of a custom tool becomes a function call with a single string. */
static bool put_call(struct messages *m, const struct json *item)
{
    bool custom = strcmp(json_get_string(item, "type"), "custom_tool_call") == 0;
    const char *const fields[] = {"call_id", "name", custom ? "input" : "arguments"};
    for (int i = 0; i < 3; i++) {
        if (!json_get_string(item, fields[i])) {
            return call_error_missing(&m->r->error, where(m, fields[i]));
        }
    }
    if (m->calls.n_bytes) {
        buf_puts(&m->calls, ",{\"type\":\"function\",\"id\":");
    } else {
        buf_puts(&m->calls, "{\"type\":\"function\",\"id\":");
    }
    convert_text(&m->calls, json_get_string(item, "call_id"));
    buf_puts(&m->calls, ",\"function\":{\"name\":");
    const char *name = json_get_string(item, "name"), *space = json_get_string(item, "namespace");
    if (space && *space) {
        name = request_flat_name(m->r, space, name);
    }
    if (!name) {
        return request_too_large(m->r);
    }
    convert_text(&m->calls, name);
    if (custom) {
        buf_puts(&m->calls, ",\"arguments\":{\"" TOOL_TEXT_ARGUMENT "\":");
    } else {
        buf_puts(&m->calls, ",\"arguments\":");
    }
    convert_text(&m->calls, json_get_string(item, fields[2]));
    if (custom) {
        buf_puts(&m->calls, "}}}");
    } else {
        buf_puts(&m->calls, "}}");
    }
    return true;
}

/* A tool's output ends the assistant's turn. */
static bool put_output(struct messages *m, const struct json *item)
{
    const char *id = json_get_string(item, "call_id");
    if (!id) {
        return call_error_missing(&m->r->error, where(m, "call_id"));
    }
    end_turn(m);
    open_message(m, "tool");
    buf_puts(&m->out, ",\"tool_call_id\":");
    convert_text(&m->out, id);
    buf_puts(&m->out, ",\"content\":");
    bool good = put_content(m, json_get(item, "output"), "output");
    buf_putc(&m->out, '}');
    return good;
}

/* The summary of earlier items by /v1/responses/compact. The model wrote it. */
static bool put_summary(struct messages *m, const struct json *item)
{
    const char *text = json_get_string(item, "encrypted_content");
    struct buf all;
    if (!text) {
        return call_error_missing(&m->r->error, where(m, "encrypted_content"));
    }
    end_turn(m);
    buf_clear(&m->reasoning);
    buf_init(&all, MAX_BYTES);
    buf_puts(&all, COMPACT_HEAD);
    buf_puts(&all, text);
    open_message(m, "assistant");
    buf_puts(&m->out, ",\"content\":");
    buf_put_json(&m->out, or_empty(all.data), all.n_bytes);
    buf_putc(&m->out, '}');
    m->out.failed |= all.failed;
    buf_deinit(&all);
    return true;
}

/* Keeps reasoning until the message that it belongs to is written. */
static void keep_reasoning(struct messages *m, const struct json *item)
{
    const struct json *parts = json_get(item, "content");
    if (m->open) { // new reasoning starts a new answer
        end_turn(m);
    }
    if (json_count(parts) <= 0) {
        parts = json_get(item, "summary");
    }
    for (const struct json *p = json_first(parts); p; p = json_next(p)) {
        const char *text = json_get_string(p, "text");
        if (text) {
            buf_puts(&m->reasoning, text);
        }
    }
}

/* Items of kinds that this server does not have are refused, because leaving one out would
 * change the conversation. */
static bool put_item(struct messages *m, const struct json *item)
{
    const char *type = json_get_string(item, "type");
    if (!json_is(item, JSON_OBJECT)) {
        return body_wrong_type(&m->r->error, where(m, ""), "an object", item);
    }
    if (!type && json_type(json_get(item, "type")) != JSON_NULL) {
        return body_wrong_type(&m->r->error, where(m, "type"), "a string", json_get(item, "type"));
    }
    if (!type || strcmp(type, "message") == 0) {
        return put_message(m, item);
    }
    if (words_find("function_call|custom_tool_call", type) >= 0) {
        return put_call(m, item);
    }
    if (words_find("function_call_output|custom_tool_call_output", type) >= 0) {
        return put_output(m, item);
    }
    if (strcmp(type, "reasoning") == 0) {
        keep_reasoning(m, item);
        return true;
    }
    if (strcmp(type, "compaction") == 0) {
        return put_summary(m, item);
    }
    return call_error_set(
        &m->r->error, 400, "unsupported_value", where(m, "type"),
        "Unsupported value: input items of type '%.40s' are not supported by this "
        "server.",
        type);
}

/* Continues an answer that the client returns as incomplete. */
static void continue_last(struct messages *m, const struct json *items)
{
    const struct json *last = NULL;
    for (const struct json *item = json_first(items); item; item = json_next(item)) {
        last = item;
    }
    const char *status = json_get_string(last, "status");
    bool goes_on = m->open && m->calls.n_bytes == 0 && status &&
                   words_find("in_progress|incomplete", status) >= 0;
    m->r->continue_final_message = goes_on;
    m->r->add_generation_prompt = !goes_on;
}

/* Keeps an item of the input, to be stored. If the input is to be compacted, keeps only messages of
 * the user, for the output. */
static void keep_item(struct messages *m, const struct json *item)
{
    const char *type = or_text(json_get_string(item, "type"), "message");
    const char *role = json_get_string(item, "role");
    const bool said = strcmp(type, "message") == 0 && role && strcmp(role, "user") == 0;
    if (m->r->kind != KIND_COMPACT || said) {
        buf_puts(&m->items, text_if(m->items.n_bytes > 0, ","));
        convert_item(&m->items, item);
    }
}

/* A string is one message of the user. */
static bool put_input(struct messages *m)
{
    const struct body_member *input = body_get(&m->r->body, "input");
    if (!input) {
        return (m->r->kind == KIND_COMPACT && m->r->history) ||
               call_error_missing(&m->r->error, "input");
    }
    if (json_is(input->node, JSON_STRING)) { // taken from the body as written
        open_message(m, "user");
        buf_puts(&m->out, ",\"content\":");
        buf_put(&m->out, input->start, input->n_bytes);
        buf_putc(&m->out, '}');
        buf_puts(&m->items, text_if(m->items.n_bytes > 0, ","));
        buf_puts(&m->items, "{\"type\":\"message\",\"role\":\"user\",\"status\":\"completed\","
                            "\"content\":[{\"type\":\"input_text\",\"text\":");
        buf_put(&m->items, input->start, input->n_bytes);
        buf_puts(&m->items, "}]}");
        return true;
    }
    if (!json_is(input->node, JSON_ARRAY)) {
        return body_wrong_type(&m->r->error, "input", "a string or an array of items", input->node);
    }
    if (!json_first(input->node)) {
        return call_error_empty(&m->r->error, "input");
    }
    for (const struct json *v = json_first(input->node); v; v = json_next(v)) {
        const struct json *item = v;
        if (request_is_reference(v)) {
            item = m->referred;
            m->referred = json_next(item);
        }
        if (!put_item(m, item)) {
            return false;
        }
        m->index++;
        keep_item(m, item);
    }
    continue_last(m, input->node);
    end_turn(m);
    return true;
}

/* Converts the input, after the items that it refers to were found. */
static bool put_input_with_references(struct messages *m)
{
    const struct body_member *input = body_get(&m->r->body, "input");
    struct json *found = NULL;
    bool good = !input || request_find_references(m->r, input->node, &found);
    m->referred = json_first(found);
    good = good && put_input(m);
    json_free(found);
    return good;
}

/* Earlier items, in their stored form. */
static bool put_history(struct messages *m)
{
    struct request *r = m->r;
    const struct json_limits limits = {.max_depth = 256};
    struct json *items = NULL;
    if (!r->history) {
        return true;
    }
    char *text = arena_strndup(&r->arena, r->history, r->history_bytes);
    if (!text) {
        return request_too_large(r);
    }
    if (!body_hide_nuls(&r->body, r->text, r->n_bytes, text, r->history_bytes) ||
        json_parse(text, r->history_bytes, &limits, &items, NULL) != OK) {
        const char *param;
        if (r->conversation) {
            param = "conversation";
        } else {
            param = "previous_response_id";
        }
        return call_error_set(
            &m->r->error, 400, "invalid_value", param,
            "Invalid '%s': the conversation before this input has too many items.", param);
    }
    bool good = true;
    for (const struct json *item = json_first(items); good && item; item = json_next(item)) {
        good = put_item(m, item);
        if (r->kind == KIND_COMPACT) {
            keep_item(m, item);
        }
    }
    end_turn(m);
    json_free(items);
    return good;
}

/* The text of a message: a string, or parts that have texts. NULL: the error is set. */
static const char *previous_text(struct request *r, const struct json *content, const char *place)
{
    const char *all;
    struct buf text;
    if (json_is(content, JSON_STRING)) {
        return json_string(content);
    }
    buf_init(&text, MAX_BYTES);
    for (const struct json *part = json_first(content); part; part = json_next(part)) {
        const char *piece = json_get_string(part, "text");
        text.failed |= !piece;
        buf_puts(&text, or_empty(piece));
    }
    const bool good = json_is(content, JSON_ARRAY) && !text.failed;
    all = good ? arena_strndup(&r->arena, or_empty(text.data), text.n_bytes) : NULL;
    buf_deinit(&text);
    if (!good) {
        call_error_set(&r->error, 400, "invalid_value", place,
                       "Invalid '%s': its content must be a string, or an array of parts with "
                       "'text'.",
                       place);
    } else if (!all) {
        request_too_large(r);
    }
    return all;
}

/* Converts a message of a chat, or one of Harmony's with an author and a channel. Calls are
 * refused, because they need ids, which Harmony's messages do not have. */
static bool put_previous(struct messages *m, const struct json *message, size_t index)
{
    struct request *r = m->r;
    char place[64];
    const struct json *author = json_get(message, "author");
    const struct json *from = json_type(author) == JSON_NULL ? message : author;
    const char *role = json_get_string(from, "role");
    snprintf(place, sizeof place, "previous_input_messages[%zu]", index);
    if (!json_is(message, JSON_OBJECT)) {
        return body_wrong_type(&r->error, place, "an object", message);
    }
    if (!role || words_find("user|assistant|system|developer", role) < 0 ||
        json_type(json_get(message, "recipient")) != JSON_NULL ||
        json_type(json_get(message, "tool_calls")) != JSON_NULL) {
        return call_error_set(
            &r->error, 400, "unsupported_value", place,
            "Unsupported value: '%s' may only have messages of the roles 'user', 'assistant' and, "
            "without effect, 'system' and 'developer', and no calls; calls and their outputs must "
            "be given as items of 'input'.",
            place);
    }
    const char *channel = json_get_string(message, "channel");
    const char *text = previous_text(r, json_get(message, "content"), place);
    if (!text || words_find("system|developer", role) >= 0) {
        return text; // instructions are those of this request, as in vLLM
    }
    if (channel && strcmp(channel, "analysis") == 0) {
        buf_puts(&m->reasoning, text);
        return true;
    }
    end_turn(m);
    open_message(m, role);
    buf_puts(&m->out, ",\"content\":");
    convert_text(&m->out, text);
    if (strcmp(role, "assistant") == 0) {
        put_reasoning(m);
    }
    buf_clear(&m->reasoning);
    buf_putc(&m->out, '}');
    return true;
}

static bool put_all_previous(struct messages *m)
{
    const struct json *list = NULL;
    size_t index = 0;
    if (!body_array(&m->r->body, "previous_input_messages", &list)) {
        return m->r->error.status == 0;
    }
    if (m->r->previous && json_first(list)) {
        return call_error_set(
            &m->r->error, 400, "invalid_value", "previous_input_messages",
            "'previous_input_messages' and 'previous_response_id' cannot both be given.");
    }
    for (const struct json *v = json_first(list); v; v = json_next(v)) {
        if (!put_previous(m, v, index++)) {
            return false;
        }
    }
    buf_clear(&m->reasoning);
    return true;
}

/* If earlier answers are compacted, keeps their items with all members. */
static bool keep_messages(struct messages *m)
{
    struct stored_item *items = NULL;
    struct buf all;
    size_t n = 0;
    buf_init(&all, MAX_BYTES);
    bool good =
        !m->items.failed && items_take_text(or_empty(m->items.data), m->items.n_bytes, &items, &n);
    for (size_t i = 0; good && i < n; i++) {
        buf_puts(&all, text_if(i > 0, ","));
        buf_put(&all, items[i].text.data, items[i].text.n_bytes);
    }
    stored_items_free(items, n);
    m->items.failed |= !good;
    buf_clear(&m->items);
    buf_put(&m->items, all.data, all.n_bytes);
    m->items.failed |= all.failed;
    buf_deinit(&all);
    return good || request_too_large(m->r);
}

/* Stores the request's own items, for a response that continues from this one. */
static bool keep_items(struct messages *m)
{
    struct request *r = m->r;
    const bool compacts = r->kind == KIND_COMPACT;
    if (!r->store && !compacts) {
        return true;
    }
    body_put_nuls_back(&r->body, &m->items);
    if (compacts && !keep_messages(m)) {
        return false;
    }
    r->items = m->items.failed
                   ? NULL
                   : arena_strndup(&r->arena, or_empty(m->items.data), m->items.n_bytes);
    r->items_bytes = m->items.n_bytes;
    return r->items || request_too_large(r);
}

/* The question that ends a conversation to be compacted. */
static void ask_summary(struct messages *m)
{
    if (m->r->kind == KIND_COMPACT) {
        open_message(m, "user");
        buf_puts(&m->out, ",\"content\":");
        convert_text(&m->out, COMPACT_QUESTION);
        buf_putc(&m->out, '}');
        m->r->continue_final_message = false;
        m->r->add_generation_prompt = true;
    }
}

/* Converts the input to chat messages, which are then read like those of a chat. */
bool read_items(struct request *r)
{
    struct messages m = {.r = r};
    buf_init(&m.out, MAX_BYTES);
    buf_init(&m.calls, MAX_BYTES);
    buf_init(&m.reasoning, MAX_BYTES);
    buf_init(&m.items, MAX_BYTES);
    buf_putc(&m.out, '[');
    if (r->instructions) {
        open_message(&m, "system");
        buf_puts(&m.out, ",\"content\":");
        convert_text(&m.out, r->instructions);
        buf_putc(&m.out, '}');
    }
    bool good =
        put_history(&m) && put_all_previous(&m) && put_input_with_references(&m) && keep_items(&m);
    ask_summary(&m);
    buf_putc(&m.out, ']');
    good = good && convert_keep_messages(r, &m.out);
    buf_deinit(&m.out);
    buf_deinit(&m.calls);
    buf_deinit(&m.reasoning);
    buf_deinit(&m.items);
    return good;
}
