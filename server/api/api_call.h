// SPDX-License-Identifier: Apache-2.0
/* A call over HTTP, and functions that its sinks share. calls.c has the usual sinks, background.c
 * the sink of responses that continue without their client, and resume.c that of streams that do.
 * Thread: the loop. */
#ifndef SLUICE_SERVER_API_API_CALL_H
#define SLUICE_SERVER_API_API_CALL_H

#include "server/api/api.h"

struct background;  // background.c
struct kept_stream; // resume.c

/* What a call does when its client leaves, or has room again. */
struct api_client {
    void (*gone)(struct call *c, enum call_abort why);
    void (*room)(struct call *c);
};

struct api_call {
    struct call call; // must be first
    const struct api_client *client;
    struct http_request *req; // NULL after its terminal call
    struct http_timer deadline;
    struct background *background; // state of a background response, or NULL
    char *conversation;            // X-Conversation-Id of a stream to be kept, or NULL
    struct kept_stream *stream;    // its state (resume.c), or NULL
};

static inline struct api_call *api_call_of(const struct call *c)
{
    return (struct api_call *)c;
}

/* Returns the request, for its terminal call. Copies the call's data for the request's log line. */
struct http_request *api_call_take_request(struct call *c);
/* Adds the headers for a tenant with rate limits. To be called before the reply begins. */
void api_call_put_rates(struct http_request *req, struct tenant *t);
void api_call_over(struct call *c);

#endif
