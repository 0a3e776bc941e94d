// SPDX-License-Identifier: Apache-2.0
/* Streams that outlive their client, as in llama.cpp: with its conventions, a stream whose request
 * has an X-Conversation-Id continues when the client leaves. Its bytes are kept, and can be read
 * from any position under /v1/stream, while it runs and for five minutes after its end. Thread: the
 * loop. */
#ifndef SLUICE_SERVER_API_RESUME_H
#define SLUICE_SERVER_API_RESUME_H

#include "server/api/api.h"

/* Called by the handler of a request, which has its headers. */
void resume_note(struct api *a, struct call *c);
/* Keeps the stream of a prepared call if its request asks for that. */
void resume_take(struct call *c);
void resume_close(struct api *a); // frees what is kept; after the loop

#endif
