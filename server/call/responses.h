// SPDX-License-Identifier: Apache-2.0
/* Shared by the files of /v1/responses: the state of an answer in progress, the objects written
 * from it, and how it is stored.
 * Thread: the calls' own, or the pool where a comment says so. */
#ifndef SLUICE_SERVER_CALL_RESPONSES_H
#define SLUICE_SERVER_CALL_RESPONSES_H

#include "server/call/format.h"

enum item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL, ITEM_CUSTOM };

struct responses {
    int64_t sequence;
    int32_t n_items; // number of items begun
    bool begun;      // the first events of the stream have been sent
    enum item open;
    char item_id[40], call_id[80], name[TOOL_NAME_MAX_BYTES + 1];
    const char *space;   // the call's namespace; NULL: none
    struct buf text;     // text of the open item
    struct buf logprobs; // log-probabilities of the open message
    struct buf items;    // the finished ones, joined by commas
    struct buf body;     // the whole object, made at the end
    struct buf lost;     // stored at the beginning: the response's final state if the server ends
                         // before it
    struct buf events;   // events of a background response, framed, for clients that connect later
    size_t n_told; // bytes of `events` that clients may get: the last event must wait until the
                   // response is stored
};

struct responses *response_state(struct call *c);
void response_forget(struct call *c);

/* The final status of a response, and its error. */
struct ending {
    const char *status, *error; // error: message of a failure; or NULL
};
struct ending response_ending_of(const struct call *c);

/* ---- objects (response_object.c) ----------------------------------------------------------------
 */

void response_put_object(struct buf *b, struct call *c, struct ending e);
void response_put(struct buf *b, struct call *c, const char *status);
void response_put_usage(struct buf *b, const struct call *c);
void response_put_text_part(struct buf *b, const struct responses *s);
/* Writes the open item; `done`: with its full content. */
void response_put_item(struct buf *b, const struct responses *s, const char *status, bool done);

/* ---- kept for later (response_save.c) -----------------------------------------------------------
 */

/* Thread: the pool. If the answer cannot be stored, the client still receives it. */
void response_save(struct call *c);
/* Thread: the pool, while new tokens may arrive: it reads nothing that they change. */
enum status response_record(struct call *c, struct err *err);

#endif
