// SPDX-License-Identifier: Apache-2.0
/* The turns of blocks of /v1/messages, which become the messages of a chat. There the result of a
 * tool is a message of its own, and what an assistant thought, said and called is one. Turns of one
 * role in a row are one message, since many templates want the roles to alternate.
 * Thread: the request's owner. */
#ifndef SLUICE_SERVER_CALL_TURNS_H
#define SLUICE_SERVER_CALL_TURNS_H

#include "server/call/request.h"

enum { TURNS_MAX_BYTES = 64 << 20 };

enum turn_role { ROLE_USER, ROLE_ASSISTANT, ROLE_SYSTEM, ROLE_NONE };
extern const char *const turn_role_names[];

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

/* Where the reader is, for errors: messages[1].role, messages[1].content[2].text */
const char *turns_where_turn(struct turns *t, const char *field);
const char *turns_where(struct turns *t, const char *field);

/* ---- what is written (turns.c) ------------------------------------------------------------------
 */

void turns_open_message(struct turns *t, const char *role);
void turns_flush(struct turns *t);
void turns_become(struct turns *t, enum turn_role role);
/* Text of any turn. */
bool turns_put_text(struct turns *t, enum turn_role role, const char *text);
/* Without the lines that the operator has named: one that changes with each request, at the top of
 * the prompt, would keep the rest out of the cache. */
void turns_put_stripped(struct request *r, struct buf *out, const char *text);

/* ---- what is read (turns_blocks.c) --------------------------------------------------------------
 */

bool turns_read(struct turns *t, const struct json *turn);

#endif
