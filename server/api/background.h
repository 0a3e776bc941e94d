// SPDX-License-Identifier: Apache-2.0
/* Responses that run in the background: the call continues without the client that started it, and
 * any number of clients may follow its events or wait for its end.
 * Thread: the loop. */
#ifndef SLUICE_SERVER_API_BACKGROUND_H
#define SLUICE_SERVER_API_BACKGROUND_H

#include "server/api/api.h"

/* Sets this sink on a prepared call that is to run in the background. */
void background_take(struct call *c);
/* A running response; NULL if there is none. */
struct call *background_find(struct api *a, const char *owner, const char *id);
/* Called from a handler; each takes the request. */
void background_reply(struct call *c, struct http_request *req);
void background_cancel(struct call *c, struct http_request *req);
void background_follow(struct call *c, struct http_request *req, int64_t after);

/* The number of bytes of the first *n_events events of `text`, or of all if there are fewer;
 * *n_events becomes the number of events that `text` does not have. */
size_t background_skip(const char *text, size_t n_bytes, int64_t *n_events);

#endif
