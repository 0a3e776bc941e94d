// SPDX-License-Identifier: Apache-2.0
/* llama.cpp continues a final turn of the assistant, unless it is told not to. */
#include "server/call/readers.h"

#include <string.h>

static bool is_from_assistant(const struct json *message)
{
    const char *role = json_get_string(message, "role");
    return role && strcmp(role, "assistant") == 0;
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
    return true;
}
