// SPDX-License-Identifier: Apache-2.0
/* Beam search on top of the engine. Each step submits one request per live beam, which asks for the
 * likeliest next tokens. The requests' prompts are in the prefix cache. The answer is written to
 * the outputs of the call's own requests, which are never submitted themselves, so that text, log
 * probabilities and streams are produced as for any other call.
 * Thread: the calls' own. */
#ifndef SLUICE_SERVER_CALL_BEAMS_H
#define SLUICE_SERVER_CALL_BEAMS_H

#include "server/call/call.h"

/* Each step looks at twice as many next tokens as there are beams: each beam that ends needs
 * another to replace it. */
enum { MAX_BEAMS = MAX_TOP_LOGPROBS / 2 };

/* Called after prompts and members were read. False, with r->error set: the request asks for
 * something that cannot be combined with beams. */
bool request_check_beams(struct request *r);

/* Begins the searches for c->requests, which must exist. */
bool beams_open(struct call *c, struct call_error *e);
void beams_close(struct call *c); // accepts a call without beams

/* Submits the requests of each prompt's current step that are not submitted yet. ERR_BUSY: the
 * engine is full, and the rest has to be submitted later; e->status says whether the call
 * failed. */
enum status beams_submit(struct call *c, struct call_error *e);
void beams_cancel(struct call *c);

/* Called when a request of a step has ended without an error. */
void beams_take(struct call *c, struct engine_request *r);

/* Plans the next step of each prompt whose current step is complete. Must not be called while the
 * engine is drained. Returns the request of c->requests whose search has just ended, or NULL. */
struct engine_request *beams_step(struct call *c);

#endif
