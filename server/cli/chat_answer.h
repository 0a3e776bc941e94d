// SPDX-License-Identifier: Apache-2.0
/* One answer of a chat: accumulates the stream's events and shows them as they arrive.
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
    bool terminal; // show colours and reasoning, and strip control characters
    struct buf text, error;
    struct chat_tool_call calls[CHAT_MAX_CALLS];
    int n_calls;
    char finish[24]; // finish reason; "" before the end
    int64_t n_tokens, n_events, begin_ns, first_ns, last_ns;
    int status; // HTTP status
    /* Internal. */
    struct sse lines;
    struct buf raw; // the body of an answer that is not a stream
    enum { SHOWN_NOTHING, SHOWN_REASONING, SHOWN_TEXT } shown;
    bool at_line_begin;
};

void chat_answer_init(struct chat_answer *a, bool terminal);
void chat_answer_deinit(struct chat_answer *a);

/* Receives part of the body; a->status is set by then. */
void chat_answer_feed(void *answer, const char *bytes, size_t n_bytes);

/* At the end of the stream: ends the line, and shows tool calls and timings. */
void chat_answer_end(struct chat_answer *a);

/* Appends the answer as a message for the next request. False if it is empty. */
bool chat_answer_put(const struct chat_answer *a, struct buf *message);

#endif
