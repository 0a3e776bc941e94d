// SPDX-License-Identifier: Apache-2.0
/* The body of /v1/messages. */
#include "server/call/convert.h"
#include "server/call/readers.h"
#include "server/call/turns.h"

#include "engine/base/optional.h"
#include "engine/base/words.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TURNS = 100000 /* Anthropic's limit */ };

/* ---- the system prompt ----------------------------------------------------------------------- */

/* Lines that change with each request are left out (--strip-prompt-lines), because they would
 * prevent cache hits. */
static bool read_system(struct turns *t)
{
    struct request *r = t->r;
    const struct body_member *m = body_get(&r->body, "system");
    size_t i = 0;
    if (!m) {
        return true;
    }
    if (!json_is(m->node, JSON_STRING) && !json_is(m->node, JSON_ARRAY)) {
        return body_wrong_type(&r->error, "system", "a string or an array of text blocks", m->node);
    }
    if (json_is(m->node, JSON_STRING)) {
        turns_put_stripped(r, &t->system, json_string(m->node));
    }
    bool blocks_come = json_is(m->node, JSON_ARRAY);
    for (const struct json *b = blocks_come ? json_first(m->node) : NULL; b;
         b = json_next(b), i++) {
        const char *type = json_get_string(b, "type"), *part = json_get_string(b, "text");
        char place[48];
        if (!part || !type || strcmp(type, "text") != 0) {
            snprintf(place, sizeof place, "system[%zu]", i);
            return call_error_set(&r->error, 400, "invalid_value", place,
                                  "Invalid '%s': expected a block of type 'text' with its 'text'.",
                                  place);
        }
        turns_put_stripped(r, &t->system, part);
    }
    return true;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* Reads all turns. If the last one is text of the assistant, the answer continues it. */
static bool put_turns(struct turns *t)
{
    struct call_error *e = &t->r->error;
    const struct json *turns = NULL;
    if (!body_array(&t->r->body, "messages", &turns)) {
        return e->status == 0 && call_error_missing(e, "messages");
    }
    if (!json_first(turns) && !t->r->model->is_llama) {
        return call_error_empty(e, "messages");
    }
    if (json_count(turns) > MAX_TURNS) {
        return call_error_set(e, 400, "array_above_max_length", "messages",
                              "Invalid 'messages': array too long. Expected at most %d items.",
                              MAX_TURNS);
    }
    for (const struct json *turn = json_first(turns); turn; turn = json_next(turn), t->turn++) {
        if (!turns_read(t, turn)) {
            return false;
        }
    }
    /* Continues a text that the client has begun for the assistant. */
    bool begun = t->role == ROLE_ASSISTANT && t->text.n_bytes > 0 && t->calls.n_bytes == 0;
    t->r->continue_final_message = begun;
    t->r->add_generation_prompt = !begun;
    turns_flush(t);
    return true;
}

/* The array of messages. */
static void put_messages(const struct turns *t, struct buf *to)
{
    buf_putc(to, '[');
    if (t->system.n_bytes > 0) {
        buf_puts(to, "{\"role\":\"system\",\"content\":");
        buf_put_json(to, t->system.data, t->system.n_bytes);
        buf_puts(to, t->out.n_bytes > 0 ? "}," : "}");
    }
    buf_put(to, or_empty(t->out.data), t->out.n_bytes);
    buf_putc(to, ']');
}

bool read_turns(struct request *r)
{
    struct turns t = {.r = r, .role = ROLE_NONE};
    struct buf messages;
    struct buf *all[] = {&t.system, &t.out, &t.parts, &t.text, &t.reasoning, &t.calls, &messages};
    const size_t n = sizeof all / sizeof all[0];
    for (size_t i = 0; i < n; i++) {
        buf_init(all[i], TURNS_MAX_BYTES);
    }
    bool good = read_system(&t) && put_turns(&t);
    put_messages(&t, &messages);
    for (size_t i = 0; i < n - 1 && good; i++) {
        good = !all[i]->failed || request_too_large(r);
    }
    good = good && convert_keep_messages(r, &messages);
    for (size_t i = 0; i < n; i++) {
        buf_deinit(all[i]);
    }
    return good;
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* Templates have a switch for thinking, but no budget. All types except "disabled" turn it on. */
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
    if (which > 0 && !read_budget_tokens(r, thinking)) {
        return false;
    }
    r->thinking_is_hint = true; // clients ask for it whatever the model is
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

/* Refused, because turns that the client does not send again would be missing. Clients that know
 * the error code continue without it. */
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
    if (r->form == FORM_MESSAGES && !body_get(&r->body, "max_tokens")) {
        return call_error_missing(&r->error, "max_tokens");
    }
    /* Clients of this API request the model's maximum output, whatever the length of the prompt.
     * The answer ends with the context, and its stop reason says so. */
    r->has_max_tokens = r->max_is_asked;
    r->max_is_asked = false;
    r->output.reasoning = r->model->reasoning;
    return true;
}
