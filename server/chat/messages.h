// SPDX-License-Identifier: Apache-2.0
/* Brings a request's messages into the shape that a template can take. What a template can take is
 * found out when it is loaded, by rendering small conversations (chat_traits_probe), because
 * templates do not say it: some want content as a string and some as parts, some want tool
 * arguments as an object and some as JSON text, many fail on null content.
 * Thread: probing belongs to loading; traits are then read by all. */
#ifndef SLUICE_SERVER_CHAT_MESSAGES_H
#define SLUICE_SERVER_CHAT_MESSAGES_H

#include "server/chat/jinja/jinja.h"

struct chat_traits {
    bool flatten_parts;    // text parts are joined (with a newline) into a string
    bool wrap_strings;     // a string becomes one text part
    bool string_arguments; // arguments stay JSON text; otherwise they become an object
    bool null_is_empty;    // null or absent content becomes ""
    bool developer_is_system;
    bool thought_or_text; // beside a call it takes reasoning or content, not both: content stays
    const char *reasoning_key; // where it looks for an assistant's reasoning; NULL: nowhere
};

/* A special token of the model, as the template names it ("bos_token"). */
struct chat_token {
    char *name, *text;
};

void chat_traits_probe(const struct jinja_template *t, const struct chat_token *tokens,
                       size_t n_tokens, struct chat_traits *traits);

/* Rewrites messages (fresh values of this render, all input). Marks what is not input after all:
 * roles that the API defines and, if asked, what the assistant said. */
bool chat_shape(struct jrt *rt, struct jv messages, const struct chat_traits *traits,
                bool trust_assistant);

/* Roles alone, for requests that are passed on as they are. */
bool chat_trust_roles(struct jrt *rt, struct jv messages, bool trust_assistant);

#endif
