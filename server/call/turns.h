// SPDX-License-Identifier: Apache-2.0
/* Converts the turns of /v1/messages, which consist of blocks, to chat messages. In a chat each
 * tool result is a message of its own, and an assistant's reasoning, text and calls form one
 * message. Consecutive turns of the same role are merged, since many templates require roles to
 * alternate.
 * Thread: the request's owner. */
#ifndef SLUICE_SERVER_CALL_TURNS_H
#define SLUICE_SERVER_CALL_TURNS_H

#include "server/call/request.h"

enum { TURNS_MAX_BYTES = 64 << 20 };

enum turn_role { ROLE_USER, ROLE_ASSISTANT, ROLE_SYSTEM, ROLE_NONE };
extern const char *const turn_role_names[];

struct turns {
    struct request *r;
    struct buf system; // the system prompt; with call_model.system_first, of all turns
    struct buf out;    // the messages after it, joined by commas
    /* The message in progress, not yet written to `out`. */
    enum turn_role role;
    struct buf parts; // user and system: the message's parts, joined by commas
    int n_parts;
    const char *only;                  // text of the first part, used if there is no other
    struct buf text, reasoning, calls; // assistant: the message's contents
    size_t turn, block;                // the reader's position
    char place[80];
};

/* The reader's position, for error messages: messages[1].role, messages[1].content[2].text */
const char *turns_where_turn(struct turns *t, const char *field);
const char *turns_where(struct turns *t, const char *field);

/* ---- writing messages (turns.c) -------------------------------------------------------------- */

void turns_open_message(struct turns *t, const char *role);
void turns_flush(struct turns *t);
void turns_become(struct turns *t, enum turn_role role);
/* Adds text to a turn of any role. */
bool turns_put_text(struct turns *t, enum turn_role role, const char *text);
/* Appends the text without the lines that --strip-prompt-lines names: a line at the top of the
 * prompt that changes with each request would prevent prefix-cache hits for everything after it. */
void turns_put_stripped(struct request *r, struct buf *out, const char *text);

/* ---- reading turns (turns_blocks.c) ---------------------------------------------------------- */

bool turns_read(struct turns *t, const struct json *turn);

#endif
