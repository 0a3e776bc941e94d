// SPDX-License-Identifier: Apache-2.0
/* From a body to a request that the engine can run: JSON, checks, chat template, token ids. A pure
 * function of its input, so that it can run on the pool while the loop serves others.
 * Thread: any, one call per request. */
#ifndef SLUICE_SERVER_CALL_PREPARE_H
#define SLUICE_SERVER_CALL_PREPARE_H

#include "server/call/request.h"

/* kind, model, text, n_bytes and seed are set by the caller, the rest is zero. Fills in the result
 * or r->error. request_deinit in any case. */
void prepare_request(struct request *r);

#endif
