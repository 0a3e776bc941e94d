// SPDX-License-Identifier: Apache-2.0
/* Beam search on top of the engine: each step asks for the likeliest next tokens of each beam, as
 * requests of one token, whose prompts the prefix cache has. The answer goes into the outputs of
 * the call's own requests, which are never submitted, so that text, log probabilities and streams
 * are made as for any other.
 * Thread: the calls' own. */
#ifndef SLUICE_SERVER_CALL_BEAMS_H
#define SLUICE_SERVER_CALL_BEAMS_H

#include "server/call/call.h"

/* Each step sees twice as many next tokens as there are beams: one more for each that ends. */
enum { MAX_BEAMS = MAX_TOP_LOGPROBS / 2 };

/* Whether what the request asks for goes together with beams; prompts and members are read. */
bool request_check_beams(struct request *r);

/* For c->requests, which are made. */
bool beams_open(struct call *c, struct call_error *e);
void beams_close(struct call *c); // accepts a call without beams

/* Hands to the engine what is left of the present step of each prompt. ERR_BUSY: the rest goes in
 * later; e->status says whether the call failed. */
enum status beams_submit(struct call *c, struct call_error *e);
void beams_cancel(struct call *c);

/* A request of a step is over, without an error. */
void beams_take(struct call *c, struct engine_request *r);

/* Not within a drain of the engine. Plans the next step of a prompt whose last one is complete, or
 * returns the request of c->requests whose search has just ended. NULL: there is none. */
struct engine_request *beams_step(struct call *c);

#endif
