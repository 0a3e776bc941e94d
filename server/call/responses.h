// SPDX-License-Identifier: Apache-2.0
/* What the files of /v1/responses share: the state of an answer while it is made, the objects that
 * are written of it, and how it is kept for later.
 * Thread: the calls' own, or the pool where it says so. */
#ifndef SLUICE_SERVER_CALL_RESPONSES_H
#define SLUICE_SERVER_CALL_RESPONSES_H

#include "server/call/format.h"

enum item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL, ITEM_CUSTOM };

struct responses {
    int64_t sequence;
    int32_t n_items; // begun
    bool begun;      // the first events of the stream are sent
    enum item open;
    char item_id[40], call_id[80], name[TOOL_NAME_MAX_BYTES + 1];
    struct buf text;     // of the open item
    struct buf logprobs; // of the open message
    struct buf items;    // the finished ones, joined by commas
    struct buf body;     // at the end: the whole object
    struct buf lost;     // what it becomes if the server ends before it has
    struct buf events;   // of one that runs in the background, framed: for who comes later
    size_t n_told;       // bytes of them that may be read: not the last one before it is stored
};

struct responses *response_state(struct call *c);
void response_forget(struct call *c);

/* The status by which a client knows that there is no more to come, and why it is so. */
struct ending {
    const char *status, *error; // error: a failure's sentence; or NULL
};
struct ending response_ending_of(const struct call *c);

/* ---- objects (response_object.c) ----------------------------------------------------------------
 */

void response_put_object(struct buf *b, struct call *c, struct ending e);
void response_put(struct buf *b, struct call *c, const char *status);
void response_put_text_part(struct buf *b, const struct responses *s);
/* The open item; `done`: with all that it holds. */
void response_put_item(struct buf *b, const struct responses *s, const char *status, bool done);

/* ---- kept for later (response_save.c) -----------------------------------------------------------
 */

/* On the pool. An answer that cannot be kept is an answer all the same. */
void response_save(struct call *c);
/* On the pool, while tokens may come: nothing that they change is read. */
enum status response_record(struct call *c, struct err *err);

#endif
