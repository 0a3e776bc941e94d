// SPDX-License-Identifier: Apache-2.0
/* Responses that run in the background: the call goes on without the client that began it, and any
 * number of others may follow its events, or wait for its end. Thread: the loop. */
#ifndef SLUICE_SERVER_API_BACKGROUND_H
#define SLUICE_SERVER_API_BACKGROUND_H

#include "server/api/api.h"

extern const struct call_sink background_sink;

/* From here on the call has that sink: it is prepared, and asks to run in the background. */
void background_take(struct call *c);
/* One that runs; NULL: there is none. */
struct call *background_find(struct api *a, const char *owner, const char *id);
/* From a handler: each takes the request. */
void background_reply(struct call *c, struct http_request *req);
void background_cancel(struct call *c, struct http_request *req);
void background_follow(struct call *c, struct http_request *req, int64_t after);

/* The bytes of the first *n_events events, or of as many as there are: *n_events is what is left.
 */
size_t background_skip(const char *events, size_t n_bytes, int64_t *n_events);

#endif
