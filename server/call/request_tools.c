// SPDX-License-Identifier: Apache-2.0
/* Tools and tool choice: of chats, responses and messages. Templates and parsers only know
 * functions; a custom tool becomes one with a single string. */
#include "server/call/convert.h"
#include "server/call/readers.h"
#include "server/call/slice.h"

#include "engine/base/optional.h"
#include "engine/base/words.h"

#include <stdio.h>
#include <string.h>

enum { MAX_BYTES = 64 << 20 };

/* How an API writes tools. */
static const struct shape {
    const char *key;      // the request's member with the tools
    const char *function; // the member that contains name and parameters; "": the tool itself
    const char *custom;   // the same for a custom tool; NULL: not supported
    const char *schema;   // the function's member with the schema of the parameters
} shapes[] = {
    {"tools", "function", "custom", "parameters"},
    {"functions", "", NULL, "parameters"},
    {"tools", "", "", "parameters"},
    {"tools", "", NULL, "input_schema"},
};
enum { SHAPE_CHAT, SHAPE_FUNCTIONS, SHAPE_RESPONSES, SHAPE_MESSAGES };

static bool bad_nul(struct request *r, const char *place)
{
    return call_error_set(&r->error, 400, "invalid_value", place,
                          "Invalid '%s': it contains the character U+0000, which is accepted in "
                          "texts, but not in names and ids.",
                          place);
}

/* ---- custom tools -----------------------------------------------------------------------------
 */

/* {"type":"grammar"} has syntax and definition, directly or in "grammar". */
static bool read_custom_format(struct request *r, const struct json *custom,
                               struct request_tool *tool)
{
    const struct json *format = json_get(custom, "format"), *inner = json_get(format, "grammar");
    const char *type = json_get_string(format, "type");
    if (!inner) {
        inner = format;
    }
    const char *syntax = json_get_string(inner, "syntax");
    const char *definition = json_get_string(inner, "definition");
    tool->text = "{\"type\":\"any_text\"}";
    if (json_type(format) == JSON_NULL || (type && strcmp(type, "text") == 0)) {
        return true;
    }
    const bool regex = syntax && strcmp(syntax, "regex") == 0;
    const bool known = regex || (syntax && strcmp(syntax, "lark") == 0);
    if (!type || strcmp(type, "grammar") != 0 || !definition || !known) {
        return call_error_set(
            &r->error, 400, "invalid_value", tool->place,
            "Invalid '%s': expected type 'text', or 'grammar' with 'syntax' 'lark' "
            "or 'regex' and 'definition'.",
            tool->place);
    }
    struct buf out;
    buf_init(&out, MAX_BYTES);
    struct grammar_source source = {.kind = regex ? GRAMMAR_REGEX : GRAMMAR_LARK};
    source.text = body_text(&r->body, definition, &source.n_bytes);
    if (!source.text) {
        return request_too_large(r);
    }
    grammar_put_tag(&source, &out);
    if (out.failed) {
        tool->text = NULL;
    } else {
        tool->text = arena_strndup(&r->arena, out.data, out.n_bytes);
    }
    tool->strict = true;
    buf_deinit(&out);
    return tool->text || request_too_large(r);
}

/* Writes a custom tool as a function for the template; the description tells the model the required
 * format. */
static void put_custom(struct buf *out, const struct json *custom)
{
    const struct json *format = json_get(custom, "format"), *inner = json_get(format, "grammar");
    const char *about = json_get_string(custom, "description");
    const char *definition = json_get_string(inner ? inner : format, "definition");
    const char *syntax = json_get_string(inner ? inner : format, "syntax");
    struct buf hint;
    buf_init(&hint, MAX_BYTES);
    buf_puts(&hint, "The input as plain text.");
    if (definition && syntax) {
        buf_printf(&hint, " It follows this %s:\n",
                   strcmp(syntax, "regex") == 0 ? "regular expression" : "Lark grammar");
        buf_puts(&hint, definition);
    }
    buf_puts(out, "{\"type\":\"function\",\"function\":{\"name\":");
    convert_text(out, json_get_string(custom, "name"));
    if (about) {
        buf_puts(out, ",\"description\":");
        convert_text(out, about);
    }
    buf_puts(out, ",\"parameters\":{\"type\":\"object\",\"properties\":{\"" TOOL_TEXT_ARGUMENT
                  "\":{\"type\":\"string\",\"description\":");
    buf_put_json(out, hint.data, hint.n_bytes);
    buf_puts(out, "}},\"required\":[\"" TOOL_TEXT_ARGUMENT "\"]}}}");
    buf_deinit(&hint);
}

/* ---- one tool ---------------------------------------------------------------------------------
 */

/* Reads a list of tools, written in the shape of one API. */
struct reader {
    struct request *r;
    const struct shape *shape;
    struct buf out; // the tools in the format for templates
    size_t index;
    bool has_custom;
};

/* The error names the tool by its index in the list. */
static bool bad_type(struct reader *t, const char *type)
{
    char place[48];
    snprintf(place, sizeof place, "%s[%zu].type", t->shape->key, t->index);
    return call_error_set(
        &t->r->error, 400,
        t->shape == &shapes[SHAPE_RESPONSES] ? "unsupported_parameter" : "unsupported_value", place,
        "Unsupported value: tools of type '%.40s' are not supported by this "
        "server; %s.",
        or_text(type, "(none)"),
        t->shape->custom ? "'function' and 'custom' are" : "only 'custom' is");
}

/* Sets *custom by the tool's type. False, with an error: this API has no such type. */
static bool is_custom_tool(struct reader *t, const struct json *tool, bool *custom)
{
    const struct json *given = json_get(tool, "type");
    const char *type = json_string(given);
    bool messages = t->shape == &shapes[SHAPE_MESSAGES];
    const char *known = messages ? "custom" : "function";
    *custom = t->shape->custom && type && strcmp(type, "custom") == 0;
    if (*custom || (type && strcmp(type, known) == 0)) {
        return true;
    }
    if (!type && json_type(given) != JSON_NULL) {
        char place[48];
        snprintf(place, sizeof place, "%s[%zu].type", t->shape->key, t->index);
        return body_wrong_type(&t->r->error, place, "a string", given);
    }
    return (!type && t->shape != &shapes[SHAPE_RESPONSES]) || bad_type(t, type);
}

/* Checks the schema of the parameters, whose key depends on the API: it must be an object, and only
 * messages require it. */
static bool check_schema(struct reader *t, const struct json *function, const char *place)
{
    const struct json *schema = json_get(function, t->shape->schema);
    if (json_type(schema) == JSON_NULL) {
        if (t->shape == &shapes[SHAPE_MESSAGES]) {
            return call_error_missing(&t->r->error, place);
        }
        return true;
    }
    if (!json_is(schema, JSON_OBJECT)) {
        return body_wrong_type(&t->r->error, place, "an object", schema);
    }
    return true;
}

/* `text` is the tool's JSON text; `function` is the tool or a member of it. */
static bool read_function(struct reader *t, const struct json *function, struct slice text,
                          const struct json *tool, struct request_tool *to)
{
    struct slice inner = slice_at(text, t->shape->function);
    struct slice schema = slice_at(inner, t->shape->schema);
    to->strict = json_get_bool(function, "strict", false);
    if (json_type(json_get(function, t->shape->schema)) == JSON_NULL) {
        to->schema = NULL;
    } else {
        to->schema = schema.s;
    }
    to->schema_bytes = schema.n;
    if (t->shape == &shapes[SHAPE_RESPONSES] || t->shape == &shapes[SHAPE_MESSAGES]) {
        convert_tool(&t->out, tool, t->index, t->shape->schema);
        return true;
    }
    bool wrap = t->shape == &shapes[SHAPE_FUNCTIONS];
    if (t->index) {
        buf_puts(&t->out, ",");
    }
    if (wrap) {
        buf_puts(&t->out, "{\"type\":\"function\",\"function\":");
    }
    buf_put(&t->out, text.s, text.n);
    if (wrap) {
        buf_puts(&t->out, "}");
    }
    return true;
}

/* Checks the tool and writes it in the template's shape. */
static bool read_tool(struct reader *t, const struct json *tool, struct slice text,
                      struct request_tool *to)
{
    char where[48], place[64];
    bool custom;
    snprintf(where, sizeof where, "%s[%zu]", t->shape->key, t->index);
    if (!json_is(tool, JSON_OBJECT)) {
        return body_wrong_type(&t->r->error, where, "an object", tool);
    }
    if (!is_custom_tool(t, tool, &custom)) {
        return false;
    }
    const char *inner = custom ? t->shape->custom : t->shape->function;
    const struct json *function = *inner ? json_get(tool, inner) : tool;
    if (*inner) {
        snprintf(where, sizeof where, "%s[%zu].%s", t->shape->key, t->index, inner);
    }
    if (!json_is(function, JSON_OBJECT)) {
        if (function) {
            return body_wrong_type(&t->r->error, where, "an object", function);
        }
        return call_error_missing(&t->r->error, where);
    }
    to->name = json_get_string(function, "name");
    to->custom = custom;
    to->allowed = true;
    snprintf(to->place, sizeof to->place, "%s.%s", where, custom ? "format" : t->shape->schema);
    snprintf(place, sizeof place, "%s.name", where);
    if (!to->name || !*to->name) {
        return call_error_missing(&t->r->error, place);
    }
    if (body_text_has_nul(&t->r->body, to->name)) {
        return bad_nul(t->r, place);
    }
    const struct json *about = json_get(function, "description");
    if (json_type(about) != JSON_NULL && !json_string(about)) {
        snprintf(place, sizeof place, "%s.description", where);
        return body_wrong_type(&t->r->error, place, "a string", about);
    }
    if (custom) {
        t->has_custom = true;
        if (t->index) {
            buf_puts(&t->out, ",");
        }
        put_custom(&t->out, function);
        return read_custom_format(t->r, function, to);
    }
    return check_schema(t, function, to->place) && read_function(t, function, text, tool, to);
}

/* ---- all of them ------------------------------------------------------------------------------
 */

/* Reads all tools, then checks that their names differ. */
static bool read_shape(struct request *r, const struct shape *shape)
{
    const struct body_member *m = body_get(&r->body, shape->key);
    const struct json *list = m->node;
    struct slice all = {m->start, m->n_bytes};
    struct reader t = {.r = r, .shape = shape};
    struct slice_items items;
    if (shape == &shapes[SHAPE_RESPONSES] && !request_flatten_tools(r, &list, &all.s, &all.n)) {
        return false;
    }
    size_t n = json_count(list);
    if (!request_check_n_tools(r, shape->key, n)) {
        return false;
    }
    r->tool_list = arena_alloc(&r->arena, n, sizeof *r->tool_list);
    if (!r->tool_list) {
        return request_too_large(r);
    }
    buf_init(&t.out, MAX_BYTES);
    buf_putc(&t.out, '[');
    slice_items(&items, all);
    bool good = true;
    for (const struct json *v = json_first(list); good && v; v = json_next(v), t.index++) {
        struct slice text = slice_next(&items);
        good = read_tool(&t, v, text, &r->tool_list[t.index]);
    }
    r->n_tool_list = t.index;
    buf_putc(&t.out, ']');
    if (shape == &shapes[SHAPE_CHAT] && !t.has_custom) { // as written by the client
        r->tools = m->start;
        r->tools_bytes = m->n_bytes;
        r->tools_json = m->node;
    } else {
        good = good && convert_keep_tools(r, &t.out);
    }
    buf_deinit(&t.out);
    return good;
}

/* If there are `tools`, `functions` has no effect, but must be valid. */
static bool check_unused_functions(struct request *r)
{
    const struct json *list = NULL;
    struct reader t = {.r = r, .shape = &shapes[SHAPE_FUNCTIONS]};
    struct request_tool unused = {0};
    struct slice_items items;
    if (!body_array(&r->body, "functions", &list)) {
        return r->error.status == 0;
    }
    const struct body_member *m = body_get(&r->body, "functions");
    bool good = request_check_n_tools(r, "functions", json_count(list));
    buf_init(&t.out, MAX_BYTES);
    slice_items(&items, (struct slice){m->start, m->n_bytes});
    for (const struct json *v = json_first(list); good && v; v = json_next(v), t.index++) {
        good = read_tool(&t, v, slice_next(&items), &unused);
    }
    buf_deinit(&t.out);
    return good;
}

/* Chat's tools, or the older functions. */
bool read_tools(struct request *r)
{
    const struct json *list = NULL;
    if (body_array(&r->body, "tools", &list)) {
        if (json_count(list) > 0) {
            return read_shape(r, &shapes[SHAPE_CHAT]) && check_unused_functions(r);
        }
        if (!(r->form & (FORM_TOKENIZE_CHAT | FORM_OLLAMA_CHAT))) { // elsewhere that means none
            return call_error_empty(&r->error, "tools");
        }
    }
    if (r->error.status != 0 || !body_array(&r->body, "functions", &list) ||
        json_count(list) == 0) {
        return r->error.status == 0;
    }
    r->old_calls = true;
    return read_shape(r, &shapes[SHAPE_FUNCTIONS]);
}

bool read_flat_tools(struct request *r)
{
    const struct json *list = NULL;
    bool some = body_array(&r->body, "tools", &list) && json_count(list) > 0;
    if (some) {
        return read_shape(r, &shapes[SHAPE_RESPONSES]);
    }
    return r->error.status == 0;
}

bool read_schema_tools(struct request *r)
{
    const struct json *list = NULL;
    bool some = body_array(&r->body, "tools", &list) && json_count(list) > 0;
    if (some) {
        return read_shape(r, &shapes[SHAPE_MESSAGES]);
    }
    return r->error.status == 0;
}

/* ---- the choice -------------------------------------------------------------------------------
 */

/* Also NULL if the name is not in the list. */
static struct request_tool *find_tool(struct request *r, const char *name)
{
    for (size_t i = 0; name && i < r->n_tool_list; i++) {
        if (strcmp(r->tool_list[i].name, name) == 0) {
            return &r->tool_list[i];
        }
    }
    return NULL;
}

const struct request_tool *request_custom_tool(const struct request *r, const char *name)
{
    for (size_t i = 0; i < r->n_tool_list; i++) {
        if (r->tool_list[i].custom && strcmp(r->tool_list[i].name, name) == 0) {
            return &r->tool_list[i];
        }
    }
    return NULL;
}

/* The name in a choice or in an item of a list of allowed tools, wherever the API has it. */
static const char *name_of(const struct json *v)
{
    const char *name = json_get_string(v, "name");
    if (!name) {
        name = json_get_string(json_get(v, "function"), "name");
    }
    if (name) {
        return name;
    }
    return json_get_string(json_get(v, "custom"), "name");
}

static bool no_such_tool(struct request *r, const char *key, const char *name)
{
    return call_error_set(&r->error, 400, "invalid_value", key,
                          "Invalid '%s': no tool of the name '%.64s' in 'tools'.", key,
                          or_empty(name));
}

static void allow_none(struct request *r)
{
    for (size_t i = 0; i < r->n_tool_list; i++) {
        r->tool_list[i].allowed = false;
    }
}

/* A choice among some tools: the others are not allowed. */
static bool allow_list(struct request *r, const char *key, const struct json *choice)
{
    const struct json *inner = json_get(choice, "allowed_tools");
    if (inner) {
        choice = inner;
    }
    const struct json *list = json_get(choice, "tools");
    const char *mode = json_get_string(choice, "mode");
    int which = mode ? words_find("auto|required", mode) : 0;
    if (which < 0 || !json_is(list, JSON_ARRAY) || json_count(list) == 0) {
        return call_error_set(
            &r->error, 400, "invalid_value", key,
            "Invalid '%s': 'allowed_tools' must have a mode ('auto' or 'required') and a "
            "list of tools.",
            key);
    }
    allow_none(r);
    for (const struct json *v = json_first(list); v; v = json_next(v)) {
        struct request_tool *tool = find_tool(r, name_of(v));
        if (!tool) {
            return no_such_tool(r, key, name_of(v));
        }
        tool->allowed = true;
    }
    r->narrows = true;
    r->tool_mode = which == 1 ? TOOLS_MUST : TOOLS_AUTO;
    return true;
}

/* The named tool must be called, and no other call is allowed. */
static bool allow_one(struct request *r, const char *key, const char *name)
{
    struct request_tool *tool = find_tool(r, name);
    if (!tool) {
        return no_such_tool(r, key, name);
    }
    allow_none(r);
    tool->allowed = true;
    r->tool_mode = TOOLS_MUST;
    r->parallel_tool_calls = false;
    return true;
}

/* A word, or an object that names a tool or a list. */
static bool choose(struct request *r, const char *key, const struct json *v)
{
    const char *word = json_string(v), *type = json_get_string(v, "type");
    int which = word ? words_find("none|auto|required", word) : 1;
    if (!word && !json_is(v, JSON_OBJECT)) {
        return body_wrong_type(&r->error, key, "a string or an object", v);
    }
    if (which < 0) {
        return call_error_set(&r->error, 400, "invalid_value", key,
                              "Invalid value: '%.40s'. Supported values are: 'none', 'auto' and "
                              "'required'.",
                              word);
    }
    if (!r->tools_json && (which == 2 || !word || r->form & (FORM_CHAT | FORM_TOKENIZE_CHAT))) {
        if (which != 0) {
            return call_error_set(&r->error, 400, "invalid_value", key,
                                  "'%s' is only allowed when 'tools' are specified.", key);
        }
        return true;
    }
    if (word) {
        static const enum tool_mode modes[] = {TOOLS_OFF, TOOLS_AUTO, TOOLS_MUST};
        r->tool_mode = r->tools_json ? modes[which] : TOOLS_OFF;
        return true;
    }
    if (type && strcmp(type, "allowed_tools") == 0) {
        return allow_list(r, key, v);
    }
    if (type && words_find("function|custom", type) < 0) {
        return call_error_set(&r->error, 400, "unsupported_value", key,
                              "Unsupported value: '%s' of type '%.40s' is not supported by this "
                              "server.",
                              key, type);
    }
    return allow_one(r, key, name_of(v));
}

/* Selects the output parser. With tool_choice "none" it finds the calls that a model writes
 * nonetheless, so that they can be left out. */
static bool use_tools(struct request *r)
{
    if (r->tool_mode == TOOLS_OFF && r->model->config->exclude_tools_when_tool_choice_none &&
        r->form & (FORM_CHAT | FORM_TOKENIZE_CHAT)) {
        r->tools = NULL;
        r->tools_bytes = 0;
    }
    r->output.parser = r->tools_json ? r->model->parser : NULL;
    r->output.tools = r->tools_json;
    return r->error.status == 0;
}

/* function_call is the older form of tool_choice. */
bool read_tool_choice(struct request *r)
{
    const char *key;
    if (body_has(&r->body, "tool_choice")) {
        key = "tool_choice";
    } else {
        key = "function_call";
    }
    const struct body_member *m = body_get(&r->body, key);
    r->tool_mode = r->tools_json ? TOOLS_AUTO : TOOLS_OFF;
    r->tool_param = key[0] == 't' ? "tool_choice" : "function_call";
    if (m && !choose(r, r->tool_param, m->node)) {
        return false;
    }
    r->is_named = m && json_is(m->node, JSON_OBJECT) && !r->narrows;
    return use_tools(r);
}

bool read_flat_choice(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "tool_choice");
    r->tool_mode = r->tools_json ? TOOLS_AUTO : TOOLS_OFF;
    r->tool_param = "tool_choice";
    return (!m || choose(r, "tool_choice", m->node)) && use_tools(r);
}

/* {"type": "auto", "any", "tool" or "none"} */
bool read_typed_choice(struct request *r)
{
    enum { CHOICE_AUTO, CHOICE_NONE, CHOICE_ANY, CHOICE_TOOL };
    const struct json *choice = NULL;
    r->tool_mode = r->tools_json ? TOOLS_AUTO : TOOLS_OFF;
    r->tool_param = "tool_choice";
    if (!body_object(&r->body, "tool_choice", &choice)) {
        return r->error.status == 0 && use_tools(r);
    }
    const char *type = json_get_string(choice, "type");
    if (!type) {
        return call_error_missing(&r->error, "tool_choice.type");
    }
    int which = words_find("auto|none|any|tool", type);
    if (which < 0) {
        return call_error_set(&r->error, 400, "invalid_value", "tool_choice.type",
                              "Invalid value: '%.40s'. Supported values are: 'auto', 'any', 'tool' "
                              "and 'none'.",
                              type);
    }
    if (which != CHOICE_NONE && !r->tools_json) {
        return call_error_set(&r->error, 400, "invalid_value", "tool_choice",
                              "'tool_choice' is only allowed when 'tools' are specified.");
    }
    if (which == CHOICE_NONE) {
        r->tool_mode = TOOLS_OFF;
    }
    if (which == CHOICE_ANY) {
        r->tool_mode = TOOLS_MUST;
    }
    r->parallel_tool_calls = !json_get_bool(choice, "disable_parallel_tool_use", false);
    if (which == CHOICE_TOOL) {
        const char *name = json_get_string(choice, "name");
        if (!name) {
            return call_error_missing(&r->error, "tool_choice.name");
        }
        return allow_one(r, "tool_choice", name) && use_tools(r);
    }
    return use_tools(r);
}
