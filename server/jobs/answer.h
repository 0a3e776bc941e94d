// SPDX-License-Identifier: Apache-2.0
/* | The lines of a job's output, in the format of OpenAI's batches:
 *
 *     {"id","custom_id","response":{"status_code","request_id","body"},"error":null}
 *
 * Thread: any. */
#ifndef SLUICE_SERVER_JOBS_ANSWER_H
#define SLUICE_SERVER_JOBS_ANSWER_H

#include "engine/base/buf.h"
#include "server/call/error.h"

enum { ANSWER_ID_BYTES = 32 };

/* A new id of 24 hex digits, for "batch_req_..." and the answer's own. */
void answer_make_id(char id[ANSWER_ID_BYTES]);

/* The answer to a successful request, whose body is `body`. */
void answer_put_body(struct buf *out, const char *id, const char *custom_id, const char *body,
                     size_t n_bytes);
/* The answer to a request that was rejected, or failed. */
void answer_put_refusal(struct buf *out, const char *id, const char *custom_id,
                        const struct call_error *e);
/* The answer to a request that was never started, with a code such as "batch_expired". */
void answer_put_unmade(struct buf *out, const char *id, const char *custom_id, const char *code,
                       const char *message);

#endif
