// SPDX-License-Identifier: Apache-2.0
/* The bodies of Ollama's /api/chat, /api/generate and /api/embed. Members of "options" are read
 * like members of the body, so that the table of members applies to them; messages become chat
 * messages. A request without messages or prompt asks only to load the model, which is always
 * loaded here. */
#include "engine/base/optional.h"
#include "server/call/convert.h"
#include "server/call/readers.h"

#include <stdio.h>
#include <string.h>

enum { MAX_BYTES = 64 << 20, MAX_MESSAGES = 4096 };

/* The messages as JSON text in the form of a chat. */
struct ollama {
    struct request *r;
    struct buf out;
    size_t index;              // of the current message
    size_t n_calls, n_results; // so far; results come in the order of their calls
    char place[80];
};

static const char *where(struct ollama *o, const char *field)
{
    snprintf(o->place, sizeof o->place, "messages[%zu]%s%s", o->index, text_if(*field, "."), field);
    return o->place;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* A string member; absent and null are "". NULL: the error is set. */
static const char *text_of(struct ollama *o, const struct json *m, const char *field)
{
    const struct json *v = json_get(m, field);
    if (json_type(v) != JSON_NULL && !json_is(v, JSON_STRING)) {
        body_wrong_type(&o->r->error, where(o, field), "a string", v);
        return NULL;
    }
    if (json_string(v)) {
        return json_string(v);
    }
    return "";
}

static bool put_call(struct ollama *o, const struct json *call)
{
    const struct json *function = json_get(call, "function");
    const struct json *arguments = json_get(function, "arguments");
    const char *name = json_get_string(function, "name");
    if (!name || !*name) {
        return call_error_missing(&o->r->error, where(o, "tool_calls.function.name"));
    }
    if (json_type(arguments) != JSON_NULL && !json_is(arguments, JSON_OBJECT)) {
        return body_wrong_type(&o->r->error, where(o, "tool_calls.function.arguments"), "an object",
                               arguments);
    }
    buf_printf(&o->out,
               "{\"type\":\"function\",\"id\":\"call_%zu\",\"function\":{\"name\":", o->n_calls++);
    convert_text(&o->out, name);
    buf_puts(&o->out, ",\"arguments\":");
    if (arguments) {
        convert_node(&o->out, arguments);
    } else {
        buf_puts(&o->out, "{}");
    }
    buf_puts(&o->out, "}}");
    return true;
}

static bool put_calls(struct ollama *o, const struct json *m)
{
    const struct json *calls = json_get(m, "tool_calls");
    if (json_type(calls) != JSON_NULL && !json_is(calls, JSON_ARRAY)) {
        return body_wrong_type(&o->r->error, where(o, "tool_calls"), "an array", calls);
    }
    if (!json_first(calls)) {
        return true;
    }
    buf_puts(&o->out, ",\"tool_calls\":[");
    for (const struct json *c = json_first(calls); c; c = json_next(c)) {
        if (c != json_first(calls)) {
            buf_puts(&o->out, ",");
        }
        if (!put_call(o, c)) {
            return false;
        }
    }
    buf_putc(&o->out, ']');
    return true;
}

/* Results of tools are matched to calls by their order, since Ollama has no ids. */
static bool put_result(struct ollama *o, const struct json *m)
{
    const char *name = text_of(o, m, json_get(m, "tool_name") ? "tool_name" : "name");
    if (!name) {
        return false;
    }
    buf_printf(&o->out, ",\"tool_call_id\":\"call_%zu\"", o->n_results++);
    if (*name) {
        buf_puts(&o->out, ",\"name\":");
        convert_text(&o->out, name);
    }
    return true;
}

/* Writes an Ollama message as a message of a chat completion. */
static bool put_message(struct ollama *o, const struct json *m)
{
    struct call_error *e = &o->r->error;
    if (!json_is(m, JSON_OBJECT)) {
        return body_wrong_type(e, where(o, ""), "an object", m);
    }
    const char *role = json_get_string(m, "role"), *content = text_of(o, m, "content");
    const char *thinking = content ? text_of(o, m, "thinking") : NULL;
    if (!thinking || !text_of(o, m, "tool_name")) {
        return false;
    }
    if (!role || !chat_is_role(role)) {
        if (role) {
            return call_error_set(e, 400, "invalid_value", where(o, "role"),
                                  "Invalid value: '%.40s' is not a role.", role);
        }
        return call_error_missing(e, where(o, "role"));
    }
    if (json_count(json_get(m, "images")) > 0) {
        return call_error_unsupported(e, where(o, "images"));
    }
    if (o->index) {
        buf_puts(&o->out, ",{\"role\":");
    } else {
        buf_puts(&o->out, "{\"role\":");
    }
    convert_text(&o->out, role);
    buf_puts(&o->out, ",\"content\":");
    convert_text(&o->out, content);
    if (*thinking) {
        buf_puts(&o->out, ",\"reasoning_content\":");
        convert_text(&o->out, thinking);
    }
    bool good = put_calls(o, m) && (strcmp(role, "tool") != 0 || put_result(o, m));
    buf_putc(&o->out, '}');
    return good;
}

static bool end_messages(struct ollama *o, bool good)
{
    buf_putc(&o->out, ']');
    good = good && convert_keep_messages(o->r, &o->out);
    buf_deinit(&o->out);
    return good;
}

bool read_ollama_messages(struct request *r)
{
    struct ollama o = {.r = r};
    const struct json *messages = NULL;
    const char *last = NULL;
    if (r->kind == KIND_OLLAMA_LOAD) {
        return true;
    }
    if (!body_array(&r->body, "messages", &messages)) {
        return r->error.status == 0 && call_error_missing(&r->error, "messages");
    }
    if (json_count(messages) > MAX_MESSAGES) {
        return call_error_set(&r->error, 400, "array_above_max_length", "messages",
                              "Invalid 'messages': array too long. Expected at most %d items.",
                              MAX_MESSAGES);
    }
    bool good = true;
    buf_init(&o.out, MAX_BYTES);
    buf_putc(&o.out, '[');
    for (const struct json *m = json_first(messages); good && m; m = json_next(m), o.index++) {
        good = put_message(&o, m);
        last = json_get_string(m, "role");
    }
    /* Continues a text that the client has started for the assistant. */
    r->continue_final_message = last && strcmp(last, "assistant") == 0;
    r->add_generation_prompt = !r->continue_final_message;
    return end_messages(&o, good);
}

/* ---- a prompt -------------------------------------------------------------------------------- */

/* In raw mode a text to continue; otherwise the user's message, after the system's. */
bool read_generated_prompt(struct request *r)
{
    const char *prompt = NULL, *system = NULL;
    body_string(&r->body, "system", &system);
    if (r->error.status != 0 || r->kind == KIND_OLLAMA_LOAD) {
        return r->error.status == 0;
    }
    if (r->raw || r->suffix) {
        return request_read_prompts(r, "prompt", 1);
    }
    body_string(&r->body, "prompt", &prompt);
    if (r->error.status != 0) {
        return false;
    }
    struct ollama o = {.r = r};
    buf_init(&o.out, MAX_BYTES);
    buf_putc(&o.out, '[');
    if (system && *system) {
        buf_puts(&o.out, "{\"role\":\"system\",\"content\":");
        convert_text(&o.out, system);
        buf_puts(&o.out, "},");
    }
    buf_puts(&o.out, "{\"role\":\"user\",\"content\":");
    convert_text(&o.out, or_empty(prompt));
    buf_putc(&o.out, '}');
    return end_messages(&o, true);
}

/* ---- other members --------------------------------------------------------------------------- */

/* true, false, or an effort. */
bool read_think(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "think");
    if (!m) {
        return true;
    }
    if (json_is(m->node, JSON_BOOL)) {
        r->thinks = json_bool(m->node, false);
        r->has_thinks = true;
        return true;
    }
    int index;
    bool good = body_choice(&r->body, "think", "low|medium|high|max", &index);
    if (good) {
        r->effort = json_string(m->node);
    }
    return good;
}

/* ---- entry points ---------------------------------------------------------------------------- */

static bool is_empty(const struct request *r, const char *key)
{
    const struct body_member *m = body_get(&r->body, key);
    const char *text = m ? json_string(m->node) : NULL;
    bool list = m && json_is(m->node, JSON_ARRAY);
    return !m || (text && !*text) || (list && json_count(m->node) == 0);
}

static void begin(struct request *r, const char *key)
{
    body_lift(&r->body, "options");
    if (is_empty(r, key)) {
        r->kind = KIND_OLLAMA_LOAD;
        r->generates = false;
        return;
    }
    chat_begin(r);
    r->stream = true;
}

void ollama_chat_begin(struct request *r)
{
    begin(r, "messages");
}

void ollama_generate_begin(struct request *r)
{
    begin(r, "prompt");
    const struct body_member *raw = body_get(&r->body, "raw");
    r->add_special = (raw && json_bool(raw->node, false)) || !is_empty(r, "suffix");
}

bool ollama_end(struct request *r)
{
    r->n = 1; // Ollama's API has no `n`
    r->parallel_tool_calls = true;
    return chat_end(r) && (!r->suffix || request_fill_hole(r));
}

bool ollama_load_end(struct request *r)
{
    r->messages = NULL;
    r->n_prompts = 0;
    return true;
}

void ollama_embed_begin(struct request *r)
{
    body_lift(&r->body, "options");
    embeddings_begin(r);
    r->truncate = -1;
}

/* One text, whose vector is not normalized. */
void ollama_old_embed_begin(struct request *r)
{
    const struct body_member *prompt = body_get(&r->body, "prompt");
    ollama_embed_begin(r);
    r->form = FORM_OLLAMA_EMBED;
    r->normalize = false;
    if (!prompt) {
        call_error_missing(&r->error, "prompt");
    } else if (!json_is(prompt->node, JSON_STRING)) {
        body_wrong_type(&r->error, "prompt", "a string", prompt->node);
    } else {
        body_rename(&r->body, "prompt", "input");
    }
}

bool read_truncates(struct request *r)
{
    bool truncates;
    if (body_bool(&r->body, "truncate", &truncates)) {
        r->truncate = truncates ? -1 : 0;
    }
    return true;
}
