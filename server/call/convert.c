// SPDX-License-Identifier: Apache-2.0
/* Converts items and tools of other APIs to messages and tools of a chat, as the JSON text that
 * templates receive. */
#include "server/call/convert.h"
#include "engine/base/optional.h"

#include "engine/base/words.h"

#include <string.h>

void convert_text(struct buf *out, const char *text)
{
    buf_put_json(out, text, strlen(text));
}

/* Writes an array or, if `keys` is set, an object. */
static void put_children(struct buf *out, const struct json *node, bool keys)
{
    if (keys) {
        buf_putc(out, '{');
    } else {
        buf_putc(out, '[');
    }
    for (const struct json *c = json_first(node); c; c = json_next(c)) {
        if (c != json_first(node)) {
            buf_putc(out, ',');
        }
        if (keys) {
            convert_text(out, json_key(c));
            buf_putc(out, ':');
        }
        convert_node(out, c);
    }
    if (keys) {
        buf_putc(out, '}');
    } else {
        buf_putc(out, ']');
    }
}

void convert_node(struct buf *out, const struct json *node) // the parser limits the depth
{
    switch (json_type(node)) {
    case JSON_NULL: buf_puts(out, "null"); break;
    case JSON_BOOL: buf_puts(out, bool_word(json_bool(node, false))); break;
    case JSON_NUMBER: buf_put_double(out, json_number(node, 0)); break;
    case JSON_STRING: convert_text(out, json_string(node)); break;
    case JSON_ARRAY: put_children(out, node, false); break;
    case JSON_OBJECT: put_children(out, node, true); break;
    }
}

static void put_field(struct buf *out, const struct json *v, const char *key, bool *first)
{
    if (v) {
        buf_printf(out, "%s\"%s\":", *first ? "" : ",", key);
        convert_node(out, v);
        *first = false;
    }
}

/* Writes a tool in the form of OpenAI's chats. schema_key is the member with its parameters in the
 * other API. */
void convert_tool(struct buf *out, const struct json *tool, size_t index, const char *schema_key)
{
    bool first = true;
    if (index) {
        buf_puts(out, ",");
    }
    buf_puts(out, "{\"type\":\"function\",\"function\":{");
    put_field(out, json_get(tool, "name"), "name", &first);
    put_field(out, json_get(tool, "description"), "description", &first);
    put_field(out, json_get(tool, schema_key), "parameters", &first);
    buf_puts(out, "}}");
}

/* ,"key":value for each member that has not been written yet. */
static void put_rest(struct buf *out, const struct json *object, const char *but)
{
    for (const struct json *m = json_first(object); m; m = json_next(m)) {
        const char *key = json_key(m);
        if (words_find(but, key) < 0) {
            buf_putc(out, ',');
            convert_text(out, key);
            buf_putc(out, ':');
            convert_node(out, m);
        }
    }
}

static void put_item(struct buf *out, const struct json *item, bool with_id)
{
    const char *type = json_get_string(item, "type"), *role = json_get_string(item, "role");
    const struct json *content = json_get(item, "content");
    buf_puts(out, "{\"type\":");
    convert_text(out, or_text(type, "message"));
    if (json_is(content, JSON_STRING)) {
        bool said = role && strcmp(role, "assistant") == 0;
        buf_puts(out, ",\"content\":[{\"type\":");
        if (said) {
            buf_puts(out, "\"output_text\",\"annotations\":[]");
        } else {
            buf_puts(out, "\"input_text\"");
        }
        buf_puts(out, ",\"text\":");
        convert_node(out, content);
        buf_puts(out, "}]");
        put_rest(out, item, with_id ? "type|content" : "type|content|id");
    } else {
        put_rest(out, item, with_id ? "type" : "type|id");
    }
    buf_putc(out, '}');
}

void convert_item(struct buf *out, const struct json *item)
{
    put_item(out, item, true);
}

void convert_item_but_id(struct buf *out, const struct json *item)
{
    put_item(out, item, false);
}

/* Copies the text into the request's arena. */
static bool keep(struct request *r, const struct buf *array, const char **text, size_t *n_bytes)
{
    if (array->failed) {
        *text = NULL;
    } else {
        *text = arena_strndup(&r->arena, array->data, array->n_bytes);
    }
    *n_bytes = array->n_bytes;
    return *text || request_too_large(r);
}

bool convert_keep_messages(struct request *r, struct buf *array)
{
    body_put_nuls_back(&r->body, array);
    return keep(r, array, &r->messages, &r->messages_bytes);
}

/* Tools are needed as text (for the template) and as a tree (for parsers). */
bool convert_keep_tools(struct request *r, struct buf *array)
{
    if (!array->failed &&
        json_parse(array->data, array->n_bytes, NULL, &r->own_tools, NULL) == OK) {
        r->tools_json = r->own_tools;
    }
    body_put_nuls_back(&r->body, array);
    return keep(r, array, &r->tools, &r->tools_bytes);
}
