// SPDX-License-Identifier: Apache-2.0
/* Converts a body to a request for the engine: JSON, checks, chat template, token ids. A pure
 * function of its input, so that it can run on the pool while the loop serves others.
 * Thread: any, one call per request. */
#ifndef SLUICE_SERVER_CALL_PREPARE_H
#define SLUICE_SERVER_CALL_PREPARE_H

#include "server/call/request.h"

/* The caller sets kind, model, text, n_bytes and seed, and zeroes the rest. Sets the result or
 * r->error. Call request_deinit in any case. */
void prepare_request(struct request *r);

#endif
