// SPDX-License-Identifier: Apache-2.0
/* llama.cpp continues a final turn of the assistant, unless it is told not to. */
#include "engine/base/optional.h"
#include "server/call/convert.h"
#include "server/call/readers.h"

#include <string.h>

static bool is_from_assistant(const struct json *message)
{
    const char *role = json_get_string(message, "role");
    return role && strcmp(role, "assistant") == 0;
}

/* Blank lines separate the parts of a text that is continued. */
static void put_joined(struct buf *out, const struct json *parts)
{
    struct buf text;
    buf_init(&text, 64 << 20);
    for (const struct json *p = json_first(parts); p; p = json_next(p)) {
        const char *part = json_get_string(p, "text");
        buf_puts(&text, p == json_first(parts) ? "" : "\n\n");
        buf_puts(&text, or_empty(part));
    }
    buf_put_json(out, or_empty(text.data), text.n_bytes);
    out->failed |= text.failed;
    buf_deinit(&text);
}

static void put_with_joined_parts(struct buf *out, const struct json *message)
{
    for (const struct json *c = json_first(message); c; c = json_next(c)) {
        buf_putc(out, c == json_first(message) ? '{' : ',');
        convert_text(out, json_key(c));
        buf_putc(out, ':');
        if (strcmp(json_key(c), "content") == 0) {
            put_joined(out, c);
        } else {
            convert_node(out, c);
        }
    }
    buf_putc(out, '}');
}

static bool join_final_parts(struct request *r, const struct json *messages,
                             const struct json *last)
{
    struct buf out;
    buf_init(&out, 128 << 20);
    for (const struct json *m = json_first(messages); m; m = json_next(m)) {
        buf_putc(&out, m == json_first(messages) ? '[' : ',');
        if (m == last) {
            put_with_joined_parts(&out, m);
        } else {
            convert_node(&out, m);
        }
    }
    buf_putc(&out, ']');
    const bool good = convert_keep_messages(r, &out);
    buf_deinit(&out);
    return good;
}

bool request_continue_as_llama(struct request *r)
{
    const struct body_member *m = body_get(&r->body, "messages");
    const struct json *last = NULL, *before = NULL;
    for (const struct json *i = m ? json_first(m->node) : NULL; i; i = json_next(i)) {
        before = last;
        last = i;
    }
    if (!is_from_assistant(last)) {
        return true;
    }
    if (is_from_assistant(before)) {
        return call_error_set(&r->error, 400, "invalid_messages", "messages",
                              "Invalid 'messages': the conversation ends with two turns of the "
                              "assistant, but only one can be continued.");
    }
    const struct json *content = json_get(last, "content");
    bool told =
        body_has(&r->body, "add_generation_prompt") || body_has(&r->body, "continue_final_message");
    if (!told && json_type(content) != JSON_NULL) {
        r->continue_final_message = true;
        r->add_generation_prompt = false;
    }
    const bool joins = r->continue_final_message && json_is(content, JSON_ARRAY);
    return !joins || join_final_parts(r, m->node, last);
}
