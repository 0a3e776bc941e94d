// SPDX-License-Identifier: Apache-2.0
/* One answer of a chat: the stream's events folded together, and shown as they come.
 * Thread: one owner. */
#ifndef SLUICE_SERVER_CLI_CHAT_ANSWER_H
#define SLUICE_SERVER_CLI_CHAT_ANSWER_H

#include "engine/base/buf.h"
#include "server/client/sse.h"

#include <stdbool.h>
#include <stdint.h>

enum { CHAT_MAX_CALLS = 64 };

struct chat_tool_call {
    struct buf id, name, arguments;
};

struct chat_answer {
    bool terminal; // colours, reasoning, and nothing that could steer the terminal
    struct buf text, error;
    struct chat_tool_call calls[CHAT_MAX_CALLS];
    int n_calls;
    char finish[24]; // the reason of its end; "" before
    int64_t n_tokens, n_events, begin_ns, first_ns, last_ns;
    int status; // HTTP's
    /* inside */
    struct sse lines;
    struct buf raw; // the body of an answer that is no stream
    enum { SHOWN_NOTHING, SHOWN_REASONING, SHOWN_TEXT } shown;
    bool at_line_begin;
};

void chat_answer_init(struct chat_answer *a, bool terminal);
void chat_answer_deinit(struct chat_answer *a);

/* A part of the body; a->status is known by then. */
void chat_answer_feed(void *answer, const char *bytes, size_t n_bytes);

/* The stream is over: ends the line, shows tool calls and the figures. */
void chat_answer_end(struct chat_answer *a);

/* As a message of the next request. False if there is nothing in it. */
bool chat_answer_put(const struct chat_answer *a, struct buf *message);

#endif
