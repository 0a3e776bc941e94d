// SPDX-License-Identifier: Apache-2.0
/* Converts a request's messages to the form that a template supports. Templates do not declare
 * that, so it is probed at load by rendering small conversations (chat_traits_probe): some want
 * content as a string and some as parts, some want tool arguments as an object and some as JSON
 * text, and many fail on null content.
 * Thread: probing is part of loading; afterwards all threads may read the traits. */
#ifndef SLUICE_SERVER_CHAT_MESSAGES_H
#define SLUICE_SERVER_CHAT_MESSAGES_H

#include "server/chat/jinja/jinja.h"

struct tool_writing;

struct chat_traits {
    bool flatten_parts;    // text parts are joined (with a newline) into a string
    bool wrap_strings;     // a string becomes one text part
    bool string_arguments; // arguments stay JSON text; otherwise they become an object
    bool null_is_empty;    // null or absent content becomes ""
    bool whole_tools;      // fails for tools without a description or parameters
    bool short_ids;        // accepts only ids of calls with nine letters and digits
    bool developer_is_system;
    bool thought_or_text;  // in a message with a call it prints only one of reasoning and content;
                           // we then keep the content
    bool leaves_calls_out; // does not print an assistant's calls
    /* How calls are then appended to the content; NULL: they are not. */
    const struct tool_writing *calls;
    const char *reasoning_key; // the template's key for reasoning; NULL: none
};

/* A special token of the model, with the name that templates use for it ("bos_token"). */
struct chat_token {
    char *name, *text;
};

void chat_traits_probe(const struct jinja_template *t, const struct chat_token *tokens,
                       size_t n_tokens, struct chat_traits *traits);

/* Rewrites messages (values that belong to this render, all marked as input). Marks what is not
 * input: roles defined by the API and, if requested, the assistant's text. */
bool chat_shape(struct jrt *rt, struct jv messages, const struct chat_traits *traits,
                bool trust_assistant);

/* Gives tools without a description or parameters empty ones (whole_tools.c). */
bool chat_complete_tools(struct jrt *rt, struct jv tools);

/* Marks only roles, for requests that are passed on unchanged. */
bool chat_trust_roles(struct jrt *rt, struct jv messages, bool trust_assistant);

/* Rewrites `function_call` and the role `function` (old_calls.c). */
bool chat_shape_old_call(struct jrt *rt, struct jv message);

/* Makes ids of calls, and of their results, nine letters and digits long (short_ids.c). */
bool chat_shorten_ids(struct jrt *rt, struct jv message);

/* Appends a message's calls to its content. Only formats with JSON or Python's notation can be
 * written (written_calls.c). */
bool chat_can_write_calls(const struct tool_writing *w); // `w` may be NULL
bool chat_write_calls(struct jrt *rt, struct jv message, const struct tool_writing *w);

/* Defines date_string ("29 Nov 2026"), datetime ("Nov 29 2026") and functions (the tools as text),
 * as llama.cpp does (llama_variables.c). */
bool chat_set_llama_variables(struct jrt *rt, int64_t local_us, struct jv tools);

#endif
