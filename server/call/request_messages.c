// SPDX-License-Identifier: Apache-2.0
/* The body of /v1/messages: its turns of blocks become the messages of a chat. There the result of
 * a tool is a message of its own, and what an assistant thought, said and called is one. Turns of
 * one role in a row are one message, since many templates want the roles to alternate. */
#include "server/call/convert.h"
#include "server/call/readers.h"

#include "engine/base/optional.h"
#include "engine/base/words.h"

#include <stdio.h>
#include <string.h>

enum { MAX_BYTES = 64 << 20, MAX_TURNS = 100000 /* Anthropic's bound */ };

enum turn_role { ROLE_USER, ROLE_ASSISTANT, ROLE_SYSTEM, ROLE_NONE };
#define ROLES "user|assistant|system"
static const char *const role_names[] = {"user", "assistant", "system"};

struct turns {
    struct request *r;
    struct buf out; // the array's text
    /* The message that is not written yet. */
    enum turn_role role;
    struct buf parts; // of user and system, joined by commas
    int n_parts;
    const char *only;                  // the first of them
    struct buf text, reasoning, calls; // of the assistant
    size_t turn, block;                // where the reader is
    char place[80];
};

static const char *where_turn(struct turns *t, const char *field)
{
    snprintf(t->place, sizeof t->place, "messages[%zu]%s%s", t->turn, *field ? "." : "", field);
    return t->place;
}

static const char *where(struct turns *t, const char *field)
{
    snprintf(t->place, sizeof t->place, "messages[%zu].content[%zu]%s%s", t->turn, t->block,
             *field ? "." : "", field);
    return t->place;
}

/* ---- what is written
 * ----------------------------------------------------------------------------- */

static void open_message(struct turns *t, const char *role)
{
    if (t->out.n_bytes > 1) {
        buf_puts(&t->out, ",");
    }
    buf_printf(&t->out, "{\"role\":\"%s\",\"content\":", role);
}

static void put_assistant(struct turns *t)
{
    open_message(t, "assistant");
    if (t->text.n_bytes == 0 && t->calls.n_bytes > 0) {
        buf_puts(&t->out, "null");
    } else {
        buf_put_json(&t->out, t->text.n_bytes ? t->text.data : "", t->text.n_bytes);
    }
    if (t->reasoning.n_bytes > 0) {
        buf_puts(&t->out, ",\"reasoning_content\":");
        buf_put_json(&t->out, t->reasoning.data, t->reasoning.n_bytes);
    }
    if (t->calls.n_bytes > 0) {
        buf_puts(&t->out, ",\"tool_calls\":[");
        buf_put(&t->out, t->calls.data, t->calls.n_bytes);
        buf_putc(&t->out, ']');
    }
    buf_putc(&t->out, '}');
}

/* One part is a plain string: the form that every template takes. */
static void put_parts(struct turns *t)
{
    open_message(t, role_names[t->role]);
    if (t->n_parts <= 1) {
        convert_text(&t->out, or_empty(t->only));
    } else {
        buf_putc(&t->out, '[');
        buf_put(&t->out, t->parts.data, t->parts.n_bytes);
        buf_putc(&t->out, ']');
    }
    buf_putc(&t->out, '}');
}

static void flush(struct turns *t)
{
    if (t->role == ROLE_ASSISTANT) {
        put_assistant(t);
    } else if (t->role != ROLE_NONE) {
        put_parts(t);
    }
    t->role = ROLE_NONE;
    buf_clear(&t->parts);
    buf_clear(&t->text);
    buf_clear(&t->reasoning);
    buf_clear(&t->calls);
    t->n_parts = 0;
    t->only = NULL;
}

static void become(struct turns *t, enum turn_role role)
{
    if (t->role != role) {
        flush(t);
        t->role = role;
    }
}

/* ---- lines of system prompts that are taken out
 * ------------------------------------------------ */

static bool begins_with_any(const char *line, const struct string_list *prefixes)
{
    for (size_t i = 0; i < prefixes->n; i++) {
        if (strncmp(line, prefixes->items[i], strlen(prefixes->items[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* Without the lines that the operator has named: one that changes with each request, at the top of
 * the prompt, would keep the rest out of the cache. */
static void put_stripped(struct request *r, struct buf *out, const char *text)
{
    size_t before = out->n_bytes;
    while (*text) {
        size_t n = strcspn(text, "\n");
        n += text[n] == '\n';
        if (begins_with_any(text, &r->model->config->strip_prompt_lines)) {
            r->n_stripped_lines++;
        } else {
            if (out->n_bytes == before && before > 0) {
                buf_putc(out, '\n'); // between blocks
            }
            buf_put(out, text, n);
        }
        text += n;
    }
}

/* ---- blocks
 * -------------------------------------------------------------------------------------- */

static void add_text(struct turns *t, enum turn_role role, const char *text)
{
    become(t, role);
    if (role == ROLE_ASSISTANT) { // cut by its own calls and thoughts, not by lines
        buf_puts(&t->text, text);
        return;
    }
    if (t->n_parts == 0) {
        t->only = text;
    }
    if (t->n_parts++) {
        buf_puts(&t->parts, ",");
    }
    buf_puts(&t->parts, "{\"type\":\"text\",\"text\":");
    convert_text(&t->parts, text);
    buf_putc(&t->parts, '}');
}

/* The same of a turn in the middle; what has nothing else is no part of it. */
static bool add_system_text(struct turns *t, const char *text)
{
    struct request *r = t->r;
    struct buf kept;
    int before = r->n_stripped_lines;
    buf_init(&kept, MAX_BYTES);
    put_stripped(r, &kept, text);
    if (r->n_stripped_lines > before) {
        text = arena_strndup(&r->arena, or_empty(kept.data), kept.n_bytes);
    }
    bool empty = r->n_stripped_lines > before && kept.n_bytes == 0;
    buf_deinit(&kept);
    if (text && !empty) {
        add_text(t, ROLE_SYSTEM, text);
    }
    return text || request_too_large(r);
}

/* Text of any turn. */
static bool put_text(struct turns *t, enum turn_role role, const char *text)
{
    if (role == ROLE_SYSTEM) {
        return add_system_text(t, text);
    }
    add_text(t, role, text);
    return true;
}

/* A string of the block; NULL: the error is set. */
static const char *string_of(struct turns *t, const struct json *block, const char *field)
{
    const struct json *v = json_get(block, field);
    if (json_type(v) == JSON_NULL) {
        call_error_missing(&t->r->error, where(t, field));
    } else if (!json_is(v, JSON_STRING)) {
        body_wrong_type(&t->r->error, where(t, field), "a string", v);
    }
    return json_string(v);
}

/* The same, and not an empty one. */
static const char *name_of(struct turns *t, const struct json *block, const char *field)
{
    const char *name = string_of(t, block, field);
    if (name && !*name) {
        call_error_set(&t->r->error, 400, "invalid_value", where(t, field),
                       "Invalid '%s': expected a text that is not empty.", where(t, field));
        return NULL;
    }
    return name;
}

static bool read_text(struct turns *t, const struct json *block, enum turn_role role)
{
    const char *text = string_of(t, block, "text");
    return text && put_text(t, role, text);
}

/* What was thought goes back to templates that know it; its signature is of no use here. */
static bool read_thought(struct turns *t, const struct json *block, enum turn_role role)
{
    const char *text = string_of(t, block, "thinking");
    become(t, role);
    if (text) {
        if (t->reasoning.n_bytes) {
            buf_puts(&t->reasoning, "\n");
        }
        buf_puts(&t->reasoning, text);
    }
    return text != NULL;
}

/* Nobody can read it. */
static bool pass_over(struct turns *t, const struct json *block, enum turn_role role)
{
    become(t, role);
    return name_of(t, block, "data") != NULL;
}

static bool read_call(struct turns *t, const struct json *block, enum turn_role role)
{
    const char *id = name_of(t, block, "id");
    const char *name = id ? name_of(t, block, "name") : NULL;
    const struct json *input = json_get(block, "input");
    if (!name) {
        return false;
    }
    if (json_type(input) == JSON_NULL) {
        return call_error_missing(&t->r->error, where(t, "input"));
    }
    if (!json_is(input, JSON_OBJECT)) {
        return body_wrong_type(&t->r->error, where(t, "input"), "an object", input);
    }
    become(t, role);
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
        &t->r->error, 400, "unsupported_value", where(t, field),
        "Unsupported value: content blocks of type '%.40s' are not supported: the "
        "server takes text only for this model, and beside it tool calls, their "
        "results and thoughts.",
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
        return body_wrong_type(&t->r->error, where(t, "content"), "a string or an array", content);
    }
    buf_init(&text, MAX_BYTES);
    for (const struct json *b = json_first(content); good && b; b = json_next(b)) {
        const char *type = json_get_string(b, "type"), *part = json_get_string(b, "text");
        if (!type || strcmp(type, "text") != 0) {
            good = unsupported_block(t, "content", type ? type : "(none)");
        } else if (!part) {
            good = call_error_missing(&t->r->error, where(t, "content.text"));
        } else {
            if (text.n_bytes) {
                buf_puts(&text, "\n");
            }
            buf_puts(&text, part);
        }
    }
    buf_put_json(&t->out, text.n_bytes ? text.data : "", text.n_bytes);
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
    flush(t);
    open_message(t, "tool");
    bool good = put_result(t, json_get(block, "content"));
    buf_puts(&t->out, ",\"tool_call_id\":");
    convert_text(&t->out, id);
    buf_putc(&t->out, '}');
    return good;
}

/* Which blocks a turn may have. */
static const struct block {
    const char *type;
    unsigned roles; // bits
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
        return body_wrong_type(&t->r->error, where(t, ""), "an object", block);
    }
    const char *type = string_of(t, block, "type");
    for (size_t i = 0; type && i < sizeof blocks / sizeof blocks[0]; i++) {
        if (strcmp(blocks[i].type, type) != 0) {
            continue;
        }
        if (!(blocks[i].roles & 1u << role)) {
            return call_error_set(&t->r->error, 400, "invalid_value", where(t, "type"),
                                  "Invalid value: blocks of type '%s' do not belong to role '%s'.",
                                  type, role_names[role]);
        }
        return blocks[i].read(t, block, role);
    }
    return type && unsupported_block(t, "type", type);
}

static bool read_turn(struct turns *t, const struct json *turn)
{
    struct call_error *e = &t->r->error;
    const struct json *content = json_get(turn, "content");
    const char *word = json_get_string(turn, "role");
    if (!json_is(turn, JSON_OBJECT)) {
        return body_wrong_type(e, where_turn(t, ""), "an object", turn);
    }
    int role = word ? words_find(ROLES, word) : ROLE_NONE;
    if (!word) {
        return call_error_missing(e, where_turn(t, "role"));
    }
    if (role < 0) {
        return call_error_set(e, 400, "invalid_value", where_turn(t, "role"),
                              "Invalid value: '%.40s'. Supported values are: 'user', 'assistant' "
                              "and 'system'.",
                              word);
    }
    if (json_is(content, JSON_STRING)) {
        return put_text(t, (enum turn_role)role, json_string(content));
    }
    if (json_type(content) == JSON_NULL) {
        return call_error_missing(e, where_turn(t, "content"));
    }
    if (!json_is(content, JSON_ARRAY)) {
        return body_wrong_type(e, where_turn(t, "content"), "a string or an array of blocks",
                               content);
    }
    if (!json_first(content)) { // as an answer without a word is sent back
        become(t, (enum turn_role)role);
    }
    t->block = 0;
    for (const struct json *b = json_first(content); b; b = json_next(b), t->block++) {
        if (!read_block(t, b, (enum turn_role)role)) {
            return false;
        }
    }
    return true;
}

/* ---- the system prompt
 * --------------------------------------------------------------------------- */

static bool put_system(struct turns *t)
{
    struct request *r = t->r;
    const struct body_member *m = body_get(&r->body, "system");
    struct buf text;
    size_t i = 0;
    if (!m) {
        return true;
    }
    if (!json_is(m->node, JSON_STRING) && !json_is(m->node, JSON_ARRAY)) {
        return body_wrong_type(&r->error, "system", "a string or an array of text blocks", m->node);
    }
    buf_init(&text, MAX_BYTES);
    if (json_is(m->node, JSON_STRING)) {
        put_stripped(r, &text, json_string(m->node));
    }
    bool blocks_come = json_is(m->node, JSON_ARRAY);
    for (const struct json *b = blocks_come ? json_first(m->node) : NULL; b;
         b = json_next(b), i++) {
        const char *type = json_get_string(b, "type"), *part = json_get_string(b, "text");
        char place[48];
        if (!part || !type || strcmp(type, "text") != 0) {
            snprintf(place, sizeof place, "system[%zu]", i);
            call_error_set(&r->error, 400, "invalid_value", place,
                           "Invalid '%s': expected a block of type 'text' with its 'text'.", place);
            break;
        }
        put_stripped(r, &text, part);
    }
    if (text.n_bytes > 0 && !text.failed) {
        open_message(t, "system");
        buf_put_json(&t->out, text.data, text.n_bytes);
        buf_putc(&t->out, '}');
    }
    bool good = r->error.status == 0 && (!text.failed || request_too_large(r));
    buf_deinit(&text);
    return good;
}

/* ---- all of them
 * --------------------------------------------------------------------------------- */

static bool put_turns(struct turns *t)
{
    struct call_error *e = &t->r->error;
    const struct json *turns = NULL;
    if (!body_array(&t->r->body, "messages", &turns)) {
        return e->status == 0 && call_error_missing(e, "messages");
    }
    if (!json_first(turns)) {
        return call_error_empty(e, "messages");
    }
    if (json_count(turns) > MAX_TURNS) {
        return call_error_set(e, 400, "array_above_max_length", "messages",
                              "Invalid 'messages': array too long. Expected at most %d items.",
                              MAX_TURNS);
    }
    for (const struct json *turn = json_first(turns); turn; turn = json_next(turn), t->turn++) {
        if (!read_turn(t, turn)) {
            return false;
        }
    }
    /* A text that the client has begun for the assistant is continued. */
    bool begun = t->role == ROLE_ASSISTANT && t->text.n_bytes > 0 && t->calls.n_bytes == 0;
    t->r->continue_final_message = begun;
    t->r->add_generation_prompt = !begun;
    flush(t);
    return true;
}

bool read_turns(struct request *r)
{
    struct turns t = {.r = r, .role = ROLE_NONE};
    struct buf *all[] = {&t.out, &t.parts, &t.text, &t.reasoning, &t.calls};
    for (size_t i = 0; i < 5; i++) {
        buf_init(all[i], MAX_BYTES);
    }
    buf_putc(&t.out, '[');
    bool good = put_system(&t) && put_turns(&t);
    buf_putc(&t.out, ']');
    for (size_t i = 1; i < 5 && good; i++) {
        good = !all[i]->failed || request_too_large(r);
    }
    good = good && convert_keep_messages(r, &t.out);
    for (size_t i = 0; i < 5; i++) {
        buf_deinit(all[i]);
    }
    return good;
}

/* ---- the rest
 * ------------------------------------------------------------------------------------ */

/* Templates have a switch and no budget: of the types, all but one turn it on. */
bool read_typed_thinking(struct request *r)
{
    const struct json *thinking = NULL;
    if (!body_object(&r->body, "thinking", &thinking)) {
        return r->error.status == 0;
    }
    const char *type = json_get_string(thinking, "type");
    const char *display = json_get_string(thinking, "display");
    int which = -1;
    if (type) {
        which = words_find("disabled|enabled|adaptive|between_tools", type);
    }
    if (which < 0) {
        return call_error_set(
            &r->error, 400, "invalid_value", "thinking.type",
            "Invalid 'thinking.type': supported values are 'enabled', 'adaptive', "
            "'between_tools' and 'disabled'.");
    }
    const struct json *budget = json_get(thinking, "budget_tokens");
    int64_t n;
    if (json_type(budget) != JSON_NULL && (!json_int64(budget, &n) || n < 1)) {
        return call_error_set(&r->error, 400, "invalid_value", "thinking.budget_tokens",
                              "Invalid 'thinking.budget_tokens': expected an integer above 0.");
    }
    r->thinks = which > 0;
    r->has_thinks = true;
    r->include_reasoning = !display || strcmp(display, "omitted") != 0;
    return true;
}

bool read_output_config(struct request *r)
{
    const struct json *output = NULL;
    if (!body_object(&r->body, "output_config", &output)) {
        return r->error.status == 0;
    }
    const char *effort = json_get_string(output, "effort");
    const struct json *format = json_get(output, "format");
    if (json_type(format) != JSON_NULL &&
        !request_read_output_format(r, "output_config", "format", format)) {
        return false;
    }
    if (effort && words_find("low|medium|high|xhigh|max", effort) < 0) {
        return call_error_set(&r->error, 400, "invalid_value", "output_config.effort",
                              "Invalid value: '%.40s'. Supported values are: 'low', 'medium', "
                              "'high', 'xhigh' and 'max'.",
                              effort);
    }
    if (effort) {
        r->effort = effort;
    }
    return true;
}

bool read_metadata(struct request *r)
{
    const struct json *metadata = NULL;
    if (body_object(&r->body, "metadata", &metadata)) {
        r->user = json_get_string(metadata, "user_id");
    }
    return r->error.status == 0;
}

/* Turns that are not sent again would be missing. Clients that know the code go on without it. */
bool read_thread(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "thread");
    if (!m || json_is(m->node, JSON_NULL) || !json_bool(m->node, true)) {
        return true;
    }
    return call_error_set(&r->error, 400, "thread_unsupported_request", "thread",
                          "This server holds no conversations for 'thread': send all messages with "
                          "each request.");
}

void messages_begin(struct request *r)
{
    r->add_generation_prompt = true;
    r->output.in_items = true;
}

bool messages_end(struct request *r)
{
    if (r->n != 1) {
        return call_error_set(&r->error, 400, "unsupported_value", "n",
                              "Unsupported value: a message is one answer; 'n' may only be 1.");
    }
    if (r->kind == KIND_MESSAGES && !r->max_is_asked) {
        return call_error_missing(&r->error, "max_tokens");
    }
    /* Clients of this API ask for the most that a model can write, whatever the prompt's length:
     * the answer ends where the context does, and its stop reason says so. */
    r->has_max_tokens = r->max_is_asked;
    r->max_is_asked = false;
    r->output.reasoning = r->model->reasoning;
    return true;
}
