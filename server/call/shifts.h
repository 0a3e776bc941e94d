// SPDX-License-Identifier: Apache-2.0
/* Answers that go on when the context is full (llama.cpp's context shift). The engine computes an
 * answer in pieces. When a piece has filled the context, half of the tokens after the kept ones are
 * dropped, and the next piece continues from the rest as from any other prompt. So the model
 * continues exactly as it would after that prompt, whatever kinds of layers it has. All pieces
 * write to the outputs of the call's own requests, which are never submitted themselves.
 * Thread: the calls' own. */
#ifndef SLUICE_SERVER_CALL_SHIFTS_H
#define SLUICE_SERVER_CALL_SHIFTS_H

#include "server/call/call.h"

/* Runs on the pool, for a prompt and the requested number of tokens. shifts_may: nothing in the
 * request excludes a shift. shifts_cut_prompt: shortens a prompt that fills the context; false if
 * there is no memory. */
bool shifts_may(const struct request *r);
bool shifts_cut_prompt(struct request *r, struct request_prompt *p);

bool shifts_open(struct call *c, struct call_error *e);
void shifts_close(struct call *c); // accepts a call without shifts
/* Submits the pieces that are ready. ERR_BUSY: the engine is full. */
enum status shifts_submit(struct call *c, struct err *err);
void shifts_cancel(struct call *c);

/* Takes the new output of a piece. Returns the call's own request that it belongs to. */
struct engine_request *shifts_take(struct call *c, struct engine_request *r);
bool shifts_are_ready(const struct call *c); // pieces wait for shifts_submit

#endif
