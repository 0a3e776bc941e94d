// SPDX-License-Identifier: Apache-2.0
/* Converts a body to a request for the engine: JSON, checks, chat template, token ids. A pure
 * function of its input, so that it can run on the pool while the loop serves others.
 * Thread: any, one call per request. */
#ifndef SLUICE_SERVER_CALL_PREPARE_H
#define SLUICE_SERVER_CALL_PREPARE_H

#include "server/call/request.h"

/* What comes next. PREPARE_TEMPLATE: the prompt, by a chat template that the client sent, which may
 * take a second of processor time. Only one thread at a time should render such templates. */
enum prepare_stage { PREPARE_DONE, PREPARE_PROMPT, PREPARE_TEMPLATE };

/* The caller sets kind, model, text, n_bytes and seed, and zeroes the rest. Unless PREPARE_DONE is
 * returned, prepare_prompt must follow. Both set the result or r->error. Call request_deinit in any
 * case. */
enum prepare_stage prepare_body(struct request *r);
void prepare_prompt(struct request *r);

/* Both, one after the other. */
void prepare_request(struct request *r);

#endif
