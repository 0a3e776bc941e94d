// SPDX-License-Identifier: Apache-2.0
/* The body of /v1/responses, except for its items (request_items.c) and tools. */
#include "engine/base/optional.h"
#include "server/call/readers.h"

#include <string.h>

enum { MAX_BYTES = 64 << 20 };

/* Refuses truncation, because the server cannot know which items may be dropped. */
bool read_truncation(struct request *r)
{
    int choice = 1;
    body_choice(&r->body, "truncation", "auto|disabled", &choice);
    if (choice == 0) {
        return call_error_set(&r->error, 400, "unsupported_value", "truncation",
                              "Unsupported value: this server does not drop items of an input that "
                              "is too long; 'truncation' may only be 'disabled'.");
    }
    return r->error.status == 0;
}

/* Other values request what this server does not support, or always sends. */
bool read_include(struct request *r)
{
    const struct json *include = NULL;
    body_array(&r->body, "include", &include);
    for (const struct json *i = json_first(include); i; i = json_next(i)) {
        if (!json_is(i, JSON_STRING)) {
            return body_wrong_type(&r->error, "include", "an array of strings", i);
        }
        r->logprobs |= strcmp(json_string(i), "message.output_text.logprobs") == 0;
    }
    return true;
}

/* Writes the settings that the answer repeats, since the body is freed before that. */
static bool make_echo(struct request *r)
{
    static const struct {
        const char *key, *otherwise;
    } members[] = {
        {"instructions", "null"},
        {"metadata", "{}"},
        {"tools", "[]"},
        {"tool_choice", "\"auto\""},
        {"parallel_tool_calls", "true"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"},
        {"text", "{\"format\":{\"type\":\"text\"}}"},
        {"truncation", "\"disabled\""},
        {"max_output_tokens", "null"},
        {"max_tool_calls", "null"},
        {"top_logprobs", "0"},
        {"user", "null"},
        {"safety_identifier", "null"},
        {"prompt_cache_key", "null"},
    };
    struct buf out;
    buf_init(&out, MAX_BYTES);
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const struct body_member *m = body_get(&r->body, members[i].key);
        buf_printf(&out, ",\"%s\":", members[i].key);
        if (m && strcmp(members[i].key, "text") != 0) {
            for (size_t k = 0; k < m->n_bytes; k++) { // events must be a single line
                if (strchr("\r\n", m->start[k])) {
                    buf_putc(&out, ' ');
                } else {
                    buf_putc(&out, m->start[k]);
                }
            }
        } else {
            buf_puts(&out, members[i].otherwise);
        }
    }
    if (r->stores) {
        buf_puts(&out, ",\"store\":true");
    } else {
        buf_puts(&out, ",\"store\":false");
    }
    buf_puts(&out, ",\"temperature\":");
    buf_put_double(&out, (double)(float)r->params.temperature);
    buf_puts(&out, ",\"top_p\":");
    buf_put_double(&out, (double)r->params.top_p);
    if (out.failed) {
        r->repeated = NULL;
    } else {
        r->repeated = arena_strndup(&r->arena, out.data, out.n_bytes);
    }
    buf_deinit(&out);
    return r->repeated || request_too_large(r);
}

/* Defaults in which responses differ from chats. */
void responses_begin(struct request *r)
{
    r->has_max_tokens = r->model->has_default_max_tokens;
    r->max_tokens = r->model->defaults.max_tokens;
    r->add_generation_prompt = true;
    r->output.in_items = true;
    r->stores = r->store != NULL;
}

/* Rules between members, when all have been read. */
bool responses_end(struct request *r)
{
    if (r->detached && !(r->stores && r->store)) {
        return call_error_set(&r->error, 400, "invalid_value", "background",
                              r->store ? "background can only be used when `store` is true, "
                                         "because the response is retrieved later."
                                       : "Invalid 'background': this server stores no responses.");
    }
    if (r->conversation && !r->stores) {
        return call_error_set(&r->error, 400, "invalid_value", "conversation",
                              "A response is added to its conversation: 'store' may not be "
                              "false.");
    }
    r->stores = r->stores && r->store && r->kind == KIND_RESPONSES;
    r->detached = r->detached && r->kind == KIND_RESPONSES;
    if (r->detached) {
        r->wants_events = r->stream;
        r->stream = true;
    }
    r->params.logprobs = r->logprobs;
    r->params.top_logprobs = r->logprobs ? r->n_top : 0;
    r->has_max_tokens |= r->max_is_asked;
    r->output.reasoning = r->model->reasoning;
    return make_echo(r);
}

/* ---- compaction -------------------------------------------------------------------------------
 */

void compact_begin(struct request *r)
{
    enum { MOST = 2048 }; // arbitrary: the tokens of a summary whose length the client leaves open
    r->form = FORM_RESPONSES;
    responses_begin(r);
    r->has_max_tokens = true;
    r->max_tokens = MOST;
}

/* A summary is text, and is returned as a whole. The model sees the tools, because earlier items
 * may have called them, but whatever looks like a call in the summary stays text. */
bool compact_end(struct request *r)
{
    if (r->stream || r->detached) {
        return call_error_unsupported(&r->error, r->stream ? "stream" : "background");
    }
    r->tool_mode = TOOLS_OFF;
    r->output.parser = NULL;
    return responses_end(r);
}
